"""Networks and policies; `build_actor_critic` builds a policy, `load_policy` loads one from a run folder."""

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
from st_rl.modules.policy.build import build_actor_critic, policy_class, policy_classes
from st_rl.modules.policy.load import InferencePolicy, LoadedPolicy, load_policy
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
    "InferencePolicy",
    "LoadedPolicy",
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
    "load_policy",
    "policy_class",
    "policy_classes",
]
