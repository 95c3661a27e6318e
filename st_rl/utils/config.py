"""Configuration dictionaries: nulls, keys of other classes, and misspelled keys."""

import difflib
import functools
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


class Configurable:
    """Base of the classes that are built from a configuration: runners, algorithms, policies, discriminators.

    The constructor keywords of all its subclasses are known keys: one that reaches another class is ignored, not
    reported as misspelled.
    """

    config_keys: ClassVar[frozenset[str]] = frozenset()
    """Keys that the class takes beside the keywords of its constructor."""


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
