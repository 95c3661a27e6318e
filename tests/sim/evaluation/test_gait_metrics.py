"""Gait metrics compared with Python loops."""

import math

import numpy as np
import pytest
import torch

from st_rl.sim.evaluation.gait_metrics import (
    diagonal_alternation,
    diagonal_pairs,
    find_swings,
    mean_cost_of_transport,
    mean_over_time,
    side_pairs,
    step_asymmetry,
)

PERIOD = 0.02


def loop_swings(height, contact, valid, min_steps=2):
    """Clearance and number of swings of one robot, by a loop over feet and steps."""
    peaks = []
    for foot in range(height.shape[1]):
        lifted, peak, steps = False, 0.0, 0
        was_valid = False
        for t in range(height.shape[0]):
            if not valid[t]:
                lifted, was_valid = False, False
                continue
            if contact[t, foot]:
                if lifted and steps >= min_steps:
                    peaks.append(peak)
                lifted, peak, steps, was_valid = False, 0.0, 0, True
            elif was_valid:
                lifted, peak, steps = True, max(peak, height[t, foot]), steps + 1
    return peaks


def test_swings_equal_a_walk_through_every_foot():
    rng = np.random.default_rng(4)
    steps, robots, feet = 120, 5, 4
    # Contact phases of random length.
    contact = np.zeros((steps, robots, feet), dtype=bool)
    for robot in range(robots):
        for foot in range(feet):
            t, down = 0, bool(rng.integers(2))
            while t < steps:
                length = int(rng.integers(1, 9))
                contact[t : t + length, robot, foot] = down
                t, down = t + length, not down
    height = np.where(contact, 0.0, rng.uniform(0.0, 0.1, contact.shape)).astype(np.float32)
    valid = np.ones((steps, robots), dtype=bool)
    valid[:10] = False
    valid[70:, 2] = False
    swings = find_swings(torch.tensor(height), torch.tensor(contact), torch.tensor(valid), PERIOD)
    for robot in range(robots):
        peaks = loop_swings(height[:, robot], contact[:, robot], valid[:, robot])
        assert float(swings.clearance[robot]) == pytest.approx(np.mean(peaks), rel=1e-5)
        expected_rate = len(peaks) / (valid[:, robot].sum() * PERIOD * feet)
        assert float(swings.rate[robot]) == pytest.approx(expected_rate, rel=1e-5)


def test_clearance_is_nan_without_swings():
    contact = torch.ones(50, 1, 4, dtype=torch.bool)
    swings = find_swings(torch.zeros(50, 1, 4), contact, torch.ones(50, 1, dtype=torch.bool), PERIOD)
    assert math.isnan(float(swings.clearance[0]))
    assert float(swings.rate[0]) == 0.0


def test_chatter_of_one_step_is_no_swing():
    contact = torch.ones(40, 1, 1, dtype=torch.bool)
    contact[10::7] = False
    swings = find_swings(torch.full((40, 1, 1), 0.2), contact, torch.ones(40, 1, dtype=torch.bool), PERIOD)
    assert float(swings.rate[0]) == 0.0


def trot(steps: int, offsets: list[float]) -> torch.Tensor:
    """`(T, 1, F)` contacts of a gait of half a second with these phases, half of it stance."""
    time = torch.arange(steps)[:, None] * PERIOD / 0.5
    return (((time + torch.tensor(offsets)) % 1.0) < 0.5)[:, None]


@pytest.mark.parametrize(
    ("offsets", "expected"),
    [([0.0, 0.5, 0.5, 0.0], 1.0), ([0.0, 0.0, 0.5, 0.5], 0.0), ([0.0, 0.0, 0.0, 0.0], 0.0)],
    ids=["trot", "bound", "pronk"],
)
def test_only_a_trot_alternates_its_diagonals(offsets, expected):
    pairs = diagonal_pairs(torch.tensor([[0.2, -0.1], [0.2, 0.1], [-0.2, -0.1], [-0.2, 0.1]]))
    assert pairs == ((0, 3), (1, 2))
    contact = trot(200, offsets)
    share = diagonal_alternation(contact, torch.ones(200, 1, dtype=torch.bool), pairs)
    assert float(share[0]) == pytest.approx(expected, abs=1e-6)


