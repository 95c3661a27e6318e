"""Returns and lengths of episodes, accumulated on the device and read once an iteration."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

NUM_EPISODES = 100
NUM_FRAMES = 2000


def select_last(values: Tensor, mask: Tensor, count: int) -> Tensor:
    """Return the last `count` columns of `values (K, M)` where `mask (M,)`, aligned to the right: `(K, count)`.

    Padded with zeros on the left. The shape does not depend on values, so there is no host sync.
    """
    rank = mask.flip(0).cumsum(0).flip(0)
    # The extra last column collects everything that is not selected.
    place = torch.where(mask & (rank <= count), count - rank, count)
    result = values.new_zeros(values.shape[0], count + 1)
    return result.scatter_(1, place.expand_as(values), values)[:, :count]


def stack_infos(infos: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Stack the infos of T steps on a GPU into one dictionary of vectors `(T,)`; returns other infos as copies.

    Inside a captured rollout this is almost free, and reading one vector later is much faster than T scalars.
    """
    values = [value for info in infos for value in info.values()]
    if not values:
        return []
    is_stackable = all(isinstance(v, Tensor) and v.numel() == 1 and v.device.type != "cpu" for v in values)
    if not is_stackable or any(info.keys() != infos[0].keys() for info in infos):
        return [dict(info) for info in infos]
    table = torch.stack([value.reshape(()).float() for value in values]).view(len(infos), -1)
    return [dict(zip(infos[0], table.T.contiguous().unbind()))]


class EpisodeStatistics:
    """Tracks return and length of the episodes of all environments through a rollout of T steps.

    `record` and `summarize` do not sync with the host; `drain` reads the summary of a rollout with one sync.
    """

    def __init__(self, num_steps: int, num_envs: int, device: torch.device | str):
        self.rframebuffer: deque[float] = deque(maxlen=NUM_FRAMES)
        self.rewbuffer: deque[float] = deque(maxlen=NUM_EPISODES)
        self.lenbuffer: deque[float] = deque(maxlen=NUM_EPISODES)
        # Return and length of the current episodes; the two attributes are views of it.
        self._running = torch.zeros(2, num_envs, device=device)
        self.cur_reward_sum, self.cur_episode_length = self._running.unbind()
        # Rows of one rollout: step reward, return so far, length so far, done.
        self._rollout = torch.zeros(num_steps, 4, num_envs, device=device)
        # Number of finished episodes and of other steps, then the last returns, lengths and step rewards.
        self._summary = torch.zeros(2 + 2 * NUM_EPISODES + NUM_FRAMES, device=device)
        self.num_recorded = 0

    def record(self, rewards: Tensor, dones: Tensor) -> None:
        """Record one step: rewards and dones `(N,)`."""
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
        """Reduce the recorded steps to one small tensor."""
        rewards, returns, lengths, dones = self._rollout[: self.num_recorded].transpose(0, 1).reshape(4, -1).unbind()
        ended = dones > 0
        episodes = select_last(torch.stack([returns, lengths]), ended, NUM_EPISODES)
        frames = select_last(rewards[None], ~ended, NUM_FRAMES)
        counts = torch.stack([ended.sum(), (~ended).sum()])
        self._summary.copy_(torch.cat([counts, episodes.flatten(), frames.flatten()]))

    def drain(self) -> None:
        """Append the summary to the host buffers; one host sync."""
        num_ended, num_frames, *numbers = self._summary.tolist()
        num_ended, num_frames = min(int(num_ended), NUM_EPISODES), min(int(num_frames), NUM_FRAMES)
        returns, lengths = numbers[:NUM_EPISODES], numbers[NUM_EPISODES : 2 * NUM_EPISODES]
        self.rewbuffer.extend(returns[NUM_EPISODES - num_ended :])
        self.lenbuffer.extend(lengths[NUM_EPISODES - num_ended :])
        self.rframebuffer.extend(numbers[len(numbers) - num_frames :])
        self.num_recorded = 0

    def drop(self) -> None:
        """Discard the recorded steps of an aborted rollout; current episodes continue."""
        self.num_recorded = 0

    def buffers(self) -> dict[str, deque[float]]:
        """Return the host buffers by name: last step rewards, and returns and lengths of the last episodes."""
        return {"rframebuffer": self.rframebuffer, "rewbuffer": self.rewbuffer, "lenbuffer": self.lenbuffer}

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a bit-exact resume."""
        return {
            "cur_reward_sum": self.cur_reward_sum.clone(),
            "cur_episode_length": self.cur_episode_length.clone(),
            **{name: list(buffer) for name, buffer in self.buffers().items()},
        }

    def load_state_dict(self, state: dict[str, Any], same_episodes: bool = True) -> None:
        """Load a state; without `same_episodes`, returns and lengths of current episodes start at 0."""
        if same_episodes:
            self.cur_reward_sum.copy_(state["cur_reward_sum"])
            self.cur_episode_length.copy_(state["cur_episode_length"])
        for name, buffer in self.buffers().items():
            buffer.clear()
            buffer.extend(state[name])
