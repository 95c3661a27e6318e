"""Builds a policy from its configuration."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol

from torch import nn

from st_rl.modules.actor_critic import ActorCritic
from st_rl.utils.config import drop_none, resolve_class, unknown_name_message

# The order of the bases, and so of the steps from an observation to an action.
MIXIN_ORDER = (
    "DeterministicPolicyMixin",
    "PrivilegeEstimatorMixin",
    "EstimatorMixin",
    "VisualActorCriticMixin",
    "EncoderActorCriticMixin",
    "AmpMixin",
)


class SizedEnv(Protocol):
    """An environment with the sizes that a policy needs; the other attributes of `EnvSpec` are optional."""

    num_obs: int
    num_actions: int


class EnvSpec(NamedTuple):
    """The attributes of an environment that a policy is built from."""

    num_obs: int
    num_privileged_obs: int | None
    num_actions: int
    obs_segments: Mapping[str, Any] | None = None
    critic_obs_segments: Mapping[str, Any] | None = None


def read_env_spec(env: SizedEnv | EnvSpec) -> EnvSpec:
    """Return the sizes and segments of an environment; segments and privileged observations may be missing."""
    return EnvSpec(env.num_obs, getattr(env, "num_privileged_obs", None), env.num_actions, *read_segments(env))


def read_segments(env: object) -> tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]:
    """Return the segments of actor and critic observation; None where an environment has none."""
    critic_segments = getattr(env, "critic_obs_segments", None)
    if critic_segments is None:
        critic_segments = getattr(env, "privileged_obs_segments", None)
    return getattr(env, "obs_segments", None), critic_segments


def policy_classes() -> dict[str, Any]:
    """Return the registered policies by class name: the classes of `st_rl.modules`, and what a user adds to it."""
    modules = {k: v for k, v in _package().items() if isinstance(v, type) and issubclass(v, nn.Module)}
    return {name: module for name, module in modules.items() if callable(getattr(module, "act", None))}


def _package() -> Mapping[str, Any]:
    """Return the names of `st_rl.modules`, which imports this file."""
    import st_rl.modules

    return vars(st_rl.modules)


def policy_class(name: str, mixins: str | Sequence[str] = (), kind: str = "policy class") -> Any:
    """Return the class of a name, or of a path `package.module:Class`, with mixins in front.

    ValueError, naming the `kind`, when there is none, or when the mixins do not go together.
    """
    found = resolve_class(name, policy_classes(), kind, nn.Module)
    if not callable(getattr(found, "act", None)):
        raise ValueError(f"{kind} '{name}' has no method act(observations): it is not a policy")
    return _add_mixins(found, [mixins] if isinstance(mixins, str) else list(mixins))


def _add_mixins(base: type, names: list[str]) -> Any:
    """Return the subclass of the named mixins and `base`, mixins in `MIXIN_ORDER`."""
    if not names:
        return base
    for name in names:
        if name not in MIXIN_ORDER:
            raise ValueError(unknown_name_message("policy mixin", name, MIXIN_ORDER))
    if len(set(names)) != len(names) or {"VisualActorCriticMixin", "EncoderActorCriticMixin"} <= set(names):
        raise ValueError(f"mixins={names}: name each once, and either the visual or the encoder mixin")
    package = _package()
    if issubclass(base, package["ActorCriticMutex"]):
        raise ValueError(f"{base.__name__} holds trained policies and takes no mixins, got {names}: leave them out")
    present = [name for name in MIXIN_ORDER if issubclass(base, package[name])]
    if present:
        raise ValueError(
            f"{base.__name__} already has {', '.join(present)}: give mixins={names} to ActorCritic or "
            "ActorCriticRecurrent, together with those it has"
        )
    return _compose((*(package[name] for name in sorted(names, key=MIXIN_ORDER.index)), base))


@cache
def _compose(bases: tuple[type, ...]) -> Any:
    names = [base.__name__.removesuffix("Mixin") for base in bases]
    return type("And".join(names), bases, {"__doc__": f"A policy made of {', '.join(names)}."})


def build_actor_critic(
    env: SizedEnv | EnvSpec, policy_class_name: str, policy_cfg: Mapping[str, Any], kind: str = "policy class"
) -> ActorCritic:
    """Build a policy; sizes and segments that the configuration lacks come from the environment.

    `mixins`, a list of names, puts them in front of the class: `{"class_name": "ActorCriticRecurrent", "mixins":
    ["EstimatorMixin", "EncoderActorCriticMixin"]}` is `EncoderStateAcRecurrent`. Error messages name the `kind`.
    """
    cfg, spec = drop_none(policy_cfg), read_env_spec(env)
    make = policy_class(policy_class_name, cfg.pop("mixins", ()), kind)
    for key in ("class_name", "teacher_ac_path"):
        cfg.pop(key, None)
    if spec.obs_segments is not None:
        cfg.setdefault("obs_segments", spec.obs_segments)
    if spec.critic_obs_segments is not None and "privileged_obs_segments" not in cfg:
        cfg.setdefault("critic_obs_segments", spec.critic_obs_segments)
    num_actor_obs = cfg.pop("num_actor_obs", None) or spec.num_obs
    num_critic_obs = cfg.pop("num_critic_obs", None) or spec.num_privileged_obs or spec.num_obs
    num_actions = cfg.pop("num_actions", None) or spec.num_actions
    return make(num_actor_obs, num_critic_obs, num_actions, **cfg)
