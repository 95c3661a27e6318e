"""Nested containers of arrays: the one place that walks over named tuples, tuples, lists and mappings.

Everything else is a leaf, `torch.Size` included. None stands for a missing leaf.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch


def tree_map(function: Callable[[Any], Any], tree: object) -> Any:
    """Apply `function` to every leaf that is not None; return the results in containers of the same types."""
    if tree is None:
        return None
    if isinstance(tree, Mapping):
        values = [tree_map(function, part) for part in tree.values()]
        return type(tree)(zip(tree, values))  # pyright: ignore[reportCallIssue]
    if not isinstance(tree, tuple | list) or isinstance(tree, torch.Size):
        return function(tree)
    parts = [tree_map(function, part) for part in tree]
    is_named = isinstance(tree, tuple) and hasattr(tree, "_fields")
    return type(tree)(*parts) if is_named else type(tree)(parts)


def tree_leaves(tree: object) -> list[Any]:
    """The leaves, depth first; a missing one is None."""
    if isinstance(tree, Mapping):
        tree = list(tree.values())
    if not isinstance(tree, tuple | list) or isinstance(tree, torch.Size):
        return [tree]
    return [leaf for part in tree for leaf in tree_leaves(part)]
