"""Draw where the time of an iteration goes on a GPU: `python benchmarks/plot_gpu.py` after a run of `walk_gpu.py`."""

import json
from pathlib import Path

import matplotlib.pyplot as plt

FOLDER = Path(__file__).resolve().parent
ROWS = {2: "graphs,\n2 substeps", 0: "compiled,\n2 substeps", 1: "compiled,\n4 substeps"}
COLOURS = ("#4c72b0", "#55a868", "#c44e52", "#8172b3", "#b0b0b0")


def parts(row: dict) -> dict[str, float]:
    """Milliseconds of each part of an iteration."""
    times = row["median_ms"]
    return {
        "physics": row["physics_ms"],
        "task": row["task_ms"] - row["physics_ms"],
        "acting and storing": times["collect"] - row["task_ms"],
        "update": times["update"],
        "log and waiting": times["iteration"] - times["collect"] - times["update"],
    }


def main() -> None:
    rows = json.loads((FOLDER / "results" / "gpu_h200.json").read_text())["training"]
    figure, axes = plt.subplots(figsize=(7, 2.4), dpi=110)
    for place, index in enumerate(reversed(ROWS)):
        left = 0.0
        for colour, (name, width) in zip(COLOURS, parts(rows[index]).items()):
            axes.barh(place, width, left=left, color=colour, label=name if place == 0 else None)
            left += width
    axes.set_yticks(range(len(ROWS)), list(reversed(ROWS.values())))
    axes.set_xlabel("ms of one iteration: 4,096 quadrupeds x 24 steps, one H200")
    axes.legend(ncols=5, fontsize=7, loc="upper center", bbox_to_anchor=(0.45, 1.22), frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(FOLDER.parent / "docs" / "images" / "gpu_iteration.png", bbox_inches="tight")


if __name__ == "__main__":
    main()
