"""Damages files: flipped bytes, truncations, other structure, and bombs."""

import bz2
import copy
import gzip
import io
import json
import lzma
import math
import pickle
import random
import re
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

HUGE = 9_000_000_000
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1e308, -1e-308, math.nan, math.inf, 10**30, HUGE, "", "x", "x" * 5000, "../../etc", "1e9"),
    *([], {}, [[]], [None], {"a": 1}, [1, [2, [3]]], [0] * 5000, {"": {"": {}}}),
)
"""Values that replace others."""
SHARED_TUPLES = b")" + b"2\x86" * 60


def flip_bytes(data: bytes, dice: random.Random) -> bytes:
    """Flip one bit in one to eight bytes."""
    changed = bytearray(data)
    for _ in range(dice.choice((1, 1, 1, 2, 8))):
        changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
    return bytes(changed)


def truncate(data: bytes, dice: random.Random) -> bytes:
    """Cut the end or a middle part, or repeat a part."""
    start, stop = sorted((dice.randrange(len(data) + 1), dice.randrange(len(data) + 1)))
    return dice.choice((data[:start], data[:start] + data[stop:], data[:stop] + data[start:]))


def change_structure(content: Any, dice: random.Random, values: tuple[Any, ...] = VALUES) -> Any:
    """Return a copy in which one to three items are removed, replaced, renamed or exchanged."""
    root = [copy.deepcopy(content)]
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        places = [(root, 0), *_places(root[0])]
        container, key = dice.choice(places)
        action = dice.choice(("replace", "replace", "replace", "remove", "rename", "exchange"))
        if action == "remove" and container is not root:
            del container[key]
        elif action == "rename" and isinstance(container, dict):
            container[dice.choice(("", "x", 5, None, f"{key}_"))] = container.pop(key)
        elif action == "exchange":
            other, other_key = dice.choice(places)
            container[key], other[other_key] = copy.deepcopy(other[other_key]), copy.deepcopy(container[key])
        else:
            container[key] = copy.deepcopy(dice.choice(values))
    return root[0]


def _places(value: Any, depth: int = 0) -> list[tuple[Any, Any]]:
    """All places of a nested container, at most 20 of a list."""
    if depth > 12 or not isinstance(value, dict | list):
        return []
    keys = list(value) if isinstance(value, dict) else list(range(min(len(value), 20)))
    return [place for key in keys for place in ((value, key), *_places(value[key], depth + 1))]


def change_json(data: bytes, dice: random.Random) -> bytes:
    """Change the structure of JSON."""
    return json.dumps(change_structure(json.loads(data), dice), default=str).encode()


def change_lines(data: bytes, dice: random.Random) -> bytes:
    """Change a cell of a table, or a line."""
    lines = data.decode().splitlines()
    number = dice.randrange(len(lines))
    cells = lines[number].split(",")
    cells[dice.randrange(len(cells))] = dice.choice(("", "nan", "inf", "1e999", "x", '"', "1" * 5000, "\0", "-1", "é"))
    changed = [",".join(cells), lines[number] + ",1", "", lines[dice.randrange(len(lines))]]
    lines[number] = dice.choice((changed[0], *changed))
    return "\n".join(lines).encode() + b"\n"


def change_journal(data: bytes, dice: random.Random) -> bytes:
    """Change the structure of one line of JSON lines."""
    lines = data.splitlines()
    number = dice.randrange(len(lines))
    lines[number] = change_json(lines[number], dice)
    return b"\n".join(lines) + b"\n"


def change_yaml(data: bytes, dice: random.Random) -> bytes:
    """Change the structure of YAML."""
    return yaml.dump(change_structure(yaml.safe_load(data), dice)).encode()


