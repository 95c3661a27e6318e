"""The messages between a robot and its controller over UDP.

One datagram per message, little-endian, no padding. Both begin with a header of 20 bytes:

    magic      4s   b"STRL"
    kind       B    1: sensors, robot to controller; 2: command, controller to robot
    joints     B    number of joints J
    feet       H    number of feet F
    sequence   I    0, 1, 2, ...; counts the messages of the sender
    time       d    s on the clock of the sender; when the sensors were read

then float32 values, joints in the order of `deploy.yaml`:

    sensors:  joint_pos[J] rad, joint_vel[J] rad/s, joint_torque[J] Nm, base_ang_vel[3] rad/s in the frame of the base,
              orientation[4] w, x, y, z, foot_contact[F] 0 or 1
    command:  targets[J] rad, stiffness[J] Nm/rad, damping[J] Nm s/rad

The robot sends sensors to the address of the last command, and damps when no command has arrived for 0.1 s.
"""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

import numpy as np

PORT = 9870
SENSORS, COMMAND = 1, 2
_HEADER = struct.Struct("<4sBBHId")
_MAGIC = b"STRL"


class Message(NamedTuple):
    """A datagram, unpacked."""

    sequence: int
    time_s: float
    values: dict[str, np.ndarray]
    """Values by name, float32."""


def make_layout(kind: int, num_joints: int, num_feet: int) -> dict[str, int]:
    """Names and widths of the values of a message, in order."""
    if kind == COMMAND:
        return dict.fromkeys(("targets", "stiffness", "damping"), num_joints)
    joints = dict.fromkeys(("joint_pos", "joint_vel", "joint_torque"), num_joints)
    return {**joints, "base_ang_vel": 3, "orientation": 4, "foot_contact": num_feet}


def pack_message(kind: int, num_joints: int, num_feet: int, message: Message) -> bytes:
    """The datagram of a message."""
    header = _HEADER.pack(_MAGIC, kind, num_joints, num_feet, message.sequence, message.time_s)
    names = make_layout(kind, num_joints, num_feet)
    return header + np.concatenate([np.asarray(message.values[name], "<f4") for name in names]).tobytes()


def unpack_message(datagram: bytes, kind: int, num_joints: int, num_feet: int) -> Message | None:
    """The message of a datagram; None if it is of another kind, robot or length."""
    layout = make_layout(kind, num_joints, num_feet)
    if len(datagram) != _HEADER.size + 4 * sum(layout.values()):
        return None
    *identity, sequence, time_s = _HEADER.unpack_from(datagram)
    if identity != [_MAGIC, kind, num_joints, num_feet]:
        return None
    values = np.frombuffer(datagram, "<f4", offset=_HEADER.size)
    ends = np.cumsum(list(layout.values()))[:-1]
    return Message(sequence, time_s, dict(zip(layout, np.split(values, ends))))


def receive_last(connection: socket.socket, size: int = 4096) -> tuple[bytes, tuple[str, int]] | None:
    """The newest datagram that has arrived on a non-blocking socket, and its sender; None if there is none."""
    last = None
    while True:
        try:
            last = connection.recvfrom(size)
        except (BlockingIOError, ConnectionRefusedError):
            return last
