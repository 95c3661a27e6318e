"""The interface that the client st_gym uses."""

import copy
import pickle
import subprocess
from typing import Any

import pytest
import torch
import yaml

import st_rl
from st_rl.env import VecEnv
from st_rl.runners import OnPolicyRunner, build_runner
from st_rl.utils.files import load_checkpoint
from st_rl.utils.utils import get_obs_slice
from tests.fakes import ClientEnv


def policy_section(class_name: str) -> dict[str, Any]:
    """`to_dict()` of the client's policy configuration: keys for every class, most of them null."""
    return {
        "class_name": class_name,
        "init_noise_std": 1.0,
        "actor_hidden_dims": [32, 16],
        "critic_hidden_dims": [32, 16],
        "activation": "elu",
        "rnn_type": "lstm",
        "rnn_hidden_size": 16,
        "rnn_num_layers": 1,
        "teacher_ac_path": None,
        "num_actor_obs": None,
        "num_critic_obs": None,
        "num_actions": None,
        "encoder_component_names": None,
        "critic_encoder_component_names": None,
        "obs_segments": None,
        "critic_obs_segments": None,
        "amp_discriminator": {
            "input_dim": 42,
            "style_reward_coef": 0.5,
            "discriminator_grad_pen": 5.0,
            "hidden_dims": (64, 32),
            "task_reward_lerp": 0.0,
            "amp_obs_dim": {},
        },
        "mu_activation": None,
    }


def client_config(class_name: str = "ActorCritic") -> dict[str, Any]:
    """The flat dictionary of the client, nulls, tuples and keys of other algorithms included."""
    return {
        "seed": 42,
        "device": "cuda:0",
        "num_steps_per_env": 8,
        "max_iterations": 20000,
        "empirical_normalization": True,
        "policy": policy_section(class_name),
        "algorithm": {
            "class_name": "PPO",
            "value_loss_coef": 1.0,
            "use_clipped_value_loss": True,
            "clip_param": 0.2,
            "entropy_coef": 0.01,
            "num_learning_epochs": 2,
            "num_mini_batches": 2,
            "learning_rate": 1.0e-3,
            "schedule": "adaptive",
            "gamma": 0.99,
            "lam": 0.95,
            "desired_kl": 0.01,
            "max_grad_norm": 1.0,
            "empirical_normalization": None,
            "mimic_loss_coef": 1.0,
            "discriminator_loss_coef": 1.0,
            "amp_obs_dim": {},
            "bc_loss_coef": 0.5,
            "amp_data": None,
            "ppo": None,
            "teacher_policy": {
                "class_name": "ActorCritic",
                "teacher_ac_path": None,
                "num_actor_obs": None,
                "num_critic_obs": None,
                "num_actions": None,
            },
        },
        "save_interval": 500,
        "experiment_name": "h1_flat",
        "run_name": "",
        "logger": "TensorBoard",
        "neptune_project": "isaaclab",
        "wandb_project": "isaaclab",
        "resume": False,
        "load_run": ".*",
        "load_checkpoint": "model_.*.pt",
        "storage": {"amp_obs_shape": (42,)},
        "log_interval": 1,
        "runner_class_name": "OnPolicyRunner",
        "inference_mode_rollout": True,
        "ckpt_manipulator": False,
        "pretrain_iterations": 0,
        "pretrain_dataset": None,
    }


CLASSES = ["ActorCritic", "ActorCriticRecurrent"]


@pytest.fixture(params=CLASSES)
def config(request) -> dict[str, Any]:
    return client_config(request.param)


@pytest.fixture
def trained(tmp_path, config):
    """A runner after two iterations, called like the client does."""
    runner = build_runner("OnPolicyRunner", ClientEnv(), config, log_dir=str(tmp_path), device="cpu")
    runner.learn(num_learning_iterations=2, init_at_random_ep_len=True)
    return runner


def test_names_imported_by_client():
    assert (OnPolicyRunner.__module__, build_runner.__module__) == ("st_rl.runners.on_policy_runner", "st_rl.runners")
    assert issubclass(ClientEnv, VecEnv)
    segment = get_obs_slice({"obs": 103, "privileged_obs": 91}, "privileged_obs")[0]
    assert (segment.start, segment.stop) == (103, 194)


