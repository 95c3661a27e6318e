"""Description of the machine a benchmark runs on, and writing of its results."""

import datetime
import json
import math
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = (
    "torch",
    "numpy",
    "gymnasium",
    "mujoco",
    "mujoco-warp",
    "warp-lang",
    "rsl-rl-lib",
    "stable-baselines3",
    "mjlab",
)


def describe_machine() -> dict[str, Any]:
    """CPU, versions, date and load of the machine."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": {
            "processor": _processor_name(),
            "cores": os.cpu_count(),
            "graphics": _graphics_card(),
            "system": platform.system(),
            "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        },
        "versions": {"python": platform.python_version(), **_versions()},
    }


def write_results(path: Path, results: dict[str, Any]) -> None:
    """Write results as indented JSON with four significant digits; non-finite values become null."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Whoever stops the benchmark while it writes keeps the former file.
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(json.dumps(_rounded(results), indent=1) + "\n")
    unfinished.replace(path)


def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _graphics_card() -> str | None:
    """Name and driver of the GPU; None without one."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() or None
    except (OSError, subprocess.CalledProcessError):
        return None


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value
