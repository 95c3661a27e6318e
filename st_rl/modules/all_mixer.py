"""Policies with encoders and an estimator."""

from st_rl.modules.actor_critic import ActorCritic
from st_rl.modules.actor_critic_recurrent import ActorCriticRecurrent
from st_rl.modules.encoder_actor_critic import EncoderActorCriticMixin
from st_rl.modules.policy.misaligned import load_misaligned_state_dict
from st_rl.modules.state_estimator import EstimatorMixin


class EncoderStateAc(EstimatorMixin, EncoderActorCriticMixin, ActorCritic):
    """A feed-forward policy with encoders and an estimator that reads the raw observation."""

    load_misaligned_state_dict = load_misaligned_state_dict


class EncoderStateAcRecurrent(EstimatorMixin, EncoderActorCriticMixin, ActorCriticRecurrent):
    """A recurrent policy with encoders and an estimator that reads the raw observation."""

    load_misaligned_state_dict = load_misaligned_state_dict
