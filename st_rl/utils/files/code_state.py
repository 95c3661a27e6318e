"""Records the code state of a run: git status and diff against HEAD."""

import itertools
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

from st_rl.utils.files import StrPath, atomic_write
from st_rl.utils.log import logger

_TIMEOUT_S = 60.0


def store_code_state(logdir: StrPath | None, repositories: StrPath | Iterable[StrPath]) -> list[str]:
    """Write `logdir/git/{repository}.diff` for the git repository around each path; return the paths written now.

    `repositories` is one path or several. What cannot be recorded (no git, no repository, no commit, disk full) is
    logged and skipped, never raised.
    """
    if logdir is None:
        return []
    folder = Path(logdir) / "git"
    written: list[str] = []
    names: dict[str, Path] = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        logger.warning("code state is not recorded: %s", error)
        return []
    for repository in [repositories] if isinstance(repositories, str | os.PathLike) else repositories:
        try:
            inside = Path(repository).resolve()
            inside = inside if inside.is_dir() else inside.parent
            root = Path(os.fsdecode(_git(inside, "rev-parse", "--show-toplevel").rstrip(b"\n")))
            if root in names.values():
                continue
            candidates = itertools.chain([root.name], (f"{root.name}_{number}" for number in itertools.count(1)))
            name = next(name for name in candidates if name not in names)
            names[name] = root
            path = folder / f"{name}.diff"
            if path.exists():
                continue
            text = _describe(root)
            with atomic_write(path) as temporary:
                temporary.write_bytes(text)
        except (OSError, subprocess.SubprocessError, TypeError, ValueError) as error:
            logger.warning("code state of %s is not recorded: %s", repository, _reason(error))
            continue
        written.append(str(path))
    return written


def _describe(root: Path) -> bytes:
    """Status and diff against HEAD of the repository at `root`."""
    commit = _git(root, "rev-parse", "--verify", "HEAD")
    status = _git(root, "status")
    diff = _git(root, "diff", "--no-ext-diff", "HEAD")
    return b"--- git status at commit " + commit.strip() + b" ---\n" + status + b"\n--- git diff ---\n" + diff


def _git(folder: Path, *arguments: str) -> bytes:
    """Standard output of a git command in `folder`; takes no lock and never prompts."""
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
    command = ["git", "--no-pager", "-C", str(folder), "-c", "color.ui=false", *arguments]
    return subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT_S, env=environment).stdout


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return error.stderr.decode(errors="replace").strip().splitlines()[0] if error.stderr else str(error)
    if isinstance(error, FileNotFoundError) and error.filename == "git":
        return "the program git was not found"
    return str(error)
