"""The deploy kit: a folder that needs nothing of this library to run a policy on a robot.

- `policy.onnx`: raw sensors to joint position targets, one call per control step, state in, state out. Its metadata
  `deploy` is the content of `deploy.yaml` as JSON.
- `deploy.yaml`: joints, gains, limits, rates, inputs, outputs and states, at full precision.
- `golden.npz`: raw inputs and expected outputs in closed loop (`golden.py` lists its arrays).
- `robot/robot.xml`: the robot in its world, with position servos of the kit's gains, and the files it needs.
- `policy.hpp`: the policy as one C++17 header; `main.cpp` replays the golden run (`golden.bin`) with it.
- `controller.py`: runs the policy on a robot, with guards; needs numpy and onnxruntime.
- `simulate.py`: walks with the kit in plain MuJoCo; needs numpy, onnxruntime and mujoco.
- `README.md`, and `report.html` where there is one, for people.
- `leapp/`, on request: the policy as a LEAPP bundle.
- `checksums.sha256`: checksum of every other file, as `sha256sum -c` reads it.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import torch
import yaml

from st_rl.env.signals import Signal
from st_rl.env.vec_env import VecEnv
from st_rl.export.deploy.cpp_header import write_cpp_files
from st_rl.export.deploy.golden import ControlStep, record_golden, replay_golden
from st_rl.export.deploy.leapp_bundle import LeappStep, write_leapp_bundle
from st_rl.export.deploy.raw_policy import RawPolicy, SingleRobot
from st_rl.export.onnx_file import ExportError, open_session, write_onnx
from st_rl.modules.policy.load import InferencePolicy
from st_rl.utils.files import TEMPORARY_PREFIX, atomic_write, to_json_values
from st_rl.utils.log import logger

POLICY_FILE, DESCRIPTION_FILE, GOLDEN_FILE = "policy.onnx", "deploy.yaml", "golden.npz"
CHECKSUM_FILE, LEAPP_FOLDER = "checksums.sha256", "leapp"
README_FILE, SIMULATION_FILE, CONTROLLER_FILE = "README.md", "simulate.py", "controller.py"
ROBOT_FILE = "robot/robot.xml"
METADATA_KEY = "deploy"
FORMAT = 3
TOLERANCE_RAD = 1e-5
"""Largest difference of a joint target between the files of a kit and torch."""


def write_kit(
    folder: Path,
    policy: RawPolicy,
    trained: InferencePolicy,
    task: VecEnv,
    facts: Mapping[str, Any],
    pages: Mapping[str, str] | None = None,
    with_leapp: bool = False,
    arrays: Mapping[str, np.ndarray] | None = None,
) -> dict[str, Any]:
    """Write the kit of a policy and return the content of `deploy.yaml`.

    The golden run is recorded on `task` with the `trained` policy; `facts` (versions, run) are added to `deploy.yaml`,
    `pages` are further text files by name, `with_leapp` adds a LEAPP bundle, and `arrays` go into `golden.npz`, such as
    the evaluation that `check` compares walks with. ExportError if a file differs from the
    golden run in a joint target by more than `TOLERANCE_RAD`; the folder is complete or does not exist.
    """
    golden = record_golden(policy, trained, task)
    description = describe_kit(policy, golden, facts)
    with _new_folder(folder) as temporary:
        write_policy(policy, temporary / POLICY_FILE, description)
        _require_golden(POLICY_FILE, OnnxStep(temporary / POLICY_FILE), golden, description)
        if with_leapp:
            write_leapp_bundle(policy, temporary / LEAPP_FOLDER, description)
            _require_golden(LEAPP_FOLDER, LeappStep(temporary / LEAPP_FOLDER), golden, description)
        text = yaml.safe_dump(description, sort_keys=False, width=120, default_flow_style=None)
        np.savez_compressed(temporary / GOLDEN_FILE, allow_pickle=False, **golden, **(arrays or {}))
        policy.interface.save_robot(temporary / ROBOT_FILE)
        try:
            write_cpp_files(temporary, temporary / POLICY_FILE, golden, description)
        except ExportError as error:
            logger.warning(f"the kit has no C++ header: {error}")
        programs = {name: _read(name) for name in (CONTROLLER_FILE, SIMULATION_FILE)}
        texts = {DESCRIPTION_FILE: text, README_FILE: _readme(description), **programs}
        for name, content in {**texts, **(pages or {})}.items():
            (temporary / name).write_text(content, encoding="utf-8")
        write_checksums(temporary)
    return description


def describe_kit(policy: RawPolicy, golden: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> dict[str, Any]:
    """The content of `deploy.yaml`: `facts`, robot and task, guards, and the signals of the policy."""
    task = policy.interface.describe()
    facts = {"format": FORMAT, **facts, **task, "guards": make_guards(task, golden)}
    groups = {"inputs": policy.inputs, "states": policy.states, "outputs": policy.outputs}
    signals = {group: {name: _describe(signal) for name, signal in named.items()} for group, named in groups.items()}
    return to_json_values({**facts, **signals})


def _require_golden(
    name: str, step: ControlStep, golden: Mapping[str, np.ndarray], description: Mapping[str, Any]
) -> None:
    """ExportError if an implementation of the policy does not reproduce the golden run."""
    difference = replay_golden(step, golden, description)["joint_targets"]
    if not difference <= TOLERANCE_RAD:
        raise ExportError(
            f"{name} differs from the policy by {difference:.2e} rad in a joint target, more than "
            f"{TOLERANCE_RAD:.0e}; nothing was written"
        )


@contextmanager
def _new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path` and rename it when the block succeeds; else remove it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{os.getpid()}-{path.name}")
    temporary.mkdir()
    try:
        yield temporary
        temporary.rename(path)
    except BaseException:
        shutil.rmtree(temporary)
        raise


def make_guards(description: Mapping[str, Any], golden: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Limits beyond which a controller must stop the policy, with a margin over what the golden run has seen."""

    def column(name: str, default: float | np.ndarray) -> np.ndarray:
        values = np.array([joint[name] for joint in description["joints"]], np.float64)
        return np.where(np.isnan(values), default, values)

    # A policy that does not observe positions or velocities of joints has none in its golden run.
    unknown, targets = np.full(len(description["joints"]), 15.0), golden["joint_targets"]
    assumed = {"joint_vel": 0.0 * unknown, "low_joint_vel": -unknown, "high_joint_vel": unknown}
    assumed |= {"joint_pos": targets, "low_joint_pos": targets.min(axis=0), "high_joint_pos": targets.max(axis=0)}
    golden = {**assumed, **golden}
    low, high = golden["low_joint_pos"], golden["high_joint_pos"]
    speed = np.maximum(np.abs(golden["low_joint_vel"]), np.abs(golden["high_joint_vel"]))
    error = golden["joint_targets"] - golden["joint_pos"]
    # Clips that lean further, such as one that gets up from the ground, need a wider limit.
    tilts = [clip["max_tilt_rad"] + 0.5 for clip in description.get("clips", ())]
    torque = np.abs(column("stiffness", 0.0) * error - column("damping", 0.0) * golden["joint_vel"]).max(axis=0)
    return {
        "max_tilt_rad": max([1.0, *tilts]),
        "min_joint_pos": np.minimum(column("lower", low - 0.5), low) - 0.1,
        "max_joint_pos": np.maximum(column("upper", high + 0.5), high) + 0.1,
        "max_joint_jump_rad": 0.3,
        "max_joint_vel": np.maximum(2.0 * speed, 10.0),
        "max_torque": np.maximum(1.2 * column("effort_limit", 0.0), 2.0 * torque),
        "max_target_step_rad": np.maximum(1.5 * golden["high_target_step"], 0.1),
        "max_sensor_age_s": 2.5 * description["control_period_s"],
    }


