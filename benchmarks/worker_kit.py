"""Walks with a deploy kit, for `deploy_walks.py`; needs numpy, onnxruntime and mujoco, and nothing of this library.

    python worker_kit.py KIT OUT.json

The robots are those of `st-rl eval` in the kit's golden.npz: their initial states and commands. OUT.json has for each
scenario the number of falls, the errors of the mean velocities of the robots that fell neither here nor there, and the
forward error of the same robots there.
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
AXES = ("lin_vel_x_error", "lin_vel_y_error", "ang_vel_yaw_error")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kit", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    sys.path.insert(0, str(options.kit))
    simulate = importlib.import_module("simulate")
    policy = simulate.Policy(options.kit / "policy.onnx")
    results: dict[str, Any] = {"packages": sorted(package.name for package in distributions())}
    names = ("qpos", "qvel", "command", "velocity", "fell")
    with np.load(options.kit / "golden.npz", allow_pickle=False) as golden:
        qpos, qvel, commands, velocities, fell_in_eval = (golden[f"evaluation_{name}"] for name in names)
    for name, disturbance in SCENARIOS.items():
        xml = options.kit / "robot" / "robot.xml"
        robot = simulate.SimulatedRobot(policy.deploy, xml, simulate.Disturbance(**disturbance))
        walks = []
        for index, command in enumerate(commands):
            robot.reset(qpos[index], qvel[index], seed=index)
            walks.append(simulate.walk(policy, robot, command, options.seconds))
        fell = np.array([walk.fell for walk in walks])
        counted = ~fell & ~fell_in_eval
        errors = np.array([abs(walk.velocity - walk.command) for walk in walks])[counted].mean(axis=0)
        eval_error = abs(velocities - commands)[counted, 0].mean()
        results[name] = {"robots": len(walks), "falls": int(fell.sum()), **dict(zip(AXES, errors.tolist()))}
        results[name] |= {"robots_upright_in_both": int(counted.sum()), "lin_vel_x_error_in_eval": float(eval_error)}
        results[name]["fallen"] = np.flatnonzero(fell).tolist()
    options.out.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
