"""The figure of returns beside Stable-Baselines3, from `results/returns_*.json`: mean and range of the seeds."""

import json
import statistics
from pathlib import Path
from typing import Any

from plots import can_plot, start_plot

FOLDER = Path(__file__).resolve().parent
FILES = ("returns_1m.json", "returns_200k.json")
LABELS = {
    "st_rl defaults": ("st_rl, defaults of gym:", "tab:blue"),
    "st_rl": ("st_rl, settings of Stable-Baselines3", "tab:cyan"),
    "stable-baselines3": ("Stable-Baselines3", "tab:orange"),
}


def read_curve(run: dict[str, Any]) -> list[tuple[float, float]]:
    """Steps and mean returns of a training, with its final evaluation."""
    curve = {point["steps"]: point["mean_return"] for point in run["curve"]}
    curve[run["steps"]] = statistics.fmean(run["final_returns"])
    return sorted(curve.items())


def main() -> None:
    if not can_plot():
        return
    files = [json.loads((FOLDER / "results" / name).read_text()) for name in FILES]
    cells = [item for file in files for item in file["tasks"].items()]
    figure, axes = start_plot(len(cells), (4.2 * len(cells), 3.2), squeeze=False)
    for ax, (task, cell) in zip(axes[0], cells):
        for library, (label, color) in LABELS.items():
            curves = [read_curve(run) for run in cell.get(library, {"seeds": []})["seeds"]]
            if not curves:
                continue
            points = list(zip(*curves))
            steps = [point[0][0] / 1e6 for point in points]
            values = [[value for _, value in point] for point in points]
            ax.plot(steps, [statistics.fmean(row) for row in values], color=color, label=label)
            ax.fill_between(steps, [min(row) for row in values], [max(row) for row in values], color=color, alpha=0.15)
        counts = sorted({len(summary["seeds"]) for summary in cell.values()})
        ax.set(title=f"{task}, {' to '.join(map(str, sorted({counts[0], counts[-1]})))} seeds", xlabel="million steps")
    axes[0][0].set_ylabel("return without noise")
    axes[0][0].legend(fontsize=7)
    figure.savefig(FOLDER.parent / "docs" / "images" / "returns.png", dpi=110)


if __name__ == "__main__":
    main()