def _read(name: str) -> str:
    """The text of a file that goes into every kit as it is."""
    return (Path(__file__).parent / "files" / name).read_text(encoding="utf-8")


def _readme(description: Mapping[str, Any]) -> str:
    """`README.md`, for readers who do not know this library."""
    joints = "\n".join(f"| {index} | `{joint['name']}` |" for index, joint in enumerate(description["joints"]))
    return Template(_read(README_FILE)).substitute(
        task=description.get("task", "a task"),
        hertz=f"{1 / description['control_period_s']:g}",
        joints=joints,
        version=description.get("st_rl_version", ""),
    )


def write_policy(policy: RawPolicy, path: Path, description: Mapping[str, Any]) -> None:
    """Write the ONNX file of a policy, with its description as metadata."""
    single = SingleRobot(policy)
    example = tuple(torch.zeros(signal.shape) for signal in (*policy.inputs.values(), *policy.states.values()))
    write_onnx(single, example, path, single.input_names, single.output_names, {METADATA_KEY: description})


class OnnxStep:
    """A policy file in onnxruntime as a `ControlStep`."""

    def __init__(self, path: Path):
        self._session = open_session(path)
        self.description: dict[str, Any] = json.loads(self._session.get_modelmeta().custom_metadata_map[METADATA_KEY])
        self._names = [output.name for output in self._session.get_outputs()]

    def __call__(self, inputs: Mapping[str, np.ndarray], state: Mapping[str, np.ndarray]) -> Any:
        """Outputs and next states of one step."""
        values = dict(zip(self._names, self._session.run(None, {**inputs, **state})))
        following = {name: values.pop(f"next_{name}") for name in self.description["states"]}
        return values, following


def write_checksums(folder: Path) -> None:
    """Write the checksums of all files of a kit."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != CHECKSUM_FILE)
    lines = [f"{checksum(path)}  {path.relative_to(folder).as_posix()}\n" for path in files]
    with atomic_write(folder / CHECKSUM_FILE) as temporary:
        temporary.write_text("".join(lines), encoding="utf-8")


def checksum(path: Path) -> str:
    """The SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _describe(signal: Signal) -> dict[str, Any]:
    facts = {"shape": list(signal.shape), "unit": signal.unit, "meaning": signal.meaning}
    return {**facts, "must_be_estimated": True} if signal.must_be_estimated else facts