def change_xml(data: bytes, dice: random.Random) -> bytes:
    """Change an attribute or remove a line of an XML file."""
    text = data.decode()
    if dice.random() < 0.3:
        lines = text.splitlines()
        del lines[dice.randrange(len(lines))]
        return "\n".join(lines).encode()
    attribute = dice.choice(list(re.finditer(r'(\w+)="([^"]*)"', text)))
    values = ("", "-1", "0", "1e308", "nan", "x", "1 2", "1 2 3 4 5 6 7 8", str(HUGE), "x" * 5000, "../../x", "true")
    return (text[: attribute.start(2)] + dice.choice(values) + text[attribute.end(2) :]).encode()


def change_checkpoint(data: bytes, dice: random.Random) -> bytes:
    """Change the structure of a checkpoint and save it with correct checksums."""
    content = torch.load(io.BytesIO(data), weights_only=True)
    values = (
        *VALUES,
        torch.zeros(3),
        torch.zeros(0),
        torch.tensor(5),
        torch.zeros(1).expand(10**6),
        torch.ones(2, 2) * 1j,
    )
    changed = io.BytesIO()
    torch.save(change_structure(_as_lists(content), dice, values), changed)
    return changed.getvalue()


def _as_lists(value: Any) -> Any:
    """Nested containers as dictionaries and lists, which can be changed."""
    if isinstance(value, dict):
        return {key: _as_lists(item) for key, item in value.items()}
    return [_as_lists(item) for item in value] if isinstance(value, list | tuple) else value


def _array_values() -> tuple[Any, ...]:
    arrays = (
        np.zeros(0),
        np.zeros((3, 0)),
        np.full((20, 1), np.nan),
        np.zeros((20, 1), complex),
        np.array("x"),
        np.array(5),
    )
    wide = (np.zeros((2, 5000)), np.zeros((5000, 2), bool), np.zeros((1, 1, 1, 1, 1)), np.array([b"x"] * 20))
    return (*VALUES, *arrays, *wide)


def change_pickle(data: bytes, dice: random.Random) -> bytes:
    """Change the structure of a pickle of arrays."""
    content = change_structure(pickle.loads(data), dice, _array_values())
    return pickle.dumps(content, protocol=dice.choice((2, 4, 5)))


def change_npz(data: bytes, dice: random.Random) -> bytes:
    """Replace, remove or rename arrays of an npz file."""
    with np.load(io.BytesIO(data)) as arrays:
        content = {name: arrays[name] for name in arrays.files}
    values = tuple(value for value in _array_values() if not isinstance(value, dict | list) and value is not None)
    changed = change_structure(content, dice, values)
    file = io.BytesIO()
    if isinstance(changed, dict):
        np.savez(file, **{str(key) or "x": np.asarray(value) for key, value in changed.items()})
    return file.getvalue()


CHANGES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "json": change_json,
    "csv": change_lines,
    "journal": change_journal,
    "yaml": change_yaml,
    "xml": change_xml,
    "pt": change_checkpoint,
    "pickle": change_pickle,
    "npz": change_npz,
}
"""Changes of structure by the format of a file."""


def make_bombs(form: str, original: bytes) -> list[bytes]:
    """Small files of a format that would need much time or memory."""
    if form in ("json", "journal"):
        wide = b'{"a":' + b"[" + b"[]," * 3_000_000 + b"[]]}"
        long = b'{"a":[' + b"1," * 5_000_000 + b"1]}"
        return [
            wide[:750_000] + b"[]]}",
            long,
            b"[" * 1_000_000,
            b'{"a":' * 200_000,
            wide,
            b'{"task": ' + b"9" * 100_000 + b"}",
            b'"' + b"x" * 10_000_000,
        ]
    if form == "csv":
        return [b"0," * 3_000_000, b"a," * 3_000_000 + b"\n" + b"0," * 3_000_000, b"1" * 10_000_000, b"\n" * 5_000_000]
    if form == "yaml":
        return _yaml_bombs()
    if form == "xml":
        return _xml_bombs()
    if form == "pt":
        return _checkpoint_bombs(original)
    if form == "npz":
        return _npz_bombs()
    return _pickle_bombs()