def test_client_configuration_trains_and_is_not_modified(tmp_path, config, caplog):
    untouched = copy.deepcopy(config)
    dumps = yaml.safe_dump(_with_lists(config), sort_keys=False), pickle.dumps(config)
    runner = build_runner(config["runner_class_name"], ClientEnv(), config, log_dir=str(tmp_path), device="cpu")
    runner.learn(num_learning_iterations=2, init_at_random_ep_len=True)
    assert config == untouched
    assert (yaml.safe_dump(_with_lists(config), sort_keys=False), pickle.dumps(config)) == dumps
    assert runner.cfg is not config
    assert runner.policy_cfg is not config["policy"]
    assert runner.alg.empirical_normalization is True  # of the runner section, because the algorithm has none
    # No key is reported as misspelled, and keys of other sections at most once per section.
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert not [message for message in warnings if "unknown key" in message]
    assert len([message for message in warnings if "ignores keys of other parts" in message]) <= 2
    assert any("bc_loss_coef" in message for message in warnings)


def _with_lists(value):
    """The same with lists instead of tuples, which plain YAML lacks."""
    if isinstance(value, dict):
        return {key: _with_lists(item) for key, item in value.items()}
    return [_with_lists(item) for item in value] if isinstance(value, tuple | list) else value


def test_learn_returns_both_metrics_as_tensors(config):
    env = ClientEnv()
    runner = build_runner("OnPolicyRunner", env, config, log_dir=None, device="cpu")
    velrmsd, cot = runner.learn(num_learning_iterations=1, init_at_random_ep_len=True)
    assert velrmsd.cpu().numpy().tolist() == env.tracking_error.tolist()
    assert cot.cpu().numpy().tolist() == env.CoT.tolist()
    kept = velrmsd.clone()
    with torch.inference_mode():
        env.tracking_error.add_(1.0)
    assert torch.equal(velrmsd, kept)


def test_init_at_random_ep_len_spreads_episode_starts(config):
    env = ClientEnv(num_envs=64, episode_length=10)
    runner = build_runner("OnPolicyRunner", env, config, log_dir=None, device="cpu")
    assert env.episode_length_buf.tolist() == [0] * 64
    runner.init_writter(init_at_random_ep_len=False)
    assert env.episode_length_buf.tolist() == [0] * 64
    runner.init_writer(True)
    assert env.episode_length_buf.dtype == torch.int64
    assert set(env.episode_length_buf.tolist()) == set(range(10))


def test_repositories_are_recorded_in_run_folder(tmp_path, config):
    repository = tmp_path / "st_gym"
    (repository / "source").mkdir(parents=True)
    (repository / "source" / "train.py").write_text("first\n")
    git = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@b"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *arguments], check=True)
    (repository / "source" / "train.py").write_text("second\n")
    runner = build_runner("OnPolicyRunner", ClientEnv(), config, log_dir=str(tmp_path / "run"), device="cpu")
    assert runner.git_status_repos == [st_rl.__file__]
    runner.add_git_repo_to_log(str(repository / "source" / "train.py"))
    runner.learn(1)
    assert "+second" in (tmp_path / "run" / "git" / "st_gym.diff").read_text()


@pytest.mark.parametrize("map_location", [None, "cpu", {"cuda:1": "cuda:0"}, {"cuda:0": "cpu"}])
def test_load_accepts_map_location(trained, tmp_path, config, map_location):
    runner = build_runner("OnPolicyRunner", ClientEnv(), config, log_dir=None, device="cpu")
    keywords = {} if map_location is None else {"map_location": map_location}
    assert runner.load(str(tmp_path / "model_2.pt"), **keywords) is None
    for name, value in trained.alg.actor_critic.state_dict().items():
        assert torch.equal(runner.alg.actor_critic.state_dict()[name], value)
    assert runner.current_learning_iteration == 2


class MetricWrapper(VecEnv):
    """A wrapper that copies the inner `__dict__` and has no metrics, like the client's evaluation wrapper."""

    def __init__(self, env: ClientEnv):
        for name, value in vars(env).items():
            if name not in ("tracking_error", "CoT"):
                setattr(self, name, value)
        self.inner = env
        self.num_envs, self.num_obs, self.num_actions = env.num_envs, env.num_obs, env.num_actions
        self.num_privileged_obs = env.num_privileged_obs

    def get_observations(self):
        return self.inner.get_observations()

    def reset(self):
        return self.inner.reset()

    def step(self, actions):
        return self.inner.step(actions)


def test_play_writes_nothing_and_needs_no_metrics(trained, tmp_path, config, monkeypatch):
    before = sorted(path for path in tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)
    env = MetricWrapper(ClientEnv(num_envs=3, seed=5))
    runner = OnPolicyRunner(env, config, log_dir=None, device="cpu")
    runner.load(str(tmp_path / "model_2.pt"))
    policy = runner.get_inference_policy(device="cpu")
    obs, _ = env.get_observations()
    with torch.inference_mode():
        for _ in range(12):
            actions = policy(obs)
            assert actions.shape == (3, 3)
            obs, _, dones, _ = env.step(actions)
            policy.reset(dones)
    velrmsd, cot = runner.learn(1)
    assert velrmsd.isnan().all()
    assert cot.isnan().all()
    assert runner.writer is None
    assert sorted(path for path in tmp_path.rglob("*")) == before


