"""Writes the folder of a shared page from a deploy kit."""

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from st_rl.export.deploy.kit import POLICY_FILE, ROBOT_FILE
from st_rl.export.share.assets import FILES, ShareError

PAGE_FILES = ("index.html", "page.js", "scene.js")
DESCRIPTION_FILE, FILE_LIST = "deploy.json", "robot.json"
KNOWN_ESTIMATES = ("base_lin_vel",)
"""Inputs that no robot measures and that the page takes from its simulation."""


def write_page(folder: Path, kit: Path, description: Mapping[str, Any], packages: Path) -> None:
    """Write a page for the policy of a kit into a folder; any web server can serve it.

    `description` is the content of the kit's `deploy.yaml`, `packages` the folder `node_modules`. ShareError for a
    policy that observes what the page cannot compute.
    """
    signals = description["inputs"].items()
    unknown = [name for name, signal in signals if signal.get("must_be_estimated") and name not in KNOWN_ESTIMATES]
    if unknown:
        raise ShareError(
            f"the policy observes {', '.join(unknown)}, which the page cannot compute: share a policy that does without"
        )
    (folder / "lib").mkdir(parents=True, exist_ok=True)
    for name in FILES:
        _copy_library(packages / name, folder / "lib" / _flat_name(name))
    for name in PAGE_FILES:
        shutil.copyfile(Path(__file__).parent / "files" / name, folder / name)
    shutil.copyfile(kit / POLICY_FILE, folder / POLICY_FILE)
    robot = (kit / ROBOT_FILE).parent
    shutil.copytree(robot, folder / robot.name, dirs_exist_ok=True)
    written = folder / ROBOT_FILE
    written.write_text(older_mjcf(written.read_text(encoding="utf-8")), encoding="utf-8")
    files = sorted(p.relative_to(folder).as_posix() for p in (folder / robot.name).rglob("*") if p.is_file())
    (folder / FILE_LIST).write_text(json.dumps(files))
    (folder / DESCRIPTION_FILE).write_text(json.dumps(description))


def older_mjcf(text: str) -> str:
    """MJCF as MuJoCo 3.14 reads it, the newest for the browser: 4.0 names the input of position servos."""
    return re.sub(r'\s+input="pos"', "", text)


def _flat_name(name: str) -> str:
    return "three.LICENSE" if name == "three/LICENSE" else Path(name).name


def _copy_library(source: Path, target: Path) -> None:
    """Copy a file of a package; imports of `three` by name become imports of the file beside it."""
    if source.name == "OrbitControls.js":
        text = source.read_text(encoding="utf-8")
        target.write_text(re.sub(r"from\s+'three'", "from './three.module.js'", text), encoding="utf-8")
    else:
        shutil.copyfile(source, target)
