"""Exact resume of every built-in task with every algorithm that can train on it.

Run it as `python -m benchmarks.faults.exact_resume` in the root of the repository; `--cells balance/PPO` runs a part.

A cell is a task and an algorithm. `st-rl train` (or `distill`, for algorithms with a teacher) trains it for six
iterations in one folder, and for three in another, where `st-rl resume` adds three. The last checkpoints of both must
be equal bit by bit: policy, optimizers, learning rate, normalizers, discriminator, episode statistics, random number
generators, and the state of the environment. Only the stopwatch may differ. Writes one JSON file.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from benchmarks.machine import describe_machine, write_results
from st_rl.algorithms import algorithm_classes
from st_rl.cli import main as st_rl_command
from st_rl.cli.support.task_source import BuiltInTask
from st_rl.cli.support.training import session
from st_rl.sim.tasks import TASKS
from st_rl.utils.files import load_checkpoint
from tests.runners.training import differences

RESULTS = Path(__file__).parents[1] / "results" / "faults_exact_resume.json"
NUM_ENVS = 8
HALF = 3
# Robots and seconds of the evaluation of checkpoints, which must leave no trace in the training.
EVALUATION_SIZE = (4, 1.2)
SIZES = ("--num-envs", str(NUM_ENVS), "--threads", "1", "--env.physics.num-threads", "1", "--env.episode-length-s", "1")
SMALL = ("--policy.actor-hidden-dims", "16", "--policy.critic-hidden-dims", "16")
# Parts of a checkpoint that must be there and that training must have changed.
CHANGING = ("model_state_dict", "optimizer_state_dict", "env_state_dict", "rng_state_dict", "runner_state_dict")


class Algorithm(NamedTuple):
    """How an algorithm is trained from the command line."""

    class_name: str
    policy: str
    """Class of the policy, recurrent or not."""
    teacher: str | None = None
    """The algorithm of its teacher, which `st-rl distill` takes."""
    needs_reference: bool = False
    """Whether it needs the motion features of the tasks with a reference."""


RECURRENT = ("--policy.rnn-type", "gru", "--policy.rnn-hidden-size", "8")
ALGORITHMS = {
    "PPO": Algorithm("PPO", "ActorCritic"),
    "PPO-recurrent": Algorithm("PPO", "ActorCriticRecurrent"),
    "EstimatorPPO": Algorithm("EstimatorPPO", "StateAcRecurrent"),
    "APPO": Algorithm("APPO", "AmpActorCritic", needs_reference=True),
    "TPPO": Algorithm("TPPO", "ActorCriticRecurrent", teacher="PPO"),
    "EstimatorTPPO": Algorithm("EstimatorTPPO", "StateAcRecurrent", teacher="PPO"),
    "ATPPO": Algorithm("ATPPO", "AmpActorCriticRecurrent", teacher="APPO", needs_reference=True),
}
ESTIMATED = {"balance": "pole_velocity", "quadruped-parkour": "base_lin_vel"}
"""Component that a task's estimator estimates, if it is not the linear velocity."""


class Cell(NamedTuple):
    """A task and an algorithm."""

    task: str
    algorithm: str

    @property
    def name(self) -> str:
        """`TASK/ALGORITHM`."""
        return f"{self.task}/{self.algorithm}"

    def options(self) -> list[str]:
        """The options of `st-rl train` and `st-rl distill`."""
        algorithm = ALGORITHMS[self.algorithm]
        options = ["--algorithm.class-name", algorithm.class_name, "--policy.class-name", algorithm.policy]
        settings = []
        if algorithm.policy.endswith("Recurrent"):
            options += RECURRENT
            # Mirrored samples need a feed-forward policy.
            settings.append("algorithm.symmetry_cfg=null")
        if algorithm.class_name.startswith("Estimator"):
            settings.append(f'policy.estimator_target_components=["{ESTIMATED.get(self.task, "base_lin_vel")}"]')
        return [*SIZES, *SMALL, *options, *(["--set", *settings] if settings else [])]


