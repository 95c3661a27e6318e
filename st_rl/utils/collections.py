"""Named tuples of arrays with indexing over all fields, and a dictionary with attribute access."""

import sys
from collections import namedtuple
from collections.abc import Iterable, Iterator
from typing import Any

_RESERVED_FIELDS = ("get", "items")


class _ArrayTuple:
    """Mixin with the methods of named array tuples."""

    __slots__ = ()
    _fields: tuple[str, ...]

    def __getitem__(self, location: object) -> Any:
        """Index every field at `location`; a field that is None stays None."""
        fields = []
        for name, value in self.items():
            try:
                fields.append(None if value is None else value[location])
            except IndexError as error:
                raise IndexError(f"field '{name}' of {type(self).__name__} at {location!r}: {error}") from error
        return type(self)(*fields)

    def __setitem__(self, location: object, value: object) -> None:
        """Assign a tuple with the same fields field by field, or any other value to every field that is not None."""
        if isinstance(value, tuple) and getattr(value, "_fields", None) == self._fields:
            same_fields, sources = True, tuple(value)
        else:
            same_fields, sources = False, (value,) * len(self._fields)
        for (name, target), source in zip(self.items(), sources):
            if target is None:
                if same_fields and source is not None:
                    raise TypeError(f"field '{name}' of {type(self).__name__} is None and cannot take a value")
                continue
            try:
                target[location] = source
            except IndexError as error:
                raise IndexError(f"field '{name}' of {type(self).__name__} at {location!r}: {error}") from error

    def __contains__(self, name: object) -> bool:
        """Whether there is a field of this name."""
        return name in self._fields

    def get(self, index: int) -> Any:
        """The field at this position, like indexing of a plain tuple."""
        return tuple(value for _, value in self.items())[index]

    def items(self) -> Iterator[tuple[str, Any]]:
        """Pairs of field name and field, in order."""
        return zip(self._fields, tuple.__iter__(self))  # pyright: ignore[reportArgumentType]

    def get_leading_dims(self) -> tuple[int, ...]:
        """The leading shape that all fields have in common."""
        shapes = []
        for name, value in self.items():
            if value is None:
                raise AttributeError(f"field '{name}' of {type(self).__name__} is None and has no leading dimensions")
            shapes.append(value.get_leading_dims() if isinstance(value, _ArrayTuple) else tuple(value.shape))
        common = []
        for sizes in zip(*shapes):
            if len(set(sizes)) != 1:
                break
            common.append(int(sizes[0]))
        return tuple(common)


def namedarraytuple(
    typename: str,
    field_names: str | Iterable[str],
    return_namedtuple_cls: bool = False,
    classname_suffix: bool = False,
) -> Any:
    """Make a named tuple class with instances that are indexed and assigned field by field, `x[t]` and `x[t] = y`.

    `return_namedtuple_cls` also returns the plain named tuple class: `(array tuple, named tuple)`; `classname_suffix`
    appends `_nat` and `_nt` to their names. Fields named `get` or `items` are rejected.
    """
    module = sys._getframe(1).f_globals.get("__name__", "__main__")
    return _make(typename, field_names, module, return_namedtuple_cls, classname_suffix)


def _make(
    typename: str, field_names: str | Iterable[str], module: str, both: bool = False, classname_suffix: bool = False
) -> Any:
    """The classes of `namedarraytuple`, living in `module` so that instances can be pickled."""
    plain_name, array_name = (f"{typename}_nt", f"{typename}_nat") if classname_suffix else (typename, typename)
    plain = namedtuple(plain_name, field_names, module=module)
    refused = [name for name in plain._fields if name in _RESERVED_FIELDS]
    if refused:
        raise ValueError(f"{typename} cannot have fields named {refused}: they are methods of a named array tuple")
    content = {"__slots__": (), "__module__": module, "__doc__": f"{array_name}({', '.join(plain._fields)})"}
    array = type(array_name, (_ArrayTuple, plain), content)
    return (array, plain) if both else array


def is_namedarraytuple_class(obj: object) -> bool:
    """Whether `obj` is a class made by `namedarraytuple`, or derived from one."""
    return isinstance(obj, type) and issubclass(obj, _ArrayTuple)


def is_namedarraytuple(obj: object) -> bool:
    """Whether `obj` is an instance of a class made by `namedarraytuple`."""
    return is_namedarraytuple_class(type(obj))


def is_namedtuple_class(obj: object) -> bool:
    """Whether `obj` is a named tuple class; a named array tuple class is not."""
    if not isinstance(obj, type) or not issubclass(obj, tuple) or is_namedarraytuple_class(obj):
        return False
    fields = getattr(obj, "_fields", None)
    return isinstance(fields, tuple) and all(isinstance(name, str) for name in fields)


def is_namedtuple(obj: object) -> bool:
    """Whether `obj` is an instance of a named tuple class; a named array tuple is not."""
    return is_namedtuple_class(type(obj))


def namedarraytuple_like(example: object, classname_suffix: bool = False) -> Any:
    """The named array tuple class with the name and fields of `example`, a named (array) tuple or such a class."""
    cls: Any = example if isinstance(example, type) else type(example)
    if is_namedarraytuple_class(cls):
        return cls
    if is_namedtuple_class(cls):
        return _make(cls.__name__, cls._fields, cls.__module__, classname_suffix=classname_suffix)
    raise TypeError(f"expected a named tuple, a named array tuple or a class of them, got {type(example).__name__}")


class AttrDict(dict[str, Any]):
    """A dictionary with its entries as attributes: `x["key"]` and `x.key` are the same."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no entry '{name}'; there are {list(self)}") from None

    def __setattr__(self, name: str, value: object) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        try:
            del self[name]
        except KeyError:
            raise AttributeError(f"no entry '{name}'; there are {list(self)}") from None

    def copy(self) -> "AttrDict":
        """A copy in which the AttrDicts inside are copied too, and all other values are shared."""
        return AttrDict({key: value.copy() if isinstance(value, AttrDict) else value for key, value in self.items()})
