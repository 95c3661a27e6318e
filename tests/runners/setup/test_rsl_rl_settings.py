"""Settings of rsl_rl are translated, or rejected with the name of the key."""

import copy
from pathlib import Path

import pytest
import torch

from st_rl.algorithms import TPPO
from st_rl.modules.normalizer import EmpiricalNormalization
from st_rl.runners import DistillationRunner
from st_rl.runners.setup.rsl_rl_settings import ALGORITHM_DEFAULTS, translate_policy, translate_training
from tests.fakes import EchoEnv
from tests.runners.setup.rsl_rl_peer import RecordedEnv, compare, read_checkpoint, read_config, unpack
from tests.runners.setup.rsl_rl_peer import make_runner as make_peer_runner
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
        (make_config({"init_weights": 3}), "actor.init_weights=3 of rsl_rl has no counterpart"),
        (make_config({"distribution_cfg": None}), "actor.distribution_cfg is missing"),
        (make_config(critic={"distribution_cfg": GAUSSIAN}), "critic.distribution_cfg="),
        (make_config(algorithm={"optimizer": "lion"}), "algorithm.optimizer is 'lion'; use one of: adam, adamw"),
        (make_config(algorithm={"share_cnn_encoders": True}), "algorithm.share_cnn_encoders=True, but"),
        (make_config({"hidden_dims": [0, 8]}), r"actor.hidden_dims is \[0, 8\]"),
        (
            make_config({"distribution_cfg": {"class_name": "BetaDistribution"}}),
            "actor.distribution_cfg.class_name='BetaDistribution' of rsl_rl has no counterpart.*set 'action_bound'",
        ),
        (make_config(algorithm={"class_name": "Distillation"}), "algorithm.class_name is 'Distillation'"),
        (make_config(algorithm={"symmetry_cfg": {"data_augmentation_func": "no.module:f"}}), "cannot be imported"),
        (make_config(algorithm={"rnd_cfg": {"weight": 1.0}}), "delivers no extras.*rnd_state"),
        (make_config(algorithm={"gamm": 0.9}), "algorithm.gamm=0.9 of rsl_rl has no counterpart"),
    ],
)
def test_setting_without_counterpart_is_named(config, message):
    with pytest.raises(ValueError, match=message):
        make_runner(GroupedEnv(), config)


PEER_FILES = sorted((Path(__file__).parent / "rsl_rl_5_5_1").glob("*.npz"))


@pytest.mark.parametrize("path", PEER_FILES, ids=[path.stem for path in PEER_FILES])
def test_networks_and_one_update_equal_those_of_rsl_rl(path, tmp_path):
    found = compare(unpack(path), tmp_path)
    assert found.pop("parameters") == 0
    assert found.pop("moved") > 1e-4
    # A sum of squares of size 10.
    assert found.pop("log_prob", 0.0) < 5e-6
    assert max(found.values()) < 1e-6, found


@pytest.fixture
def float64():
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(default)


@pytest.mark.usefixtures("float64")
def test_one_update_in_float64_equals_that_of_rsl_rl(tmp_path):
    found = compare(unpack(PEER_FILES[0].parent / "float64" / "mlp.npz"), tmp_path)
    # The logged loss is averaged in float32.
    assert found.pop("loss") < 1e-6
    assert found.pop("moved") > 1e-4
    assert max(found.values()) < 1e-12, found


@pytest.mark.parametrize("path", PEER_FILES, ids=[path.stem for path in PEER_FILES])
def test_dictionary_of_rsl_rl_trains_on_its_environment(path, tmp_path, caplog):
    arrays = unpack(path)
    config = read_config(arrays)
    with caplog.at_level("INFO"):
        runner = make_peer_runner(arrays, tmp_path)
    assert config == read_config(arrays)
    assert "settings of rsl_rl: " in caplog.text
    runner.learn(2, init_at_random_ep_len=True)
    actions = runner.get_inference_policy()(runner.env.get_observations())
    assert actions.shape == (4, 3)


