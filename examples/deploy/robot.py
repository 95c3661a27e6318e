"""A process that plays the robot of a deploy kit: MuJoCo in real time, joints and sensors over UDP.

    python robot.py kit                                      # needs numpy, onnxruntime and mujoco
    python kit/controller.py --robot udp_robot.py --automatic --command 0.5 0 0 --seconds 10      # in a second terminal
    python robot.py kit --view --fault nan --fault-after 5   # in a window; 5 s after the joints became stiff, one NaN

The robot starts in its default pose and sinks to the ground, as its joints are damped without commands. A humanoid
cannot stand up from there: `--hoist 4` holds its base until 4 s after the joints became stiff.
"""

# MuJoCo ships no types of its functions.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import argparse
import json
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mujoco
import mujoco.viewer
import numpy as np
import onnxruntime
from message import COMMAND, PORT, SENSORS, Message, pack_message, receive_last, unpack_message

TIMEOUT_S = 0.1
"""Without a command for so long, the joints are damped."""
MAX_LAG_S = 0.1
"""A simulation that is later than this gives up catching up."""
Arrays = dict[str, np.ndarray]


def _plant_nan(values: Arrays) -> None:
    values["joint_vel"][0] = np.nan


def _plant_degrees(values: Arrays) -> None:
    values["joint_pos"] = np.rad2deg(values["joint_pos"])


def _plant_upside_down(values: Arrays) -> None:
    w, x, y, z = values["orientation"]
    values["orientation"] = np.array([-x, w, z, -y])


def _plant_jump(values: Arrays) -> None:
    values["joint_pos"][1] += 0.6


FAULTS: dict[str, Callable[[Arrays], None]] = {
    "nan": _plant_nan,
    "degrees": _plant_degrees,
    "upside-down": _plant_upside_down,
    "jump": _plant_jump,
}
"""Changes of the sensor values; besides these, `stale` repeats the last message, `silent` sends none."""


class RobotServer:
    """A robot in MuJoCo that follows commands of one controller and sends it sensors after every physics step."""

    def __init__(self, kit: Path, port: int = PORT, hoist_s: float = 0.0, fault: str = "", fault_after_s: float = 0.0):
        session = onnxruntime.InferenceSession(str(kit / "policy.onnx"), providers=["CPUExecutionProvider"])
        deploy: Mapping[str, Any] = json.loads(session.get_modelmeta().custom_metadata_map["deploy"])
        self.model = mujoco.MjModel.from_xml_path(str(kit / "robot" / "robot.xml"))
        self.data = mujoco.MjData(self.model)
        mujoco.mj_resetDataKeyframe(self.model, self.data, self.model.key("home").id)
        robot, self._joints, self._feet = deploy["robot"], len(deploy["joints"]), len(deploy["feet"])
        self._qpos, self._qvel, self._contacts = robot["joint_qpos"], robot["joint_qvel"], robot["foot_sensors"]
        self._base_qpos = slice(robot["base_qpos"], robot["base_qpos"] + 7)
        self._base_qvel = slice(robot["base_qvel"], robot["base_qvel"] + 6)
        self._damping = np.array([joint["damping"] for joint in deploy["joints"]])
        self._hoist_s, self._fault, self._fault_after_s = hoist_s, fault, fault_after_s
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", port))
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        self._client: tuple[str, int] | None = None
        self._command_s = self._stiff_s = np.inf
        self._sequence, self._last_values = 0, self.measure()
        self._last_s = 0.0
        self._damp()

    @property
    def is_stiff(self) -> bool:
        """Whether the joints have stiffness."""
        return bool(self.model.actuator_gainprm[:, 0].any())

    def step(self) -> None:
        """Take a command, advance the physics by one step and send sensors."""
        self._receive()
        if self.data.time - min(self._stiff_s, self.data.time) < self._hoist_s:
            self.data.qpos[self._base_qpos] = self.model.key("home").qpos[self._base_qpos]
            self.data.qvel[self._base_qvel] = 0.0
        mujoco.mj_step(self.model, self.data)
        if self._client is not None:
            self._send(self._client)

    def measure(self) -> Arrays:
        """Values of a sensor message."""
        data = self.data
        return {
            "joint_pos": data.qpos[self._qpos],
            "joint_vel": data.qvel[self._qvel],
            "joint_torque": data.actuator_force.copy(),
            "base_ang_vel": data.qvel[self._base_qvel][3:].copy(),
            "orientation": data.qpos[self._base_qpos][3:].copy(),
            "foot_contact": data.sensordata[self._contacts] > 0,
        }

    def _receive(self) -> None:
        """Follow the newest command, or damp without one."""
        received = receive_last(self._socket)
        message = unpack_message(received[0], COMMAND, self._joints, self._feet) if received else None
        if received is not None and message is not None:
            self._client, self._command_s = received[1], self.data.time
            self.data.ctrl[:] = message.values["targets"]
            self._set_gains(message.values["stiffness"], message.values["damping"])
            if self.is_stiff:
                self._stiff_s = min(self._stiff_s, self.data.time)
        elif self.data.time - self._command_s > TIMEOUT_S:
            self._damp()

    def _damp(self) -> None:
        self._set_gains(np.zeros(self._joints), self._damping)

    def _set_gains(self, stiffness: np.ndarray, damping: np.ndarray) -> None:
        self.model.actuator_gainprm[:, 0], self.model.actuator_biasprm[:, 1] = stiffness, -stiffness
        self.model.actuator_biasprm[:, 2] = -damping

    def _send(self, client: tuple[str, int]) -> None:
        """Send the sensors, with the fault if it is time."""
        has_fault = bool(self._fault) and self.data.time - self._stiff_s >= self._fault_after_s
        if has_fault and self._fault == "silent":
            return
        if not (has_fault and self._fault == "stale"):
            self._last_values, self._last_s = self.measure(), self.data.time
            if has_fault:
                FAULTS[self._fault](self._last_values)
        message = Message(self._sequence, self._last_s, self._last_values)
        self._sequence += 1
        self._socket.sendto(pack_message(SENSORS, self._joints, self._feet, message), client)

    def describe(self) -> str:
        """One line about the robot."""
        x, y, z = self.data.qpos[self._base_qpos][:3]
        gains = "stiff" if self.is_stiff else "damped"
        return f"{self.data.time:6.1f} s: joints {gains}, base at x {x:+.2f}, y {y:+.2f}, height {z:.2f} m"


