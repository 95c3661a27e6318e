"""Plot the time of an iteration on a GPU and its scaling: `python benchmarks/plot_gpu.py` after `walk_gpu.py`."""

import json
from pathlib import Path

import matplotlib.pyplot as plt

FOLDER = Path(__file__).resolve().parent
IMAGES = FOLDER.parent / "docs" / "images"
COLORS = {
    "physics": "#4c72b0",
    "task": "#55a868",
    "physics and task": "#6f9a8c",
    "acting and storing": "#c44e52",
    "update": "#8172b3",
    "log and waiting": "#b0b0b0",
}


def own_parts(row: dict) -> dict[str, float]:
    """Milliseconds of each part of an iteration of st_rl."""
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


def draw_iteration(bars: dict[str, dict[str, float]], path: Path) -> None:
    """One bar per training: the times of its parts in ms."""
    figure, axes = plt.subplots(figsize=(7, 0.7 + 0.6 * len(bars)), dpi=110)
    shown: set[str] = set()
    for place, parts in enumerate(reversed(bars.values())):
        left = 0.0
        for name, width in parts.items():
            axes.barh(place, width, left=left, color=COLORS[name], label=None if name in shown else name)
            shown.add(name)
            left += width
        axes.text(left, place, f" {left:.0f} ms", va="center", fontsize=8)
    axes.set_yticks(range(len(bars)), list(reversed(bars)))
    axes.set_xlabel("ms of one iteration: 4,096 quadrupeds x 24 steps, one H200")
    axes.legend(ncols=2, fontsize=7, loc="upper right", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, bbox_inches="tight")


def draw_scaling(rows: list[dict], path: Path) -> None:
    """Training steps per second over the number of robots."""
    figure, axes = plt.subplots(figsize=(5, 3), dpi=110)
    axes.plot([row["robots"] for row in rows], [row["steps_per_second_median"] / 1e6 for row in rows], "o-")
    axes.set_xscale("log", base=2)
    axes.set_xticks([row["robots"] for row in rows], [f"{row['robots']:,}" for row in rows], fontsize=7)
    axes.set(xlabel="robots", ylabel="million training steps/s", ylim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, bbox_inches="tight")


def main() -> None:
    rows = json.loads((FOLDER / "results" / "walk_gpu.json").read_text())["rows"]
    bars = {f"st_rl,\n{row['substeps']} substeps": own_parts(row) for row in rows if row["robots"] == 4096}
    peer, scaling = (FOLDER / "results" / name for name in ("mjlab_gpu.json", "scaling_gpu.json"))
    if peer.exists():
        bars["mjlab, rsl_rl,\n4 substeps"] = peer_parts(json.loads(peer.read_text()))
    draw_iteration(bars, IMAGES / "gpu_iteration.png")
    if scaling.exists():
        draw_scaling(json.loads(scaling.read_text())["rows"], IMAGES / "gpu_scaling.png")


if __name__ == "__main__":
    main()
