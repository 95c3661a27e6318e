"""Limits of an MJCF or URDF file, checked before MuJoCo compiles it: elements, and memory of textures and the like."""

import math
import re
import struct
import xml.etree.ElementTree as ET
from pathlib import Path

from st_rl.utils.files.readers import LimitError, check_file, name_file

MAX_MJCF_BYTES = 2**24
"""Size of an MJCF file, of which meshes and height fields are usually files of their own."""
MAX_MJCF_ELEMENTS = 5000
"""Elements of a model, of which MuJoCo compiles 5,000 in half a second and 20,000 in six."""
MAX_MODEL_BYTES = 2**28
"""Memory of textures, height fields, meshes and user data."""
_MAX_FILE_DEPTH = 8
_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50, "E": 2**60}
_FOLDERS = ("assetdir", "meshdir", "texturedir")


def check_mjcf(path: Path) -> None:
    """ValueError with the file's name for a model that needs too much time or memory, or that is no XML."""
    with name_file(path, "give the MJCF or URDF file of a robot", problem="MuJoCo cannot read"):
        _MjcfScan(path).check(path, 1, 0)


class _MjcfScan:
    """Counts the elements of a model and the bytes of its arrays, over all files that it includes."""

    def __init__(self, path: Path):
        self.folder = path.parent
        self.asset_folders = [self.folder]
        self.num_elements = 0
        self.num_bytes = 0
        # Files of the models that `attach` copies.
        self.models: dict[str, Path] = {}

    def check(self, path: Path, copies: int, depth: int) -> None:
        """Count the elements of a file that is read `copies` times; LimitError if there are too many."""
        if depth > _MAX_FILE_DEPTH:
            raise LimitError(f"it includes files more than {_MAX_FILE_DEPTH} levels deep")
        check_file(path, MAX_MJCF_BYTES)
        factors = [copies]
        for event, element in ET.iterparse(path, ("start", "end")):
            if event == "end":
                factors.pop()
                continue
            # `count` of replicate, composite and flexcomp: how often an element and its children are there.
            counts = (_first_number(text) for text in element.get("count", "1").split())
            factor = factors[-1] * math.prod(max(1, count) for count in counts)
            factors.append(factor)
            self.num_elements += factor
            self.num_bytes += factor * self._array_bytes(element)
            if self.num_elements > MAX_MJCF_ELEMENTS:
                raise LimitError(f"its model has more than {MAX_MJCF_ELEMENTS:,} elements")
            if self.num_bytes > MAX_MODEL_BYTES:
                raise LimitError(f"its model needs more than {MAX_MODEL_BYTES:,} bytes")
            self._follow(element, factor, depth)

    def _follow(self, element: ET.Element, factor: int, depth: int) -> None:
        """Count the file that an element includes or attaches."""
        file = self.folder / element.get("file", "")
        if element.tag == "model" and element.get("file"):
            self.models[element.get("name") or file.stem] = file
        if element.tag == "attach":
            file = self.models.get(element.get("model", ""), self.folder)
        if element.tag in ("attach", "include") and file.is_file():
            self.check(file, factor, depth + 1)
        if element.tag == "compiler":
            self.asset_folders += [self.folder / element.get(name, "") for name in _FOLDERS]

    def _array_bytes(self, element: ET.Element) -> int:
        """Memory of the arrays that an element asks for."""
        number = {name: _first_number(text) for name, text in element.attrib.items()}
        if element.tag == "size":
            text = element.get("memory", "")  # such as 100M
            memory = _first_number(text) * _UNITS.get(text.strip()[-1:].upper(), 1)
            return memory + sum(8 * value for name, value in number.items() if name.startswith("n"))
        if element.tag == "numeric":
            return 8 * number.get("size", 0)
        if element.tag == "camera":
            return 16 * math.prod(map(_first_number, element.get("resolution", "0").split()))
        if element.tag in ("hfield", "texture", "mesh", "skin") and element.get("file"):
            return self._file_bytes(element.get("file", ""))
        if element.tag == "hfield":
            return 8 * number.get("nrow", 0) * number.get("ncol", 0)
        if element.tag == "texture":
            num_sides = 1 if element.get("type") == "2d" else 6
            return 4 * number.get("width", 0) * max(num_sides * number.get("width", 0), number.get("height", 0))
        if element.tag == "mesh" and element.get("builtin"):
            return 100 * max(map(_first_number, element.get("params", "0").split())) ** 2
        # Sensors of the user, activations of actuators, histories.
        return sum(8 * number.get(name, 0) for name in ("dim", "actdim", "nsample"))

    def _file_bytes(self, name: str) -> int:
        """Memory of an image or mesh file; 0 if it is missing, which MuJoCo reports."""
        for folder in self.asset_folders:
            path = folder / name
            if path.is_file():
                size = check_file(path, MAX_MODEL_BYTES)
                with open(path, "rb") as file:
                    header = file.read(24)
                is_image = header.startswith(_PNG_SIGNATURE) and len(header) == 24
                return max(size, 8 * math.prod(struct.unpack(">II", header[16:]))) if is_image else size
        return 0


def _first_number(text: str) -> int:
    """The integer at the start of a text, else 0."""
    match = re.match(r"\s*\+?(\d{1,18})", text)
    return int(match[1]) if match else 0
