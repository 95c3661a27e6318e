"""Limits of a GPU. Needs torch only, because it also runs in the virtual environment of rsl_rl."""

import time
from collections.abc import Callable
from typing import Any

import torch

PRECISIONS = {
    "float32": ("highest", torch.float32),
    "tf32": ("high", torch.float32),
    "bf16": ("high", torch.bfloat16),
}


def device_limits(size: int = 8192) -> dict[str, float]:
    """Throughput of matrix products in FLOP/s by precision, and memory bandwidth in bytes/s, read and written."""
    limits = {}
    left, right = (torch.randn(size, size, device="cuda") for _ in range(2))
    before = torch.get_float32_matmul_precision()
    for name, (precision, dtype) in PRECISIONS.items():
        torch.set_float32_matmul_precision(precision)
        limits[name] = 2.0 * size**3 / _shortest(torch.mm, left.to(dtype), right.to(dtype))
    torch.set_float32_matmul_precision(before)
    source = torch.randn(2**29, device="cuda")
    limits["bytes"] = 2.0 * source.nbytes / _shortest(torch.empty_like(source).copy_, source)
    return limits


def _shortest(function: Callable[..., Any], *arguments: Any, repeats: int = 8) -> float:
    """Duration of the fastest of several calls, s."""
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        function(*arguments)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times)
