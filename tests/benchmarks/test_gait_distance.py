"""Gait distance to a reference, on known walks."""

import math

import pytest
import torch

from benchmarks.gait_distance import (
    contact_offsets,
    cycle_distance,
    gait_cycles,
    joint_distance,
    offset_error,
    stride_frequency,
)

PERIOD = 0.02
TIME = torch.arange(400) * PERIOD


def wave(phase):
    """A gait of two joints `(..., 2)` at phases `(...)` in strides."""
    angle = 2 * math.pi * phase
    return torch.stack([angle.sin() + 0.3 * (2 * angle).cos(), 0.5 * angle.cos() - 1.0], dim=-1)


REFERENCE = wave(torch.arange(32) / 32)


@pytest.mark.parametrize("frequency", [1.3, 2.0, 3.125])
def test_frequency_of_a_gait_is_found(frequency):
    joints = wave(TIME * frequency + 0.3)[:, None].repeat(1, 2, 1)
    assert stride_frequency(joints, PERIOD).tolist() == pytest.approx([frequency] * 2, abs=0.02)


def test_cycles_are_strides_on_a_grid_of_phases():
    cycles = gait_cycles(wave(TIME * 2.0), 2.0, PERIOD)
    assert cycles.shape == (15, 32, 2)
    torch.testing.assert_close(cycles[4], REFERENCE, atol=0.02, rtol=0)


def test_distance_of_reference_is_zero_at_any_phase_and_speed():
    for frequency, phase in ((2.0, 0.0), (3.1, 0.37), (1.5, 0.9)):
        joints = wave(TIME * frequency + phase)[:, None]
        assert float(joint_distance(joints, REFERENCE, PERIOD)) < 0.06


def test_distance_is_the_root_mean_square_at_the_best_phase():
    shifted = REFERENCE.roll(5, dims=0) + torch.tensor([0.3, -0.4])
    assert float(cycle_distance(shifted[None], REFERENCE)) == pytest.approx(math.sqrt((0.09 + 0.16) / 2), abs=1e-6)
    still = torch.zeros(1, 32, 2) + REFERENCE.mean(dim=0)
    expected = (REFERENCE - REFERENCE.mean(dim=0)).square().mean().sqrt()
    assert float(cycle_distance(still, REFERENCE)) == pytest.approx(float(expected), abs=1e-6)


@pytest.mark.parametrize(
    "offsets", [(0.0, 0.5, 0.5, 0.0), (0.0, 0.5, 0.0, 0.5), (0.0, 0.0, 0.5, 0.5), (0.0, 0.1, 0.3, 0.8)]
)
def test_offsets_of_contacts_are_found(offsets):
    phase = TIME[:, None] * 3.1 + torch.tensor(offsets) + 0.2
    contact = (torch.remainder(phase, 1.0) < 0.6)[:, None]
    found = contact_offsets(contact, torch.tensor([3.1]), PERIOD)
    assert offset_error(found, torch.tensor(offsets).double()).max() < 0.03


def test_phase_distance_is_the_shorter_one():
    got = offset_error(torch.tensor([0.95, -0.5, 0.2]), torch.tensor([0.0, 0.5, 0.5]))
    torch.testing.assert_close(got, torch.tensor([0.05, 0.0, 0.3]))
