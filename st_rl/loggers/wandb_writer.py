"""Logging to Weights & Biases."""

import os
from collections.abc import Mapping
from typing import Any

from st_rl.loggers.remote_writer import RemoteSummaryWriter, required_project


class WandbSummaryWriter(RemoteSummaryWriter):
    """A TensorBoard writer that uploads the same to Weights & Biases.

    The project is `cfg["wandb_project"]`, the entity the environment variable `WANDB_USERNAME` if set, the name of the
    run that of the folder.
    """

    def __init__(self, log_dir: str | os.PathLike[str], flush_secs: int, cfg: Mapping[str, Any]) -> None:
        project = required_project(cfg, "wandb_project")
        try:
            import wandb
        except ImportError as error:
            raise ImportError('logger "wandb" needs a package: pip install "st_rl[wandb]"') from error
        folder = os.path.abspath(log_dir)
        os.makedirs(folder, exist_ok=True)
        super().__init__(
            log_dir,
            flush_secs,
            "wandb",
            lambda: wandb.init(
                project=project,
                entity=os.environ.get("WANDB_USERNAME"),
                name=os.path.basename(folder),
                dir=folder,
                config={"log_dir": folder},
            ),
        )

    def _send_scalar(self, name: str, value: float, step: int | None) -> None:
        self.run.log({name: value}, step=step)

    def _send_config(self, name: str, config: object) -> None:
        self.run.config.update({name: config}, allow_val_change=True)

    def _send_model(self, path: str, iteration: int) -> None:
        self.run.save(path, base_path=os.path.dirname(path), policy="now")

    def _send_file(self, path: str) -> None:
        self.run.save(path, base_path=os.path.dirname(path), policy="now")

    def _send_film(self, name: str, path: str, iteration: int) -> None:
        import wandb

        # Without a step: wandb drops values of steps that are over.
        film = wandb.Video(path, caption=f"iteration {iteration}", format="mp4")
        self.run.log({name: film}, commit=False)

    def _finish(self) -> None:
        self.run.finish()
