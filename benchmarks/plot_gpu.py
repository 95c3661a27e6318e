"""Draw where the time of an iteration goes on a GPU: `python benchmarks/plot_gpu.py` after `walk_gpu.py`."""

import json
from pathlib import Path

import matplotlib.pyplot as plt

FOLDER = Path(__file__).resolve().parent
COLOURS = {
    "physics": "#4c72b0",
    "task": "#55a868",
    "physics and task": "#6f9a8c",
    "acting and storing": "#c44e52",
    "update": "#8172b3",
    "log and waiting": "#b0b0b0",
}


def own_parts(row: dict) -> dict[str, float]:
    """Milliseconds of each part of an iteration of ours."""
    times = row["parts_ms"]
    parts = {"physics": times["physics"], "task": times["task"], "acting and storing": times["acting_and_storing"]}
    parts["update"] = times["update"]
    return parts | {"log and waiting": max(0.0, row["median_iteration_ms"] - sum(parts.values()))}


def peer_parts(result: dict) -> dict[str, float]:
    """Milliseconds of each part of an iteration of mjlab with rsl_rl."""
    parts = {"physics and task": result["environment_ms"], "update": result["update_ms"]}
    return {
        "physics and task": parts["physics and task"],
        "acting and storing": result["iteration_ms"] - sum(parts.values()),
        "update": parts["update"],
    }


def main() -> None:
    rows = json.loads((FOLDER / "results" / "walk_gpu.json").read_text())["rows"]
    bars = {f"st_rl,\n{row['substeps']} substeps": own_parts(row) for row in rows if row["robots"] == 4096}
    peer = FOLDER / "results" / "mjlab_gpu.json"
    if peer.exists():
        bars["mjlab, rsl_rl,\n4 substeps"] = peer_parts(json.loads(peer.read_text()))
    figure, axes = plt.subplots(figsize=(7, 0.7 + 0.6 * len(bars)), dpi=110)
    shown: set[str] = set()
    for place, parts in enumerate(reversed(bars.values())):
        left = 0.0
        for name, width in parts.items():
            axes.barh(place, width, left=left, color=COLOURS[name], label=None if name in shown else name)
            shown.add(name)
            left += width
        axes.text(left, place, f" {left:.0f} ms", va="center", fontsize=8)
    axes.set_yticks(range(len(bars)), list(reversed(bars)))
    axes.set_xlabel("ms of one iteration: 4,096 quadrupeds x 24 steps, one H200")
    axes.legend(ncols=3, fontsize=7, loc="lower right", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(FOLDER.parent / "docs" / "images" / "gpu_iteration.png", bbox_inches="tight")


if __name__ == "__main__":
    main()
