"""Compiles the kernels of MuJoCo Warp in parallel; one after the other this takes minutes the first time."""

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from st_rl.utils.log import logger

# Seconds between two messages about the progress.
_PATIENCE_S = 3.0


def load_kernels(warp: ModuleType, device: str, run_step: Callable[[], object]) -> None:
    """Compile and load every kernel that `run_step` launches, in one thread per core, without launching any.

    Uses Warp's kernel cache. A kernel that is missed here is compiled at its launch.
    """
    with _record_launches(warp) as launches:
        run_step()
    # Each module is loaded by one thread, once for each block size.
    sizes: dict[object, dict[int | None, None]] = {}
    for module, block_dim in launches:
        sizes.setdefault(module, {})[block_dim] = None

    def load(module: object) -> None:
        for block_dim in sizes[module]:
            warp.force_load(device, modules=[module], block_dim=block_dim, max_workers=0)

    begin = last_message = time.monotonic()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        loads = [pool.submit(load, module) for module in sizes]
        for number, done in enumerate(as_completed(loads), start=1):
            done.result()
            if time.monotonic() - last_message > _PATIENCE_S:
                last_message = time.monotonic()
                logger.info(f"compiling physics: {number} of {len(loads)} modules, {last_message - begin:.0f} s")


@contextmanager
def _record_launches(warp: ModuleType) -> Iterator[list[tuple[object, int | None]]]:
    """Record the module and the block size of launches instead of launching kernels."""
    launches: list[tuple[object, int | None]] = []

    def record(kernel: Any, *args: object, block_dim: int | None = None, **kwargs: object) -> None:
        launches.append((kernel.module, block_dim))

    def run_once(condition: object, while_body: Callable[..., object], **kwargs: object) -> None:
        # Without kernels the condition never changes.
        while_body(**kwargs)

    replaced = {"launch": record, "launch_tiled": record, "capture_while": run_once}
    originals = {name: getattr(warp, name) for name in replaced}
    for name, replacement in replaced.items():
        setattr(warp, name, replacement)
    try:
        yield launches
    finally:
        for name, original in originals.items():
            setattr(warp, name, original)
