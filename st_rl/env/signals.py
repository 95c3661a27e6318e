"""Named tensors between a robot and its policy."""

from typing import NamedTuple


class Signal(NamedTuple):
    """Shape and meaning of one input, output or state of a deployed policy, without a batch axis."""

    shape: tuple[int, ...]
    unit: str
    """Unit of the numbers, and their frame or order where it matters."""
    meaning: str
    """Meaning of the numbers, in one clause."""
    must_be_estimated: bool = False
    """Whether no sensor measures it, so that the robot's own software has to estimate it."""
