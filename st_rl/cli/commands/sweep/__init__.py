"""Search for better training settings with Optuna: st-rl sweep TASK --search NAME LOW HIGH."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from st_rl.cli.commands.train import read_training, starting_options
from st_rl.cli.support.command_line import (
    CommandError,
    UsageError,
    asks_for_help,
    check_minutes,
    drop_options,
    parse_options,
    print_help,
)
from st_rl.cli.support.run_folders.run_folder import TIMESTAMP, make_writable, new_run_folder
from st_rl.cli.support.task_source import EnvConfig, TaskSource, find_source
from st_rl.cli.support.training.device_defaults import choose_device

if TYPE_CHECKING:
    from st_rl.cli.commands.sweep.options import SearchParameter, SweepOptions
    from st_rl.cli.commands.sweep.results import Sweep
    from st_rl.cli.commands.sweep.storage import StudyAddress

_NUM_TRIALS = 20
# Options that are not part of what makes trials comparable: they may differ between workers.
_WORKER_OPTIONS = {
    *("--trials", "--log-dir", "--storage", "--study", "--join", "--workers", "--gpus", "--ray"),
    *("--worker-timeout-s", "--device"),
}

_HELP = """usage: st-rl sweep TASK --search NAME LOW HIGH [OPTIONS]

Search for better training settings: many short trainings, with settings that
Optuna proposes from the earlier results. Trials that fall behind are pruned.
Scores are evaluated without exploration noise.
  st-rl sweep quadruped-walk --trials 20 --iterations 200 \\
    --search algorithm.learning-rate 1e-4 1e-2 \\
    --search policy.init-noise-std 0.5 1.5 --search policy.activation elu,tanh

