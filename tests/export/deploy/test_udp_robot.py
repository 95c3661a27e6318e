"""The example of a robot behind UDP: the controller of a kit makes it stand up, and damps when its sensors fail."""

import importlib
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.export.deploy.kits import make_golden_task, make_kit, make_policy

pytest.importorskip("mujoco")
pytest.importorskip("onnxscript")

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "deploy"
PERIOD = 0.02
NAMES = ("controller", "message", "udp_robot", "robot")


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    """A kit of a policy that moves the legs a little and does not fall."""
    task = make_golden_task()
    trained = make_policy(task)
    for parameter in trained.actor_critic.actor[-1].parameters():
        parameter.mul_(0.3)
    folder = tmp_path_factory.mktemp("kits") / "kit"
    make_kit(folder, task, trained)
    return folder


@pytest.fixture(scope="module")
def example(kit):
    """The modules of the example by name, with the controller of the kit."""
    with pytest.MonkeyPatch.context() as patch:
        for name in NAMES:
            patch.delitem(sys.modules, name, raising=False)
        patch.syspath_prepend(str(EXAMPLE))
        patch.syspath_prepend(str(kit))
        yield {name: importlib.import_module(name) for name in NAMES}
        for name in NAMES:
            del sys.modules[name]


class Loop:
    """Robot and controller in one thread, on simulated time, with messages over loopback."""

    def __init__(self, kit, example, **settings):
        controller, self.server = example["controller"], example["robot"].RobotServer(kit, port=0, **settings)
        policy = controller.Policy(kit / "policy.onnx")
        self.controller = controller.Controller(policy, stand_up_s=1.0)
        self.robot = example["udp_robot"].UdpRobot(policy.deploy, "127.0.0.1", self.server.port, lambda: self.now)
        self.commands = []
        self.times = []

    @property
    def now(self) -> float:
        # The clocks of two computers do not agree.
        return self.server.data.time + 1000.0

    def advance(self, steps: int) -> None:
        for _ in range(steps):
            for _ in range(round(PERIOD / self.server.model.opt.timestep)):
                self.server.step()
            self.times.append(self.now)
            self.commands.append(self.controller.step(self.robot.read(), self.now))
            self.robot.write(self.commands[-1])

    def stand_up_and_start_policy(self) -> None:
        self.advance(50)
        self.controller.start_stand_up(self.robot.read(), self.now)
        while not self.controller.is_standing(self.now):
            self.advance(1)
        self.controller.start_policy(self.now)


def test_robot_stands_up_from_the_ground_and_policy_runs(kit, example):
    loop = Loop(kit, example)
    loop.advance(50)
    assert loop.server.data.qpos[2] < 0.15
    loop.stand_up_and_start_policy()
    loop.advance(100)
    assert (loop.controller.state.value, loop.controller.reason) == ("policy", "")
    assert loop.server.data.qpos[2] > 0.2
    loop.controller.damp("finished")
    loop.advance(50)
    assert loop.server.data.qpos[2] < 0.15


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("nan", "joint_vel is NaN or infinite, first at index 0"),
        ("degrees", r"position of \w+ is .* rad \(degrees\?\), outside of"),
        ("upside-down", "the base leans by"),
        ("jump", "the position of FR_thigh_joint jumps"),
        ("stale", "sensor data are .* ms old, the limit is 50 ms"),
        ("silent", "sensor data are .* ms old, the limit is 50 ms"),
    ],
)
def test_planted_fault_damps_within_one_step(kit, example, fault, reason):
    loop = Loop(kit, example, fault=fault, fault_after_s=1.9)
    loop.stand_up_and_start_policy()
    start = loop.now
    loop.advance(60)
    assert re.search(reason, loop.controller.reason), loop.controller.reason
    damped = next(t for t, command in zip(loop.times, loop.commands) if t > start and not command.stiffness.any())
    timestep = loop.server.model.opt.timestep
    # The first message with the fault, or the last one that counts.
    fault_s = loop.server._stiff_s + 1.9 + 1000.0
    expected = fault_s - timestep + 0.05 if fault in ("stale", "silent") else fault_s
    assert expected - timestep <= damped <= expected + PERIOD + timestep
    assert not loop.server.is_stiff


