"""The base class of writers that upload to a remote service."""

import dataclasses
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from st_rl.loggers.summary_writer import SummaryWriter
from st_rl.loggers.writers import FailureGuard
from st_rl.utils.config import DictConvertible
from st_rl.utils.files import to_json_values
from st_rl.utils.log import logger

# Services that build a tree from the slashes cannot store a value under the name of a branch.
NAME_MAP = {
    "Train/mean_reward/time": "Train/mean_reward_time",
    "Train/mean_episode_length/time": "Train/mean_episode_length_time",
}


class RemoteSummaryWriter(SummaryWriter, ABC):
    """Writes TensorBoard files and uploads the same to a remote service; if the service fails, the files remain."""

    def __init__(
        self, log_dir: str | os.PathLike[str], flush_secs: int, service: str, start: Callable[[], Any]
    ) -> None:
        super().__init__(os.fspath(log_dir), flush_secs=flush_secs)
        self._guard = FailureGuard(service)
        self.run: Any = self._guard.call("starting", start)
        if self.run is None:
            logger.warning("%s is not available: logging to %s only", service, log_dir)

    @abstractmethod
    def _send_scalar(self, name: str, value: float, step: int | None) -> None:
        """Upload one value."""

    @abstractmethod
    def _send_config(self, name: str, config: object) -> None:
        """Upload one configuration, made of JSON values."""

    @abstractmethod
    def _send_model(self, path: str, iteration: int) -> None:
        """Upload a checkpoint."""

    @abstractmethod
    def _send_file(self, path: str) -> None:
        """Upload a file that describes the run."""

    @abstractmethod
    def _send_film(self, name: str, path: str, iteration: int) -> None:
        """Upload the mp4 of the policy of an iteration, which may be an earlier one than that of the last values."""

    @abstractmethod
    def _finish(self) -> None:
        """End the run."""

    def add_scalar(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, tag: str, value: float | Tensor, global_step: int | None = None, *args: Any, **kwargs: Any
    ) -> None:
        """Log one value under `tag`, locally and remotely; further arguments as for TensorBoard's writer."""
        super().add_scalar(tag, value, global_step, *args, **kwargs)
        if self.run is not None:
            self._guard.call("add_scalar", self._send_scalar, NAME_MAP.get(tag, tag), float(value), global_step)

    def log_config(self, env_cfg: object, runner_cfg: object, alg_cfg: object, policy_cfg: object) -> None:
        """Upload the configurations: mappings, objects with `to_dict()`, dataclasses, else their text."""
        if self.run is None:
            return
        configs = {"runner_cfg": runner_cfg, "policy_cfg": policy_cfg, "alg_cfg": alg_cfg, "env_cfg": env_cfg}
        for name, config in configs.items():
            self._guard.call("log_config", lambda n=name, c=config: self._send_config(n, to_json_values(as_dict(c))))

    def save_model(self, model_path: str | os.PathLike[str], iter: int) -> None:
        """Upload the checkpoint of an iteration."""
        if self.run is not None:
            self._guard.call("save_model", self._send_model, os.fspath(model_path), iter)

    def save_file(self, path: str | os.PathLike[str], iter: int | None = None) -> None:
        """Upload a file that describes the run, such as the diff to the last commit."""
        if self.run is not None:
            self._guard.call("save_file", self._send_file, os.fspath(path))

    def send_film(self, tag: str, path: str | os.PathLike[str], iteration: int) -> None:
        """Upload the mp4 of the policy of an iteration."""
        if self.run is not None:
            self._guard.call("send_film", self._send_film, tag, os.fspath(path), iteration)

    def stop(self) -> None:
        """End the run; later values are logged locally only."""
        if self.run is not None:
            self._guard.call("stop", self._finish)
            self.run = None

    def close(self) -> None:
        """End the run and close the files."""
        self.stop()
        super().close()


def as_dict(config: object) -> object:
    """Return a configuration as a dictionary: itself, its `to_dict()` or its dataclass fields; else its text."""
    if isinstance(config, Mapping):
        return config
    if isinstance(config, DictConvertible):
        return config.to_dict()
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return dataclasses.asdict(config)
    return str(config)


def required_project(cfg: Mapping[str, Any], key: str) -> str:
    """Return the project that the configuration names under `key`; KeyError without one."""
    project = cfg.get(key)
    if not project:
        raise KeyError(f"the runner configuration has no '{key}'; set it to the project of the run")
    return str(project)
