"""Acting and update of PPO on a GPU, compared with rsl_rl: `python benchmarks/ppo_gpu.py`.

Both libraries train through their own runner on the same prepared data, without a simulation, in separate processes
that alternate. Matrix products use TF32 on both sides.
"""

import argparse
import dataclasses
import sys
import time
from pathlib import Path
from typing import Any

from machine import describe_machine, write_results
from ppo_cpu import FOLDER, Side, print_header, print_row, summarize, take_turns
from workload import Workload, matrix_work

MLP = Workload(4096, (512, 256, 128), device="cuda", engine="graph")
LSTM = dataclasses.replace(MLP, rnn_hidden_size=256)
VARIANTS = [("graph", None), ("compile", None), ("compile", "bf16")]


def compare(base: Workload, peer: bool, python: str, seconds: float) -> list[dict[str, Any]]:
    """One row for each engine of st_rl, compared with the same rsl_rl run."""
    rows = []
    peer_side = {"rsl_rl": Side(python, "worker_rsl_rl.py", 1)} if peer else {}
    for engine, precision in VARIANTS if base.rnn_hidden_size is None else VARIANTS[1:]:
        workload = dataclasses.replace(base, engine=engine, mixed_precision=precision)
        sides = {"st_rl": Side(sys.executable, "worker_st_rl.py", 1), **peer_side}
        versions = {name: side.ask(workload=workload.to_json())["versions"] for name, side in sides.items()}
        start = time.perf_counter()
        # Loads, compiles and captures kernels.
        sides["st_rl"].ask(iterations=6)
        start_seconds = time.perf_counter() - start
        # The first iteration after the other side's runs with cold GPU caches and is not counted.
        samples = take_turns(sides, seconds, 15, warm_up=1)
        limits = sides["st_rl"].ask(measure="device limits")
        work = matrix_work(workload)
        row: dict[str, Any] = {"policy": workload.policy, "workload": workload.to_json(), "limits": limits}
        row["start_seconds"] = start_seconds
        for name, values in samples.items():
            times = summarize(values)
            fraction = 1e3 * sum(work.values()) / times["total"]["median_ms"] / limits["tf32"]
            row[name] = {**times, "matrix_fraction": fraction, "versions": versions[name]}
        if peer:
            row["ratio"] = {
                part: {
                    kind: row["rsl_rl"][part][f"{kind}_ms"] / row["st_rl"][part][f"{kind}_ms"]
                    for kind in ("median", "min")
                }
                for part in ("acting", "update", "total")
            }
        sides["st_rl"].close()
        rows.append(row)
        print(f"{engine}, {precision or 'tf32'}, first six iterations {start_seconds:.1f} s", flush=True)
        print_row(row)
    for side in peer_side.values():
        side.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", default=sys.executable, help="Python interpreter with rsl_rl")
    parser.add_argument("--no-peer", action="store_true", help="measure st_rl alone")
    parser.add_argument("--seconds", type=float, default=4.0, help="time for the samples of one row")
    parser.add_argument("--mlp-only", action="store_true", help="skip the recurrent policy")
    parser.add_argument("--only", default="", help="only rows with this text in the name of the policy, such as 'LSTM'")
    parser.add_argument("--output", type=Path, default=FOLDER / "results" / "ppo_gpu.json", help="results file")
    options = parser.parse_args()
    print_header("1", ["st_rl"] if options.no_peer else ["st_rl", "rsl_rl"])
    rows = []
    for base in (MLP, LSTM):
        if options.only in base.policy and not (options.mlp_only and base.rnn_hidden_size):
            rows += compare(base, not options.no_peer, options.peer_python, options.seconds)
    write_results(options.output, {"benchmark": "ppo_gpu", **describe_machine(), "rows": rows})
    print(f"\nresults: {options.output}")


if __name__ == "__main__":
    main()