st-rl sweep TASK --help lists all options. The most useful:
  --search NAME LOW HIGH   a setting to search, by its name in
                           st-rl train TASK --help; may be repeated. Integers
                           stay integers; other numbers are searched on a
                           logarithmic scale if LOW is above 0 and HIGH at
                           least 10 times LOW
  --search NAME A,B,C      choices of a setting
  --trials 20              number of trials of the sweep
  --log-dir FOLDER         folder of the sweep; the same command with the
                           folder of a sweep continues it
  --gpus all               one trial per GPU of this machine
  --storage FOLDER         share the sweep: a folder on a network drive, or
                           postgresql://USER:PASSWORD@HOST:5432/DATABASE
  --join                   work on the sweep of another command or machine
  --ray ADDRESS            run the trials on a Ray cluster
  and all options of st-rl train, the same for every trial"""


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    if not arguments or arguments[0].startswith("-"):
        if asks_for_help(arguments):
            return print_help(_HELP, arguments)
        raise UsageError("which task? st-rl sweep TASK --search NAME LOW HIGH ...; st-rl tasks lists them")
    source, rest = find_source(arguments[0]), arguments[1:]
    parent = starting_options(source, rest)[0].from_
    if parent is not None:
        # Once for all trials, which may become the latest run.
        rest = [*drop_options(rest, {"--from"}), "--from", parent]
    return sweep(source, read_options(source, rest), rest)


def read_options(source: TaskSource[EnvConfig], arguments: Sequence[str]) -> SweepOptions[EnvConfig]:
    """Parse the options of `st-rl sweep` for a task."""
    from st_rl.cli.commands.sweep.options import SweepOptions

    defaults = starting_options(source, arguments)[0]
    options = parse_options(
        SweepOptions[type(source.default_config)],
        arguments,
        f"sweep {source.name}",
        f"Search for better training settings of {source.name}.",
        SweepOptions(**vars(defaults)),
    )
    options.device = choose_device(source, options.device)
    return options


def sweep(source: TaskSource[EnvConfig], options: SweepOptions[EnvConfig], arguments: Sequence[str]) -> int:
    """Check the options, open the study and run its trials, here or in other processes; returns the exit code."""
    _require_optuna()
    from st_rl.cli.commands.sweep.storage import read_storage
    from st_rl.cli.commands.sweep.trials import run_trials

    devices = _check_workers(options)
    folder = options.log_dir or _default_folder(source.name, options)
    address = read_storage(options.storage, folder, options.study)
    with address.hide_credentials():
        options.log_dir = folder
        prepared = prepare_sweep(source, options, arguments, address)
        if options.ray is None and len(devices) == 1:
            return run_trials(prepared)
        return _run_elsewhere(prepared, options, devices)


def _check_workers(options: SweepOptions[EnvConfig]) -> list[str]:
    """Return the device of each worker on this machine; UsageError for options that do not fit."""
    from st_rl.cli.support.torch_setup import check_device
    from st_rl.cli.support.training.ranks import check_gpus, torchrun_id

    if torchrun_id() is not None:
        raise UsageError(
            "torchrun starts the ranks of one training; start a sweep without it: st-rl sweep with --gpus all or "
            "--workers N on this machine, and with --join on others"
        )
    if options.workers is not None and options.workers < 1:
        raise UsageError(f"--workers must be at least 1, got {options.workers}")
    if not options.worker_timeout_s > 0:
        raise UsageError(f"--worker-timeout-s must be above 0, got {options.worker_timeout_s:g}")
    if options.trials is not None and options.trials < 1:
        raise UsageError(f"--trials must be at least 1, got {options.trials}")
    if options.steps is not None:
        raise UsageError("--steps: the trials of a sweep are compared after the same iterations; give --iterations")
    if options.gpus is not None:
        if options.ray is not None:
            raise UsageError("--gpus is for this machine; with --ray give --device cuda, and --workers")
        options.device = "cuda" if options.device == "cpu" else options.device
        count = check_gpus(options.gpus, options.device)
        return [f"cuda:{number % count}" for number in range(options.workers or count)]
    if options.ray is None:
        check_device(options.device)
    return [options.device] * (options.workers or 1)


def _default_folder(task: str, options: SweepOptions[Any]) -> Path:
    """Return the folder of the sweep if none is named: that of its journal, or a new one."""
    storage = options.storage if options.storage is not None else os.environ.get("ST_RL_STORAGE")
    if storage and "://" not in storage:
        return Path(storage)
    if options.join and not storage:
        raise UsageError(
            "--join needs the sweep to work on: --storage FOLDER, --storage postgresql://..., or --log-dir"
        )
    return new_run_folder(task, f"sweep-{TIMESTAMP}")


def prepare_sweep(
    source: TaskSource[EnvConfig], options: SweepOptions[EnvConfig], arguments: Sequence[str], address: StudyAddress
) -> Sweep:
    """Check the search, open the study and register its command; a worker that joins takes over what it lacks."""
    from st_rl.cli.commands.sweep.results import Sweep
    from st_rl.cli.commands.sweep.shared_trials import SharedTrials
    from st_rl.cli.commands.sweep.storage import open_study

    _require_optuna()
    folder, device, timeout_s = Path(options.log_dir or ""), options.device, options.worker_timeout_s
    if options.join:
        options, arguments = _join_study(source, options, arguments, address)
    shared = drop_options(arguments, _WORKER_OPTIONS)
    if device.startswith("cuda"):
        # Scores on a GPU are of more robots.
        shared += ["--device", "cuda"]
    parameters, fixed, iterations = _read_searches(source, options, shared, device)
    num_trials = options.trials or _NUM_TRIALS
    study = open_study(address, num_trials, iterations)
    make_writable(folder, "choose another with --log-dir")
    command = shlex.join(["st-rl", "sweep", source.name, *shared])
    created_by = study.user_attrs.get("command")
    if created_by is not None and created_by != command:
        raise UsageError(
            f"{address.describe()} is of a sweep of another command: continue it with {created_by} --log-dir "
            f"{shlex.quote(str(folder))}, or choose another {'--study' if address.is_database else '--log-dir'}"
        )
    trials = SharedTrials(study, num_trials, timeout_s)
    defaults = {p.name: p.default_choice for p in parameters if p.default_choice is not None}
    if not options.join:
        trials.enqueue_default(defaults)
        for name, value in {"command": command, "trials": num_trials, "arguments": shared}.items():
            if study.user_attrs.get(name) != value:
                study.set_user_attr(name, value)
    # Workers that propose at the same time must not propose the same.
    offset = int.from_bytes(os.urandom(4), "little") if options.join else 0
    seed = (options.seed + offset) % 2**32
    return Sweep(trials, address, folder, source, parameters, fixed, iterations, seed, device)


def _join_study(
    source: TaskSource[EnvConfig], options: SweepOptions[EnvConfig], arguments: Sequence[str], address: StudyAddress
) -> tuple[SweepOptions[EnvConfig], Sequence[str]]:
    """Return options and arguments of the study that a worker joins, with its own where it has any."""
    from st_rl.cli.commands.sweep.storage import wait_for_study
    from st_rl.utils.config import reject_unsafe_settings

    attributes = wait_for_study(address)
    trials = options.trials or attributes.get("trials")
    if not drop_options(arguments, _WORKER_OPTIONS):
        arguments = [str(word) for word in attributes["arguments"]]
        options = read_options(source, arguments)
        # The storage is untrusted: it must not choose code to import.
        reject_unsafe_settings(options.training({}).to_dict(), address.describe())
    options.join, options.trials = True, trials if isinstance(trials, int) else None
    return options, arguments


def _read_searches(
    source: TaskSource[EnvConfig], options: SweepOptions[EnvConfig], shared: Sequence[str], device: str
) -> tuple[list[SearchParameter], list[str], int]:
    """Return what is searched, the arguments of `st-rl train` of all trials, and their iterations."""
    from st_rl.cli.commands.sweep.options import read_search

    if not options.search:
        raise UsageError("which settings? --search NAME LOW HIGH, such as --search algorithm.learning-rate 1e-4 1e-2")
    check_minutes(options.minutes)
    parameters = [read_search(words, options, f"sweep {source.name}") for words in options.search]
    names = [parameter.name for parameter in parameters]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise UsageError(f"--search {repeated} is given twice; give it one range")
    fixed = drop_options(shared, {"--search", "--device", *(f"--{name}" for name in names)})
    for parameter in parameters:
        for value in parameter.examples:
            # Exits with the parser's message for a value that the setting does not take.
            read_training(source, [*fixed, *parameter.arguments(value), "--device", device])
    iterations = read_training(source, [*fixed, "--device", device])[1].runner.max_iterations
    if iterations is None or iterations < 1:
        raise UsageError(f"--iterations must be at least 1, got {iterations}")
    return parameters, fixed, iterations


def _run_elsewhere(sweep: Sweep, options: SweepOptions[Any], devices: Sequence[str]) -> int:
    """Run the trials in other processes, here or on a Ray cluster, and print the results; returns the exit code."""
    from st_rl.cli.commands.sweep.results import print_results, write_results
    from st_rl.cli.commands.sweep.storage import StudyAddress
    from st_rl.cli.commands.sweep.workers import WorkerPlan, run_local_workers, run_ray_workers

    storage = sweep.address.storage if sweep.address.is_database else str(Path(sweep.address.storage).absolute())
    address = StudyAddress(storage, sweep.address.name)
    arguments = (*sweep.study.user_attrs["arguments"], "--worker-timeout-s", str(options.worker_timeout_s))
    print(f"{sweep.describe()}. Sweep: {sweep.folder}", flush=True)

    def plan(device: str, num_local: int) -> WorkerPlan:
        return WorkerPlan(sweep.source.name, arguments, address, str(sweep.folder.absolute()), device, num_local)

    try:
        if options.ray is not None:
            # A task of Ray has one core.
            run_ray_workers(plan(options.device, os.cpu_count() or 1), options.workers, options.ray)
        else:
            run_local_workers([plan(device, len(devices)) for device in devices])
    except KeyboardInterrupt:
        print(f"Interrupted. Continue with:\n  {sweep.command_to_continue()}")
        return 130
    finally:
        write_results(sweep)
    if len(sweep.finished()) < sweep.num_trials:
        raise CommandError(f"the workers ended before all trials; continue with {sweep.command_to_continue()}")
    print_results(sweep)
    return 0


def _require_optuna() -> None:
    try:
        import optuna
    except ImportError as error:
        raise ImportError('st-rl sweep needs Optuna: pip install "st_rl[sweep]"') from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