def _yaml_bombs() -> list[bytes]:
    aliases = "a: &a [x, x, x, x, x, x, x, x, x]\n"
    aliases += "".join(f"{b}: &{b} [{', '.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi"))
    merges = "a: &a {x: 1}\n"
    merges += "".join(f"{b}: &{b} {{<<: [{', '.join(['*' + a] * 9)}]}}\n" for a, b in zip("abcdefgh", "bcdefghi"))
    texts = [
        aliases,
        merges,
        "feet: &a [*a]",
        "[" * 60_000,
        "- " * 30_000,
        "mjcf: robot.xml\nfeet: ['(F|FF)+!', '(.*)*!']\n",
    ]
    patterns = "mjcf: robot.xml\nfeet: ['" + ".*" * 100 + "!']\n"
    many = "mjcf: robot.xml\nfeet:\n" + "- .*.*x\n" * 6000
    return [
        text.encode()
        for text in (*texts, patterns, many, "mjcf: robot.xml\nbase_height: " + "9" * 5000, "x" * 10_000_000)
    ]


def _xml_bombs() -> list[bytes]:
    entities = '<!DOCTYPE m [<!ENTITY a "xxxxxxxxxx">'
    entities += (
        "".join(f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in zip("abcdefgh", "bcdefghi")) + "]><mujoco model='&i;'/>"
    )
    replicate = "<replicate count='1000'>" * 3 + "<geom size='1'/>" + "</replicate>" * 3
    bodies = [
        "<worldbody>" + "<geom size='1'/>" * 100_000 + "</worldbody>",
        "<worldbody>" + "<body>" * 10_000 + "</body>" * 10_000 + "</worldbody>",
        f"<worldbody>{replicate}</worldbody>",
        "<asset><hfield name='h' nrow='100000' ncol='100000' size='1 1 1 1'/></asset>",
        "<asset><texture name='t' builtin='flat' width='100000' height='100000'/></asset>",
        "<asset><texture name='t' type='skybox' builtin='gradient' width='100000' height='600000'/></asset>",
        "<size memory='900G'/>",
        "<size nuserdata='2000000000'/>",
        "<size nuser_geom='2000000000'/><worldbody><geom size='1'/></worldbody>",
        "<custom><numeric name='n' size='2000000000'/></custom>",
        "<worldbody><composite type='cable' count='10000000 1 1'/></worldbody>",
        "<worldbody><flexcomp name='f' type='grid' count='999 999 999' spacing='1 1 1' dim='3'/></worldbody>",
        "<include file='robot.xml'/>",
    ]
    return [entities.encode(), *(f"<mujoco>{body}</mujoco>".encode() for body in bodies)]


def _pickle_bombs() -> list[bytes]:
    reconstruct = b"cnumpy._core.multiarray\n_reconstruct\n(cnumpy\nndarray\n"
    plain = [
        b"\x80\x02}" + SHARED_TUPLES + b"K\x01s.",
        b"\x80\x04\x8f(" + SHARED_TUPLES + b"\x90.",
        b"\x80\x02cbuiltins\nbytearray\n\x8a\x05" + HUGE.to_bytes(5, "little") + b"\x85R.",
        b"\x80\x05\x96" + struct.pack("<Q", HUGE) + b".",
        b"\x80\x02]q\x00" + b"".join(b"]q%c(h%ch%ce" % (n + 1, n, n) for n in range(60)) + b".",
        b"\x80\x02}X\x06\x00\x00\x00Frames]q\x00"
        + b"".join(b"]q%c(h%ch%ce" % (n + 1, n, n) for n in range(60))
        + b"sX\x0d\x00\x00\x00FrameDurationK\x01s.",
        b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
        b"\x80\x04" + b"\x8f" * 8_000_000 + b".",
        b"\x80\x04]" + b"\x94" * 8_000_000 + b".",
        b"\x80\x02" + reconstruct + b"(I9000000000\ntC\x01btR.",
        b"\x80\x03"
        + reconstruct
        + b"(K\x00tC\x01btR(K\x01(I9000000000000\ntcnumpy\ndtype\n(X\x02\x00\x00\x00V0tR\x89C\x00tb.",
    ]
    zeros = bytes(200_000_000)
    return [*plain, gzip.compress(zeros, 1), bz2.compress(zeros, 1), lzma.compress(zeros[:100_000_000], preset=0)]


