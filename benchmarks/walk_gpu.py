"""A whole training of quadruped-walk on a GPU, as `st-rl train` runs it: `python benchmarks/walk_gpu.py`.

Logging, checkpoints, the judge of the best one and the guard against bad numbers are on. Prints one JSON object with
the times of every part of an iteration, of physics alone, and what the policy can do in the end.
"""

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch

from st_rl.cli.task_source import find_source
from st_rl.cli.training import make_judge, seed_everything
from st_rl.runners import OnPolicyRunner
from st_rl.sim.evaluation import EvaluationPlan, evaluate_walk, make_judged_task
from st_rl.sim.tasks import make_task, with_overrides

STEADY = 8
"""Iterations at the beginning that load, compile and capture."""


def process_seconds() -> float:
    """Seconds since this process was started."""
    return time.time() - os.stat("/proc/self").st_ctime


def gpu_memory() -> float | None:
    """GiB that this process takes on the GPU, with what Warp and CUDA need; None where nobody says."""
    command = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    lines = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
    used = dict(line.split(", ") for line in lines if ", " in line)
    megabytes = used.get(str(os.getpid()), "")
    return int(megabytes) / 1024 if megabytes.isdigit() else None


def wait_for(path: Path | None) -> None:
    """Say that this process is ready, and wait for a file."""
    if path is None:
        return
    Path(f"{path}.ready.{os.getpid()}").touch()
    while not path.exists():
        time.sleep(0.05)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--robots", type=int, default=4096)
    parser.add_argument("--timestep", type=float, default=0.01, help="seconds of a physics substep")
    parser.add_argument("--substeps", type=int, default=2, help="substeps of a step")
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--engine", default="graph", choices=("auto", "eager", "graph", "compile"))
    parser.add_argument("--mixed-precision", choices=("bf16",))
    parser.add_argument("--hidden", type=int, nargs="+", default=[256, 128, 128])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save-interval", type=int, default=50)
    parser.add_argument("--physics", action="store_true", help="measure physics alone too")
    parser.add_argument(
        "--judge", action="store_true", help="judge the policy in the end, on the CPU with fine physics"
    )
    parser.add_argument("--warm", type=int, help="iterations before the clock starts; 0 only loads the simulation")
    parser.add_argument("--start-at", type=Path, help="once ready, wait until this file exists")
    parser.add_argument("--judge-at", type=Path, help="before judging, wait until this file exists")
    parser.add_argument("--profile", type=Path, help="where the kernels of one iteration are listed")
    parser.add_argument("--folder", type=Path, help="run folder; a temporary one by default")
    return parser.parse_args()


def make_runner(options: argparse.Namespace) -> OnPolicyRunner:
    """The runner of a training with everything on."""
    torch.set_float32_matmul_precision("high")
    seed_everything(options.seed)
    source = find_source("quadruped-walk")
    physics = {"physics.timestep": options.timestep, "physics.substeps": options.substeps}
    task_config = with_overrides(source.default_config, physics)
    env = make_task(source.name, options.robots, "cuda", options.seed, cfg=task_config)
    config = source.training
    config |= {"engine": options.engine, "save_interval": options.save_interval}
    config["policy"] |= {"actor_hidden_dims": options.hidden, "critic_hidden_dims": options.hidden}
    config["algorithm"]["mixed_precision"] = options.mixed_precision
    folder = options.folder or Path(tempfile.mkdtemp())
    runner = OnPolicyRunner(env, config, log_dir=folder, device="cuda")
    runner.evaluator = make_judge(source, task_config, "cuda")
    return runner


def warm_up(runner: OnPolicyRunner, iterations: int | None) -> None:
    """Load, and if asked for compile and capture, what the training will use; None leaves that to the training."""
    if iterations is None:
        return
    if iterations:
        runner.learn(iterations)
        return
    for _ in range(2):
        runner.env.step(torch.zeros(runner.env.num_envs, runner.env.num_actions, device="cuda"))
    runner.env.reset()


