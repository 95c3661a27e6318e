"""Readers for files of unknown origin: limits, checked before the work, and errors that name the file.

A small file must not need seconds or gigabytes: `LimitError` says which limit it exceeds.
"""

import contextlib
import functools
import json
import os
import re
import stat
import zipfile
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any

import numpy as np

from st_rl.utils.files.atomic import StrPath

MAX_FILE_BYTES = 2**31
"""Size of a file that is read as a whole."""
MAX_TEXT_BYTES = 2**27
"""Size of a table or motion as text."""
MAX_SETTINGS_BYTES = 2**24
"""Size of any other JSON file, such as those of a run folder."""
MAX_YAML_BYTES = 2**16
"""Size of a YAML file; PyYAML reads about 100 kB a second."""
MAX_UNPACKED_BYTES = 2**25
"""Size of a compressed file after decompression, unless it is less than `MAX_UNPACKED_RATIO` times the file's size."""
MAX_UNPACKED_RATIO = 10
"""See `MAX_UNPACKED_BYTES`; floating-point data hardly exceeds 3."""
MAX_DEPTH = 64
"""Containers inside one another."""
MAX_ELEMENTS = 10_000_000
"""Elements of all containers of a text file or pickle, shared containers counted wherever they appear."""
MAX_SETTINGS_ELEMENTS = 1_000_000
"""Elements of all containers of a JSON file of `MAX_SETTINGS_BYTES`."""
MAX_CONTAINERS = 250_000
"""Containers of a JSON file."""
MAX_COLUMNS = 4096
"""Columns of a table, joints or bodies of a motion."""
MAX_MEMBERS = 10_000
"""Files in an archive."""

# Without waiting for the writer of a named pipe; only Windows has a flag for binary data.
_OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_JSON_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_YAML_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$")
# Characters of a reason in a message.
_MAX_REASON = 400


class FileError(ValueError):
    """A file with invalid content; the message names the file and the remedy."""


class LimitError(ValueError):
    """A file that exceeds a limit."""


@contextlib.contextmanager
def name_file(
    path: StrPath, remedy: str, error_type: type[Exception] = FileError, problem: str = "cannot read"
) -> Iterator[None]:
    """Raise errors of the block as `error_type`, with the file and the remedy, unless they already name the file."""
    try:
        yield
    # A damaged file may raise nearly anything.
    except Exception as error:
        if isinstance(error, error_type) or str(path) in str(error):
            raise
        raise error_type(f"{problem} {path}: {explain(error)}; {remedy}") from error


def explain(error: Exception) -> str:
    """Return the reason of an error in one line."""
    text = " ".join(str(error).split())[:_MAX_REASON]
    if isinstance(error, KeyError):
        return f"it lacks {text}"
    if isinstance(error, json.JSONDecodeError):
        return f"it is not JSON: {text}"
    return text if text and isinstance(error, ValueError | OSError) else f"{type(error).__name__} {text}".rstrip()


