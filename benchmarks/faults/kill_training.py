"""Trainings that are killed with SIGKILL at random moments, and resumed until they are complete.

Run it as `python -m benchmarks.faults.kill_training` in the root of the repository.

Every training saves a checkpoint after each iteration. A kill follows a random number of new checkpoints, 0 to 4, and a
random fraction of the time that a start or an iteration took so far, so that the moments do not depend on the load of
the machine. The next process continues from the newest checkpoint. Kinds of trainings:

    runner        `OnPolicyRunner` from Python with small, feed-forward and recurrent policies; files are written at
                  once, or in the background as on a GPU
    command       `st-rl train balance`, then `st-rl resume`

After each kill: every checkpoint loads, none is missing, and `progress.csv` has one row for each iteration of the
newest one. After each start: no file of an earlier process is left, and a second writer is refused. At the end: the
last checkpoint and all rows equal those of an uninterrupted training, times excepted. Writes one JSON file.
"""

import argparse
import contextlib
import csv
import importlib
import json
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import torch

from benchmarks.faults.campaign import RESULTS, START_FRACTION, Campaign, report_campaigns
from benchmarks.faults.forks import Child
from st_rl.cli import main as st_rl_command
from st_rl.cli.support.torch_setup import seed_everything
from st_rl.runners import OnPolicyRunner
from st_rl.utils.files import CHECKPOINT_NAME, CheckpointError, load_checkpoint, newest_checkpoint
from st_rl.utils.files.folder_lock import LOCK_FILE
from tests.fakes import EchoEnv
from tests.runners.resumed_trainings import POLICIES, make_training
from tests.runners.training import differences, small_config

MAX_NEW_CHECKPOINTS = 4

# Exit code of a process that did not start, because the last one was killed after the last checkpoint.
NOTHING_LEFT = 77
SMALL = "small"


@dataclass
class Training:
    """A training: what a process does in a folder, from the newest checkpoint on, and how long it is."""

    name: str
    iterations: int
    run: Callable[[Path], int]


def runner_training(policy: str, seed: int, in_background: bool) -> Training:
    """A training by `OnPolicyRunner`: `small`, or a policy with everything that has a state to resume."""
    iterations = 24

    def run(folder: Path) -> int:
        if in_background:
            OnPolicyRunner._writes_in_background = property(lambda self: True)  # pyright: ignore[reportAttributeAccessIssue]
        seed_everything(seed)
        runner = _small_runner(folder, seed) if policy == SMALL else make_training(policy, folder, seed)
        runner.save_interval = 1
        runner.git_status_repos = []
        newest = newest_checkpoint(folder)
        if newest is not None:
            runner.load(newest)
        runner.learn(iterations - runner.current_learning_iteration)
        runner.close()
        return 0

    return Training(f"runner {policy}{' in background' if in_background else ''}, seed {seed}", iterations, run)


def _small_runner(folder: Path, seed: int) -> OnPolicyRunner:
    """A runner with iterations of milliseconds."""
    algorithm = {"num_learning_epochs": 1, "num_mini_batches": 1}
    config = small_config(algorithm=algorithm, num_steps_per_env=2)
    return OnPolicyRunner(EchoEnv(num_envs=2, episode_length=3, seed=seed), config, log_dir=folder)


def command_training(seed: int) -> Training:
    """A training by the commands `train` and `resume`."""
    iterations = 12
    options = ["--num-envs", "4", "--runner.num-steps-per-env", "8", "--runner.save-interval", "1", "--threads", "1"]
    options += ["--iterations", str(iterations), "--seed", str(seed)]

    def run(folder: Path) -> int:
        newest = newest_checkpoint(folder)
        if newest is None:
            return st_rl_command(["train", "balance", *options, "--log-dir", str(folder)])
        if newest.name == f"model_{iterations}.pt":
            return NOTHING_LEFT
        return st_rl_command(["resume", str(folder)])

    return Training(f"command, seed {seed}", iterations, run)


# ---- what is on disk -------------------------------------------------------------------------------------------------


def checkpoint_numbers(folder: Path) -> set[int]:
    """Iterations of the checkpoints in a folder."""
    matches = (CHECKPOINT_NAME.fullmatch(name) for name in (os.listdir(folder) if folder.is_dir() else ()))
    return {int(match[1]) for match in matches if match}


def read_rows(folder: Path) -> dict[int, dict[str, str]]:
    """Step -> row of the curves, without the line that a kill has cut."""
    path = folder / "progress.csv"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    rows = csv.DictReader(line for line in lines if line.endswith("\n"))
    return {int(row["step"]): row for row in rows}


