"""Configurations are read in every layout, and errors in them are reported before a training starts."""

import copy

import numpy as np
import pytest
import torch

import st_rl.algorithms
import st_rl.modules
from st_rl.algorithms import PPO
from st_rl.modules import ActorCritic
from st_rl.modules.normalizer import EmpiricalNormalization
from st_rl.runners import OnPolicyRunner, build_runner
from st_rl.runners.setup.train_config import read_train_config
from tests.fakes import ClientEnv, EchoEnv, LegacyEnv, TensorDictEnv
from tests.runners.training import make_runner, small_config

NESTED = {
    "seed": 1,
    "runner_class_name": "OnPolicyRunner",
    "runner": {
        "num_steps_per_env": 6,
        "policy_class_name": "ActorCriticRecurrent",
        "algorithm_class_name": "PPO",
        "max_iterations": 1500,
        "save_interval": 7,
        "experiment_name": "a1",
    },
    "algorithm": {"num_mini_batches": 2, "schedule": "adaptive"},
    "policy": {"actor_hidden_dims": [8], "critic_hidden_dims": [8], "rnn_type": "gru", "rnn_hidden_size": 8},
}


def test_reads_nested_layout():
    given = copy.deepcopy(NESTED)
    runner = make_runner(EchoEnv(), given)
    assert given == NESTED
    assert (runner.num_steps_per_env, runner.save_interval) == (6, 7)
    assert runner.cfg == NESTED["runner"]
    assert type(runner.alg.actor_critic).__name__ == "ActorCriticRecurrent"
    assert runner.alg.schedule == "adaptive"
    runner.learn(1)


def test_runner_copies_all_levels():
    given = small_config(storage={"amp_obs_shape": [42]})
    runner = make_runner(config=given)
    given["policy"]["actor_hidden_dims"].append(99)
    given["storage"]["amp_obs_shape"].append(99)
    assert runner.policy_cfg["actor_hidden_dims"] == runner.cfg["policy"]["actor_hidden_dims"] == [8]
    assert runner.cfg["storage"] == {"amp_obs_shape": [42]}


def test_class_name_precedence_is_section_runner_default():
    def names(config):
        read = read_train_config(config)
        return read.policy_class_name, read.algorithm_class_name

    assert names(small_config()) == ("ActorCritic", "PPO")
    assert names(small_config(policy_class_name="A", algorithm_class_name="B")) == ("A", "B")
    parts = small_config({"class_name": "C"}, {"class_name": "D"}, policy_class_name="A", algorithm_class_name="B")
    assert names(parts) == ("C", "D")
    assert names(small_config({"class_name": None}, {"class_name": None})) == ("ActorCritic", "PPO")


def test_missing_or_none_settings_have_defaults():
    for config in (small_config(), small_config(save_interval=None, log_interval=None, logger=None, storage=None)):
        runner = make_runner(config=config)
        assert (runner.save_interval, runner.log_interval) == (50, 1)
        assert not runner.alg.empirical_normalization


def test_none_in_algorithm_means_default_except_desired_kl():
    nulls = {"gamma": None, "clip_param": None, "optimizer_class_name": None, "rnd_cfg": None, "desired_kl": None}
    alg = make_runner(config=small_config(algorithm=nulls)).alg
    assert (alg.gamma, alg.clip_param, alg.optimizer_class_name, alg.desired_kl) == (0.998, 0.2, "Adam", None)


@pytest.mark.parametrize(
    ("runner", "algorithm", "expected"),
    [
        (True, {}, True),
        (True, {"empirical_normalization": False}, False),
        (False, {"empirical_normalization": True}, True),
        (True, {"empirical_normalization": None}, True),
        (None, {}, False),
    ],
)
def test_normalization_setting_of_algorithm_overrides_that_of_runner(runner, algorithm, expected):
    config = small_config(algorithm=algorithm, empirical_normalization=runner)
    assert make_runner(config=config).alg.empirical_normalization is expected


@pytest.mark.parametrize("env_class", [EchoEnv, ClientEnv, LegacyEnv, TensorDictEnv])
@pytest.mark.parametrize("num_privileged_obs", [None, 0, 7])
def test_accepts_every_environment_interface(env_class, num_privileged_obs):
    env = env_class(num_obs=12, num_actions=3, num_privileged_obs=num_privileged_obs)
    runner = make_runner(env, small_config(empirical_normalization=True))
    assert (runner.num_obs, runner.num_critic_obs) == (12, num_privileged_obs or 12)
    assert runner.alg.actor_critic.num_critic_obs == runner.num_critic_obs
    assert (runner.alg.storage.critic_observations is not None) == bool(num_privileged_obs)
    runner.learn(2)
    # The initial observation and those of 2 x 6 steps, each counted once.
    assert runner.alg.obs_normalizer.count == 13 * env.num_envs
    assert runner.alg.critic_obs_normalizer.count == (13 * env.num_envs if num_privileged_obs else 0)


