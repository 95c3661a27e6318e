"""Returns beside Stable-Baselines3's PPO on gymnasium's MuJoCo tasks, with equal settings and equal steps.

    python benchmarks/returns.py --peer-python VENV/bin/python --tasks Hopper-v5 --steps 300000

Both libraries train with the settings that Stable-Baselines3 publishes for these tasks (its defaults with normalized
observations and rewards), on 8 environments of 256 steps; this library also with its eps of Adam and of the
observation normalizer. The columns `st_rl defaults` are trained with the settings
of `st-rl train gym:TASK` instead. Policies are evaluated without exploration noise, one episode from each of 20 seeds.
Each training runs in a process of its own with one thread, `--jobs` of them at a time; the time of evaluations does not
count. A training is added to the file of the results when it ends, and replaces an earlier one of the same task,
library and seed. After `--seconds` the trainings that still run are stopped and listed in `stopped` of the results,
with the curve that they reached. `--merge` adds the trainings of other files, for example from another machine, to
the file of the results.
"""

import argparse
import itertools
import json
import logging
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from machine import describe_machine, write_results
from missing_packages import replace_missing

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent))

TASKS = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5", "Humanoid-v5")
# Everything else is what Stable-Baselines3's PPO and VecNormalize have as defaults.
SETTINGS: dict[str, Any] = {
    "num_envs": 8,
    "num_steps": 256,
    "num_mini_batches": 32,
    "num_epochs": 10,
    "learning_rate": 3e-4,
    "gamma": 0.99,
    "episodes": 20,
    "evaluation_seed": 10_000,
}


def equal_config(job: dict[str, Any]) -> dict[str, Any]:
    """The runner's configuration that is the same as the defaults of Stable-Baselines3."""
    policy = {
        "actor_hidden_dims": [64, 64],
        "critic_hidden_dims": [64, 64],
        "activation": "tanh",
        "noise_std_type": "log",
        "orthogonal_init": True,
    }
    algorithm = {
        "num_learning_epochs": job["num_epochs"],
        "num_mini_batches": job["num_mini_batches"],
        "learning_rate": job["learning_rate"],
        "schedule": "fixed",
        "gamma": job["gamma"],
        "lam": 0.95,
        "clip_param": 0.2,
        "value_loss_coef": 0.5,
        "use_clipped_value_loss": False,
        "max_grad_norm": 0.5,
        "entropy_coef": 0.0,
        "reward_normalization": True,
        "normalize_advantage_per_mini_batch": True,
        "shuffle_every_epoch": True,
        "optimizer_kwargs": {"eps": 1e-5},
    }
    return {
        "num_steps_per_env": job["num_steps"],
        "empirical_normalization": True,
        "policy": policy,
        "algorithm": algorithm | job.get("algorithm", {}),
    }


def default_config(job: dict[str, Any]) -> dict[str, Any]:
    """The configuration of `st-rl train gym:TASK`."""
    from st_rl.cli.support.task_source import find_source
    from st_rl.cli.support.training.training_config import TrainingConfig

    config = TrainingConfig.from_dict(find_source(f"gym:{job['task']}").training).to_dict()
    config["algorithm"] |= job.get("algorithm", {})
    return config


