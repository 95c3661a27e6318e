"""A torch module as an ONNX file with metadata."""

import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from st_rl.utils.files import to_json_values

OPSET = 18


class ExportError(RuntimeError):
    """The policy cannot be exported, or the file does not do what the policy does."""


def write_onnx(
    module: nn.Module,
    arguments: tuple[Any, ...],
    path: Path,
    input_names: Sequence[str],
    output_names: Sequence[str],
    metadata: Mapping[str, Any],
    dynamic_shapes: Mapping[str, Any] | None = None,
) -> None:
    """Trace a module on example arguments and write it in one file, with each value of `metadata` as JSON."""
    require_onnx()
    with quiet_exporter():
        torch.onnx.export(
            module,
            arguments,
            str(path),
            input_names=list(input_names),
            output_names=list(output_names),
            dynamic_shapes=None if dynamic_shapes is None else dict(dynamic_shapes),
            opset_version=OPSET,
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    _add_metadata(path, metadata)


@contextmanager
def quiet_exporter() -> Iterator[None]:
    """Silence the exporter's messages about optional packages."""
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


def _add_metadata(path: Path, metadata: Mapping[str, Any]) -> None:
    """Add the metadata to the file, and remove the exporter's references to source code."""
    onnx = require_onnx()[0]
    model = onnx.load(str(path))
    for part in (*model.graph.node, *model.graph.input, *model.graph.output, *model.graph.value_info, model.graph):
        del part.metadata_props[:]
    for node in model.graph.node:
        node.doc_string = ""
    onnx.helper.set_model_props(model, {key: json.dumps(to_json_values(value)) for key, value in metadata.items()})
    model.producer_name = "st_rl"
    onnx.checker.check_model(model)
    onnx.save(model, str(path))


def open_session(path: Path) -> Any:
    """Return an ONNX file in onnxruntime, on the CPU."""
    return require_onnx()[1].InferenceSession(str(path), providers=["CPUExecutionProvider"])


def require_onnx() -> tuple[ModuleType, ModuleType]:
    """Return the modules `onnx` and `onnxruntime`; ImportError naming the extra to install."""
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
