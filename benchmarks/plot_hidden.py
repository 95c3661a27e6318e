"""Merge and plot results of `hidden_velocity.py`: `python benchmarks/plot_hidden.py OUT FILE...`."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from machine import write_results
from plots import start_plot
from seeds import merge

TRACKING = {"lin_vel_x_error": "forward", "lin_vel_y_error": "lateral", "ang_vel_yaw_error": "yaw rate"}
STAGES = {
    "old": "old policy",
    "continued_at_start": "continued,\nat its start",
    "new_at_start": "new,\nat its start",
    "continued_after_a_fifth": "continued,\na fifth later",
    "new_after_a_fifth": "new,\na fifth later",
}


def bars(axes: Any, rows: Sequence[Sequence[float]], place: int = 0, count: int = 1, label: str | None = None) -> None:
    """A bar for the mean of each row and a dot for each of its seeds."""
    width = 0.8 / count
    where = [x + width * (place - (count - 1) / 2) for x in range(len(rows))]
    axes.bar(where, [sum(row) / len(row) for row in rows], 0.95 * width, color=f"C{place}", alpha=0.6, label=label)
    for x, row in zip(where, rows):
        axes.plot([x] * len(row), row, ".", color="black", ms=4)


def plot_velocity(seeds: list[dict[str, Any]]) -> Any:
    """R2 of the velocity estimate, and tracking errors."""
    figure, (left, right) = start_plot(2, (8, 3.2))
    axes_names = list(seeds[0]["estimator"]["r2"])
    bars(left, [[seed["estimator"]["r2"][name] for seed in seeds] for name in axes_names])
    left.axhline(0.8, color="grey", lw=0.8, ls="--")
    left.set(ylabel="R2 of the estimated velocity", xticks=range(len(axes_names)), xticklabels=axes_names, ylim=(0, 1))
    for place, name in enumerate(("estimator", "plain")):
        rows = [[seed[name]["tracking"][error] for seed in seeds] for error in TRACKING]
        bars(right, rows, place, 2, name)
    right.set(ylabel="error, m/s and rad/s", xticks=range(len(TRACKING)), xticklabels=TRACKING.values())
    right.legend()
    return figure


def plot_adaptor(seeds: list[dict[str, Any]]) -> Any:
    """Correlation of the estimated properties with the truth, with 95% intervals."""
    figure, axes = start_plot(1, (6, 3.2))
    names = list(seeds[0]["evaluated"]["properties"])
    for place, stage in enumerate(("evaluated", "exploring")):
        label = {"evaluated": "mean actions", "exploring": "exploring"}[stage]
        for index, seed in enumerate(seeds):
            rows = [seed[stage]["properties"][name] for name in names]
            where = [x + 0.35 * (place - 0.5) + 0.08 * (index - (len(seeds) - 1) / 2) for x in range(len(names))]
            middle = [row["correlation"] for row in rows]
            reach = [[row["correlation"] - row["correlation_low"] for row in rows]]
            reach += [[row["correlation_high"] - row["correlation"] for row in rows]]
            axes.errorbar(where, middle, reach, fmt="o", ms=4, color=f"C{place}", label=None if index else label)
    axes.axhline(0.0, color="grey", lw=0.8, ls="--")
    axes.set(ylabel="correlation with the truth, 95%", xticks=range(len(names)), xticklabels=names)
    axes.legend()
    return figure


def plot_misaligned(seeds: list[dict[str, Any]]) -> Any:
    """Rewards before and after the observations changed."""
    figure, axes = start_plot(1, (6, 3.2))
    bars(axes, [[seed[stage] for seed in seeds] for stage in STAGES])
    axes.set(ylabel="reward per second", xticks=range(len(STAGES)), xticklabels=STAGES.values())
    return figure


PLOTS = {"velocity": plot_velocity, "adaptor": plot_adaptor, "misaligned": plot_misaligned}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="JSON file to write; the plot has the same name with .png")
    parser.add_argument("files", type=Path, nargs="+", help="results of one experiment")
    options = parser.parse_args()
    results = merge(options.files)
    write_results(options.out, results)
    figure = PLOTS[results["benchmark"]](list(results["seeds"].values()))
    figure.savefig(options.out.with_suffix(".png"), dpi=110)


if __name__ == "__main__":
    main()
