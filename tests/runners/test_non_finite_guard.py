"""`NonFiniteGuard`."""

import math

import pytest
import torch

from st_rl.runners.non_finite import NonFiniteGuard

NAN, INF = math.nan, math.inf


def make_guard() -> NonFiniteGuard:
    return NonFiniteGuard("cpu", num_steps=10)


def clean(guard: NonFiniteGuard, name: str, values: torch.Tensor, step: int) -> torch.Tensor:
    guard.step = step
    return guard.clean(name, values)


def test_finite_values_are_returned_unchanged():
    guard, values = make_guard(), torch.randn(4, 3)
    assert torch.equal(clean(guard, "observations", values, 0), values)
    assert clean(guard, "dones", torch.tensor([0, 1]), 0).tolist() == [0, 1]
    assert guard.report() == {}


def test_large_values_are_finite():
    guard, values = make_guard(), torch.full((4, 3), 1e37)
    assert torch.equal(clean(guard, "observations", values, 0), values)
    assert guard.report() == {}


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_non_finite_values_become_zero_in_a_copy_and_rows_are_counted(bad):
    guard = make_guard()
    values = torch.ones(4, 3)
    values[1, 0] = values[1, 2] = values[3, 1] = bad
    given = values.clone()
    cleaned = clean(guard, "observations", values, 5)
    assert cleaned.tolist() == [[1, 1, 1], [0, 1, 0], [1, 1, 1], [1, 0, 1]]
    torch.testing.assert_close(values, given, equal_nan=True, rtol=0, atol=0)
    assert guard.report() == {"observations": (2, 5)}
    assert guard.report() == {}


def test_opposite_infinities_do_not_cancel():
    guard = make_guard()
    assert clean(guard, "observations", torch.tensor([[INF, -INF], [1.0, 2.0]]), 0).tolist() == [[0, 0], [1, 2]]
    assert guard.report() == {"observations": (1, 0)}


def test_cleans_vectors_and_images():
    guard = make_guard()
    assert clean(guard, "rewards", torch.tensor([1.0, NAN]), 2).tolist() == [1.0, 0.0]
    image = torch.ones(2, 3, 4, 4)
    image[0, 1, 2, 3] = INF
    clean(guard, "camera", image, 4)
    assert guard.report() == {"rewards": (1, 2), "camera": (1, 4)}


def test_report_is_ordered_by_first_step():
    guard = make_guard()
    bad = torch.tensor([NAN])
    for step, name in ((7, "rewards"), (3, "observations"), (9, "rewards"), (5, "observations")):
        clean(guard, name, bad, step)
    found = guard.report()
    assert found == {"rewards": (2, 7), "observations": (2, 3)}
    assert list(found) == ["observations", "rewards"]
    clean(guard, "rewards", bad, 1)
    assert guard.report() == {"rewards": (1, 1)}


def test_counts_survive_a_change_of_inference_mode():
    guard = make_guard()
    with torch.inference_mode():
        clean(guard, "rewards", torch.tensor([NAN]), 0)
    clean(guard, "rewards", torch.tensor([NAN]), 1)
    assert guard.report() == {"rewards": (2, 0)}
