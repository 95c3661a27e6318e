"""What a training measures in an iteration: episodes, infos and scalars, read from the device at once."""

import os
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

NUM_EPISODES = 100
NUM_FRAMES = 2000
GIBIBYTE = 1024**3


def select_last(values: Tensor, mask: Tensor, count: int) -> Tensor:
    """Return the last `count` columns of `values (K, M)` where `mask (M,)`, aligned to the right: `(K, count)`.

    Padded with zeros on the left. The shape does not depend on values, so there is no host sync.
    """
    rank = mask.flip(0).cumsum(0).flip(0)
    # The extra last column collects everything that is not selected.
    place = torch.where(mask & (rank <= count), count - rank, count)
    result = values.new_zeros(values.shape[0], count + 1)
    return result.scatter_(1, place.expand_as(values), values)[:, :count]


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


# ---- infos ----------------------------------------------------------------------------------------------------------


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


def infos_to_host(infos: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return copies of the infos with every tensor as a double vector on the host; one host sync for all."""
    result = [dict(info) for info in infos]
    places = [(info, key) for info in result for key, value in info.items() if isinstance(value, Tensor)]
    for (info, key), vector in zip(places, _to_host([info[key].detach().reshape(-1) for info, key in places])):
        info[key] = vector
    return result


def aggregate_infos(infos: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Reduce many info dictionaries to one number per key; values that are not numeric are skipped.

    The mean of the values that are not NaN, or their maximum or minimum if the key contains `_max` or `_min`.
    """
    values: dict[str, list[Tensor]] = {}
    for info in infos_to_host(infos):
        for key, value in info.items():
            try:
                vector = torch.as_tensor(value, dtype=torch.float64).reshape(-1)
            except (TypeError, ValueError, RuntimeError):
                continue
            values.setdefault(key, []).append(vector)
    result = {}
    for key, parts in values.items():
        numbers = torch.cat(parts)
        numbers = numbers[~torch.isnan(numbers)]
        if numbers.numel():
            reduce = torch.max if "_max" in key else torch.min if "_min" in key else torch.mean
            result[key] = float(reduce(numbers))
    return result


def episode_scalars(ep_infos: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the aggregated episode infos by log tag."""
    return {key if "/" in key else f"Episode/{key}": value for key, value in aggregate_infos(ep_infos).items()}


@runtime_checkable
class MeasuringEvaluator(Protocol):
    """An evaluator that keeps what it measured in the last evaluation."""

    metrics: Mapping[str, float]


def evaluation_scalars(evaluator: object, score: float) -> dict[str, float]:
    """Return the score of a checkpoint, and what its evaluator measured, by log tag."""
    measured = evaluator.metrics if isinstance(evaluator, MeasuringEvaluator) else {}
    return {f"Evaluation/{name}": float(value) for name, value in {"score": score, **measured}.items()}


def _to_host(vectors: Sequence[Tensor]) -> list[Tensor]:
    """Return the vectors as doubles on the host; one copy per device."""
    copies: dict[torch.device, Iterator[Tensor]] = {}
    for device in {vector.device for vector in vectors}:
        parts = [vector for vector in vectors if vector.device == device]
        copies[device] = iter(torch.cat(parts).cpu().double().split([part.numel() for part in parts]))
    return [next(copies[vector.device]) for vector in vectors]


# ---- scalars --------------------------------------------------------------------------------------------------------


def read_scalars(named: Mapping[str, float | Tensor]) -> dict[str, float]:
    """Return Python floats for numbers and tensors (by their means); one host sync for all."""
    scalars = [torch.as_tensor(v, dtype=None if isinstance(v, Tensor) else torch.float64) for v in named.values()]
    scalars = [s.detach().reshape(1) if s.numel() == 1 else s.detach().double().mean().reshape(1) for s in scalars]
    return dict(zip(named, map(float, _to_host(scalars))))


def memory_scalars(device: torch.device | str) -> dict[str, float]:
    """Return the memory of a CUDA device, or else of this process where the system tells, in GiB by log tag."""
    if torch.device(device).type != "cuda":
        used = _process_memory()
        return {} if used is None else {"Perf/process_memory": used / GIBIBYTE}
    free, total = torch.cuda.mem_get_info(device)
    return {
        "Perf/gpu_allocated": torch.cuda.memory_allocated(device) / GIBIBYTE,
        "Perf/gpu_global_free_mem": free / GIBIBYTE,
        "Perf/gpu_total": total / GIBIBYTE,
    }


def _process_memory() -> int | None:
    """Return the resident memory of this process in bytes; on macOS its maximum so far, on Windows None."""
    if sys.platform == "linux":
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    if sys.platform == "win32":
        return None
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
