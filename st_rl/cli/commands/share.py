"""Write a page on which a policy walks in any browser: st-rl share RUN FOLDER."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from st_rl.cli.commands.deploy import write_run_kit
from st_rl.cli.support.command_line import UsageError, conf, parse_options
from st_rl.cli.support.run_folders.loaded_run import open_run
from st_rl.cli.support.run_folders.run_folder import RunOptions, make_writable


@dataclass
class ShareOptions(RunOptions):
    """Options of `st-rl share`."""

    folder: Annotated[Path, conf("arg", metavar="FOLDER")] = field(kw_only=True)
    """Folder of the page; a page in it is replaced."""
    packages: Path | None = None
    """Folder of the JavaScript packages, which npm downloads once; None uses one in the cache of the user."""


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    options = parse_options(ShareOptions, arguments, "share", __doc__)
    folder = options.folder
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "page.js").is_file():
        raise UsageError(f"{folder} contains something else: name a new folder for the page")
    loaded, checkpoint = open_run(options)
    from st_rl.sim.envs.motion_tracking_cfg import MotionTrackingCfg

    if isinstance(loaded.env_config, MotionTrackingCfg):
        raise UsageError(
            "a page shows walking policies, not clips: st-rl play RUN writes a film, st-rl view RUN opens one"
        )
    make_writable(folder, "name another folder")
    from st_rl.export.share import find_packages, write_page

    packages = find_packages(options.packages)
    with tempfile.TemporaryDirectory() as temporary:
        kit = Path(temporary) / "kit"
        # Without the arguments: the page may be public, and they contain paths.
        description = write_run_kit(loaded, checkpoint, kit, "st-rl share", allow_estimates=True)
        write_page(folder, kit, description, packages)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder}: a page of {size / 1e6:.0f} MB that any web server can serve, without a network and Python")
    print(f"Try it: python -m http.server --bind 127.0.0.1 --directory {shlex.quote(str(folder))} 8000")
    return 0