def read_bytes(path: StrPath, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Read a file; LimitError if it is too large, or a device or named pipe, which may never end."""
    descriptor = os.open(path, _OPEN_FLAGS)
    try:
        _check_status(os.fstat(descriptor), max_bytes)
        with open(descriptor, "rb", buffering=0, closefd=False) as file:
            return file.readall()
    finally:
        os.close(descriptor)


def check_file(path: Path, max_bytes: int = MAX_FILE_BYTES) -> int:
    """Return the size of a file; LimitError if it is too large or not a regular file."""
    return _check_status(path.stat(), max_bytes)


def _check_status(status: os.stat_result, max_bytes: int) -> int:
    if not stat.S_ISREG(status.st_mode):
        raise LimitError("it is not a regular file")
    if status.st_size > max_bytes:
        raise LimitError(f"it has {status.st_size:,} bytes, more than {max_bytes:,}")
    return status.st_size


def read_text(path: StrPath, remedy: str = "restore it from a copy", max_bytes: int = MAX_TEXT_BYTES) -> str:
    """Read a UTF-8 text file, without byte order mark; errors as those of `read_json`."""
    with name_file(path, remedy):
        return read_bytes(path, max_bytes).decode("utf-8-sig")


def read_json(
    path: StrPath,
    remedy: str = "restore it from a copy",
    max_bytes: int = MAX_SETTINGS_BYTES,
    max_elements: int = MAX_SETTINGS_ELEMENTS,
) -> Any:
    """Read a JSON file; FileError if it is damaged or exceeds a limit, OSError if it cannot be opened."""
    with name_file(path, remedy):
        data = read_bytes(path, max_bytes)
        check_json(data, max_elements)
        return json.loads(data.decode("utf-8-sig"))


def read_json_object(path: StrPath, remedy: str = "restore it from a copy") -> dict[str, Any]:
    """Read a JSON file with an object at the top; errors as those of `read_json`."""
    content = read_json(path, remedy)
    if not isinstance(content, dict):
        raise FileError(f"cannot read {path}: it holds a {type(content).__name__}, not an object {{...}}; {remedy}")
    return content


def check_json(text: bytes, max_elements: int = MAX_ELEMENTS) -> None:
    """LimitError for JSON text with too many elements or too deep nesting."""
    if text.count(b",") > max_elements:
        raise LimitError(f"it has more than {max_elements:,} elements")
    brackets = _JSON_STRING.sub(b"", text).translate(None, _NOT_BRACKETS)
    if len(brackets) <= MAX_DEPTH:
        return
    if len(brackets) > 2 * MAX_CONTAINERS:
        raise LimitError(f"it has more than {MAX_CONTAINERS:,} lists and objects")
    codes = np.frombuffer(brackets, dtype=np.uint8)
    is_open = (codes == ord("[")) | (codes == ord("{"))
    if np.cumsum(np.where(is_open, 1, -1), dtype=np.int32).max() > MAX_DEPTH:
        raise LimitError(f"it is nested more than {MAX_DEPTH} levels deep")


def check_journal(path: Path) -> None:
    """ValueError for a file that exceeds a limit of JSON, or has a line that is not a JSON value."""
    data = read_bytes(path, MAX_TEXT_BYTES)
    check_json(data.replace(b"\n", b","), MAX_SETTINGS_ELEMENTS)
    for line in data.splitlines():
        json.loads(line)


def read_yaml_object(path: StrPath, remedy: str, problem: str = "cannot read") -> dict[str, Any]:
    """Read a YAML file with `key: value` lines; FileError if it is damaged, exceeds a limit or repeats a key.

    Numbers such as `1e-3`, which YAML 1.1 takes for words, are numbers. An empty file has no keys.
    """
    import yaml

    with name_file(path, remedy, problem=problem):
        text = read_text(path, max_bytes=MAX_YAML_BYTES)
        check_yaml(text)
        content = yaml.load(text, _yaml_loader())
        if not isinstance(content, dict | None):
            raise ValueError(f"it holds a {type(content).__name__}, not lines 'key: value'")
    return content or {}


@functools.cache
def _yaml_loader() -> type[Any]:
    """Return `yaml.SafeLoader` with floats of YAML 1.2, Python tuples as lists, and an error for a repeated key."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            repeated = next((key for key in keys if keys.count(key) > 1), None)
            if repeated is not None:
                raise ValueError(f"the key '{repeated}' appears twice")
            return super().construct_mapping(node, deep)

        def construct_tuple(self, node: Any) -> list[Any]:
            # Isaac Lab and mjlab write tuples.
            return self.construct_sequence(node, deep=True)

    Loader.add_constructor("tag:yaml.org,2002:python/tuple", Loader.construct_tuple)
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _YAML_FLOAT, list("-+.0123456789"))
    return Loader


