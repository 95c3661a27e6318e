"""What a training shows: scalars for the writers and a block of text for the console."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

GIBIBYTE = 1024**3


def aggregate_infos(infos: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """One number for every key of many info dictionaries.

    The mean of the values that are not NaN, or their maximum or minimum when the key contains `_max` or `_min`.
    """
    values: dict[str, list[torch.Tensor]] = {}
    for info in infos:
        for key, value in info.items():
            try:
                tensor = torch.as_tensor(value, dtype=torch.float32).detach().reshape(-1)
            except (TypeError, ValueError, RuntimeError):
                continue
            values.setdefault(key, []).append(tensor)
    result = {}
    for key, tensors in values.items():
        joined = torch.cat([tensor.to(tensors[0].device) for tensor in tensors])
        joined = joined[~torch.isnan(joined)]
        if joined.numel():
            reduce = torch.max if "_max" in key else torch.min if "_min" in key else torch.mean
            result[key] = float(reduce(joined))
    return result


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
    """Every scalar of one iteration of a runner by its log tag."""
    alg, rewards, frame_rewards = runner.alg, locs["rewbuffer"], locs["rframebuffer"]
    seconds = locs["collection_time"] + locs["learn_time"]
    std = getattr(alg.actor_critic, "std", None)
    scalars = {f"Loss/{name}": float(value) for name, value in locs["losses"].items()}
    scalars |= {f"Train/{name}": float(value) for name, value in locs["stats"].items()}
    scalars["Loss/learning_rate"] = float(alg.learning_rate)
    scalars["Policy/mean_noise_std"] = float(std.detach().mean()) if isinstance(std, torch.Tensor) else float("nan")
    scalars["Perf/total_fps"] = runner.num_steps_per_env * runner.env.num_envs / max(seconds, 1e-9)
    scalars["Perf/collection time"] = locs["collection_time"]
    scalars["Perf/learning_time"] = locs["learn_time"]
    scalars |= device_memory(runner.device)
    if frame_rewards:
        scalars["Train/mean_reward_each_timestep"] = mean(frame_rewards)
    if rewards:
        average = mean(rewards)
        scalars["Train/mean_reward"] = average
        scalars["Train/ratio_above_mean_reward"] = mean([float(reward > average) for reward in rewards])
        scalars["Train/mean_episode_length"] = mean(locs["lenbuffer"])
    scalars["Metrics/velrmsd"] = float(runner.metrics_velrmsd.mean())
    scalars["Metrics/CoT"] = float(runner.metrics_CoT.mean())
    if alg.rnd is not None and alg.intrinsic_rewards is not None:
        scalars["Rnd/mean_extrinsic_reward"] = mean(frame_rewards)
        scalars["Rnd/mean_intrinsic_reward"] = float(alg.intrinsic_rewards.mean())
        scalars["Rnd/weight"] = float(alg.rnd.weight)
    return scalars | episode_scalars(locs["ep_infos"])


def console_rows(
    scalars: Mapping[str, float], locs: Mapping[str, Any], total_steps: int, total_seconds: float
) -> list[tuple[str, str]]:
    """The rows that the console shows of one iteration."""
    seconds = locs["collection_time"] + locs["learn_time"]
    remaining = seconds * (locs["tot_iter"] - locs["it"] - 1)
    times = f"collection {locs['collection_time']:.3f} s, learning {locs['learn_time']:.3f} s"
    rows = [("Computation", f"{scalars['Perf/total_fps']:,.0f} steps/s ({times})")]
    rows += [(tag.removeprefix("Loss/"), f"{v:.4g}") for tag, v in scalars.items() if tag.startswith("Loss/")]
    rows.append(("Mean action noise std", f"{scalars['Policy/mean_noise_std']:.3f}"))
    if "Train/mean_reward" in scalars:
        rows.append(("Mean reward", f"{scalars['Train/mean_reward']:.2f}"))
        rows.append(("Mean episode length", f"{scalars['Train/mean_episode_length']:.1f}"))
    rows += [(tag, f"{value:.4f}") for tag, value in episode_scalars(locs["ep_infos"]).items()]
    return [
        *rows,
        ("Velocity error", f"{scalars['Metrics/velrmsd']:.4f}"),
        ("Cost of transport", f"{scalars['Metrics/CoT']:.4f}"),
        ("Total timesteps", f"{total_steps:,}"),
        ("Iteration time", f"{seconds:.3f} s"),
        ("Total time", clock(total_seconds)),
        ("ETA", clock(remaining)),
    ]


class Console:
    """Shows one block of text after the other: in place on a terminal, as plain lines elsewhere."""

    def __init__(self) -> None:
        self._live: Any = None

    def show(self, title: str, rows: Sequence[tuple[str, str]], width: int, pad: int) -> None:
        """Show `label: value` rows under a title, labels right-aligned in `pad` columns."""
        lines = [f"{label + ':':>{pad}} {value}" for label, value in rows]
        if sys.stdout.isatty():
            self._show_live(title, lines, width)
            return
        rule = "#" * width
        sys.stdout.write("\n".join([rule, title.center(width).rstrip(), "", *lines, ""]) + "\n")
        sys.stdout.flush()

    def _show_live(self, title: str, lines: list[str], width: int) -> None:
        from rich.live import Live
        from rich.panel import Panel
        from rich.text import Text

        panel = Panel(Text("\n".join(lines)), title=title, width=width)
        if self._live is None:
            self._live = Live(panel, refresh_per_second=4)
            self._live.start()
        else:
            self._live.update(panel)

    def close(self) -> None:
        """Leave the last block standing on the terminal."""
        if self._live is not None:
            self._live.stop()
            self._live = None
