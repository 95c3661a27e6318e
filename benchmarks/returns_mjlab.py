"""Returns beside rsl_rl on tasks of mjlab, in mjlab's virtual environment, with equal settings and equal steps.

    python benchmarks/returns_mjlab.py --tasks Mjlab-Velocity-Flat-Unitree-Go1 --iterations 100

Both libraries train on mjlab's own environment and wrapper with the dictionary that mjlab has for the task: only the
import of the runner differs. Returns of training are recorded from the environment, not read from either library's log.
Policies are evaluated without exploration noise on 512 other robots, which are set up as in training: the return of the
first 250 steps, or of those up to a fall. Each training runs in a process of its own; several share a GPU, so the times
are no comparison of speed. `--device cpu --robots 16` tries it without a GPU.
"""

import argparse
import itertools
import json
import logging
import os
import statistics
import sys
import time
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Any

from machine import describe_machine
from missing_packages import import_mjlab
from returns import read_tasks, run_jobs, run_worker

FOLDER = Path(__file__).resolve().parent


def make_env(job: dict[str, Any], num_envs: int, seed: int) -> Any:
    """The environment of mjlab in mjlab's wrapper for rsl_rl."""
    from mjlab.envs import ManagerBasedRlEnv
    from mjlab.rl import RslRlVecEnvWrapper
    from mjlab.tasks.registry import load_env_cfg, load_rl_cfg

    env_cfg = load_env_cfg(job["task"])
    env_cfg.scene.num_envs, env_cfg.seed = num_envs, seed
    for command in (env_cfg.commands or {}).values():
        if "motion_file" in vars(command):
            command.motion_file = job["motion_file"]
    env = ManagerBasedRlEnv(cfg=env_cfg, device=job["device"])
    return RslRlVecEnvWrapper(env, clip_actions=load_rl_cfg(job["task"]).clip_actions)


def make_runner(job: dict[str, Any], env: Any) -> Any:
    """The library's runner with mjlab's dictionary."""
    import torch
    from mjlab.tasks.registry import load_rl_cfg

    settings = asdict(load_rl_cfg(job["task"])) | {"seed": job["seed"]}
    torch.manual_seed(job["seed"])
    if job["library"] == "rsl_rl":
        from mjlab.rl import MjlabOnPolicyRunner as OnPolicyRunner
    else:
        from st_rl.runners import OnPolicyRunner
    return OnPolicyRunner(env, settings, None, job["device"])


def record_returns(env: Any) -> list[float]:
    """Collect the returns of finished episodes in a list, which the caller clears."""
    import torch

    finished: list[float] = []
    running = torch.zeros(env.num_envs, device=env.device)
    step = env.step

    def recorded_step(actions: Any) -> Any:
        outcome = step(actions)
        running.add_(outcome[1].detach())
        done = outcome[2].bool()
        finished.extend(running[done].tolist())
        running[done] = 0.0
        return outcome

    env.step = recorded_step
    return finished


def evaluate(runner: Any, env: Any, steps: int) -> list[float]:
    """The return of every robot's first episode, of at most this many steps, without noise."""
    import torch

    policy = runner.get_inference_policy(device=env.device)
    returns = torch.zeros(env.num_envs, device=env.device)
    running = torch.ones(env.num_envs, device=env.device, dtype=torch.bool)
    with torch.no_grad():
        obs, _ = env.reset()
        for _ in range(steps):
            obs, rewards, dones, _ = env.step(policy(obs))
            returns += torch.where(running, rewards, 0.0)
            running &= ~dones.bool()
    return returns.tolist()


def train(job: dict[str, Any]) -> dict[str, Any]:
    """Train once; returns the curves, the final returns and the time."""
    logging.getLogger("st_rl").setLevel(logging.ERROR)
    import_mjlab()
    from mjlab.utils.torch import configure_torch_backends

    configure_torch_backends()
    env = make_env(job, job["robots"], job["seed"])
    eval_env = make_env(job, job["eval_robots"], 10_000)
    runner = make_runner(job, env)
    finished = record_returns(env)
    curve: list[dict[str, float]] = []
    result: dict[str, Any] = {}
    samples, seconds = job["robots"] * runner.cfg["num_steps_per_env"], 0.0
    for done in itertools.accumulate([job["iterations"] // job["evaluations"]] * job["evaluations"]):
        begin = time.perf_counter()
        runner.learn(job["iterations"] // job["evaluations"], init_at_random_ep_len=not curve)
        seconds += time.perf_counter() - begin
        # Of the episodes since the last evaluation, those that ended last.
        noisy = finished[-job["robots"] :]
        returns = evaluate(runner, eval_env, job["eval_steps"])
        point = {"steps": done * samples, "mean_return": statistics.fmean(returns), "training_s": seconds}
        curve.append(point | {"training_return": statistics.fmean(noisy) if noisy else None})
        finished.clear()
        result = {"steps": done * samples, "training_s": seconds, "training_cpu_s": time.process_time(), "curve": curve}
        print(json.dumps({"curve": curve}), file=sys.__stdout__, flush=True)
        result["final_returns"] = returns
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=["Mjlab-Velocity-Flat-Unitree-Go1"], help="ids of mjlab")
    parser.add_argument("--libraries", nargs="+", default=["st_rl", "rsl_rl"], help="what to train with")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="seeds of the trainings")
    parser.add_argument("--robots", type=int, default=4096, help="robots of a training")
    parser.add_argument("--iterations", type=int, default=100, help="iterations of a training")
    parser.add_argument("--evaluations", type=int, default=4, help="evaluations of a training")
    parser.add_argument("--eval-robots", type=int, default=512, help="robots of an evaluation")
    parser.add_argument("--eval-steps", type=int, default=250, help="steps of an evaluation")
    parser.add_argument("--motion-file", help="reference motion of tracking tasks, an npz file of mjlab")
    parser.add_argument("--device", default="cuda:0", help="device of simulation and training")
    parser.add_argument("--jobs", type=int, default=6, help="trainings at a time")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop what still runs after this time")
    parser.add_argument("--output", type=Path, default=FOLDER / "results" / "returns_mjlab.json", help="results file")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        with redirect_stdout(sys.stderr):
            result = train(json.loads(sys.stdin.read()))
        print(json.dumps(result), flush=True)
        # Warp and CUDA may take long to end.
        os._exit(0)
    names = ("robots", "iterations", "evaluations", "eval_robots", "eval_steps", "motion_file", "device")
    settings = {name: getattr(options, name) for name in names}
    jobs = [
        {**settings, "task": task, "library": library, "seed": seed}
        for task, seed, library in itertools.product(options.tasks, options.seeds, options.libraries)
    ]
    command = [sys.executable, __file__, "--worker"]
    variables = {"OMP_NUM_THREADS": "1"}
    deadline = time.monotonic() + options.seconds
    header = {"benchmark": "returns_mjlab", **describe_machine(), "settings": settings, "steps": options.iterations}
    tasks = read_tasks(options.output, options.iterations)
    run_jobs(jobs, lambda job: run_worker(command, job, deadline, variables), options, header, tasks)


if __name__ == "__main__":
    main()
