"""The training session of `train`, `distill`, `resume` and `sweep`: checkpoint evaluator, time limit, learn."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING

from st_rl.cli.support.command_line import CommandError, count_of, one_line, program, quote
from st_rl.cli.support.graceful_shutdown import GracefulShutdown
from st_rl.cli.support.run_folders.run_folder import ENDED, RUN_FILE, RunFolder
from st_rl.cli.support.task_source import EnvConfig, TaskSource, task_option
from st_rl.cli.support.training.films import record_films

if TYPE_CHECKING:
    from st_rl.runners import OnPolicyRunner
    from st_rl.sim.evaluation.evaluator import CheckpointEvaluator

# Seconds of a walk that scores a checkpoint.
EVALUATION_SECONDS = {"cpu": 4.0, "cuda": 2.0}


def make_evaluator(source: TaskSource[EnvConfig], config: EnvConfig, device: str) -> CheckpointEvaluator:
    """Return what scores the checkpoints of a training: a short walk or a few episodes without noise."""
    from st_rl.env.protocols import GraphSafeEnv
    from st_rl.sim.evaluation.evaluator import CheckpointEvaluator, EvaluationCfg, preserve_rng_state

    kind = "cuda" if device.startswith("cuda") else "cpu"
    num_envs, seconds = source.evaluation_envs[kind], EVALUATION_SECONDS[kind]
    plan = EvaluationCfg(num_envs=num_envs, seconds=seconds, push_speed=0.0)
    # A task on a GPU seeds the random number generator of the training.
    with preserve_rng_state(device):
        env = source.make_eval(config, num_envs, seconds, plan.seed, device=device)
    if not (isinstance(env, GraphSafeEnv) and env.is_graph_safe):
        return CheckpointEvaluator(env, plan, max_steps=source.evaluation_steps)
    from st_rl.engine import Engine

    engine, context = Engine("graph", device), env.during_capture
    return CheckpointEvaluator(env, plan, lambda step: engine.loop(step, during_capture=context))


def learn(
    runner: OnPolicyRunner, iterations: int | None, minutes: float | None, run: RunFolder, random_episode_start: bool
) -> int:
    """Train until done (None: without a limit), interrupted or out of time, and print the next commands.

    Returns the exit code.
    """
    # Before signals are handled, so that errors here exit as usual.
    runner.init_writter(False)
    start = time.perf_counter()
    runner.time_limit_s = None if minutes is None else 60.0 * minutes
    try:
        with GracefulShutdown(runner.request_stop) as shutdown, record_films(runner, run):
            runner.learn(iterations, init_at_random_ep_len=random_episode_start)
    except BaseException as error:
        record_end(run, runner, "failed", one_line(error))
        raise
    record_end(run, runner, "finished" if shutdown.exit_code is None else "stopped")
    runner.close()
    seconds, task = time.perf_counter() - start, run.task
    done = runner.current_learning_iteration
    summary = f"{count_of(done, 'iteration')}, {runner.tot_timesteps:,} steps, {seconds:.0f} s in this session"
    print(f"\n{summary}. Run: {run.path}")
    if shutdown.exit_code is not None:
        print(f"Interrupted and saved. Resume with:\n  {program()} resume {quote(run.path)}{task_option(task)}")
        return shutdown.exit_code
    _print_next(run.path, task)
    return 0


def record_end(run: RunFolder, runner: OnPolicyRunner, state: str, error: str | None = None) -> None:
    """Add to `run.json` how the training ended, and after how many iterations, steps and seconds."""
    from st_rl.utils.distributed import is_main
    from st_rl.utils.files import write_json

    if not is_main():
        return
    end = {
        "state": state,
        "at": time.strftime("%Y-%m-%d %H:%M:%S"),
        "iterations": runner.current_learning_iteration,
        "steps": runner.tot_timesteps,
        "seconds": round(runner.tot_time, 3),
        **({} if error is None else {"error": error}),
    }
    # A full disk, or a folder that was deleted meanwhile, must not hide the error of the training.
    with contextlib.suppress(OSError, CommandError):
        write_json(run.file(RUN_FILE), {**run.settings, ENDED: end})


def _print_next(folder: Path, task: str) -> None:
    commands = {
        "eval": "evaluate the policy without exploration noise",
        "play": "watch it",
        "report": "write a report of the run",
        "export": "write policy.onnx for a controller",
    }
    print("Next:")
    for command, purpose in commands.items():
        option = "" if command == "report" else task_option(task)
        print(f"  {program()} {command:<6} {quote(folder)}{option}   # {purpose}")