def test_bipeds_have_no_diagonals():
    assert diagonal_pairs(torch.tensor([[0.0, 0.1], [0.0, -0.1]])) == ()
    contact = torch.ones(10, 2, 2, dtype=torch.bool)
    assert diagonal_alternation(contact, torch.ones(10, 2, dtype=torch.bool), ()).isnan().all()


def test_four_feet_in_a_row_have_no_diagonals():
    assert diagonal_pairs(torch.tensor([[0.3, 0.0], [0.1, 0.0], [-0.1, 0.0], [-0.3, 0.0]])) == ()


def test_cost_of_transport_is_power_over_weight_times_speed():
    valid = torch.tensor([[True, True], [True, True], [False, True]])
    power = torch.tensor([[10.0, 5.0], [30.0, 5.0], [1e9, 5.0]])
    speed = torch.tensor([[0.4, 0.01], [0.6, 0.01], [9.0, 0.01]])
    cost = mean_cost_of_transport(power, speed, 12.0, valid)
    assert float(cost[0]) == pytest.approx(20.0 / (12.0 * 9.81 * 0.5))
    assert math.isnan(float(cost[1]))


def test_mean_over_time_excludes_invalid_and_nan_steps():
    values = torch.tensor([[1.0, 2.0], [3.0, float("nan")], [5.0, 4.0]])
    valid = torch.tensor([[True, True], [True, False], [False, True]])
    assert mean_over_time(values, valid).tolist() == [2.0, 3.0]
    assert mean_over_time(values, torch.zeros_like(valid)).isnan().all()


def walking_feet(steps, stride, landings, stance):
    """Contacts `(steps, 1, feet)` with the given touch-down phases and stance durations."""
    time = np.arange(steps)[:, None]
    return torch.tensor((time - np.array(landings)) % stride < stance)[:, None]


@pytest.mark.parametrize(("landings", "expected"), [((0, 20), 0.0), ((0, 15), 10 / 20), ((5, 23), 4 / 20)])
def test_step_asymmetry_is_the_difference_of_left_and_right_steps(landings, expected):
    contact = walking_feet(400, 40, landings, stance=24)
    valid = torch.ones(400, 1, dtype=torch.bool)
    assert float(step_asymmetry(contact, valid, [(0, 1)])) == pytest.approx(expected)
    chatter = contact.clone()
    chatter[50] = False
    assert float(step_asymmetry(chatter, valid, [(1, 0)])) == pytest.approx(expected)


def test_step_asymmetry_uses_valid_alternating_steps_only():
    even, limping = walking_feet(200, 40, (0, 20), 24), walking_feet(200, 40, (0, 12), 24)
    contact = torch.cat([torch.cat([even, limping]), torch.cat([limping, even])], dim=1)
    valid = torch.zeros(400, 2, dtype=torch.bool)
    valid[:200] = True
    asymmetry = step_asymmetry(contact, valid, [(0, 1)])
    assert asymmetry.tolist() == pytest.approx([0.0, 16 / 20])
    hops = walking_feet(200, 40, (0, 0), 24)
    assert step_asymmetry(hops, valid[:200, :1], [(0, 1)]).isnan().all()
    assert step_asymmetry(even, valid[:200, :1], []).isnan().all()


def test_step_asymmetry_of_several_pairs_is_their_mean():
    contact = torch.cat([walking_feet(400, 40, (0, 20), 24), walking_feet(400, 40, (0, 15), 24)], dim=2)
    valid = torch.ones(400, 1, dtype=torch.bool)
    assert float(step_asymmetry(contact, valid, [(0, 1), (2, 3)])) == pytest.approx(0.25)


def test_sides_are_found_from_where_the_feet_stand():
    quadruped = torch.tensor([[0.2, -0.1], [0.2, 0.1], [-0.2, -0.1], [-0.2, 0.1]])
    assert side_pairs(quadruped) == ((1, 0), (3, 2))
    assert side_pairs(torch.tensor([[0.0, 0.1], [0.01, -0.1]])) == ((0, 1),)
    assert side_pairs(quadruped[:3]) == ()
    assert side_pairs(torch.zeros(0, 2)) == ()
