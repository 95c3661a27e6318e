"""Train a policy for a task: st-rl train TASK."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic

from st_rl.cli.commands.resume import continue_after_restart
from st_rl.cli.support.command_line import (
    CommandError,
    UsageError,
    asks_for_help,
    check_minutes,
    conf,
    drop_options,
    escape_control,
    option_value,
    parse_options,
    print_help,
    program,
    wrap,
)
from st_rl.cli.support.metrics import describe_size
from st_rl.cli.support.run_folders.run_folder import CHANGED, PARENTS, RunFolder
from st_rl.cli.support.task_source import EXTERNAL_TASKS, EnvConfig, TaskSource, find_source
from st_rl.cli.support.training.device_defaults import AUTO, choose_device, describe_choice, fit_to_device
from st_rl.cli.support.training.parent_run import ParentRun
from st_rl.cli.support.training.ranks import (
    RUN_ID,
    iterations_within,
    join_ranks,
    launch_ranks,
    share_run_folder,
    torchrun_id,
)
from st_rl.cli.support.training.settings_file import SettingsFile, changed_settings
from st_rl.cli.support.training.training_config import (
    AlgorithmConfig,
    PolicyConfig,
    RunnerConfig,
    TrainingConfig,
    with_settings,
)
from st_rl.cli.support.viewer import DEFAULT_PORT, LOOPBACK, check_viewer, show_training
from st_rl.loggers import LoggerName

if TYPE_CHECKING:
    from st_rl.env import VecEnv
    from st_rl.runners import OnPolicyRunner

# Parts of a configuration that are no settings of the runner, or that a training decides itself.
_NOT_COMPARED = ("policy", "algorithm", "max_iterations", "update_threads", "strict")

_HELP = """usage: st-rl train TASK [OPTIONS]

{purpose}

st-rl train TASK --help lists all options of a task. The most useful:
  --iterations 300               number of iterations
  --minutes 2                    train for 2 minutes, whatever the iterations
  --device cpu                   not the GPU that torch finds
  --num-envs 512                 number of robots simulated in parallel
  --seed 1                       random seed
  --view                         watch them in the browser while they learn
  --log-dir FOLDER               folder of the run (default: runs/TASK/TIME)
  --from RUN[:CHECKPOINT]        start from the weights of another run
  --config FILE.yaml             settings of a file, as st-rl config RUN prints
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
    """Number of robots simulated in parallel, on each rank; None uses that of the task on the device."""
    seed: int = 1
    """Random seed; the same seed gives the same run."""
    device: str = AUTO
    """Device: cpu, cuda:0, ...; auto takes a GPU where torch finds one that the task can use, else the CPU."""
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
    from_: Annotated[str | None, conf("arg", name="from")] = None
    """Run to start from, RUN or RUN:CHECKPOINT: its weights and normalizers and, if its task is the same, its settings,
    unless options change them. Iterations, optimizer and schedules start again."""
    config: Path | None = None
    """YAML file of settings by the names of these options, such as st-rl config RUN prints; options that are typed
    win."""

    def training(self, others: dict[str, dict[str, Any]]) -> TrainingConfig:
        """Return the training configuration, with the settings `others` that have no option."""
        if self.iterations is not None:
            self.runner.max_iterations = self.iterations
        if self.logger is not None:
            self.runner.logger = self.logger
        return TrainingConfig(self.runner, self.policy, self.algorithm, others)


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    file = option_value(arguments, "--config")
    if not arguments or arguments[0].startswith("-"):
        if asks_for_help(arguments):
            return _print_help(arguments)
        task, rest = _task_of_file(file), arguments
    else:
        task, rest = arguments[0], arguments[1:]
    source = find_source(task)
    options, training = read_training(source, rest)
    drop_default_iterations(options, training, rest)
    options.device = launch_ranks(options.gpus, options.device, "train", arguments)
    exit_code = continue_after_restart(options.log_dir, source.name)
    if exit_code is not None:
        return exit_code
    return train(source, options, training, f"{program()} train {shlex.join(arguments)}")


