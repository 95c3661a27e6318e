"""The log of one iteration: scalars by tag for the writers, rows for the console."""

import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

GIBIBYTE = 1024**3

# ---- episode infos -----------------------------------------------------------------------------------------------


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


# ---- scalars and rows --------------------------------------------------------------------------------------------


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


def format_duration(seconds: float) -> str:
    """Format seconds as h:mm:ss."""
    minutes, seconds = divmod(int(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"


def console_rows(
    scalars: Mapping[str, float],
    episodes: Mapping[str, float],
    locs: Mapping[str, Any],
    total_steps: int,
    total_seconds: float,
    seconds_left: float,
) -> list[tuple[str, str]]:
    """Return the rows (label, value) that the console shows of one iteration."""
    rows = [
        ("Computation", f"{scalars['Perf/total_fps']:,.0f} steps/s"),
        ("Collection + learning", f"{locs['collection_time']:.3f} s + {locs['learn_time']:.3f} s"),
    ]
    rows += [(tag.removeprefix("Loss/"), f"{v:.4g}") for tag, v in scalars.items() if tag.startswith("Loss/")]
    rows.append(("Mean action noise std", f"{scalars['Policy/mean_noise_std']:.3f}"))
    if "Train/mean_reward" in scalars:
        rows.append(("Mean reward", f"{scalars['Train/mean_reward']:.2f}"))
        rows.append(("Mean episode length", f"{scalars['Train/mean_episode_length']:.1f}"))
    rows += [(tag, f"{value:.4f}") for tag, value in episodes.items()]
    metrics = {"Metrics/velrmsd": "Velocity error", "Metrics/CoT": "Cost of transport"}
    rows += [(label, f"{scalars[tag]:.4f}") for tag, label in metrics.items() if not math.isnan(scalars[tag])]
    return [
        *rows,
        ("Total timesteps", f"{total_steps:,}"),
        *_memory_rows(scalars),
        ("Iteration time", f"{locs['collection_time'] + locs['learn_time']:.3f} s"),
        ("Total time", format_duration(total_seconds)),
        ("ETA", format_duration(seconds_left)),
    ]


def _memory_rows(scalars: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return the row of the memory that `memory_scalars` has measured, if any."""
    if "Perf/gpu_total" in scalars:
        total = scalars["Perf/gpu_total"]
        return [("GPU memory", f"{total - scalars['Perf/gpu_global_free_mem']:.2f} of {total:.2f} GiB")]
    if "Perf/process_memory" in scalars:
        return [("Process memory", f"{scalars['Perf/process_memory']:.2f} GiB")]
    return []
