"""A whole training of a built-in task on a CPU: physics alone, this library, and rsl_rl on the same task.

    python benchmarks/task_cpu.py          # or: st-rl bench cpu

All alternate, with the same robots, physics threads and substeps: `mujoco.batch.Batch` alone, an iteration of this
library (as `st-rl train` runs it, with the threads it chooses), an iteration of rsl_rl through an adapter around the
same task, once with one torch thread and once with as many as there are cores. Writes results/task_cpu.json.
"""

import argparse
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from machine import describe_machine, write_results
from ppo_cpu import FOLDER, Side
from workload import Workload

from st_rl.sim.tasks import make_task

# Iterations per turn. The first, with cold caches, is not counted.
TURN = 4


class Physics:
    """The robots of a task under random actions from the start of an episode, physics only."""

    def __init__(self, workload: Workload):
        self._task = make_task(str(workload.task), workload.robots)
        robot, scale = self._task.robot, self._task.cfg.control.action_scale
        default = torch.tensor(robot.default_joint_pos, dtype=torch.float32)
        # Actions like those of an untrained policy: physics is slower for moving robots than for standing ones.
        self._controls = default + scale * 0.5 * torch.randn(workload.steps, workload.robots, robot.num_joints)

    def seconds(self) -> float:
        """Wall-clock time of the physics of one rollout."""
        self._task.reset()
        backend = self._task.backend
        began = time.perf_counter()
        for control in self._controls:
            backend.set_control(control)
            backend.step(backend.physics.substeps)
        return time.perf_counter() - began


def start_side(workload: Workload, python: str, worker: str, threads: int) -> Side:
    """One library after its warm-up; started one after the other, because st_rl measures its number of threads."""
    side = Side(python, worker, threads)
    print(side.ask(workload=workload.to_json())["versions"], flush=True)
    side.ask(iterations=3)
    return side


def measure(workload: Workload, sides: dict[str, Side], rounds: int) -> dict[str, list[float]]:
    """Seconds of one rollout's physics and of one iteration of every side, alternating."""
    physics = Physics(workload)
    samples: dict[str, list[float]] = {"physics": [], **{name: [] for name in sides}}
    for number in range(rounds):
        samples["physics"] += [physics.seconds() for _ in range(TURN)][1:]
        for name in sorted(sides, reverse=bool(number % 2)):
            parts = sides[name].ask(iterations=TURN)
            samples[name] += [sum(pair) for pair in zip(parts["acting"], parts["update"])][1:]
    return samples


def summarize(workload: Workload, samples: dict[str, list[float]]) -> dict[str, Any]:
    """Steps per second of each, and their ratios."""
    steps = workload.robots * workload.steps
    row: dict[str, Any] = {"workload": workload.to_json(), "rounds": len(samples["physics"])}
    for name, seconds in samples.items():
        row[name] = {
            "median_steps_per_second": steps / statistics.median(seconds),
            "best_steps_per_second": steps / min(seconds),
        }
    for kind in ("median", "best"):
        speed = {name: row[name][f"{kind}_steps_per_second"] for name in samples}
        row[f"{kind}_fraction_of_physics"] = speed["st_rl"] / speed["physics"]
        peers = [value for name, value in speed.items() if name.startswith("rsl_rl")]
        if peers:
            row[f"{kind}_ratio_to_rsl_rl"] = speed["st_rl"] / max(peers)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    peer = FOLDER.parent / ".venv-peers" / "bin" / "python"
    parser.add_argument("--peer-python", default=str(peer), help="Python interpreter with rsl_rl")
    parser.add_argument("--task", default="quadruped-walk", help="a built-in task")
    parser.add_argument("--robots", type=int, default=256, help="robots simulated together")
    parser.add_argument("--rounds", type=int, default=7, help="number of alternations")
    parser.add_argument("--engine", default="compile", help="engine of this library; long trainings compile")
    parser.add_argument("--output", type=Path, default=FOLDER / "results" / "task_cpu.json", help="results file")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    workload = Workload(options.robots, (128, 128), task=options.task, engine=options.engine, update_threads="auto")
    sides = {"st_rl": start_side(workload, sys.executable, "worker_st_rl.py", 1)}
    if Path(options.peer_python).exists():
        for threads in sorted({1, os.cpu_count() or 1}):
            name = f"rsl_rl, {threads} threads"
            sides[name] = start_side(workload, options.peer_python, "worker_rsl_rl.py", threads)
    else:
        print(f"{options.peer_python} does not exist: measuring without rsl_rl. See benchmarks/README.md.")
    row = summarize(workload, measure(workload, sides, options.rounds))
    for side in sides.values():
        side.close()
    for name in ("physics", *sides):
        median, best = row[name]["median_steps_per_second"], row[name]["best_steps_per_second"]
        print(f"{name:>17}: {median:9,.0f} steps/s (best {best:,.0f})")
    fraction, best_fraction = row["median_fraction_of_physics"], row["best_fraction_of_physics"]
    print(f"fraction of physics alone: {fraction:.2f} (fastest iterations: {best_fraction:.2f})")
    if len(sides) > 1:
        ratio, best_ratio = row["median_ratio_to_rsl_rl"], row["best_ratio_to_rsl_rl"]
        print(f"speed relative to the faster rsl_rl: {ratio:.2f} (fastest iterations: {best_ratio:.2f})")
    write_results(options.output, {"benchmark": "task_cpu", **describe_machine(), "row": row})


if __name__ == "__main__":
    main()
