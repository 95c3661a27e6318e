"""The controller of a kit: its states, its guards, its clock, and the golden run."""

import copy
import re
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

from tests.export.deploy.kits import make_golden_task, make_kit, make_policy

pytest.importorskip("mujoco")
pytest.importorskip("onnxscript")

from st_rl.export.deploy.files import simulate
from st_rl.export.deploy.files.controller import (
    Clock,
    Controller,
    GuardError,
    Guards,
    JointCommand,
    Operator,
    Policy,
    Sensors,
    State,
    load_robot,
    replay_golden,
    run,
    save_log,
)

PERIOD = 0.02


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    """A kit of a policy that moves the legs a little and does not fall."""
    task = make_golden_task()
    trained = make_policy(task, "ActorCriticRecurrent", rnn_hidden_size=8)
    for parameter in trained.actor_critic.actor[-1].parameters():
        parameter.mul_(0.3)
    folder = tmp_path_factory.mktemp("kits") / "kit"
    make_kit(folder, task, trained)
    return folder


@pytest.fixture(scope="module")
def policy(kit):
    return Policy(kit / "policy.onnx")


class SteppedRobot:
    """A robot in MuJoCo on a clock that only advances with its steps."""

    def __init__(self, kit, deploy):
        self._robot = simulate.SimulatedRobot(deploy, kit / "robot" / "robot.xml", simulate.Disturbance())
        self.time_s = 5.0
        self.commands: list[JointCommand] = []

    def read(self) -> Sensors | None:
        values = {name: value.copy() for name, value in self._robot.measure(np.zeros(3)).items()}
        del values["command"]
        return Sensors(self.time_s, values)

    def write(self, command: JointCommand) -> None:
        self.commands.append(command)
        self._robot.apply(command.targets)
        self.time_s += PERIOD


@pytest.fixture
def robot(kit, policy):
    return SteppedRobot(kit, policy.deploy)


def lead_to_policy(controller: Controller, robot: SteppedRobot, steps: int = 10) -> None:
    """Stand up and run the policy for some steps."""
    controller.start_stand_up(robot.read(), robot.time_s)
    while not controller.is_standing(robot.time_s):
        robot.write(controller.step(robot.read(), robot.time_s))
    controller.start_policy(robot.time_s)
    for _ in range(steps):
        robot.write(controller.step(robot.read(), robot.time_s))
    assert (controller.state, controller.reason) == (State.POLICY, "")


def test_replays_golden_run(kit, policy):
    golden = dict(np.load(kit / "golden.npz"))
    assert replay_golden(Controller(policy), golden) <= 1e-5
    golden["joint_pos"] = np.roll(golden["joint_pos"], 1, axis=1)
    assert replay_golden(Controller(policy), golden) > 1e-3


def test_runs_without_this_library(kit):
    code = f"import runpy, sys; sys.argv = ['controller.py']; sys.path.insert(0, {str(kit)!r})\n"
    code += f"try: runpy.run_path({str(kit / 'controller.py')!r}, run_name='__main__')\n"
    code += "finally: assert not {name.split('.')[0] for name in sys.modules} & {'torch', 'st_rl', 'yaml', 'mujoco'}"
    result = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True)
    assert result.stdout.startswith("pass  golden run"), result.stderr


def test_stands_up_from_measured_pose_and_starts_policy_from_default_pose(policy, robot):
    controller = Controller(policy, stand_up_s=0.5)
    passive = controller.step(None, 0.0)
    assert not passive.stiffness.any()
    assert not passive.damping.any()
    start = robot.read().values["joint_pos"]
    lead_to_policy(controller, robot)
    joints = policy.deploy["joints"]
    np.testing.assert_allclose(robot.commands[0].targets, start, atol=1e-6)
    np.testing.assert_allclose(robot.commands[25].targets, [j["default_pos"] for j in joints], atol=0.2)
    np.testing.assert_array_equal(robot.commands[-1].stiffness, [j["stiffness"] for j in joints])
    np.testing.assert_array_equal(robot.commands[-1].damping, [j["damping"] for j in joints])
    assert np.abs(robot.commands[-1].targets - robot.commands[-2].targets).max() > 0


