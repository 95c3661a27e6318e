"""Cubic splines, compared with their definition and with polynomials."""

import numpy as np
import pytest

from st_rl.utils.tensors.splines import evaluate_spline


@pytest.mark.parametrize("count", [2, 3, 4, 5, 40])
def test_reproduces_polynomials_up_to_third_order(count):
    coefficients = np.array([0.7, -0.3, 0.2, 0.1])[: min(count, 4)]
    line = np.polynomial.Polynomial(coefficients)
    frames, time = np.arange(count) / 10.0, np.linspace(0.0, count - 1, 77)
    values, slopes = evaluate_spline(line(frames)[:, None], time)
    np.testing.assert_allclose(values[:, 0], line(time / 10.0), atol=1e-12)
    np.testing.assert_allclose(slopes[:, 0], line.deriv()(time / 10.0) / 10.0, atol=1e-12)


def test_passes_through_values_with_continuous_second_derivative():
    values, step = np.random.default_rng(0).normal(size=(12, 2, 3)), 1e-4
    np.testing.assert_allclose(evaluate_spline(values, np.arange(12.0))[0], values, atol=1e-12)
    inner = np.arange(1.0, 11.0)
    before, at, after = (evaluate_spline(values, inner + shift)[1] for shift in (-step, 0.0, step))
    np.testing.assert_allclose((after - at) / step, (at - before) / step, atol=0.02)
    assert np.abs((at - before) / step).max() > 2.0
