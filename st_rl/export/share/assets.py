"""The JavaScript packages of a shared page, downloaded once with npm."""

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

PACKAGES = {"@mujoco/mujoco": "3.14.0", "onnxruntime-web": "1.30.0", "three": "0.187.0"}
"""Packages of the page and their versions."""
FILES = (
    "@mujoco/mujoco/mujoco.js",
    "@mujoco/mujoco/mujoco.wasm",
    "onnxruntime-web/dist/ort.wasm.min.mjs",
    "onnxruntime-web/dist/ort-wasm-simd-threaded.mjs",
    "onnxruntime-web/dist/ort-wasm-simd-threaded.wasm",
    "three/build/three.module.js",
    "three/build/three.core.js",
    "three/examples/jsm/controls/OrbitControls.js",
    "three/LICENSE",
)
"""Files of the packages that a page loads, and the license that has to stay with them."""
_NPM_S = 600.0


class ShareError(RuntimeError):
    """A page cannot be written; the message says what to do."""


def default_folder() -> Path:
    """Where the packages are kept between two calls."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "st_rl" / "web"


def is_installed(folder: Path) -> bool:
    """Whether a folder has all packages in their versions, and their files."""
    modules = folder / "node_modules"
    try:
        found = {name: json.loads((modules / name / "package.json").read_text())["version"] for name in PACKAGES}
    except (OSError, ValueError, KeyError):
        return False
    return found == PACKAGES and all((modules / file).is_file() for file in FILES)


def find_packages(folder: Path | None = None) -> Path:
    """Return the folder `node_modules` with the packages; downloads them with npm where they are missing.

    `folder` holds them, by default one in the user's cache. ShareError if they cannot be installed.
    """
    folder = default_folder() if folder is None else folder
    if is_installed(folder):
        return folder / "node_modules"
    names = [f"{name}@{version}" for name, version in PACKAGES.items()]
    options = ["--prefix", str(folder), "--no-audit", "--no-fund", "--ignore-scripts"]
    npm = shutil.which("npm")
    if npm is None:
        typed = shlex.join(["npm", "install", *options, *names])
        raise ShareError(
            f"the page needs {', '.join(names)}, which npm downloads once, and npm is not installed: install Node.js, "
            f"or run on a machine that has it: {typed}; then copy {folder}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    result = subprocess.run(
        [npm, "install", *options, *names], capture_output=True, text=True, timeout=_NPM_S, check=False
    )
    if not is_installed(folder):
        said = [line for line in result.stderr.splitlines() if "error" in line.lower()]
        reason = said[0] if said else f"npm ended with {result.returncode}"
        raise ShareError(f"npm could not install {', '.join(names)} into {folder}: {reason}")
    return folder / "node_modules"
