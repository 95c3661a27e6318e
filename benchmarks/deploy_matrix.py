"""Every policy class that acts, on every task with joint targets: the files of its deploy kit against torch.

    python benchmarks/deploy_matrix.py
    python benchmarks/deploy_matrix.py --policies mlp gru --tasks humanoid-walk

Each cell: an untrained policy with a normalizer runs 500 steps in closed loop, with resets; `policy.onnx`,
`controller.py` and `policy.hpp` (g++ and clang++ where they are installed, with -Wall -Wextra -Werror) replay them. The
number is the largest difference of a joint target, rad. Observations that no robot measures are inputs, as with
`--allow-estimates`. With valgrind, one task of each policy is also replayed under it. Writes
benchmarks/results/deploy_matrix.json (or --out), keeping cells of that file that are not measured again; exit code
1 if a difference is above 1e-5 rad.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from machine import describe_machine, write_results

from st_rl.export import DeployedPolicy
from st_rl.export.deploy import OnnxStep, RawPolicy, find_ignored_terms, record_golden, replay_golden
from st_rl.export.deploy.cpp_header import MAIN_FILE, REPLAY_FILE, replay_header, write_cpp_files
from st_rl.export.deploy.files import controller
from st_rl.export.deploy.kit import POLICY_FILE, TOLERANCE_RAD, describe_kit, write_policy
from st_rl.modules import EmpiricalNormalization, build_actor_critic
from st_rl.modules.policy.load import InferencePolicy
from st_rl.sim.deploy.tracking_interface import make_interface
from st_rl.sim.envs.legged_task import LeggedTask
from st_rl.sim.tasks import make_task
from st_rl.utils.files import save_checkpoint, write_json

NUM_STEPS = 500
PARKOUR = "quadruped-parkour"
TRACKING = ("quadruped-track", "humanoid-track")
TASKS = ("quadruped-walk", "humanoid-walk", "quadruped-rough", PARKOUR, "quadruped-amp", "humanoid-amp", *TRACKING)
STRICT = ("-O2", "-Wall", "-Wextra", "-Werror", "-pedantic")
SIZES = {"actor_hidden_dims": [128, 64], "critic_hidden_dims": [16]}
GRU, LSTM = ({"rnn_type": name, "rnn_hidden_size": 64} for name in ("gru", "lstm"))
CONVOLUTION = {"channels": [4], "kernel_sizes": [3], "strides": [2], "hidden_sizes": [32]}
ENCODER = {"encoder_component_names": ["joint_pos"], "encoder_class_name": "MlpModel", "encoder_output_size": 8}
ENCODER |= {"encoder_kwargs": {"hidden_sizes": [32]}}
IMAGE_ENCODER = {"encoder_component_names": ["forward_depth"], "encoder_class_name": "Conv2dHeadModel"}
IMAGE_ENCODER |= {"encoder_kwargs": CONVOLUTION, "encoder_output_size": 8}
VISUAL = {"visual_kwargs": CONVOLUTION, "visual_latent_size": 8}
ESTIMATOR = {"estimator_kwargs": {"hidden_sizes": [32]}, "replace_state_prob": 1.0}
ADAPTOR = {"adaptor_target_components": ["properties"], "adaptor_kwargs": {"hidden_sizes": [32]}}
DISCRIMINATOR = {"amp_discriminator": {"input_dim": 6, "style_reward_coef": 1.0, "hidden_dims": [4]}}
MUTEX = {"sub_policy_class_name": "ActorCriticRecurrent", "env_action_scale": 0.3}
SKILLS = {"ActorCriticFieldMutex": 5, "ActorCriticClimbMutex": 6}
"""Number of skills of the containers."""
BOUNDED = {"action_bound": 1.5}
POLICIES: dict[str, tuple[str, dict[str, Any]]] = {
    "mlp": ("ActorCritic", {}),
    "bounded actions": ("ActorCritic", BOUNDED),
    "gru": ("ActorCriticRecurrent", GRU),
    "lstm, two layers": ("ActorCriticRecurrent", {**LSTM, "rnn_num_layers": 2}),
    "motion prior": ("AmpActorCritic", DISCRIMINATOR),
    "motion prior, gru": ("AmpActorCriticRecurrent", {**DISCRIMINATOR, **GRU}),
    "encoder": ("EncoderActorCritic", ENCODER),
    "encoder, gru": ("EncoderActorCriticRecurrent", {**ENCODER, **GRU}),
    "encoder, motion prior, lstm": ("EncoderAmpActorCriticRecurrent", {**ENCODER, **DISCRIMINATOR, **LSTM}),
    "estimator": ("StateAc", ESTIMATOR),
    "estimator, lstm": ("StateAcRecurrent", {**ESTIMATOR, **LSTM}),
    "estimator, encoder": ("EncoderStateAc", {**ESTIMATOR, **ENCODER}),
    "estimator, encoder, gru": ("EncoderStateAcRecurrent", {**ESTIMATOR, **ENCODER, **GRU}),
    "adaptor": ("PrivilegeStateAc", {**ADAPTOR, **ESTIMATOR}),
    "adaptor, gru": ("PrivilegeStateAcRecurrent", {**ADAPTOR, **ESTIMATOR, **GRU}),
    "visual": ("VisualDeterministicAC", VISUAL),
    "visual, lstm": ("VisualDeterministicRecurrent", {**VISUAL, **LSTM}),
    "skills": ("ActorCriticFieldMutex", MUTEX),
    "skills, smoothed": ("ActorCriticFieldMutex", {**MUTEX, "action_smoothing_buffer_len": 4}),
    "skills, jumps up and down": ("ActorCriticClimbMutex", MUTEX),
}


def can_act(class_name: str, task: str) -> bool:
    """Whether the task has what the class looks at: an image, or the obstacle ahead."""
    return task == PARKOUR or not ("Visual" in class_name or "Mutex" in class_name)


def policy_settings(class_name: str, settings: Mapping[str, Any], task: str) -> dict[str, Any]:
    """Settings for the components that a task has."""
    settings = {**({} if "Mutex" in class_name else SIZES), **settings}
    is_parkour = task == PARKOUR
    if is_parkour and "Encoder" in class_name:
        settings |= IMAGE_ENCODER
    if "State" in class_name:
        target = "anchor_pos" if task in TRACKING else "base_lin_vel"
        settings["estimator_target_components"] = ["engaging_block" if is_parkour else target]
    return settings


def make_golden_task(name: str, class_name: str) -> LeggedTask:
    """Two robots with short episodes and no noise; the actor sees what the policy class is about, and else sensors."""
    settings: dict[str, Any] = {"noise.level": 0.0, "episode_length_s": 1.0}
    if name == PARKOUR:
        settings |= {"camera.height": 8, "camera.width": 10}
    elif name in TRACKING:
        settings |= {"deployable": "State" not in class_name, "continue_to_next_clip": False, "future_steps": (4,)}
    elif "State" in class_name:
        settings |= {"observe_linear_velocity": True}
        settings |= {"observe_scan": False} if name == "quadruped-rough" else {}
    else:
        settings |= {"deployable": True}
    task = make_task(name, 2, seed=3, **settings)
    if not isinstance(task, LeggedTask):
        raise SystemExit(f"{name} has no joint targets")
    return task


def make_policy(
    task: LeggedTask, class_name: str, settings: Mapping[str, Any], has_normalizer: bool = True
) -> InferencePolicy:
    """An untrained policy, with a normalizer of random statistics."""
    actor_critic = build_actor_critic(task, class_name, dict(settings)).eval().requires_grad_(False)
    if not has_normalizer:
        return InferencePolicy(actor_critic, torch.nn.Identity())
    normalizer = EmpiricalNormalization([task.num_obs])
    normalizer(torch.randn(100, task.num_obs) * 0.7 + 0.1)
    return InferencePolicy(actor_critic, normalizer.eval())


def write_skills(folder: Path, task: LeggedTask, count: int) -> list[str]:
    """Run folders of recurrent skills with different action scales."""
    paths = []
    for index in range(count):
        settings = {**SIZES, **GRU}
        trained = make_policy(task, "ActorCriticRecurrent", settings)
        snapshot = {"model_state_dict": trained.actor_critic.state_dict(), "iter": 1}
        snapshot["obs_norm_state_dict"] = trained.obs_normalizer.state_dict()
        path = folder / f"skill_{index}"
        save_checkpoint(snapshot, path / "model_1.pt")
        config = {"runner": {"policy_class_name": "ActorCriticRecurrent"}, "policy": settings}
        config |= {"control": {"action_scale": 0.2 + 0.05 * index}, "normalization": {"obs_scales": {"lin_vel": 2.0}}}
        write_json(path / "config.json", config)
        paths.append(str(path))
    return paths


def measure_cell(name: str, task_name: str, compilers: Sequence[str], with_valgrind: bool) -> dict[str, Any]:
    """Largest differences of joint targets from torch, rad, of every file of a kit."""
    class_name, given = POLICIES[name]
    torch.manual_seed(1)
    task = make_golden_task(task_name, class_name)
    settings = policy_settings(class_name, given, task_name)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if class_name in SKILLS:
            settings["sub_policy_paths"] = write_skills(folder, task, SKILLS[class_name])
        # Skills have normalizers of their own.
        trained = make_policy(task, class_name, settings, has_normalizer=class_name not in SKILLS)
        deployed = DeployedPolicy(trained.actor_critic, trained.obs_normalizer)
        columns = {c.name: slice(c.start, c.start + c.width) for c in make_interface(task).columns}
        policy = RawPolicy(make_interface(task, find_ignored_terms(deployed, columns)), deployed)
        golden = record_golden(policy, trained, task, NUM_STEPS)
        description = describe_kit(policy, golden, {})
        write_policy(policy, folder / POLICY_FILE, description)
        runner = controller.Controller(controller.Policy(folder / POLICY_FILE))
        row: dict[str, Any] = {
            "resets": int(golden["reset"].sum()),
            "inputs": list(policy.inputs),
            "onnx": replay_golden(OnnxStep(folder / POLICY_FILE), golden, description)["joint_targets"],
            "controller": controller.replay_golden(runner, golden),
        }
        write_cpp_files(folder, folder / POLICY_FILE, golden, description)
        for compiler in compilers:
            row[f"header, {compiler}"] = replay_header(folder, compiler, STRICT)["largest_difference_rad"]
        if with_valgrind:
            row["valgrind"] = run_valgrind(folder, compilers[0])
    return row


def run_valgrind(folder: Path, compiler: str) -> str:
    """`clean`, or the end of what valgrind says about a replay."""
    program = folder / "replay"
    build = [compiler, "-std=c++17", "-O1", "-g", "-o", str(program), str(folder / MAIN_FILE)]
    subprocess.run(build, check=True)
    check = ["valgrind", "--quiet", "--leak-check=full", "--error-exitcode=9"]
    outcome = subprocess.run([*check, str(program), str(folder / REPLAY_FILE)], capture_output=True, text=True)
    return "clean" if outcome.returncode == 0 else outcome.stderr[-500:]


def largest(cells: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> float:
    """The largest difference of all cells; infinite if one is NaN, which results write as null."""
    names = ("onnx", "controller", "header, g++", "header, clang++")
    rows = [row for tasks in cells.values() for row in tasks.values()]
    found = [row[name] for row in rows for name in names if name in row]
    return max([value if value is not None and value == value else float("inf") for value in found], default=0.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", nargs="+", choices=tuple(POLICIES), default=tuple(POLICIES))
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "deploy_matrix.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    compilers = [name for name in ("g++", "clang++") if shutil.which(name)]
    has_valgrind = bool(compilers and shutil.which("valgrind"))
    cells: dict[str, dict[str, Any]] = json.loads(options.out.read_text())["cells"] if options.out.is_file() else {}
    for name in options.policies:
        tasks = [task for task in options.tasks if can_act(POLICIES[name][0], task)]
        for task in tasks:
            began = time.perf_counter()
            row = measure_cell(name, task, compilers, has_valgrind and task == tasks[0])
            cells.setdefault(name, {})[task] = row
            print(f"{name}, {task}: {row} ({time.perf_counter() - began:.0f} s)", flush=True)
            results = {"benchmark": "deploy_matrix", **describe_machine(), "steps": NUM_STEPS, "compilers": compilers}
            write_results(options.out, {**results, "largest_difference_rad": largest(cells), "cells": cells})
    worst = largest(cells)
    print(f"largest difference {worst:.1e} rad; results: {options.out}")
    return int(worst > TOLERANCE_RAD)


if __name__ == "__main__":
    sys.exit(main())