def _print_help(arguments: Sequence[str]) -> int:
    from st_rl.sim.tasks import TASKS

    tasks = f"{', '.join(TASKS)}, gym:ENV_ID (gymnasium), mjlab:TASK_ID (mjlab)"
    return print_help(_HELP.format(purpose=wrap(f"Train a policy for a task. Tasks: {tasks}.")), arguments)


def _task_of_file(file: str | None) -> str:
    """Return the task that a settings file names; UsageError without a file."""
    if file is not None:
        return SettingsFile.read(Path(file)).require_task()
    from st_rl.sim.tasks import TASKS

    raise UsageError(f"which task? st-rl train TASK ..., with TASK one of: {', '.join([*TASKS, *EXTERNAL_TASKS])}")


def drop_default_iterations(
    options: TrainOptions[EnvConfig], training: TrainingConfig, arguments: Sequence[str]
) -> None:
    """Train without a limit of iterations if the arguments limit the minutes only."""
    check_minutes(options.minutes)
    names = ("iterations", "runner.max-iterations", "steps")
    is_given = drop_options(arguments, {f"--{name}" for name in names}) != list(arguments)
    if options.config is not None:
        is_given |= SettingsFile.read(options.config).sets(*(name.replace("-", "_") for name in names))
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
    defaults, others = starting_options(source, arguments)
    options = parse_options(
        TrainOptions[type(source.default_config)],
        arguments,
        f"train {source.name}",
        f"Train a policy for {source.name}.",
        defaults,
    )
    options.set, options.from_ = joined_settings(options, defaults), defaults.from_
    options.device = choose_device(source, options.device)
    return options, options.training(others)


def starting_options(
    source: TaskSource[EnvConfig], arguments: Sequence[str]
) -> tuple[TrainOptions[EnvConfig], dict[str, dict[str, Any]]]:
    """Return the options before the command line, and the settings without an option.

    Options of the task on the device are replaced by those of `--from`, and these by those of `--config`. `from_` names
    the parent exactly, because `latest` may become another run.
    """
    source = fit_to_device(source, arguments)
    env, training = source.default_config, TrainingConfig.from_dict(source.training)
    file, address = read_settings_file(source, arguments), option_value(arguments, "--from")
    if address is None and file is not None:
        address = file.values.get("from")
    parent = None if address is None else ParentRun.find(str(address))
    if parent is not None:
        env, training = parent.inherit(source, env, training)
    options = TrainOptions(env, training.runner, training.policy, training.algorithm)
    options = options if file is None else file.apply(options)
    options.from_ = None if parent is None else parent.address
    return options, training.others


def read_settings_file(source: TaskSource[EnvConfig], arguments: Sequence[str]) -> SettingsFile | None:
    """Return the file that `--config` names, None without it; UsageError if it is of another task."""
    path = option_value(arguments, "--config")
    if path is None:
        return None
    file = SettingsFile.read(Path(path))
    file.check_task(source.name)
    return file


def joined_settings(options: TrainOptions[EnvConfig], defaults: TrainOptions[EnvConfig]) -> tuple[str, ...]:
    """Return the assignments of `set` in a settings file, followed by those of `--set`, which win."""
    return options.set if options.set == defaults.set else (*defaults.set, *options.set)


