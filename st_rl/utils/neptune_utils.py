"""The path under which clients import `NeptuneSummaryWriter`."""

from st_rl.loggers.neptune_writer import NeptuneSummaryWriter

__all__ = ["NeptuneSummaryWriter"]
