"""Information on the machine and the installed software, for `run.json` and `st-rl doctor`; imports no torch."""

import functools
import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "numpy", "mujoco", "gymnasium", "tyro", "tensorboard", "onnx", "onnxruntime", "imageio-ffmpeg")


def package_version(package: str) -> str | None:
    """Return the installed version of a package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def versions() -> dict[str, str]:
    """Return the versions of Python, st_rl and the installed packages it uses."""
    from st_rl import __version__

    found = {package: package_version(package) for package in PACKAGES}
    installed = {package: version for package, version in found.items() if version}
    return {"python": platform.python_version(), "st_rl": __version__, **installed}


def num_cores() -> int:
    """Return the number of cores this process may use; ranks that torchrun starts on one machine divide them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", 1)))


def cpu_name() -> str:
    """Return the name of the processor, or its architecture if the system does not name it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def machine() -> dict[str, Any]:
    """Return hardware information without host or user names."""
    info: dict[str, Any] = {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_name(),
        "cores": num_cores(),
    }
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        info["gpu"] = torch.cuda.get_device_name(0)
    return info


def git_state() -> dict[str, Any]:
    """Return the commit of the st_rl repository and whether files differ from it; empty outside a repository."""
    folder = Path(__file__).resolve().parent

    def git(*arguments: str) -> str | None:
        try:
            result = subprocess.run(
                ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return result.stdout.strip() if result.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    # st_rl may be installed inside the repository of another project.
    if commit is None or git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return {}
    return {"commit": commit, "changed": bool(git("status", "--porcelain", "--untracked-files=no"))}


@functools.cache
def describe_system() -> dict[str, Any]:
    """Return what `run.json` stores to reproduce a run: versions, machine and commit."""
    return {"versions": versions(), "machine": machine(), "git": git_state()}