def test_policy_gets_sensors_and_limited_command(kit, policy, robot):
    controller = Controller(policy, stand_up_s=0.1, keep_log=True)
    controller.set_command(np.array([99.0, 0.0, -99.0]))
    lead_to_policy(controller, robot, steps=3)
    high, low = policy.deploy["commands"]["lin_vel_x"][1], policy.deploy["commands"]["ang_vel_yaw"][0]
    np.testing.assert_allclose(controller.log[0]["command"], [high, 0.0, low])
    reference = simulate.Policy(kit / "policy.onnx")
    for row, command in zip(controller.log, robot.commands[-3:]):
        outputs = reference.step({name: row[name] for name in policy.deploy["inputs"]})
        np.testing.assert_array_equal(command.targets, outputs["joint_targets"])


def set_value(name: str, index: int | slice, value: float) -> Callable[[dict], None]:
    def plant(values: dict) -> None:
        values[name][index] = value

    return plant


def use_degrees(values: dict) -> None:
    values["joint_pos"] *= 180 / np.pi


def turn_upside_down(values: dict) -> None:
    values["orientation"][:] = [0.0, 1.0, 0.0, 0.0]


def give_xyzw(values: dict) -> None:
    values["orientation"] = values["orientation"][[1, 2, 3, 0]]


def swap_thigh_and_calf(values: dict) -> None:
    values["joint_pos"][[1, 2]] = values["joint_pos"][[2, 1]]


def jump(values: dict) -> None:
    values["joint_pos"][2] += 0.5