def without_times(row: dict[str, str]) -> dict[str, str]:
    """The values of a row that do not depend on time and machine."""
    return {tag: value for tag, value in row.items() if value and tag != "wall_time" and not tag.startswith("Perf/")}


def lock_holder(folder: Path) -> int | None:
    """Pid in the lock file; None without one."""
    try:
        return int(json.loads((folder / LOCK_FILE).read_text())["pid"])
    except FileNotFoundError:
        return None


def leftovers(folder: Path, alive: int | None) -> list[str]:
    """Hidden files that do not belong to the process `alive`."""
    found = [path for path in folder.rglob(".*") if path.name != LOCK_FILE]
    names = [path.name for path in found if not path.name.startswith(f".tmp-{alive}-")]
    return names + ([LOCK_FILE] if lock_holder(folder) not in (None, alive) else [])


def final_state(folder: Path, iterations: int) -> dict[str, Any]:
    """The last checkpoint without the time that the training took."""
    content = load_checkpoint(folder / f"model_{iterations}.pt")
    content["runner_state_dict"].pop("tot_time")
    return content


# ---- the campaign ----------------------------------------------------------------------------------------------------


@dataclass
class TrainingCampaign(Campaign):
    """Kills of trainings, and the times they took before, by the kind of training."""

    start_seconds: dict[str, list[float]] = field(default_factory=dict)
    iteration_seconds: dict[str, list[float]] = field(default_factory=dict)

    def run(self, training: Training, max_kills: int) -> None:
        """Kill a training again and again until it is complete, or `max_kills` times; then let it end."""
        kind = training.name.split(",")[0]
        reference, folder = self.work / "reference", self.work / "killed"
        for path in (reference, folder):
            shutil.rmtree(path, ignore_errors=True)
        log = self.work / "output.txt"
        if Child(lambda: training.run(reference), log).wait() != 0:
            raise RuntimeError(f"the uninterrupted training failed; its output is in {log}")
        kills = 0
        while True:
            child = Child(lambda: training.run(folder), log)
            if kills >= max_kills:
                child.wait()
            else:
                self.kill_at_random(child, training, folder, kind)
            is_complete = child.exit_code in (0, NOTHING_LEFT)
            if child.exit_code not in (0, NOTHING_LEFT, -signal.SIGKILL):
                self.fail("processes_failed", f"{training.name}: exit code {child.exit_code}, {log.read_text()[-500:]}")
                return
            kills += not is_complete
            self.counts["kills"] += not is_complete
            self.check_files(training, folder)
            if is_complete:
                break
        if child.exit_code == NOTHING_LEFT:
            self.counts["killed_after_last_checkpoint"] += 1
        elif left := leftovers(folder, None):
            self.fail("leftovers_at_the_end", f"{training.name}: {left}")
        self.compare(training, reference, folder)
        log.unlink()

    def kill_at_random(self, child: Child, training: Training, folder: Path, kind: str) -> None:
        """Kill a process after a random amount of progress, unless it ends before."""
        starts = self.start_seconds.setdefault(kind, [])
        durations = self.iteration_seconds.setdefault(kind, [])
        before = checkpoint_numbers(folder)
        if starts and self.random.random() < START_FRACTION:
            # Until the first checkpoint of this process.
            delay = self.random.random() * statistics.median(starts)
            end = time.monotonic() + delay
            child.wait_until(lambda: time.monotonic() >= end)
            self.counts["killed_while_starting"] += child.kill()
            return
        num_new = self.random.randint(1, MAX_NEW_CHECKPOINTS)
        second = self.random.random() < 0.05
        if not child.wait_until(lambda: len(checkpoint_numbers(folder) - before) > 0):
            return
        first = time.monotonic()
        starts.append(first - child.started)
        self.check_start(child, training, folder, second)
        if child.wait_until(lambda: len(checkpoint_numbers(folder) - before) >= num_new):
            if num_new > 1:
                durations.append((time.monotonic() - first) / (num_new - 1))
            end = time.monotonic() + self.random.random() * 1.2 * (statistics.median(durations) if durations else 0.0)
            child.wait_until(lambda: time.monotonic() >= end)
        if child.kill():
            self.counts["killed_after_checkpoints"] += 1
            self.counts["killed_with_temporary_file"] += any(folder.rglob(".tmp-*"))
            self.counts["killed_with_lock"] += (folder / LOCK_FILE).exists()

    def check_start(self, child: Child, training: Training, folder: Path, second: bool) -> None:
        """After a start nothing of an earlier process is left, and a second writer is refused."""
        self.counts["starts_checked"] += 1
        left = leftovers(folder, child.pid)
        if left:
            self.fail("leftovers_after_next_start", f"{training.name}: {left}")
        if second and lock_holder(folder) == child.pid:
            log = self.work / "second.txt"
            log.unlink(missing_ok=True)
            code = Child(lambda: training.run(folder), log).wait()
            if code != 0 and f"is being written by process {child.pid} " in log.read_text():
                self.counts["second_writers_refused"] += 1
            elif child.is_running():
                self.fail("second_writers_admitted", f"{training.name}: exit code {code}, {log.read_text()[-500:]}")

    def check_files(self, training: Training, folder: Path) -> None:
        """Every checkpoint so far loads, and the curves have a row for each iteration of the newest."""
        numbers = checkpoint_numbers(folder)
        newest = max(numbers, default=0)
        missing = set(range(1, newest + 1)) - numbers
        if missing:
            self.fail("checkpoints_lost", f"{training.name}: {sorted(missing)} of {newest}")
        for number in sorted(numbers)[-MAX_NEW_CHECKPOINTS - 2 :]:
            self.counts["checkpoints_loaded"] += 1
            try:
                if load_checkpoint(folder / f"model_{number}.pt")["iter"] != number:
                    self.fail("checkpoints_wrong", f"{training.name}: model_{number}.pt")
            except CheckpointError as error:
                self.fail("checkpoints_unreadable", str(error))
        lost = set(range(newest)) - set(read_rows(folder))
        self.counts["rows_expected"] += newest
        if lost:
            self.fail("rows_lost", f"{training.name}: {sorted(lost)} of {newest}")
            self.counts["rows_lost"] += len(lost) - 1

    def compare(self, training: Training, reference: Path, folder: Path) -> None:
        """Compare a complete training with the uninterrupted one."""
        self.counts["trainings_complete"] += 1
        states = [final_state(path, training.iterations) for path in (reference, folder)]
        rows = [{step: without_times(row) for step, row in read_rows(path).items()} for path in (reference, folder)]
        different = differences(*states)
        if rows[0] != rows[1]:
            different += [f"row {step}" for step in rows[0] if rows[0][step] != rows[1].get(step)]
        names = [{path.name for path in folder.iterdir() if path.suffix == ".pt"} for folder in (reference, folder)]
        if names[0] != names[1]:
            different.append(f"files {sorted(names[0] ^ names[1])}")
        if different:
            self.fail("trainings_different", f"{training.name}: {different[:5]}")
        else:
            self.counts["trainings_equal"] += 1


