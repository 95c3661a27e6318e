"""Run this kit in plain MuJoCo: python simulate.py --command 0.6 0 0 --view, or --clip NAME where it tracks clips.

It needs numpy, onnxruntime and mujoco, and the files beside it.
"""

# MuJoCo ships no types of its functions.
# pyright: reportAttributeAccessIssue=false

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mujoco
import mujoco.viewer
import numpy as np
import onnxruntime

Arrays = dict[str, np.ndarray]
# Estimates that the simulation knows; a policy that needs others cannot be simulated here.
KNOWN_ESTIMATES = ("base_lin_vel",)
WARMUP_S = 1.0
"""Seconds from the start that do not count for the velocity error."""


class Policy:
    """`policy.onnx`: raw inputs to joint targets; it keeps its states between two steps."""

    def __init__(self, path: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.deploy: dict[str, Any] = json.loads(self.session.get_modelmeta().custom_metadata_map["deploy"])
        """The content of `deploy.yaml`."""
        self._names = [output.name for output in self.session.get_outputs()]
        self.reset()

    def reset(self, state: Mapping[str, np.ndarray] | None = None) -> None:
        """Start an episode, from given states or from zeros."""
        zeros = {name: np.zeros(signal["shape"], np.float32) for name, signal in self.deploy["states"].items()}
        self.state: Arrays = {**zeros, **(state or {})}

    def step(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Outputs of one control step: `joint_targets`, `actions` and `observation`."""
        values = [np.asarray(value) for value in self.session.run(None, {**inputs, **self.state})]
        outputs = dict(zip(self._names, values))
        self.state = {name: outputs.pop(f"next_{name}") for name in self.state}
        return outputs


@dataclass(frozen=True)
class Disturbance:
    """What a real robot has and an ideal simulation has not."""

    noise: float = 0.0
    """Factor of the sensor noise of the training."""
    delay_s: float = 0.0
    """Seconds from a measurement to the effect of the targets computed from it."""
    dropped: float = 0.0
    """Fraction of the messages that are lost, of sensors and of targets."""
    friction: float | None = None
    """Sliding friction of every surface; None for that of the robot's file."""


class SimulatedRobot:
    """The robot of a kit in MuJoCo, at the rate of its file."""

    def __init__(self, deploy: Mapping[str, Any], xml: Path, disturbance: Disturbance) -> None:
        self._deploy, self._disturbance = deploy, disturbance
        self.model = mujoco.MjModel.from_xml_path(str(xml))
        if disturbance.friction is not None:
            self.model.geom_friction[:, 0] = disturbance.friction
        self.data, self._clip_data = mujoco.MjData(self.model), mujoco.MjData(self.model)
        self._substeps = max(1, round(deploy["control_period_s"] / self.model.opt.timestep))
        self._delay = round(disturbance.delay_s / self.model.opt.timestep)
        robot = deploy["robot"]
        self._q, self._dq = np.array(robot["joint_qpos"]), np.array(robot["joint_qvel"])
        self._orientation = slice(robot["base_qpos"] + 3, robot["base_qpos"] + 7)
        self._velocity, self._gyro = (slice(robot["base_qvel"] + k, robot["base_qvel"] + k + 3) for k in (0, 3))
        self.reset(self.model.key("home").qpos, np.zeros(self.model.nv))

    def reset(self, qpos: np.ndarray, qvel: np.ndarray, seed: int = 0) -> None:
        """Start from a state, with the default pose as targets; `seed` is that of noise and lost messages."""
        self._random = np.random.default_rng(seed)
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[:], self.data.qvel[:] = qpos, qvel
        self.data.ctrl[:] = [joint["default_pos"] for joint in self._deploy["joints"]]
        mujoco.mj_forward(self.model, self.data)
        self._message: Arrays = {}
        self._pending: list[tuple[int, np.ndarray]] = []
        self._step = 0

    def measure(self, asked: np.ndarray) -> Arrays:
        """Raw inputs of the policy, with noise; the last ones where the message is lost.

        `asked` is the command `(3,)`, or the number of a clip `(1,)`.
        """
        data, noise, random = self.data, self._deploy["sensor_noise"], self._random
        name = "clip" if "clips" in self._deploy else "command"
        if self._message and random.random() < self._disturbance.dropped:
            return {**self._message, name: asked}

        def noisy(name: str, value: np.ndarray) -> np.ndarray:
            amplitude = self._disturbance.noise * noise.get(name, 0.0)
            return value + random.uniform(-amplitude, amplitude, value.shape)

        tilt = noisy("orientation", np.zeros(3))
        orientation, turn = np.zeros(4), np.append(1.0, tilt / 2)
        mujoco.mju_mulQuat(orientation, data.qpos[self._orientation], turn / np.linalg.norm(turn))
        readings = {
            "joint_pos": noisy("joint_pos", data.qpos[self._q]),
            "joint_vel": noisy("joint_vel", data.qvel[self._dq]),
            "base_ang_vel": noisy("base_ang_vel", data.qvel[self._gyro]),
            "orientation": orientation,
            "base_lin_vel": self.velocity[:3],
            "foot_contact": data.sensordata[self._deploy["robot"]["foot_sensors"]] > 0,
            name: asked,
        }
        self._message = {name: np.asarray(readings[name], np.float32) for name in self._deploy["inputs"]}
        return self._message

    def apply(self, targets: np.ndarray) -> None:
        """Track joint targets for one control period."""
        if self._random.random() >= self._disturbance.dropped:
            self._pending.append((self._step + self._delay, targets))
        for _ in range(self._substeps):
            while self._pending and self._pending[0][0] <= self._step:
                self.data.ctrl[:] = self._pending.pop(0)[1]
            mujoco.mj_step(self.model, self.data)
            self._step += 1

    @property
    def velocity(self) -> np.ndarray:
        """`(6,)` linear and angular velocity of the base in its own frame, m/s and rad/s."""
        linear, inverse = np.zeros(3), np.zeros(4)
        mujoco.mju_negQuat(inverse, self.data.qpos[self._orientation])
        mujoco.mju_rotVecQuat(linear, self.data.qvel[self._velocity], inverse)
        return np.concatenate([linear, self.data.qvel[self._gyro]])

    @property
    def base_pose(self) -> np.ndarray:
        """`(7,)` position and orientation (w, x, y, z) of the base in the world."""
        return self.data.qpos[self._orientation.start - 3 : self._orientation.stop]

    @property
    def has_fallen(self) -> bool:
        """Whether the base leans too far or a part touches something: the `fall` of a walking task."""
        fall, up = self._deploy["fall"], np.zeros(3)
        mujoco.mju_rotVecQuat(up, np.array([0.0, 0.0, 1.0]), self.data.qpos[self._orientation])
        touches = self.data.sensordata[fall["contact_sensors"]] > 0
        return bool(up[2] < np.cos(fall["max_tilt_rad"]) or touches.any())

    def is_off_clip(self, qpos: np.ndarray) -> bool:
        """Whether anchor or end effectors are too far from a frame of a clip `(nq,)`: the `fall` of a tracking task."""
        limits, wanted, own = self._deploy["fall"], self._clip_data, self.data
        wanted.qpos[:] = qpos
        for data in (wanted, own):
            mujoco.mj_kinematics(self.model, data)
        anchor = self.model.body(limits["anchor_body"]).id
        ends = [self.model.body(name).id for name in limits["end_effector_bodies"]]
        heights = np.abs(wanted.xpos[:, 2] - own.xpos[:, 2])
        tilt = abs(wanted.xmat[anchor, 8] - own.xmat[anchor, 8])
        is_near = heights[anchor] <= limits["anchor_height"] and tilt <= limits["anchor_tilt"]
        return not (is_near and (heights[ends] <= limits["end_effector_height"]).all())


class Steering:
    """Commands the yaw rate of a robot on uneven ground: it keeps its heading, and turns back far from the start."""

    def __init__(self, settings: Mapping[str, float], qpos: np.ndarray) -> None:
        """Take `steering` of `deploy.yaml`, and the initial position and orientation of the base `(7,)`."""
        self._settings = settings
        self._start, self._heading = qpos[:2].copy(), _yaw(qpos[3:7])

    def yaw_rate(self, qpos: np.ndarray) -> float:
        """The command for the current position and orientation of the base `(7,)`, rad/s."""
        away = qpos[:2] - self._start
        is_far = np.abs(away).max() > self._settings["turn_back_m"]
        if is_far and away @ (np.cos(self._heading), np.sin(self._heading)) > 0:
            self._heading = float(np.arctan2(-away[1], -away[0]))
        error = self._heading - _yaw(qpos[3:7])
        rate = self._settings["gain"] * np.arctan2(np.sin(error), np.cos(error))
        return float(np.clip(rate, -self._settings["max_rate"], self._settings["max_rate"]))


def _yaw(quaternion: np.ndarray) -> float:
    w, x, y, z = quaternion
    return float(np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z)))


