"""A mode that fails where a captured graph would: on anything that reads a tensor's values on the host."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

WAITING_OPERATIONS = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.masked_select.default,
    torch.ops.aten.equal.default,
}


class NoHostSync(TorchDispatchMode):
    """Raises on `.item()`, a Python branch on a tensor, `nonzero` and boolean-mask indexing."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in WAITING_OPERATIONS:
            raise AssertionError(f"{func} waits for the device")
        return func(*args, **(kwargs or {}))
