"""Configuration dictionaries: nulls, keys of other classes, misspelled keys, and the classes that they name."""

import difflib
import functools
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Protocol, runtime_checkable

from st_rl.utils.log import logger

# Keys without effect that configurations may hold although no constructor takes them; not reported.
TOLERATED_KEYS = frozenset({"class_name", "teacher_ac_path", "strict"})
# Keys that a client's configuration classes send to every policy or algorithm.
_CLIENT_KEYS = frozenset(
    "bc_loss_coef amp_data amp_obs_dim amp_discriminator mimic_loss_coef discriminator_loss_coef rnn_type "
    "rnn_hidden_size rnn_num_layers ppo teacher_policy teacher_policy_class_name encoder_component_names "
    "critic_encoder_component_names encoder_class_name encoder_kwargs encoder_output_size "
    "critic_encoder_class_name critic_encoder_kwargs rnd_cfg symmetry_cfg".split()
)
TRUST_KEY = "trust_pickle"
FUNCTION_KEY = "data_augmentation_func"
# How a file names a function: not as a path that could be imported.
STORED_FUNCTION = "function "


class Configurable:
    """Base of the classes that are built from a configuration: runners, algorithms, policies, discriminators.

    The constructor keywords of all its subclasses are known keys: one that reaches another class is ignored, not
    reported as misspelled.
    """

    config_keys: ClassVar[frozenset[str]] = frozenset()
    """Keys that the class takes in addition to the keywords of its constructor."""


@runtime_checkable
class DictConvertible(Protocol):
    """A configuration object that converts to a dictionary, such as an Isaac Lab configclass."""

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as a dictionary."""
        ...


def accepted_keys(cls: type) -> set[str]:
    """The keyword names that the constructors of a class and of its bases take, and their `config_keys`."""
    names: set[str] = set()
    for base in cls.__mro__:
        names |= base.__dict__.get("config_keys", frozenset())
        init = base.__dict__.get("__init__")
        if init is not None and base is not object:
            parameters = list(inspect.signature(init).parameters.values())[1:]
            names |= {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return names


def known_keys() -> set[str]:
    """The keys that some `Configurable` class accepts, and those that clients send to every class."""
    keys = set(TOLERATED_KEYS | _CLIENT_KEYS)
    classes = [Configurable]
    while classes:
        cls = classes.pop()
        keys |= accepted_keys(cls)
        classes += cls.__subclasses__()
    return keys


def drop_none(config: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a configuration without the keys with value None, which means "not given"."""
    return {key: value for key, value in config.items() if value is not None}


