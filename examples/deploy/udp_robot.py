"""A robot behind UDP, for `controller.py` of a deploy kit: replace this file by one that calls your robot's SDK.

    python kit/controller.py --robot udp_robot.py --command 0.5 0 0 [--robot-host 127.0.0.1] [--robot-port 9870]

`message.py` documents the messages.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from controller import JointCommand, Sensors
from message import COMMAND, PORT, SENSORS, Message, pack_message, receive_last, unpack_message

MAX_DRIFT = 1e-4
"""Largest difference of the rates of two clocks."""


class UdpRobot:
    """The robot as the controller sees it: the `Robot` of `controller.py`."""

    def __init__(self, deploy: Mapping[str, Any], host: str, port: int, now: Callable[[], float] = time.monotonic):
        self._joints, self._feet, self._now = len(deploy["joints"]), len(deploy["feet"]), now
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.connect((host, port))
        self._socket.setblocking(False)
        self._sensors: Sensors | None = None
        self._offset_s, self._offset_set_s = float("inf"), now()
        self._sequence = 0
        self._last_sequence = -1
        # The robot sends nothing before it knows our address: a first command without torque.
        self.write(JointCommand(*np.zeros((3, self._joints))))

    def read(self) -> Sensors | None:
        """The newest measurement, with its time on the clock of the controller."""
        received = receive_last(self._socket)
        message = unpack_message(received[0], SENSORS, self._joints, self._feet) if received else None
        if message is not None and message.sequence > self._last_sequence:
            self._last_sequence = message.sequence
            self._sensors = Sensors(message.time_s + self._clock_offset(message.time_s), message.values)
        return self._sensors

    def _clock_offset(self, time_s: float) -> float:
        """Seconds from the clock of the robot to ours: those of the fastest message, as far as the clocks drift."""
        now = self._now()
        drifted = self._offset_s + MAX_DRIFT * (now - self._offset_set_s)
        self._offset_s, self._offset_set_s = min(now - time_s, drifted), now
        return self._offset_s

    def write(self, command: JointCommand) -> None:
        """Send targets and gains."""
        values = {"targets": command.targets, "stiffness": command.stiffness, "damping": command.damping}
        message = Message(self._sequence, self._now(), values)
        self._sequence += 1
        # Without a receiver, the guard of missing or stale data notices it.
        with contextlib.suppress(ConnectionRefusedError):
            self._socket.send(pack_message(COMMAND, self._joints, self._feet, message))


def connect(deploy: Mapping[str, Any], arguments: list[str]) -> UdpRobot:
    """Called by `controller.py` with the options that it does not know."""
    parser = argparse.ArgumentParser(prog="udp_robot.py")
    parser.add_argument("--robot-host", default="127.0.0.1")
    parser.add_argument("--robot-port", type=int, default=PORT)
    options = parser.parse_args(arguments)
    return UdpRobot(deploy, options.robot_host, options.robot_port)
