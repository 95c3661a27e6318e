"""Acting and update of PPO on a CPU, compared with rsl_rl: `python benchmarks/ppo_cpu.py`.

Both libraries train through their own runner on the same prepared data, without a simulation, in plain eager code and
with the same number of threads. They alternate, so that other load on the machine slows both equally.
With `--tuned` each library uses its fastest settings: st_rl compiled and with the number of update threads it selects,
as in a long training, and rsl_rl with one thread or all of them, whichever is faster.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from machine import describe_machine, write_results
from workload import Workload, matrix_work

FOLDER = Path(__file__).resolve().parent
WORKLOADS = [
    Workload(robots, hidden_dims, rnn_hidden_size)
    for hidden_dims, rnn_hidden_size in (((128, 128), None), ((512, 256, 128), None), ((128, 128), 256))
    for robots in (256, 1024)
]
PARTS = ("acting", "update")


class Side:
    """One library in its own process."""

    def __init__(self, python: str, worker: str, threads: int):
        # Math libraries read the number of threads when they are loaded.
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            "MKL_NUM_THREADS": str(threads),
            "PYTHONPATH": os.pathsep.join([str(FOLDER.parent), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
        }
        # The output of the libraries is shown only on an error.
        self._messages = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [python, str(FOLDER / worker)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._messages,
            env=environment,
            text=True,
        )

    def ask(self, **request: Any) -> Any:
        """Send a request and wait for the reply."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            self._messages.seek(0)
            message = self._messages.read()[-2000:]
            raise RuntimeError(f"{self._process.args} ended with status {self._process.wait()}:\n{message}")
        return json.loads(answer)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()
        self._messages.close()


def take_turns(
    sides: dict[str, Side], seconds: float, min_rounds: int, warm_up: int = 0
) -> dict[str, dict[str, list[float]]]:
    """Samples of every side, alternating by iteration, until the time limit.

    `warm_up` iterations before each do not count.
    """
    samples: dict[str, dict[str, list[float]]] = {name: {} for name in sides}
    for side in sides.values():
        side.ask(iterations=2)
    start, rounds = time.perf_counter(), 0
    while rounds < min_rounds or time.perf_counter() - start < seconds:
        # Alternate the order, so that neither side always runs after the other.
        for name in sorted(sides, reverse=bool(rounds % 2)):
            for part, values in sides[name].ask(iterations=warm_up + 1).items():
                samples[name].setdefault(part, []).extend(values[warm_up:])
        rounds += 1
    return samples