def check_yaml(text: str) -> None:
    """LimitError for YAML text that is nested too deeply, or has too many elements once aliases are replaced."""
    import yaml

    sizes: dict[str, int] = {}
    # Number of elements and anchor of each open container.
    containers: list[tuple[int, str | None]] = [(0, None)]
    for event in yaml.parse(text, yaml.SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            containers.append((1, event.anchor))
            if len(containers) > MAX_DEPTH:
                raise LimitError(f"it is nested more than {MAX_DEPTH} levels deep")
            continue
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in sizes:
                raise LimitError(f"its alias *{event.anchor} names no finished value")
            added, anchor = sizes[event.anchor], None
        elif isinstance(event, yaml.CollectionEndEvent):
            added, anchor = containers.pop()
        elif isinstance(event, yaml.ScalarEvent):
            added, anchor = 1, event.anchor
        else:
            continue
        if anchor is not None:
            sizes[anchor] = added
        total, name = containers[-1]
        containers[-1] = total + added, name
        if total + added > MAX_YAML_BYTES:
            raise LimitError(f"its aliases stand for more than {MAX_YAML_BYTES:,} values")


def load_arrays(path: StrPath) -> dict[str, np.ndarray]:
    """Read the arrays of an npz file without pickle; nearly any exception for a damaged one."""
    size = check_file(Path(path))
    with open(path, "rb") as file:
        if file.read(len(np.lib.format.MAGIC_PREFIX)) == np.lib.format.MAGIC_PREFIX:
            raise ValueError("it is a single array, a .npy")
    content: dict[str, np.ndarray] = {}
    with zipfile.ZipFile(path) as archive:
        check_archive(archive, size)
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            with archive.open(member) as file:
                array = np.lib.format.read_array(file, allow_pickle=False)
            if array.size and not array.itemsize:
                raise LimitError(f"{name} has {array.size:,} elements without content")
            content[name] = array
    return content


def check_archive(archive: zipfile.ZipFile, packed_bytes: int) -> None:
    """LimitError for a zip archive with too many files, or too many bytes after decompression."""
    members = archive.infolist()
    if len(members) > MAX_MEMBERS:
        raise LimitError(f"it is an archive of {len(members):,} files, more than {MAX_MEMBERS:,}")
    unpacked, limit = sum(member.file_size for member in members), max_unpacked(packed_bytes)
    if unpacked > limit:
        raise LimitError(f"its {packed_bytes:,} bytes unpack to {unpacked:,}, more than {limit:,}")


def max_unpacked(packed_bytes: int) -> int:
    """Return how many bytes a compressed file of a size may have after decompression."""
    return max(MAX_UNPACKED_BYTES, MAX_UNPACKED_RATIO * packed_bytes)


def check_tree(value: object) -> None:
    """LimitError for containers that hold themselves, are nested too deeply, or have too many elements as a tree."""
    _measure(value, {}, 0)


def _measure(value: object, known: dict[int, tuple[int, int]], depth: int) -> tuple[int, int]:
    """Return the number of elements and the height of a tree; `known` has those of containers by their id."""
    if not isinstance(value, Mapping | list | tuple | Set):
        return 0, 0
    if id(value) in known:
        return known[id(value)]
    size, height = len(value), 0
    if depth <= MAX_DEPTH:
        for item in value.values() if isinstance(value, Mapping) else value:
            if isinstance(item, Mapping | list | tuple | Set):
                item_size, item_height = _measure(item, known, depth + 1)
                size, height = size + item_size, max(height, item_height)
    if depth + height > MAX_DEPTH:
        raise LimitError(f"it is nested more than {MAX_DEPTH} levels deep")
    if size > MAX_ELEMENTS:
        raise LimitError(f"it has more than {MAX_ELEMENTS:,} elements")
    known[id(value)] = size, height + 1
    return size, height + 1


def check_columns(count: int, kind: str = "columns") -> None:
    """LimitError for too many columns, or joints, or bodies."""
    if count > MAX_COLUMNS:
        raise LimitError(f"it has {count:,} {kind}, more than {MAX_COLUMNS:,}")
