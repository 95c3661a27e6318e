"""Compares a log of a robot with the golden run of its kit, and names what is wrong with it.

A log holds the inputs of `deploy.yaml` by name `(T, *shape)` and the `joint_targets` `(T, J)` that were sent; where
there are any, `time` `(T,)` in s, `reset` `(T,)`, `observation` `(T, O)`, and `state_NAME` `(T, *shape)` at resets.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from st_rl.export.deploy.golden import replay
from st_rl.export.deploy.kit import GOLDEN_FILE, POLICY_FILE, OnnxStep

Arrays = Mapping[str, np.ndarray]
DEGREES = 180 / np.pi
# Targets and observations of a log that was stored with less precision still agree.
_TOLERANCE = 1e-4
# Repeated messages in a row that a lossy connection explains; more are stale data.
_REPEATS = 3
_MOVING = ("joint_pos", "joint_vel", "base_ang_vel", "orientation")


class Finding(NamedTuple):
    """One thing that a log shows."""

    is_fault: bool
    """False for a remark."""
    name: str
    """The input, output or term it is about."""
    message: str


class Comparison:
    """A log beside the kit that it was recorded with."""

    def __init__(self, folder: Path, log: Arrays) -> None:
        self.step = OnnxStep(folder / POLICY_FILE)
        self.kit = self.step.description
        with np.load(folder / GOLDEN_FILE, allow_pickle=False) as golden:
            self.golden = dict(golden)
        self.log = dict(log)
        self.period = self.kit["control_period_s"]
        self.joints = [joint["name"] for joint in self.kit["joints"]]

    def findings(self) -> list[Finding]:
        """All findings, the most basic first; a fault that explains others ends the comparison."""
        for stage in ((self._missing,), (self._non_finite,), (self._rate, self._stale, self._dead)):
            found = [finding for check in stage for finding in check()]
            if any(finding.is_fault for finding in found):
                return found
        found += [*self._quaternion(), *self._units()]
        if not any(finding.is_fault for finding in found):
            # Joints that move in other units follow no target.
            found += self._joint_order()
        return [*found, *self._targets(), *self._range()]

    def _missing(self) -> Iterator[Finding]:
        """Arrays that the log lacks, or has in another shape."""
        signals = {**self.kit["inputs"], "joint_targets": self.kit["outputs"]["joint_targets"]}
        steps = len(self.log["joint_targets"]) if "joint_targets" in self.log else None
        for name, signal in signals.items():
            expected = (steps, *signal["shape"])
            if name not in self.log:
                yield Finding(True, name, f"missing: log it as an array {('T', *signal['shape'])}")
            elif self.log[name].shape != expected:
                yield Finding(True, name, f"has the shape {self.log[name].shape}, expected {expected}")

    def _non_finite(self) -> Iterator[Finding]:
        """Values that are NaN or infinite: of inputs, which outputs follow, else of outputs."""
        bad = {name: ~np.isfinite(values.astype(np.float64)) for name, values in self.log.items()}
        bad = {name: places for name, places in bad.items() if places.any()}
        for name in [name for name in bad if name in self.kit["inputs"]] or list(bad):
            step, *place = (int(index) for index in np.argwhere(bad[name])[0])
            count = int(bad[name].sum())
            yield Finding(True, name, f"{count} NaN or infinite, first at step {step}{self._label(name, tuple(place))}")

    def _label(self, name: str, place: tuple[int, ...]) -> str:
        """The element of a signal in words."""
        if len(place) != 1:
            return ""
        names = {"joint_pos": self.joints, "joint_vel": self.joints, "joint_targets": self.joints}
        names["foot_contact"] = self.kit["feet"]
        return f" ({names[name][place[0]]})" if name in names else f" [{place[0]}]"

    def _rate(self) -> Iterator[Finding]:
        """Another rate than that of the control loop, and late steps."""
        if "time" not in self.log:
            return
        periods = np.diff(self.log["time"].astype(np.float64))
        typical = float(np.median(periods))
        if not 0.9 <= typical / self.period <= 1.1:
            yield Finding(
                True, "time", f"a step every {typical * 1000:.1f} ms ({1 / typical:.0f} Hz); the policy needs one "
                f"every {self.period * 1000:g} ms ({1 / self.period:.0f} Hz)",
            )  # fmt: skip
            return
        late = float(np.mean(periods > 1.5 * self.period))
        if late > 0:
            yield Finding(late > 0.05, "time", f"{late:.1%} of the steps are late by more than half a period")

    def _stale(self) -> Iterator[Finding]:
        """Inputs that stay the same for several steps."""
        for name in _MOVING:
            if name not in self.kit["inputs"]:
                continue
            start, length = _longest_repeat(self.log[name])
            if length >= max(_REPEATS, 2 * _longest_repeat(self.golden[name])[1] + 1):
                yield Finding(True, name, f"stale data: the same values for {length} steps from step {start} on")

    def _dead(self) -> Iterator[Finding]:
        """Single elements that never change although others of their input do."""
        for name in (*_MOVING[:3], "foot_contact"):
            if name not in self.kit["inputs"]:
                continue
            moves, moved = np.ptp(self.log[name], axis=0) > 0, np.ptp(self.golden[name], axis=0) > 0
            if not moves.any():
                continue
            for index in np.flatnonzero(moved & ~moves):
                value = float(self.log[name][0, index])
                yield Finding(True, name, f"dead sensor{self._label(name, (int(index),))}: always {value:g}")

    def _quaternion(self) -> Iterator[Finding]:
        """Quaternions that are no rotations, or in another order: their rate of change must be the angular velocity."""
        if not {"orientation", "base_ang_vel"} <= self.kit["inputs"].keys():
            return
        orientation, gyro = self.log["orientation"], self.log["base_ang_vel"]
        length = np.linalg.norm(orientation, axis=1)
        if np.abs(length - 1).max() > 0.05:
            yield Finding(
                True, "orientation", f"not a unit quaternion: its length is {length.min():.2f} to {length.max():.2f}"
            )
            return
        order = [3, 0, 1, 2]
        given, swapped, inverse = (
            _rotation_factors(values, gyro, self.period)[0]
            for values in (orientation, orientation[:, order], orientation * [1, -1, -1, -1])
        )
        # Roll and pitch of a walking robot are small: its x and y are.
        is_lying, is_upright = (
            np.mean(q[:, 1] ** 2 + q[:, 2] ** 2) > 0.2 for q in (orientation, orientation[:, order])
        )
        if swapped > max(given, inverse) + 0.2 or (is_lying and not is_upright):
            yield Finding(True, "orientation", "the order looks like x, y, z, w; the policy needs w, x, y, z")
        elif inverse > given + 0.2:
            yield Finding(True, "orientation", "looks like the rotation from the world to the base: conjugate it")

    def _units(self) -> Iterator[Finding]:
        """Inputs in other units: changes of position against velocities, and spreads against the golden run."""
        inputs = self.kit["inputs"]
        if {"joint_pos", "joint_vel"} <= inputs.keys():
            slopes = [
                _velocity_slope(run["joint_pos"], run["joint_vel"], self.period) for run in (self.log, self.golden)
            ]
            factor = slopes[0] / slopes[1]
            if not 0.6 < factor < 1.6:
                yield Finding(
                    True, "joint_pos, joint_vel", f"positions change {factor:.3g} times as fast as velocities say: "
                    f"{_explain(factor, 'joint_pos', 'joint_vel')}",
                )  # fmt: skip
        if {"orientation", "base_ang_vel"} <= inputs.keys():
            agreement, factor = _rotation_factors(self.log["orientation"], self.log["base_ang_vel"], self.period)
            if agreement > 0.5 and not 0.5 < factor < 2:
                yield Finding(
                    True, "orientation, base_ang_vel", f"the base turns {factor:.3g} times as fast as base_ang_vel "
                    f"says: {_explain(factor, 'orientation', 'base_ang_vel')}",
                )  # fmt: skip
        for name in _MOVING[:3]:
            if name not in inputs:
                continue
            spreads = self.log[name].std(axis=0), self.golden[name].std(axis=0)
            factor = float(np.median(spreads[0] / np.maximum(spreads[1], 1e-6)))
            if not 0.1 < factor < 10:
                words = "looks like degrees, give rad" if factor > 0.3 * DEGREES else "wrong scale"
                yield Finding(True, name, f"{words}: {factor:.3g} times the spread of the golden run")

    def _joint_order(self) -> Iterator[Finding]:
        """Pairs of joints that follow each other's targets, or lie where the other should be."""
        if "joint_pos" not in self.kit["inputs"]:
            return
        distance = _target_distances(self.log)
        # Another joint only if it is clearly nearer than the joint itself.
        nearest = np.where(np.eye(len(distance), dtype=bool), 0.85 * distance, distance).argmin(axis=1)
        level = np.abs(self.log["joint_pos"].mean(0)[:, None] - self.golden["joint_pos"].mean(0)[None])
        for i, first in enumerate(self.joints):
            for j in range(i + 1, len(self.joints)):
                is_following = nearest[i] == j and nearest[j] == i
                is_placed = min(level[i, i], level[j, j]) > 0.5 and max(level[i, j], level[j, i]) < 0.25
                if is_following or is_placed:
                    yield Finding(True, "joint_pos", f"{first} and {self.joints[j]} look swapped")

    def _targets(self) -> Iterator[Finding]:
        """Targets and observation terms that do not follow from the inputs."""
        outputs = list(replay(self.step, self.log, self.kit))
        expected = {name: np.stack([row[name] for row in outputs]) for name in outputs[0]}
        default = np.array([joint["default_pos"] for joint in self.kit["joints"]])
        sent, computed = self.log["joint_targets"] - default, expected["joint_targets"] - default
        for term in self.kit["observation"] if "observation" in self.log else ():
            columns = slice(term["start"], term["start"] + term["width"])
            difference = np.abs(self.log["observation"][:, columns] - expected["observation"][:, columns]).max()
            if difference > _TOLERANCE:
                yield Finding(
                    True, f"observation term {term['name']}", f"differs by up to {difference:.3g} from the inputs"
                )
        difference = np.abs(sent - computed).max(axis=1)
        if difference.max() <= _TOLERANCE:
            return
        first = int(np.argmax(difference > _TOLERANCE))
        factor = float((sent * computed).sum() / max((computed**2).sum(), 1e-12))
        if np.abs(sent - factor * computed).max() < 0.01 * np.abs(sent).max():
            cause = f"they are {factor:.3g} times the offsets from the default pose"
        elif len(sent) > 2 and np.abs(sent[1:] - computed[:-1]).max() < 0.01 * np.abs(sent).max():
            cause = "they are one step late"
        else:
            cause = "another policy, other states at the start (log state_NAME), or a changed target"
        yield Finding(True, "joint_targets", f"do not follow from the inputs from step {first} on: {cause}")

    def _range(self) -> Iterator[Finding]:
        """Inputs outside of what was seen in training."""
        for name in self.kit["inputs"]:
            low, high = self.golden[f"low_{name}"], self.golden[f"high_{name}"]
            margin = 0.1 * (high - low) + self.kit["sensor_noise"].get(name, 0.0) + 1e-6
            values = self.log[name]
            outside = (values < low - margin) | (values > high + margin)
            for place in np.argwhere(outside.mean(axis=0) > 0.01):
                index = tuple(int(i) for i in place)
                seen, span = values[(slice(None), *index)], (float(low[index]), float(high[index]))
                yield Finding(
                    False, name, f"{outside[(slice(None), *index)].mean():.0%} of the steps{self._label(name, index)} "
                    f"outside of the training, {span[0]:.3g} to {span[1]:.3g}: {seen.min():.3g} to {seen.max():.3g}",
                )  # fmt: skip


