"""How st_rl reads damaged and hostile files: thousands of mutants of every kind of file, each read within limits.

    python -m benchmarks.faults.mutated_files --mutants 8000 --seed 1

Every mutant is read by a worker process. Its outcome is one of `OUTCOMES`; wanted are no bare exceptions, nothing over
5 s or 1 GB, no crash and no silently other weights. Processor time is counted, since the machine may be busy; a worker
that does not answer for `PATIENCE_S` of wall-clock time, as in front of a named pipe, hangs as well.
"""

import argparse
import contextlib
import logging
import multiprocessing
import os
import random
import resource
import tempfile
import time
import traceback
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.faults.mutants import forms, make_bombs, make_mutant
from benchmarks.machine import describe_machine, write_results

MAX_S = 5.0
MAX_BYTES = 2**30
PATIENCE_S = 60.0
# Beyond what is counted, so that a bomb does not stop the machine.
HARD_BYTES = 3 * 2**30
# More mutants of the kinds with the most structure.
WEIGHTS = {"checkpoint": 5, "config.json": 2, "run.json": 2, "robot yaml": 2, "robot mjcf": 2, "trajectory pickle": 2}
OUTCOMES = ("refused, file named", "loaded", "bare exception", "over 5 s", "over 1 GB", "crash", "other weights")


class Reading(NamedTuple):
    """How a mutant was read."""

    outcome: str
    seconds: float
    megabytes: float
    message: str


def read_mutant(readers: Any, kind: str, way: str, data: bytes) -> Reading:
    """Read a mutant in this process and classify the outcome."""
    from benchmarks.faults.readers import OtherWeightsError

    before, start = _reset_peak(), time.process_time()
    outcome, message = "loaded", ""
    try:
        readers.read(kind, way, data)
    except OtherWeightsError as error:
        outcome, message = "other weights", str(error)
    except Exception as error:
        is_named = str(readers.files[kind]) in str(error) and isinstance(error, ValueError | OSError | RuntimeError)
        outcome = (
            "refused, file named" if is_named or _is_command_error(error, readers.files[kind]) else "bare exception"
        )
        message = traceback.format_exc()[-1500:] if outcome == "bare exception" else str(error)[:200]
    seconds, peak = time.process_time() - start, _status_bytes("VmHWM") - before
    if peak > MAX_BYTES:
        outcome = "over 1 GB"
    if seconds > MAX_S:
        outcome = "over 5 s"
    return Reading(outcome, seconds, peak / 1e6, message)


def _is_command_error(error: Exception, path: Path) -> bool:
    from st_rl.cli.support.command_line import CommandError

    return isinstance(error, CommandError) and str(path) in str(error)


