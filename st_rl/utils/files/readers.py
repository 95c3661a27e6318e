"""Readers for files of unknown origin, and errors that name the file."""

import contextlib
import functools
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from st_rl.utils.files import limits
from st_rl.utils.files.atomic import StrPath

_YAML_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$")
# Characters of a reason in a message.
_MAX_REASON = 400


class FileError(ValueError):
    """A file with invalid content; the message names the file and the remedy."""


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


def read_json(
    path: StrPath,
    remedy: str = "restore it from a copy",
    max_bytes: int = limits.MAX_SETTINGS_BYTES,
    max_elements: int = limits.MAX_SETTINGS_ELEMENTS,
) -> Any:
    """Read a JSON file; FileError if it is damaged or exceeds a limit, OSError if it cannot be opened."""
    with name_file(path, remedy):
        data = limits.read_bytes(path, max_bytes)
        limits.check_json(data, max_elements)
        return json.loads(data.decode("utf-8-sig"))


def read_json_object(path: StrPath, remedy: str = "restore it from a copy") -> dict[str, Any]:
    """Read a JSON file with an object at the top; errors as those of `read_json`."""
    content = read_json(path, remedy)
    if not isinstance(content, dict):
        raise FileError(f"cannot read {path}: it holds a {type(content).__name__}, not an object {{...}}; {remedy}")
    return content


def read_yaml_object(path: StrPath, remedy: str, problem: str = "cannot read") -> dict[str, Any]:
    """Read a YAML file with `key: value` lines; FileError if it is damaged, exceeds a limit or repeats a key.

    Numbers such as `1e-3`, which YAML 1.1 takes for words, are numbers. An empty file has no keys.
    """
    import yaml

    with name_file(path, remedy, problem=problem):
        text = read_text(path, max_bytes=limits.MAX_YAML_BYTES)
        limits.check_yaml(text)
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


def read_text(path: StrPath, remedy: str = "restore it from a copy", max_bytes: int = limits.MAX_TEXT_BYTES) -> str:
    """Read a UTF-8 text file, without byte order mark; errors as those of `read_json`."""
    with name_file(path, remedy):
        return limits.read_bytes(path, max_bytes).decode("utf-8-sig")


def load_arrays(path: StrPath) -> dict[str, np.ndarray]:
    """Read the arrays of an npz file without pickle; nearly any exception for a damaged one."""
    size = limits.check_file(Path(path))
    with open(path, "rb") as file:
        if file.read(len(np.lib.format.MAGIC_PREFIX)) == np.lib.format.MAGIC_PREFIX:
            raise ValueError("it is a single array, a .npy")
    content: dict[str, np.ndarray] = {}
    with zipfile.ZipFile(path) as archive:
        limits.check_archive(archive, size)
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            with archive.open(member) as file:
                array = np.lib.format.read_array(file, allow_pickle=False)
            if array.size and not array.itemsize:
                raise limits.LimitError(f"{name} has {array.size:,} elements without content")
            content[name] = array
    return content
