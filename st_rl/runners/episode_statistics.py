"""Returns and lengths of episodes, kept on the device and read once an iteration."""

from collections import deque
from typing import Any

import torch
from torch import Tensor


class EpisodeStatistics:
    """Follows the running episodes of all robots through a rollout of T steps.

    `record` never waits for the device; `drain` moves a whole rollout to the host at once.
    """

    def __init__(self, num_steps: int, num_envs: int, device: torch.device | str):
        self.rframebuffer: deque[float] = deque(maxlen=2000)
        self.rewbuffer: deque[float] = deque(maxlen=100)
        self.lenbuffer: deque[float] = deque(maxlen=100)
        # Return and length of the running episodes; the two attributes are views of it.
        self._running = torch.zeros(2, num_envs, device=device)
        self.cur_reward_sum, self.cur_episode_length = self._running.unbind()
        # Rows of one rollout: step reward, return so far, length so far, done.
        self._rollout = torch.zeros(num_steps, 4, num_envs, device=device)
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

    def drain(self) -> None:
        """Move what was recorded into the buffers that the log shows; waits for the device."""
        rewards, returns, lengths, dones = self._rollout[: self.num_recorded].cpu().unbind(dim=1)
        finished = dones > 0
        self.rewbuffer.extend(returns[finished][-100:].tolist())
        self.lenbuffer.extend(lengths[finished][-100:].tolist())
        self.rframebuffer.extend(rewards[~finished][-2000:].tolist())
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