def import_everything(work: Path) -> None:
    """Import what a training imports when it starts, once for all forks."""
    importlib.import_module("st_rl.sim.tasks")
    with open(work / "import.txt", "w") as log, contextlib.redirect_stdout(log):
        runner_training(SMALL, 0, in_background=False).run(work / "import")


PROMISES = (
    "rows_lost",
    "checkpoints_lost",
    "checkpoints_unreadable",
    "checkpoints_wrong",
    "leftovers_after_next_start",
    "leftovers_at_the_end",
    "second_writers_admitted",
    "trainings_different",
    "processes_failed",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=500, help="kills of trainings from Python")
    parser.add_argument("--command-kills", type=int, default=40, help="kills of trainings by commands, in addition")
    parser.add_argument("--seed", type=int, default=17, help="random seed of the moments and of the trainings")
    parser.add_argument("--out", type=Path, default=RESULTS / "faults_kill_training.json", help="results file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    begin = time.monotonic()
    campaigns: dict[str, Campaign] = {}
    with tempfile.TemporaryDirectory(prefix="kill_training_") as work:
        import_everything(Path(work))
        for kind, wanted in (("runner", options.kills), ("command", options.command_kills)):
            campaign = campaigns[kind] = TrainingCampaign(random.Random(f"{options.seed} {kind}"), Path(work))
            number = 0
            while campaign.needs_kills(wanted):
                seed = 1000 * options.seed + number
                if kind == "runner":
                    policy = SMALL if number % 4 else list(POLICIES)[number // 4 % len(POLICIES)]
                    training = runner_training(policy, seed, in_background=number % 3 == 0)
                else:
                    training = command_training(seed)
                campaign.run(training, wanted - campaign.counts["kills"])
                number += 1
                print(
                    f"{training.name}: {campaign.counts['kills']} kills, {time.monotonic() - begin:.0f} s", flush=True
                )

    return report_campaigns(campaigns, PROMISES, options, begin)


if __name__ == "__main__":
    sys.exit(main())
