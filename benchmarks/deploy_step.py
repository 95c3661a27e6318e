"""Time of one control step of a deploy kit: `controller.py` with all guards, and `policy.hpp`, for an MLP 512-256-128.

    python benchmarks/deploy_step.py

CPU time of the thread, so that other processes on the machine do not count; wall-clock time beside it.
"""

import argparse
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from machine import describe_machine, write_results

from st_rl.export import DeployedPolicy
from st_rl.export.deploy import RawPolicy, write_kit
from st_rl.export.deploy.cpp_header import replay_header
from st_rl.export.deploy.files import simulate
from st_rl.export.deploy.files.controller import Controller, Policy, Sensors, State
from st_rl.modules import EmpiricalNormalization, build_actor_critic
from st_rl.modules.policy.load import InferencePolicy
from st_rl.sim.deploy.robot_interface import RobotInterface
from st_rl.sim.tasks import make_task

HIDDEN = [512, 256, 128]


def write_untrained_kit(folder: Path) -> None:
    """A kit of a policy with actions small enough to stand."""
    settings = {"noise.level": 0.0, "episode_length_s": 3.0, "observe_linear_velocity": False}
    task = make_task("quadruped-walk", 2, **settings)
    torch.manual_seed(1)
    sizes = {"actor_hidden_dims": HIDDEN, "critic_hidden_dims": [8]}
    actor_critic = build_actor_critic(task, "ActorCritic", sizes).eval().requires_grad_(False)
    for parameter in actor_critic.actor[-1].parameters():
        parameter.mul_(0.3)
    normalizer = EmpiricalNormalization([task.num_obs]).eval()
    policy = RawPolicy(RobotInterface(task), DeployedPolicy(actor_critic, normalizer))
    write_kit(folder, policy, InferencePolicy(actor_critic, normalizer), task, {})


def time_controller(kit: Path, steps: int) -> dict[str, float]:
    """Milliseconds of a step in the policy state, on a robot that stands in MuJoCo."""
    policy = Policy(kit / "policy.onnx")
    robot = simulate.SimulatedRobot(policy.deploy, kit / "robot" / "robot.xml", simulate.Disturbance())
    controller, period, now = Controller(policy, stand_up_s=0.2), policy.deploy["control_period_s"], 0.0
    rows: list[tuple[float, float]] = []
    while len(rows) < steps:
        values = {name: value for name, value in robot.measure(np.zeros(3)).items() if name != "command"}
        sensors = Sensors(now, {**values, "joint_torque": np.zeros(len(policy.deploy["joints"]))})
        if controller.state is State.PASSIVE:
            controller.start_stand_up(sensors, now)
        if controller.is_standing(now):
            controller.start_policy(now)
        start = time.thread_time(), time.perf_counter()
        command = controller.step(sensors, now)
        if controller.state is State.POLICY:
            rows.append((time.thread_time() - start[0], time.perf_counter() - start[1]))
        elif controller.state is State.DAMPING:
            raise SystemExit(f"a guard failed: {controller.reason}")
        robot.apply(command.targets)
        now += period
    cpu, wall = 1000 * np.array(rows).T
    return {
        "cpu_ms": float(cpu.mean()),
        "cpu_99_percent_ms": float(np.quantile(cpu, 0.99)),
        "wall_median_ms": float(np.median(wall)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "deploy_step.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = {**describe_machine(), "hidden_sizes": HIDDEN}
    with tempfile.TemporaryDirectory() as temporary:
        kit = Path(temporary) / "kit"
        write_untrained_kit(kit)
        results["controller"] = time_controller(kit, options.steps)
        compiler = shutil.which("g++") or shutil.which("clang++")
        if compiler:
            results["header"] = replay_header(kit, compiler)
    write_results(options.out, results)
    print(results["controller"], results.get("header"))


if __name__ == "__main__":
    main()