def test_checkpoint_continues_with_the_moments_of_its_optimizer(tmp_path):
    arrays = unpack(PEER_FILES[0].with_name("lstm.npz"))
    runner = make_peer_runner(arrays, tmp_path)
    checkpoint = read_checkpoint(arrays, "before")
    # In the order of rsl_rl's parameters: each moment is marked by the size of its weight.
    names = [f"{part}/{name}" for part in ("actor_state_dict", "critic_state_dict") for name in checkpoint[part]]
    tensors = [checkpoint[name.split("/")[0]][name.split("/")[1]] for name in names]
    state = {
        number: {"step": torch.tensor(5.0), "exp_avg": 2.0 * tensor, "exp_avg_sq": tensor.square()}
        for number, tensor in enumerate(tensors)
    }
    group = {**runner.alg.optimizer.state_dict()["param_groups"][0], "lr": 0.003, "params": list(range(len(tensors)))}
    checkpoint["optimizer_state_dict"] = {"state": state, "param_groups": [group]}
    torch.save(checkpoint, tmp_path / "trained.pt")
    runner.load(tmp_path / "trained.pt")
    assert runner.current_learning_iteration == 7
    assert float(runner.alg.learning_rate) == 0.003
    for parameter in runner.alg.actor_critic.parameters():
        moments = runner.alg.optimizer.state[parameter]
        assert torch.equal(moments["exp_avg"], 2.0 * parameter)
        assert torch.equal(moments["exp_avg_sq"], parameter.square())


def test_distillation_needs_its_teacher_and_resumes_with_it(tmp_path):
    arrays = unpack(PEER_FILES[0].with_name("distillation.npz"))
    config = read_config(arrays)
    new = DistillationRunner(RecordedEnv(arrays), config)
    with pytest.raises(ValueError, match=r"the teacher is not loaded: call load\(path\)"):
        new.learn(1)
    peer = read_checkpoint(arrays, "before")
    torch.save({"actor_state_dict": peer["teacher_state_dict"], "iter": 50, "infos": None}, tmp_path / "teacher.pt")
    new.load(tmp_path / "teacher.pt")
    assert new.current_learning_iteration == 0
    new.learn(2)
    new.save(tmp_path / "model_2.pt")
    resumed = DistillationRunner(RecordedEnv(arrays), config)
    resumed.load(tmp_path / "model_2.pt")
    assert resumed.current_learning_iteration == 2
    obs = torch.rand(4, 9)
    labels = [runner.alg.teacher_actor_critic.act_inference(obs) for runner in (new, resumed)]
    assert torch.equal(*labels)
    assert torch.equal(resumed.alg.critic_obs_normalizer.mean, new.alg.critic_obs_normalizer.mean)


def test_student_and_teacher_of_rsl_rl_3_become_the_same_distillation():
    policy = {
        "class_name": "StudentTeacher", "student_hidden_dims": [8], "teacher_hidden_dims": [6], "activation": "elu",
        "init_noise_std": 0.2, "student_obs_normalization": True, "teacher_obs_normalization": False,
    }  # fmt: skip
    old = {
        "num_steps_per_env": 6,
        "obs_groups": {"policy": ["actor"], "teacher": ["critic"]},
        "policy": policy,
        "algorithm": {"class_name": "Distillation", "gradient_length": 3, "loss_type": "huber"},
    }
    runner = DistillationRunner(GroupedEnv(), old)
    alg = runner.alg
    assert isinstance(alg, TPPO)
    assert (alg.using_ppo, alg.distill_target, alg.num_mini_batches) == (False, "huber", 2)
    assert alg.actor_critic.actor[0].out_features == 8
    assert alg.teacher_actor_critic.num_actor_obs == 7
    assert (alg.empirical_normalization, alg.critic_obs_normalization) == (True, False)


def test_missing_sets_of_groups_are_those_of_rsl_rl():
    runner = make_runner(GroupedEnv(names=("policy", "height")), make_config(obs_groups={}))
    assert (runner.num_obs, runner.num_critic_obs) == (4, 4)


def test_gradients_of_actor_and_critic_are_clipped_by_their_own_norm():
    runner = make_runner(GroupedEnv(), make_config(algorithm={"max_grad_norm": 0.5}))
    optimizer, groups = runner.alg._optimizer, runner.alg.actor_critic.network_parameters()
    assert sum(len(group) for group in groups) == len(list(runner.alg.actor_critic.parameters()))
    for scale, group in zip((100.0, 0.001), groups):
        for parameter in group:
            parameter.grad = scale * torch.ones_like(parameter)
    expected = [p.grad.clone() for group in groups for p in group]
    optimizer.apply_gradients(0.5, clip_groups=groups)
    norms = [torch.cat([p.grad.flatten() for p in group]).norm() for group in groups]
    assert norms[0] == pytest.approx(0.5, rel=1e-4)
    assert torch.equal(groups[1][0].grad, expected[len(groups[0])])
