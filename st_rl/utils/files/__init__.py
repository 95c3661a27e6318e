"""Atomic writes, and reads that never run code from a file."""

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
from st_rl.utils.files.readers import FileError, load_arrays, name_file, read_json, read_json_object, read_text

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
    "remove_temporary_files",
    "save_checkpoint",
    "to_json_values",
    "write_checkpoint",
    "write_json",
]
