"""Check the installation and print the commands that fix it."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from st_rl.cli.support.command_line import parse_options
from st_rl.system_info import cpu_name, num_cores, package_version

# Extra -> its packages, and what needs them.
EXTRAS = {
    "sim": (("mujoco",), "the built-in tasks"),
    "gym": (("gymnasium",), "gymnasium tasks (gym:ENV_ID)"),
    "video": (("imageio-ffmpeg",), "videos (st-rl play)"),
    "view": (("viser", "mjviser"), "the viewer in the browser (st-rl view, st-rl train --view)"),
    "export": (("onnx", "onnxscript", "onnxruntime"), "ONNX files (st-rl export)"),
    "warp": (("mujoco-warp", "warp-lang"), "the built-in tasks on a GPU (--device cuda:0)"),
}
CORE = ("torch", "numpy", "tyro", "rich", "tensorboard", "PyYAML")
_RENDER_SCRIPT = """
from st_rl.sim.evaluation.rendering import FrameRenderer
import mujoco
model = mujoco.MjModel.from_xml_string('<mujoco><worldbody><light pos="0 0 3"/><geom size="1"/></worldbody></mujoco>')
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
with FrameRenderer(model, 64, 48) as renderer:
    picture = renderer.draw(data)
    print("drawn with", renderer.library or "the display") if picture.std() > 1 else exit("the picture is empty")
"""


@dataclass
class DoctorOptions:
    """Options of `st-rl doctor`."""

    rendering: bool = True
    """Whether to render a test picture, in a separate process."""


class Finding(NamedTuple):
    """The result of one check."""

    name: str
    state: str
    """`ok`, `missing` (something does not work) or `note`."""
    detail: str
    fix: str = ""


def main(arguments: Sequence[str]) -> int:
    """Run the command; the exit code is 1 if the core or the built-in simulation does not work."""
    options = parse_options(DoctorOptions, arguments, "doctor", __doc__)
    findings = [*check_core(), *check_extras(), check_threads(), check_gpu(), check_folder()]
    if options.rendering:
        findings.append(check_rendering())
    _print_findings(findings)
    return 1 if any(f.state == "missing" and f.name in ("python", *CORE, "sim") for f in findings) else 0


def check_core() -> list[Finding]:
    """Check Python and the required packages."""
    python = ("ok", platform.python_version()) if sys.version_info >= (3, 10) else ("missing", "too old")
    findings = [Finding("python", *python, "" if python[0] == "ok" else "install Python 3.10")]
    for package in CORE:
        version = package_version(package)
        state, fix = ("ok", "") if version else ("missing", f"pip install {package}")
        findings.append(Finding(package, state, version or "not installed", fix))
    return findings


def check_extras() -> list[Finding]:
    """Check the optional packages of each extra."""
    findings = []
    for extra, (packages, purpose) in EXTRAS.items():
        if extra == "warp" and not _has_gpu():
            continue
        found = {package: package_version(package) for package in packages}
        missing = [package for package, version in found.items() if version is None]
        if missing:
            detail, fix = f"{', '.join(missing)} not installed: needed for {purpose}", f'pip install "st_rl[{extra}]"'
        elif extra == "sim" and importlib.util.find_spec("mujoco.batch") is None:
            detail = f"mujoco {found['mujoco']} has no mujoco.batch (needs 3.17 or later)"
            fix = 'pip install -U "st_rl[sim]"'
        else:
            detail, fix = ", ".join(f"{package} {version}" for package, version in found.items()), ""
        findings.append(Finding(extra, "missing" if fix else "ok", detail, fix))
    return findings


def _has_gpu() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def check_threads() -> Finding:
    """Check the usable cores and thread limits."""
    cores, limit = num_cores(), os.environ.get("OMP_NUM_THREADS")
    limited = f"; OMP_NUM_THREADS={limit}" if limit else ""
    detail = f"{cores} of {os.cpu_count()} cores usable ({cpu_name()}){limited}; physics uses all of them"
    return Finding("threads", "ok" if cores > 1 else "note", detail)


def check_gpu() -> Finding:
    """Check for an NVIDIA GPU that torch can use."""
    try:
        import torch
    except ImportError:
        return Finding("gpu", "note", "torch is not installed")
    if torch.cuda.is_available():
        return Finding("gpu", "ok", f"{torch.cuda.get_device_name(0)} (CUDA {torch.version.cuda})")
    if shutil.which("nvidia-smi"):
        return Finding("gpu", "note", "NVIDIA driver found, but this torch has no CUDA", "pip install -U torch")
    return Finding("gpu", "note", "none; everything runs on the CPU")


def check_folder() -> Finding:
    """Check whether runs can be written to the current folder."""
    if os.access(os.getcwd(), os.W_OK):
        return Finding("folder", "ok", "runs are written to ./runs")
    fix = "cd to a folder of yours, or train with --log-dir FOLDER"
    return Finding("folder", "missing", "the current folder is read-only", fix)


def check_rendering(run: Callable[..., subprocess.CompletedProcess[str]] = subprocess.run) -> Finding:
    """Render without a display, in a separate process because a broken driver may crash it."""
    if package_version("mujoco") is None:
        return Finding("rendering", "missing", "needs mujoco", 'pip install "st_rl[sim]"')
    command = [sys.executable, "-c", _RENDER_SCRIPT]
    try:
        result = run(command, capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return Finding("rendering", "missing", "a picture took more than a minute", "MUJOCO_GL=osmesa st-rl doctor")
    if result.returncode == 0:
        return Finding("rendering", "ok", result.stdout.strip())
    lines = [line for line in result.stderr.strip().splitlines() if line.strip()]
    reason = lines[-1].split("RenderingError: ")[-1] if lines else f"the process exited with {result.returncode}"
    return Finding("rendering", "missing", reason.split(": install")[0], "apt-get install -y libegl1 libosmesa6")


def _print_findings(findings: Sequence[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table

    from st_rl import __version__

    marks = {"ok": "[green]ok[/]", "missing": "[red]missing[/]", "note": "[yellow]note[/]"}
    table = Table(title=f"st_rl {__version__} on {platform.system()} {platform.machine()}", title_justify="left")
    for column in ("", "state", "found"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        table.add_row(finding.name, marks[finding.state], finding.detail)
    console = Console()
    console.print(table)
    fixes = [finding for finding in findings if finding.fix]
    console.print("To fix:" if fixes else "Everything is installed. Next: st-rl train quadruped-walk")
    for finding in fixes:
        console.print(f"  {finding.name}: {finding.fix}", markup=False, highlight=False, soft_wrap=True)
