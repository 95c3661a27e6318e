"""Logging to Neptune: online with a token, offline without."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from st_rl.loggers.remote_writer import RemoteSummaryWriter, required_project
from st_rl.utils.log import logger


class NeptuneSummaryWriter(RemoteSummaryWriter):
    """A TensorBoard writer that uploads the same to Neptune.

    The project is `cfg["neptune_project"]`, in the workspace of the environment variable `NEPTUNE_USERNAME` unless it
    contains one; the token is `NEPTUNE_API_TOKEN`, without which Neptune stores the run in its offline folder.
    """

    def __init__(self, log_dir: str | os.PathLike[str], flush_secs: int, cfg: Mapping[str, Any]) -> None:
        token = os.environ.get("NEPTUNE_API_TOKEN")
        project = _full_project(required_project(cfg, "neptune_project"), is_online=bool(token))
        try:
            import neptune  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ImportError('logger "neptune" needs a package: pip install "st_rl[neptune]"') from error
        options: dict[str, Any] = {"api_token": token} if token else {"mode": "offline"}
        if not token:
            logger.info("NEPTUNE_API_TOKEN is not set: neptune runs offline")
        super().__init__(
            log_dir,
            flush_secs,
            "neptune",
            lambda: neptune.init_run(project=project, name=os.path.basename(os.path.abspath(log_dir)), **options),
        )
        if self.run is not None:
            self._guard.call("log_dir", self._send_config, "log_dir", os.path.abspath(log_dir))

    def _send_scalar(self, name: str, value: float, step: int | None) -> None:
        self.run[name].append(value, step=step)

    def _send_config(self, name: str, config: object) -> None:
        self.run[name] = _drop_empty(config)

    def _send_model(self, path: str, iteration: int) -> None:
        self.run[f"model/saved_model_{iteration}"].upload(path)

    def _send_file(self, path: str) -> None:
        self.run[f"git_diff/{Path(path).stem}"].upload(path)

    def _send_film(self, name: str, path: str, iteration: int) -> None:
        self.run[f"{name}_{iteration}"].upload(path)

    def _finish(self) -> None:
        self.run.stop()


def _full_project(project: str, is_online: bool) -> str:
    """Return `workspace/project`, which neptune requires when online."""
    workspace = os.environ.get("NEPTUNE_USERNAME")
    if "/" in project or (not workspace and not is_online):
        return project
    if not workspace:
        raise KeyError(
            "the environment variable NEPTUNE_USERNAME is not set: set it to your workspace, or write "
            f"neptune_project as 'workspace/{project}'"
        )
    return f"{workspace}/{project}"


def _drop_empty(config: object) -> object:
    """Convert a configuration to what neptune can store: no empty containers, None and lists as text."""
    if isinstance(config, Mapping):
        kept = {key: _drop_empty(value) for key, value in config.items()}
        return {key: value for key, value in kept.items() if value != {}}
    return str(config) if config is None or isinstance(config, list) else config
