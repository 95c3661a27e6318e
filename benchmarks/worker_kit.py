"""Walks with a deploy kit, for `deploy_walks.py`; needs numpy, onnxruntime and mujoco, and nothing of this library.

    python worker_kit.py KIT COMMANDS.json OUT.json [--steer]

COMMANDS.json is a list of commands, one per robot. OUT.json has for each scenario the number of falls and the errors of
the mean velocities of the robots that did not fall. `--steer` commands the yaw rate as a person with a joystick would:
it keeps the initial heading and turns back far from the start.
"""

import argparse
import importlib
import json
import sys
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import numpy as np

WARMUP_S = 1.0
"""Seconds that do not count, as in `st-rl eval`."""
SCENARIOS = {"undisturbed": {}, "noise, 20 ms delay": {"noise": 1.0, "delay_s": 0.02}}
YAW_GAIN, MAX_YAW_RATE, TURN_BACK_M = 1.0, 0.8, 3.0


class Steering:
    """Yaw rate that keeps the initial heading, and turns back at a distance of `TURN_BACK_M` from the start."""

    def __init__(self, qpos: np.ndarray) -> None:
        self._start, self._heading = qpos[:2].copy(), _yaw(qpos[3:7])

    def yaw_rate(self, qpos: np.ndarray) -> float:
        """The command for the current state."""
        away = qpos[:2] - self._start
        if np.abs(away).max() > TURN_BACK_M and away @ (np.cos(self._heading), np.sin(self._heading)) > 0:
            self._heading = float(np.arctan2(-away[1], -away[0]))
        error = self._heading - _yaw(qpos[3:7])
        error = np.arctan2(np.sin(error), np.cos(error))
        return float(np.clip(YAW_GAIN * error, -MAX_YAW_RATE, MAX_YAW_RATE))


def _yaw(quaternion: np.ndarray) -> float:
    w, x, y, z = quaternion
    return float(np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z)))


def walk(policy: Any, robot: Any, command: np.ndarray, seconds: float, steer: bool) -> tuple[bool, np.ndarray]:
    """Whether a robot fell, and the `(3,)` absolute error of its mean velocity."""
    policy.reset()
    steering = Steering(robot.data.qpos) if steer else None
    period, errors = policy.deploy["control_period_s"], []
    for _ in range(round(seconds / period)):
        if steering is not None:
            command = np.append(command[:2], steering.yaw_rate(robot.data.qpos))
        robot.apply(policy.step(robot.measure(command.astype(np.float32)))["joint_targets"])
        errors.append(robot.velocity[[0, 1, 5]] - command)
        if robot.has_fallen:
            return True, np.full(3, np.nan)
    return False, np.abs(np.mean(errors[round(WARMUP_S / period) :], axis=0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kit", type=Path)
    parser.add_argument("commands", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--steer", action="store_true")
    options = parser.parse_args()
    sys.path.insert(0, str(options.kit))
    simulate = importlib.import_module("simulate")
    policy = simulate.Policy(options.kit / "policy.onnx")
    commands = np.array(json.loads(options.commands.read_text()))
    results: dict[str, Any] = {"packages": sorted(package.name for package in distributions())}
    with np.load(options.kit / "golden.npz", allow_pickle=False) as golden:
        qpos, qvel = golden["start_qpos"], golden["start_qvel"]
    for name, disturbance in SCENARIOS.items():
        xml = options.kit / "robot" / "robot.xml"
        robot = simulate.SimulatedRobot(policy.deploy, xml, simulate.Disturbance(**disturbance))
        walks = []
        for index, command in enumerate(commands):
            robot.reset(qpos[index % len(qpos)], qvel[index % len(qvel)], seed=index)
            walks.append(walk(policy, robot, command, options.seconds, options.steer))
        falls, errors = sum(fell for fell, _ in walks), np.array([error for fell, error in walks if not fell])
        means = errors.mean(axis=0) if len(errors) else np.full(3, np.nan)
        axes = ("lin_vel_x_error", "lin_vel_y_error", "ang_vel_yaw_error")
        results[name] = {"robots": len(walks), "falls": falls, **dict(zip(axes, means.tolist()))}
    options.out.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