def all_cells() -> list[Cell]:
    """Every algorithm on every task that delivers what it needs."""
    missing = set(algorithm_classes()) - {algorithm.class_name for algorithm in ALGORITHMS.values()}
    if missing:
        raise ValueError(f"ALGORITHMS has no {', '.join(missing)}")
    has_reference = {name for name, entry in TASKS.items() if "amp_discriminator" in entry.training["policy"]}
    return [
        Cell(task, name)
        for task in TASKS
        for name, algorithm in ALGORITHMS.items()
        if task in has_reference or not algorithm.needs_reference
    ]


def train(cell: Cell, folder: Path, iterations: int) -> None:
    """Train a cell from the start; its teacher, if it has one, is trained for an iteration first."""
    command, teacher = ["train", cell.task], ALGORITHMS[cell.algorithm].teacher
    if teacher is not None:
        run = folder.parent / f"teacher_{teacher}"
        if not run.exists():
            train(Cell(cell.task, teacher), run, 1)
        command = ["distill", str(run), cell.task, "--checkpoint", "last"]
    run_command([*command, *cell.options(), "--iterations", str(iterations), "--log-dir", str(folder)])


def run_command(arguments: Sequence[str]) -> None:
    """Run a command of `st-rl` in this process; RuntimeError if it fails."""
    num_envs, seconds = EVALUATION_SIZE
    with (
        mock.patch.dict(session.EVALUATION_SECONDS, cpu=seconds),
        mock.patch.object(BuiltInTask, "evaluation_envs", {"cpu": num_envs}),
    ):
        code = st_rl_command(list(arguments))
    if code != 0:
        raise RuntimeError(f"exit code {code} of: st-rl {' '.join(arguments)}")


def read_checkpoint(folder: Path, iteration: int) -> dict[str, Any]:
    """A checkpoint without the stopwatch."""
    loaded = load_checkpoint(folder / f"model_{iteration}.pt")
    loaded["runner_state_dict"].pop("tot_time")
    return loaded


def run_cell(cell: Cell, folder: Path) -> dict[str, Any]:
    """Train a cell in one piece and in two; returns what differs and how many parts were compared."""
    start = time.perf_counter()
    whole, parts = folder / "whole", folder / "parts"
    train(cell, whole, 2 * HALF)
    train(cell, parts, HALF)
    before = read_checkpoint(parts, HALF)
    run_command(["resume", str(parts), "--iterations", str(HALF)])
    first, second = read_checkpoint(whole, 2 * HALF), read_checkpoint(parts, 2 * HALF)
    return {
        "differences": differences(first, second),
        # The comparison must be about something.
        "unchanged": [key for key in CHANGING if not differences(before[key], second[key])],
        "compared": sorted(first),
        "seconds": time.perf_counter() - start,
    }


def main() -> int:
    """Run the cells and write the results; returns 1 if one is not exact."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", nargs="*", help="TASK/ALGORITHM; all by default")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    cells = {cell.name: cell for cell in all_cells()}
    results: dict[str, Any] = {}
    for name in options.cells or cells:
        folder = Path(tempfile.mkdtemp(prefix="exact_resume_"))
        try:
            results[name] = run_cell(cells[name], folder)
        except Exception as error:
            results[name] = {"error": f"{type(error).__name__}: {error}"}
        finally:
            shutil.rmtree(folder)
        print(f"{name}: {results[name]}", file=sys.stderr, flush=True)
    exact = [name for name, result in results.items() if result.get("differences") == result.get("unchanged") == []]
    summary = {"cells": len(results), "exact": len(exact), "not_exact": sorted(set(results) - set(exact))}
    print(summary)
    write_results(options.out, {**describe_machine(), **summary, "results": results})
    return 0 if len(exact) == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
