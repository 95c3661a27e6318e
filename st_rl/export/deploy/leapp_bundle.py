"""The policy as a LEAPP bundle, for ROS stacks that read one: a YAML file of inputs, states and outputs, and a model.

LEAPP (PyPI package `leapp`) traces the policy itself; its quaternion order and joint names are those of the kit.
"""

import contextlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from st_rl.export.deploy.raw_policy import RawPolicy, as_tuple
from st_rl.export.onnx_file import ExportError, open_session, quiet_exporter

NODE = "policy"
# What LEAPP calls the signals of a kit; others have no kind.
_KINDS = {
    "joint_pos": "state/joint/position",
    "joint_vel": "state/joint/velocity",
    "base_ang_vel": "state/body/angular_velocity",
    "orientation": "state/body/rotation",
    "base_lin_vel": "state/body/linear_velocity",
    "command": "command/body/velocity",
    "joint_targets": "target/joint/position",
}


def write_leapp_bundle(policy: RawPolicy, folder: Path, description: Mapping[str, Any]) -> None:
    """Trace one step of the policy with LEAPP and write its bundle into a folder; the graph has the folder's name.

    ImportError without the package; ExportError if LEAPP finds that its model differs from torch.
    """
    try:
        import leapp  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError("a LEAPP bundle needs leapp: pip install leapp") from error
    joints = [joint["name"] for joint in description["joints"]]

    def describe(name: str, value: torch.Tensor, meaning: Mapping[str, Any]) -> Any:
        names = [joints] if tuple(value.shape[1:]) == (len(joints),) else None
        extra = {"unit": meaning["unit"], "meaning": meaning["meaning"]}
        return leapp.TensorSemantics(name=name, ref=value, kind=_KINDS.get(name), element_names=names, extra=extra)

    # Not zeros: LEAPP compares its model with torch on these values.
    generator = torch.Generator().manual_seed(0)
    example = {n: torch.randn(1, *signal.shape, generator=generator) for n, signal in policy.inputs.items()}
    if "orientation" in example:
        example["orientation"] = torch.nn.functional.normalize(example["orientation"], dim=1)
    annotate = leapp.annotate
    leapp.start(folder.name, save_path=str(folder.parent))
    try:
        given = annotate.input_tensors(
            NODE, [describe(name, value, description["inputs"][name]) for name, value in example.items()]
        )
        states = annotate.state_tensors(NODE, policy.initial_state())
        inputs = dict(zip(policy.inputs, as_tuple(given)))
        step = policy(inputs, dict(zip(policy.states, as_tuple(states))))
        annotate.update_state(NODE, {name: step.state[name] for name in policy.states})
        outputs = {"joint_targets": step.joint_targets, "actions": step.actions, "observation": step.observation}
        annotate.output_tensors(
            NODE,
            [describe(name, value, description["outputs"][name]) for name, value in outputs.items()],
            export_with="onnx",
        )
    finally:
        leapp.stop()
    try:
        with quiet_exporter(), contextlib.redirect_stdout(io.StringIO()):
            leapp.compile_graph(visualize=False, validate=True, atol=1e-5)
    except Exception as error:
        raise ExportError(f"LEAPP cannot write its bundle: {error}") from error
    # The messages of its tracer.
    (folder / "log.txt").unlink(missing_ok=True)


class LeappStep:
    """The model of a bundle in onnxruntime as a `ControlStep`."""

    def __init__(self, folder: Path) -> None:
        self._session = open_session(folder / f"{NODE}.onnx")
        self._names = [output.name for output in self._session.get_outputs()]

    def __call__(self, inputs: Mapping[str, np.ndarray], state: Mapping[str, np.ndarray]) -> Any:
        """Outputs and next states of one step."""
        given = {**inputs, **{f"{name}_in": value for name, value in state.items()}}
        values = self._session.run(None, {name: value[None] for name, value in given.items()})
        outputs = {name: value[0] for name, value in zip(self._names, values)}
        following = {name: outputs.pop(f"{name}_out") for name in state}
        return outputs, following
