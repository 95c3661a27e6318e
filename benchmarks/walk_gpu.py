"""Whole trainings on a GPU, of quadruped-walk by default, as `st-rl train` runs them: `python benchmarks/walk_gpu.py`.

Logging, checkpoints, their evaluation and the NaN guard are on. Each number of robots is one row: first a training
without timers, then a few iterations with timers around their parts, then physics and the task alone.
"""

import argparse
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch
from device_limits import device_limits
from machine import describe_machine, write_results
from run_files import read_settings

from st_rl.cli.support.task_source import find_source
from st_rl.cli.support.torch_setup import seed_everything
from st_rl.cli.support.training.session import make_evaluator
from st_rl.runners import OnPolicyRunner
from st_rl.sim.tasks import make_task, with_overrides

FOLDER = Path(__file__).resolve().parent
WARM_UP = 8
"""Iterations at the beginning that load, compile and capture."""


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="quadruped-walk", help="a built-in task")
    parser.add_argument("--robot", help="description of another robot, as --env.robot of `st-rl train`")
    parser.add_argument("--env", nargs="+", default=[], metavar="NAME=VALUE", help="other settings of the task")
    parser.add_argument("--robots", type=int, nargs="+", default=[4096])
    parser.add_argument("--timestep", type=float, default=0.01, help="seconds of a physics substep")
    parser.add_argument("--substeps", type=int, default=2, help="substeps per control step")
    parser.add_argument("--iterations", type=int, default=142, help="iterations after the warm-up")
    parser.add_argument("--engine", default="compile", choices=("auto", "eager", "graph", "compile"))
    parser.add_argument("--mixed-precision", choices=("bf16",))
    parser.add_argument("--hidden", type=int, nargs="+", default=[256, 128, 128])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save-interval", type=int, default=50)
    parser.add_argument("--no-parts", action="store_true", help="skip the times of the parts")
    parser.add_argument("--limits", action="store_true", help="also measure the limits of the GPU")
    parser.add_argument("--profile", type=Path, help="file for the list of kernels of one iteration")
    parser.add_argument("--output", type=Path, default=FOLDER / "results" / "walk_gpu.json", help="results file")
    return parser.parse_args()


def make_runner(options: argparse.Namespace, robots: int) -> OnPolicyRunner:
    """The runner of a training with everything enabled."""
    torch.set_float32_matmul_precision("high")
    seed_everything(options.seed)
    source = find_source(options.task)
    settings: dict[str, Any] = {"physics.timestep": options.timestep, "physics.substeps": options.substeps}
    if options.robot:
        settings["robot"] = options.robot
    settings |= read_settings(options.env)
    task_config = with_overrides(source.default_config, settings)
    env = make_task(source.name, robots, "cuda", options.seed, cfg=task_config)
    config = source.training
    config |= {"engine": options.engine, "save_interval": options.save_interval}
    config["policy"] |= {"actor_hidden_dims": options.hidden, "critic_hidden_dims": options.hidden}
    config["algorithm"]["mixed_precision"] = options.mixed_precision
    runner = OnPolicyRunner(env, config, log_dir=tempfile.mkdtemp(), device="cuda")
    runner.evaluator = make_evaluator(source, task_config, "cuda")
    return runner