def own_settings_from(part: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a constructor take its keyword-only arguments from the dictionary that it receives as keyword `part`, too.

    Arguments given directly win; None counts as not given. The dictionary that is passed on does not contain them.
    """

    def decorate(init: Callable[..., None]) -> Callable[..., None]:
        parameters = list(inspect.signature(init).parameters.values())[1:]
        own = {parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}

        @functools.wraps(init)
        def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
            kwargs = {key: value for key, value in kwargs.items() if value is not None or key not in own}
            inner = kwargs.get(part)
            if isinstance(inner, Mapping):
                found = drop_none({key: value for key, value in inner.items() if key in own})
                kwargs = {**found, **kwargs, part: {key: value for key, value in inner.items() if key not in own}}
            init(self, *args, **kwargs)

        return wrapped

    return decorate


def nearest_name(name: str, names: Iterable[str]) -> str | None:
    """The most similar of `names`, whatever the case of letters, or None."""
    by_lower = {known.lower(): known for known in names}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[close[0]] if close else None


def unknown_name_message(kind: str, name: object, names: Iterable[str]) -> str:
    """An error message for an unknown name: the nearest known name first, then all of them."""
    names = sorted(names)
    close = nearest_name(str(name), names)
    hint = f"did you mean '{close}'? " if close else ""
    return f"unknown {kind} '{name}'; {hint}known: {', '.join(names)}"


def report_unused_keys(unused: Mapping[str, Any], owner: str, accepted: Iterable[str], strict: bool = False) -> None:
    """Report the keys that `owner` does not take.

    One warning names the keys of other classes, which are ignored. An unknown key is a warning each, or a ValueError if
    `strict`, with the nearest name that `owner` takes.
    """
    if not unused:
        return
    accepted, known = set(accepted), known_keys()
    foreign = sorted(key for key in unused if key in known and key not in TOLERATED_KEYS)
    for key in sorted(set(drop_none(unused)) - known):
        close = nearest_name(key, accepted) or nearest_name(key, known)
        hint = f"; did you mean '{close}'?" if close else ""
        message = f"unknown key '{key}' for {owner}{hint}"
        if strict:
            raise ValueError(f"{message} (keys it takes: {', '.join(sorted(accepted))})")
        logger.warning(message)
    if foreign:
        logger.warning(f"{owner} ignores keys of other parts: {', '.join(foreign)}")


def is_class_path(name: object) -> bool:
    """Whether a class name has the form `package.module:Class`."""
    return isinstance(name, str) and ":" in name


def resolve_class(
    name: str, classes: Mapping[str, type], kind: str, base: type | None = None, allow_path: bool = True
) -> type:
    """Return the class registered as `name`, or the class at the path `package.module:Class`.

    Args:
        name: a key of `classes`, or a path.
        classes: the registered classes.
        kind: what the class is, for messages: "policy class".
        base: the class must be a subclass of it.
        allow_path: False for names that come from a file: a file must not import code.

    Raises:
        ValueError: for an unknown name (lists the known ones, the nearest first), a path that cannot be imported or is
            not allowed, and a class that is not a subclass of `base`.
    """
    if is_class_path(name):
        if not allow_path:
            raise ValueError(
                f"{kind} '{name}' comes from a file, and a file must not import code: give the class from Python, or "
                f"use a registered name: {', '.join(sorted(classes))}"
            )
        found = import_object(name, kind)
        if not isinstance(found, type):
            raise ValueError(f"{kind} '{name}' is not a class but {found!r}")
    elif name in classes:
        found = classes[name]
    else:
        raise ValueError(unknown_name_message(kind, name, classes))
    if base is not None and not issubclass(found, base):
        raise ValueError(f"{kind} '{name}' must be a subclass of {base.__name__}; {found.__name__} is not")
    return found


def import_object(path: str, kind: str) -> Any:
    """Import the class or function at `package.module:name`; ValueError, naming the `kind`, if there is none."""
    module_name, _, name = path.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for attribute in name.split("."):
            found = getattr(found, attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{kind} '{path}' cannot be imported ({error}); write it as package.module:name") from error
    return found


def reject_unsafe_settings(config: object, source: object) -> None:
    """ValueError if a configuration that was read from a file, `source`, names a class by path or trusts pickles.

    Checked are `trust_pickle` and the values of all keys that end in `class_name`, at any depth.
    """
    if isinstance(config, list | tuple):
        for item in config:
            reject_unsafe_settings(item, source)
    for key, value in config.items() if isinstance(config, Mapping) else ():
        names = value if isinstance(value, list | tuple) else [value]
        if str(key).endswith("class_name"):
            for name in filter(is_class_path, names):
                raise ValueError(
                    f"{source} names the {key} '{name}' by path, and a file must not import code: register the class "
                    f"(for a policy, st_rl.modules.{name.split(':')[-1]} = ...) and write its plain name there, or "
                    "give the class from Python"
                )
        if key == FUNCTION_KEY and value and not str(value).startswith(STORED_FUNCTION):
            raise ValueError(
                f"{source} names the function {value!r} as {key}, and a file must not import code: remove the key, "
                "and give the function from Python"
            )
        if key == TRUST_KEY and value:
            raise ValueError(
                f"{source} sets {TRUST_KEY}, and a file must not decide that pickles are trusted: remove the key, and "
                "give it from Python"
            )
        reject_unsafe_settings(value, source)


def drop_trust(config: Any) -> Any:
    """Return a configuration to be written to a file: without `trust_pickle`, and functions by a name only."""
    if isinstance(config, Mapping):
        named = {key: _stored_function(value) if key == FUNCTION_KEY else value for key, value in config.items()}
        return {key: drop_trust(value) for key, value in named.items() if key != TRUST_KEY}
    return [drop_trust(item) for item in config] if isinstance(config, list | tuple) else config


def _stored_function(function: object) -> object:
    """Return what a file says about a function, which nothing imports."""
    if function is None or str(function).startswith(STORED_FUNCTION):
        return function
    return f"{STORED_FUNCTION}{getattr(function, '__qualname__', function)}"
