"""`RunningAverages`."""

import math

import numpy as np
import pytest
import torch

from st_rl.algorithms.averages import RunningAverages


def test_means_by_name():
    rng = np.random.default_rng(0)
    table = rng.normal(size=(7, 2))
    averages = RunningAverages()
    for first, second in table:
        averages.add({"a": torch.tensor(first), "b": torch.tensor(second, requires_grad=True)})
    means = averages.means()
    assert list(means) == ["a", "b"]
    for name, expected in zip(means, table.mean(axis=0)):
        assert means[name].shape == ()
        assert not means[name].requires_grad
        assert means[name].item() == pytest.approx(expected, rel=1e-5)
    assert averages.non_finite_counts() == {}


def test_non_finite_values_are_counted_and_excluded():
    averages = RunningAverages()
    for a, b in ((1.0, math.nan), (math.inf, math.nan), (3.0, math.nan), (-math.inf, math.nan)):
        averages.add({"a": torch.tensor(a), "b": torch.tensor(b), "c": torch.tensor(5)})
    means = averages.means()
    assert means["a"].item() == 2.0
    assert math.isnan(means["b"].item())
    assert means["c"].item() == 5.0
    assert averages.non_finite_counts() == {"a": 2, "b": 4}


def test_is_empty_without_values():
    assert RunningAverages().means() == {}
    assert RunningAverages().non_finite_counts() == {}


def test_missing_names_count_as_zero():
    averages = RunningAverages()
    for values in ({"a": 1.0, "b": 4.0}, {"a": 2.0}, {"c": 6.0, "a": 3.0}):
        averages.add({name: torch.tensor(value) for name, value in values.items()})
    assert {name: value.item() for name, value in averages.means().items()} == pytest.approx(
        {"a": 2.0, "b": 4.0 / 3, "c": 2.0}
    )
    assert averages.non_finite_counts() == {}


def test_input_tensors_are_not_modified():
    value = torch.tensor(1.0)
    averages = RunningAverages()
    averages.add({"a": value})
    averages.add({"a": value})
    assert value.item() == 1.0