@dataclass
class Walk:
    """What a robot did."""

    seconds: float
    """Simulated time, up to a fall."""
    fell: bool
    velocity: np.ndarray
    """`(3,)` mean forward and leftward velocity and yaw rate after the warm-up."""
    command: np.ndarray
    """`(3,)` mean command of the same steps; with `steering` the yaw rate is commanded by it."""
    log: Arrays
    """Inputs and outputs of every step `(T, ...)`, and `time` `(T,)`, as `st-rl deploy compare` reads them."""


def walk(
    policy: Policy, robot: SimulatedRobot, command: np.ndarray, seconds: float, show: Callable[[], bool] | None = None
) -> Walk:
    """Walk to a command from the current state of a robot; `show` is called every step and may end the walk."""
    policy.reset()
    command, period = np.array(command, np.float32), policy.deploy["control_period_s"]
    settings = policy.deploy.get("steering")
    steering = None if settings is None else Steering(settings, robot.base_pose)
    rows: list[Arrays] = []
    velocities: list[np.ndarray] = []
    commands: list[np.ndarray] = []
    fell = False
    for index in range(round(seconds / period)):
        if steering is not None:
            command[2] = steering.yaw_rate(robot.base_pose)
        commands.append(command.copy())
        inputs = robot.measure(command.copy())
        outputs = policy.step(inputs)
        rows.append({"time": np.array(index * period), **inputs, **outputs})
        robot.apply(outputs["joint_targets"])
        velocities.append(robot.velocity[[0, 1, 5]])
        fell = robot.has_fallen
        if fell or (show is not None and not show()):
            break
    counted = min(round(WARMUP_S / period), len(rows) - 1)
    velocity, mean_command = (np.mean(values[counted:], axis=0) for values in (velocities, commands))
    log = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    return Walk(len(rows) * period, fell, velocity, mean_command, log)


