"""A log of a robot with a planted fault is told from a good one, and the fault is named."""

import dataclasses

import numpy as np
import pytest

from tests.export.deploy.kits import make_golden_task, make_kit, make_policy

pytest.importorskip("mujoco")
pytest.importorskip("onnxscript")

from st_rl.export.deploy.compare import compare_log
from st_rl.export.deploy.files import simulate


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    """A kit with foot contacts among its inputs, of a policy that moves the legs without falling."""
    table = type(make_golden_task(num_envs=1)).OBSERVATIONS
    private = table["foot_contact"]
    table["foot_contact"] = dataclasses.replace(private, privileged=False)
    try:
        task = make_golden_task(episode_length_s=3.0)
        trained = make_policy(task)
        trained.actor_critic.actor[-1].weight.mul_(2.0)
        folder = tmp_path_factory.mktemp("kits") / "kit"
        make_kit(folder, task, trained)
    finally:
        table["foot_contact"] = private
    return folder


class FaultyRobot(simulate.SimulatedRobot):
    """A robot with a fault between its sensors and the policy."""

    def __init__(self, kit, deploy, fault, substeps=1):
        super().__init__(deploy, kit / "robot" / "robot.xml", simulate.Disturbance(noise=0.2, delay_s=0.01))
        self._fault, self._substeps = fault, self._substeps * substeps
        self.history = []

    @property
    def has_fallen(self):
        """False: an untrained policy walks on its knees."""
        return False

    def measure(self, command):
        inputs = {name: value.copy() for name, value in super().measure(command).items()}
        self._fault(inputs, self.history)
        self.history.append(inputs)
        return inputs


def record(kit, fault=lambda inputs, history: None, substeps=1):
    """The log of three seconds."""
    policy = simulate.Policy(kit / "policy.onnx")
    log = simulate.walk(policy, FaultyRobot(kit, policy.deploy, fault, substeps), [0.6, 0.0, 0.0], 3.0).log
    log["time"] = log["time"] * substeps
    return log


def messages(kit, log) -> str:
    return " | ".join(f"{finding.name}: {finding.message}" for finding in compare_log(kit, log) if finding.is_fault)


def swap_joints(inputs, history):
    for name in ("joint_pos", "joint_vel"):
        inputs[name][[1, 2]] = inputs[name][[2, 1]]


def swap_legs(inputs, history):
    for name in ("joint_pos", "joint_vel"):
        inputs[name][:6] = inputs[name][[3, 4, 5, 0, 1, 2]]


def scale_velocities(inputs, history):
    inputs["joint_vel"] *= np.float32(0.05)


def give_xyzw(inputs, history):
    inputs["orientation"] = inputs["orientation"][[1, 2, 3, 0]]


def give_degrees(inputs, history):
    inputs["joint_pos"] = np.rad2deg(inputs["joint_pos"])


def give_gyro_degrees(inputs, history):
    inputs["base_ang_vel"] = np.rad2deg(inputs["base_ang_vel"])


def repeat_old_data(inputs, history):
    if len(history) > 20:
        inputs["joint_pos"] = history[20]["joint_pos"].copy()


def send_one_nan(inputs, history):
    if len(history) == 30:
        inputs["joint_vel"][3] = np.nan


def silence_foot(inputs, history):
    inputs["foot_contact"][2] = 0.0


def test_finds_no_fault_in_good_log(kit):
    assert messages(kit, record(kit)) == ""


def test_finds_no_fault_in_golden_run(kit):
    golden = dict(np.load(kit / "golden.npz"))
    assert messages(kit, golden) == ""


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (swap_joints, "FR_thigh_joint and FR_calf_joint look swapped"),
        (swap_legs, "FR_hip_joint and FL_hip_joint look swapped"),
        (scale_velocities, "joint_vel: wrong scale"),
        (give_xyzw, "the order looks like x, y, z, w"),
        (give_degrees, "joint_pos looks like degrees"),
        (give_gyro_degrees, "base_ang_vel looks like degrees"),
        (repeat_old_data, "joint_pos: stale data"),
        (send_one_nan, "joint_vel: 1 NaN or infinite, first at step 30 (FL_hip_joint)"),
        (silence_foot, "foot_contact: dead sensor (RR_foot): always 0"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_names_planted_fault(kit, fault, words):
    assert words in messages(kit, record(kit, fault))


def test_names_wrong_rate_with_and_without_time(kit):
    log = record(kit, substeps=2)
    assert "a step every 40.0 ms (25 Hz); the policy needs one every 20 ms (50 Hz)" in messages(kit, log)
    del log["time"]
    assert "another rate than that of the control loop" in messages(kit, log)


def test_names_missing_array_and_wrong_shape(kit):
    log = record(kit)
    del log["base_ang_vel"]
    log["orientation"] = log["orientation"][:, :3]
    found = messages(kit, log)
    assert "base_ang_vel: missing" in found
    assert "orientation: has the shape" in found


def test_notices_targets_that_do_not_follow_from_inputs(kit):
    log = record(kit)
    deploy = simulate.Policy(kit / "policy.onnx").deploy
    default = np.array([joint["default_pos"] for joint in deploy["joints"]], np.float32)
    scaled = {**log, "joint_targets": default + 0.8 * (log["joint_targets"] - default)}
    assert "they are 0.8 times the offsets from the default pose" in messages(kit, scaled)
    late = {**log, "joint_targets": np.concatenate([log["joint_targets"][:1], log["joint_targets"][:-1]])}
    assert "they are one step late" in messages(kit, late)


def test_names_term_that_differs(kit):
    log = record(kit)
    log["observation"] = log["observation"].copy()
    log["observation"][:, 3:6] *= -1.0
    assert "observation term projected_gravity: differs" in messages(kit, log)


def test_reports_inputs_outside_of_training(kit):
    log = record(kit)
    log["command"] = np.full_like(log["command"], 3.0)
    notes = [finding for finding in compare_log(kit, log) if not finding.is_fault]
    assert any(finding.name == "command" and "outside of the training" in finding.message for finding in notes)
