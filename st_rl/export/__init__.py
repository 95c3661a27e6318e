"""Policy files for controllers."""

from st_rl.export.onnx_policy import DeployedPolicy, ExportError, ExportReport, export_onnx

__all__ = ["DeployedPolicy", "ExportError", "ExportReport", "export_onnx"]
