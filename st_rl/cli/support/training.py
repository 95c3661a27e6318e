"""What `train` and `resume` share: threads, seeds, the judge of the best checkpoint, and stopping."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from st_rl.cli.support.interruption import GracefulShutdown
from st_rl.cli.support.run_folder import RUN_FILE, RunFolder
from st_rl.cli.support.task_source import BuiltInTask, TaskSource

# Layers up to this width run faster on one thread than on several of few cores.
SMALL_LAYER = 256
# Mini-batches with fewer numbers in their widest layer are not worth a second thread.
SMALL_MINI_BATCH = 2**16
# The judge of best.pt, robots and seconds of their walk: enough to rank checkpoints, short enough not to be felt. On
# a GPU many robots take no longer than a few.
JUDGED_WALK = {"cpu": (32, 4.0), "cuda": (256, 2.0)}
JUDGE_EPISODES = 8


def seed_everything(seed: int) -> None:
    """Seed the generators of Python, numpy and torch."""
    import random

    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def set_threads(threads: int | None, device: str, policy: Mapping[str, Any], env_config: Any) -> int:
    """Give torch the threads that suit the networks, unless the user said how many, and say so in one line."""
    import torch

    from st_rl.cli.support.system_info import num_cores
    from st_rl.utils.log import logger

    widths = [*policy.get("actor_hidden_dims", ()), *policy.get("critic_hidden_dims", ())]
    small = max(widths, default=0) <= SMALL_LAYER
    if threads is None:
        threads = 1 if small or not device.startswith("cpu") else num_cores()
    torch.set_num_threads(threads)
    why = " (small networks run fastest so)" if threads == 1 and small else ""
    physics = getattr(env_config, "physics", None)
    rest = f", physics {physics.num_threads or num_cores()}" if physics is not None and device == "cpu" else ""
    logger.info(f"torch uses {threads} thread{'s' if threads > 1 else ''}{why}{rest}")
    return threads


def choose_update_threads(threads: int | None, config: Mapping[str, Any], env: Any, device: str) -> int | None:
    """Threads of torch during updates on a CPU: as asked for, or those on which a mini-batch goes through fastest."""
    import torch
    from torch import nn

    from st_rl.cli.support.system_info import num_cores
    from st_rl.engine import fastest_thread_count
    from st_rl.modules import MlpModel
    from st_rl.utils.log import logger

    asked = config.get("update_threads") or threads
    if asked is not None or not device.startswith("cpu"):
        return asked
    policy, rows = config["policy"], config["num_steps_per_env"] * env.num_envs
    rows //= config["algorithm"].get("num_mini_batches") or 1
    hidden = [list(policy.get(f"{head}_hidden_dims") or ()) for head in ("actor", "critic")]
    if rows * max([0, *hidden[0], *hidden[1]]) < SMALL_MINI_BATCH or num_cores() == 1:
        return 1
    # Two heads like those of the policy; the random numbers of the training stay where they are.
    with torch.random.fork_rng():
        heads = nn.ModuleList([MlpModel(env.num_obs, sizes, 1, nonlinearity=nn.ELU) for sizes in hidden])
        observations = torch.randn(rows, env.num_obs)

    def learn_once() -> None:
        torch.cat([head(observations) for head in heads]).square().mean().backward()

    chosen = fastest_thread_count(learn_once, (1, num_cores()))
    logger.info(f"updates use {chosen} of {num_cores()} threads, which a short measurement found fastest")
    return chosen


def check_device(device: str) -> None:
    """ValueError for a device that is not here."""
    import torch

    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise ValueError(f"unknown device '{device}': use cpu or cuda:0") from error
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device '{device}': torch sees no GPU here; st-rl doctor says why")


def use_tensor_cores(device: str) -> None:
    """Let a GPU compute products of float32 matrices in TF32, eight times faster and good to three digits."""
    import torch

    if torch.device(device).type == "cuda":
        torch.set_float32_matmul_precision("high")


def make_judge(source: TaskSource, config: Any, device: str) -> Any:
    """What decides which checkpoint is the best: a short walk or a few episodes, without noise, on held-out starts.

    None leaves it to the returns of the training.
    """
    if not source.has_evaluator:
        return None
    from st_rl.sim.evaluation.evaluator import CheckpointEvaluator, EvaluationPlan, make_eval_task, random_numbers_kept

    robots, seconds = JUDGED_WALK["cuda" if device.startswith("cuda") else "cpu"]
    plan = EvaluationPlan(robots=robots, seconds=seconds, push_speed=0.0)
    # A task on a GPU seeds the generator that the training draws from.
    with random_numbers_kept(device):
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
