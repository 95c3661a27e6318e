"""A sweep and what it found: a line for each trial, a table of the best, `sweep.json`, and what to type next."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from st_rl.cli.commands.sweep.search_parameter import SearchParameter, as_text
from st_rl.cli.support.command_line import CommandError, without
from st_rl.cli.support.run_folder import SWEEP_FILE
from st_rl.cli.support.training_config import TrainingConfig

_SHOWN_TRIALS = 10
_STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running", "WAITING": "waiting"}


@dataclass
class Sweep:
    """Trainings of one task that differ in a few settings."""

    study: Any
    """Optuna's."""
    folder: Path
    source: Any
    searched: Sequence[SearchParameter]
    fixed: Sequence[str]
    """Arguments of `st-rl train` that all trials have in common."""
    num_trials: int
    iterations: int
    """Of each trial."""
    seed: int

    def finished(self) -> list[Any]:
        """All trials but those that run, wait or were interrupted."""
        trials = self.study.get_trials(deepcopy=False)
        return [trial for trial in trials if trial.state.is_finished() and "interrupted" not in trial.user_attrs]

    def trained(self) -> list[Any]:
        """The trials that are worth something; settings that came up again count once."""
        return [
            trial
            for trial in self.finished()
            if trial.state.name in ("COMPLETE", "PRUNED") and "same_as" not in trial.user_attrs
        ]

    def best_first(self) -> list[Any]:
        """The trials that came to their end."""
        complete = [trial for trial in self.trained() if trial.state.name == "COMPLETE"]
        return sorted(complete, key=lambda trial: -trial.value)

    def train_arguments(self, trial: Any) -> list[str]:
        """The arguments of `st-rl train` that only this trial has."""
        return [word for setting in self.searched for word in setting.arguments(trial.params[setting.name])]

    def command_to_train_longer(self, trial: Any) -> str:
        """What trains with the settings of a trial as long as the task's own training, and twice as long as it did."""
        iterations = max(2 * self.iterations, TrainingConfig.from_dict(self.source.training).runner.max_iterations)
        kept = without(self.fixed, {"--iterations", "--runner.max-iterations", "--minutes"})
        words = ["st-rl", "train", self.source.name, *kept, *self.train_arguments(trial)]
        return shlex.join([*words, "--iterations", str(iterations)])


def trial_line(sweep: Sweep, number: int) -> str:
    """A line about a trial that has just ended."""
    trial = sweep.study.get_trials(deepcopy=False)[number]
    short = [name.rpartition(".")[2] for name in trial.params]
    names = short if len(set(short)) == len(short) else list(trial.params)
    settings = ", ".join(f"{name} {as_text(value)}" for name, value in zip(names, trial.params.values()))
    if trial.state.name == "FAIL":
        return f"trial {number}: {settings}: failed: {trial.user_attrs['error']}"
    if "same_as" in trial.user_attrs:
        return f"trial {number}: {settings}: as trial {trial.user_attrs['same_as']}"
    is_best = len(sweep.best_first()) > 1 and sweep.best_first()[0].number == number
    pruned = f"pruned after {trial.user_attrs['iterations']} iterations, " if trial.state.name == "PRUNED" else ""
    return f"trial {number}: {settings}: {pruned}score {trial.value:.4g}{', the best so far' if is_best else ''}"


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
            "settings": {name: _as_trained(value) for name, value in trial.params.items()},
            "scores": trial.intermediate_values,
            "seconds": trial.duration and trial.duration.total_seconds(),
            **trial.user_attrs,
        }
        for trial in sweep.study.get_trials(deepcopy=False)
    ]
    content = {
        "task": sweep.source.name,
        "command_line": sweep.study.user_attrs["command"],
        "best_trial": best[0].number if best else None,
        "train_longer": sweep.command_to_train_longer(best[0]) if best else None,
        "trials": trials,
    }
    write_json(sweep.folder / SWEEP_FILE, content)


def _as_trained(value: Any) -> Any:
    """A value as the command line of the trial gave it."""
    return float(as_text(value)) if isinstance(value, float) else value


def show_results(sweep: Sweep) -> None:
    """The best trials in a table, and what to type next; CommandError when there is none."""
    from rich.console import Console
    from rich.table import Table

    shown = sweep.best_first()[:_SHOWN_TRIALS]
    counts = Counter(_STATES[trial.state.name] for trial in sweep.finished())
    found = f"{sum(counts.values())} trials ({', '.join(f'{count} {state}' for state, count in counts.items())})"
    if not shown:
        raise CommandError(f"{found}, and none to choose from; {sweep.folder / SWEEP_FILE} says why each ended")
    table = Table()
    for column in ("trial", "score", *(setting.name for setting in sweep.searched)):
        table.add_column(column.replace(".", ".\n"), justify="right", vertical="bottom")
    for trial in shown:
        values = (as_text(trial.params[setting.name]) for setting in sweep.searched)
        table.add_row(str(trial.number), f"{trial.value:.4g}", *values)
    print("The best trials, by their scores without exploration noise; higher is better:", flush=True)
    Console().print(table)
    print(f"{found}; all of them are in {sweep.folder / SWEEP_FILE}\nNext:")
    print(f"  st-rl eval {sweep.folder / f'trial_{shown[0].number}'}   # judge the best one")
    print(f"  {sweep.command_to_train_longer(shown[0])}   # train longer with its settings")
