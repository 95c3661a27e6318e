"""The writers of a run: the configured logger and always a CSV file. None of them can stop a training."""

import importlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from st_rl.loggers import LOGGERS
from st_rl.loggers.csv_writer import CsvWriter
from st_rl.utils.log import logger

if TYPE_CHECKING:
    from st_rl.loggers.summary_writer import SummaryWriter

_MAX_FAILURES = 3


class FailureGuard:
    """Calls a logging service: warns at the first failure of each kind of call, stops after three in a row."""

    def __init__(self, service: str) -> None:
        self.service = service
        self._failures: dict[str, int] = {}

    def call(self, kind: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return `function(*args, **kwargs)`, or None if it fails or calls of this kind are switched off."""
        failures = self._failures.get(kind, 0)
        if failures >= _MAX_FAILURES:
            return None
        try:
            result = function(*args, **kwargs)
        # A logging service may raise anything; none of it must stop a training.
        except Exception as error:
            if kind not in self._failures:
                logger.warning("%s: %s failed: %s: %s", self.service, kind, type(error).__name__, error)
            self._failures[kind] = failures + 1
            if failures + 1 == _MAX_FAILURES:
                logger.warning("%s: %s failed %d times in a row and is switched off", self.service, kind, _MAX_FAILURES)
            return None
        if failures:
            self._failures[kind] = 0
        return result


class MultiWriter:
    """Forwards every call to several writers; a writer that fails is reported and never stops a training.

    A call reaches only the writers that have the method: `save_model`, for example, only those of remote services.
    """

    def __init__(self, writers: Mapping[str, Any], log_dir: str | os.PathLike[str]) -> None:
        self.writers = dict(writers)
        self.log_dir = os.fspath(log_dir)
        self._guards = {name: FailureGuard(f"logger {name}") for name in self.writers}

    def add_scalar(
        self, tag: str, value: float | Tensor, global_step: int | None = None, *args: Any, **kwargs: Any
    ) -> None:
        """Log one value under `tag`; further arguments as for TensorBoard's writer."""
        if isinstance(value, Tensor) and value.numel() == 1:
            value = value.item()  # one host sync, not one per writer
        for name, writer in self.writers.items():
            self._guards[name].call("add_scalar", writer.add_scalar, tag, value, global_step, *args, **kwargs)

    def log_config(self, env_cfg: object, runner_cfg: object, alg_cfg: object, policy_cfg: object) -> None:
        """Upload the configurations."""
        self._forward("log_config", env_cfg, runner_cfg, alg_cfg, policy_cfg)

    def save_model(self, model_path: str | os.PathLike[str], iter: int) -> None:
        """Upload the checkpoint of an iteration."""
        self._forward("save_model", model_path, iter)

    def save_file(self, path: str | os.PathLike[str], iter: int | None = None) -> None:
        """Upload a file that describes the run."""
        self._forward("save_file", path, iter)

    def add_film(self, tag: str, video: Path, gif: Path, step: int) -> None:
        """Log a film: the gif in TensorBoard files, the mp4 `video` at remote services."""
        from st_rl.loggers.summary_writer import SummaryWriter

        for name, writer in self.writers.items():
            if isinstance(writer, SummaryWriter):
                self._guards[name].call("add_film", _add_gif, writer, tag, gif, step)
        self._forward("send_film", tag, video, step)

    def flush(self) -> None:
        """Write pending values to disk."""
        self._forward("flush")

    def stop(self) -> None:
        """End the runs of remote services."""
        self._forward("stop")

    def close(self) -> None:
        """End the runs of remote services and close the files."""
        self._forward("close")

    def __getattr__(self, name: str) -> Any:
        """Forward any other method, such as `add_histogram`, or return an attribute of the first writer that has it."""
        writers = self.__dict__.get("writers", {})
        found = [getattr(writer, name) for writer in writers.values() if hasattr(writer, name)]
        if not found:
            raise AttributeError(f"none of the writers {', '.join(writers)} has a method or attribute '{name}'")
        if not callable(found[0]):
            return found[0]
        return lambda *args, **kwargs: self._forward(name, *args, **kwargs)

    def _forward(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call the method on every writer that has it; returns the result of the first."""
        results = []
        for name, writer in self.writers.items():
            function = getattr(writer, method, None)
            if callable(function):
                results.append(self._guards[name].call(method, function, *args, **kwargs))
        return results[0] if results else None


def make_writer(
    name: str, log_dir: str | os.PathLike[str], cfg: Mapping[str, Any], flush_secs: int = 10
) -> MultiWriter:
    """Return the writers of a run in `log_dir`: logger `name` (case-insensitive) and `progress.csv`.

    An unknown logger, a missing package or a missing project raises here, before the training starts; later failures
    are only reported.
    """
    name = str(name).lower()
    if name not in LOGGERS:
        raise ValueError(f"unknown logger '{name}'; known loggers: {', '.join(LOGGERS)}")
    module, class_name = LOGGERS[name].split(":")
    writer_class = getattr(importlib.import_module(module), class_name)
    # `SummaryWriter` is torch's own class and takes no configuration.
    options: dict[str, Any] = {} if name == "tensorboard" else {"cfg": cfg}
    writer = writer_class(os.fspath(log_dir), flush_secs=flush_secs, **options)
    return MultiWriter({name: writer, "csv": CsvWriter(log_dir)}, log_dir)


def _add_gif(writer: "SummaryWriter", tag: str, gif: Path, step: int) -> None:
    """Write a gif as an image, which TensorBoard plays; `add_video` would need moviepy and all frames in memory."""
    from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]

    content = gif.read_bytes()
    # The size of the first frame, little endian, follows the signature.
    width, height = int.from_bytes(content[6:8], "little"), int.from_bytes(content[8:10], "little")
    image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=content)
    writer._get_file_writer().add_summary(Summary(value=[Summary.Value(tag=tag, image=image)]), step)
