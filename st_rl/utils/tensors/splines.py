"""Cubic splines through evenly spaced values."""

import numpy as np


def evaluate_spline(values: np.ndarray, time: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values and derivatives `(T, ...)` of the cubic spline through `values (F, ...)` at `time (T,)`, in frames.

    The slopes at both ends are finite differences of third order.
    """
    slopes = _spline_slopes(values)
    low = np.minimum(time.astype(int), len(values) - 2)
    x = (time - low).reshape(-1, *[1] * (values.ndim - 1))
    start, step = values[low], values[low + 1] - values[low]
    # Coefficients of x, x**2 and x**3 between two frames.
    first = slopes[low]
    second = 3.0 * step - 2.0 * first - slopes[low + 1]
    third = first + slopes[low + 1] - 2.0 * step
    return start + x * (first + x * (second + x * third)), first + x * (2.0 * second + 3.0 * x * third)


def _spline_slopes(values: np.ndarray) -> np.ndarray:
    """Slopes `(F, ...)` per frame of the cubic spline through `values (F, ...)`."""
    slopes = np.gradient(values, axis=0, edge_order=2 if len(values) > 2 else 1)
    if len(values) < 4:
        return slopes
    weights = np.array([-11.0, 18.0, -9.0, 2.0]) / 6.0
    slopes[0], slopes[-1] = np.tensordot(weights, values[:4], 1), -np.tensordot(weights, values[:-5:-1], 1)
    # slopes[i - 1] + 4 slopes[i] + slopes[i + 1] = 6 central differences, solved by elimination.
    slopes[1:-1] *= 6.0
    slopes[-2] -= slopes[-1]
    slopes[1] -= slopes[0]
    factors = [4.0]
    for row in range(2, len(values) - 1):
        slopes[row] -= slopes[row - 1] / factors[-1]
        factors.append(4.0 - 1.0 / factors[-1])
    for row in range(len(values) - 2, 0, -1):
        if row < len(values) - 2:
            slopes[row] -= slopes[row + 1]
        slopes[row] /= factors[row - 1]
    return slopes