def test_hoist_holds_base_until_joints_are_stiff_for_some_time(kit, example):
    loop = Loop(kit, example, hoist_s=1.5)
    loop.advance(50)
    home = loop.server.model.key("home").qpos[2]
    assert loop.server.data.qpos[2] == pytest.approx(home, abs=1e-3)
    loop.stand_up_and_start_policy()
    loop.advance(10)
    assert loop.server.data.qpos[2] == pytest.approx(home, abs=1e-3)
    loop.advance(50)
    assert loop.server.data.qpos[2] != pytest.approx(home, abs=1e-3)
    assert loop.controller.reason == ""


def test_robot_damps_without_commands(kit, example):
    loop = Loop(kit, example)
    loop.stand_up_and_start_policy()
    loop.advance(5)
    assert loop.server.is_stiff
    for _ in range(60):
        loop.server.step()
    assert not loop.server.is_stiff


def test_message_has_documented_layout(example):
    message = example["message"]
    values = {"targets": np.arange(2), "stiffness": np.ones(2), "damping": np.zeros(2)}
    datagram = message.pack_message(message.COMMAND, 2, 4, message.Message(7, 1.5, values))
    assert datagram.hex() == "5354524c02020400" + "07000000" + "000000000000f83f" + (
        "00000000" + "0000803f" + "0000803f" * 2 + "00000000" * 2
    )
    unpacked = message.unpack_message(datagram, message.COMMAND, 2, 4)
    assert (unpacked.sequence, unpacked.time_s) == (7, 1.5)
    np.testing.assert_array_equal(unpacked.values["targets"], [0.0, 1.0])
    assert message.unpack_message(datagram, message.SENSORS, 2, 4) is None
    assert message.unpack_message(datagram, message.COMMAND, 2, 3) is None
    assert message.unpack_message(datagram[:-1], message.COMMAND, 2, 4) is None


def test_old_sequence_is_ignored_and_drifting_clock_followed(kit, example):
    loop = Loop(kit, example)
    loop.advance(2)
    newest = loop.robot.read()
    loop.server._sequence = 0
    loop.server.step()
    assert loop.robot.read() is newest
    # 50 ppm over 1000 s would make 50 ms without a correction.
    robot, message, values = loop.robot, example["message"], loop.server.measure()
    for second in range(1000):
        clock = 1000.0 + second
        robot._now = lambda clock=clock: clock
        sent = message.Message(10**6 + second, second * (1 - 50e-6), values)
        loop.server._socket.sendto(message.pack_message(message.SENSORS, 12, 4, sent), loop.server._client)
        age = clock - robot.read().time_s
    assert 0.0 <= age < 0.01


def test_processes_talk_in_real_time(kit):
    arguments = [sys.executable, str(EXAMPLE / "robot.py"), str(kit), "--port", "0", "--seconds", "8"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as robot:
        try:
            port = re.search(r"port (\d+)", robot.stdout.readline()).group(1)
            options = [
                "--robot",
                str(EXAMPLE / "udp_robot.py"),
                "--robot-port",
                port,
                "--automatic",
                "--seconds",
                "0.2",
            ]
            command = [sys.executable, str(kit / "controller.py"), *options, "--stand-up-s", "0.5"]
            result = subprocess.run(command, capture_output=True, text=True, timeout=60)
        finally:
            robot.kill()
    states = [line.split(":")[0] for line in result.stdout.splitlines()]
    # A busy computer may miss the limit of stale data, which must end in damping with a reason and exit code 1.
    assert states[:2] == ["passive", "stand up"], result.stdout + result.stderr
    assert states[-2] == "damping"
    assert "deadlines missed; jitter" in result.stdout
    assert result.returncode == int("damping: finished" not in result.stdout)


def test_termination_damps(kit, example):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as robot:
        robot.bind(("127.0.0.1", 0))
        robot.settimeout(60)
        options = ["--robot", str(EXAMPLE / "udp_robot.py"), "--robot-port", str(robot.getsockname()[1])]
        command = [sys.executable, str(kit / "controller.py"), *options, "--automatic"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as controller:
            # The first command is sent by connect, the second by the loop.
            datagrams = [robot.recv(4096), robot.recv(4096)]
            controller.send_signal(signal.SIGTERM)
            output, _ = controller.communicate(timeout=60)
        robot.setblocking(False)
        datagrams.append(example["message"].receive_last(robot)[0])
    assert controller.returncode == 0
    assert "deadlines missed" in output
    first, *_, last = (example["message"].unpack_message(datagram, 2, 12, 4).values for datagram in datagrams)
    assert not first["damping"].any()
    assert last["damping"].all()
    assert not last["stiffness"].any()
