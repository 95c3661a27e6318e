"""Returns and lengths of episodes, kept on the device and read once an iteration."""

from collections import deque
from typing import Any

import torch
from torch import Tensor

NUM_EPISODES = 100
NUM_FRAMES = 2000


def newest(values: Tensor, chosen: Tensor, count: int) -> Tensor:
    """The last `count` columns of `values (K, M)` that are `chosen (M,)`, aligned to the right: `(K, count)`.

    Zeros stand on the left where fewer are chosen. The shape depends on no value, so nothing waits.
    """
    rank = chosen.flip(0).cumsum(0).flip(0)
    # The column behind the last takes everything that is not wanted.
    place = torch.where(chosen & (rank <= count), count - rank, count)
    result = values.new_zeros(values.shape[0], count + 1)
    return result.scatter_(1, place.expand_as(values), values)[:, :count]


class EpisodeStatistics:
    """Follows the running episodes of all robots through a rollout of T steps.

    Neither `record` nor `summarize` waits for the device; `drain` moves the summary of a rollout to the host at once.
    """

    def __init__(self, num_steps: int, num_envs: int, device: torch.device | str):
        self.rframebuffer: deque[float] = deque(maxlen=NUM_FRAMES)
        self.rewbuffer: deque[float] = deque(maxlen=NUM_EPISODES)
        self.lenbuffer: deque[float] = deque(maxlen=NUM_EPISODES)
        # Return and length of the running episodes; the two attributes are views of it.
        self._running = torch.zeros(2, num_envs, device=device)
        self.cur_reward_sum, self.cur_episode_length = self._running.unbind()
        # Rows of one rollout: step reward, return so far, length so far, done.
        self._rollout = torch.zeros(num_steps, 4, num_envs, device=device)
        # Number of ended episodes and of other steps, then the newest returns, lengths and step rewards.
        self._summary = torch.zeros(2 + 2 * NUM_EPISODES + NUM_FRAMES, device=device)
        self.num_recorded = 0

    def record(self, rewards: Tensor, dones: Tensor) -> None:
        """Take in one step of all robots, rewards and dones `(N,)`."""
        finished = dones.reshape(-1) > 0
        self.cur_reward_sum.add_(rewards.reshape(-1))
        self.cur_episode_length.add_(1)
        row = self._rollout[self.num_recorded]
        row[0] = rewards.reshape(-1)
        row[1:3] = self._running
        row[3] = finished
        self._running.masked_fill_(finished, 0.0)
        self.num_recorded += 1

    def summarize(self) -> None:
        """Put what the log will show of the recorded steps into one small tensor."""
        rewards, returns, lengths, dones = self._rollout[: self.num_recorded].transpose(0, 1).reshape(4, -1).unbind()
        ended = dones > 0
        episodes = newest(torch.stack([returns, lengths]), ended, NUM_EPISODES)
        frames = newest(rewards[None], ~ended, NUM_FRAMES)
        counts = torch.stack([ended.sum(), (~ended).sum()])
        self._summary.copy_(torch.cat([counts, episodes.flatten(), frames.flatten()]))

    def drain(self) -> None:
        """Move the summary into the buffers that the log shows; waits for the device."""
        num_ended, num_frames, *numbers = self._summary.tolist()
        num_ended, num_frames = min(int(num_ended), NUM_EPISODES), min(int(num_frames), NUM_FRAMES)
        returns, lengths = numbers[:NUM_EPISODES], numbers[NUM_EPISODES : 2 * NUM_EPISODES]
        self.rewbuffer.extend(returns[NUM_EPISODES - num_ended :])
        self.lenbuffer.extend(lengths[NUM_EPISODES - num_ended :])
        self.rframebuffer.extend(numbers[len(numbers) - num_frames :])
        self.num_recorded = 0

    def drop(self) -> None:
        """Forget the recorded steps of a rollout that broke off; the running episodes go on."""
        self.num_recorded = 0

    def state_dict(self) -> dict[str, Any]:
        """What an exact resume needs."""
        return {
            "cur_reward_sum": self.cur_reward_sum.clone(),
            "cur_episode_length": self.cur_episode_length.clone(),
            "rframebuffer": list(self.rframebuffer),
            "rewbuffer": list(self.rewbuffer),
            "lenbuffer": list(self.lenbuffer),
        }

    def load_state_dict(self, state: dict[str, Any], same_episodes: bool = True) -> None:
        """Continue where `state_dict` was taken; without the sums of running episodes when those are not the same."""
        if same_episodes:
            self.cur_reward_sum.copy_(state["cur_reward_sum"])
            self.cur_episode_length.copy_(state["cur_episode_length"])
        for name in ("rframebuffer", "rewbuffer", "lenbuffer"):
            buffer = getattr(self, name)
            buffer.clear()
            buffer.extend(state[name])
