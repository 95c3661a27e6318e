"""Modes that show what a captured graph cannot do: wait for the device, and follow tensors that move."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

aten: Any = torch.ops.aten
WAITING_OPERATIONS = {
    aten._local_scalar_dense.default,
    aten.item.default,  # inference mode dispatches the composite ops below, not their parts
    aten.is_nonzero.default,
    aten.nonzero.default,
    aten.argwhere.default,
    aten.masked_select.default,
    aten.repeat_interleave.Tensor,
    aten.equal.default,
    aten.allclose.default,
}
INDEXING_OPERATIONS = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
}
# These read values on the host without the dispatcher, or are no-ops for a tensor that is on the CPU already.
WAITING_METHODS = ("cpu", "tolist")


class NoHostSync(TorchDispatchMode):
    """Raises on `.item()`, `.tolist()`, a Python branch on a tensor, `nonzero` and boolean-mask indexing."""

    def __enter__(self):
        self._methods = {name: getattr(torch.Tensor, name) for name in WAITING_METHODS}
        for name, method in self._methods.items():
            setattr(torch.Tensor, name, self._watched(name, method))
        return super().__enter__()

    def __exit__(self, *exception):
        for name, method in self._methods.items():
            setattr(torch.Tensor, name, method)
        return super().__exit__(*exception)

    def _watched(self, name, method):
        def call(*args, **kwargs):
            self.on_wait(f"Tensor.{name}()")
            return method(*args, **kwargs)

        return call

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in WAITING_OPERATIONS:
            self.on_wait(str(func))
        if func in INDEXING_OPERATIONS and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        ):
            self.on_wait(f"{func} with a mask")
        return func(*args, **(kwargs or {}))

    def on_wait(self, what: str) -> None:
        """Called for everything that would wait for the device."""
        raise AssertionError(f"{what} waits for the device")


class OutsideReads(TorchDispatchMode):
    """Collects the memory that is read and was not allocated meanwhile: a captured graph reads it in every replay."""

    def __init__(self):
        super().__init__()
        self.addresses: set[int] = set()
        self._allocated: set[int] = set()
        # Keeps everything alive, so that no address is given away again.
        self._tensors: list[torch.Tensor] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        result = func(*args, **(kwargs or {}))
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self._tensors += inputs + outputs
        # A new tensor of a Python number is part of the function.
        is_constant = func is aten.lift_fresh.default
        read = {address_of(tensor) for tensor in inputs} - self._allocated
        self.addresses |= set() if is_constant else read
        self._allocated |= read if is_constant else {address_of(tensor) for tensor in outputs} - read
        return result


def watch_reads(reads: list[set[int]]):
    """Return a wrapper of steps that appends what each call of the step reads."""

    def wrap(step):
        def run():
            with OutsideReads() as mode:
                step()
            reads.append(mode.addresses)

        return run

    return wrap


def address_of(tensor: torch.Tensor) -> int:
    """The address of the memory that a tensor is a view of."""
    return tensor.untyped_storage().data_ptr()
