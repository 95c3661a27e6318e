"""Train a policy for a task: st-rl train TASK."""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic

from st_rl.cli.support.command_line import (
    CommandError,
    UsageError,
    asks_for_help,
    check_minutes,
    drop_options,
    escape_control,
    parse_options,
    print_help,
    program,
    wrap,
)
from st_rl.cli.support.ranks import (
    RUN_ID,
    check_gpus,
    describe_size,
    find_restarted_run,
    join_ranks,
    share_run_folder,
    start_torchrun,
    torchrun_id,
)
from st_rl.cli.support.run_folder import RunFolder
from st_rl.cli.support.task_source import EXTERNAL_TASKS, EnvConfig, TaskSource, find_source
from st_rl.cli.support.training_config import AlgorithmConfig, PolicyConfig, RunnerConfig, TrainingConfig, with_settings
from st_rl.cli.support.viewer import DEFAULT_PORT, LOOPBACK, check_viewer, show_training
from st_rl.loggers import LoggerName

if TYPE_CHECKING:
    from st_rl.env import VecEnv
    from st_rl.runners import OnPolicyRunner

_HELP = """usage: st-rl train TASK [OPTIONS]

{purpose}

st-rl train TASK --help lists all options of a task. The most useful:
  --iterations 300               number of iterations
  --minutes 2                    train for 2 minutes, whatever the iterations
  --num-envs 512                 number of robots simulated in parallel
  --seed 1                       random seed
  --view                         watch them in the browser while they learn
  --log-dir FOLDER               folder of the run (default: runs/TASK/TIME)
  --runner.save-interval 100     any setting of the training by its dotted name
  --algorithm.learning-rate 1e-3
  --env.episode-length-s 20      any setting of the task, likewise
  --set policy.amp_discriminator.style_reward_coef=0.2
                                 a setting without an option of its own"""


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
    """The update."""
    iterations: int | None = None
    """Number of iterations; short for --runner.max-iterations."""
    minutes: float | None = None
    """Train for this many minutes, whatever the iterations; with --iterations too, until the first that comes."""
    steps: int | None = None
    """Stop after this many environment steps, those of all ranks together."""
    num_envs: int | None = None
    """Number of robots simulated in parallel, on each rank; None uses the number of the task."""
    seed: int = 1
    """Random seed; the same seed gives the same run."""
    device: str = "cpu"
    """Device: cpu, cuda:0, ..."""
    gpus: str | None = None
    """Train on several GPUs of this machine: their number, or all. On several machines use torchrun."""
    log_dir: Path | None = None
    """Folder of the run; None uses runs/TASK/TIME."""
    logger: LoggerName | None = None
    """Logger besides progress.csv; short for --runner.logger."""
    threads: int | None = None
    """Threads of torch, updates included; None chooses by network size and measures updates."""
    view: bool = False
    """Whether to show up to 16 of the robots in the browser while they learn."""
    port: int = DEFAULT_PORT
    """Port of the viewer; 0 takes a free one."""
    host: str = LOOPBACK
    """Address on which the viewer is served; any but the loopback address asks for the token that is printed."""
    set: tuple[str, ...] = ()
    """Settings without an option, as dotted.name=value: algorithm.discriminator_cfg.learning_rate=3e-4."""

    def training(self, others: dict[str, dict[str, Any]]) -> TrainingConfig:
        """Return the training configuration, with the settings `others` that have no option."""
        if self.iterations is not None:
            self.runner.max_iterations = self.iterations
        if self.logger is not None:
            self.runner.logger = self.logger
        return TrainingConfig(self.runner, self.policy, self.algorithm, others)


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    if not arguments or arguments[0].startswith("-"):
        from st_rl.sim.tasks import TASKS

        if asks_for_help(arguments):
            tasks = f"{', '.join(TASKS)}, gym:ENV_ID (gymnasium), mjlab:TASK_ID (mjlab)"
            return print_help(_HELP.format(purpose=wrap(f"Train a policy for a task. Tasks: {tasks}.")), arguments)
        raise UsageError(f"which task? st-rl train TASK ..., with TASK one of: {', '.join([*TASKS, *EXTERNAL_TASKS])}")
    source = find_source(arguments[0])
    options, training = read_training(source, arguments[1:])
    drop_default_iterations(options, training, arguments)
    if options.gpus is not None:
        options.device = "cuda" if options.device == "cpu" else options.device
        if torchrun_id() is None:
            start_torchrun(check_gpus(options.gpus, options.device), ["train", *arguments])
    restarted = find_restarted_run(options.log_dir)
    if restarted is not None:
        from st_rl.cli.commands import resume

        return resume.main([str(restarted.path), "--task", source.name])
    return train(source, options, training, f"{program()} train {shlex.join(arguments)}")


