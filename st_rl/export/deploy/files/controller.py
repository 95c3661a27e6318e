"""Runs the policy of this kit on a robot: passive, stand up, policy, damping.

    python controller.py                                          # replays golden.npz and measures the time of a step
    python controller.py --robot my_robot.py --command 0.5 0 0    # Enter leads from state to state
    python controller.py --robot my_robot.py --clip wave          # the same for a policy that tracks clips

It needs numpy, onnxruntime and the files beside it. What is particular to a robot is in one file of yours: a class with
the methods of `Robot`, and a function `connect(deploy, arguments)` that returns one. `deploy` is the content of
`deploy.yaml`; `arguments` are the options that this program does not know.

Every guard that fails ends in damping within the same control step, and says why. Ctrl+C and SIGTERM damp as well.
"""

from __future__ import annotations

import argparse
import enum
import importlib.util
import json
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

import numpy as np
import onnxruntime

Arrays = dict[str, np.ndarray]
COMMAND, CLIP = "command", "clip"
"""The inputs that do not come from the robot: the velocity to walk at, or the clip to play."""
DAMPING_S = 2.0
"""Seconds of damping before the program ends."""
WINDOW = 25
"""Control steps over which positions and velocities are compared: a stride, since many sensors delay velocities."""
MAX_SPEED_RATIO = 8.0
"""How many times as fast as `joint_vel` says positions may change in two steps; impacts of feet make it 3."""
RATE_WINDOW = 5
"""Control steps of which the mean rate must be that of the policy; two late steps may be among them."""
MAX_TURN_RAD = 0.5
"""Largest rotation of the base between two measurements, beyond what its angular velocity explains."""
MOVING_RAD = 0.02
"""Root mean square change of a joint position in a step from which on joints move enough for that."""


@dataclass(frozen=True)
class Sensors:
    """One measurement of the robot."""

    time_s: float
    """When it was taken, on the clock of the controller (`time.monotonic`)."""
    values: Mapping[str, np.ndarray]
    """`joint_pos`, `joint_vel` and the inputs of `deploy.yaml` by name, except `command` and `clip`; joints in the
    order of `joints`. Where the robot measures it, `joint_torque` `(J,)` in Nm."""


@dataclass(frozen=True)
class JointCommand:
    """What the joints do until the next step: `torque = stiffness * (targets - q) - damping * dq`."""

    targets: np.ndarray
    """`(J,)` rad."""
    stiffness: np.ndarray
    """`(J,)` Nm/rad."""
    damping: np.ndarray
    """`(J,)` Nm s/rad."""


class Robot(Protocol):
    """The interface to a robot. Neither method may wait."""

    def read(self) -> Sensors | None:
        """The latest measurement; None before the first one."""
        ...

    def write(self, command: JointCommand) -> None:
        """Send a command to all joints."""
        ...


class GuardError(Exception):
    """A guard failed; the message says which, in plain words."""


class State(enum.Enum):
    """States of the controller, in the order in which an operator leads through them."""

    PASSIVE = "passive"
    """No torque."""
    STAND_UP = "stand up"
    """From the measured pose to the default pose, then hold it."""
    POLICY = "policy"
    DAMPING = "damping"
    """No stiffness; joints are damped. A guard that fails leads here, and only a new start leads out."""


