"""Makes the writers of a run: the logger that the configuration names, and a CSV file always."""

import os
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from st_rl.loggers.csv_writer import CsvWriter
from st_rl.loggers.guarded import Guarded

__all__ = ["LOGGERS", "CsvWriter", "SafeWriter", "make_writer"]

LOGGERS = ("tensorboard", "wandb", "neptune")


class SafeWriter:
    """Passes every call on to several writers; a writer that fails is reported and never stops a training.

    A call reaches the writers that have a method of its name, so `save_model` and the like go to remote services only.
    """

    def __init__(self, writers: Mapping[str, Any], log_dir: str | os.PathLike[str]) -> None:
        self.writers = dict(writers)
        self.log_dir = os.fspath(log_dir)
        self._guards = {name: Guarded(f"logger {name}") for name in self.writers}

    def add_scalar(
        self,
        tag: str,
        value: Any,
        global_step: int | None = None,
        walltime: float | None = None,
        new_style: bool = False,
    ) -> None:
        """Log one value under `tag`."""
        if isinstance(value, Tensor) and value.numel() == 1:
            value = value.item()  # read the device once, not once per writer
        self._forward("add_scalar", tag, value, global_step, walltime, new_style)

    def log_config(self, env_cfg: Any, runner_cfg: Any, alg_cfg: Any, policy_cfg: Any) -> None:
        """Send the configurations to the services that keep them."""
        self._forward("log_config", env_cfg, runner_cfg, alg_cfg, policy_cfg)

    def save_model(self, model_path: str | os.PathLike[str], iter: int) -> None:
        """Send the checkpoint of an iteration to the services that keep files."""
        self._forward("save_model", model_path, iter)

    def save_file(self, path: str | os.PathLike[str], iter: int | None = None) -> None:
        """Send a file that describes the run to the services that keep files."""
        self._forward("save_file", path, iter)

    def flush(self) -> None:
        """Write what is pending."""
        self._forward("flush")

    def stop(self) -> None:
        """End the runs of remote services."""
        self._forward("stop")

    def close(self) -> None:
        """End the runs of remote services and close the files."""
        self._forward("close")

    def __getattr__(self, name: str) -> Any:
        """Any other method that one of the writers has, such as `add_histogram`, or the first one's attribute."""
        writers = self.__dict__.get("writers", {})
        found = [getattr(writer, name) for writer in writers.values() if hasattr(writer, name)]
        if not found:
            raise AttributeError(f"none of the writers {', '.join(writers)} has a method or attribute '{name}'")
        if not callable(found[0]):
            return found[0]
        return lambda *args, **kwargs: self._forward(name, *args, **kwargs)

    def _forward(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call the method on every writer that has it; returns what the first of them does."""
        functions = {name: getattr(writer, method, None) for name, writer in self.writers.items()}
        results = [
            self._guards[name].call(method, function, *args, **kwargs)
            for name, function in functions.items()
            if callable(function)
        ]
        return results[0] if results else None


def make_writer(name: str, log_dir: str | os.PathLike[str], cfg: Mapping[str, Any], flush_secs: int = 10) -> SafeWriter:
    """The writers of a run in `log_dir`: the logger `name`, whatever its case, and `progress.csv`.

    An unknown logger, a missing package or project is an error here, before the training starts; what fails later is
    only reported.
    """
    makers: dict[str, Callable[[], Any]] = {
        "tensorboard": lambda: _tensorboard(log_dir, flush_secs),
        "wandb": lambda: _wandb(log_dir, flush_secs, cfg),
        "neptune": lambda: _neptune(log_dir, flush_secs, cfg),
    }
    key = str(name).lower()
    if key not in makers:
        raise ValueError(f"unknown logger '{name}'; known loggers: {', '.join(makers)}")
    return SafeWriter({key: makers[key](), "csv": CsvWriter(log_dir)}, log_dir)


def _tensorboard(log_dir: str | os.PathLike[str], flush_secs: int) -> Any:
    from st_rl.loggers.summary_writer import SummaryWriter

    return SummaryWriter(os.fspath(log_dir), flush_secs=flush_secs)


def _wandb(log_dir: str | os.PathLike[str], flush_secs: int, cfg: Mapping[str, Any]) -> Any:
    from st_rl.loggers.wandb_writer import WandbSummaryWriter

    return WandbSummaryWriter(log_dir, flush_secs, cfg)


def _neptune(log_dir: str | os.PathLike[str], flush_secs: int, cfg: Mapping[str, Any]) -> Any:
    from st_rl.loggers.neptune_writer import NeptuneSummaryWriter

    return NeptuneSummaryWriter(log_dir, flush_secs, cfg)