def test_inference_policy_accepts_observation_groups():
    env = TensorDictEnv()
    policy = make_runner(env).get_inference_policy()
    groups = env.get_observations()
    assert (policy(groups) == policy(groups["policy"])).all()


def test_environment_is_reset_once():
    class Counting(EchoEnv):
        resets = 0

        def reset(self, *args, **kwargs):
            self.resets += 1
            return super().reset()

    env = Counting()
    make_runner(env).learn(1)
    assert env.resets == 1


def test_default_settings_of_rsl_rl_and_legged_gym_raise_no_warning(caplog):
    policy = {"noise_std_type": "scalar", "state_dependent_std": False, "some_option": None}
    config = small_config(
        policy,
        {"normalize_advantage_per_mini_batch": False},
        obs_groups={"policy": ["policy"], "critic": ["critic"]},
        clip_actions=None,
        resume_path=None,
        checkpoint=-1,
        init_member_classes={},
    )
    make_runner(config=config)
    assert "unknown key" not in caplog.text
    assert "obs_groups" not in caplog.text


@pytest.mark.parametrize(
    ("policy", "runner", "expected"),
    [
        ({"actor_obs_normalization": True, "critic_obs_normalization": True}, False, True),
        ({"actor_obs_normalization": True}, None, True),
        ({"actor_obs_normalization": False, "critic_obs_normalization": False}, True, False),
        ({"actor_obs_normalization": None}, True, True),
    ],
)
def test_reads_normalization_flags_of_policy(policy, runner, expected, caplog):
    made = make_runner(config=small_config(policy, empirical_normalization=runner, strict=True))
    assert made.alg.empirical_normalization is expected
    assert "unknown key" not in caplog.text


@pytest.mark.parametrize(("actor", "critic"), [(True, False), (False, True)])
def test_actor_and_critic_are_normalized_separately(actor, critic, tmp_path):
    policy = {"actor_obs_normalization": actor, "critic_obs_normalization": critic}
    env = EchoEnv(num_privileged_obs=7)
    runner = make_runner(env, small_config(policy, strict=True), log_dir=tmp_path)
    runner.learn(1)
    normalizers = (runner.alg.obs_normalizer, runner.alg.critic_obs_normalizer)
    assert [isinstance(normalizer, EmpiricalNormalization) for normalizer in normalizers] == [actor, critic]
    resumed = make_runner(env, small_config(policy))
    resumed.load(str(tmp_path / "model_1.pt"))
    for mine, loaded in zip(normalizers, (resumed.alg.obs_normalizer, resumed.alg.critic_obs_normalizer)):
        assert all(torch.equal(value, loaded.state_dict()[key]) for key, value in mine.state_dict().items())
    with pytest.raises(ValueError, match=r"critic_obs_normalization=(True|False) differs from that of the actor, but"):
        make_runner(EchoEnv(), small_config(policy))


def test_unnormalized_components_pass_unchanged():
    env = EchoEnv(num_obs=6, num_actions=2, num_privileged_obs=8)
    algorithm = {"empirical_normalization": True, "unnormalized_components": ["noise"]}
    runner = make_runner(env, small_config(algorithm=algorithm, strict=True))
    runner.learn(1)
    obs = env.obs
    normalized = runner.alg.obs_normalizer.eval()(obs)
    assert torch.equal(normalized[:, 2:], obs[:, 2:])
    assert not torch.equal(normalized[:, :2], obs[:, :2])
    with pytest.raises(ValueError, match=r"unnormalized_components names \['nois'\]; the observations have \['target'"):
        make_runner(env, small_config(algorithm={**algorithm, "unnormalized_components": ["nois"]}))


# ---- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [None, "config.yaml", 3, [("num_steps_per_env", 4)], object()])
def test_rejects_non_dictionary_with_hint(wrong):
    with pytest.raises(
        TypeError, match=rf"got {type(wrong).__name__}.*Runner\(env, train_cfg, log_dir=..., device=...\)"
    ):
        OnPolicyRunner(EchoEnv(), wrong)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"num_steps_per_env": 4, "algorithm": {}}, "no 'policy' dictionary; its keys are: algorithm, num"),
        ({"num_steps_per_env": 4, "policy": {}, "algorithm": "PPO"}, "no 'algorithm' dictionary"),
        ({"runner": None, "policy": {}, "algorithm": {}}, "no 'runner' dictionary"),
        ({"policy": {}, "algorithm": {}}, "needs 'num_steps_per_env'"),
        (small_config(num_steps_per_env=0), "needs 'num_steps_per_env'"),
        (small_config(num_steps_per_env=-3), "'num_steps_per_env' is -3; give a whole number of at least 1"),
        (small_config(num_steps_per_env=2.5), "'num_steps_per_env' is 2.5"),
        (small_config(save_interval=0), "'save_interval' is 0; give a whole number of at least 1"),
        (small_config(log_interval=1.5), "'log_interval' is 1.5"),
        (small_config(log_interval="often"), "'log_interval' is 'often'"),
        (small_config(keep_last=-1), "'keep_last' is -1"),
        (small_config(logger="tensorbord"), "unknown logger 'tensorbord'; did you mean 'tensorboard'? known: nep"),
        (small_config(engine="graf"), "unknown engine 'graf'; did you mean 'graph'? known: auto, compile, "),
        (small_config({"class_name": "ActorCritik"}), "unknown policy class 'ActorCritik'; did you mean 'Actor"),
        (small_config(algorithm={"class_name": "SAC"}), "unknown algorithm class 'SAC'; known: APPO, ATPPO, "),
        (small_config({"activation": "eluu"}), "activation='eluu' is not a layer"),
        (small_config(algorithm={"schedule": "adaptiv"}), "unknown schedule 'adaptiv'"),
        (small_config(algorithm={"max_grad_norm": 0}), "max_grad_norm must be above 0, got 0"),
        (small_config({"num_actor_obs": 9}), "num_actor_obs=9 but the environment delivers 4; leave"),
        (small_config({"num_critic_obs": 9}), "num_critic_obs=9 but the environment delivers 4"),
        (small_config(algorithm={"rnd_cfg": {"num_outputs": 2}}), "delivers no extras['observations']['rnd_state']"),
    ],
)  # fmt: skip
def test_rejects_invalid_values_with_hint(config, message, tmp_path):
    with pytest.raises(ValueError) as raised:
        OnPolicyRunner(EchoEnv(), config, log_dir=tmp_path / "run")
    assert message in str(raised.value)
    assert not (tmp_path / "run").exists()


