"""FLOPs of an iteration in the speed benchmarks."""

import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")


@pytest.fixture
def workload(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import workload

    yield workload
    sys.modules.pop("workload", None)


def _flops(function) -> int:
    with FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops()


def _head(sizes) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(width, following) for width, following in pairwise(sizes)))


def test_feed_forward_flops_equal_torch_flop_counter(workload):
    row = workload.Workload(robots=8, hidden_dims=(16, 12), steps=3, observations=5, actions=4, epochs=2)
    work = workload.matrix_work(row)
    actor, critic = _head((5, 16, 12, 4)), _head((5, 16, 12, 1))
    obs = torch.randn(8, 5)
    act = _flops(lambda: (actor(obs), critic(obs)))
    assert work["acting"] == 3 * act + _flops(lambda: critic(obs))
    learn = _flops(lambda: (actor(obs).sum() + critic(obs).sum()).backward())
    assert work["update"] == 2 * 3 * learn


def test_lstm_flops_include_gates(workload):
    row = workload.Workload(robots=8, hidden_dims=(16,), rnn_hidden_size=6, steps=3, observations=5, actions=4)
    cell = 2 * 4 * 6 * (5 + 6)
    actor, critic = 2 * (6 * 16 + 16 * 4), 2 * (6 * 16 + 16 * 1)
    assert workload.matrix_work(row)["acting"] == 8 * (3 * (2 * cell + actor + critic) + cell + critic)
