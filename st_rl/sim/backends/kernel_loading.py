"""Loads the kernels of MuJoCo Warp all at once: one after the other they take minutes to compile for the first time."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import ModuleType
from typing import Any


def load_kernels(warp: ModuleType, device: str, work: Callable[[], object]) -> None:
    """Compile and load every kernel that `work` would launch, as many at a time as there are cores; launches nothing.

    What was compiled on this machine before comes from Warp's own cache. What is missed here is compiled when it is
    launched, as always.
    """
    with _noted_launches(warp) as launches:
        work()
    # A module is loaded by one thread at a time, once for each size of block.
    sizes: dict[Any, dict[int | None, None]] = {}
    for module, block_dim in launches:
        sizes.setdefault(module, {})[block_dim] = None

    def load(module: Any) -> None:
        for block_dim in sizes[module]:
            warp.force_load(device, modules=[module], block_dim=block_dim, max_workers=0)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(load, sizes))


@contextmanager
def _noted_launches(warp: ModuleType) -> Iterator[list[tuple[Any, int | None]]]:
    """Inside, kernels are not launched but noted: their module, and the size of their blocks if they ask for one."""
    launches: list[tuple[Any, int | None]] = []

    def note(kernel: Any, *args: Any, block_dim: int | None = None, **kwargs: Any) -> None:
        launches.append((kernel.module, block_dim))

    def once(condition: Any, while_body: Callable[..., object], **kwargs: Any) -> None:
        # Without kernels the condition would never change.
        while_body(**kwargs)

    replaced = {"launch": note, "launch_tiled": note, "capture_while": once}
    originals = {name: getattr(warp, name) for name in replaced}
    for name, stand_in in replaced.items():
        setattr(warp, name, stand_in)
    try:
        yield launches
    finally:
        for name, original in originals.items():
            setattr(warp, name, original)
