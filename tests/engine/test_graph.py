"""Inputs, outputs and lifetime of captured graphs, tested with a fake graph."""

import gc
from contextlib import nullcontext

import pytest
import torch

from st_rl.engine import Engine, graph
from st_rl.engine.graph import WARM_UP_CALLS, GraphedLoop, GraphedStep, _Capture
from st_rl.utils import distributed
from tests.engine.recorded_graph import plan_recorded_graphs


class Doubling:
    """A fake graph: doubles the fixed inputs into the fixed outputs."""

    def __init__(self, inputs, outputs):
        self.inputs, self.outputs = inputs, outputs

    def replay(self):
        for source, target in zip(self.inputs, self.outputs):
            torch.mul(source, 2.0, out=target)


def make_capture(count=2):
    fixed, output = [torch.zeros(3) for _ in range(count)], [torch.zeros(3) for _ in range(count)]
    return _Capture(fixed, output, [Doubling(fixed, output)])


def replay_counting_copies(capture, inputs, monkeypatch):
    """Whether a replay copied its inputs; its outputs must be right in both cases."""
    copies, copy = [], torch._foreach_copy_
    with monkeypatch.context() as patch:
        patch.setattr(torch, "_foreach_copy_", lambda *args: copies.append(1) or copy(*args))
        outputs = capture.replay(inputs)
    for value, output in zip(inputs, outputs):
        assert torch.equal(output, 2.0 * value)
    return bool(copies)


def test_only_changed_inputs_are_copied(monkeypatch):
    capture, inputs = make_capture(), [torch.randn(3), torch.randn(3)]
    assert replay_counting_copies(capture, inputs, monkeypatch)
    assert not replay_counting_copies(capture, inputs, monkeypatch)
    inputs[1][0] = 7.0
    assert replay_counting_copies(capture, inputs, monkeypatch), "a changed tensor is copied again"
    assert not replay_counting_copies(capture, inputs, monkeypatch)
    inputs[0] = inputs[0].clone()
    assert replay_counting_copies(capture, inputs, monkeypatch), "so is another tensor, whatever it holds"


def test_tensors_without_version_counter_are_always_copied(monkeypatch):
    with torch.inference_mode():
        inputs = [torch.randn(3), torch.randn(3)]
    capture = make_capture()
    assert replay_counting_copies(capture, inputs, monkeypatch)
    assert replay_counting_copies(capture, inputs, monkeypatch)


def test_inputs_are_not_kept_alive(monkeypatch):
    capture = make_capture(1)
    for _ in range(3):
        # A new tensor may get the address and the id of a deleted one.
        assert replay_counting_copies(capture, [torch.randn(3)], monkeypatch)


def test_captured_graphs_are_discarded_on_demand(monkeypatch):
    """Replaced tensors have other addresses: steps are captured again, loops run eagerly once."""
    monkeypatch.setattr(graph, "on_stream", lambda stream: nullcontext())
    calls = []
    loop = GraphedLoop(lambda: calls.append(1) or "as written", stream=None)
    assert loop("key") == "as written"
    loop._key, loop._capture = "key", _Capture([], "captured", [Doubling([], [])])
    assert loop("key") == "captured"
    engine = Engine("eager")
    engine._loops.append(loop)
    engine._steps["step"] = None
    engine.discard_graphs()
    assert not engine._steps
    assert loop("key") == "as written"
    assert len(calls) == 2


def test_no_garbage_collection_during_capture(monkeypatch):
    monkeypatch.setattr(torch.cuda, "graph", lambda *args, **kwargs: nullcontext())
    with graph.capturing(None, None):
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(RuntimeError, match="spoiled"), graph.capturing(None, None):
        raise RuntimeError("spoiled")
    assert gc.isenabled()


def test_failed_capture_after_an_exchange_leaves_nothing_behind(monkeypatch):
    """The next call captures again, with sums over ranks as before and with garbage collection."""
    plan_recorded_graphs(monkeypatch, captures_exchanges=False)
    # Two ranks with the same values.
    monkeypatch.setattr(distributed.dist, "all_reduce", lambda tensor: tensor.mul_(2.0))
    fails = False

    def step(value):
        total = value + 1.0
        distributed.sum_over_ranks(total)
        if fails:
            raise RuntimeError("operation not permitted when stream is capturing")
        return total * 10.0

    graphed = GraphedStep(step, stream=None, captures_exchanges=False)
    value = torch.ones(2)
    for _ in range(WARM_UP_CALLS):
        assert graphed(value).tolist() == [40.0, 40.0]
    fails = True
    with pytest.raises(RuntimeError, match="stream is capturing"):
        graphed(value)
    assert gc.isenabled()
    fails = False
    for number in (1.0, 2.0):
        assert graphed(torch.full((2,), number)).tolist() == [20.0 * (number + 1.0)] * 2
    (capture,) = graphed._captures.values()
    assert [recorded.num_replays for recorded in capture.graphs] == [2, 2]
