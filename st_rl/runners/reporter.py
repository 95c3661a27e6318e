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
