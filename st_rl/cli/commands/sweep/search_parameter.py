"""A setting that a sweep varies: `--search NAME LOW HIGH`, or `--search NAME A,B,C`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from st_rl.cli.support.command_line import UsageError, unknown_option
from st_rl.cli.support.task_source import leaves

# From this ratio of the two ends on, a scale on which all magnitudes weigh the same.
_LOGARITHMIC_FROM = 10.0
_FORMS = "--search takes NAME LOW HIGH, or NAME A,B,C; for example --search algorithm.learning-rate 1e-4 1e-2"


class SearchParameter(NamedTuple):
    """A setting with the values that it may take."""

    name: str
    """Its dotted name on the command line."""
    distribution: Any
    """Optuna's description of the values; a choice is a text."""
    default: Any
    """Its value where nobody says otherwise."""

    def arguments(self, value: Any) -> list[str]:
        """What sets it to a value on the command line of `st-rl train`."""
        if not isinstance(self.default, bool):
            return [f"--{self.name}", *as_text(value).split()]
        part, _, last = self.name.rpartition(".")
        return [f"--{self.name}" if value == "true" else f"--{part}.no-{last}"]

    @property
    def examples(self) -> tuple[Any, ...]:
        """All choices, or both ends of a range."""
        distribution = self.distribution
        return getattr(distribution, "choices", None) or (distribution.low, distribution.high)

    @property
    def default_choice(self) -> Any:
        """Its default as Optuna would propose it; None if that is not among the values."""
        choices = getattr(self.distribution, "choices", None)
        if choices is not None:
            return as_text(self.default) if as_text(self.default) in choices else None
        is_within = self.default is not None and self.distribution.low <= self.default <= self.distribution.high
        return self.default if is_within else None


def as_text(value: Any) -> str:
    """A value as one types it, numbers with four digits, which is finer than any search."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return " ".join(map(as_text, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def read_search(words: Sequence[str], options: Any, command: str) -> SearchParameter:
    """The setting that `--search` names; UsageError for one that is not there and for values that it cannot take."""
    from optuna.distributions import CategoricalDistribution

    if len(words) not in (2, 3):
        raise UsageError(f"{_FORMS}; got '{' '.join(words)}'")
    name = words[0].removeprefix("--").replace("_", "-")
    values = {key.replace("_", "-"): value for key, value in leaves(dataclasses.asdict(options)).items()}
    if name not in values:
        raise UsageError(f"--search: {unknown_option(f'--{name}', options, command)}")
    if name == "runner.max-iterations" or not ("." in name or name == "num-envs"):
        raise UsageError(f"--search {name}: this must be the same in all trials, or they could not be compared")
    # The number of robots is the task's unless the command says another.
    default = values.get("env.num-envs") if name == "num-envs" and values[name] is None else values[name]
    if len(words) == 3:
        return SearchParameter(name, _range(name, words[1], words[2], default), default)
    choices = [" ".join(choice.split()) for choice in words[1].split(",")]
    if len(set(choices)) < max(len(choices), 2) or not all(choices):
        raise UsageError(f"--search {name}: give two or more different choices, separated by commas; got '{words[1]}'")
    if isinstance(default, bool) and not set(choices) <= {"true", "false"}:
        raise UsageError(f"--search {name} is a matter of yes or no: true,false; got '{words[1]}'")
    return SearchParameter(name, CategoricalDistribution(choices), default)


def _range(name: str, low_text: str, high_text: str, default: Any) -> Any:
    """Optuna's description of the numbers between two."""
    from optuna.distributions import FloatDistribution, IntDistribution

    given = f"--search {name} {low_text} {high_text}"
    if default is not None and (isinstance(default, bool) or not isinstance(default, int | float)):
        raise UsageError(f"{given}: {name} is no number but '{as_text(default)}'; name choices, as in {name} A,B,C")
    try:
        low, high = float(low_text), float(high_text)
    except ValueError:
        raise UsageError(f"{given}: LOW and HIGH must be numbers") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise UsageError(f"{given}: LOW must be less than HIGH, and both finite")
    is_whole = low_text.lstrip("+-").isdecimal() and high_text.lstrip("+-").isdecimal()
    if isinstance(default, int) and not is_whole:
        raise UsageError(f"{given}: {name} takes whole numbers, such as {default}")
    if is_whole and not isinstance(default, float):
        return IntDistribution(int(low_text), int(high_text))
    return FloatDistribution(low, high, log=low > 0.0 and high / low >= _LOGARITHMIC_FROM)
