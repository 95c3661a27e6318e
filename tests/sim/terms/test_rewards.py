"""Each reward and termination term on an explicit state."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from st_rl.sim.tasks import balance
from st_rl.sim.tasks.humanoid_walk import HumanoidWalk
from st_rl.sim.tasks.quadruped_walk import QuadrupedWalk
from st_rl.sim.terms import rewards, terminations

N = 3


def random_state():
    rng = np.random.default_rng(0)
    numbers = {
        "velocity_error": rng.normal(size=(N, 3)),
        "base_lin_vel": rng.normal(size=(N, 3)),
        "base_ang_vel": rng.normal(size=(N, 3)),
        "projected_gravity": rng.normal(size=(N, 3)),
        "actions": rng.normal(size=(N, 12)),
        "last_actions": rng.normal(size=(N, 12)),
        "joint_offset": rng.normal(size=(N, 12)),
        "joint_vel": rng.normal(size=(N, 12)),
        "torques": rng.normal(size=(N, 12)),
        "foot_velocity": rng.normal(size=(N, 4, 2)),
        "foot_contact": rng.random((N, 4)) < 0.5,
        "foot_stance": rng.random((N, 4)) < 0.5,
        "foot_height": rng.uniform(0, 0.06, (N, 4)),
        "swing_height": rng.uniform(0, 0.06, (N, 4)),
        "phase": rng.random(N),
        "base_height": rng.uniform(0.2, 0.32, (N, 1)),
    }
    tensors = {name: torch.tensor(value) for name, value in numbers.items()}
    return numbers, SimpleNamespace(**tensors, default_height=0.3)


def slip(s, i):
    return sum(np.hypot(*s["foot_velocity"][i, f]) ** 2 for f in range(4) if s["foot_contact"][i, f])


def clearance(s, i):
    missing = [max(s["swing_height"][i, f] - s["foot_height"][i, f], 0) for f in range(4) if not s["foot_stance"][i, f]]
    return sum(m**2 for m in missing)


def gait(s, i):
    right = sum(s["foot_contact"][i, f] == s["foot_stance"][i, f] for f in range(4))
    return (right - (4 - right)) / 4


EXPECTED = {
    "track_lin_vel_xy": lambda s, i: np.exp(-(np.hypot(*s["velocity_error"][i, :2]) ** 2) / 0.15),
    "track_ang_vel_z": lambda s, i: np.exp(-(s["velocity_error"][i, 2] ** 2) / 0.15),
    "alive": lambda s, i: 1.0,
    "lin_vel_z": lambda s, i: s["base_lin_vel"][i, 2] ** 2,
    "ang_vel_xy": lambda s, i: s["base_ang_vel"][i, 0] ** 2 + s["base_ang_vel"][i, 1] ** 2,
    "tilt": lambda s, i: s["projected_gravity"][i, 0] ** 2 + s["projected_gravity"][i, 1] ** 2,
    "action_rate": lambda s, i: np.linalg.norm(s["actions"][i] - s["last_actions"][i]) ** 2,
    "base_height": lambda s, i: max(0.9 * 0.3 - s["base_height"][i, 0], 0.0) ** 2,
    "pose": lambda s, i: np.linalg.norm(s["joint_offset"][i]) ** 2,
    "foot_slip": slip,
    "gait": gait,
    "foot_clearance": clearance,
    "energy": lambda s, i: sum(abs(t * v) for t, v in zip(s["torques"][i], s["joint_vel"][i])),
}


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_term_of_walking(name):
    numbers, state = random_state()
    value = getattr(rewards, name)(state)
    assert value.shape == (N,)
    np.testing.assert_allclose(value.numpy(), [EXPECTED[name](numbers, i) for i in range(N)], rtol=1e-12)


def test_every_term_of_the_table_is_tested():
    table = QuadrupedWalk.REWARDS
    assert set(table) == set(EXPECTED)
    assert all(term.function is getattr(rewards, name) for name, term in table.items())


def test_terms_do_not_modify_state():
    _, state = random_state()
    before = {name: torch.as_tensor(value).clone() for name, value in vars(state).items()}
    for name in EXPECTED:
        getattr(rewards, name)(state)
    assert all(torch.equal(torch.as_tensor(getattr(state, name)), value) for name, value in before.items())


def test_terminations_of_walking():
    upright, at_59, at_61 = 0.0, np.deg2rad(59), np.deg2rad(61)
    at_limits = {QuadrupedWalk: [False, False, True], HumanoidWalk: [False, True, True]}
    gravity = torch.tensor([[np.sin(a), 0.0, -np.cos(a)] for a in (upright, at_59, at_61)])
    state = SimpleNamespace(projected_gravity=gravity, has_fallen=torch.tensor([True, False, False]))
    for task, expected in at_limits.items():
        state.MAX_TILT_COSINE = task.MAX_TILT_COSINE
        assert terminations.tilted_over(state).tolist() == expected
    assert terminations.touches_ground(state).tolist() == [True, False, False]


def test_terms_of_balance():
    state = SimpleNamespace(
        pole_angle=torch.tensor([0.0, np.pi / 3, -0.7], dtype=torch.float64),
        cart_position=torch.tensor([0.5, -2.1, 0.0], dtype=torch.float64),
        actions=torch.tensor([[2.0], [0.0], [-1.0]]),
        cfg=SimpleNamespace(max_angle=0.6, max_position=2.0),
    )
    np.testing.assert_allclose(balance.upright(state), [1.0, 0.5, np.cos(0.7)])
    np.testing.assert_allclose(balance.centred(state), [0.25, 4.41, 0.0])
    np.testing.assert_allclose(balance.effort(state), [4.0, 0.0, 1.0])
    assert balance.pole_down(state).tolist() == [False, True, True]
    assert balance.off_rail(state).tolist() == [False, True, False]
