"""Walks with a deploy kit, for `deploy_walks.py`; needs numpy, onnxruntime and mujoco, and nothing of this library.

    python worker_kit.py KIT COMMANDS.json OUT.json

COMMANDS.json is a list of commands, one per robot. OUT.json has for each scenario the number of falls and the errors of
the mean velocities of the robots that did not fall.
"""

import argparse
import importlib
import json
import sys
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import numpy as np

SCENARIOS = {"undisturbed": {}, "noise, 20 ms delay": {"noise": 1.0, "delay_s": 0.02}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kit", type=Path)
    parser.add_argument("commands", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=20.0)
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
            walks.append(simulate.walk(policy, robot, command, options.seconds))
        falls, errors = sum(w.fell for w in walks), np.array([abs(w.velocity - w.command) for w in walks if not w.fell])
        means = errors.mean(axis=0) if len(errors) else np.full(3, np.nan)
        axes = ("lin_vel_x_error", "lin_vel_y_error", "ang_vel_yaw_error")
        results[name] = {"robots": len(walks), "falls": falls, **dict(zip(axes, means.tolist()))}
    options.out.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
