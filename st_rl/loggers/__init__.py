"""Writers for the curves of a training: TensorBoard, CSV, wandb, neptune, and the console panel."""

from typing import Literal

LoggerName = Literal["tensorboard", "wandb", "neptune"]

LOGGERS: dict[LoggerName, str] = {
    "tensorboard": "st_rl.loggers.summary_writer:SummaryWriter",
    "wandb": "st_rl.loggers.wandb_writer:WandbSummaryWriter",
    "neptune": "st_rl.loggers.neptune_writer:NeptuneSummaryWriter",
}
"""Class of each logger that a configuration can name, imported when it is used: the packages are optional."""
