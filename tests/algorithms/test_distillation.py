"""Distillation losses and their gradients, compared with float64 loops and finite differences."""

import math

import numpy as np
import pytest
import torch

from st_rl.algorithms.distillation import (
    DISTILL_TARGETS,
    LATENT_TARGETS,
    action_distance,
    bounded_statistics,
    check_target,
    vector_distance,
)

STD, TEACHER_STD = np.array([0.4, 1.3, 0.2]), np.array([0.7, 0.001, 2.0])


def by_hand(kind, mean, label):
    """Distance of one sample, in Python floats."""
    gaps = [m - y for m, y in zip(mean, label)]
    l1 = sum(abs(gap) for gap in gaps)
    if kind == "real":
        return math.sqrt(sum(gap * gap for gap in gaps))
    if kind == "mse_sum":
        return sum(gap * gap for gap in gaps)
    if kind == "mse_mean":
        return sum(gap * gap for gap in gaps) / len(gaps)
    if kind == "huber":
        return sum(gap * gap / 2 if abs(gap) < 1 else abs(gap) - 0.5 for gap in gaps) / len(gaps)
    if kind == "l1":
        return l1
    if kind in ("tanh", "scaled_tanh"):
        crossed = 0.0
        for m, y in zip(mean, label):
            p, q = ((min(1.0, max(-1.0, value)) + 1.0) / 2.0 for value in (m, y))
            # torch clamps the logarithm at -100.
            crossed -= q * max(-100.0, math.log(p) if p > 0 else -100.0)
            crossed -= (1.0 - q) * max(-100.0, math.log(1.0 - p) if p < 1 else -100.0)
        crossed *= 2.0 / len(gaps)
        return crossed if kind == "tanh" else crossed * l1 / len(gaps)
    total = 0.0
    for gap, s, t in zip(gaps, STD, TEACHER_STD):
        if kind == "max_log_prob":
            total += gap * gap / (2 * s * s) + math.log(s) + 0.5 * math.log(2 * math.pi)
        else:
            total += math.log(s / t) + (t * t + gap * gap) / (2 * s * s) - 0.5
    return total


def samples(seed=0, shape=(4, 5, 3)):
    """Means and labels, most of them within [-1, 1] and some beyond."""
    random = np.random.default_rng(seed)
    return random.uniform(-1.1, 1.1, shape), random.uniform(-1.1, 1.1, shape)


def distance(kind, mean, labels):
    std, teacher_std = torch.tensor(STD), torch.tensor(TEACHER_STD)
    return action_distance(kind, mean, std.expand_as(mean), labels, teacher_std)


@pytest.mark.parametrize("kind", DISTILL_TARGETS)
def test_action_distances_equal_loops(kind):
    means, labels = samples()
    expected = np.array([[by_hand(kind, m, y) for m, y in zip(row_m, row_y)] for row_m, row_y in zip(means, labels)])
    got = distance(kind, torch.tensor(means), torch.tensor(labels))
    assert got.shape == (4, 5)
    np.testing.assert_allclose(got.numpy(), expected, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("kind", DISTILL_TARGETS)
def test_gradients_equal_finite_differences(kind):
    means, labels = samples(seed=1, shape=(3, 3))
    means, labels = 0.9 * means, 0.9 * labels
    leaf = torch.tensor(means, requires_grad=True)
    distance(kind, leaf, torch.tensor(labels)).mean().backward()
    assert leaf.grad is not None
    step = 1e-6
    for index in np.ndindex(*means.shape):
        sides = []
        for sign in (1, -1):
            moved = means.copy()
            moved[index] += sign * step
            sides.append(np.mean([by_hand(kind, m, y) for m, y in zip(moved, labels)]))
        slope = (sides[0] - sides[1]) / (2 * step)
        assert leaf.grad[index].item() == pytest.approx(slope, rel=2e-4, abs=1e-6)


def test_kl_equals_torch_and_is_zero_for_equal_gaussians():
    torch.manual_seed(0)
    mean, labels = torch.randn(6, 3), torch.randn(6, 3)
    std, teacher_std = torch.rand(3) + 0.2, torch.rand(3) + 0.2
    normal = torch.distributions.Normal
    expected = torch.distributions.kl_divergence(normal(labels, teacher_std), normal(mean, std)).sum(-1)
    torch.testing.assert_close(action_distance("kl", mean, std.expand(6, 3), labels, teacher_std), expected)
    zero = action_distance("kl", labels, std.expand(6, 3), labels, std)
    torch.testing.assert_close(zero, torch.zeros(6), atol=1e-6, rtol=0)


def test_max_log_prob_and_kl_train_std():
    for kind, best in (("max_log_prob", 0.5), ("kl", math.sqrt(0.3**2 + 0.5**2))):
        std = torch.full((1, 1), best, dtype=torch.float64, requires_grad=True)
        mean, label, teacher_std = (torch.full((1, 1), v, dtype=torch.float64) for v in (0.0, 0.5, 0.3))
        action_distance(kind, mean, std, label, teacher_std[0]).sum().backward()
        assert std.grad is not None
        assert std.grad.item() == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("kind", DISTILL_TARGETS)
def test_gradients_are_finite_for_perfect_student(kind):
    labels = torch.tensor([[0.0, 1.0, -1.0], [0.5, 2.0, -3.0]], dtype=torch.float64)
    mean = labels.clone().requires_grad_()
    distance(kind, mean, labels).mean().backward()
    assert mean.grad is not None
    assert torch.isfinite(mean.grad).all()


@pytest.mark.parametrize("kind", LATENT_TARGETS)
def test_latent_distances_equal_loops(kind):
    means, labels = samples(seed=2, shape=(7, 4))
    got = vector_distance(kind, torch.tensor(means), torch.tensor(labels))
    np.testing.assert_allclose(got.numpy(), [by_hand(kind, m, y) for m, y in zip(means, labels)], rtol=2e-6, atol=1e-6)


def test_bounded_statistics_invert_tanh():
    means, labels = np.array([[0.5, -1.7], [0.0, 0.2]]), np.array([[1.0, -0.3], [0.9, 0.2]])
    got = bounded_statistics(torch.tensor(means), torch.tensor(labels))
    edge = 1.0 - 1e-6
    inverse = [np.arctanh(np.clip(value, -edge, edge)) for value in (means, labels)]
    assert float(got["l1distance"]) == pytest.approx(np.abs(means - labels).sum(-1).mean())
    assert float(got["l1_before_tanh"]) == pytest.approx(np.abs(inverse[0] - inverse[1]).sum(-1).mean(), rel=1e-5)


def test_unknown_target_lists_known_ones():
    with pytest.raises(
        ValueError, match=r"unknown distill_target 'rael'; did you mean 'real'\? known: huber, kl, l1, max_log_prob"
    ):
        check_target("distill_target", "rael", DISTILL_TARGETS)
