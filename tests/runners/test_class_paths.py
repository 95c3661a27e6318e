"""Every class name of a configuration can be given as `package.module:Class`."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from st_rl.algorithms import PPO
from st_rl.modules import ActorCritic, AMPDiscriminator, build_actor_critic
from st_rl.runners import OnPolicyRunner, build_runner
from st_rl.storage import RolloutStorage
from tests.fakes import EchoEnv
from tests.runners.training import small_config

HERE = "tests.runners.test_class_paths"


class OwnRunner(OnPolicyRunner): ...


class OwnAlgorithm(PPO): ...


class OwnPolicy(ActorCritic): ...


class OwnStorage(RolloutStorage): ...


class OwnDiscriminator(AMPDiscriminator): ...


class OwnEncoder(nn.Module):
    def __init__(self, shape: tuple[int, ...], output_size: int, scale: float = 1.0):
        super().__init__()
        self.scale = scale
        self.linear = nn.Linear(shape[0] * shape[1], output_size)

    def forward(self, component: Tensor) -> Tensor:
        return self.scale * self.linear(component.flatten(1))


def test_runner_algorithm_policy_and_storage_by_path_learn():
    config = small_config(
        {"class_name": f"{HERE}:OwnPolicy"},
        {"class_name": f"{HERE}:OwnAlgorithm"},
        storage={"class_name": f"{HERE}:OwnStorage"},
    )
    runner = build_runner(f"{HERE}:OwnRunner", EchoEnv(), config)
    runner.learn(1)
    used = runner, runner.alg, runner.alg.actor_critic, runner.alg.storage
    assert [type(part) for part in used] == [OwnRunner, OwnAlgorithm, OwnPolicy, OwnStorage]


def test_encoder_and_discriminator_by_path():
    env = SimpleNamespace(num_obs=10, num_actions=2, obs_segments={"scan": (2, 3), "pose": 4})
    encoder = {
        "encoder_component_names": ["scan"],
        "encoder_class_name": f"{HERE}:OwnEncoder",
        "encoder_output_size": 5,
    }
    discriminator = {
        "class_name": f"{HERE}:OwnDiscriminator",
        "input_dim": 6,
        "style_reward_coef": 1.0,
        "hidden_dims": [4],
    }
    policy = build_actor_critic(
        env,
        "ActorCritic",
        {
            "mixins": ["EncoderActorCriticMixin", "AmpMixin"],
            **encoder,
            "encoder_kwargs": {"scale": 2.0},
            "amp_discriminator": discriminator,
        },
    )
    obs = torch.randn(3, 10)
    expected = policy.encoders[0](obs[:, :6].view(3, 2, 3))
    torch.testing.assert_close(policy.get_encoder_latent(obs, "scan"), expected)
    assert policy.act_inference(obs).shape == (3, 2)
    assert policy.encoders[0].scale == 2.0
    assert type(policy.discriminator) is OwnDiscriminator


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (small_config({"class_name": f"{HERE}:OwnEncoder"}), "has no method act"),
        (small_config({"class_name": f"{HERE}:OwnPolicies"}), "policy class .* cannot be imported"),
        (small_config(storage={"class_name": f"{HERE}:OwnPolicy"}), "must be a subclass of RolloutStorage"),
        (
            small_config(storage={"class_name": "RolloutStorag"}),
            "unknown storage class .*did you mean 'RolloutStorage'",
        ),
        (small_config({}, {"class_name": "PPPO"}), "unknown algorithm class 'PPPO'; did you mean 'PPO'"),
    ],
)
def test_rejects_classes_of_another_kind_with_hint(config, message):
    with pytest.raises(ValueError, match=message):
        build_runner("OnPolicyRunner", EchoEnv(), config)
