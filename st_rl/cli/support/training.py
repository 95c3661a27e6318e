"""What `train` and `resume` share: threads, seeds, the judge of the best checkpoint, and stopping."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from st_rl.cli.support.graceful_shutdown import GracefulShutdown
from st_rl.cli.support.run_folder import RUN_FILE, RunFolder
from st_rl.cli.support.task_source import BuiltInTask, TaskSource

# The judge of best.pt, robots and seconds of their walk: enough to rank checkpoints, short enough not to be felt. On
# a GPU many robots take no longer than a few.
JUDGED_WALK = {"cpu": (32, 4.0), "cuda": (256, 2.0)}
JUDGE_EPISODES = 8


def make_evaluator(source: TaskSource, config: Any, device: str) -> Any:
    """What decides which checkpoint is the best: a short walk or a few episodes, without noise, on held-out starts.

    None leaves it to the returns of the training.
    """
    if not source.has_evaluator:
        return None
    from st_rl.sim.evaluation.evaluator import CheckpointEvaluator, EvaluationCfg, make_eval_task, preserve_rng_state

    robots, seconds = JUDGED_WALK["cuda" if device.startswith("cuda") else "cpu"]
    plan = EvaluationCfg(robots=robots, seconds=seconds, push_speed=0.0)
    # A task on a GPU seeds the generator that the training draws from.
    with preserve_rng_state(device):
        if isinstance(source, BuiltInTask):
            env = make_eval_task(source.name, config, plan.robots, plan.seconds, plan.seed, False, device)
        else:
            env = source.make(config, JUDGE_EPISODES, device, plan.seed)
    if not getattr(env, "is_graph_safe", False):
        return CheckpointEvaluator(env, plan)
    from st_rl.engine import Engine

    engine = Engine("graph", device)
    return CheckpointEvaluator(env, plan, lambda step: engine.loop(step, during_capture=env.during_capture))


@contextmanager
def time_limit(minutes: float | None, stop: Any) -> Iterator[None]:
    """Call `stop` when the minutes are over."""
    timer = threading.Timer(60.0 * minutes, stop) if minutes is not None else None
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()


def learn(runner: Any, iterations: int, minutes: float | None, run: RunFolder, spread_episodes: bool) -> int:
    """Train, stop gently when asked to, say what comes next; returns the exit code."""
    # Before signals are caught: what fails here should fail as usual.
    runner.init_writter(False)
    begin = time.perf_counter()
    with GracefulShutdown(runner.request_stop) as interruption, time_limit(minutes, runner.request_stop):
        runner.learn(iterations, init_at_random_ep_len=spread_episodes)
    runner.close()
    seconds = time.perf_counter() - begin
    done = runner.current_learning_iteration
    print(
        f"\n{done} iterations, {runner.tot_timesteps:,} steps; this session {seconds:.0f} s. The run is in {run.path}"
    )
    if interruption.exit_code is not None:
        print(f"Interrupted and saved. Go on with:\n  st-rl resume {run.path}")
        return interruption.exit_code
    _print_next(run.path)
    return 0


def _print_next(folder: Path) -> None:
    lines = (
        ("eval", "judge it without noise"),
        ("play", "see it"),
        ("report", "one page with everything"),
        ("export", "a policy file for a controller"),
    )
    print("Next:")
    for command, words in lines:
        print(f"  st-rl {command:<6} {folder}   # {words}")


def write_settings(run: RunFolder, settings: Mapping[str, Any]) -> None:
    """Write `run.json`."""
    from st_rl.utils.files import write_json

    write_json(run.file(RUN_FILE), settings)
