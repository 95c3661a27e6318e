"""The results of a sweep: a line per trial, a table of the best, `sweep.json`, and the next commands."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from st_rl.cli.commands.sweep.options import SearchParameter, format_value
from st_rl.cli.support.command_line import CommandError, count_of, drop_options, program, quote_path
from st_rl.cli.support.run_folder import SWEEP_FILE
from st_rl.cli.support.task_source import TaskSource, task_option
from st_rl.cli.support.training_config import TrainingConfig

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

_SHOWN_TRIALS = 10
_STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running", "WAITING": "waiting"}


@dataclass
class Sweep:
    """Trainings of one task that differ in a few settings."""

    study: optuna.Study
    folder: Path
    source: TaskSource[Any]
    parameters: Sequence[SearchParameter]
    fixed: Sequence[str]
    """Arguments of `st-rl train` that are the same for all trials."""
    num_trials: int
    iterations: int
    """Iterations of each trial."""
    seed: int

    def all_trials(self) -> list[FrozenTrial]:
        """Return all trials, in the order of their numbers."""
        return self.study.get_trials(deepcopy=False)

    def finished(self) -> list[FrozenTrial]:
        """Return the trials that are not running, waiting or interrupted."""
        return [t for t in self.all_trials() if t.state.is_finished() and "interrupted" not in t.user_attrs]

    def trained(self) -> list[FrozenTrial]:
        """Return the complete and pruned trials, without repeated settings."""
        return [t for t in self.finished() if t.state.name in ("COMPLETE", "PRUNED") and "same_as" not in t.user_attrs]

    def best_first(self) -> list[FrozenTrial]:
        """Return the complete trials, best score first."""
        complete = [trial for trial in self.trained() if trial.state.name == "COMPLETE"]
        return sorted(complete, key=score_of, reverse=True)

    def train_arguments(self, trial: FrozenTrial | optuna.Trial) -> list[str]:
        """Return the arguments of `st-rl train` that are specific to a trial."""
        return [word for parameter in self.parameters for word in parameter.arguments(trial.params[parameter.name])]

    def command_to_train_longer(self, trial: FrozenTrial) -> str:
        """Return the command for a full training with the settings of a trial, at least twice as long as the trial."""
        iterations = max(2 * self.iterations, TrainingConfig.from_dict(self.source.training).runner.max_iterations or 0)
        kept = drop_options(self.fixed, {"--iterations", "--runner.max-iterations", "--minutes"})
        words = ["train", self.source.name, *kept, *self.train_arguments(trial), "--iterations", str(iterations)]
        return f"{program()} {shlex.join(words)}"


def score_of(trial: FrozenTrial) -> float:
    """Return the score of a complete trial."""
    return -float("inf") if trial.value is None else trial.value


def format_trial(sweep: Sweep, number: int) -> str:
    """Return the line about a trial that has just ended."""
    trial = sweep.all_trials()[number]
    short = [name.rpartition(".")[2] for name in trial.params]
    names = short if len(set(short)) == len(short) else list(trial.params)
    settings = ", ".join(f"{name} {format_value(value)}" for name, value in zip(names, trial.params.values()))
    if trial.state.name == "FAIL":
        return f"trial {number}: {settings}: failed: {trial.user_attrs['error']}"
    if "same_as" in trial.user_attrs:
        return f"trial {number}: {settings}: same settings as trial {trial.user_attrs['same_as']}"
    is_best = len(sweep.best_first()) > 1 and sweep.best_first()[0].number == number
    is_pruned = trial.state.name == "PRUNED"
    pruned = f"pruned after {count_of(trial.user_attrs['iterations'], 'iteration')}, " if is_pruned else ""
    return f"trial {number}: {settings}: {pruned}score {score_of(trial):.4g}{', best so far' if is_best else ''}"


def write_results(sweep: Sweep) -> None:
    """Write `sweep.json` with all trials."""
    from st_rl.utils.files import write_json

    best = sweep.best_first()[:1]
    trials = [
        {
            "number": trial.number,
            "folder": f"trial_{trial.user_attrs.get('same_as', trial.number)}",
            "state": "interrupted" if "interrupted" in trial.user_attrs else _STATES[trial.state.name],
            "score": trial.value,
            # Floats with the digits of the command line.
            "settings": {k: float(format_value(v)) if isinstance(v, float) else v for k, v in trial.params.items()},
            "scores": trial.intermediate_values,
            "seconds": trial.duration and trial.duration.total_seconds(),
            **trial.user_attrs,
        }
        for trial in sweep.all_trials()
    ]
    content = {
        "task": sweep.source.name,
        "command_line": sweep.study.user_attrs["command"],
        "best_trial": best[0].number if best else None,
        "train_longer": sweep.command_to_train_longer(best[0]) if best else None,
        "trials": trials,
    }
    write_json(sweep.folder / SWEEP_FILE, content)


def print_results(sweep: Sweep) -> None:
    """Print a table of the best trials and the next commands; CommandError if no trial is complete."""
    from rich.console import Console
    from rich.table import Table

    shown = sweep.best_first()[:_SHOWN_TRIALS]
    counts = Counter(_STATES[trial.state.name] for trial in sweep.finished())
    states = ", ".join(f"{count} {state}" for state, count in counts.items())
    found = f"{count_of(sum(counts.values()), 'trial')} ({states})"
    if not shown:
        raise CommandError(f"{found}, none of them complete; see {sweep.folder / SWEEP_FILE}")
    table = Table()
    for column in ("trial", "score", *(parameter.name for parameter in sweep.parameters)):
        table.add_column(column.replace(".", ".\n"), justify="right", vertical="bottom")
    for trial in shown:
        values = (format_value(trial.params[parameter.name]) for parameter in sweep.parameters)
        table.add_row(str(trial.number), f"{score_of(trial):.4g}", *values)
    print("Best trials by score without exploration noise (higher is better):", flush=True)
    Console().print(table)
    print(f"{found}; all of them are in {sweep.folder / SWEEP_FILE}\nNext:")
    best = quote_path(sweep.folder / f"trial_{shown[0].number}")
    print(f"  {program()} eval {best}{task_option(sweep.source.name)}   # evaluate the best trial")
    print(f"  {sweep.command_to_train_longer(shown[0])}   # train longer with its settings")
