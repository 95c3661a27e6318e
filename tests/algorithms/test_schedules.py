"""`GET_PROB_FUNC`."""

import math

import pytest

from st_rl.algorithms import appo, tppo
from st_rl.algorithms.tppo import GET_PROB_FUNC


def test_appo_and_tppo_share_one_definition():
    assert appo.GET_PROB_FUNC is tppo.GET_PROB_FUNC


@pytest.mark.parametrize(
    ("option", "at"),
    [
        ("linear", {0: 1.0, 25: 0.75, 99: 0.01, 100: 0.0, 101: 0.0, 10_000: 0.0}),
        ("exp", {0: 1.0, 1: 0.99, 2: 0.9801, 100: 0.3660323413}),
        ("tanh", {0: 0.8807970780, 100: 0.5, 200: 0.1192029220, 10_000: 0.0}),
    ],
)
def test_values(option, at):
    function = GET_PROB_FUNC(option, 100)
    for iteration, expected in at.items():
        value = function(iteration)
        assert type(value) is float
        assert value == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("option", ["linear", "exp", "tanh"])
@pytest.mark.parametrize("scale", [1, 3.5, 1000])
def test_probabilities_decrease_within_0_and_1(option, scale):
    values = [GET_PROB_FUNC(option, scale)(iteration) for iteration in range(50)]
    assert all(0.0 <= value <= 1.0 for value in values)
    assert values == sorted(values, reverse=True)
    assert values[0] == pytest.approx({"linear": 1.0, "exp": 1.0, "tanh": 0.5 * (1 + math.tanh(1))}[option])


def test_unknown_option_raises_value_error_and_key_error():
    for kind in (ValueError, KeyError):
        with pytest.raises(kind, match=r"'cosine'.*linear, exp, tanh"):
            GET_PROB_FUNC("cosine", 100)


@pytest.mark.parametrize(("option", "scale"), [("linear", 0), ("linear", -1), ("exp", 0.5), ("exp", 0), ("tanh", 0)])
def test_rejects_invalid_scales(option, scale):
    with pytest.raises(ValueError, match=str(scale)):
        GET_PROB_FUNC(option, scale)