def test_inference_policy_acts_as_trained_and_resets_done_envs(trained, config):
    policy = trained.get_inference_policy(device="cpu")
    network, normalizer = trained.alg.actor_critic, trained.alg.obs_normalizer
    statistics = {name: value.clone() for name, value in normalizer.state_dict().items()}
    obs = 2.0 * torch.rand(4, 12) - 1.0
    with torch.inference_mode():
        first = policy(obs)
        second = policy(obs)
        policy.reset(torch.tensor([0, 1, 0, 1]))
        third = policy(obs)
    if network.is_recurrent:
        assert not torch.allclose(first, second)
        torch.testing.assert_close(third[1::2], first[1::2])
        assert not torch.allclose(third[::2], first[::2])
    else:
        assert torch.equal(first, second)
    policy.reset()
    with torch.inference_mode():
        torch.testing.assert_close(policy(obs), first)
    scaled = (obs - statistics["_mean"]) / (statistics["_std"] + 1e-2)
    network.clear_hidden_states()
    torch.testing.assert_close(network.act_inference(scaled), first)
    assert not network.training
    for name, value in normalizer.state_dict().items():
        assert torch.equal(value, statistics[name])


def test_attributes_read_by_exporter(trained, config):
    network = trained.alg.actor_critic
    is_recurrent = config["policy"]["class_name"] == "ActorCriticRecurrent"
    assert network.is_recurrent is is_recurrent
    assert network.rnn_type == "lstm"
    assert isinstance(network.actor, torch.nn.Sequential)
    assert network.actor[0].in_features == (16 if is_recurrent else 12)
    if is_recurrent:
        assert isinstance(network.memory_a.rnn, torch.nn.LSTM)
    twin = copy.deepcopy(network).cpu()
    with torch.inference_mode():
        network.clear_hidden_states()
        twin.clear_hidden_states()
        assert torch.equal(twin.act_inference(torch.ones(2, 12)), network.act_inference(torch.ones(2, 12)))
    assert trained.alg.obs_normalizer
    assert copy.deepcopy(trained.alg.obs_normalizer)(torch.ones(2, 12)).shape == (2, 12)
    plain = {**config, "empirical_normalization": False}
    identity = OnPolicyRunner(ClientEnv(), plain, log_dir=None).alg.obs_normalizer
    assert identity
    assert torch.equal(identity(torch.ones(2, 12)), torch.ones(2, 12))


def test_extras_are_copied_and_not_modified(config):
    env = ClientEnv()
    keys = {"log", "observations", "ref_motion", "time_outs"}
    log_keys = set(env.extras["log"])
    runner = build_runner("OnPolicyRunner", env, config, log_dir=None, device="cpu")
    collected = []
    collect = runner._collect_rollout
    runner._collect_rollout = lambda: collected.append(collect()) or collected[-1]
    runner.learn(1)
    assert set(env.extras) == keys
    assert set(env.extras["log"]) == log_keys
    ep_infos, _ = collected[0]
    # Every step has its own copy: the environment reuses one dictionary.
    assert len(ep_infos) == 8
    assert len({id(info) for info in ep_infos} | {id(env.extras["log"])}) == 9
    assert len({info["Metrics/velocity_error"] for info in ep_infos}) > 1


def test_int64_dones_reset_done_envs(config):
    env = ClientEnv(episode_length=4, termination_prob=0.0)
    runner = build_runner("OnPolicyRunner", env, config, log_dir=None, device="cpu")
    runner.learn(1)
    dones = runner.alg.storage.dones[:, :, 0]
    assert [row.all().item() for row in dones] == [False, False, False, True] * 2
    assert list(runner._episodes.lenbuffer) == [4.0] * 16


def test_run_files_read_by_client(trained, tmp_path):
    names = [path.name for path in tmp_path.iterdir()]
    assert [name for name in names if name.startswith("model_")] == ["model_2.pt"]
    loaded = load_checkpoint(tmp_path / "model_2.pt")
    assert loaded["iter"] == 2
    assert loaded["infos"] is None
    assert set(loaded) >= {"model_state_dict", "optimizer_state_dict", "rng_state_dict", "runner_state_dict"}
    assert set(loaded["obs_norm_state_dict"]) == {"_mean", "_var", "_std", "count"}
