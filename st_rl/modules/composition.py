"""Policies put together from mixins by name."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from st_rl.utils.config import unknown_name_message

# From the outside in: what acts, what estimates on the raw observation, what encodes it, what goes along.
MIXIN_ORDER = (
    "DeterministicPolicyMixin",
    "PrivilegeEstimatorMixin",
    "EstimatorMixin",
    "VisualActorCriticMixin",
    "EncoderActorCriticMixin",
    "AmpMixin",
)


@cache
def _compose(bases: tuple[type, ...]) -> Any:
    names = [base.__name__.removesuffix("Mixin") for base in bases]
    return type("And".join(names), bases, {"__doc__": f"A policy made of {', '.join(names)}."})


def compose_policy(base: type, mixins: Sequence[str], known: Mapping[str, Any]) -> Any:
    """The class of a policy: `base` with the named mixins before it, in the one order that makes sense.

    Asking twice gives the same class. ValueError for names that are no mixins or do not go together.
    """
    names = [mixins] if isinstance(mixins, str) else list(mixins)
    if not names:
        return base
    for name in names:
        if name not in MIXIN_ORDER:
            raise ValueError(unknown_name_message("policy mixin", name, MIXIN_ORDER))
    if len(set(names)) != len(names) or {"VisualActorCriticMixin", "EncoderActorCriticMixin"} <= set(names):
        raise ValueError(f"mixins={names}: name each once, and either the visual or the encoder mixin")
    if issubclass(base, known["ActorCriticMutex"]):
        raise ValueError(f"{base.__name__} holds trained policies and takes no mixins, got {names}: leave them out")
    present = [name for name in MIXIN_ORDER if issubclass(base, known[name])]
    if present:
        raise ValueError(
            f"{base.__name__} already has {', '.join(present)}: give mixins={names} to ActorCritic or "
            "ActorCriticRecurrent, together with those it has"
        )
    return _compose((*(known[name] for name in sorted(names, key=MIXIN_ORDER.index)), base))