def _reset_peak() -> int:
    """Set the peak memory of this process to its present memory, which is returned."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status_bytes("VmRSS")


def _status_bytes(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(key))


def serve(connection: Connection, folder: Path, files: dict[str, Path]) -> None:
    """Read the mutants that arrive until None does; the main function of a worker."""
    # MuJoCo writes its log into the current folder.
    os.chdir(folder)
    with open(os.devnull, "w") as devnull:
        os.dup2(devnull.fileno(), 1)
        os.dup2(devnull.fileno(), 2)
    import torch

    from benchmarks.faults.readers import Readers

    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    readers = Readers(folder, files)
    # Warm up: the first reading imports modules and allocates buffers.
    for kind, path in files.items():
        reading = read_mutant(readers, kind, "original", path.read_bytes())
        if reading.outcome != "loaded":
            connection.send(Reading("original refused", 0, 0, f"{kind}: {reading.message}"))
            return
    connection.send(None)
    limit = _status_bytes("VmSize") + HARD_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    while (task := connection.recv()) is not None:
        connection.send(read_mutant(readers, *task))


class Worker:
    """A process that reads mutants; it is replaced when it does not answer."""

    def __init__(self, folder: Path, files: dict[str, Path]):
        self.folder, self.files = folder, files
        self.originals = {path: path.read_bytes() for path in files.values()}
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=serve, args=(other, self.folder, self.files), daemon=True)
        self.process.start()
        other.close()
        problem = self.connection.recv()
        if problem is not None:
            raise RuntimeError(f"cannot read an original: {problem.message}")

    def read(self, kind: str, way: str, data: bytes) -> Reading:
        """Read a mutant within the limits."""
        self.connection.send((kind, way, data))
        try:
            if self.connection.poll(PATIENCE_S):
                return self.connection.recv()
            reading = Reading("over 5 s", PATIENCE_S, 0.0, "no answer")
        except (EOFError, ConnectionResetError):
            self.process.join()
            reading = Reading("crash", 0.0, 0.0, f"exit code {self.process.exitcode}")
        self.stop()
        for path, content in self.originals.items():
            path.write_bytes(content)
        self._start()
        return reading

    def stop(self) -> None:
        """End the process."""
        with contextlib.suppress(OSError):
            self.connection.send(None)
        self.process.join(1.0)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def make_tasks(files: dict[str, Path], count: int, seed: int) -> list[tuple[str, str, bytes]]:
    """Kind, way and content of the mutants: all bombs, then random ones."""
    dice = random.Random(seed)
    tasks = [
        (kind, "bomb", bomb) for kind, path in files.items() for bomb in make_bombs(forms()[kind], path.read_bytes())
    ]
    kinds = list(files)
    chosen = dice.choices(kinds, [WEIGHTS.get(kind, 1) for kind in kinds], k=count)
    return tasks + [(kind, *make_mutant(files[kind], kind, dice)) for kind in chosen]


def run_campaign(count: int, seed: int) -> dict[str, Any]:
    """Read all mutants; returns the counts and the worst ones."""
    from benchmarks.faults.originals import make_originals

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with open(os.devnull, "w") as devnull, contextlib.redirect_stdout(devnull):
            files = make_originals(folder)
        tasks = make_tasks(files, count, seed)
        worker, start = Worker(folder, files), time.perf_counter()
        outcomes: dict[str, Counter[str]] = {kind: Counter() for kind in files}
        ways: dict[str, Counter[str]] = {}
        seconds = dict.fromkeys(files, 0.0)
        worst, problems = {"seconds": 0.0, "megabytes": 0.0}, []
        for number, (kind, way, data) in enumerate(tasks):
            reading = worker.read(kind, way, data)
            outcomes[kind][reading.outcome] += 1
            ways.setdefault(way, Counter())[reading.outcome] += 1
            seconds[kind] += reading.seconds
            worst = {key: max(value, getattr(reading, key)) for key, value in worst.items()}
            if reading.outcome not in OUTCOMES[:2]:
                problems.append({"number": number, "kind": kind, "way": way, **reading._asdict()})
                print(f"{number} {kind}, {way}: {reading.outcome}\n{reading.message}", flush=True)
            if number % 500 == 0:
                print(f"{number} of {len(tasks)}, {time.perf_counter() - start:.0f} s", flush=True)
        worker.stop()
    total = sum(outcomes.values(), Counter())
    return {
        "mutants": len(tasks),
        "seed": seed,
        "limits": {"cpu_seconds": MAX_S, "megabytes": MAX_BYTES / 1e6},
        "outcomes": {name: total[name] for name in OUTCOMES},
        "by_kind": {kind: dict(counts) for kind, counts in outcomes.items()},
        "by_way": {way: dict(counts) for way, counts in ways.items()},
        "cpu_seconds_by_kind": seconds,
        "largest": worst,
        "problems": problems[:50],
        "wall_seconds": time.perf_counter() - start,
    }


def main() -> None:
    """Run the campaign and write its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", type=int, default=8000, help="number of random mutants, besides the bombs")
    parser.add_argument("--seed", type=int, default=1)
    default = Path(__file__).parents[1] / "results" / "faults_mutated_files.json"
    parser.add_argument("--out", type=Path, default=default, help="results file")
    options = parser.parse_args()
    results = run_campaign(options.mutants, options.seed)
    write_results(options.out, {"benchmark": "mutated_files", **describe_machine(), **results})
    print(results["outcomes"])


if __name__ == "__main__":
    main()
