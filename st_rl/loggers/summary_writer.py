"""The base `SummaryWriter`: torch's, or that of tensorboardX if tensorboard is missing."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter
else:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise ImportError("logging needs tensorboard; install it with: pip install tensorboard") from error

__all__ = ["SummaryWriter"]