class Clock:
    """Remembers how long each call of some functions took."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    def watch(self, owner: Any, method: str, name: str) -> None:
        """Put a clock around a method; what it left to the device counts, too."""
        function = getattr(owner, method)
        times = self.seconds.setdefault(name, [])

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            outcome = function(*args, **kwargs)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
            return outcome

        setattr(owner, method, timed)


def graph_seconds(function: Callable[[], Any], env: Any, repeats: int = 10) -> float:
    """Median seconds of a replay of what a function does to a task."""
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        function()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream), env.during_capture(stream):
        function()
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def physics_seconds(env: Any, num_steps: int) -> float:
    """Physics alone for so many steps, from the state that the training left, with the last control."""
    return graph_seconds(lambda: [env.backend.step(env.cfg.physics.substeps) for _ in range(num_steps)], env)


def task_seconds(env: Any, num_steps: int) -> float:
    """The task, physics included, for so many steps under random actions."""
    actions = torch.empty(env.num_envs, env.num_actions, device="cuda")
    return graph_seconds(lambda: [env.step(actions.normal_(std=0.3)) for _ in range(num_steps)], env)


def profile(runner: OnPolicyRunner, path: Path) -> dict[str, int]:
    """Write the kernels of a rollout and of an update into a file; returns how many there are."""
    counts = {}
    with path.open("w") as file:
        for name, part in (("rollout", runner._collect), ("update", lambda: runner.alg.update(0))):
            torch.cuda.synchronize()
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as watch:
                part()
                torch.cuda.synchronize()
            rows = [row for row in watch.key_averages() if row.self_device_time_total > 0]
            counts[name] = sum(row.count for row in rows)
            total = sum(row.self_device_time_total for row in rows)
            file.write(f"{name}: {counts[name]} kernels, {total / 1e3:.2f} ms\n")
            for row in sorted(rows, key=lambda row: -row.self_device_time_total)[:70]:
                file.write(f"{row.self_device_time_total / 1e3:9.3f} ms {row.count:6d}  {row.key[:150]}\n")
    return counts


def judge(runner: OnPolicyRunner, seed: int) -> dict[str, Any]:
    """What the policy does on the CPU with fine physics, without noise."""
    plan = EvaluationPlan(seed=20_001 + seed)
    torch.set_num_threads(1)
    runner.env.cfg.physics = dataclasses.replace(runner.env.cfg.physics, num_threads=2)
    env = make_judged_task("quadruped-walk", runner.env.cfg, plan.robots, plan.seconds, plan.seed, True)
    return evaluate_walk(env, runner.get_inference_policy("cpu"), plan)[0]


def main() -> None:
    options = parse_options()
    with redirect_stdout(sys.stderr):
        runner = make_runner(options)
        torch.cuda.synchronize()
        ready = process_seconds()
        clock = Clock()
        for owner, method, name in (
            (runner, "_iterate", "iteration"),
            (runner, "_collect", "collect"),
            (runner.alg, "update", "update"),
            (runner, "log", "log"),
            (runner, "_save_snapshot", "save and judge"),
        ):
            clock.watch(owner, method, name)
        warm_up(runner, options.warm)
        for times in clock.seconds.values():
            times.clear()
        wait_for(options.start_at)
        started = process_seconds()
        runner.learn(options.iterations, init_at_random_ep_len=True)
        trained = process_seconds()
        steps, seconds = options.robots * runner.num_steps_per_env, clock.seconds
        steady = {name: times[STEADY:] or times[-1:] for name, times in seconds.items() if name != "save and judge"}
        result: dict[str, Any] = {
            "options": {k: v for k, v in vars(options).items() if not isinstance(v, Path)},
            "engine": runner.alg.engine.describe(),
            "seconds_until_training": ready,
            "seconds_of_training": trained - started,
            "seconds_of_first_iterations": sum(seconds["iteration"][:STEADY]),
            "median_ms": {name: 1e3 * statistics.median(times) for name, times in steady.items()},
            "save_and_judge_ms": [1e3 * t for t in seconds["save and judge"]],
            "samples": len(steady["iteration"]),
            # Checkpoints and judging included, but not loading, compiling and capturing.
            "steps_per_second": steps * len(steady["iteration"]) / sum(steady["iteration"]),
            "steps_per_second_median": steps / statistics.median(steady["iteration"]),
            "memory_gib": gpu_memory(),
            "memory_of_torch_gib": torch.cuda.max_memory_reserved() / 2**30,
        }
        if options.profile is not None:
            result["kernels"] = profile(runner, options.profile)
        if options.physics:
            result["physics_ms"] = 1e3 * physics_seconds(runner.env, runner.num_steps_per_env)
            result["task_ms"] = 1e3 * task_seconds(runner.env, runner.num_steps_per_env)
            result["physics_share"] = result["physics_ms"] / result["median_ms"]["iteration"]
        if options.judge:
            print(json.dumps(result), file=sys.stderr, flush=True)
            wait_for(options.judge_at)
            result["figures"] = judge(runner, options.seed)
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
