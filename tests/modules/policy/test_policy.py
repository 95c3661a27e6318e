"""Protocols of the policy interface and the policies that implement them."""

import pytest
import torch
from torch import Tensor, nn

from st_rl.modules import ActorCritic, ActorCriticFieldMutex
from st_rl.modules.policy import ActingPolicy, EncoderPolicy, GaussianPolicy, StatefulPolicy
from st_rl.utils.capability import CapabilityMeta
from tests.modules.policy_matrix import CASES, make_policy


@pytest.mark.parametrize(("name", "options"), CASES)
def test_every_library_policy_acts_and_saves_hidden_states(name, options):
    policy = make_policy(name, options)
    for interface in (ActingPolicy, StatefulPolicy, GaussianPolicy):
        assert isinstance(policy, interface)
    assert isinstance(policy, EncoderPolicy) == ("Encoder" in name)


def test_parameters_and_forwarded_attributes_count_as_capabilities():
    class Wrapper:
        def __init__(self, inner):
            self.inner = inner

        def __getattr__(self, name):
            return getattr(self.inner, name)

    policy = ActorCritic(4, 4, 2)
    # A parameter of an nn.Module is not in its __dict__, which is where Python 3.12 looks for a plain Protocol.
    assert "std" not in vars(policy)
    assert isinstance(policy, GaussianPolicy)
    assert isinstance(Wrapper(policy), GaussianPolicy)
    assert not isinstance(torch.nn.Linear(1, 1), GaussianPolicy)
    assert type(GaussianPolicy) is CapabilityMeta


def test_mutex_policy_has_no_standard_deviation():
    policy = ActorCriticFieldMutex(4, 4, 2, sub_policy_class_name="ActorCritic", sub_policy_paths=[])
    assert isinstance(policy, StatefulPolicy)
    assert not isinstance(policy, GaussianPolicy)


def test_policy_needs_no_base_class():
    class Still(nn.Module):
        def act(self, observations: Tensor) -> Tensor:
            return observations

        act_inference = act

        def reset(self, dones: Tensor | None = None) -> None: ...

    assert isinstance(Still(), ActingPolicy)
    assert not isinstance(Still(), StatefulPolicy)
