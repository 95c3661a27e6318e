"""`noise_std_type: log` learns the logarithm of the standard deviation; everything else is as with `scalar`."""

import copy
import math
from functools import partial

import pytest
import torch
from torch.distributions import Normal

from st_rl.engine import Engine
from st_rl.modules import ActorCritic, ActorCriticRecurrent, load_policy
from st_rl.modules.policy import GaussianPolicy
from tests.fakes import EchoEnv
from tests.runners.training import make_runner, small_config

NUM_OBS, A = 5, 3


def make_policy(**settings):
    torch.manual_seed(0)
    settings = {"noise_std_type": "log", "init_noise_std": 0.5, **settings}
    return ActorCritic(NUM_OBS, NUM_OBS, A, actor_hidden_dims=[8], critic_hidden_dims=[8], **settings)


def test_parameter_is_log_of_init_std():
    policy = make_policy()
    assert "std" not in policy.state_dict()
    assert policy.state_dict()["log_std"].tolist() == pytest.approx([math.log(0.5)] * A)
    assert policy.std.tolist() == pytest.approx([0.5] * A)
    assert isinstance(policy, GaussianPolicy)
    assert "log_std" not in make_policy(noise_std_type="scalar").state_dict()


def test_distribution_uses_exp_of_parameter():
    policy = make_policy()
    with torch.no_grad():
        policy.log_std.copy_(torch.tensor([-1.0, 0.0, 0.7]))
    obs, actions = torch.randn(7, NUM_OBS), torch.randn(7, A)
    policy.act(obs)
    reference = Normal(policy.actor(obs), policy.log_std.exp())
    assert torch.allclose(policy.get_actions_log_prob(actions), reference.log_prob(actions).sum(-1), atol=1e-5)
    assert torch.allclose(policy.entropy, reference.entropy().sum(-1), atol=1e-5)
    policy.entropy.mean().backward()
    # The entropy of a Gaussian is the logarithm of its standard deviation plus a constant.
    assert policy.log_std.grad.tolist() == pytest.approx([1.0] * A)


def test_std_limits_apply():
    policy = make_policy(min_noise_std=0.2, max_noise_std=0.8)
    with torch.no_grad():
        policy.log_std.copy_(torch.tensor([0.01, 3.0, 0.5]).log())
    policy.clip_std(min=torch.tensor([0.1, 0.1, 0.6]))
    assert policy.std.tolist() == pytest.approx([0.2, 0.8, 0.6])


def test_fill_std_sets_std_or_log_std():
    for kind in ("scalar", "log"):
        policy = make_policy(noise_std_type=kind)
        policy.fill_std(0.3)
        assert policy.std.tolist() == pytest.approx([0.3] * A)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"noise_std_type": "gamma"}, "noise_std_type='gamma'; use 'scalar' or 'log'"),
        ({"init_noise_std": 0.0}, "noise_std_type='log' needs init_noise_std above 0, got 0.0"),
        ({"init_noise_std": 0.5, "min_noise_std": 0.8, "max_noise_std": 0.2}, "a minimum below the maximum"),
    ],
)
def test_rejects_wrong_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        make_policy(**settings)


def test_copies_and_recurrent_policies():
    twin = copy.deepcopy(make_policy())
    twin.fill_std(0.1)
    assert make_policy().std.tolist() == pytest.approx([0.5] * A)
    policy = ActorCriticRecurrent(NUM_OBS, NUM_OBS, A, rnn_hidden_size=4, noise_std_type="log")
    assert {"log_std"} == {name for name in policy.state_dict() if "." not in name}


@pytest.mark.parametrize("engine", ["eager", "compile"])
@pytest.mark.parametrize("bound", [None, 1.5])
def test_trains_saves_and_loads(engine, bound, tmp_path, monkeypatch):
    # Traced without code generation, which takes seconds and does not depend on the parameter.
    monkeypatch.setattr("st_rl.runners.on_policy_runner.Engine", partial(Engine, compile_backend="aot_eager"))
    policy = {"noise_std_type": "log", "init_noise_std": 0.5, "action_bound": bound}
    config = small_config(policy, {"entropy_coef": 0.01}, engine=engine, strict=True)
    runner = make_runner(EchoEnv(), config, log_dir=tmp_path)
    runner.learn(2)
    std = runner.alg.actor_critic.std
    assert not torch.allclose(std, torch.full_like(std, 0.5), atol=1e-4)
    loaded = load_policy(tmp_path)
    obs = EchoEnv().obs
    assert torch.equal(loaded.actor_critic.std, std.detach())
    assert torch.equal(loaded(obs), runner.get_inference_policy()(obs))
