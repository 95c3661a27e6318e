"""Recordings of one robot; the command schedule stays within the ranges of the task."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from st_rl.sim.evaluation.recording import CommandSegment, Recorder, make_command_schedule

pytest.importorskip("mujoco")


def commands(lin_vel_x=(-0.5, 1.0), lin_vel_y=(-0.4, 0.4), ang_vel_yaw=(-0.8, 0.8)):
    return SimpleNamespace(lin_vel_x=lin_vel_x, lin_vel_y=lin_vel_y, ang_vel_yaw=ang_vel_yaw)


@pytest.mark.parametrize(
    "given",
    [commands(), commands((0.3, 1.0), (0.0, 0.0), (0.0, 0.0)), commands((-1.0, -0.2), (0.1, 0.2), (0.0, 0.0))],
    ids=["all directions", "forward only", "backward only"],
)
def test_command_schedule_stays_in_ranges_and_duration(given):
    schedule = make_command_schedule(given, 12.0)
    assert sum(segment.seconds for segment in schedule) == pytest.approx(12.0)
    for segment in schedule:
        for value, (low, high) in zip(segment.command, (given.lin_vel_x, given.lin_vel_y, given.ang_vel_yaw)):
            assert low <= value <= high
    assert max(segment.command[0] for segment in schedule) == given.lin_vel_x[1]


def test_command_schedule_covers_every_axis():
    seen = [segment.command for segment in make_command_schedule(commands(), 12.0)]
    for axis, extremes in enumerate([(-0.5, 1.0), (-0.4, 0.4), (-0.8, 0.8)]):
        assert set(extremes) <= {command[axis] for command in seen}


@pytest.fixture(scope="module")
def recording():
    from st_rl.sim.evaluation.evaluator import make_eval_task
    from st_rl.sim.tasks import TASKS

    task = make_eval_task("quadruped-walk", TASKS["quadruped-walk"].cfg(), 1, 1.0, seed=3, fine=False)
    states = []
    recorder = Recorder(
        task,
        lambda obs: torch.zeros(1, 12),
        [CommandSegment(0.4, (0.5, 0.0, 0.1)), CommandSegment(0.6, (0.0, 0.2, 0.0))],
    )
    traces = recorder.run(1.0, lambda step: states.append((task.backend.qpos[0].clone(), task.torques[0].clone())))
    return task, recorder, traces, states


def test_traces_have_a_row_for_each_joint_and_foot_and_a_number_for_each_step(recording):
    task, _, traces, _ = recording
    assert traces.period == task.step_dt
    assert traces.joints == list(task.robot.joint_names)
    assert traces.feet == [foot.name for foot in task.robot.feet]
    for rows, count in ((traces.position, 12), (traces.torque, 12), (traces.contact, 4), (traces.velocity, 3)):
        assert len(rows) == count
        assert all(len(row) == 50 for row in rows)
    assert traces.resets == []


def test_traces_are_the_states_of_the_simulation(recording):
    task, _, traces, states = recording
    for step in (0, 20, 49):
        qpos, torque = states[step]
        positions = [row[step] for row in traces.position]
        assert positions == pytest.approx(qpos[list(task.robot.qpos_indices)].tolist(), rel=1e-4, abs=1e-6)
        assert [row[step] for row in traces.torque] == pytest.approx(torque.tolist(), rel=1e-4, abs=1e-6)


def test_commands_follow_the_schedule(recording):
    traces = recording[2]
    assert [row[5] for row in traces.command] == pytest.approx([0.5, 0.0, 0.1])
    assert [row[30] for row in traces.command] == pytest.approx([0.0, 0.2, 0.0])


def test_arrows_point_along_the_command_in_the_world(recording):
    task, recorder, _, _ = recording
    data, (command, _), _ = recorder.snapshot()
    base = task.robot.free_joint.body
    left = data.xmat[base].reshape(3, 3)[:, 1]
    assert float(command.vector @ left) > 0.9 * float((command.vector**2).sum() ** 0.5)


def test_clear_discards_recorded_steps(recording):
    task, recorder, _, _ = recording
    recorder.clear()
    assert all(len(row) == 5 for row in recorder.run(5 * task.step_dt).position)


def test_robot_shows_its_clips_one_after_the_other_with_their_ghost():
    from st_rl.sim.evaluation.evaluator import make_eval_task
    from st_rl.sim.tasks import TASKS

    cfg = TASKS["quadruped-track"].cfg(motions=("trot_0.5", "pace_0.5"))
    task, seen = make_eval_task("quadruped-track", cfg, 1, 1.0, seed=3, fine=False), []
    recorder = Recorder(task, lambda obs: torch.full((1, 12), 5.0))

    def keep(step):
        seen.append((int(task.clip[0]), recorder.snapshot().ghost, task.reference.qpos[int(task.row[0])].numpy()))

    traces = recorder.run(0.9, keep)
    starts = [0, *(round(time / task.step_dt) - 1 for time in traces.resets)]
    assert len(starts) > 3
    assert [seen[start][0] for start in starts] == [number % 2 for number in range(len(starts))]
    for _, ghost, expected in seen:
        np.testing.assert_allclose(ghost, expected, atol=1e-6)