def drop_default_iterations(
    options: TrainOptions[EnvConfig], training: TrainingConfig, arguments: Sequence[str]
) -> None:
    """Train without a limit of iterations if the arguments limit the minutes only."""
    check_minutes(options.minutes)
    is_given = drop_options(arguments, {"--iterations", "--runner.max-iterations", "--steps"}) != list(arguments)
    if options.minutes is None or is_given:
        return
    training.runner.max_iterations = None
    algorithm = training.algorithm
    if algorithm.anneal_iterations is None and (algorithm.anneal_learning_rate or algorithm.anneal_clip_param):
        algorithm.anneal_learning_rate = algorithm.anneal_clip_param = False
        print("Nothing is annealed: a training limited by --minutes has no last iteration (--iterations N sets it).")


def read_training(
    source: TaskSource[EnvConfig], arguments: Sequence[str]
) -> tuple[TrainOptions[EnvConfig], TrainingConfig]:
    """Parse the options of `st-rl train` for a task."""
    defaults = TrainingConfig.from_dict(source.training)
    options = parse_options(
        TrainOptions[type(source.default_config)],
        arguments,
        f"train {source.name}",
        f"Train a policy for {source.name}.",
        TrainOptions(source.default_config, defaults.runner, defaults.policy, defaults.algorithm),
    )
    return options, options.training(defaults.others)


def train(
    source: TaskSource[EnvConfig],
    options: TrainOptions[EnvConfig],
    training: TrainingConfig,
    command_line: str,
) -> int:
    """Build the task and the runner, and train; returns the exit code."""
    from st_rl.cli.support.training import learn

    check_viewer(source, options)
    runner, run = prepare_training(source, options, training, command_line)
    print(f"Training {escape_control(source.name)} with {describe_size(runner.env.num_envs)}. Run: {run.path}")
    with show_training(runner, options):
        return learn(runner, training.runner.max_iterations, options.minutes, run, random_episode_start=True)


def prepare_training(
    source: TaskSource[EnvConfig],
    options: TrainOptions[EnvConfig],
    training: TrainingConfig,
    command_line: str,
) -> tuple[OnPolicyRunner, RunFolder]:
    """Build the runner, with what it writes into `run.json`, and its run folder."""
    from st_rl.cli.support import torch_setup
    from st_rl.cli.support.training import make_evaluator
    from st_rl.runners import build_runner
    from st_rl.utils.distributed import is_main, rank_seed, world_size

    _check_iterations(training.runner.max_iterations, options.minutes)
    config = with_settings(training.to_dict(), options.set)
    _check_project(config)
    torch_setup.check_device(options.device)
    torch_setup.use_tensor_cores(options.device)
    device, seed = join_ranks(options.device, config), rank_seed(options.seed)
    threads = torch_setup.set_threads(options.threads, device, config["policy"], options.env)
    torch_setup.seed_everything(seed)
    env = source.make(options.env, options.num_envs, device, seed)
    if options.steps is not None:
        training.runner.max_iterations = config["max_iterations"] = iterations_within(options, config, env)
    update_threads = torch_setup.choose_update_threads(options.threads, config, env, device)
    config["update_threads"] = update_threads.number
    run = share_run_folder(options.log_dir, source.name)
    runner_class = config.get("runner_class_name") or "OnPolicyRunner"
    try:
        runner = build_runner(runner_class, env, config, log_dir=run.path, device=device)
    except TypeError as error:  # the algorithm cannot train this policy class
        raise CommandError(str(error)) from error
    runner.update_threads = update_threads
    if not is_main():
        return runner, run
    runner.evaluator = make_evaluator(source, options.env, device)
    runner.run_settings = {
        "task": source.name,
        "task_config": dataclasses.asdict(options.env),
        "num_ranks": world_size(),
        RUN_ID: torchrun_id(),
        "seed": options.seed,
        "device": options.device,
        "iterations": training.runner.max_iterations,
        "minutes": options.minutes,
        "torch_threads": threads,
        "measures_update_threads": bool(update_threads.candidates),
        "command_line": command_line,
    }
    return runner, run


def _check_iterations(iterations: int | None, minutes: float | None) -> None:
    if iterations is None and minutes is None:
        raise UsageError("--runner.max-iterations None needs a time limit: add --minutes M")
    if iterations is not None and iterations < 1:
        raise UsageError(f"--iterations must be at least 1, got {iterations}")


def iterations_within(options: TrainOptions[Any], config: Mapping[str, Any], env: VecEnv) -> int:
    """Return the number of iterations within `--steps`, at most `--iterations` if both are given."""
    from st_rl.utils.distributed import world_size

    if options.steps is None or options.steps < 1:
        raise UsageError(f"--steps must be at least 1, got {options.steps}")
    iterations = math.ceil(options.steps / (config["num_steps_per_env"] * env.num_envs * world_size()))
    return iterations if options.iterations is None else min(iterations, options.iterations)


def _check_project(config: Mapping[str, Any]) -> None:
    """UsageError if the logger of a training needs a project and has none."""
    name = config["logger"]
    if name in ("wandb", "neptune") and not config.get(f"{name}_project"):
        raise UsageError(f"--logger {name} needs a project: add --runner.{name}-project NAME")
