"""Settings of rsl_rl are translated, or rejected with the name of the key."""

import copy

import pytest
import torch

from st_rl.modules.normalizer import EmpiricalNormalization
from st_rl.runners.setup.rsl_rl_settings import ALGORITHM_DEFAULTS, translate_policy, translate_training
from tests.fakes import EchoEnv
from tests.runners.test_obs_groups import GroupedEnv
from tests.runners.training import make_runner, small_config

MODEL = {"class_name": "MLPModel", "hidden_dims": [8], "activation": "elu", "obs_normalization": False}
GAUSSIAN = {"class_name": "GaussianDistribution", "init_std": 0.7, "std_type": "log"}
CNN = {"output_channels": [3], "kernel_size": 2, "padding": "zeros"}


def make_config(actor=None, critic=None, algorithm=None, **runner):
    return {
        "num_steps_per_env": 6,
        "obs_groups": {"actor": ["actor"], "critic": ["critic"]},
        "actor": {**MODEL, "distribution_cfg": GAUSSIAN, **(actor or {})},
        "critic": {**MODEL, **(critic or {})},
        "algorithm": {"class_name": "PPO", "num_learning_epochs": 2, **(algorithm or {})},
        **runner,
    }


def test_rnn_hidden_dim_is_hidden_state_size():
    policy = {"class_name": "ActorCriticRecurrent", "rnn_type": "gru", "rnn_hidden_dim": 12}
    runner = make_runner(EchoEnv(), small_config(policy, strict=True))
    assert runner.alg.actor_critic.memory_a.rnn.hidden_size == 12
    with pytest.raises(ValueError, match=r"rnn_hidden_dim=12 and policy.rnn_hidden_size=8 differ"):
        translate_policy({"rnn_hidden_dim": 12, "rnn_hidden_size": 8})


def test_rejects_state_dependent_std():
    assert translate_policy({"state_dependent_std": False}) == {}
    with pytest.raises(ValueError, match=r"policy.state_dependent_std=True has no counterpart.*leave it out"):
        make_runner(config=small_config({"state_dependent_std": True}))


def test_noise_std_type_log_is_built():
    runner = make_runner(config=small_config({"noise_std_type": "log"}, strict=True))
    assert "log_std" in runner.alg.actor_critic.state_dict()


def test_dictionary_of_rsl_rl_5_trains_and_is_not_modified():
    algorithm = {
        "optimizer": "sgd",
        "desired_kl": None,
        "schedule": "fixed",
        "normalize_advantage_per_mini_batch": True,
    }
    config = make_config(algorithm=algorithm, seed=3)
    given = copy.deepcopy(config)
    runner = make_runner(GroupedEnv(), config)
    runner.learn(2)
    assert config == given
    alg, policy = runner.alg, runner.alg.actor_critic
    assert policy.std.shape == (2,)
    assert "log_std" in policy.state_dict()
    assert isinstance(alg.optimizer, torch.optim.SGD)
    # Missing settings have the defaults of rsl_rl.
    assert (alg.num_learning_epochs, alg.gamma, alg.entropy_coef) == (2, 0.99, 0.01)
    assert (alg.desired_kl, alg.schedule, alg.normalize_advantage_per_mini_batch) == (None, "fixed", True)


def test_normalization_of_each_network():
    runner = make_runner(GroupedEnv(), make_config({"obs_normalization": True}))
    assert isinstance(runner.alg.obs_normalizer, EmpiricalNormalization)
    assert isinstance(runner.alg.critic_obs_normalizer, torch.nn.Identity)


def test_recurrent_models():
    rnn = {"class_name": "RNNModel", "rnn_type": "gru", "rnn_hidden_dim": 6, "rnn_num_layers": 2}
    runner = make_runner(GroupedEnv(), make_config(rnn, rnn))
    policy = runner.alg.actor_critic
    assert (policy.memory_a.rnn.hidden_size, policy.memory_c.rnn.num_layers) == (6, 2)
    runner.learn(1)


