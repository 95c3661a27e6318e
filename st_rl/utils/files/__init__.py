"""Atomic writes, and reads that never run code from a file."""

from typing import TYPE_CHECKING, Any

from st_rl.utils.files.atomic import (
    TEMPORARY_PREFIX,
    StrPath,
    atomic_write,
    files_with_prefix,
    flush_to_disk,
    remove_temporary_files,
    to_json_values,
    write_json,
)
from st_rl.utils.files.readers import (
    FileError,
    load_arrays,
    name_file,
    read_json,
    read_json_object,
    read_text,
    read_yaml_object,
)
from st_rl.utils.lazy_names import load_name

if TYPE_CHECKING:
    from st_rl.utils.files.checkpoint import (
        CHECKPOINT_NAME,
        CheckpointError,
        load_checkpoint,
        natural_order,
        newest_checkpoint,
        plain_value,
        save_checkpoint,
        write_checkpoint,
    )
    from st_rl.utils.files.plain_pickle import load_plain_pickle

__all__ = [
    "CHECKPOINT_NAME",
    "TEMPORARY_PREFIX",
    "CheckpointError",
    "FileError",
    "StrPath",
    "atomic_write",
    "files_with_prefix",
    "flush_to_disk",
    "load_arrays",
    "load_checkpoint",
    "load_plain_pickle",
    "name_file",
    "natural_order",
    "newest_checkpoint",
    "plain_value",
    "read_json",
    "read_json_object",
    "read_text",
    "read_yaml_object",
    "remove_temporary_files",
    "save_checkpoint",
    "to_json_values",
    "write_checkpoint",
    "write_json",
]

# Modules that import torch or are rarely used, loaded with the first use of a name.
_CHECKPOINT, _PLAIN_PICKLE = "st_rl.utils.files.checkpoint", "st_rl.utils.files.plain_pickle"
_MODULES = {
    "CHECKPOINT_NAME": _CHECKPOINT,
    "CheckpointError": _CHECKPOINT,
    "load_checkpoint": _CHECKPOINT,
    "load_plain_pickle": _PLAIN_PICKLE,
    "natural_order": _CHECKPOINT,
    "newest_checkpoint": _CHECKPOINT,
    "plain_value": _CHECKPOINT,
    "save_checkpoint": _CHECKPOINT,
    "write_checkpoint": _CHECKPOINT,
}


def __getattr__(name: str) -> Any:
    return load_name(__name__, name, _MODULES)
