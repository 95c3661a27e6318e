"""Check what is installed, what is missing, and say which command fixes it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from st_rl.cli.support.command_line import parse_options
from st_rl.cli.support.system_info import cpu_name, num_cores, package_version

# What each extra brings, and which packages it needs.
EXTRAS = {
    "sim": (("mujoco",), "the built-in tasks"),
    "gym": (("gymnasium",), "tasks of gymnasium (gym:ENV_ID)"),
    "video": (("imageio-ffmpeg",), "videos (st-rl play)"),
    "export": (("onnx", "onnxscript", "onnxruntime"), "policy files (st-rl export)"),
    "warp": (("mujoco-warp", "warp-lang"), "the built-in tasks on a GPU (--device cuda:0)"),
}
CORE = ("torch", "numpy", "tyro", "rich", "tensorboard", "PyYAML")
# The processor of this picture says more than a library's version: it was drawn in a fresh process.
_PROBE = """
from st_rl.sim.evaluation.rendering import FrameRenderer
import mujoco
model = mujoco.MjModel.from_xml_string('<mujoco><worldbody><light pos="0 0 3"/><geom size="1"/></worldbody></mujoco>')
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
with FrameRenderer(model, 64, 48) as renderer:
    picture = renderer.draw(data)
    print("drawn with", renderer.library or "the screen") if picture.std() > 1 else exit("the picture is empty")
"""


@dataclass
class DoctorOptions:
    """Options of `st-rl doctor`."""

    rendering: bool = True
    """Whether to draw a test picture, in a process of its own."""


class Finding(NamedTuple):
    """One thing that was looked at."""

    name: str
    state: str
    """`ok`, `missing` (something does not work) or `note`."""
    detail: str
    fix: str = ""
    """The command that puts it right."""


def main(arguments: Sequence[str]) -> int:
    """Run the command; 1 when the core or the built-in simulation cannot work."""
    options = parse_options(DoctorOptions, arguments, "doctor", __doc__ or "")
    findings = [*check_core(), *check_extras(), check_threads(), check_gpu(), check_folder()]
    if options.rendering:
        findings.append(check_rendering())
    _show(findings)
    return 1 if any(f.state == "missing" and f.name in ("python", *CORE, "sim") for f in findings) else 0


def check_core() -> list[Finding]:
    """Python and the packages without which nothing works."""
    new_enough = sys.version_info >= (3, 10)
    findings = [
        Finding(
            "python",
            "ok" if new_enough else "missing",
            platform.python_version(),
            "" if new_enough else "install Python 3.10",
        )
    ]
    for package in CORE:
        version = package_version(package)
        state, fix = ("ok", "") if version else ("missing", f"pip install {package}")
        findings.append(Finding(package, state, version or "not installed", fix))
    return findings


def check_extras() -> list[Finding]:
    """The optional packages, by extra."""
    findings = []
    for extra, (packages, purpose) in EXTRAS.items():
        if extra == "warp" and not _has_gpu():
            continue
        found = {package: package_version(package) for package in packages}
        absent = [package for package, version in found.items() if version is None]
        if absent:
            findings.append(
                Finding(
                    extra,
                    "missing",
                    f"{', '.join(absent)} not installed: needed for {purpose}",
                    f'pip install "st_rl[{extra}]"',
                )
            )
        elif extra == "sim" and not _has_batch():
            findings.append(
                Finding(
                    extra,
                    "missing",
                    f"mujoco {found['mujoco']} has no mujoco.batch (3.17 and later)",
                    'pip install -U "st_rl[sim]"',
                )
            )
        else:
            findings.append(
                Finding(extra, "ok", ", ".join(f"{package} {version}" for package, version in found.items()))
            )
    return findings


def _has_gpu() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def _has_batch() -> bool:
    import importlib.util

    return importlib.util.find_spec("mujoco.batch") is not None


def check_threads() -> Finding:
    """Cores, and settings that take them away."""
    cores = num_cores()
    limit = os.environ.get("OMP_NUM_THREADS")
    note = f"; OMP_NUM_THREADS={limit}" if limit else ""
    detail = f"{cores} of {os.cpu_count()} cores usable ({cpu_name()}){note}; physics uses all, torch is told how many"
    return Finding("threads", "ok" if cores > 1 else "note", detail)


def check_gpu() -> Finding:
    """An NVIDIA GPU and a torch that can use it."""
    try:
        import torch
    except ImportError:
        return Finding("gpu", "note", "torch is not installed")
    if torch.cuda.is_available():
        return Finding("gpu", "ok", f"{torch.cuda.get_device_name(0)} (CUDA {torch.version.cuda})")
    if shutil.which("nvidia-smi"):
        return Finding("gpu", "note", "there is an NVIDIA driver, but this torch has no CUDA", "pip install -U torch")
    return Finding("gpu", "note", "none; everything runs on the CPU")


def check_folder() -> Finding:
    """Whether runs can be written here."""
    writable = os.access(os.getcwd(), os.W_OK)
    return Finding(
        "folder",
        "ok" if writable else "missing",
        "runs are written to ./runs" if writable else "this folder is read-only",
        "" if writable else "cd to a folder of yours, or train with --log-dir FOLDER",
    )


def check_rendering(run: Callable[..., subprocess.CompletedProcess[str]] = subprocess.run) -> Finding:
    """Draw a picture without a screen, in a process of its own because a bad driver can take its process down."""
    if package_version("mujoco") is None:
        return Finding("rendering", "missing", "needs mujoco", 'pip install "st_rl[sim]"')
    command = [sys.executable, "-c", _PROBE]
    try:
        result = run(command, capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return Finding("rendering", "missing", "a picture took more than a minute", "MUJOCO_GL=osmesa st-rl doctor")
    if result.returncode == 0:
        return Finding("rendering", "ok", result.stdout.strip())
    lines = [line for line in result.stderr.strip().splitlines() if line.strip()]
    reason = lines[-1].split("RenderingError: ")[-1] if lines else f"the process ended with {result.returncode}"
    return Finding("rendering", "missing", reason.split(": install")[0], "apt-get install -y libegl1 libosmesa6")


def _show(findings: Sequence[Finding]) -> None:
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
    if fixes:
        console.print("To put right:")
    for finding in fixes:
        console.print(f"  {finding.name}: {finding.fix}", markup=False, highlight=False, soft_wrap=True)
    if not fixes:
        console.print("Everything is here. Next: st-rl train quadruped-walk")
