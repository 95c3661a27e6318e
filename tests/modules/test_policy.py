"""Which policies keep which part of the policy interface."""

import pytest
from torch import Tensor, nn

from st_rl.modules import ActorCritic, ActorCriticFieldMutex, AmpActorCritic
from st_rl.modules.policy import ActingPolicy, AmpPolicy, EncoderPolicy, GaussianPolicy, StatefulPolicy
from tests.modules.policy_matrix import CASES, make_policy


@pytest.mark.parametrize(("name", "options"), CASES)
def test_every_library_policy_acts_and_saves_hidden_states(name, options):
    policy = make_policy(name, options)
    for interface in (ActingPolicy, StatefulPolicy, GaussianPolicy):
        assert isinstance(policy, interface)
    assert isinstance(policy, EncoderPolicy) == ("Encoder" in name)
    assert isinstance(policy, AmpPolicy) == ("Amp" in name)


def test_discriminator_makes_an_amp_policy():
    settings = {"input_dim": 6, "style_reward_coef": 1.0, "hidden_dims": [4]}
    assert isinstance(AmpActorCritic(4, 4, 2, amp_discriminator=settings), AmpPolicy)
    assert not isinstance(ActorCritic(4, 4, 2), AmpPolicy)


def test_mutex_policy_has_no_standard_deviation():
    policy = ActorCriticFieldMutex(4, 4, 2, sub_policy_class_name="ActorCritic", sub_policy_paths=[])
    assert isinstance(policy, StatefulPolicy)
    assert not isinstance(policy, GaussianPolicy)


def test_a_policy_needs_no_base_class():
    class Still(nn.Module):
        def act(self, observations: Tensor) -> Tensor:
            return observations

        act_inference = act

        def reset(self, dones: Tensor | None = None) -> None: ...

    assert isinstance(Still(), ActingPolicy)
    assert not isinstance(Still(), StatefulPolicy)
