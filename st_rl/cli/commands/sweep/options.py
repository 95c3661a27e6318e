"""Options of `st-rl sweep`: `--search NAME LOW HIGH`, or `--search NAME A,B,C`.

Not in the command's own module because the repeatable option needs tyro, which is slow to import.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tyro.conf import UseAppendAction

from st_rl.cli.commands.train import EnvConfig, TrainOptions
from st_rl.cli.support.command_line import UsageError, unknown_option
from st_rl.cli.support.task_source import flatten

if TYPE_CHECKING:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

# Ranges with at least this ratio of their ends are searched on a logarithmic scale.
_LOGARITHMIC_FROM = 10.0
_USAGE = "--search takes NAME LOW HIGH, or NAME A,B,C; for example --search algorithm.learning-rate 1e-4 1e-2"


@dataclass
class SweepOptions(TrainOptions[EnvConfig]):
    """Options of `st-rl sweep`."""

    search: UseAppendAction[tuple[tuple[str, ...], ...]] = ()
    """Setting to search, by its dotted name: NAME LOW HIGH, or NAME A,B,C for choices; may be repeated. Integers stay
    integers; other numbers are searched on a logarithmic scale if LOW is above 0 and HIGH at least 10 times LOW."""
    trials: int | None = None
    """Number of trials of the sweep, those before an interruption and of all workers included; None uses 20, or with
    --join that of the sweep."""
    minutes: float | None = None
    """Stop each trial after this many minutes if its iterations take longer."""
    log_dir: Path | None = None
    """Folder of the sweep; the folder of an existing sweep continues it. None uses runs/TASK/sweep-TIME."""
    storage: str | None = None
    """Where workers share the sweep: a folder for Optuna's journal file, which may be on a network drive, or the
    address of a database, postgresql://USER:PASSWORD@HOST:5432/DATABASE. None uses the environment variable
    ST_RL_STORAGE, else the folder of the sweep."""
    study: str = "sweep"
    """Name of the sweep in the storage; a database may hold many."""
    join: bool = False
    """Work on a sweep that another command has started, with its settings, until all of its trials have ended."""
    workers: int | None = None
    """Number of trials to run at the same time on this machine, or on the Ray cluster, each in its own process; None
    uses one, with --gpus one per GPU, with --ray one per GPU or core of the cluster."""
    gpus: str | None = None
    """Run one trial per GPU of this machine: their number, or all."""
    ray: str | None = None
    """Run the workers as tasks of a Ray cluster, by its address: auto, HOST:6379 or ray://HOST:10001."""
    worker_timeout_s: float = 120.0
    """A trial of which the worker has been silent for this long is tried again by another."""


class SearchParameter(NamedTuple):
    """A setting with the values to search."""

    name: str
    """Dotted name on the command line."""
    distribution: CategoricalDistribution | FloatDistribution | IntDistribution
    """Optuna's distribution; choices are strings."""
    default: Any

    def arguments(self, value: Any) -> list[str]:
        """Return the arguments of `st-rl train` that set the value."""
        if not isinstance(self.default, bool):
            return [f"--{self.name}", *format_value(value).split()]
        part, _, last = self.name.rpartition(".")
        return [f"--{self.name}" if value == "true" else f"--{part}.no-{last}"]

    @property
    def examples(self) -> tuple[Any, ...]:
        """All choices, or both ends of a range."""
        from optuna.distributions import CategoricalDistribution

        distribution = self.distribution
        if isinstance(distribution, CategoricalDistribution):
            return tuple(distribution.choices)
        return distribution.low, distribution.high

    @property
    def default_choice(self) -> Any:
        """The default in the form of Optuna's proposals; None if it is not among the values."""
        from optuna.distributions import CategoricalDistribution

        if isinstance(self.distribution, CategoricalDistribution):
            text = format_value(self.default)
            return text if text in self.distribution.choices else None
        is_within = self.default is not None and self.distribution.low <= self.default <= self.distribution.high
        return self.default if is_within else None


def format_value(value: Any) -> str:
    """Format a value for the command line, floats with four significant digits."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return " ".join(map(format_value, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def read_search(words: Sequence[str], options: TrainOptions[EnvConfig], command: str) -> SearchParameter:
    """Return the parameter of a `--search`; UsageError for an unknown setting or values that it cannot take."""
    from optuna.distributions import CategoricalDistribution

    if len(words) not in (2, 3):
        raise UsageError(f"{_USAGE}; got '{' '.join(words)}'")
    name = words[0].removeprefix("--").replace("_", "-")
    values = {key.replace("_", "-"): value for key, value in flatten(dataclasses.asdict(options)).items()}
    if name not in values:
        raise UsageError(f"--search: {unknown_option(f'--{name}', options, command)}")
    if name == "runner.max-iterations" or not ("." in name or name == "num-envs"):
        raise UsageError(f"--search {name}: this must be the same in all trials to compare them")
    # Without --num-envs the task defines the number of environments.
    default = values.get("env.num-envs") if name == "num-envs" and values[name] is None else values[name]
    if len(words) == 3:
        return SearchParameter(name, _range(name, words[1], words[2], default), default)
    choices = [" ".join(choice.split()) for choice in words[1].split(",")]
    if len(set(choices)) < max(len(choices), 2) or not all(choices):
        raise UsageError(f"--search {name}: give two or more different choices, separated by commas; got '{words[1]}'")
    if isinstance(default, bool) and not set(choices) <= {"true", "false"}:
        raise UsageError(f"--search {name} is a boolean: give true,false; got '{words[1]}'")
    return SearchParameter(name, CategoricalDistribution(choices), default)


def _range(name: str, low_text: str, high_text: str, default: Any) -> FloatDistribution | IntDistribution:
    """Return Optuna's distribution of the numbers in a range."""
    from optuna.distributions import FloatDistribution, IntDistribution

    given = f"--search {name} {low_text} {high_text}"
    if default is not None and (isinstance(default, bool) or not isinstance(default, int | float)):
        raise UsageError(
            f"{given}: {name} is not a number but '{format_value(default)}'; give choices, as in {name} A,B,C"
        )
    try:
        low, high = float(low_text), float(high_text)
    except ValueError:
        raise UsageError(f"{given}: LOW and HIGH must be numbers") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise UsageError(f"{given}: LOW must be less than HIGH, and both finite")
    is_integer = low_text.lstrip("+-").isdecimal() and high_text.lstrip("+-").isdecimal()
    if isinstance(default, int) and not is_integer:
        raise UsageError(f"{given}: {name} takes integers, such as {default}")
    if is_integer and not isinstance(default, float):
        return IntDistribution(int(low_text), int(high_text))
    return FloatDistribution(low, high, log=low > 0.0 and high / low >= _LOGARITHMIC_FROM)
