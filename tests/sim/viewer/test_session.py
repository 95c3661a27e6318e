import math

import numpy as np
import pytest
import torch

from st_rl.sim.tasks import make_task
from st_rl.sim.viewer.controls import push_velocity, slider_limits, spread_offsets
from st_rl.sim.viewer.session import RealTime, ViewSession


def zero_policy(obs):
    return torch.zeros(len(obs), 12)


def make_session(name):
    return ViewSession(make_task(name, num_envs=2, seed=3), zero_policy, lambda name: zero_policy, "best.pt")


@pytest.fixture
def session():
    return make_session("quadruped-walk")


@pytest.mark.parametrize("name", ["quadruped-walk", "quadruped-track"])
def test_push_changes_the_velocity_of_the_chosen_robot_only(name):
    session = make_session(name)
    session.step()
    session.controls.robot, session.controls.is_paused = 1, True
    before = session.frame.qvel.copy()
    session.controls.send(lambda session: session.push(direction_deg=90.0, speed=2.0))
    session.step()
    delta = session.frame.qvel - before
    w, x, y, z = session.frame.qpos[1, 3:7]
    yaw = math.atan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z)) + math.pi / 2
    np.testing.assert_allclose(delta[1, :2], [2 * math.cos(yaw), 2 * math.sin(yaw)], atol=1e-5)
    np.testing.assert_array_equal(delta[0], 0.0)


def test_push_direction_turns_with_the_robot():
    np.testing.assert_allclose(push_velocity(-90.0, 1.5, heading=math.pi / 2), [1.5, 0.0, 0.0], atol=1e-12)


def test_command_of_the_sliders_reaches_all_robots_and_survives_a_reset(session):
    session.controls.command = (0.4, -0.1, 0.2)
    session.step()
    np.testing.assert_allclose(session.frame.commands, [[0.4, -0.1, 0.2]] * 2)
    session.controls.send(lambda session: session.restart())
    session.step()
    np.testing.assert_allclose(session.frame.commands, [[0.4, -0.1, 0.2]] * 2)


def test_pause_stops_time(session):
    session.step()
    session.controls.is_paused = True
    time, qpos = session.time, session.frame.qpos.copy()
    session.step()
    assert session.time == time
    np.testing.assert_array_equal(session.frame.qpos, qpos)


def test_swapped_checkpoint_acts_and_a_broken_one_changes_nothing():
    actions = {"a.pt": 0.3, "b.pt": -0.3}

    def load(name):
        if name not in actions:
            raise ValueError("no such file")
        return lambda obs: torch.full((len(obs), 12), actions[name])

    session = ViewSession(make_task("quadruped-walk", num_envs=1), load("a.pt"), load, "a.pt")
    session.controls.send(lambda session: session.load_checkpoint("b.pt"))
    session.step()
    assert session.checkpoint == "b.pt"
    np.testing.assert_allclose(session.frame.actions, -0.3)
    session.controls.send(lambda session: session.load_checkpoint("gone.pt"))
    session.step()
    assert session.checkpoint == "b.pt"
    assert session.message == "gone.pt could not be loaded: no such file"
    np.testing.assert_allclose(session.frame.actions, -0.3)


def test_robot_moves_to_the_chosen_terrain():
    task = make_task("quadruped-parkour", num_envs=1)
    session = ViewSession(task, zero_policy, lambda name: zero_policy, "best.pt")
    session.controls.send(lambda session: session.move_to_terrain(kind=1, level=2))
    session.step()
    assert (int(task.kind[0]), int(task.level[0])) == (1, 2)
    expected = task._initial_places()[0][0].numpy()
    np.testing.assert_allclose(session.frame.qpos[0, :2], expected, atol=0.3)


def test_ghost_stands_where_the_robot_is_in_the_pose_of_the_clip():
    task = make_task("quadruped-amp", num_envs=1)
    session = ViewSession(task, zero_policy, lambda name: zero_policy, "best.pt")
    session.step()
    session.controls.clip_time = 0.1
    ghost = session.ghost_qpos()
    assert ghost is not None
    np.testing.assert_array_equal(ghost[:2], session.frame.qpos[0, :2])
    clip = task.reference.clips[0]
    expected = clip.joint_pos[round(0.1 / task.step_dt)]
    np.testing.assert_allclose(ghost[list(task.robot.qpos_indices)], expected, atol=1e-4)
    assert session.clips[0] == (clip.name, clip.duration)


def test_ghost_of_a_tracking_robot_is_the_reference_at_its_place():
    task = make_task("quadruped-track", num_envs=1, **{"motions": ("trot_0.5", "pace_0.5")})
    session = ViewSession(task, zero_policy, lambda name: zero_policy, "best.pt")
    assert [name for name, _ in session.clips] == ["trot_0.5", "pace_0.5"]
    session.controls.clip = 1
    session.step()
    assert int(task.clip[0]) == 1
    first = int(task.reference.first_row[1])
    assert int(task.row[0]) == first + 1
    np.testing.assert_allclose(session.ghost_qpos(), task.reference.qpos[first + 1].numpy(), atol=1e-6)
    session.controls.clip_time = 0.4
    np.testing.assert_allclose(session.ghost_qpos(), task.reference.qpos[first + 20].numpy(), atol=1e-6)
    session.controls.clip_time = 99.0
    np.testing.assert_allclose(session.ghost_qpos(), task.reference.qpos[-1].numpy(), atol=1e-6)


def test_task_without_clips_has_no_ghost(session):
    assert session.clips == []
    assert session.ghost_qpos() is None


def test_slider_covers_the_trained_range_and_zero():
    assert slider_limits(0.3, 1.0) == (0.0, 1.0)
    assert slider_limits(-0.5, 0.5) == (-0.5, 0.5)
    assert slider_limits(0.0, 0.0) is None


def test_robots_are_spread_without_overlap():
    places = spread_offsets(16, 1.6)
    assert places[0].tolist() == [0.0, 0.0, 0.0]
    distances = np.linalg.norm(places[:, None] - places[None], axis=-1)[~np.eye(16, dtype=bool)]
    assert distances.min() == pytest.approx(1.6)


def test_real_time_waits_for_the_clock_and_does_not_catch_up_after_a_stall():
    now = [0.0]
    pace = RealTime(lambda: now[0])
    assert pace.wait_s(0.02, speed=1.0) == pytest.approx(0.02)
    assert pace.wait_s(0.02, speed=0.5) == pytest.approx(0.06)
    now[0] = 100.0
    waits = [pace.wait_s(0.02, 1.0) for _ in range(12)]
    assert waits[0] == 0.0
    assert waits[-1] > 0.0
