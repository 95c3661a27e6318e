"""The options of `st-rl sweep`; in a file of their own, because one that may be repeated needs the parser's package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import UseAppendAction

from st_rl.cli.commands.train import EnvConfig, TrainOptions


@dataclass
class SweepOptions(TrainOptions[EnvConfig]):
    """Options of `st-rl sweep`."""

    search: UseAppendAction[tuple[tuple[str, ...], ...]] = ()
    """A setting to search, by its dotted name: NAME LOW HIGH, or NAME A,B,C for words; may be repeated. Whole numbers
    stay whole; others are searched on a logarithmic scale when LOW is above 0 and HIGH at least 10 times LOW."""
    trials: int = 20
    """Trainings in the whole sweep, those before an interruption included."""
    minutes: float | None = None
    """Stop each trial after so many minutes, whatever the number of iterations."""
    log_dir: Path | None = None
    """Folder of the sweep, an existing one to go on with it; runs/TASK/sweep-TIME when None."""