def summarize(samples: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Median time, minimum time and median CPU time in milliseconds of each part and of the whole."""
    series = {part: (samples[part], samples[f"{part} processor"]) for part in PARTS}
    series["total"] = tuple([sum(pair) for pair in zip(*values)] for values in zip(*series.values()))  # pyright: ignore
    return {
        part: {
            "median_ms": 1e3 * statistics.median(wall),
            "min_ms": 1e3 * min(wall),
            "median_processor_ms": 1e3 * statistics.median(processor),
            "samples": len(wall),
        }
        for part, (wall, processor) in series.items()
    }


def compare(workload: Workload, sides: dict[str, Side], seconds: float, min_rounds: int) -> dict[str, Any]:
    """One row: the times of every side, their ratio and the fraction of the machine's matrix throughput."""
    versions = {name: side.ask(workload=workload.to_json()) for name, side in sides.items()}
    samples = take_turns(sides, seconds, min_rounds)
    rate = max(side.ask(measure="matrix rate")["matrix_rate"] for side in sides.values())
    work = matrix_work(workload)
    row: dict[str, Any] = {"policy": workload.policy, "workload": workload.to_json(), "matrix_rate": rate}
    for name, values in samples.items():
        times = summarize(values)
        # The matrix rate is that of the fastest product, so use the time of the fastest iteration.
        row[name] = {**times, "matrix_fraction": 1e3 * sum(work.values()) / times["total"]["min_ms"] / rate}
        row[name]["versions"] = versions[name]["versions"]
    if len(sides) == 2:
        row["ratio"] = {
            part: {
                kind: row["rsl_rl"][part][f"{kind}_ms"] / row["st_rl"][part][f"{kind}_ms"]
                for kind in ("median", "min", "median_processor")
            }
            for part in (*PARTS, "total")
        }
        row["ratio"]["total"]["paired"] = paired_ratio(samples["rsl_rl"], samples["st_rl"])
    return row


def paired_ratio(theirs: dict[str, list[float]], ours: dict[str, list[float]]) -> float:
    """Median over rounds of rsl_rl's total time divided by ours in the same round."""
    totals = ([sum(parts) for parts in zip(*(side[part] for part in PARTS))] for side in (theirs, ours))
    return statistics.median(their / our for their, our in zip(*totals))


def print_row(row: dict[str, Any]) -> None:
    names = [name for name in ("st_rl", "rsl_rl") if name in row]
    cells = [f"{row['workload']['robots']:>5} x {row['workload']['steps']}  {row['policy']:<25}"]
    for part in (*PARTS, "total"):
        cells.append(" / ".join(f"{row[name][part]['median_ms']:7.1f}" for name in names))
    if "ratio" in row:
        ratios = row["ratio"]["total"]
        others = [f"{ratios[kind]:4.2f}" for kind in ("min", "median_processor", "paired") if kind in ratios]
        cells.append(f"{ratios['median']:5.2f} ({', '.join(others)})")
    cells.append(" / ".join(f"{100 * row[name]['matrix_fraction']:3.0f} %" for name in names))
    print("  ".join(cells), flush=True)


def print_header(threads: str, names: list[str]) -> None:
    both = " / ".join(names)
    print(f"\n{threads} thread(s); medians in ms, {both}; % of the measured matrix throughput")
    if len(names) == 2:
        print("ratio of the medians (of the fastest iterations, of median CPU times, median over rounds; CPU only)")
    titles = [f"{part:>{17 if len(names) == 2 else 7}}" for part in (*PARTS, "total")]
    titles += [f"{'ratio':>24}", f"{'of peak':>11}"] if len(names) == 2 else ["of peak"]
    print("  ".join([f"{'robots x steps, policy':<35}", *titles]))


def tuned_sides(workload: Workload, peer_python: str | None) -> dict[str, Side]:
    """Both libraries, each with its fastest settings."""
    sides = {"st_rl": Side(sys.executable, "worker_st_rl.py", 1)}
    # First, because it measures the fastest number of threads and needs an idle machine.
    sides["st_rl"].ask(workload=workload.to_json())
    if peer_python is None:
        return sides
    peers: dict[float, Side] = {}
    for threads in sorted({1, os.cpu_count() or 1}):
        peer = Side(peer_python, "worker_rsl_rl.py", threads)
        peer.ask(workload=workload.to_json())
        times = summarize(peer.ask(iterations=5))
        peers[times["total"]["min_ms"]] = peer
    sides["rsl_rl"] = peers.pop(min(peers))
    for slower in peers.values():
        slower.close()
    return sides


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    peer = FOLDER.parent / ".venv-peers" / "bin" / "python"
    parser.add_argument("--peer-python", default=str(peer), help="Python interpreter with rsl_rl")
    parser.add_argument("--threads", type=int, nargs="+", default=[1], help="numbers of torch threads to compare with")
    parser.add_argument("--tuned", action="store_true", help="each library with its fastest settings")
    parser.add_argument("--seconds", type=float, default=20.0, help="time for the samples of one row")
    parser.add_argument("--rounds", type=int, default=7, help="minimum number of samples per row")
    parser.add_argument("--only", default="", help="only rows with this text in the name of the policy, such as 'LSTM'")
    parser.add_argument("--mlp-only", action="store_true", help="skip the recurrent policy")
    parser.add_argument("--robots", type=int, nargs="+", default=[256, 1024], help="numbers of robots")
    parser.add_argument("--output", type=Path, help="results file; results/ppo_cpu.json or ppo_cpu_tuned.json")
    options = parser.parse_args()
    output = options.output or FOLDER / "results" / f"ppo_cpu{'_tuned' if options.tuned else ''}.json"

    pythons = {"st_rl": (sys.executable, "worker_st_rl.py")}
    if Path(options.peer_python).exists():
        pythons["rsl_rl"] = (options.peer_python, "worker_rsl_rl.py")
    else:
        print(f"{options.peer_python} does not exist: measuring st_rl alone. See benchmarks/README.md.")
    rows = []
    for threads in [0] if options.tuned else options.threads:
        print_header("the fastest number of" if options.tuned else str(threads), list(pythons))
        for workload in WORKLOADS:
            if options.only not in workload.policy or workload.robots not in options.robots:
                continue
            if options.mlp_only and workload.rnn_hidden_size is not None:
                continue
            # New processes for every row, so that rows do not depend on each other.
            if options.tuned:
                workload = replace(workload, engine="compile", update_threads="auto")
                sides = tuned_sides(workload, options.peer_python if "rsl_rl" in pythons else None)
            else:
                sides = {name: Side(python, worker, threads) for name, (python, worker) in pythons.items()}
            row = {"threads": threads or "fastest", **compare(workload, sides, options.seconds, options.rounds)}
            for side in sides.values():
                side.close()
            rows.append(row)
            print_row(row)
    write_results(output, {"benchmark": "ppo_cpu", **describe_machine(), "rows": rows})
    print(f"\nresults: {output}")


if __name__ == "__main__":
    main()
