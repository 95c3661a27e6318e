"""Limits for files of unknown origin, checked before the work: size, unpacked size, nesting, elements and columns.

A small file must not need seconds or gigabytes: `LimitError` says which limit it exceeds.
"""

import bz2
import json
import lzma
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Mapping, Sequence, Set
from itertools import pairwise
from pathlib import Path

import numpy as np

from st_rl.utils.files.atomic import StrPath

MAX_FILE_BYTES = 2**31
"""Size of a file that is read as a whole."""
MAX_TEXT_BYTES = 2**27
"""Size of a table or motion as text."""
MAX_SETTINGS_BYTES = 2**24
"""Size of any other JSON file, such as those of a run folder."""
MAX_YAML_BYTES = 2**16
"""Size of a YAML file, of which PyYAML reads some 100 kB a second."""
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
MAX_OBJECTS = 750_000
"""Containers, calls and references of a pickle."""
MAX_COLUMNS = 4096
"""Columns of a table, joints or bodies of a motion."""
MAX_UNEXPLAINED_WEIGHTS = 2**28
"""Weights that the sizes in a configuration may ask for, whatever the checkpoint holds."""
MAX_MEMBERS = 10_000
"""Files in an archive."""

# Without waiting for the writer of a named pipe; only Windows has a flag for binary data.
_OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_JSON_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


class LimitError(ValueError):
    """A file that exceeds a limit."""


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


def max_unpacked(packed_bytes: int) -> int:
    """Return how many bytes a compressed file of a size may have after decompression."""
    return max(MAX_UNPACKED_BYTES, MAX_UNPACKED_RATIO * packed_bytes)


def decompress(data: bytes) -> bytes:
    """Undo gzip, zlib, bz2, lzma or xz, found by the first bytes; other data is returned unchanged."""
    if data.startswith(b"\x1f\x8b"):
        decompressor = zlib.decompressobj(wbits=31)
    elif data.startswith(b"BZh"):
        decompressor = bz2.BZ2Decompressor()
    elif data.startswith((b"\xfd7zXZ", b"\x5d\x00\x00")):
        # The dictionary alone may be 4 GB.
        decompressor = lzma.LZMADecompressor(memlimit=2**28)
    elif data[:1] == b"\x78" and data[1:2] in (b"\x01", b"\x5e", b"\x9c", b"\xda"):
        decompressor = zlib.decompressobj()
    else:
        return data
    limit = max_unpacked(len(data))
    unpacked = decompressor.decompress(data, limit + 1)
    if len(unpacked) > limit:
        raise LimitError(f"its {len(data):,} bytes unpack to more than {limit:,}")
    if not decompressor.eof:
        raise EOFError("the compressed data is incomplete")
    return unpacked


def check_archive(archive: zipfile.ZipFile, packed_bytes: int) -> None:
    """LimitError for a zip archive with too many files, or too many bytes after decompression."""
    members = archive.infolist()
    if len(members) > MAX_MEMBERS:
        raise LimitError(f"it is an archive of {len(members):,} files, more than {MAX_MEMBERS:,}")
    unpacked, limit = sum(member.file_size for member in members), max_unpacked(packed_bytes)
    if unpacked > limit:
        raise LimitError(f"its {packed_bytes:,} bytes unpack to {unpacked:,}, more than {limit:,}")


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
    """ValueError for a file that exceeds a limit of JSON, or of which a line is not a JSON value."""
    data = read_bytes(path, MAX_TEXT_BYTES)
    check_json(data.replace(b"\n", b","), MAX_SETTINGS_ELEMENTS)
    for line in data.splitlines():
        json.loads(line)


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


def check_layers(config: object, num_weights: int) -> None:
    """LimitError for sizes in a configuration that need far more weights than there are.

    Successive numbers of a list, such as hidden dimensions, count as layers, any other number as a square layer.
    """
    needed, limit = _count_weights(config), max(2 * num_weights, MAX_UNEXPLAINED_WEIGHTS)
    if needed > limit:
        raise LimitError(f"its sizes need {needed:,} weights, more than {limit:,}")


def _count_weights(config: object) -> int:
    if isinstance(config, Mapping):
        return sum(map(_count_weights, config.values()))
    if isinstance(config, list | tuple):
        sizes = [abs(item) for item in config if isinstance(item, int)]
        if len(sizes) == len(config) > 1:
            return sum(inputs * outputs for inputs, outputs in pairwise(sizes))
        return sum(map(_count_weights, config))
    return config * config if isinstance(config, int) else 0


def check_table(lines: Sequence[str]) -> None:
    """LimitError for comma-separated text with too many columns or cells."""
    commas = [line.count(",") for line in lines]
    check_columns(max(commas, default=0) + 1)
    if sum(commas) + len(lines) > MAX_ELEMENTS:
        raise LimitError(f"it has more than {MAX_ELEMENTS:,} cells")