def train(job: dict[str, Any]) -> dict[str, Any]:
    """Train once with this library; returns the curve, the final returns and the time."""
    import torch

    replace_missing("glfw", "imageio")
    import st_rl
    from st_rl.cli.support.task_source import find_source
    from st_rl.env.gymnasium_adapter import make_gymnasium
    from st_rl.runners import build_runner

    logging.getLogger("st_rl").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    torch.manual_seed(job["seed"])
    is_default = job["library"] == "st_rl defaults"
    config = default_config(job) if is_default else equal_config(job)
    num_envs = find_source(f"gym:{job['task']}").default_config.num_envs if is_default else job["num_envs"]
    env = make_gymnasium(job["task"], num_envs, seed=1000 * job["seed"])
    eval_env = make_gymnasium(job["task"], job["episodes"])
    iterations = -(-job["steps"] // (num_envs * config["num_steps_per_env"]))
    runner = build_runner("OnPolicyRunner", env, config | {"max_iterations": iterations}, None, "cpu")
    if not is_default:
        # There is no setting for it; the least deviation that Stable-Baselines3 divides by.
        runner.alg.obs_normalizer.eps = 1e-4
    curve, seconds, cpu_seconds, done = [], 0.0, 0.0, 0
    stride = max(1, round(job["evaluate_every"] / (num_envs * config["num_steps_per_env"])))
    returns: list[float] = []
    while done < iterations:
        begin, begin_cpu = time.perf_counter(), time.process_time()
        runner.learn(min(stride, iterations - done), init_at_random_ep_len=is_default and done == 0)
        seconds += time.perf_counter() - begin
        cpu_seconds += time.process_time() - begin_cpu
        done = runner.current_learning_iteration
        returns = evaluate(runner, eval_env, job["evaluation_seed"])
        point = {"steps": runner.tot_timesteps, "mean_return": statistics.fmean(returns), "training_s": seconds}
        curve.append(point)
        print(json.dumps({"curve": curve}), flush=True)
    return {
        "steps": runner.tot_timesteps,
        "training_s": seconds,
        "training_cpu_s": cpu_seconds,
        "curve": curve,
        "final_returns": returns,
        "version": st_rl.__version__,
    }


def evaluate(runner: Any, env: Any, seed: int) -> list[float]:
    """The return of the first episode of every environment from its fixed seed, without noise."""
    import torch

    with torch.inference_mode():
        policy = runner.get_inference_policy()
        obs, _ = env.reset(seed=seed)
        returns, running = torch.zeros(env.num_envs), torch.ones(env.num_envs, dtype=torch.bool)
        while running.any():
            obs, rewards, dones, _ = env.step(policy(obs))
            returns += torch.where(running, rewards, 0.0)
            running &= ~dones
    return returns.tolist()


def start_worker(job: dict[str, Any], peer_python: str, deadline: float) -> dict[str, Any]:
    """Run one training in a process of its own; see `run_worker`."""
    is_peer = job["library"] == "stable-baselines3"
    command = [peer_python, FOLDER / "worker_sb3.py"] if is_peer else [sys.executable, __file__, "--worker"]
    return run_worker(command, job, deadline, {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""})


def run_worker(command: list[Any], job: dict[str, Any], deadline: float, variables: dict[str, str]) -> dict[str, Any]:
    """Run a program that reads a job and prints JSON, until the deadline of `time.monotonic()`.

    The result of a training that was stopped has only `seed` and `curve`, that of a failed one `seed` and `error`.
    """
    if time.monotonic() >= deadline:
        return {"seed": job["seed"], "curve": []}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([str(part) for part in command], text=True, env=os.environ | variables, **pipes)
    timer = threading.Timer(min(max(0.0, deadline - time.monotonic()), threading.TIMEOUT_MAX), process.kill)
    timer.start()
    output, errors = process.communicate(json.dumps(job))
    timer.cancel()
    if process.returncode and time.monotonic() < deadline:
        return {"seed": job["seed"], "error": errors[-3000:]}
    # Every worker prints its curve after each evaluation, and everything at the end.
    complete = [line for line in output.split("\n")[:-1] if line.startswith("{")]
    return {"seed": job["seed"], "curve": [], **(json.loads(complete[-1]) if complete else {})}


def summarize(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and spread over seeds."""
    means = [statistics.fmean(run["final_returns"]) for run in runs]
    return {
        "mean_of_seeds": statistics.fmean(means),
        "spread_of_seeds": statistics.stdev(means) if len(means) > 1 else None,
        "seed_means": means,
        "training_s": _mean_time(runs, "training_s"),
        "training_cpu_s": _mean_time(runs, "training_cpu_s"),
        "seeds": runs,
    }


def _mean_time(runs: list[dict[str, Any]], name: str) -> float | None:
    """None if the trainings ran on different machines."""
    is_same = len({(run["processor"], run["processes_at_once"]) for run in runs}) == 1
    return statistics.fmean(run[name] for run in runs) if is_same else None


def has_seed(tasks: dict[str, Any], task: str, library: str, seed: int) -> bool:
    """Whether the results hold this training."""
    return any(run["seed"] == seed for run in tasks.get(task, {}).get(library, {"seeds": []})["seeds"])


def read_tasks(path: Path, steps: int) -> dict[str, Any]:
    """The results so far, to which other tasks and seeds are added; exits if they have another number of steps."""
    if not path.is_file():
        return {}
    results = json.loads(path.read_text())
    if results["steps"] != steps:
        sys.exit(f"{path} holds trainings of {results['steps']} steps: give another file with --output")
    for cell in results["tasks"].values():
        for run in (run for summary in cell.values() for run in summary["seeds"]):
            run.setdefault("processor", results["machine"]["processor"])
            run.setdefault("processes_at_once", results["processes_at_once"])
    return results["tasks"]


def add_run(tasks: dict[str, Any], task: str, library: str, run: dict[str, Any]) -> None:
    """Add a complete training to the results; it replaces one with the same task, library and seed."""
    cell = tasks.setdefault(task, {})
    others = [old for old in cell.get(library, {"seeds": []})["seeds"] if old["seed"] != run["seed"]]
    cell[library] = summarize(sorted([*others, run], key=lambda done: done["seed"]))


def merge(paths: list[Path], output: Path, steps: int) -> None:
    """Add the trainings of other files of results to `output`, of which all else stays as it is."""
    tasks = read_tasks(output, steps)
    others = [read_tasks(path, steps) for path in paths]
    for task, library, run in (
        (task, library, run)
        for other in others
        for task, cell in other.items()
        for library, summary in cell.items()
        for run in summary["seeds"]
    ):
        add_run(tasks, task, library, run)
    found = json.loads((output if output.is_file() else paths[0]).read_text())
    write_results(output, {**found, "tasks": tasks})
    print_table(tasks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), help="gymnasium ids")
    parser.add_argument("--steps", type=int, default=1_000_000, help="environment steps of a training")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="seeds of the trainings")
    parser.add_argument(
        "--peer-python", help="Python with stable-baselines3 and gymnasium; by default the one that runs this"
    )
    parser.add_argument(
        "--libraries", nargs="+", default=["st_rl", "stable-baselines3", "st_rl defaults"], help="what to train with"
    )
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop what still runs after this time")
    parser.add_argument("--missing", action="store_true", help="train only what the file of the results does not hold")
    parser.add_argument("--evaluations", type=int, default=10, help="evaluations of a training")
    parser.add_argument("--algorithm", default="{}", help="JSON with other settings of our PPO, for experiments")
    parser.add_argument("--output", type=Path, default=FOLDER / "results" / "returns.json", help="file of the results")
    parser.add_argument("--merge", nargs="+", type=Path, help="files of results to add instead of training")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(train(json.loads(sys.stdin.read()))))
        return
    if options.merge:
        merge(options.merge, options.output, options.steps)
        return
    tasks = read_tasks(options.output, options.steps)
    jobs = [
        {**SETTINGS, "task": task, "library": library, "seed": seed, "steps": options.steps}
        | {"evaluate_every": options.steps // options.evaluations, "algorithm": json.loads(options.algorithm)}
        for task, seed, library in itertools.product(options.tasks, options.seeds, options.libraries)
        if not (options.missing and has_seed(tasks, task, library, seed))
    ]
    peer_python = options.peer_python or sys.executable
    deadline = time.monotonic() + options.seconds
    header = {"benchmark": "returns", **describe_machine(), "settings": SETTINGS, "steps": options.steps}
    header["algorithm"] = json.loads(options.algorithm)
    run_jobs(jobs, lambda job: start_worker(job, peer_python, deadline), options, header, tasks)


def run_jobs(
    jobs: list[dict[str, Any]],
    start: Callable[[dict[str, Any]], dict[str, Any]],
    options: argparse.Namespace,
    header: dict[str, Any],
    tasks: dict[str, Any],
) -> None:
    """Run `options.jobs` trainings at a time and write the results after each one; exits if one failed."""
    stopped: list[dict[str, Any]] = []
    with ThreadPoolExecutor(options.jobs) as pool:
        pending = {pool.submit(start, job): job for job in jobs}
        for future in as_completed(pending):
            job, run = pending[future], future.result()
            task, library = job["task"], job["library"]
            print(f"{task:<15} {library:<18} seed {job['seed']}: {describe(run)}", flush=True)
            if "final_returns" in run:
                where = {"processor": header["machine"]["processor"], "processes_at_once": options.jobs}
                add_run(tasks, task, library, run | where)
            else:
                stopped.append({"task": task, "library": library, **run})
            results = {**header, "processes_at_once": options.jobs, "tasks": tasks, "stopped": stopped}
            write_results(options.output, results)
    print_table(tasks)
    if any("error" in run for run in stopped):
        sys.exit(f"some trainings failed: see `stopped` in {options.output}")


def describe(run: dict[str, Any]) -> str:
    """What a training reached, in a line."""
    if "error" in run:
        return f"failed: {run['error'].strip().splitlines()[-1] if run['error'].strip() else 'no output'}"
    if "final_returns" not in run:
        return f"stopped after {run['curve'][-1]['steps'] if run['curve'] else 0} evaluated steps"
    return f"{statistics.fmean(run['final_returns']):8.1f}, {run['training_s']:.0f} s"


def print_table(tasks: dict[str, Any]) -> None:
    """Print mean and spread of the seeds for every task and library."""
    for task, cell in tasks.items():
        for library, summary in cell.items():
            spread, count = summary["spread_of_seeds"] or 0.0, len(summary["seeds"])
            line = f"{summary['mean_of_seeds']:8.1f} +- {spread:6.1f} ({count} seeds)"
            time_s = "" if summary["training_s"] is None else f", {summary['training_s']:.0f} s"
            print(f"{task:<15} {library:<18} {line}{time_s}")


if __name__ == "__main__":
    main()
