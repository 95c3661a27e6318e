"""A feed-forward policy as one ONNX file: raw observations in, mean actions out."""

import copy
import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from st_rl.utils.files import atomic_write, to_json_values

OPSET = 18
INPUT_NAME = "obs"
OUTPUT_NAME = "actions"


class ExportError(RuntimeError):
    """The policy cannot be exported, or the file does not do what the policy does."""


@dataclass(frozen=True)
class ExportReport:
    """What was written and how well it agrees with torch."""

    file: str
    """Name of the file."""
    opset: int
    """Version of ONNX's operators that the file needs."""
    largest_difference: float
    """Largest absolute difference of an action between the file in onnxruntime and torch."""
    observations_compared: int
    """How many observations it was compared on."""


class DeployedPolicy(nn.Module):
    """A policy with its normaliser, frozen: raw observations `(N, O)` to mean actions `(N, A)`."""

    def __init__(self, actor_critic: nn.Module, obs_normalizer: nn.Module):
        super().__init__()
        if getattr(actor_critic, "is_recurrent", False):
            raise ExportError(
                f"{type(actor_critic).__name__} is recurrent: a plain file has no memory. Export a feed-forward policy"
            )
        self.actor_critic: Any = copy.deepcopy(actor_critic)
        self.obs_normalizer = copy.deepcopy(obs_normalizer)
        self.to("cpu").eval().requires_grad_(False)

    def forward(self, obs: Tensor) -> Tensor:
        """Mean actions `(N, A)` for raw observations `(N, O)`."""
        return self.actor_critic.act_inference(self.obs_normalizer(obs))


def export_onnx(
    actor_critic: nn.Module,
    obs_normalizer: nn.Module,
    path: Path,
    metadata: Mapping[str, Any] | None = None,
    recorded: Tensor | None = None,
    tolerance: float = 1e-5,
) -> ExportReport:
    """Write the policy as `path`, unless the file computes something else than torch.

    The file is compared on random observations and on `recorded` ones `(M, O)`. ExportError when any action differs by
    more than `tolerance`; no file is left then. `metadata` goes into the file, each value as JSON.
    """
    onnx, runtime = _require_onnx()
    policy = DeployedPolicy(actor_critic, obs_normalizer)
    observations = [_random_observations(policy)]
    if recorded is not None:
        observations.append(recorded.detach().to("cpu", torch.float32).reshape(-1, observations[0].shape[1]))
    samples = torch.cat(observations)
    with atomic_write(path) as temporary:
        _write_graph(policy, samples[:2], temporary)
        _add_metadata(onnx, temporary, metadata or {})
        difference = _largest_difference(runtime, temporary, policy, samples)
        # Not `difference > tolerance`: a comparison with NaN is false.
        if not difference <= tolerance:
            raise ExportError(
                f"the exported policy differs from torch by {difference:.2e} in an action, more than {tolerance:.0e}; "
                "nothing was written"
            )
    return ExportReport(path.name, OPSET, difference, len(samples))


def _random_observations(policy: DeployedPolicy, count: int = 256) -> Tensor:
    """Observations `(count, O)` like those that the normaliser has seen, else of unit size; always the same."""
    generator = torch.Generator().manual_seed(0)
    samples = torch.randn(count, int(policy.actor_critic.num_actor_obs), generator=generator)
    mean, std = getattr(policy.obs_normalizer, "mean", None), getattr(policy.obs_normalizer, "std", None)
    return samples * std + mean if isinstance(mean, Tensor) and isinstance(std, Tensor) else samples


def _write_graph(policy: DeployedPolicy, example: Tensor, path: Path) -> None:
    """Trace the policy with any number of rows and write it in one file."""
    with _quiet_exporter():
        torch.onnx.export(
            policy,
            (example,),
            str(path),
            input_names=[INPUT_NAME],
            output_names=[OUTPUT_NAME],
            dynamic_shapes={"obs": {0: torch.export.Dim("batch")}},
            opset_version=OPSET,
            dynamo=True,
            external_data=False,
            verbose=False,
        )


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Keep torch's exporter from talking about packages that nobody asked for."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels):
            logger.setLevel(level)


def _add_metadata(onnx: Any, path: Path, metadata: Mapping[str, Any]) -> None:
    """Put the metadata into the file, and take out what the exporter says about the source code."""
    model = onnx.load(str(path))
    for part in (*model.graph.node, *model.graph.input, *model.graph.output, *model.graph.value_info, model.graph):
        del part.metadata_props[:]
    for node in model.graph.node:
        node.doc_string = ""
    onnx.helper.set_model_props(model, {key: json.dumps(to_json_values(value)) for key, value in metadata.items()})
    model.producer_name = "st_rl"
    onnx.checker.check_model(model)
    onnx.save(model, str(path))


def _largest_difference(runtime: Any, path: Path, policy: DeployedPolicy, samples: Tensor) -> float:
    """Between the file in onnxruntime, in a batch and row by row, and torch."""
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    with torch.inference_mode():
        expected = policy(samples).numpy()
    array = samples.numpy()
    batch = session.run([OUTPUT_NAME], {INPUT_NAME: array})[0]
    rows = np.concatenate([session.run([OUTPUT_NAME], {INPUT_NAME: row[None]})[0] for row in array[:32]])
    return float(max(np.abs(batch - expected).max(), np.abs(rows - expected[:32]).max()))


def _require_onnx() -> tuple[Any, Any]:
    """The modules `onnx` and `onnxruntime`, or an ImportError that names the extra to install."""
    try:
        import onnx
        import onnx.checker
        import onnx.helper
        import onnxruntime
        import onnxscript  # noqa: F401  (torch's exporter needs it)
    except ImportError as error:
        raise ImportError(
            f'exporting needs onnx, onnxscript and onnxruntime ({error.name} is missing): pip install "st_rl[export]"'
        ) from error
    return onnx, onnxruntime
