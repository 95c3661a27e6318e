"""Walks with a deploy kit, for `deploy_walks.py`; needs numpy, onnxruntime and mujoco, and nothing of this library.

    python worker_kit.py KIT OUT.json --part 0 4

The robots are those of `st-rl eval` in the kit's golden.npz: their initial states and commands. This process walks with
every 4th of them, from the first on. OUT.json has for each scenario and robot its number, whether it fell, its mean
velocity and command, and what it did in `st-rl eval`.
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
    parser.add_argument("out", type=Path)
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1), help="first robot, and step to the next one")
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    sys.path.insert(0, str(options.kit))
    simulate = importlib.import_module("simulate")
    policy = simulate.Policy(options.kit / "policy.onnx")
    results: dict[str, Any] = {"packages": sorted(package.name for package in distributions())}
    names = ("qpos", "qvel", "command", "velocity", "fell")
    with np.load(options.kit / "golden.npz", allow_pickle=False) as golden:
        qpos, qvel, commands, velocities, fell = (golden[f"evaluation_{name}"] for name in names)
    for name, disturbance in SCENARIOS.items():
        xml = options.kit / "robot" / "robot.xml"
        robot = simulate.SimulatedRobot(policy.deploy, xml, simulate.Disturbance(**disturbance))
        rows = results[name] = []
        for index in range(options.part[0], len(commands), options.part[1]):
            robot.reset(qpos[index], qvel[index], seed=index)
            walk = simulate.walk(policy, robot, commands[index], options.seconds)
            row = {"robot": index, "fell": walk.fell}
            row |= {"velocity": walk.velocity.tolist(), "command": walk.command.tolist()}
            in_eval = {"fell": bool(fell[index]), "error": (velocities[index] - commands[index]).tolist()}
            rows.append({**row, "in_eval": in_eval})
    options.out.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
