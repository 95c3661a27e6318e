"""Whether CUDA graphs may contain exchanges between ranks, tried with fake graphs and a fake NCCL."""

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch

from st_rl.engine import graph
from st_rl.utils.log import logger


@pytest.fixture
def try_capture(monkeypatch):
    """Returns a function of what an exchange does in a capture and in a replay: (whether it works, warnings)."""

    def attempt(captured, replayed):
        lines, tensors = [], []
        in_capture = False

        @contextmanager
        def capturing(*args):
            nonlocal in_capture
            in_capture = True
            try:
                yield
            finally:
                in_capture = False

        def all_reduce(tensor):
            tensors.append(tensor)
            if in_capture:
                captured(tensor)

        monkeypatch.setattr(graph, "capturing", capturing)
        monkeypatch.setattr(graph, "on_stream", lambda stream: nullcontext())
        monkeypatch.setattr(graph.dist, "all_reduce", all_reduce)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: replayed(tensors[-1])))
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
        monkeypatch.setattr(logger, "warning", lines.append)
        return graph._try_to_capture_exchange.__wrapped__(torch.device("cpu")), lines

    return attempt


def nothing(tensor):
    pass


def test_exchange_that_replays_the_right_sum_may_be_captured(try_capture):
    assert try_capture(nothing, nothing) == (True, [])


def test_failed_capture_is_one_log_line(try_capture):
    def fail(tensor):
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    works, lines = try_capture(fail, nothing)
    assert not works
    assert lines == [
        "CUDA graphs cannot capture exchanges through NCCL, which now run between graphs: "
        "operation not permitted when stream is capturing"
    ]


def test_wrong_sum_is_not_trusted(try_capture):
    works, lines = try_capture(nothing, lambda tensor: tensor.fill_(3.0))
    assert not works
    assert "the sum of 1 over 1 ranks is 3.0" in lines[0]


@pytest.mark.parametrize(("has_exchanges", "backend", "device", "expected"), [
    (False, "gloo", "cuda", True),
    (True, "gloo", "cpu", True),
    (True, "gloo", "cuda", False),
    (True, "nccl", "cuda", "as tried"),
])  # fmt: skip
def test_only_nccl_is_tried(monkeypatch, has_exchanges, backend, device, expected):
    monkeypatch.setattr(graph, "has_exchanges", lambda: has_exchanges)
    monkeypatch.setattr(graph.dist, "get_backend", lambda: backend)
    monkeypatch.setattr(graph, "_try_to_capture_exchange", lambda device: "as tried")
    assert graph.can_capture_exchanges(device) == expected
