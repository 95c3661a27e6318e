"""Finds entries of a dataset that are not files or folders of its own: links, named pipes, devices, sockets."""

import os
import stat

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def find_refused_entries(root: str) -> dict[str, str]:
    """Path -> what it is, for every entry below `root` that may lead outside or never end; follows no links."""
    found: dict[str, str] = {}
    pending = [root]
    while pending:
        try:
            with os.scandir(pending.pop()) as scan:
                entries = sorted(scan, key=lambda entry: entry.name)
        except OSError:  # deleted since it was listed
            continue
        for entry in entries:
            if entry.is_symlink():
                found[entry.path] = f"a symbolic link to {os.readlink(entry.path)}"
            elif entry.is_dir(follow_symlinks=False):
                pending.append(entry.path)
            elif not entry.is_file(follow_symlinks=False):
                kind = stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode)
                found[entry.path] = _KINDS.get(kind, "not a regular file")
    return found
