"""The results of a sweep: a line per trial, a table of the best, `sweep.json`, and the next commands."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from st_rl.cli.commands.sweep.options import SearchParameter, format_value
from st_rl.cli.commands.sweep.shared_trials import ERROR, HEARTBEAT, INTERRUPTED, PURPOSE, WORKER, SharedTrials
from st_rl.cli.commands.sweep.storage import StudyAddress
from st_rl.cli.support.command_line import CommandError, count_of, drop_options, program, quote
from st_rl.cli.support.run_folders.run_folder import SWEEP_FILE
from st_rl.cli.support.task_source import TaskSource, task_option
from st_rl.cli.support.training.training_config import TrainingConfig

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

_SHOWN_TRIALS = 10
_STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running", "WAITING": "waiting"}


@dataclass
class Sweep:
    """Trainings of one task that differ in a few settings."""

    trials: SharedTrials
    address: StudyAddress
    folder: Path
    """Where this worker writes the runs of its trials."""
    source: TaskSource[Any]
    parameters: Sequence[SearchParameter]
    fixed: Sequence[str]
    """Arguments of `st-rl train` that are the same for all trials."""
    iterations: int
    """Iterations of each trial."""
    seed: int
    """Seed of the proposals; that of the trainings is among the arguments."""
    device: str = "cpu"

    @property
    def study(self) -> optuna.Study:
        """Optuna's study."""
        return self.trials.study

    @property
    def num_trials(self) -> int:
        """Number of trials of the sweep, those of all workers together."""
        return self.trials.num_trials

    def choose_sampler(self) -> None:
        """Let the next trial have a seed of its own: a continued sweep does not repeat its first proposals."""
        import optuna
        from optuna.trial import TrialState

        started = sum(trial.state != TrialState.WAITING for trial in self.study.get_trials(deepcopy=False))
        self.study.sampler = optuna.samplers.TPESampler(seed=self.seed + started)

    def finished(self) -> list[FrozenTrial]:
        """Return the trials that are not running, waiting or interrupted."""
        return self.trials.finished()

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

    def describe(self) -> str:
        """Describe the size of the sweep and how much of it is done."""
        done = len(self.finished())
        size = f"{count_of(self.num_trials, 'trial')} of {count_of(self.iterations, 'iteration')}"
        return f"{size}{f', {done} of them done' if done else ''}"

    def command_to_continue(self) -> str:
        """Return the command that continues the sweep."""
        command = f"{self.study.user_attrs['command']} --trials {self.num_trials} --log-dir {quote(self.folder)}"
        return f"{command} {self.address.option()}" if self.address.storage != str(self.folder) else command

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
    trial = sweep.study.get_trials(deepcopy=False)[number]
    short = [name.rpartition(".")[2] for name in trial.params]
    names = short if len(set(short)) == len(short) else list(trial.params)
    settings = ", ".join(f"{name} {format_value(value)}" for name, value in zip(names, trial.params.values()))
    if INTERRUPTED in trial.user_attrs:
        return f"trial {number}: {settings}: interrupted, tried again"
    if trial.state.name == "FAIL":
        return f"trial {number}: {settings}: failed: {trial.user_attrs.get(ERROR, 'no reason known')}"
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
            "state": INTERRUPTED if INTERRUPTED in trial.user_attrs else _STATES[trial.state.name],
            "score": trial.value,
            # Floats with the digits of the command line.
            "settings": {k: float(format_value(v)) if isinstance(v, float) else v for k, v in trial.params.items()},
            "scores": trial.intermediate_values,
            "seconds": trial.duration and trial.duration.total_seconds(),
            **{name: value for name, value in trial.user_attrs.items() if name not in (HEARTBEAT, PURPOSE)},
        }
        for trial in sweep.trials.all()
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
    best = sweep.folder / f"trial_{shown[0].number}"
    if best.is_dir():
        print(f"  {program()} eval {quote(best)}{task_option(sweep.source.name)}   # evaluate the best trial")
    else:
        attributes = shown[0].user_attrs
        print(f"  (the run of the best trial is {attributes.get('path')} of worker {attributes.get(WORKER)})")
    print(f"  {sweep.command_to_train_longer(shown[0])}   # train longer with its settings")
