"""Search for settings that train better: st-rl sweep TASK --search NAME LOW HIGH."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from st_rl.cli.commands.train import read_training, split_task
from st_rl.cli.support.command_line import UsageError, parse_options, without
from st_rl.cli.support.run_folder import RUN_FILE, RUNS, make_writable, new_run_folder
from st_rl.cli.support.training_config import TrainingConfig

STUDY_FILE = "study.log"

_HELP = """usage: st-rl sweep TASK --search NAME LOW HIGH [OPTIONS]

Search for settings that train better: many short trainings, each with other
settings, proposed by Optuna from what the earlier ones were worth. A training
that falls behind ends early. All are judged without exploration noise.
  st-rl sweep quadruped-walk --trials 20 --iterations 200 \\
    --search algorithm.learning-rate 1e-4 1e-2 \\
    --search policy.init-noise-std 0.5 1.5 --search policy.activation elu,tanh

st-rl sweep TASK --help lists all options. The most useful:
  --search NAME LOW HIGH   a setting to search, by its name in
                           st-rl train TASK --help; may be repeated. Whole
                           numbers stay whole; others are searched on a
                           logarithmic scale when LOW is above 0 and HIGH at
                           least 10 times LOW
  --search NAME A,B,C      or the values themselves
  --trials 20              trainings in the whole sweep
  --log-dir FOLDER         where the sweep is kept; the same command with the
                           folder of a sweep goes on with it
  and all options of st-rl train, the same for every trial"""


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    name, rest = split_task(arguments)
    if name is None:
        if not rest or set(rest) & {"-h", "--help"}:
            print(_HELP)
            return 0 if rest else 2
        raise UsageError("which task? st-rl sweep TASK --search NAME LOW HIGH ...; st-rl tasks lists them")
    from st_rl.cli.commands.sweep.options import SweepOptions
    from st_rl.cli.support.task_source import find_source

    source = find_source(name)
    defaults = TrainingConfig.from_dict(source.training)
    options: SweepOptions[Any] = parse_options(
        SweepOptions[type(source.default_config)],
        rest,
        f"sweep {name}",
        f"Search for settings that train {name} better.",
        SweepOptions(source.default_config, defaults.runner, defaults.policy, defaults.algorithm),
    )
    return sweep(source, options, rest)


def sweep(source: Any, options: Any, arguments: Sequence[str]) -> int:
    """Refuse what cannot work, open the study, run its trials."""
    _require_optuna()
    from st_rl.cli.commands.sweep.results import Sweep
    from st_rl.cli.commands.sweep.search_parameter import read_search
    from st_rl.cli.commands.sweep.trials import run_trials
    from st_rl.cli.support.torch_setup import check_device

    if not source.has_evaluator:
        raise UsageError(f"st-rl sweep compares policies without noise, and {source.name} has no judge for that")
    if not options.search:
        raise UsageError("which settings? --search NAME LOW HIGH, such as --search algorithm.learning-rate 1e-4 1e-2")
    if options.trials < 1:
        raise UsageError(f"--trials must be at least 1, got {options.trials}")
    searched = [read_search(words, options, f"sweep {source.name}") for words in options.search]
    names = [setting.name for setting in searched]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"--search {twice} is given twice; give it one range")
    fixed = without(arguments, {"--search", "--trials", "--log-dir", *(f"--{name}" for name in names)})
    for setting in searched:
        for value in setting.examples:
            # Ends with the parser's word on a value that the setting does not take.
            read_training(source, [*fixed, *setting.arguments(value)])
    check_device(options.device)
    iterations = read_training(source, fixed)[1].runner.max_iterations
    if iterations < 1:
        raise UsageError(f"--iterations must be at least 1, got {iterations}")
    folder = options.log_dir or new_run_folder(source.name, time.strftime("sweep-%Y-%m-%d_%H-%M-%S"), RUNS)
    command = shlex.join(["st-rl", "sweep", source.name, *without(arguments, {"--trials", "--log-dir"})])
    study = _open_study(folder, command, options.trials, iterations)
    return run_trials(Sweep(study, folder, source, searched, fixed, options.trials, iterations, options.seed))


def _require_optuna() -> None:
    try:
        import optuna
    except ImportError as error:
        raise ImportError('st-rl sweep needs Optuna: pip install "st_rl[sweep]"') from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def _open_study(folder: Path, command: str, num_trials: int, iterations: int) -> Any:
    """The study in a folder, a new one if there is none; UsageError for one that the same command did not begin."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    if (folder / RUN_FILE).is_file():
        raise UsageError(f"{folder} holds a run, not a sweep; choose another --log-dir")
    make_writable(folder, "choose another with --log-dir")
    study = optuna.create_study(
        storage=JournalStorage(JournalFileBackend(str(folder / STUDY_FILE))),
        study_name="sweep",
        direction="maximize",
        # A few trials come to their end before others are compared with them, and the first quarter says little.
        pruner=optuna.pruners.MedianPruner(max(2, min(5, num_trials // 4)), n_warmup_steps=iterations // 4),
        load_if_exists=True,
    )
    begun = study.user_attrs.get("command")
    if begun is None:
        study.set_user_attr("command", command)
    elif begun != command:
        raise UsageError(
            f"{folder} is a sweep that began otherwise: go on with {begun} --log-dir {folder}, or choose another "
            "--log-dir"
        )
    return study