@dataclass
class Performance:
    """How a robot played a clip."""

    seconds: float
    """Simulated time, up to a fall."""
    fell: bool
    """Whether the robot was too far from the clip, as in training."""
    joint_error: float
    """Mean absolute difference of the joint positions from the clip, rad."""
    log: Arrays
    """Inputs and outputs of every step `(T, ...)`, and `time` `(T,)`, as `st-rl deploy compare` reads them."""


class Clips:
    """The clips of a kit: `robot/clips.npz`."""

    def __init__(self, deploy: Mapping[str, Any], path: Path) -> None:
        with np.load(path, allow_pickle=False) as arrays:
            self.qpos, self.qvel, self._first = arrays["qpos"], arrays["qvel"], arrays["first"]
        self.names = [clip["name"] for clip in deploy["clips"]]

    def rows(self, number: int) -> range:
        """The rows of `qpos` and `qvel` of a clip, one for each control step."""
        ends = [*self._first[1:], len(self.qpos)]
        return range(int(self._first[number]), int(ends[number]))

    def find(self, name: str) -> int:
        """The number of a clip, given by name or number."""
        if name not in self.names and not (name.isdigit() and int(name) < len(self.names)):
            raise SystemExit(f"there is no clip {name!r}; the kit has: {', '.join(self.names)}")
        return self.names.index(name) if name in self.names else int(name)


def perform(
    policy: Policy,
    robot: SimulatedRobot,
    clips: Clips,
    number: int,
    seed: int = 0,
    show: Callable[[], bool] | None = None,
) -> Performance:
    """Play a clip from its first frame to its last; `show` is called every step and may end it."""
    policy.reset()
    rows, joints = clips.rows(number), policy.deploy["robot"]["joint_qpos"]
    robot.reset(clips.qpos[rows[0]], clips.qvel[rows[0]], seed)
    robot.data.ctrl[:] = clips.qpos[rows[0]][joints]
    log: list[Arrays] = []
    errors: list[float] = []
    fell = False
    for index, row in enumerate(rows[1:]):
        inputs = robot.measure(np.array([number], np.float32))
        outputs = policy.step(inputs)
        log.append({"time": np.array(index * policy.deploy["control_period_s"]), **inputs, **outputs})
        robot.apply(outputs["joint_targets"])
        errors.append(float(np.abs(robot.data.qpos[joints] - clips.qpos[row][joints]).mean()))
        fell = robot.is_off_clip(clips.qpos[row])
        if fell or (show is not None and not show()):
            break
    seconds = len(errors) * policy.deploy["control_period_s"]
    return Performance(
        seconds, fell, float(np.mean(errors)), {key: np.stack([row[key] for row in log]) for key in log[0]}
    )


