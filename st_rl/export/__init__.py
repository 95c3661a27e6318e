"""Policy files for controllers."""

from st_rl.export.onnx_policy import DeployedPolicy, ExportError, ExportReport, export_onnx
from st_rl.export.torchscript_policy import export_torchscript

__all__ = ["DeployedPolicy", "ExportError", "ExportReport", "export_onnx", "export_torchscript"]