def train(
    source: TaskSource[EnvConfig],
    options: TrainOptions[EnvConfig],
    training: TrainingConfig,
    command_line: str,
) -> int:
    """Build the task and the runner, and train; returns the exit code."""
    from st_rl.cli.support.training.session import learn
    from st_rl.utils.distributed import world_size

    check_viewer(source, options)
    runner, run = prepare_training(source, options, training, command_line)
    size = describe_size(runner.env.num_envs, world_size())
    print(f"Training {escape_control(source.name)} with {size}. Run: {run.path}")
    print(describe_choice(source, options, runner.env.num_envs, training.runner.max_iterations))
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
    from st_rl.cli.support.training.session import make_evaluator
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
        _limit_steps(options, options.steps, config, env)
    update_threads = torch_setup.choose_update_threads(options.threads, config, env, device)
    config["update_threads"] = update_threads.number
    run = share_run_folder(options.log_dir, source.name)
    runner_class = config.get("runner_class_name") or "OnPolicyRunner"
    try:
        runner = build_runner(runner_class, env, config, log_dir=run.path, device=device)
    except TypeError as error:  # the algorithm cannot train this policy class
        raise CommandError(str(error)) from error
    runner.update_threads = update_threads
    parent = None if options.from_ is None else ParentRun.find(options.from_)
    if parent is not None:
        parent.start(runner)
    if not is_main():
        return runner, run
    runner.evaluator = make_evaluator(source, options.env, device)
    runner.run_settings = {
        **_describe_options(source, options, config, env.num_envs),
        "num_ranks": world_size(),
        RUN_ID: torchrun_id(),
        "torch_threads": threads,
        "measures_update_threads": bool(update_threads.candidates),
        "command_line": command_line,
        **({} if parent is None else {PARENTS: parent.chain()}),
    }
    return runner, run


def _limit_steps(options: TrainOptions[EnvConfig], steps: int, config: dict[str, Any], env: VecEnv) -> None:
    """Replace the iterations by those of `--steps`, unless `--iterations` ends the training earlier."""
    by_steps = iterations_within(steps, config, env)
    if options.iterations is not None and options.iterations < by_steps:
        options.steps = None
    else:
        options.runner.max_iterations = config["max_iterations"] = by_steps


def _describe_options(
    source: TaskSource[EnvConfig], options: TrainOptions[EnvConfig], config: Mapping[str, Any], num_envs: int
) -> dict[str, Any]:
    """Return what `run.json` says about the options of a training with this configuration of the runner."""
    return {
        "task": source.name,
        "task_config": dataclasses.asdict(options.env),
        **{name: vars(options)[name] for name in ("seed", "device", "steps", "minutes", "threads")},
        "iterations": options.runner.max_iterations,
        CHANGED: _find_changed(source, options, config, num_envs),
    }


def _find_changed(
    source: TaskSource[EnvConfig],
    options: TrainOptions[EnvConfig],
    config: Mapping[str, Any],
    num_envs: int,
) -> dict[str, list[Any]]:
    """Return the settings that differ from the defaults of the task, dotted name -> [default, value used]."""
    source = source.for_gpu() if options.device.startswith("cuda") else source
    default = TrainingConfig.from_dict(source.training).to_dict()
    env = dataclasses.asdict(source.default_config)
    sizes = {"num_envs": env.get("num_envs"), "iterations": default.get("max_iterations")}
    parts = [
        {
            "env": {key: value for key, value in task.items() if key != "num_envs"},
            "runner": {key: value for key, value in part.items() if key not in _NOT_COMPARED},
            "policy": part["policy"],
            "algorithm": part["algorithm"],
        }
        for task, part in ((env, default), (dataclasses.asdict(options.env), config))
    ]
    return changed_settings(
        sizes | parts[0], {"num_envs": num_envs, "iterations": options.runner.max_iterations} | parts[1]
    )


def _check_iterations(iterations: int | None, minutes: float | None) -> None:
    if iterations is None and minutes is None:
        raise UsageError("--runner.max-iterations None needs a time limit: add --minutes M")
    if iterations is not None and iterations < 1:
        raise UsageError(f"--iterations must be at least 1, got {iterations}")


def _check_project(config: Mapping[str, Any]) -> None:
    """UsageError if the logger of a training needs a project and has none."""
    name = config["logger"]
    if name in ("wandb", "neptune") and not config.get(f"{name}_project"):
        raise UsageError(f"--logger {name} needs a project: add --runner.{name}-project NAME")