class Clock:
    """Records the duration of each call of some functions."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    def watch(self, owner: Any, method: str, name: str, wait: bool = True) -> None:
        """Time the calls of a method, with device synchronization if `wait`."""
        function = getattr(owner, method)
        times = self.seconds.setdefault(name, [])

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            outcome = function(*args, **kwargs)
            if wait:
                torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
            return outcome

        setattr(owner, method, timed)


def graph_seconds(function: Callable[[], Any], env: Any, repeats: int = 10) -> float:
    """Median seconds of a graph replay of a function of the task."""
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
    """Physics alone for `num_steps` steps, from the final state of the training, with the last controls."""
    return graph_seconds(lambda: [env.backend.step(env.cfg.physics.substeps) for _ in range(num_steps)], env)


def task_seconds(env: Any, num_steps: int) -> float:
    """The task, physics included, for `num_steps` steps under random actions."""
    actions = torch.empty(env.num_envs, env.num_actions, device="cuda")
    return graph_seconds(lambda: [env.step(actions.normal_(std=0.3)) for _ in range(num_steps)], env)


def profile(runner: OnPolicyRunner, path: Path) -> dict[str, int]:
    """Write the kernels of a rollout and of an update into a file; returns their number."""
    counts = {}
    with path.open("w") as file:
        for name, part in (("rollout", runner._collect_rollout), ("update", lambda: runner.alg.update(0))):
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


def steady_training(runner: OnPolicyRunner, iterations: int) -> dict[str, Any]:
    """Train without timers; the first iterations, which load, compile and capture, are not counted."""
    clock = Clock()
    clock.watch(runner, "_iterate", "iteration", wait=False)
    clock.watch(runner, "_save_checkpoint", "checkpoint", wait=False)
    runner.learn(WARM_UP, init_at_random_ep_len=True)
    torch.cuda.synchronize()
    first = sum(clock.seconds["iteration"])
    begin = time.perf_counter()
    runner.learn(iterations)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    steps = runner.env.num_envs * runner.num_steps_per_env
    median = statistics.median(clock.seconds["iteration"][WARM_UP:])
    return {
        "iterations": iterations,
        "first_iterations_s": first,
        "median_iteration_ms": 1e3 * median,
        "steps_per_second_median": steps / median,
        # Includes checkpoints, their evaluation and pending file writes.
        "steps_per_second": steps * iterations / seconds,
        "snapshot_ms": [1e3 * seconds for seconds in clock.seconds["checkpoint"]],
    }


def timed_parts(runner: OnPolicyRunner, iterations: int = 12) -> dict[str, Any]:
    """Medians of the parts of an iteration, each of which waits for the device, and of physics and the task alone."""
    clock = Clock()
    for owner, method, name in (
        (runner, "_iterate", "iteration"),
        (runner, "_collect_rollout", "collect"),
        (runner.alg, "update", "update"),
        (runner, "log", "log"),
    ):
        clock.watch(owner, method, name)
    runner.learn(iterations)
    medians = {name: 1e3 * statistics.median(times) for name, times in clock.seconds.items()}
    physics, task = (seconds_of(runner.env, runner.num_steps_per_env) for seconds_of in (physics_seconds, task_seconds))
    return {
        **medians,
        "physics": 1e3 * physics,
        "task": 1e3 * (task - physics),
        "acting_and_storing": medians["collect"] - 1e3 * task,
    }


def measure(options: argparse.Namespace, robots: int) -> dict[str, Any]:
    """One row."""
    free_before = torch.cuda.mem_get_info()[0]
    runner = make_runner(options, robots)
    row: dict[str, Any] = {
        "task": options.task,
        "robot": Path(options.robot).stem if options.robot else None,
        "robots": robots,
        "substeps": options.substeps,
        "timestep": options.timestep,
        "hidden": options.hidden,
        "mixed_precision": options.mixed_precision,
        **steady_training(runner, options.iterations),
        "engine": runner.alg.engine.describe(),
    }
    # Includes Warp, CUDA and the evaluator; unknown if another process freed memory in the meantime.
    taken = (free_before - torch.cuda.mem_get_info()[0]) / 2**30
    row["memory_gib"] = taken if taken > 0 else None
    if not options.no_parts:
        row["parts_ms"] = timed_parts(runner)
        row["physics_fraction"] = row["parts_ms"]["physics"] / row["median_iteration_ms"]
    if options.profile is not None:
        row["kernels"] = profile(runner, options.profile)
    runner.close()
    return row


def main() -> None:
    options = parse_options()
    results: dict[str, Any] = {"benchmark": "walk_gpu", **describe_machine(), "rows": []}
    if options.limits:
        results["limits"] = device_limits()
    print(f"{'robots':>7} {'steps/s':>10} {'median':>10} {'iteration':>10} {'physics':>8} {'memory':>9}")
    for robots in options.robots:
        with redirect_stdout(sys.stderr):
            row = measure(options, robots)
        gc.collect()
        torch.cuda.empty_cache()
        results["rows"].append(row)
        write_results(options.output, results)
        rates = f"{row['steps_per_second']:>10,.0f} {row['steps_per_second_median']:>10,.0f}"
        fraction = f"{row['physics_fraction']:.0%}" if "physics_fraction" in row else ""
        memory = f"{row['memory_gib']:>5.1f} GiB" if row["memory_gib"] else ""
        times = f"{row['median_iteration_ms']:>7.1f} ms {fraction:>8} {memory}"
        print(f"{robots:>7} {rates} {times}", flush=True)
    print(f"results: {options.output}")


if __name__ == "__main__":
    main()
