"""Configuration dictionaries: nulls, keys that belong to another part, and misspelt keys."""

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from st_rl.utils.log import logger

# Keys that configurations carry although no constructor takes them; they have no effect and need no word.
TOLERATED_KEYS = frozenset({"class_name", "teacher_ac_path", "strict"})
# Keys that a client's configuration classes send to every policy or algorithm, whichever it names.
_CLIENT_KEYS = frozenset(
    "bc_loss_coef amp_data amp_obs_dim amp_discriminator mimic_loss_coef discriminator_loss_coef rnn_type "
    "rnn_hidden_size rnn_num_layers ppo teacher_policy teacher_policy_class_name encoder_component_names "
    "critic_encoder_component_names encoder_class_name encoder_kwargs encoder_output_size "
    "critic_encoder_class_name critic_encoder_kwargs rnd_cfg symmetry_cfg".split()
)
# Settings of rsl_rl that have no counterpart here: the value that asks for what is done anyway, and what is done.
_RSL_RL_KEYS: dict[str, tuple[Any, str]] = {
    "noise_std_type": ("scalar", "here one standard deviation for each action is learned, as with 'scalar'"),
    "state_dependent_std": (False, "here one standard deviation for each action is learned, as with False"),
    "normalize_advantage_per_mini_batch": (False, "here advantages are normalised over a rollout, as with False"),
}

_known_keys: set[str] = set(TOLERATED_KEYS | _CLIENT_KEYS)


def accepted_keys(cls: type) -> set[str]:
    """The keyword names that the constructors of a class and of its bases take."""
    names: set[str] = set()
    for base in cls.__mro__:
        init = base.__dict__.get("__init__")
        if init is not None and base is not object:
            parameters = list(inspect.signature(init).parameters.values())[1:]
            names |= {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return names


def register_known_keys(keys: Iterable[str]) -> None:
    """Make keys known: one that reaches the wrong part is then ignored, not taken for a misspelling."""
    _known_keys.update(keys)


def drop_none(config: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a configuration without the keys whose value is None, which mean "not given"."""
    return {key: value for key, value in config.items() if value is not None}


def own_settings_from(part: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a constructor find its own keywords in the dictionary that comes as keyword `part`, too.

    Those given directly win; None counts as not given. Its own keywords are taken out of the dictionary that it passes
    on.
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
    """The known name that looks most like a given one, or None."""
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=0.6)
    return close[0] if close else None


def unknown_name_message(kind: str, name: object, names: Iterable[str]) -> str:
    """An error text for a name that nothing knows: the nearest known name first, then all of them."""
    names = sorted(names)
    close = nearest_name(str(name), names)
    hint = f"did you mean '{close}'? " if close else ""
    return f"unknown {kind} '{name}'; {hint}known: {', '.join(names)}"


def report_unused_keys(unused: Mapping[str, Any], owner: str, accepted: Iterable[str], strict: bool = False) -> None:
    """Say what happens to the keys that `owner` does not take.

    Keys that belong to another part are named in one warning and ignored. Keys that nothing knows are a warning each,
    or a ValueError when `strict`, with the nearest name that `owner` takes.
    """
    accepted = set(accepted)
    foreign = sorted(key for key in unused if key in _known_keys and key not in TOLERATED_KEYS)
    for key in sorted(set(drop_none(unused)) - _known_keys):
        if key in _RSL_RL_KEYS and unused[key] == _RSL_RL_KEYS[key][0]:
            continue
        close = nearest_name(key, accepted) or nearest_name(key, _known_keys)
        hint = f"; did you mean '{close}'?" if close else ""
        if key in _RSL_RL_KEYS:
            hint = f": {_RSL_RL_KEYS[key][1]}; leave it out"
        message = f"unknown key '{key}' for {owner}{hint}"
        if strict:
            raise ValueError(f"{message} (keys it takes: {', '.join(sorted(accepted))})")
        logger.warning(message)
    if foreign:
        logger.warning(f"{owner} ignores keys of other parts: {', '.join(foreign)}")