def run(server: RobotServer, seconds: float, speed: float, show: Callable[[], bool]) -> None:
    """Step in real time, or `speed` times as fast; print a line every second."""
    start = time.monotonic()
    lost = next_line = 0.0
    while server.data.time < seconds and show():
        ahead = server.data.time / speed - (time.monotonic() - start)
        if ahead > 0:
            time.sleep(ahead)
        elif ahead < -MAX_LAG_S:
            start, lost = start - ahead, lost - ahead
        server.step()
        if server.data.time >= next_line:
            print(server.describe(), flush=True)
            next_line += 1.0
    print(f"{lost:.2f} s lost: the computer was too slow for real time" if lost else "all in real time", flush=True)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kit", type=Path)
    parser.add_argument("--port", type=int, default=PORT)
    parser.add_argument("--seconds", type=float, default=np.inf)
    parser.add_argument(
        "--speed", type=float, default=1.0, help="less than 1: slow motion; the controller knows no such"
    )
    parser.add_argument("--hoist", type=float, default=0.0, help="hold the base for so long after joints became stiff")
    parser.add_argument("--fault", choices=[*FAULTS, "stale", "silent"], default="", help="fault of the sensors")
    parser.add_argument("--fault-after", type=float, default=4.0, help="seconds after joints became stiff")
    parser.add_argument("--view", action="store_true", help="show the robot in a window")
    options = parser.parse_args()
    server = RobotServer(options.kit, options.port, options.hoist, options.fault, options.fault_after)
    print(f"waiting for a controller on port {server.port}", flush=True)
    if not options.view:
        return run(server, options.seconds, options.speed, lambda: True)
    with mujoco.viewer.launch_passive(server.model, server.data) as viewer:

        def show() -> bool:
            if round(server.data.time / server.model.opt.timestep) % 10 == 0:
                viewer.sync()
            return viewer.is_running()

        return run(server, options.seconds, options.speed, show)


if __name__ == "__main__":
    main()
