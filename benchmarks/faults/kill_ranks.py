"""Trainings over two ranks under `torchrun --max-restarts`: ranks are killed, stopped and interrupted.

Run it as `python -m benchmarks.faults.kill_ranks` in the root of the repository; needs /proc.

    kill        SIGKILL of a random rank at random moments: while it starts, after a random number of checkpoints, 1 to
                4, and a random fraction of an iteration. Another rank must end within 30 s, all checkpoints must stay
                as they are, and the complete run must equal an uninterrupted one: weights, states of all ranks, rows
    hang        SIGSTOP of a random rank: the others must name it after `rank_timeout_s`, and the run is completed
    interrupt   Ctrl-C (SIGINT to all processes) and SIGTERM to torchrun: one checkpoint, and every process ends

Writes one JSON file.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.faults.campaign import RESULTS, START_FRACTION, Campaign
from benchmarks.faults.kill_training import checkpoint_numbers, final_state, read_rows, without_times
from benchmarks.machine import describe_machine, write_results
from tests.runners.training import differences

NUM_RANKS = 2
MAX_NEW_CHECKPOINTS = 4
ITERATIONS = 40

MAX_DETECTION_S = 30.0
RANK_TIMEOUT_S = 10.0
INTERRUPTED = ("--runner.save-interval", "1000000", "--runner.engine", "eager")
OPTIONS = ["--num-envs", "8", "--runner.num-steps-per-env", "8", "--threads", "1"]


class Torchrun:
    """A training by torchrun in a process group of its own, with its output in a file."""

    def __init__(self, folder: Path, iterations: int, seed: int, restarts: int = 0, options: tuple[str, ...] = ()):
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(NUM_RANKS)]
        command = [sys.executable, *launcher, "--max-restarts", str(restarts), "-m", "st_rl", "train", "balance"]
        command += [*OPTIONS, "--iterations", str(iterations), "--seed", str(seed), "--log-dir", str(folder), *options]
        self.folder, self.log = folder, folder.with_suffix(".log")
        with open(self.log, "w") as log:
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            self.process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )

    def ranks(self) -> list[int]:
        """Pids of the ranks; empty between two attempts."""
        pid = self.process.pid
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except FileNotFoundError:
            return []
        return [int(child) for child in children]

    def wait_until(self, condition: Callable[[], bool], seconds: float = 600.0) -> bool:
        """Wait for a condition; False if torchrun ends before, RuntimeError after `seconds`."""
        end = time.monotonic() + seconds
        while not condition():
            if self.process.poll() is not None:
                return False
            if time.monotonic() > end:
                raise RuntimeError(f"nothing happens for {seconds:.0f} s; output:\n{self.output()[-3000:]}")
            time.sleep(0.02)
        return True

    def output(self) -> str:
        """Everything that torchrun and all ranks have written."""
        logs = [self.log, *self.folder.glob("rank_*.log")]
        return "\n".join(log.read_text(errors="replace") for log in logs if log.exists())

    def close(self) -> None:
        """Kill what is left."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def is_alive(pid: int) -> bool:
    """Whether a process runs; zombies do not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def hashes(folder: Path) -> dict[int, str]:
    """Iteration -> hash of its checkpoint file."""
    numbers = checkpoint_numbers(folder)
    return {n: hashlib.sha256((folder / f"model_{n}.pt").read_bytes()).hexdigest() for n in numbers}


@dataclass
class Kills(Campaign):
    """Kills of random ranks, and the times they took."""

    detection_s: list[float] = field(default_factory=list)
    restart_s: list[float] = field(default_factory=list)
    start_s: list[float] = field(default_factory=list)
    iteration_s: list[float] = field(default_factory=list)

    def train(self, seed: int, iterations: int, max_kills: int) -> None:
        """Kill ranks of one training until it is complete; compare it with an uninterrupted one."""
        options = ("--runner.save-interval", "1")
        reference, folder = self.work / f"reference_{seed}", self.work / f"killed_{seed}"
        alone = Torchrun(reference, iterations, seed, 0, options)
        if alone.process.wait() != 0:
            raise RuntimeError(f"the uninterrupted training failed:\n{alone.output()[-3000:]}")
        run = Torchrun(folder, iterations, seed, max_kills, options)
        try:
            for _ in range(max_kills):
                if not self.kill_at_random(run):
                    break
            code = run.process.wait(timeout=1200)
        finally:
            run.close()
        if code != 0:
            self.fail("runs_failed", f"seed {seed}: exit code {code}: {run.output()[-2000:]}")
            return
        self.compare(reference, folder, iterations)
        for path in (reference, folder):
            shutil.rmtree(path)

    def kill_at_random(self, run: Torchrun) -> bool:
        """Kill a rank after a random amount of progress and wait for the next attempt; False once torchrun ended."""
        if not run.wait_until(lambda: len(run.ranks()) == NUM_RANKS):
            return False
        started, before = time.monotonic(), checkpoint_numbers(run.folder)
        in_start = bool(self.start_s) and self.random.random() < START_FRACTION
        if in_start:
            end = started + self.random.random() * statistics.median(self.start_s)
            is_running = run.wait_until(lambda: time.monotonic() >= end)
        else:
            is_running = self._wait_for_checkpoints(run, before, started)
        pids = run.ranks()
        if not is_running or len(pids) != NUM_RANKS:
            return False
        rank = self.random.randrange(NUM_RANKS)
        saved = hashes(run.folder)
        os.kill(pids[rank], signal.SIGKILL)
        killed = time.monotonic()
        self.counts["kills"] += 1
        self.counts["kills_while_starting"] += in_start
        self.counts[f"kills_of_rank_{rank}"] += 1
        run.wait_until(lambda: not any(map(is_alive, pids)))
        self.detection_s.append(time.monotonic() - killed)
        if self.detection_s[-1] > MAX_DETECTION_S:
            self.fail("detected_late", f"{self.detection_s[-1]:.1f} s")
        if run.wait_until(lambda: len(set(run.ranks()) - set(pids)) == NUM_RANKS):
            self.restart_s.append(time.monotonic() - killed)
        after = hashes(run.folder)
        changed = [number for number, digest in saved.items() if after.get(number) != digest]
        self.counts["checkpoints_compared"] += len(saved)
        if changed:
            self.fail("checkpoints_lost", f"{changed}")
        print(f"kill {self.counts['kills']}: rank {rank}, {self.detection_s[-1]:.2f} s", flush=True)
        return True

    def _wait_for_checkpoints(self, run: Torchrun, before: set[int], started: float) -> bool:
        """Wait for a random number of new checkpoints and a random fraction of an iteration."""
        number = self.random.randint(1, MAX_NEW_CHECKPOINTS)
        if not run.wait_until(lambda: len(checkpoint_numbers(run.folder) - before) >= 1):
            return False
        first = time.monotonic()
        self.start_s.append(first - started)
        if not run.wait_until(lambda: len(checkpoint_numbers(run.folder) - before) >= number):
            return False
        if number > 1:
            self.iteration_s.append((time.monotonic() - first) / (number - 1))
        duration = statistics.median(self.iteration_s) if self.iteration_s else 0.0
        end = time.monotonic() + 1.2 * self.random.random() * duration
        return run.wait_until(lambda: time.monotonic() >= end)

    def compare(self, reference: Path, folder: Path, iterations: int) -> None:
        """A run with kills equals one without: the last checkpoint of all ranks, the rows, the files."""
        self.counts["runs_complete"] += 1
        states = [final_state(path, iterations) for path in (reference, folder)]
        for state in states:
            for other in state["rank_state_dicts"]:
                other["runner_state_dict"].pop("tot_time")
        rows = [{step: without_times(row) for step, row in read_rows(path).items()} for path in (reference, folder)]
        different = differences(states[0], states[1])
        different += [f"row {step}" for step in rows[0] if rows[0][step] != rows[1].get(step)]
        if checkpoint_numbers(reference) != checkpoint_numbers(folder):
            different.append("checkpoint files")
        if different or len(rows[1]) != iterations:
            self.fail("runs_different", f"{folder.name}: {different[:5]}, {len(rows[1])} rows")
        else:
            self.counts["runs_equal"] += 1


def kill(work: Path, count: int, seed: int, parallel: int) -> tuple[dict[str, Any], list[str]]:
    """Kill ranks of `parallel` trainings at once until there are `count` kills in all."""

    def run(number: int) -> Kills:
        folder = work / f"campaign_{number}"
        folder.mkdir()
        kills = Kills(random.Random(1000 * seed + number), folder)
        wanted, training = (count + number) // parallel, 0
        while kills.needs_kills(wanted):
            kills.train(100 * (1000 * seed + number) + training, ITERATIONS, wanted - kills.counts["kills"])
            training += 1
        return kills

    with ThreadPoolExecutor(parallel) as pool:
        campaigns = list(pool.map(run, range(parallel)))
    counts = sum((campaign.counts for campaign in campaigns), Counter[str]())
    detected = [seconds for campaign in campaigns for seconds in campaign.detection_s]
    restarted = [seconds for campaign in campaigns for seconds in campaign.restart_s]
    results = {
        **dict(sorted(counts.items())),
        "trainings_at_once": parallel,
        "seconds_until_all_ranks_ended": {"median": statistics.median(detected), "max": max(detected)},
        "seconds_until_the_next_attempt": {"median": statistics.median(restarted), "max": max(restarted)},
    }
    return results, [failure for campaign in campaigns for failure in campaign.failures]


def hang(work: Path, count: int, seed: int) -> tuple[dict[str, Any], list[str]]:
    """Stop random ranks; the others must name them after the set time."""
    generator, rows, failures = random.Random(seed), [], []
    for number in range(count):
        folder = work / f"hang_{number}"
        options = ("--runner.save-interval", "1", "--runner.rank-timeout-s", str(RANK_TIMEOUT_S))
        run = Torchrun(folder, 40, seed + number, 3, options)
        try:
            run.wait_until(lambda folder=folder: len(checkpoint_numbers(folder)) >= 3)
            pids, rank = run.ranks(), generator.randrange(NUM_RANKS)
            os.kill(pids[rank], signal.SIGSTOP)
            stopped = time.monotonic()
            named = f"rank {rank} (process {pids[rank]} on "
            run.wait_until(lambda run=run, named=named: named in run.output())
            seconds = time.monotonic() - stopped
            run.wait_until(lambda pids=pids: not any(map(is_alive, pids)))
            ended = time.monotonic() - stopped
            code = run.process.wait(timeout=600)
        finally:
            run.close()
        is_complete = code == 0 and max(checkpoint_numbers(folder)) == 40
        rows.append({"rank": rank, "named_after_s": seconds, "all_ended_after_s": ended, "run_complete": is_complete})
        print(f"hang {number}: {rows[-1]}", flush=True)
        if not is_complete or seconds > RANK_TIMEOUT_S + 20.0:
            failures.append(f"hang: {rows[-1]}, exit code {code}, {run.output()[-2000:]}")
    return {"rank_timeout_s": RANK_TIMEOUT_S, "rows": rows}, failures


def interrupt(work: Path, count: int, seed: int) -> tuple[dict[str, Any], list[str]]:
    """Ctrl-C to all processes and SIGTERM to torchrun: one checkpoint, and all processes end."""
    generator, rows, failures = random.Random(seed), [], []
    for number in range(2 * count):
        name = signal.SIGINT if number % 2 else signal.SIGTERM
        folder = work / f"interrupt_{number}"
        run = Torchrun(folder, 100_000, seed + number, 3, INTERRUPTED)
        try:
            run.wait_until(lambda folder=folder: len(read_rows(folder)) >= 3)
            time.sleep(generator.random())
            pids, sent = run.ranks(), time.monotonic()
            if name == signal.SIGINT:
                os.killpg(run.process.pid, name)
            else:
                run.process.send_signal(name)
            run.process.wait(timeout=300)
            seconds = time.monotonic() - sent
            time.sleep(0.2)
            left = [pid for pid in pids if is_alive(pid)]
        finally:
            run.close()
        saved, num_rows = sorted(checkpoint_numbers(folder)), len(read_rows(folder))
        rows.append({"signal": name.name, "ended_after_s": seconds, "checkpoints": len(saved)})
        print(f"interrupt {number}: {rows[-1]}", flush=True)
        if left or saved != [num_rows] or run.output().count("Interrupted and saved") != NUM_RANKS:
            failures.append(f"interrupt: {rows[-1]}, {num_rows} rows, alive {left}: {run.output()[-2000:]}")
    return {"rows": rows}, failures


def save(options: argparse.Namespace, results: dict[str, Any], failures: list[str], begin: float) -> None:
    """Write the parts that have ended."""
    results |= {**describe_machine(), "seed": options.seed, "ranks": NUM_RANKS, "failures": failures}
    results |= {"minutes": (time.monotonic() - begin) / 60, "holds": not failures}
    write_results(options.out, results)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50, help="SIGKILLs of a rank")
    parser.add_argument("--hangs", type=int, default=4, help="SIGSTOPs of a rank")
    parser.add_argument("--interrupts", type=int, default=4, help="Ctrl-Cs, and as many SIGTERMs")
    parser.add_argument("--parallel", type=int, default=1, help="trainings at once in which ranks are killed")
    parser.add_argument("--seed", type=int, default=18, help="random seed of the moments and of the trainings")
    parser.add_argument("--out", type=Path, default=RESULTS / "faults_kill_ranks.json", help="results file")
    options = parser.parse_args()
    begin = time.monotonic()
    results: dict[str, Any] = {}
    failures: list[str] = []
    with tempfile.TemporaryDirectory(prefix="kill_ranks_") as name:
        work = Path(name)
        if options.kills:
            results["kill"], failures = kill(work, options.kills, options.seed, options.parallel)
            save(options, results, failures, begin)
        for part, count, function in (("hang", options.hangs, hang), ("interrupt", options.interrupts, interrupt)):
            if count:
                results[part], found = function(work, count, options.seed)
                failures += found
                save(options, results, failures, begin)
    print(json.dumps(results, indent=1))
    return 0 if results["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
