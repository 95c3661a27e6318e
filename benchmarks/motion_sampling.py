"""Reference frames per second of `AMPLoader`: `python benchmarks/motion_sampling.py`.

A transition is two frames of 42 features. Blended: sampled and interpolated between frames in each call. Preloaded:
picked from a million transitions sampled in advance. Writes benchmarks/results/motion_sampling.json.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import describe_machine, write_results
from st_rl.datasets.library import CLIPS
from st_rl.datasets.motion_loader import AMPLoader


def measure(loader: AMPLoader, batch: int, seconds: float) -> dict[str, float]:
    """Millions of frames per second: median over rounds of 0.1 s, maximum, and by CPU time."""
    rates, start, work = [], time.perf_counter(), time.process_time()
    delivered = 0
    while time.perf_counter() - start < seconds:
        round_start, count = time.perf_counter(), 0
        while time.perf_counter() - round_start < 0.1:
            for state, following in loader.feed_forward_generator(8, batch):
                count += len(state) + len(following)
        rates.append(count / (time.perf_counter() - round_start) / 1e6)
        delivered += count
    per_core = delivered / (time.process_time() - work) / 1e6
    return {"median": statistics.median(rates), "best": max(rates), "of_processor_time": per_core, "rounds": len(rates)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3.0, help="duration of each row, s")
    parser.add_argument("--batches", type=int, nargs="+", default=[4096, 24576])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "motion_sampling.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows: list[dict[str, Any]] = []
    for preload in (False, True):
        loader = AMPLoader(options.device, 0.02, data_dir=CLIPS, preload_transitions=preload)
        for batch in options.batches:
            row = {"kind": "preloaded" if preload else "blended", "batch": batch, "threads": options.threads}
            rows.append(row | {"million_frames_per_second": measure(loader, batch, options.seconds)})
            print(rows[-1], flush=True)
    write_results(options.out, {"benchmark": "motion sampling", **describe_machine(), "results": rows})


if __name__ == "__main__":
    main()
