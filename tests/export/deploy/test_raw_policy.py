"""The policy from raw sensors to joint targets does what the task and the trained policy do."""

import dataclasses

import pytest
import torch

from st_rl.export.deploy import record_golden
from st_rl.export.onnx_file import ExportError
from st_rl.sim.deploy.robot_interface import RobotInterface
from tests.export.deploy.kits import deploy, make_golden_task, make_policy

pytest.importorskip("mujoco")
RAW = ["joint_pos", "joint_vel", "base_ang_vel", "orientation", "command"]


@pytest.mark.parametrize("name", ["quadruped-walk", "humanoid-walk", "quadruped-amp"])
def test_matches_task_in_closed_loop_with_resets(name):
    task = make_golden_task(name)
    trained = make_policy(task)
    golden = record_golden(deploy(task, trained), trained, task, num_steps=120)
    assert golden["reset"].sum() >= 2
    assert list(deploy(task, trained).inputs) == RAW


@pytest.mark.parametrize("rnn_type", ["gru", "lstm"])
def test_carries_hidden_states(rnn_type):
    task = make_golden_task()
    trained = make_policy(task, "ActorCriticRecurrent", rnn_type=rnn_type, rnn_hidden_size=8)
    golden = record_golden(deploy(task, trained), trained, task, num_steps=120)
    assert golden["state_memory_a_hidden"].any()


def test_lists_terms_that_no_robot_measures():
    interface = RobotInterface(make_golden_task("quadruped-rough", observe_linear_velocity=True))
    assert interface.unmeasured == {"base_lin_vel": "base_lin_vel", "height_scan": "height_scan"}
    assert [name for name, signal in interface.inputs.items() if signal.must_be_estimated] == [
        "base_lin_vel",
        "height_scan",
    ]


def test_own_term_on_sensors_is_deployed_and_foot_contacts_become_an_input():
    task = make_golden_task()
    table = type(task).OBSERVATIONS
    try:
        table["knees"] = dataclasses.replace(table["joint_pos"], function=lambda t: t.joint_pos[:, 2::3], width=4)
        table["foot_contact"] = dataclasses.replace(table["foot_contact"], privileged=False)
        task = make_golden_task()
    finally:
        del table["knees"]
        table["foot_contact"] = dataclasses.replace(table["foot_contact"], privileged=True)
    trained = make_policy(task)
    record_golden(deploy(task, trained), trained, task, num_steps=60)
    assert list(deploy(task, trained).inputs) == [*RAW, "foot_contact"]


def test_rejects_term_that_reads_hidden_values():
    hidden = {"counter": 0.0}

    def drifts(task):
        hidden["counter"] += 0.01
        return task.joint_pos + hidden["counter"]

    task = make_golden_task()
    column = task.observation_table.columns[2]
    task.observation_table.columns[2] = column._replace(term=dataclasses.replace(column.term, function=drifts))
    assert column.name == "joint_pos"
    trained = make_policy(task)
    with pytest.raises(ExportError, match="in an observation"):
        record_golden(deploy(task, trained), trained, task, num_steps=10)


def test_targets_stay_within_limits():
    task = make_golden_task()
    interface = RobotInterface(task)
    targets = interface.joint_targets({}, {}, torch.full((1, 12), 100.0))
    torch.testing.assert_close(targets[0], interface.upper)