def missing_estimates(deploy: Mapping[str, Any]) -> list[str]:
    """Inputs that a robot would have to estimate and that this simulation does not know."""
    signals = deploy["inputs"].items()
    return [name for name, signal in signals if signal.get("must_be_estimated") and name not in KNOWN_ESTIMATES]


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--command", type=float, nargs=3, default=None, metavar=("X", "Y", "YAW"))
    parser.add_argument("--clip", default="0", help="name or number of the clip to play")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--start", type=int, default=None, help="initial state of golden.npz: on rough ground a place")
    parser.add_argument("--noise", type=float, default=0.0, help="factor of the sensor noise of the training")
    parser.add_argument("--delay-ms", type=float, default=0.0)
    parser.add_argument("--dropped", type=float, default=0.0, help="fraction of lost messages")
    parser.add_argument("--friction", type=float, default=None)
    parser.add_argument("--view", action="store_true", help="show the robot in a window, in real time")
    parser.add_argument("--log", type=Path, default=None, help="npz file for st-rl deploy compare")
    options = parser.parse_args()
    kit = Path(__file__).resolve().parent
    policy = Policy(kit / "policy.onnx")
    if missing := missing_estimates(policy.deploy):
        print(f"this policy needs {', '.join(missing)}, which no sensor measures and MuJoCo does not estimate")
        return 2
    disturbance = Disturbance(options.noise, options.delay_ms / 1000, options.dropped, options.friction)
    robot = SimulatedRobot(policy.deploy, kit / "robot" / "robot.xml", disturbance)
    if (
        options.view
        and sys.platform == "linux"
        and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    ):
        print("--view needs a display, and there is none here: leave it out, or run this on a desktop")
        return 2
    if "clips" in policy.deploy:
        return _play(policy, robot, Clips(policy.deploy, kit / "robot" / "clips.npz"), options)
    if options.start is not None:
        with np.load(kit / "golden.npz", allow_pickle=False) as golden:
            starts = golden["start_qpos"], golden["start_qvel"]
        if not 0 <= options.start < len(starts[0]):
            parser.error(f"--start {options.start}: golden.npz has the initial states 0 to {len(starts[0]) - 1}")
        robot.reset(starts[0][options.start], starts[1][options.start])
    command = np.array(options.command or [0.6 * policy.deploy["commands"]["lin_vel_x"][1], 0.0, 0.0])
    with _viewer(robot, options.view) as show:
        result = walk(policy, robot, command, options.seconds, show)
    if options.log:
        np.savez_compressed(options.log, allow_pickle=False, **result.log)
    shown = [" ".join(f"{value:+.2f}" for value in values) for values in (result.command, result.velocity)]
    print(f"{'FELL' if result.fell else 'walked'} {result.seconds:.1f} s; commanded {shown[0]}, measured {shown[1]}")
    return int(result.fell)


def _play(policy: Policy, robot: SimulatedRobot, clips: Clips, options: argparse.Namespace) -> int:
    """Play the clip of the options; 1 if the robot falls."""
    number = clips.find(options.clip)
    with _viewer(robot, options.view) as show:
        result = perform(policy, robot, clips, number, show=show)
    if options.log:
        np.savez_compressed(options.log, allow_pickle=False, **result.log)
    word = "FELL after" if result.fell else "played"
    print(f"{clips.names[number]}: {word} {result.seconds:.1f} s; joint error {result.joint_error:.3f} rad")
    return int(result.fell)


@contextmanager
def _viewer(robot: SimulatedRobot, is_open: bool) -> Iterator[Callable[[], bool] | None]:
    """Yield a function that shows the robot in a window in real time, False when it is closed; None without one."""
    if not is_open:
        yield None
        return
    with mujoco.viewer.launch_passive(robot.model, robot.data) as viewer:
        start = time.monotonic()

        def show() -> bool:
            viewer.sync()
            time.sleep(max(0.0, start + robot.data.time - time.monotonic()))
            return viewer.is_running()

        yield show


if __name__ == "__main__":
    sys.exit(main())
