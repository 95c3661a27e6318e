"""Collectors that are killed with SIGKILL at random moments while they write trajectories, and started again.

Run it as `python -m benchmarks.faults.kill_collectors` in the root of the repository.

Collectors of demonstrations (`DemonstrationSaver`, pickle and npz) and of DAgger labels (`DaggerSaver`) write into one
folder, one at a time or in pairs. Every number that they record tells writer, robot, episode and step. A kill follows a
random number of new files and a random fraction of the time that a start or a rollout took so far, so that the moments
do not depend on the load of the machine.

After each kill: every file seen before is unchanged, and `metadata.json` counts no more steps than there are on disk.
After each start: no temporary file or heartbeat of a killed process is left. At the end a collector finishes normally:
every file is readable, the episodes of each robot follow each other without a gap, all but the last are complete and
marked, the totals are right, no folder is empty, and `st-rl dataset check` finds nothing. Writes one JSON file.
"""

import argparse
import json
import os
import pickle
import random
import re
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch

from benchmarks.faults.campaign import RESULTS, START_FRACTION, Campaign, report_campaigns
from benchmarks.faults.forks import Child
from st_rl.cli import main as st_rl_command
from st_rl.runners import DaggerSaver, DemonstrationSaver, OnPolicyRunner
from tests.fakes import EchoEnv
from tests.runners.killed_collectors import EPISODE_LENGTH, NumberedEnv, StepPolicy
from tests.runners.training import small_config

ROLLOUT_LENGTH = 5
KILLS_PER_FOLDER = 25
MAX_NEW_FILES = 4 * NumberedEnv.num_envs

PAIR_FRACTION = 0.3
# Steps that the last collector of a folder adds.
LAST_STEPS = 600
MakeSaver = Callable[[int, float], DemonstrationSaver]


def demonstration_saver(folder: Path, file_format: str) -> MakeSaver:
    """A function of the writer's number and of the steps to collect that returns a saver."""

    def make(writer: int, min_timesteps: float) -> DemonstrationSaver:
        settings = {"min_timesteps": min_timesteps, "min_episodes": 0, "file_format": file_format}
        return DemonstrationSaver(NumberedEnv(writer), StepPolicy(), folder, ROLLOUT_LENGTH, **settings)

    return make


def dagger_saver(folder: Path, student: Path) -> MakeSaver:
    """The same for a saver of labels for the student in a run folder."""

    def make(writer: int, min_timesteps: float) -> DemonstrationSaver:
        settings = {"min_timesteps": min_timesteps, "min_episodes": 0, "training_policy_logdir": student}
        return DaggerSaver(NumberedEnv(writer), StepPolicy(), folder, ROLLOUT_LENGTH, **settings)

    return make


def train_student(folder: Path) -> None:
    """Write the run folder of a student for the observations of `NumberedEnv`."""
    env = EchoEnv(num_envs=2, num_obs=NumberedEnv.num_obs, num_actions=NumberedEnv.num_actions)
    runner = OnPolicyRunner(env, small_config(), log_dir=folder)
    runner.learn(1)
    runner.close()


def collect(make: MakeSaver, writer: int, min_timesteps: float) -> int:
    """Collect as one writer; returns the exit code."""
    saver = make(writer, min_timesteps)
    saver.on_progress = lambda fraction, line: None
    saver.collect_and_save()
    return 0


# ---- what is on disk -------------------------------------------------------------------------------------------------


def frame_files(folder: Path) -> dict[Path, tuple[int, int]]:
    """File -> size and time of its last change."""
    found = {}
    for path in folder.glob("trajectory_*/traj_*"):
        state = path.stat()
        found[path] = (state.st_size, state.st_mtime_ns)
    return found


