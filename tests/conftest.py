"""Common setup: one torch thread, a fixed seed, and GPU tests skipped without a GPU."""

import functools
import gc
import os
import random
import signal
from typing import Any

# Set before torch starts its thread pools, here and in the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
import torch

torch.set_num_threads(1)
# Exports and compilers create many objects, which the default of 700 would search for cycles an eighth of the time.
gc.set_threshold(50_000, 10, 10)
if hasattr(signal, "SIGHUP"):
    # nohup ignores it, for the tests and for the processes that they start.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` on a machine without an NVIDIA GPU."""
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs an NVIDIA GPU")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


def pytest_collection_finish() -> None:
    """Exclude modules and tests, which live until the end, from garbage collection."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def onnx_operators() -> None:
    """Let all exports of a process share torch's table of ONNX operators; building it takes 0.35 s."""
    export = torch.onnx.export

    @functools.wraps(export)
    def export_with_shared_operators(*args: Any, **kwargs: Any) -> Any:
        share_onnx_operators()
        return export(*args, **kwargs)

    torch.onnx.export = export_with_shared_operators


@functools.cache
def share_onnx_operators() -> None:
    """Cache the table of operators, where this version of torch has one."""
    try:
        from torch.onnx._internal.exporter._registration import ONNXRegistry
    except ImportError:
        return
    ONNXRegistry.from_torchlib = staticmethod(functools.cache(ONNXRegistry.from_torchlib))


@pytest.fixture(autouse=True)
def seed() -> int:
    """Seed all three generators before each test, so that no test depends on those that ran before it."""
    value = 0
    random.seed(value)
    np.random.seed(value)
    torch.manual_seed(value)
    # torch.compile switches the checks of distributions off for the whole process.
    torch.distributions.Distribution.set_default_validate_args(True)
    return value
