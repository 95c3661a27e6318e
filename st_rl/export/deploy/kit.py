"""The deploy kit: a folder that needs nothing of this library to run a policy on a robot.

- `policy.onnx`: raw sensors to joint position targets, one call per control step, state in, state out. Its metadata
  `deploy` is the content of `deploy.yaml` as JSON.
- `deploy.yaml`: joints, gains, limits, rates, inputs, outputs and states, at full precision.
- `golden.npz`: raw inputs and expected outputs in closed loop (`golden.py` lists its arrays).
- `checksums.sha256`: checksum of every other file, as `sha256sum -c` reads it.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from st_rl.env.vec_env import VecEnv
from st_rl.export.deploy.golden import record_golden, replay_golden
from st_rl.export.deploy.raw_policy import RawPolicy, SingleRobot
from st_rl.export.onnx_file import ExportError, require_onnx, write_onnx
from st_rl.modules.load_policy import InferencePolicy
from st_rl.utils.files import atomic_write, to_json_values
from st_rl.utils.signals import Signal

POLICY_FILE, DESCRIPTION_FILE, GOLDEN_FILE = "policy.onnx", "deploy.yaml", "golden.npz"
CHECKSUM_FILE = "checksums.sha256"
METADATA_KEY = "deploy"
FORMAT = 1
TOLERANCE_RAD = 1e-5
"""Largest difference of a joint target between the files of a kit and torch."""


def write_kit(
    folder: Path, policy: RawPolicy, trained: InferencePolicy, task: VecEnv, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Write the kit of a policy and return the content of `deploy.yaml`.

    The golden run is recorded on `task` with the `trained` policy; `facts` (versions, run) are added to `deploy.yaml`.
    ExportError if the ONNX file differs from the golden run in a joint target by more than `TOLERANCE_RAD`.
    """
    golden = record_golden(policy, trained, task)
    description = to_json_values({"format": FORMAT, **facts, **policy.interface.describe(), **_describe_io(policy)})
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_write(folder / POLICY_FILE) as temporary:
        write_policy(policy, temporary, description)
        difference = replay_golden(OnnxStep(temporary), golden, description)["joint_targets"]
        if not difference <= TOLERANCE_RAD:
            raise ExportError(
                f"{POLICY_FILE} differs from the policy by {difference:.2e} rad in a joint target, more than "
                f"{TOLERANCE_RAD:.0e}; nothing was written"
            )
    with atomic_write(folder / DESCRIPTION_FILE) as temporary:
        temporary.write_text(yaml.safe_dump(description, sort_keys=False, width=120), encoding="utf-8")
    with atomic_write(folder / GOLDEN_FILE) as temporary:
        np.savez_compressed(temporary, allow_pickle=False, **golden)
    write_checksums(folder)
    return description


def write_policy(policy: RawPolicy, path: Path, description: Mapping[str, Any]) -> None:
    """Write the ONNX file of a policy, with its description as metadata."""
    single = SingleRobot(policy)
    example = tuple(torch.zeros(signal.shape) for signal in (*policy.inputs.values(), *policy.states.values()))
    write_onnx(single, example, path, single.input_names, single.output_names, {METADATA_KEY: description})


class OnnxStep:
    """A policy file in onnxruntime as a `ControlStep`."""

    def __init__(self, path: Path):
        runtime = require_onnx()[1]
        self._session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
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
    lines = [f"{_checksum(path)}  {path.relative_to(folder).as_posix()}\n" for path in files]
    with atomic_write(folder / CHECKSUM_FILE) as temporary:
        temporary.write_text("".join(lines), encoding="utf-8")


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _describe_io(policy: RawPolicy) -> dict[str, Any]:
    """Inputs, states and outputs for `deploy.yaml`."""
    groups = {"inputs": policy.inputs, "states": policy.states, "outputs": policy.outputs}
    return {group: {name: _describe(signal) for name, signal in signals.items()} for group, signals in groups.items()}


def _describe(signal: Signal) -> dict[str, Any]:
    facts = {"shape": list(signal.shape), "unit": signal.unit, "meaning": signal.meaning}
    return {**facts, "must_be_estimated": True} if signal.must_be_estimated else facts