@pytest.mark.parametrize("shared", [False, True])
def test_cnn_models_encode_the_image_groups(shared):
    cnn = {"class_name": "CNNModel", "cnn_cfg": CNN, "obs_normalization": True}
    groups = {"actor": ["actor", "camera"], "critic": ["critic", "camera"]}
    algorithm = {"share_cnn_encoders": shared}
    runner = make_runner(GroupedEnv(), make_config(cnn, cnn, algorithm, obs_groups=groups))
    policy = runner.alg.actor_critic
    width = policy.encoders[0].output_size
    assert (policy.actor[0].in_features, policy.critic[0].in_features) == (4 + width, 7 + width)
    assert len(policy.critic_encoders) == (0 if shared else 1)
    runner.learn(1)
    obs = torch.rand(2, 10)
    assert torch.equal(runner.alg.obs_normalizer.eval()(obs)[:, 4:], obs[:, 4:])


def test_cnn_settings_of_each_group():
    cnn = {"class_name": "CNNModel", "cnn_cfg": {"camera": CNN}}
    policy = translate_training(make_config(cnn))["policy"]
    assert policy["encoder_component_names"] == ["camera"]
    assert policy["encoder_kwargs"] == [{**CNN, "spatial_softmax": False}]
    assert "critic_encoder_component_names" not in policy


def test_limits_of_the_standard_deviation():
    translated = translate_training(make_config({"distribution_cfg": {**GAUSSIAN, "std_range": (0.1, 2.0)}}))
    assert (translated["policy"]["min_noise_std"], translated["policy"]["max_noise_std"]) == (0.1, 2.0)
    assert translated["algorithm"]["lam"] == ALGORITHM_DEFAULTS["lam"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (make_config({"class_name": "my.models:Transformer"}), "actor.class_name is 'my.models:Transformer'"),
        (make_config({"cnn_cfg": CNN}), "actor.cnn_cfg="),
        (make_config({"class_name": "CNNModel"}), "actor.cnn_cfg is missing"),
        (make_config({"rnn_type": "gru"}), "actor.rnn_type='gru'"),
        (make_config({"class_name": "RNNModel"}), "here both are recurrent or neither is"),
        (
            make_config({"class_name": "RNNModel"}, {"class_name": "RNNModel", "rnn_hidden_dim": 9}),
            "critic.rnn_hidden_dim=9 differs from actor.rnn_hidden_dim=256",
        ),
        (make_config({"activation": "relu"}), "critic.activation is 'elu', actor.activation 'relu'"),
        (make_config({"hidden_dims": [-1, 8]}), r"actor.hidden_dims is \[-1, 8\]"),
        (make_config({"init_weights": 3}), "actor.init_weights=3 of rsl_rl has no counterpart"),
        (make_config({"distribution_cfg": None}), "actor.distribution_cfg is missing"),
        (make_config(critic={"distribution_cfg": GAUSSIAN}), "critic.distribution_cfg="),
        (
            make_config({"distribution_cfg": {"class_name": "HeteroscedasticGaussianDistribution"}}),
            "actor.distribution_cfg.class_name='HeteroscedasticGaussianDistribution'",
        ),
        (make_config({"distribution_cfg": {**GAUSSIAN, "learn_std": False}}), "actor.distribution_cfg.learn_std=False"),
        (make_config(algorithm={"optimizer": "lion"}), "algorithm.optimizer is 'lion'; use one of: adam, adamw"),
        (make_config(algorithm={"use_mixed_precision": True}), "algorithm.use_mixed_precision=True"),
        (make_config(algorithm={"class_name": "Distillation"}), "algorithm.class_name='Distillation'"),
        (make_config(algorithm={"share_cnn_encoders": True}), "algorithm.share_cnn_encoders=True, but"),
        (make_config(algorithm={"gamm": 0.9}), "algorithm.gamm=0.9 of rsl_rl has no counterpart"),
    ],
)
def test_setting_without_counterpart_is_named(config, message):
    with pytest.raises(ValueError, match=message):
        make_runner(GroupedEnv(), config)
