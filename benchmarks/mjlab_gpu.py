"""A whole training with mjlab and rsl_rl on a GPU, of Unitree Go1 on flat ground by default, in mjlab's environment.

Trains as `mjlab`'s own script does, without its logger and without checkpoints.
"""

import argparse
import itertools
import os
import statistics
import sys
import time
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from machine import describe_machine, write_results
from missing_packages import import_mjlab

FOLDER = Path(__file__).resolve().parent


def make_runner(task: str, robots: int, motion_file: str | None) -> Any:
    """The runner of mjlab for its task; a tracking task tracks the clip of an npz file."""
    import_mjlab()
    from mjlab.envs import ManagerBasedRlEnv
    from mjlab.rl import MjlabOnPolicyRunner, RslRlVecEnvWrapper
    from mjlab.tasks.registry import load_env_cfg, load_rl_cfg
    from mjlab.utils.torch import configure_torch_backends

    configure_torch_backends()
    env_cfg, agent = load_env_cfg(task), load_rl_cfg(task)
    env_cfg.scene.num_envs = robots
    if motion_file is not None:
        env_cfg.commands["motion"].motion_file = motion_file
    env = RslRlVecEnvWrapper(ManagerBasedRlEnv(cfg=env_cfg, device="cuda:0"), clip_actions=agent.clip_actions)
    return MjlabOnPolicyRunner(env, asdict(agent), None, "cuda:0")


def watch(owner: Any, method: str, times: list[float]) -> None:
    """Time the calls of a method."""
    function = getattr(owner, method)

    def timed(*args: Any, **kwargs: Any) -> Any:
        torch.cuda.synchronize()
        start = time.perf_counter()
        outcome = function(*args, **kwargs)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
        return outcome

    setattr(owner, method, timed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="Mjlab-Velocity-Flat-Unitree-Go1")
    parser.add_argument("--robots", type=int, default=4096)
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--motion-file", help="clip of a tracking task, an npz file of mjlab")
    parser.add_argument("--wait-for", type=Path, help="after the warm-up, wait until this file exists")
    parser.add_argument("--output", type=Path, default=FOLDER / "results" / "mjlab_gpu.json", help="results file")
    options = parser.parse_args()
    with redirect_stdout(sys.stderr):
        runner = make_runner(options.task, options.robots, options.motion_file)
        runner.learn(num_learning_iterations=4, init_at_random_ep_len=True)
        if options.wait_for is not None:
            Path(f"{options.wait_for}.ready.{os.getpid()}").touch()
        while options.wait_for is not None and not options.wait_for.exists():
            time.sleep(0.2)
        # First without synchronization between the parts, which would slow it down: an iteration is the time from
        # the end of one update to the end of the next.
        ends, steps, updates = [], [], []
        update = runner.alg.update

        def timed_update() -> Any:
            outcome = update()
            torch.cuda.synchronize()
            ends.append(time.perf_counter())
            return outcome

        runner.alg.update = timed_update
        runner.learn(num_learning_iterations=options.iterations + 1)
        seconds = statistics.median(end - start for start, end in itertools.pairwise(ends))
        runner.alg.update = update
        watch(runner.env, "step", steps)
        watch(runner.alg, "update", updates)
        runner.learn(num_learning_iterations=3)
    physics = runner.env.unwrapped.cfg
    samples = options.robots * runner.cfg["num_steps_per_env"]
    result = {
        "benchmark": "mjlab_gpu",
        **describe_machine(),
        "task": options.task,
        "robots": options.robots,
        "substeps": physics.decimation,
        "timestep": physics.sim.mujoco.timestep,
        "iterations": options.iterations,
        "iteration_ms": 1e3 * seconds,
        "steps_per_second": samples / seconds,
        "environment_ms": 1e3 * sum(steps) / 3,
        "update_ms": 1e3 * statistics.median(updates),
    }
    write_results(options.output, result)
    print(f"{result['steps_per_second']:,.0f} steps/s; results: {options.output}")


if __name__ == "__main__":
    main()
