"""The path under which clients import `WandbSummaryWriter`."""

from st_rl.loggers.wandb_writer import WandbSummaryWriter

__all__ = ["WandbSummaryWriter"]
