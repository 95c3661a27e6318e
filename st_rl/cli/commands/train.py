"""Train a policy for a task: st-rl train TASK."""

from __future__ import annotations

import dataclasses
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from st_rl.cli.support.command_line import CommandError, UsageError, parse_options, wrapped
from st_rl.cli.support.run_folder import RUNS, RunFolder, make_writable, new_run_folder
from st_rl.cli.support.training_config import AlgorithmConfig, PolicyConfig, RunnerConfig, TrainingConfig, with_settings

EnvConfig = TypeVar("EnvConfig")

_HELP = """usage: st-rl train TASK [OPTIONS]

{purpose}

st-rl train TASK --help lists all options of a task. The most useful:
  --minutes 2                    stop after two minutes
  --iterations 300               or after so many iterations
  --num-envs 512                 robots simulated together
  --seed 1                       of all random numbers
  --log-dir FOLDER               where the run is kept (default: runs/TASK/TIME)
  --runner.save-interval 100     any setting of the training, by its dotted name
  --algorithm.learning-rate 1e-3
  --env.episode-length-s 20      any setting of the task, likewise
  --set policy.amp_discriminator.style_reward_coef=0.2
                                 settings of a class that have no option"""


@dataclass
class TrainOptions(Generic[EnvConfig]):
    """Options of `st-rl train`."""

    env: EnvConfig
    """The task."""
    runner: RunnerConfig = field(default_factory=RunnerConfig)
    """The training loop."""
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    """The networks."""
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    """The learning algorithm."""
    iterations: int | None = None
    """Number of iterations; short for --runner.max-iterations."""
    minutes: float | None = None
    """Stop after so many minutes, whatever the number of iterations."""
    num_envs: int | None = None
    """Robots simulated together; the task's own number when None."""
    seed: int = 1
    """Of all random numbers: the same seed gives the same run."""
    device: str = "cpu"
    """Where to train: cpu, cuda:0, ..."""
    log_dir: Path | None = None
    """Folder of the run; runs/TASK/TIME when None."""
    logger: Literal["tensorboard", "wandb", "neptune"] | None = None
    """Where curves go, besides progress.csv; short for --runner.logger."""
    threads: int | None = None
    """Threads of torch, updates included; when None, chosen by the size of the networks and measured for updates."""
    set: tuple[str, ...] = ()
    """Settings that have no option here, as dotted.name=value: algorithm.discriminator_cfg.learning_rate=3e-4."""


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    name, rest = split_task(arguments)
    if name is None:
        from st_rl.cli.support.task_source import FOREIGN_TASKS
        from st_rl.sim.tasks import TASKS

        if not rest or set(rest) & {"-h", "--help"}:
            tasks = f"{', '.join(TASKS)}, gym:ENV_ID for an environment of gymnasium, or mjlab:TASK_ID"
            print(_HELP.format(purpose=wrapped(f"Train a policy for a task. Tasks: {tasks}.")))
            return 0 if rest else 2
        raise UsageError(f"which task? st-rl train TASK ..., with TASK one of: {', '.join([*TASKS, *FOREIGN_TASKS])}")
    from st_rl.cli.support.task_source import find_source

    source = find_source(name)
    options, training = read_training(source, rest)
    return train(source, options, training, f"st-rl train {shlex.join(arguments)}")


def read_training(source: Any, arguments: Sequence[str]) -> tuple[TrainOptions[Any], TrainingConfig]:
    """What the options of `st-rl train` say about the training of a task."""
    defaults = TrainingConfig.from_dict(source.training)
    options: TrainOptions[Any] = parse_options(
        TrainOptions[type(source.default_config)],
        arguments,
        f"train {source.name}",
        f"Train a policy for {source.name}.",
        TrainOptions(source.default_config, defaults.runner, defaults.policy, defaults.algorithm),
    )
    if options.iterations is not None:
        options.runner.max_iterations = options.iterations
    if options.logger is not None:
        options.runner.logger = options.logger
    return options, TrainingConfig(options.runner, options.policy, options.algorithm, defaults.others)


def split_task(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """The task, which comes first, and the other arguments."""
    if arguments and not arguments[0].startswith("-"):
        return arguments[0], list(arguments[1:])
    return None, list(arguments)


def train(source: Any, options: TrainOptions[Any], training: TrainingConfig, command_line: str) -> int:
    """Build the task and the runner, keep what a repetition needs, and learn."""
    from st_rl.cli.support.training import learn

    runner, run = prepare_training(source, options, training, command_line)
    print(f"Training {source.name} with {runner.env.num_envs} robots; the run is in {run.path}")
    return learn(runner, training.runner.max_iterations, options.minutes, run, spread_episodes=True)


def prepare_training(
    source: Any, options: TrainOptions[Any], training: TrainingConfig, command_line: str
) -> tuple[Any, RunFolder]:
    """A runner that can begin to learn, and its run folder with what a repetition needs."""
    from st_rl.cli.support.system_info import git_state, machine, versions
    from st_rl.cli.support.torch_setup import (
        check_device,
        choose_update_threads,
        seed_everything,
        set_threads,
        use_tensor_cores,
    )
    from st_rl.cli.support.training import make_evaluator, write_settings
    from st_rl.runners import build_runner

    if training.runner.max_iterations < 1:
        raise UsageError(f"--iterations must be at least 1, got {training.runner.max_iterations}")
    check_device(options.device)
    use_tensor_cores(options.device)
    config = with_settings(training.to_dict(), options.set)
    threads = set_threads(options.threads, options.device, config["policy"], options.env)
    seed_everything(options.seed)
    env = source.make(options.env, options.num_envs, options.device, options.seed)
    config["update_threads"] = choose_update_threads(options.threads, config, env, options.device)
    folder = options.log_dir or new_run_folder(source.name, time.strftime("%Y-%m-%d_%H-%M-%S"), RUNS)
    make_writable(folder, "choose another with --log-dir")
    run = RunFolder(folder)
    if run.file("run.json").is_file():
        raise UsageError(f"{folder} already holds a run: go on with st-rl resume {folder}, or choose another --log-dir")
    runner_class = config.get("runner_class_name") or "OnPolicyRunner"
    try:
        runner = build_runner(runner_class, env, config, log_dir=folder, device=options.device)
    except TypeError as error:  # an algorithm that cannot train such a policy; it says which one it can
        raise CommandError(str(error)) from error
    runner.evaluator = make_evaluator(source, options.env, options.device)
    settings = {
        "task": source.name,
        "task_config": dataclasses.asdict(options.env),
        "num_envs": int(env.num_envs),
        "seed": options.seed,
        "device": options.device,
        "iterations": training.runner.max_iterations,
        "minutes": options.minutes,
        "torch_threads": threads,
        "started": time.strftime("%Y-%m-%d %H:%M:%S"),
        "command_line": command_line,
        "versions": versions(),
        "machine": machine(),
        "git": git_state(),
    }
    write_settings(run, settings)
    return runner, run