def load_frames(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file, read without the library."""
    if path.suffix == ".npz":
        with np.load(path) as archive:
            return dict(archive)
    return pickle.loads(path.read_bytes())


def frames_on_disk(folder: Path) -> int:
    """Number of frames by the names of the files."""
    ranges = (re.findall(r"\d+", path.name) for path in frame_files(folder))
    return sum(int(stop) - int(start) for start, stop, *_ in ranges)


def recorded_totals(folder: Path) -> tuple[int, int]:
    """Steps and finished trajectories in the metadata; zeros without one."""
    path = folder / "metadata.json"
    content = json.loads(path.read_text()) if path.exists() else {}
    return content.get("total_timesteps", 0), content.get("total_trajectories", 0)


def leftovers(folder: Path, alive: list[int]) -> list[str]:
    """Hidden files that do not belong to the running processes."""
    names = [path.name for path in folder.rglob(".*")]
    return [name for name in names if not any(f"-{pid}-" in name for pid in alive)]


def has_announced(folder: Path, pid: int) -> bool:
    """Whether the heartbeat of a process exists."""
    return any(f"-{pid}-" in name for name in os.listdir(folder) if name.startswith(".alive-"))


# ---- the campaign ----------------------------------------------------------------------------------------------------


@dataclass
class CollectorCampaign(Campaign):
    """Kills of collectors, and the times they took before."""

    start_seconds: list[float] = field(default_factory=list)
    file_seconds: list[float] = field(default_factory=list)
    num_writers: int = 0

    def run(self, folder: Path, make: MakeSaver, num_kills: int) -> None:
        """Kill collectors of a folder and let the last one finish."""
        folder.mkdir()
        seen: dict[Path, tuple[int, int]] = {}
        last = self.counts["kills"] + num_kills
        while self.needs_kills(last):
            is_pair = self.random.random() < PAIR_FRACTION
            children = [self.start(make, 1e12) for _ in range(1 + is_pair)]
            self.counts["pairs"] += is_pair
            for child in children:
                self.kill_at_random(folder, child, [each.pid for each in children])
            seen = self.check_files(folder, seen)
        child = self.start(make, frames_on_disk(folder) + LAST_STEPS)
        if child.wait() != 0:
            self.fail("processes_failed", f"{folder.name}: {child.log.read_text()[-500:]}")
        self.check_files(folder, seen)
        self.check_folder(folder)

    def start(self, make: MakeSaver, min_timesteps: float) -> Child:
        """Start the next writer."""
        self.num_writers += 1
        writer = self.num_writers
        return Child(lambda: collect(make, writer, min_timesteps), self.work / "output.txt")

    def kill_at_random(self, folder: Path, child: Child, pids: list[int]) -> None:
        """Kill a process after a random amount of progress; `pids` are those that were started together."""
        if self.start_seconds and self.random.random() < START_FRACTION:
            end = child.started + self.random.random() * 1.5 * statistics.median(self.start_seconds)
            child.wait_until(lambda: time.monotonic() >= end)
            self.counts["killed_while_starting"] += 1
        elif child.wait_until(lambda: has_announced(folder, child.pid)):
            before, first = len(frame_files(folder)), time.monotonic()
            self.start_seconds.append(first - child.started)
            num_new = self.random.randint(1, MAX_NEW_FILES)
            child.wait_until(lambda: len(frame_files(folder)) >= before + num_new)
            self.file_seconds.append((time.monotonic() - first) / num_new)
            self.counts["starts_checked"] += 1
            if left := leftovers(folder, pids):
                self.fail("leftovers_after_next_start", f"{folder.name}: {left}")
            # Up to a rollout longer.
            delay = self.random.random() * NumberedEnv.num_envs * statistics.median(self.file_seconds)
            end = time.monotonic() + delay
            child.wait_until(lambda: time.monotonic() >= end)
            self.counts["killed_while_writing"] += 1
        if child.kill():
            self.counts["kills"] += 1
            self.counts["killed_with_temporary_file"] += any(folder.rglob(f".tmp-{child.pid}-*"))
        else:
            self.fail("processes_failed", f"{folder.name}: {child.log.read_text()[-500:]}")

    def check_files(self, folder: Path, seen: dict[Path, tuple[int, int]]) -> dict[Path, tuple[int, int]]:
        """Every file seen before is unchanged, and the metadata count nothing that is not there; returns all files."""
        files = frame_files(folder)
        self.counts["files_compared"] += len(seen)
        for path, state in seen.items():
            if files.get(path) != state:
                self.fail("files_lost", f"{path}: {state} became {files.get(path)}")
        if recorded_totals(folder)[0] > frames_on_disk(folder):
            self.fail(
                "steps_lost", f"{folder.name}: metadata {recorded_totals(folder)}, {frames_on_disk(folder)} found"
            )
        return files

    def check_folder(self, folder: Path) -> None:
        """Read a folder after its last collector has finished."""
        if left := leftovers(folder, []):
            self.fail("leftovers_at_the_end", f"{folder.name}: {left}")
        episodes: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
        num_frames = num_finished = 0
        for trajectory in folder.glob("trajectory_*"):
            paths = sorted(trajectory.glob("traj_*"))
            if not paths:
                self.fail("empty_folders", str(trajectory))
                continue
            frames = [load_frames(path) for path in paths]
            obs, dones, actions = (
                np.concatenate([part[key] for part in frames]) for key in ("observations", "dones", "actions")
            )
            is_finished = bool(dones[-1, 0])
            writer, robot, episode = (int(value) for value in obs[0, :3])
            is_whole = (
                (obs[:, :3] == obs[0, :3]).all()
                and (obs[:, 3] == np.arange(len(obs))).all()
                and (obs[:, :4].sum(axis=1) == obs[:, 4]).all()
                and (actions[:, 0] == obs[:, 3]).all()
                and not dones[:-1].any()
                and is_finished == (len(obs) == EPISODE_LENGTH + robot)
                and episode not in episodes[writer, robot]
            )
            if not is_whole:
                self.fail("trajectories_damaged", str(trajectory))
            if is_finished != (trajectory / "done").exists():
                self.fail("marks_wrong", str(trajectory))
            episodes[writer, robot][episode] = len(obs)
            num_frames += len(obs)
            num_finished += is_finished
        self.check_episodes(folder, episodes)
        self.counts["frames"] += num_frames
        self.counts["trajectories_finished"] += num_finished
        if recorded_totals(folder) != (num_frames, num_finished):
            self.fail("totals_wrong", f"{folder.name}: {recorded_totals(folder)}, {(num_frames, num_finished)} found")
        with open(self.work / "check.txt", "w") as output, redirect_stdout(output):
            code = st_rl_command(["dataset", "check", str(folder)])
        if code != 0:
            self.fail("dataset_check", (self.work / "check.txt").read_text()[-500:])

    def check_episodes(self, folder: Path, episodes: dict[tuple[int, int], dict[int, int]]) -> None:
        """The episodes of a robot follow each other, and all but the last are complete."""
        self.counts["folders"] += 1
        self.counts["writers_with_files"] += len({writer for writer, _ in episodes})
        for (writer, robot), lengths in episodes.items():
            first, last = 1000 * robot, max(lengths)
            missing = set(range(first, last)) - {
                episode for episode, length in lengths.items() if length == EPISODE_LENGTH + robot
            }
            if missing:
                self.fail("trajectories_lost", f"{folder.name}: writer {writer}, robot {robot}: {sorted(missing)}")


PROMISES = (
    "files_lost",
    "steps_lost",
    "trajectories_lost",
    "trajectories_damaged",
    "marks_wrong",
    "totals_wrong",
    "empty_folders",
    "leftovers_after_next_start",
    "leftovers_at_the_end",
    "dataset_check",
    "processes_failed",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=150, help="kills of each kind of collector")
    parser.add_argument("--seed", type=int, default=17, help="random seed of the moments")
    parser.add_argument("--out", type=Path, default=RESULTS / "faults_kill_collectors.json", help="results file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    begin = time.monotonic()
    campaigns: dict[str, Campaign] = {}
    with tempfile.TemporaryDirectory(prefix="kill_collectors_") as text:
        work = Path(text)
        with open(work / "student.txt", "w") as log, redirect_stdout(log):
            train_student(work / "student")
        for kind in ("demonstration", "dagger"):
            campaign = campaigns[kind] = CollectorCampaign(random.Random(f"{options.seed} {kind}"), work)
            number = 0
            while campaign.needs_kills(options.kills):
                folder = work / f"{kind}_{number}"
                file_format = "pickle" if number % 2 == 0 else "npz"
                saver = demonstration_saver(folder, file_format)
                make = saver if kind == "demonstration" else dagger_saver(folder, work / "student")
                campaign.run(folder, make, min(KILLS_PER_FOLDER, options.kills - campaign.counts["kills"]))
                number += 1
                print(f"{folder.name}: {campaign.counts['kills']} kills, {time.monotonic() - begin:.0f} s", flush=True)

    return report_campaigns(campaigns, PROMISES, options, begin)


if __name__ == "__main__":
    sys.exit(main())