def compare_log(folder: Path, log: Arrays) -> list[Finding]:
    """Findings of a log against the kit in a folder."""
    return Comparison(folder, log).findings()


def _longest_repeat(rows: np.ndarray) -> tuple[int, int]:
    """Start and number of repetitions of the longest run of equal rows `(T, D)`."""
    best, start, length = (0, 0), 0, 0
    for index, is_same in enumerate((rows[1:] == rows[:-1]).all(axis=1)):
        start, length = (start, length + 1) if is_same else (index + 1, 0)
        best = max(best, (start, length), key=lambda run: run[1])
    return best


def _rotation_factors(orientation: np.ndarray, gyro: np.ndarray, period: float, steps: int = 8) -> tuple[float, float]:
    """Correlation of rotations over several steps with integrated angular velocities `(T, 3)`, and their factor.

    `orientation` `(T, 4)` are quaternions (w, x, y, z).
    """
    first, second = orientation[:-steps] * [1, -1, -1, -1], orientation[steps:]
    w = first[:, :1] * second[:, :1] - (first[:, 1:] * second[:, 1:]).sum(axis=1, keepdims=True)
    v = first[:, :1] * second[:, 1:] + second[:, :1] * first[:, 1:] + np.cross(first[:, 1:], second[:, 1:])
    turned = 2 * np.where(w < 0, -1, 1) * v
    total = np.cumsum(np.concatenate([np.zeros((1, 3)), gyro]), axis=0)
    integrated = (total[steps:-1] - total[: -steps - 1]) * period
    turned, integrated = turned - turned.mean(axis=0), integrated - integrated.mean(axis=0)
    product, power = float((turned * integrated).sum()), float((integrated**2).sum())
    return product / max(np.sqrt(power * float((turned**2).sum())), 1e-12), product / max(power, 1e-12)


def _explain(factor: float, position: str, velocity: str) -> str:
    """The likely cause of a factor between changes of position and velocities."""
    if 0.5 * DEGREES < factor < 2 * DEGREES:
        return f"{position} looks like degrees, give rad"
    if 0.5 < factor * DEGREES < 2:
        return f"{velocity} looks like degrees, give rad"
    return f"wrong scale of {velocity}, or another rate than that of the control loop"


def _velocity_slope(position: np.ndarray, velocity: np.ndarray, period: float) -> float:
    """Factor between changes of position `(T, J)` and velocity `(T, J)`; 1 if units and rate agree."""
    mean = (velocity[1:] + velocity[:-1]) / 2 * period
    return float((np.diff(position, axis=0) * mean).sum() / max((mean**2).sum(), 1e-12))


def _target_distances(log: Arrays) -> np.ndarray:
    """`(J, J)` mean squared distance of positions of joint i from targets of joint j, one to three steps before."""
    position, targets = log["joint_pos"][3:, :, None], log["joint_targets"][:, None]
    steps = len(position)
    lagged = [((position - targets[3 - lag : 3 - lag + steps]) ** 2).mean(axis=0) for lag in (1, 2, 3)]
    return np.min(lagged, axis=0)