class Policy:
    """`policy.onnx`: raw inputs to joint targets; it keeps its states between two steps."""

    def __init__(self, path: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.deploy: dict[str, Any] = json.loads(self._session.get_modelmeta().custom_metadata_map["deploy"])
        """The content of `deploy.yaml`."""
        self._names = [output.name for output in self._session.get_outputs()]
        self.reset()

    def reset(self, state: Mapping[str, np.ndarray] | None = None) -> None:
        """Start from given states, or from zeros."""
        zeros = {name: np.zeros(signal["shape"], np.float32) for name, signal in self.deploy["states"].items()}
        self.state: Arrays = {**zeros, **(state or {})}

    def step(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Outputs of one control step: `joint_targets`, `actions` and `observation`."""
        values = [np.asarray(value) for value in self._session.run(None, {**inputs, **self.state})]
        outputs = dict(zip(self._names, values))
        self.state = {name: outputs.pop(f"next_{name}") for name in self.state}
        return outputs


class Guards:
    """Limits of `deploy.yaml` that sensors and targets must keep; each check raises GuardError."""

    def __init__(self, deploy: Mapping[str, Any]) -> None:
        joints, limits = deploy["joints"], deploy["guards"]
        self._joints: list[str] = [joint["name"] for joint in joints]
        self._stiffness, self._damping = joint_values(deploy, "stiffness"), joint_values(deploy, "damping")
        self._low, self._high = np.array(limits["min_joint_pos"]), np.array(limits["max_joint_pos"])
        self._speed, self._torque = np.array(limits["max_joint_vel"]), np.array(limits["max_torque"])
        self._target_step = np.array(limits["max_target_step_rad"])
        self._jump: float = limits["max_joint_jump_rad"]
        self._tilt: float = limits["max_tilt_rad"]
        self._age: float = limits["max_sensor_age_s"]
        self._period: float = deploy["control_period_s"]
        self._shapes = {name: tuple(signal["shape"]) for name, signal in deploy["inputs"].items()}
        for name in (COMMAND, CLIP):
            self._shapes.pop(name, None)
        self._shapes |= dict.fromkeys(("joint_pos", "joint_vel"), (len(joints),))
        self.reset()

    def reset(self) -> None:
        """Clear the last measurement, with the time from which on it had its values, and the last step."""
        self._last: Arrays = {}
        self._last_s = self._step_s = np.nan
        self._periods: deque[float] = deque(maxlen=RATE_WINDOW)
        self._changes: deque[tuple[np.ndarray, np.ndarray]] = deque(maxlen=WINDOW)

    def check_sensors(self, sensors: Sensors | None, now: float) -> Arrays:
        """The values of a measurement as float32, if they can be trusted."""
        if sensors is None:
            raise GuardError("no sensor data have arrived")
        self._check_age("sensor data are", now - sensors.time_s)
        if now - self._step_s > self._age:
            raise GuardError(
                f"the last control step was {(now - self._step_s) * 1000:.0f} ms ago: the loop is too slow"
            )
        self._check_rate(now)
        values = self._convert(sensors.values)
        self._check_joints(values)
        if "orientation" in values:
            self._check_orientation(values["orientation"])
        self._step_s = now
        # A driver may repeat the last message under a new time when one is lost.
        same = values.keys() == self._last.keys()
        if same and all(np.array_equal(value, self._last[name]) for name, value in values.items()):
            return values
        if self._last:
            self._check_change(values, min(sensors.time_s - self._last_s, self._age))
        self._last, self._last_s = values, sensors.time_s
        return values

    def check_freshness(self, now: float) -> None:
        """Raise if the last measurements repeat the same values; only a robot that moves is sure to change them."""
        self._check_age("sensor values have not changed: they are", now - self._last_s)

    def check_targets(self, targets: np.ndarray, last_targets: np.ndarray, values: Arrays) -> None:
        """Raise unless joint targets `(J,)` are finite, near the last ones and ask for a torque that is possible."""
        low, high = last_targets - self._target_step, last_targets + self._target_step
        self._check_range("the target of {} jumps: it", targets, low, high, "rad")
        torque = self._stiffness * (targets - values["joint_pos"]) - self._damping * values["joint_vel"]
        self._check_range("the torque that the target of {} asks for", torque, -self._torque, self._torque, "Nm")

    def _check_rate(self, now: float) -> None:
        """Raise if the last control steps had another rate than that of the policy."""
        if np.isnan(self._step_s):
            return
        self._periods.append(now - self._step_s)
        mean = sum(self._periods) / RATE_WINDOW
        if len(self._periods) == RATE_WINDOW and not 0.67 < mean / self._period < 1.5:
            raise GuardError(
                f"the loop runs at {1 / max(mean, 1e-9):.0f} Hz, the policy needs {1 / self._period:.0f} Hz"
            )

    def _check_change(self, values: Arrays, period: float) -> None:
        """Raise if the values cannot have become these in the `period` s since the last ones."""
        pos, speed = values["joint_pos"], np.maximum(np.abs(values["joint_vel"]), np.abs(self._last["joint_vel"]))
        change = self._jump + speed * period
        low, high = self._last["joint_pos"] - change, self._last["joint_pos"] + change
        self._check_range("the position of {} jumps: it", pos, low, high, "rad")
        if "orientation" in values.keys() & self._last.keys():
            self._check_turn(values, period)
        if period > 0:
            self._check_motion(values, period)

    def _check_motion(self, values: Arrays, period: float) -> None:
        """Raise if over the last measurements joint positions did not change as joint velocities say."""
        velocity = (values["joint_vel"] + self._last["joint_vel"]) / 2
        self._changes.append((values["joint_pos"] - self._last["joint_pos"], velocity * period))
        change, expected = np.swapaxes(np.array(self._changes), 0, 1)
        # The smaller change of two steps: after a step from rest, velocities may still be those of before.
        moved = float(np.sqrt(np.mean(change[-2:] ** 2, axis=1)).min()) if len(change) > 1 else 0.0
        said = float(np.sqrt(np.mean(values["joint_vel"] ** 2))) * period
        if moved > max(MOVING_RAD / 2, MAX_SPEED_RATIO * said):
            self._refuse_motion(moved / max(said, 1e-6))
        if len(change) < WINDOW or np.sqrt(np.mean(change**2)) < MOVING_RAD:
            return
        factor = float(np.sum(change * expected) / max(np.sum(expected**2), 1e-12))
        if not 0.33 < factor < 3:
            self._refuse_motion(factor)

    def _refuse_motion(self, factor: float) -> NoReturn:
        raise GuardError(
            f"joint_pos changes {factor:.2g} times as fast as joint_vel says: one of them has another unit, scale, "
            "sign or order"
        )

    def _convert(self, given: Mapping[str, np.ndarray]) -> Arrays:
        """All values of a measurement as float32 arrays; raise if one is missing, misshaped or not finite."""
        values = {name: np.asarray(value, np.float32) for name, value in given.items()}
        for name, shape in self._shapes.items():
            if name not in values:
                raise GuardError(f"{name} is missing in the sensor data")
            if values[name].shape != shape:
                raise GuardError(f"{name} has the shape {values[name].shape}, expected {shape}")
        for name, value in values.items():
            if not np.isfinite(value).all():
                raise GuardError(f"{name} is NaN or infinite, first at index {int(np.argmin(np.isfinite(value)))}")
        return values

    def _check_joints(self, values: Arrays) -> None:
        """Raise if a joint is where, or moves or pushes as, it cannot."""
        pos, vel = values["joint_pos"], values["joint_vel"]
        self._check_range("the position of {}", pos, self._low, self._high, "rad (degrees?)")
        self._check_range("the velocity of {}", vel, -self._speed, self._speed, "rad/s")
        if "joint_torque" in values:
            self._check_range("the torque of {}", values["joint_torque"], -self._torque, self._torque, "Nm")

    def _check_orientation(self, quaternion: np.ndarray) -> None:
        """Raise if a quaternion w, x, y, z `(4,)` is no rotation, or leans too far."""
        length = float(np.linalg.norm(quaternion))
        if not 0.95 <= length <= 1.05:
            raise GuardError(f"orientation is not a unit quaternion: its length is {length:.2f}")
        _, x, y, _ = quaternion / length
        tilt = float(np.arccos(np.clip(1 - 2 * (x * x + y * y), -1, 1)))
        if tilt > self._tilt:
            raise GuardError(f"the base leans by {tilt:.2f} rad, the limit is {self._tilt:.2f} rad")

    def _check_turn(self, values: Arrays, period: float) -> None:
        """Raise if the orientation jumps: a sensor that starts again, or another order of its numbers."""
        cosine = abs(float(values["orientation"] @ self._last["orientation"]))
        speed = float(np.linalg.norm(values.get("base_ang_vel", np.zeros(3))))
        turn, limit = 2 * float(np.arccos(min(1.0, cosine))), MAX_TURN_RAD + speed * period
        if turn > limit:
            raise GuardError(f"orientation jumps by {turn:.2f} rad, the limit is {limit:.2f} rad")

    def _check_age(self, what: str, age: float) -> None:
        """Raise if a measurement is too old, or as far in the future, which means that it is of another clock."""
        if not -self._age <= age <= self._age:
            raise GuardError(f"{what} {age * 1000:.0f} ms old, the limit is {self._age * 1000:.0f} ms")

    def _check_range(self, what: str, values: np.ndarray, low: np.ndarray, high: np.ndarray, unit: str) -> None:
        """Raise if a value `(J,)` is not between its limits; NaN is not."""
        within = (values >= low) & (values <= high)
        if not within.all():
            k = int(np.argmin(within))
            name = what.format(self._joints[k])
            raise GuardError(f"{name} is {values[k]:.4g} {unit}, outside of {low[k]:.4g} to {high[k]:.4g}")


class Controller:
    """The states and what each sends to the joints; `step` is called once per control period."""

    def __init__(self, policy: Policy, stand_up_s: float = 2.0, keep_log: bool = False) -> None:
        self.policy, self.deploy, self.stand_up_s = policy, policy.deploy, stand_up_s
        self.guards = Guards(self.deploy)
        self.state = State.PASSIVE
        self.reason = ""
        """Why the controller damps."""
        self.log: list[Arrays] = []
        """Inputs, states and outputs of every step of the policy, where `keep_log` asks for them."""
        self._keep_log = keep_log
        self._default_pos = joint_values(self.deploy, "default_pos")
        self._stiffness, self._damping = joint_values(self.deploy, "stiffness"), joint_values(self.deploy, "damping")
        self._targets = self._start_pos = self._default_pos
        self._start_s = 0.0
        self._asked: Arrays = {}
        if "clips" in self.deploy:
            self.set_clip(0)
        else:
            self.set_command(np.zeros(3))

    def set_command(self, command: np.ndarray) -> None:
        """Forward and leftward velocity in m/s, yaw rate in rad/s `(3,)`; limited to the ranges of the training."""
        ranges = np.array([self.deploy["commands"][name] for name in ("lin_vel_x", "lin_vel_y", "ang_vel_yaw")])
        self._asked = {COMMAND: np.clip(command, ranges[:, 0], ranges[:, 1]).astype(np.float32)}

    def set_clip(self, number: int) -> None:
        """Play another clip of `deploy.yaml`, from its first frame and at the heading of the robot, from now on."""
        if not 0 <= number < len(self.deploy["clips"]):
            raise ValueError(f"there is no clip {number}, only 0 to {len(self.deploy['clips']) - 1}")
        self._asked = {CLIP: np.array([number], np.float32)}

    def start_stand_up(self, sensors: Sensors | None, now: float) -> None:
        """Move from the measured pose to the default pose; GuardError if a measurement cannot be trusted."""
        self._require_state(State.PASSIVE)
        self.guards.reset()
        values = self.guards.check_sensors(sensors, now)
        self._targets = self._start_pos = values["joint_pos"].astype(np.float64)
        self._start_s, self.state = now, State.STAND_UP

    def is_standing(self, now: float) -> bool:
        """Whether the default pose is the target, so that the policy may start."""
        return self.state is State.STAND_UP and now >= self._start_s + self.stand_up_s

    def start_policy(self, now: float) -> None:
        """Let the policy compute the targets, from the default pose on."""
        self._require_state(State.STAND_UP)
        if not self.is_standing(now):
            raise GuardError(f"the robot is still standing up, for {self.stand_up_s} s")
        self.policy.reset()
        self.state = State.POLICY

    def damp(self, reason: str) -> None:
        """Damp the joints from the next command on."""
        if self.state is not State.DAMPING:
            self.state, self.reason = State.DAMPING, reason

    def step(self, sensors: Sensors | None, now: float) -> JointCommand:
        """The command of one control step; a guard that fails makes it a damping one."""
        if self.state in (State.STAND_UP, State.POLICY):
            try:
                self._targets = self._compute_targets(sensors, now)
                return JointCommand(self._targets, self._stiffness, self._damping)
            except GuardError as error:
                self.damp(str(error))
        zeros = np.zeros_like(self._stiffness)
        return JointCommand(self._default_pos, zeros, self._damping if self.state is State.DAMPING else zeros)

    def _compute_targets(self, sensors: Sensors | None, now: float) -> np.ndarray:
        """`(J,)` joint targets of the current state that pass all guards."""
        values = self.guards.check_sensors(sensors, now)
        if self.state is State.STAND_UP:
            progress = min(1.0, (now - self._start_s) / self.stand_up_s)
            weight = 0.5 - 0.5 * np.cos(np.pi * progress)
            targets = (1 - weight) * self._start_pos + weight * self._default_pos
        else:
            self.guards.check_freshness(now)
            targets = self.policy_targets({**values, **self._asked}, now)
        self.guards.check_targets(targets, self._targets, values)
        return targets

    def policy_targets(self, values: Mapping[str, np.ndarray], now: float) -> np.ndarray:
        """`(J,)` joint targets of the policy for all inputs by name, without guards."""
        inputs = {name: values[name] for name in self.deploy["inputs"]}
        states = {f"state_{name}": value for name, value in self.policy.state.items()}
        outputs = self.policy.step(inputs)
        if self._keep_log:
            self.log.append({"time": np.array(now), "reset": np.array(not self.log), **inputs, **states, **outputs})
        return outputs["joint_targets"]

    def _require_state(self, state: State) -> None:
        if self.state is not state:
            raise GuardError(f"the controller is in the state {self.state.value!r}, not {state.value!r}")


class Clock:
    """Keeps the control period by deadlines that do not drift, and counts how well."""

    def __init__(
        self, period_s: float, now: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.period_s, self.now, self._sleep = period_s, now, sleep
        self.steps = self.missed = 0
        """Control steps, and deadlines that passed before a step could start."""
        self.late_s = self.max_late_s = self.busy_s = self.max_busy_s = 0.0
        """Sum and largest value: of the delay after a deadline, and of the time that a step takes."""
        self._start_s = self._deadline_s = now()

    def wait(self) -> float:
        """Sleep until the next deadline; return the time."""
        ready = self.now()
        if self.steps:
            busy = ready - self._start_s
            self.busy_s, self.max_busy_s = self.busy_s + busy, max(self.max_busy_s, busy)
        self._sleep(max(0.0, self._deadline_s - ready))
        self._start_s = self.now()
        late = max(0.0, self._start_s - self._deadline_s)
        periods = int(late / self.period_s)
        # Deadlines that have passed are left out: a burst of steps would run the gait clock too fast.
        self.missed += max(periods, int(ready > self._deadline_s and self.steps > 0))
        self._deadline_s += (1 + periods) * self.period_s
        self.steps, self.late_s, self.max_late_s = self.steps + 1, self.late_s + late, max(self.max_late_s, late)
        return self._start_s

    def report(self) -> str:
        """Jitter, missed deadlines and the time of a step in one line."""
        late, busy = (1000 * total / max(1, self.steps) for total in (self.late_s, self.busy_s))
        return (
            f"{self.steps} steps of {self.period_s * 1000:g} ms: {self.missed} deadlines missed; "
            f"jitter {late:.2f} ms, at most {1000 * self.max_late_s:.2f} ms; "
            f"a step takes {busy:.2f} ms, at most {1000 * self.max_busy_s:.2f} ms"
        )


class Operator:
    """Leads the controller from state to state, when the user confirms it or at once.

    `clips` are played one after the other, each for its duration, the last one until the end.
    """

    def __init__(
        self,
        command: np.ndarray,
        seconds: float,
        confirm: Callable[[str], bool],
        patience_s: float = 10.0,
        clips: Sequence[int] = (),
    ):
        self._command, self._seconds, self._confirm, self._patience_s = command, seconds, confirm, patience_s
        self._clips, self._clip_end_s = deque(clips), 0.0
        self._state: State | None = None
        self._since_s = 0.0

    def lead(self, controller: Controller, sensors: Sensors | None, now: float) -> bool:
        """Start the next state when it is time; return False when all is over."""
        # A guard may have failed in the last step.
        self._show(controller, now)
        elapsed = now - self._since_s
        if self._state is State.PASSIVE:
            self._start(controller, sensors, now)
        elif self._state is State.STAND_UP and controller.is_standing(now) and self._confirm("start the policy"):
            if "clips" not in controller.deploy:
                controller.set_command(self._command)
            self._play_next_clip(controller, now)
            controller.start_policy(now)
        elif self._state is State.POLICY and (elapsed >= self._seconds or self._confirm("damp")):
            controller.damp("finished")
        elif self._state is State.POLICY and now >= self._clip_end_s:
            self._play_next_clip(controller, now)
        self._show(controller, now)
        return self._state is not State.DAMPING or now - self._since_s < DAMPING_S

    def _play_next_clip(self, controller: Controller, now: float) -> None:
        """Switch to the next of the clips, if any is left."""
        if self._clips:
            number = self._clips.popleft()
            controller.set_clip(number)
            self._clip_end_s = now + controller.deploy["clips"][number]["seconds"]

    def _show(self, controller: Controller, now: float) -> None:
        """Print a new state."""
        if controller.state is not self._state:
            self._state, self._since_s = controller.state, now
            print(f"{self._state.value}{': ' + controller.reason if controller.reason else ''}", flush=True)

    def _start(self, controller: Controller, sensors: Sensors | None, now: float) -> None:
        """Stand up; damp if the sensors cannot be trusted for too long."""
        try:
            Guards(controller.deploy).check_sensors(sensors, now)
        except GuardError as error:
            if now - self._since_s > self._patience_s:
                controller.damp(str(error))
            return
        if self._confirm("stand up"):
            controller.start_stand_up(sensors, now)


class Keyboard:
    """Enter on the terminal as a confirmation."""

    def __init__(self) -> None:
        self._lines = 0
        self._prompt = ""
        threading.Thread(target=self._read, daemon=True).start()

    def confirm(self, what: str) -> bool:
        """Whether Enter was pressed since the last confirmation."""
        if what != self._prompt:
            print(f"Enter: {what}", flush=True)
            self._prompt, self._lines = what, 0
        return self._lines > 0

    def _read(self) -> None:
        for _ in sys.stdin:
            self._lines += 1


def run(robot: Robot, controller: Controller, clock: Clock, operator: Operator) -> None:
    """Control a robot until the operator ends it; whatever happens, the last command damps."""
    try:
        while True:
            now = clock.wait()
            sensors = robot.read()
            continues = operator.lead(controller, sensors, now)
            robot.write(controller.step(sensors, now))
            if not continues:
                return
    except KeyboardInterrupt:
        controller.damp("interrupted")
    finally:
        controller.damp("the program ended")
        robot.write(controller.step(None, clock.now()))


def joint_values(deploy: Mapping[str, Any], name: str) -> np.ndarray:
    """`(J,)` one value of every joint."""
    return np.array([joint[name] for joint in deploy["joints"]], np.float64)


def find_clip(deploy: Mapping[str, Any], name: str) -> int:
    """The number of a clip of `deploy.yaml`, given by name or number."""
    names = [clip["name"] for clip in deploy.get("clips", ())]
    if name in names:
        return names.index(name)
    if name.isdigit() and int(name) < len(names):
        return int(name)
    raise SystemExit(f"there is no clip {name!r}; the kit has: {', '.join(names) or 'no clips'}")


def replay_golden(controller: Controller, golden: Mapping[str, np.ndarray]) -> float:
    """Largest difference of a joint target from the golden run, rad."""
    worst = 0.0
    for index in range(len(golden["reset"])):
        if golden["reset"][index]:
            controller.policy.reset({name: golden[f"state_{name}"][index] for name in controller.policy.state})
        values = {name: golden[name][index] for name in controller.deploy["inputs"]}
        targets = controller.policy_targets(values, float(index))
        worst = float(np.maximum(worst, np.abs(targets - golden["joint_targets"][index]).max()))
    return worst


def save_log(controller: Controller, path: Path) -> None:
    """Write what the policy read and sent, for `st-rl deploy compare`."""
    log = controller.log
    arrays = {name: np.stack([row[name] for row in log]) for name in log[0]} if log else {}
    np.savez_compressed(path, allow_pickle=False, **arrays)


def load_robot(path: Path, deploy: Mapping[str, Any], arguments: list[str]) -> Robot:
    """Call `connect(deploy, arguments)` of a Python file, which may import files beside it."""
    # The file may say `from controller import Sensors`; there is one such class only.
    sys.modules["controller"] = sys.modules[__name__]
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.resolve().parent))
    spec.loader.exec_module(module)
    return module.connect(deploy, arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; 1 if a guard failed, or if the golden run differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kit", type=Path, default=Path(__file__).resolve().parent, help="folder of the kit")
    parser.add_argument("--robot", type=Path, default=None, help="Python file with connect(deploy, arguments)")
    parser.add_argument("--command", type=float, nargs=3, default=(0.0, 0.0, 0.0), metavar=("X", "Y", "YAW"))
    parser.add_argument("--clip", nargs="+", default=[], help="clips to play one after the other, by name or number")
    parser.add_argument("--seconds", type=float, default=np.inf, help="duration of the policy")
    parser.add_argument("--stand-up-s", type=float, default=2.0)
    parser.add_argument("--automatic", action="store_true", help="ask for no confirmation; for simulations only")
    parser.add_argument("--log", type=Path, default=None, help="npz file for st-rl deploy compare")
    options, rest = parser.parse_known_args(arguments)
    policy = Policy(options.kit / "policy.onnx")
    controller = Controller(policy, options.stand_up_s, keep_log=options.log is not None)
    if options.robot is None:
        return _replay(controller, options.kit / "golden.npz")
    # What ends the program damps first.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    robot = load_robot(options.robot, policy.deploy, rest)
    confirm = (lambda what: what != "damp") if options.automatic else Keyboard().confirm
    clock = Clock(policy.deploy["control_period_s"])
    clips = [find_clip(policy.deploy, name) for name in options.clip]
    run(robot, controller, clock, Operator(np.array(options.command), options.seconds, confirm, clips=clips))
    print(clock.report())
    if options.log:
        save_log(controller, options.log)
    return int(controller.reason not in ("finished", "interrupted"))


def _replay(controller: Controller, path: Path) -> int:
    """Replay the golden run and print the difference and the time of a step."""
    with np.load(path, allow_pickle=False) as arrays:
        golden = dict(arrays)
    start = time.perf_counter()
    difference = replay_golden(controller, golden)
    elapsed = 1000 * (time.perf_counter() - start) / len(golden["reset"])
    passed = difference <= 1e-5
    print(f"{'pass' if passed else 'FAIL'}  golden run: {difference:.1e} rad; {elapsed:.3f} ms per step")
    return int(not passed)


if __name__ == "__main__":
    sys.exit(main())
