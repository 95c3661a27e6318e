"""Search for better training settings with Optuna: st-rl sweep TASK --search NAME LOW HIGH."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

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
from st_rl.cli.support.run_folder import RUN_FILE, TIMESTAMP, make_writable, new_run_folder
from st_rl.cli.support.task_source import EnvConfig, TaskSource, find_source

if TYPE_CHECKING:
    import optuna

    from st_rl.cli.commands.sweep.options import SweepOptions

STUDY_FILE = "study.log"

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
  and all options of st-rl train, the same for every trial"""


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    if not arguments or arguments[0].startswith("-"):
        if asks_for_help(arguments):
            return print_help(_HELP, arguments)
        raise UsageError("which task? st-rl sweep TASK --search NAME LOW HIGH ...; st-rl tasks lists them")
    from st_rl.cli.commands.sweep.options import SweepOptions

    source, rest = find_source(arguments[0]), arguments[1:]
    defaults = starting_options(source, rest)[0]
    if defaults.from_ is not None:
        # Once for all trials, which may become the latest run.
        rest = [*drop_options(rest, {"--from"}), "--from", defaults.from_]
    options = parse_options(
        SweepOptions[type(source.default_config)],
        rest,
        f"sweep {source.name}",
        f"Search for better training settings of {source.name}.",
        SweepOptions(**vars(defaults)),
    )
    return sweep(source, options, rest)


def sweep(source: TaskSource[EnvConfig], options: SweepOptions[EnvConfig], arguments: Sequence[str]) -> int:
    """Check the options, open the study and run its trials; returns the exit code."""
    _require_optuna()
    from st_rl.cli.commands.sweep.options import read_search
    from st_rl.cli.commands.sweep.results import Sweep
    from st_rl.cli.commands.sweep.trials import run_trials
    from st_rl.cli.support.torch_setup import check_device

    if not source.has_evaluator:
        raise UsageError(f"st-rl sweep compares evaluations without noise, and {source.name} has no evaluator")
    if not options.search:
        raise UsageError("which settings? --search NAME LOW HIGH, such as --search algorithm.learning-rate 1e-4 1e-2")
    if options.trials < 1:
        raise UsageError(f"--trials must be at least 1, got {options.trials}")
    check_minutes(options.minutes)
    parameters = [read_search(words, options, f"sweep {source.name}") for words in options.search]
    names = [parameter.name for parameter in parameters]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise UsageError(f"--search {repeated} is given twice; give it one range")
    fixed = drop_options(arguments, {"--search", "--trials", "--log-dir", *(f"--{name}" for name in names)})
    for parameter in parameters:
        for value in parameter.examples:
            # Exits with the parser's message for a value that the setting does not take.
            read_training(source, [*fixed, *parameter.arguments(value)])
    check_device(options.device)
    iterations = read_training(source, fixed)[1].runner.max_iterations
    if iterations is None or iterations < 1:
        raise UsageError(f"--iterations must be at least 1, got {iterations}")
    folder = options.log_dir or new_run_folder(source.name, f"sweep-{TIMESTAMP}")
    command = shlex.join(["st-rl", "sweep", source.name, *drop_options(arguments, {"--trials", "--log-dir"})])
    study = open_study(folder, command, options.trials, iterations)
    return run_trials(Sweep(study, folder, source, parameters, fixed, options.trials, iterations, options.seed))


def _require_optuna() -> None:
    try:
        import optuna
    except ImportError as error:
        raise ImportError('st-rl sweep needs Optuna: pip install "st_rl[sweep]"') from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def open_study(folder: Path, command: str, num_trials: int, iterations: int) -> optuna.Study:
    """Create or open the study in a folder; UsageError if another command created it."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    from st_rl.utils.files import name_file
    from st_rl.utils.files.limits import check_journal

    if (folder / RUN_FILE).is_file():
        raise UsageError(f"{folder} is a run, not a sweep; choose another --log-dir")
    make_writable(folder, "choose another with --log-dir")
    # No pruning before a few trials are complete, nor in the first quarter of a trial.
    pruner = optuna.pruners.MedianPruner(max(2, min(5, num_trials // 4)), n_warmup_steps=iterations // 4)
    path = folder / STUDY_FILE
    with name_file(path, "start a new sweep with another --log-dir", CommandError):
        if path.exists():
            check_journal(path)
        study = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(path))),
            study_name="sweep",
            direction="maximize",
            pruner=pruner,
            load_if_exists=True,
        )
        study.get_trials(deepcopy=False)
        created_by = study.user_attrs.get("command")
        if not isinstance(created_by, str | None):
            raise ValueError(f"its command is {created_by!r}")
    if created_by is None:
        study.set_user_attr("command", command)
    elif created_by != command:
        raise UsageError(
            f"{path} is of a sweep of another command: continue it with {created_by} --log-dir "
            f"{shlex.quote(str(folder))}, or choose another --log-dir"
        )
    return study