def _npz_bombs() -> list[bytes]:
    def archive(members: dict[str, bytes]) -> bytes:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as target:
            for name, data in members.items():
                target.writestr(name, data)
        return file.getvalue()

    def array(dtype: str, shape: str, data: bytes = b"") -> bytes:
        header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
        return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data

    return [
        archive({"joint_pos.npy": array("<f8", "(250000000,)", bytes(200_000_000))}),
        archive({"joint_pos.npy": array("<f8", f"({HUGE}, 1)")}),
        archive({"joint_pos.npy": array("|V0", "(1000000000000,)")}),
        archive({"joint_pos.npy": array("<U0", "(1000000000, 1)"), "dof_names.npy": array("<U0", "(1000000000,)")}),
        archive({f"{number}.npy": array("<f8", "(1,)", bytes(8)) for number in range(30_000)}),
        archive({"joint_pos.npy": array("<f4", "(2, 3000000)", bytes(24_000_000))}),
    ]


def _checkpoint_bombs(original: bytes) -> list[bytes]:
    prefix, number = b"\x80\x02}X\x01\x00\x00\x00a", b"\x8a\x05" + HUGE.to_bytes(5, "little")
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n("
    storage = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpu"
    pickles = [
        b"\x80\x02}" + SHARED_TUPLES + b"K\x01s.",
        *(prefix + name + number + b"\x85Rs." for name in (b"cbuiltins\nbytearray\n", b"ctorch\nTensor\n")),
        *(
            prefix + name + number + b"\x85Rs."
            for name in (b"ctorch\nFloatStorage\n", b"ctorch.storage\nUntypedStorage\n")
        ),
        prefix + tensor + storage + number + b"tQK\x00K\x01\x85K\x01\x85\x89}tRs.",
        prefix + tensor + storage + b"K\x04tQK\x00" + number + b"\x85K\x00\x85\x89}tRs.",
        b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
        b"\x80\x02" + b"}" * 8_000_000 + b".",
    ]
    return [*(_replace_pickle(original, data) for data in pickles), _replace_pickle(original, None), *pickles]


def _replace_pickle(original: bytes, data: bytes | None) -> bytes:
    """A checkpoint with another pickle or, without one, with a compressed record of 200 MB."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(original)) as source, zipfile.ZipFile(file, "w") as target:
        for record in source.infolist():
            is_pickle = record.filename.endswith("/data.pkl")
            content = data if is_pickle and data is not None else source.read(record)
            big = data is None and record.filename.endswith("/data/0")
            target.writestr(record.filename, bytes(200_000_000) if big else content, 8 if big else 0)
    return file.getvalue()


def forms() -> dict[str, str]:
    """The format of every kind of file."""
    names = ("run.json", "config.json", "eval.json", "play.json", "policy.json", "metadata.json", "sweep.json")
    formats = dict.fromkeys((*names, "heartbeat", "lock", "motion amp"), "json")
    formats |= dict.fromkeys(("trajectory pickle", "motion amp pickle", "motion gmr", "motion compressed"), "pickle")
    formats |= dict.fromkeys(("trajectory npz", "motion isaaclab", "motion mjlab"), "npz")
    formats |= dict.fromkeys(("progress.csv", "motion csv"), "csv")
    return formats | {"checkpoint": "pt", "study.log": "journal", "robot yaml": "yaml", "robot mjcf": "xml"}


def make_mutant(original: Path, kind: str, dice: random.Random) -> tuple[str, bytes]:
    """A mutant of a file, and how it was made."""
    data, form = original.read_bytes(), forms()[kind]
    way = dice.choice(("flip", "flip", "truncate", "structure", "structure", "structure"))
    if way == "flip":
        return way, flip_bytes(data, dice)
    if way == "truncate" or kind == "motion compressed":
        return "truncate", truncate(data, dice)
    return way, CHANGES[form](data, dice)
