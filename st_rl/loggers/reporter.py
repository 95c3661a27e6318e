"""What a training shows of one iteration: scalars for the writers, rows for the console."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

GIBIBYTE = 1024**3


def aggregate_infos(infos: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """One number for every key of many info dictionaries.

    The mean of the values that are not NaN, or their maximum or minimum when the key contains `_max` or `_min`.
    """
    keys: list[str] = []
    vectors: list[Tensor] = []
    for info in infos:
        for key, value in info.items():
            try:
                vectors.append(_as_vector(value))
            except (TypeError, ValueError, RuntimeError):
                continue  # a text, say
            keys.append(key)
    values: dict[str, list[Tensor]] = {}
    for key, vector in zip(keys, _read_all(vectors)):
        values.setdefault(key, []).append(vector)
    result = {}
    for key, parts in values.items():
        numbers = torch.cat(parts)
        numbers = numbers[~torch.isnan(numbers)]
        if numbers.numel():
            reduce = torch.max if "_max" in key else torch.min if "_min" in key else torch.mean
            result[key] = float(reduce(numbers))
    return result


def gathered_infos(infos: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The infos of many steps of a GPU as one dictionary of vectors `(T,)`; as they are if that cannot be.

    Part of a captured rollout, where it costs next to nothing: reading vectors later is much faster than as many
    single numbers.
    """
    numbers = [value for info in infos for value in info.values()]
    if any(info.keys() != infos[0].keys() for info in infos) or not all(map(_is_gpu_number, numbers)):
        return [dict(info) for info in infos]
    table = torch.stack([number.reshape(()).float() for number in numbers]).view(len(infos), -1) if numbers else None
    return [] if table is None else [dict(zip(infos[0], table.T.contiguous().unbind()))]


def _is_gpu_number(value: Any) -> bool:
    return isinstance(value, Tensor) and value.numel() == 1 and value.device.type != "cpu"


def infos_on_host(infos: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Copies of the infos with every tensor of a GPU read, all of them together; waits for the device once."""
    result = [dict(info) for info in infos]
    places = [
        (info, key)
        for info in result
        for key, value in info.items()
        if isinstance(value, Tensor) and value.device.type != "cpu"
    ]
    if places:
        parts = [info[key].detach().reshape(-1).float() for info, key in places]
        for (info, key), part in zip(places, torch.cat(parts).cpu().split([part.numel() for part in parts])):
            info[key] = part
    return result


def _as_vector(value: Any) -> Tensor:
    """A number, a tensor or a list of numbers as a vector where it is; numbers of the host in double precision."""
    tensor = value.detach() if isinstance(value, Tensor) else torch.as_tensor(value, dtype=torch.float64)
    return tensor.reshape(-1)


def _read_all(vectors: Sequence[Tensor]) -> list[Tensor]:
    """Vectors on the host in double precision; those of one device and type are read together."""
    result = list(vectors)
    for device, dtype in {(v.device, v.dtype) for v in vectors if v.device.type != "cpu"}:
        places = [place for place, v in enumerate(vectors) if (v.device, v.dtype) == (device, dtype)]
        together = torch.cat([vectors[place] for place in places]).cpu()
        parts = together.split([vectors[place].numel() for place in places])
        for place, part in zip(places, parts):
            result[place] = part
    return [vector.double() for vector in result]


def read_numbers(named: Mapping[str, Any]) -> dict[str, float]:
    """Named numbers and tensors, by their means, as Python numbers; waits for the device once."""
    vectors = [_as_vector(value) for value in named.values()]
    small = [vector if vector.numel() == 1 else vector.double().mean().reshape(1) for vector in vectors]
    return dict(zip(named, torch.cat(_read_all(small)).tolist())) if small else {}


def mean(values: Sequence[float]) -> float:
    """The mean of numbers; NaN for none."""
    return sum(values) / len(values) if values else float("nan")


def device_memory(device: torch.device | str) -> dict[str, float]:
    """Memory of a CUDA device in GiB, by log tag; nothing elsewhere."""
    if torch.device(device).type != "cuda":
        return {}
    free, total = torch.cuda.mem_get_info(device)
    return {
        "Perf/gpu_allocated": torch.cuda.memory_allocated(device) / GIBIBYTE,
        "Perf/gpu_global_free_mem": free / GIBIBYTE,
        "Perf/gpu_total": total / GIBIBYTE,
    }


def clock(seconds: float) -> str:
    """Seconds as h:mm:ss."""
    minutes, seconds = divmod(int(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"


def episode_scalars(ep_infos: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Aggregated episode infos by log tag."""
    return {key if "/" in key else f"Episode/{key}": value for key, value in aggregate_infos(ep_infos).items()}


def iteration_scalars(runner: Any, locs: Mapping[str, Any]) -> dict[str, float]:
    """Every scalar of one iteration of a runner by its log tag, but those of episode infos."""
    alg, rewards, frame_rewards = runner.alg, locs["rewbuffer"], locs["rframebuffer"]
    seconds = locs["collection_time"] + locs["learn_time"]
    std = getattr(alg.actor_critic, "std", None)
    measured: dict[str, Any] = {f"Loss/{name}": value for name, value in locs["losses"].items()}
    measured |= {f"Train/{name}": value for name, value in locs["stats"].items()}
    measured["Loss/learning_rate"] = alg.learning_rate
    measured["Policy/mean_noise_std"] = std if isinstance(std, Tensor) else float("nan")
    measured["Perf/total_fps"] = runner.num_steps_per_env * runner.env.num_envs / max(seconds, 1e-9)
    measured["Perf/collection time"] = locs["collection_time"]
    measured["Perf/learning_time"] = locs["learn_time"]
    measured |= device_memory(runner.device)
    if frame_rewards:
        measured["Train/mean_reward_each_timestep"] = mean(frame_rewards)
    if rewards:
        average = mean(rewards)
        measured["Train/mean_reward"] = average
        measured["Train/ratio_above_mean_reward"] = mean([float(reward > average) for reward in rewards])
        measured["Train/mean_episode_length"] = mean(locs["lenbuffer"])
    measured["Metrics/velrmsd"] = runner.metrics_velrmsd
    measured["Metrics/CoT"] = runner.metrics_CoT
    if alg.rnd is not None and alg.intrinsic_rewards is not None:
        measured["Rnd/mean_extrinsic_reward"] = mean(frame_rewards)
        measured["Rnd/mean_intrinsic_reward"] = alg.intrinsic_rewards
        measured["Rnd/weight"] = alg.rnd.weight
    return read_numbers(measured)


def console_rows(
    scalars: Mapping[str, float],
    episodes: Mapping[str, float],
    locs: Mapping[str, Any],
    total_steps: int,
    total_seconds: float,
    seconds_left: float,
) -> list[tuple[str, str]]:
    """The rows that the console shows of one iteration."""
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
        ("Iteration time", f"{locs['collection_time'] + locs['learn_time']:.3f} s"),
        ("Total time", clock(total_seconds)),
        ("ETA", clock(seconds_left)),
    ]
