"""Matplotlib figures of the benchmarks."""

import importlib.util
from typing import Any


def can_plot() -> bool:
    """Whether matplotlib is installed; prints a note if not."""
    if importlib.util.find_spec("matplotlib"):
        return True
    print("matplotlib is not installed: no plot")
    return False


def start_plot(num_axes: int, size: tuple[float, float], **settings: Any) -> tuple[Any, Any]:
    """A figure with `num_axes` plots side by side, drawn off-screen; `settings` go to `matplotlib.pyplot.subplots`."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt.subplots(1, num_axes, figsize=size, layout="constrained", **settings)
