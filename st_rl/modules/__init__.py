"""Networks and policies; `build_actor_critic` makes a policy by its class name."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from st_rl.modules.actor_critic import Actor, ActorCritic, Critic, get_activation
from st_rl.modules.actor_critic_field_mutex import ActorCriticClimbMutex, ActorCriticFieldMutex
from st_rl.modules.actor_critic_mutex import ActorCriticMutex
from st_rl.modules.actor_critic_recurrent import (
    ActorCriticHiddenState,
    ActorCriticRecurrent,
    LstmHiddenState,
    Memory,
)
from st_rl.modules.all_mixer import EncoderStateAc, EncoderStateAcRecurrent
from st_rl.modules.amp_discriminator import AmpActorCritic, AmpActorCriticRecurrent, AMPDiscriminator, AmpMixin
from st_rl.modules.composition import compose_policy
from st_rl.modules.conv2d import Conv2dHeadModel, Conv2dModel
from st_rl.modules.deterministic_policy import DeterministicPolicyMixin
from st_rl.modules.encoder_actor_critic import (
    EncoderActorCritic,
    EncoderActorCriticMixin,
    EncoderActorCriticRecurrent,
    EncoderAmpActorCriticRecurrent,
)
from st_rl.modules.mlp import MlpModel
from st_rl.modules.normalizer import EmpiricalNormalization, Normalize, Normalizer, RunningMeanStd
from st_rl.modules.policy import Policy
from st_rl.modules.rnd import RandomNetworkDistillation
from st_rl.modules.state_adaptor import (
    AdaptorActorHiddenState,
    PrivilegeEstimatorMixin,
    PrivilegeStateAc,
    PrivilegeStateAcRecurrent,
)
from st_rl.modules.state_estimator import EstimatorActorHiddenState, EstimatorMixin, StateAc, StateAcRecurrent
from st_rl.modules.visual_actor_critic import (
    VisualActorCriticMixin,
    VisualDeterministicAC,
    VisualDeterministicRecurrent,
)
from st_rl.utils.config import drop_none
from st_rl.utils.registry import resolve_class

__all__ = [
    "AMPDiscriminator",
    "Actor",
    "ActorCritic",
    "ActorCriticClimbMutex",
    "ActorCriticFieldMutex",
    "ActorCriticHiddenState",
    "ActorCriticMutex",
    "ActorCriticRecurrent",
    "AdaptorActorHiddenState",
    "AmpActorCritic",
    "AmpActorCriticRecurrent",
    "AmpMixin",
    "Conv2dHeadModel",
    "Conv2dModel",
    "Critic",
    "DeterministicPolicyMixin",
    "EmpiricalNormalization",
    "EncoderActorCritic",
    "EncoderActorCriticMixin",
    "EncoderActorCriticRecurrent",
    "EncoderAmpActorCriticRecurrent",
    "EncoderStateAc",
    "EncoderStateAcRecurrent",
    "EstimatorActorHiddenState",
    "EstimatorMixin",
    "LstmHiddenState",
    "Memory",
    "MlpModel",
    "Normalize",
    "Normalizer",
    "Policy",
    "PrivilegeEstimatorMixin",
    "PrivilegeStateAc",
    "PrivilegeStateAcRecurrent",
    "RandomNetworkDistillation",
    "RunningMeanStd",
    "StateAc",
    "StateAcRecurrent",
    "VisualActorCriticMixin",
    "VisualDeterministicAC",
    "VisualDeterministicRecurrent",
    "build_actor_critic",
    "get_activation",
    "policy_class",
    "policy_classes",
]


def policy_classes() -> dict[str, Any]:
    """Return the registered policies by class name: those of this package, and classes that a user has added to it."""
    modules = {k: v for k, v in globals().items() if isinstance(v, type) and issubclass(v, nn.Module)}
    return {name: module for name, module in modules.items() if callable(getattr(module, "act", None))}


def policy_class(name: str, mixins: str | Sequence[str] = (), kind: str = "policy class") -> Any:
    """Return the class of a name, or of a path `package.module:Class`, with mixins in front.

    ValueError, naming the `kind`, when there is none.
    """
    found = resolve_class(name, policy_classes(), kind, nn.Module)
    if not callable(getattr(found, "act", None)):
        raise ValueError(f"{kind} '{name}' has no method act(observations): it is not a policy")
    return compose_policy(found, mixins, globals())


def build_actor_critic(env: Any, policy_class_name: str, policy_cfg: Mapping[str, Any]) -> ActorCritic:
    """Make a policy from a configuration, with what it leaves out taken from the environment.

    `mixins`, a list of names, puts them in front of the class: `{"class_name": "ActorCriticRecurrent", "mixins":
    ["EstimatorMixin", "EncoderActorCriticMixin"]}` is `EncoderStateAcRecurrent`.
    """
    cfg = drop_none(policy_cfg)
    make = policy_class(policy_class_name, cfg.pop("mixins", ()))
    for key in ("class_name", "teacher_ac_path"):
        cfg.pop(key, None)
    segments = getattr(env, "obs_segments", None)
    critic_segments = getattr(env, "critic_obs_segments", None)
    if critic_segments is None:
        critic_segments = getattr(env, "privileged_obs_segments", None)
    if segments is not None:
        cfg.setdefault("obs_segments", segments)
    if critic_segments is not None and "privileged_obs_segments" not in cfg:
        cfg.setdefault("critic_obs_segments", critic_segments)
    num_actor_obs = cfg.pop("num_actor_obs", None) or env.num_obs
    num_critic_obs = cfg.pop("num_critic_obs", None) or getattr(env, "num_privileged_obs", None) or env.num_obs
    num_actions = cfg.pop("num_actions", None) or env.num_actions
    return make(num_actor_obs, num_critic_obs, num_actions, **cfg)