def test_accepts_numpy_integers():
    assert make_runner(config=small_config(num_steps_per_env=np.int64(5))).num_steps_per_env == 5


def test_unavailable_engine_is_rejected_by_learn_only():
    runner = make_runner(config=small_config(engine="graph"))
    assert runner.get_inference_policy() is not None
    with pytest.raises(ValueError, match="engine 'graph' needs a CUDA device, not 'cpu'"):
        runner.learn(1)


def test_unknown_runner_lists_known_ones():
    with pytest.raises(ValueError, match=r"unknown runner class 'OnPolicyRuner'; did you mean 'OnPolicyRunner'\?"):
        build_runner("OnPolicyRuner", EchoEnv(), small_config())
    with pytest.raises(ValueError, match="unknown runner class 'TrialPruned'"):
        build_runner("TrialPruned", EchoEnv(), small_config())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (small_config(save_intervall=3), "unknown key 'save_intervall' for the runner; did you mean 'save_interval'?"),
        (small_config(algorithm={"gama": 0.9}), "unknown key 'gama' for PPO; did you mean 'gamma'?"),
        (small_config({"activasion": "elu"}), "unknown key 'activasion' for ActorCritic; did you mean 'activation'?"),
        (
            {**NESTED, "sed": 4},
            "unknown key 'sed' for the training configuration outside 'runner'; did you mean 'seed'?",
        ),
    ],
)
def test_misspelled_key_warns_or_raises_if_strict(config, message, caplog):
    OnPolicyRunner(EchoEnv(), config)
    assert [record.getMessage() for record in caplog.records].count(message) == 1
    with pytest.raises(ValueError) as raised:
        OnPolicyRunner(EchoEnv(), {**config, "strict": True})
    assert message in str(raised.value)


def test_strict_accepts_all_known_keys():
    config = small_config({"rnn_type": "lstm"}, {"bc_loss_coef": 1.0}, strict=True, seed=1, run_name="x")
    make_runner(config=config).learn(1)


def test_warns_about_settings_outside_runner_section(caplog):
    make_runner(config={**NESTED, "save_interval": 3})
    assert "outside 'runner' ignores keys of other parts: save_interval" in caplog.text
    assert "seed" not in caplog.text


def test_accepts_integers_as_floats():
    runner = make_runner(config=small_config(save_interval=500.0, keep_last=2.0))
    assert runner.save_interval == 500
    assert isinstance(runner.cfg["keep_last"], int)


def test_configuration_finds_classes_added_to_the_package(monkeypatch):
    """Names are looked up in the modules, including classes added by users."""

    class Foreign(torch.nn.Module):
        """A policy with the interface of ActorCritic but another base class."""

        def __init__(self, *args, **kwargs):
            super().__init__()
            self.inner = ActorCritic(*args, **kwargs)

        def __getattr__(self, name):
            return super().__getattr__(name) if name == "inner" else getattr(self.inner, name)

        def act(self, *args, **kwargs):
            return self.inner.act(*args, **kwargs)

    class Mine(PPO):
        pass

    monkeypatch.setattr(st_rl.modules, "Foreign", Foreign, raising=False)
    monkeypatch.setattr(st_rl.algorithms, "Mine", Mine, raising=False)
    runner = make_runner(config=small_config({"class_name": "Foreign"}, {"class_name": "Mine"}))
    assert (type(runner.alg), type(runner.alg.actor_critic)) == (Mine, Foreign)
    runner.learn(1)
    with pytest.raises(ValueError, match="unknown policy class 'MlpModel'"):
        make_runner(config=small_config({"class_name": "MlpModel"}))
