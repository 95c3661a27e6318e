"""All kernels of a step are loaded before the first step, without launching them."""

from types import ModuleType, SimpleNamespace

import pytest

from st_rl.sim.backends.kernel_loading import _record_launches, load_kernels
from st_rl.sim.tasks import make_task


class FakeWarp(ModuleType):
    """Counts launches and loads."""

    def __init__(self):
        super().__init__("warp")
        self.launched, self.loaded = [], []
        self.launch = self.launch_tiled = self.capture_while = lambda *args, **kwargs: self.launched.append(args)

    def force_load(self, device, modules, block_dim, max_workers):
        self.loaded += [(device, module, block_dim) for module in modules]


def kernel(module):
    return SimpleNamespace(module=module)


def test_kernels_are_loaded_once_for_each_size_of_block_and_none_is_launched():
    warp = FakeWarp()
    first, second, third = kernel("smooth"), kernel("solver"), kernel("smooth")

    def step():
        warp.launch(first, dim=3, inputs=[])
        warp.launch(kernel=third, dim=4)
        warp.launch_tiled(second, dim=3, inputs=[], block_dim=64)
        # A loop on a condition that no kernel changes here.
        warp.capture_while([1], while_body=lambda data: warp.launch_tiled(second, dim=data, block_dim=32), data=5)

    load_kernels(warp, "cuda:0", step)
    expected = [("smooth", None), ("solver", 32), ("solver", 64)]
    assert sorted(warp.loaded, key=str) == [("cuda:0", *row) for row in expected]
    assert not warp.launched
    step()
    assert len(warp.launched) == 4


def test_restores_launch_after_failure():
    warp = FakeWarp()
    launch = warp.launch

    def fails():
        raise RuntimeError("no such thing")

    with pytest.raises(RuntimeError, match="no such thing"):
        load_kernels(warp, "cpu", fails)
    assert warp.launch is launch
    assert not warp.loaded


@pytest.mark.gpu
def test_gpu_step_loads_no_further_kernels():
    backend = make_task("quadruped-walk", 2, "cuda").backend
    with _record_launches(backend._warp) as launches:  # pyright: ignore[reportAttributeAccessIssue]
        backend._mjwarp.step(backend._model, backend._data)  # pyright: ignore[reportAttributeAccessIssue]
    modules = {module for module, _ in launches}
    loaded = {module: len(module.execs) for module in modules}
    assert len(loaded) > 10
    assert all(loaded.values())
    backend.step(1)
    assert {module: len(module.execs) for module in modules} == loaded