FAULTS = {
    "NaN": (set_value("joint_vel", 3, np.nan), "joint_vel is NaN or infinite, first at index 3"),
    "infinite": (set_value("base_ang_vel", 0, np.inf), "base_ang_vel is NaN or infinite"),
    "degrees": (use_degrees, r"position of \w+ is .* rad \(degrees\?\), outside of"),
    "upside down": (turn_upside_down, r"leans by 3.14 rad, the limit is 1.00 rad"),
    "no quaternion": (set_value("orientation", slice(None), 0.0), "not a unit quaternion: its length is 0.00"),
    "xyzw quaternion": (give_xyzw, r"orientation jumps by 3.1\d rad, the limit is 0.5\d rad"),
    "swapped joints": (swap_thigh_and_calf, r"position of FR_thigh_joint is -1\.\d+ rad .*, outside of"),
    "jump of a joint": (jump, r"position of FR_calf_joint jumps"),
    "speed": (set_value("joint_vel", 0, 500.0), r"velocity of FR_hip_joint is 500 rad/s"),
    "missing": (lambda values: values.pop("base_ang_vel"), "base_ang_vel is missing"),
    "shape": (lambda values: values.update(base_ang_vel=np.zeros(2)), r"base_ang_vel has the shape \(2,\)"),
    "torque": (lambda values: values.update(joint_torque=np.full(12, 99.0)), "torque of FR_hip_joint is 99 Nm"),
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("state", [State.STAND_UP, State.POLICY])
def test_fault_of_sensors_damps_within_the_step(policy, robot, name, state):
    plant, reason = FAULTS[name]
    controller = Controller(policy, stand_up_s=0.1)
    if state is State.POLICY:
        lead_to_policy(controller, robot)
    else:
        controller.start_stand_up(robot.read(), robot.time_s)
    sensors = robot.read()
    plant(sensors.values)
    check_damping(controller, controller.step(sensors, robot.time_s), reason)


def check_damping(controller: Controller, command: JointCommand, reason: str) -> None:
    assert controller.state is State.DAMPING
    assert re.search(reason, controller.reason), controller.reason
    assert not command.stiffness.any()
    np.testing.assert_array_equal(command.damping, [joint["damping"] for joint in controller.deploy["joints"]])
    assert np.isfinite(command.targets).all()


@pytest.mark.parametrize(
    ("age", "reason"), [(0.06, "sensor data are 60 ms old, the limit is 50 ms"), (-1.0, "-1000 ms old")]
)
def test_stale_data_and_data_of_another_clock_cause_damping(policy, robot, age, reason):
    controller = Controller(policy, stand_up_s=0.1)
    lead_to_policy(controller, robot)
    sensors = Sensors(robot.time_s - age, robot.read().values)
    check_damping(controller, controller.step(sensors, robot.time_s), reason)


def test_missing_data_damp(policy, robot):
    controller = Controller(policy, stand_up_s=0.1)
    lead_to_policy(controller, robot)
    check_damping(controller, controller.step(None, robot.time_s), "no sensor data")


def test_frozen_values_with_new_time_stamps_damp(policy, robot):
    controller = Controller(policy, stand_up_s=0.1)
    lead_to_policy(controller, robot)
    frozen = robot.read().values
    for _ in range(3):
        command = controller.step(Sensors(robot.time_s, frozen), robot.time_s)
        robot.time_s += PERIOD
        assert controller.state is State.POLICY
    check_damping(controller, controller.step(Sensors(robot.time_s, frozen), robot.time_s), "have not changed")
    assert command.stiffness.any()


@pytest.mark.parametrize(("factor", "steps"), [(2.0, 3), (0.5, 4)])
def test_another_rate_damps_within_few_steps(policy, robot, factor, steps):
    controller = Controller(policy, stand_up_s=0.1)
    lead_to_policy(controller, robot, steps=30)
    for _ in range(steps):
        robot.time_s += (factor - 1) * PERIOD
        command = controller.step(robot.read(), robot.time_s)
        if controller.state is State.DAMPING:
            break
        robot.write(command)
    check_damping(controller, command, r"the loop runs at \d+ Hz, the policy needs 50 Hz")


@pytest.mark.parametrize(
    ("scale", "reason"), [(0.05, r"joint_pos changes [12]\d times"), (-1.0, "joint_pos changes -")]
)
def test_velocities_of_another_scale_damp_while_joints_move(policy, robot, scale, reason):
    controller = Controller(policy, stand_up_s=1.0)
    start = np.array([joint["default_pos"] for joint in policy.deploy["joints"]])
    values = {**robot.read().values, "joint_pos": start}
    command = None
    controller.start_stand_up(Sensors(0.0, values), 0.0)
    for step in range(1, 40):
        # Joints swing by 0.3 rad, in phase.
        angle = 2 * np.pi * step * PERIOD
        values["joint_pos"] = start + 0.3 * np.sin(angle)
        values["joint_vel"] = np.full(12, scale * 0.6 * np.pi * np.cos(angle))
        command = controller.step(Sensors(step * PERIOD, dict(values)), step * PERIOD)
        if controller.state is State.DAMPING:
            break
    check_damping(controller, command, reason)


def swing(policy, robot, count, velocity_scale=1.0, late=0):
    """Measurements of joints that swing by 0.3 rad, in phase, with velocities `late` steps behind, from rest."""
    start = np.array([joint["default_pos"] for joint in policy.deploy["joints"]])
    values = {**robot.read().values}
    for step in range(count):
        values["joint_pos"] = start + 0.3 * np.sin(2 * np.pi * step * PERIOD)
        seen = step - late
        speed = 0.6 * np.pi * np.cos(2 * np.pi * seen * PERIOD) if seen > 0 else 0.0
        values["joint_vel"] = np.full(12, velocity_scale * speed)
        yield Sensors(step * PERIOD, dict(values))


def test_velocities_that_lose_their_scale_damp_within_the_step(policy, robot):
    controller = Controller(policy, stand_up_s=9.0)
    for step, sensors in enumerate(swing(policy, robot, 50)):
        if step == 0:
            controller.start_stand_up(sensors, 0.0)
        elif step == 48:
            sensors.values["joint_vel"][:] *= 0.05
        command = controller.step(sensors, sensors.time_s)
        if controller.state is State.DAMPING:
            break
    assert step == 48
    check_damping(controller, command, r"joint_pos changes \d\d times as fast as joint_vel says")


@pytest.mark.parametrize("late", [0, 1])
def test_velocities_that_are_a_step_late_do_not_damp(policy, robot, late):
    controller = Controller(policy, stand_up_s=9.0)
    for step, sensors in enumerate(swing(policy, robot, 100, late=late)):
        if step == 0:
            controller.start_stand_up(sensors, 0.0)
        controller.step(sensors, sensors.time_s)
        assert controller.reason == ""


def test_message_that_is_repeated_under_a_new_time_does_not_make_the_next_one_a_jump(policy, robot):
    deploy = copy.deepcopy(policy.deploy)
    deploy["guards"]["max_joint_vel"] = [30.0] * 12
    sensors, guards, speed = robot.read(), Guards(deploy), 18.0
    # A calf at 18 rad/s: 0.36 rad in a step, within the limit; 0.72 rad from before the repeated message to after it.
    seen = {**sensors.values, "joint_vel": np.eye(12)[2] * speed}
    for step, place in enumerate([0, 1, 1, 3]):
        pos = sensors.values["joint_pos"] + np.eye(12)[2] * (speed * place * PERIOD - 0.8)
        guards.check_sensors(Sensors(step * PERIOD, {**seen, "joint_pos": pos}), step * PERIOD)
    with pytest.raises(GuardError, match="position of FR_calf_joint jumps"):
        guards.check_sensors(Sensors(4 * PERIOD, {**seen, "joint_pos": pos + np.eye(12)[2] * 0.7}), 4 * PERIOD)


def test_two_late_steps_do_not_damp(policy, robot):
    controller = Controller(policy, stand_up_s=0.1)
    lead_to_policy(controller, robot, steps=30)
    for late in (PERIOD, PERIOD, 0.0, 0.0, 0.0, PERIOD, 0.0):
        robot.time_s += late
        robot.write(controller.step(robot.read(), robot.time_s))
        assert controller.reason == ""


def test_slow_loop_damps(policy, robot):
    controller = Controller(policy, stand_up_s=0.1)
    lead_to_policy(controller, robot)
    robot.time_s += 0.1
    check_damping(controller, controller.step(robot.read(), robot.time_s), "the last control step was 120 ms ago")


@pytest.mark.parametrize(
    ("change", "reason"),
    [(np.nan, "the target of FR_hip_joint jumps: it is nan"), (2.0, "the target of FR_hip_joint jumps")],
)
def test_jump_of_target_damps_within_the_step(policy, robot, monkeypatch, change, reason):
    controller = Controller(policy, stand_up_s=0.1)
    lead_to_policy(controller, robot)
    step = policy.step

    def faulty_step(inputs):
        outputs = step(inputs)
        return {**outputs, "joint_targets": outputs["joint_targets"] + np.float32(change)}

    monkeypatch.setattr(policy, "step", faulty_step)
    check_damping(controller, controller.step(robot.read(), robot.time_s), reason)


def test_blocked_joint_damps_by_torque(policy, robot):
    controller = Controller(policy, stand_up_s=1.0)
    sensors = robot.read()
    sensors.values["joint_pos"][1] += 1.5
    controller.start_stand_up(sensors, robot.time_s)
    for _ in range(60):
        command = controller.step(Sensors(robot.time_s, sensors.values), robot.time_s)
        robot.time_s += PERIOD
    check_damping(controller, command, "torque that the target of FR_thigh_joint asks for is .* Nm")


def test_damping_is_final_and_keeps_first_reason(policy, robot):
    controller = Controller(policy, stand_up_s=0.1)
    lead_to_policy(controller, robot)
    controller.step(None, robot.time_s)
    check_damping(controller, controller.step(robot.read(), robot.time_s), "no sensor data")
    with pytest.raises(GuardError, match="in the state 'damping', not 'passive'"):
        controller.start_stand_up(robot.read(), robot.time_s)
    controller.damp("later")
    assert controller.reason == "no sensor data have arrived"


def test_states_start_in_order_only(policy, robot):
    controller = Controller(policy, stand_up_s=1.0)
    with pytest.raises(GuardError, match="in the state 'passive', not 'stand up'"):
        controller.start_policy(robot.time_s)
    with pytest.raises(GuardError, match="no sensor data"):
        controller.start_stand_up(None, robot.time_s)
    assert controller.state is State.PASSIVE
    controller.start_stand_up(robot.read(), robot.time_s)
    with pytest.raises(GuardError, match="still standing up"):
        controller.start_policy(robot.time_s + 0.5)


class FakeTime:
    """A time that passes by sleeping only, plus what a step takes."""

    def __init__(self):
        self.now = 100.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_clock_keeps_period_and_counts_missed_deadlines():
    fake = FakeTime()
    clock = Clock(PERIOD, lambda: fake.now, fake.sleep)
    starts = []
    for duration in (0.005, 0.005, 0.025, 0.005, 0.070, 0.005, 0.0):
        starts.append(clock.wait() - 100.0)
        fake.now += duration
    # The third step ends 5 ms after the next deadline; the fifth takes 70 ms and is 2 periods and 10 ms late.
    np.testing.assert_allclose(starts, [0.0, 0.02, 0.04, 0.065, 0.08, 0.15, 0.16], atol=1e-9)
    assert (clock.steps, clock.missed) == (7, 3)
    assert "7 steps of 20 ms: 3 deadlines missed" in clock.report()
    assert clock.max_late_s == pytest.approx(0.05)
    assert clock.max_busy_s == pytest.approx(0.07)


class RobotWithFault(SteppedRobot):
    """Delivers NaN from a time on."""

    fault_s = np.inf

    def read(self) -> Sensors | None:
        sensors = super().read()
        if self.time_s >= self.fault_s:
            sensors.values["joint_pos"][0] = np.nan
        return sensors


def run_on(robot: SteppedRobot, controller: Controller) -> list[str]:
    """Run to the end on the robot's own time; return the prompts."""
    prompts: list[str] = []

    def confirm(what: str) -> bool:
        prompts.append(what)
        return what != "damp"

    clock = Clock(PERIOD, lambda: robot.time_s, lambda seconds: None)
    run(robot, controller, clock, Operator(np.array([0.3, 0.0, 0.0]), 1.0, confirm))
    return prompts


def test_operator_leads_through_all_states(kit, policy, capsys, tmp_path):
    robot, controller = SteppedRobot(kit, policy.deploy), Controller(policy, stand_up_s=0.5, keep_log=True)
    prompts = run_on(robot, controller)
    assert capsys.readouterr().out.splitlines() == ["passive", "stand up", "policy", "damping: finished"]
    assert prompts[:2] == ["stand up", "start the policy"]
    assert len(controller.log) == pytest.approx(50, abs=1)
    assert not robot.commands[-1].stiffness.any()
    save_log(controller, tmp_path / "log.npz")
    with np.load(tmp_path / "log.npz") as log:
        assert log["joint_targets"].shape == (len(controller.log), 12)
        assert log["reset"].sum() == 1


def test_run_ends_with_damping_and_reason(kit, policy, capsys):
    robot, controller = RobotWithFault(kit, policy.deploy), Controller(policy, stand_up_s=0.5)
    robot.fault_s = robot.time_s + 1.0 - PERIOD / 2
    run_on(robot, controller)
    assert capsys.readouterr().out.splitlines()[-1].startswith("damping: joint_pos is NaN")
    fault = round(1.0 / PERIOD)
    assert robot.commands[fault - 1].stiffness.all()
    assert not any(command.stiffness.any() for command in robot.commands[fault:])


def test_run_damps_when_robot_raises(kit, policy):
    robot, controller = SteppedRobot(kit, policy.deploy), Controller(policy, stand_up_s=0.5)
    read, calls = robot.read, []

    def fail() -> Sensors | None:
        calls.append(1)
        if len(calls) > 10:
            raise OSError("cable")
        return read()

    robot.read = fail
    with pytest.raises(OSError, match="cable"):
        run_on(robot, controller)
    assert not robot.commands[-1].stiffness.any()
    assert robot.commands[-1].damping.all()


def test_loads_robot_from_file(tmp_path, monkeypatch):
    for name in ("controller", "my_robot"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = tmp_path / "my_robot.py"
    path.write_text(
        "from controller import Sensors\ndef connect(deploy, arguments):\n    return Sensors, deploy, arguments"
    )
    assert load_robot(path, {"a": 1}, ["--b"]) == (Sensors, {"a": 1}, ["--b"])
