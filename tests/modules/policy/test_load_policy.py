"""`load_policy` restores the trained policy from the run folder alone."""

import json
import sys

import pytest
import torch

from st_rl.modules import ActorCriticFieldMutex, EmpiricalNormalization, load_policy
from st_rl.runners import OnPolicyRunner
from st_rl.utils.files import save_checkpoint
from tests.fakes import EchoEnv
from tests.modules.mutex_runs import OBS, SEGMENTS, A, engaged, write_run
from tests.modules.policy_matrix import (
    CASES,
    NUM_ACTIONS,
    NUM_CRITIC_OBS,
    NUM_OBS,
    OPTIONS,
    critic_segments,
    observations,
    segments,
)
from tests.runners.training import recurrent, small_config

FAMILIES = {name: (name, options) for name, options in CASES}.values()
AMP = {"amp_discriminator": {"input_dim": 6, "style_reward_coef": 1.0, "hidden_dims": [4]}}
PLAIN = {
    "ActorCritic": {"class_name": "ActorCritic", "action_bound": 2.0},
    "ActorCriticRecurrent": recurrent("lstm"),
    "AmpActorCritic": {"class_name": "AmpActorCritic", **AMP},
    "mixins": {"class_name": "ActorCriticRecurrent", "rnn_hidden_size": 8, "mixins": ["DeterministicPolicyMixin"]},
}


class MatrixEnv(EchoEnv):
    """The observations of `policy_matrix`."""

    obs_segments = segments()
    critic_obs_segments = critic_segments()

    def __init__(self):
        super().__init__(num_obs=NUM_OBS, num_privileged_obs=NUM_CRITIC_OBS, num_actions=NUM_ACTIONS)
        vars(self).update(obs_segments=segments(), critic_obs_segments=critic_segments())


def train(folder, policy, **settings):
    config = small_config(policy, empirical_normalization=True, save_interval=1, **settings)
    runner = OnPolicyRunner(MatrixEnv(), config, log_dir=folder)
    runner.learn(1)
    runner.close()
    return runner


def assert_same_actions(loaded, expected, num_steps=4):
    """Both actions are bit-exact over several steps with a reset."""
    expected.reset()
    with torch.inference_mode():
        for step in range(num_steps):
            obs, _ = observations(6, seed=step)
            assert torch.equal(loaded(3.0 + obs), expected(3.0 + obs))
            dones = torch.arange(6) == step
            loaded.reset(dones)
            expected.reset(dones)


@pytest.mark.parametrize("policy", PLAIN.values(), ids=PLAIN)
def test_loaded_plain_policy_acts_as_in_runner(policy, tmp_path):
    runner = train(tmp_path, policy)
    loaded = load_policy(tmp_path)
    assert (loaded.iteration, loaded.checkpoint.name) == (1, "model_1.pt")
    assert_same_actions(loaded, runner.get_inference_policy())


@pytest.mark.parametrize(("name", "options"), FAMILIES)
def test_loaded_policy_with_segments_acts_as_in_runner(name, options, tmp_path):
    settings = {"rnn_hidden_size": 8} if name.endswith("Recurrent") else {}
    runner = train(tmp_path, {"class_name": name, **OPTIONS[name][options], **settings})
    loaded = load_policy(tmp_path)
    assert loaded.actor_critic.obs_segments == json.loads(json.dumps(segments()))
    assert_same_actions(loaded, runner.get_inference_policy())


def test_policy_is_frozen(tmp_path):
    train(tmp_path, {})
    loaded = load_policy(tmp_path)
    assert not any(parameter.requires_grad for parameter in loaded.actor_critic.parameters())
    assert not loaded.actor_critic.training
    before = loaded.obs_normalizer.state_dict()["count"].clone()
    loaded(torch.randn(3, NUM_OBS))
    assert loaded.obs_normalizer.state_dict()["count"] == before


def test_checkpoints_by_iteration_name_and_file(tmp_path):
    runner = train(tmp_path / "run", {})
    runner.save(tmp_path / "run" / "best.pt")
    runner.save(tmp_path / "elsewhere.pt")
    choices = {
        1: "model_1.pt",
        "best": "best.pt",
        "model_1.pt": "model_1.pt",
        tmp_path / "elsewhere.pt": "elsewhere.pt",
    }
    for choice, name in choices.items():
        assert load_policy(tmp_path / "run", choice).checkpoint.name == name
    with pytest.raises(FileNotFoundError, match=r"no checkpoint .*model_7\.pt; the folder .* holds .*model_1\.pt"):
        load_policy(tmp_path / "run", 7)


def test_run_without_sizes_asks_for_an_environment(tmp_path):
    runner = train(tmp_path, {"class_name": "StateAc", **OPTIONS["StateAc"]["replaces"]})
    config = json.loads((tmp_path / "config.json").read_text())
    del config["env"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"config.json: it lacks 'env'.*load_policy\(run, env=...\)"):
        load_policy(tmp_path)
    assert_same_actions(load_policy(tmp_path, env=MatrixEnv()), runner.get_inference_policy())


class TestFilesImportNothing:
    @pytest.fixture
    def own_module(self, tmp_path, monkeypatch):
        folder = tmp_path / "own"
        folder.mkdir()
        code = (
            "from st_rl.modules import ActorCritic, MlpModel\nclass Own(ActorCritic): ...\nclass Enc(MlpModel): ...\n"
        )
        (folder / "own_policies.py").write_text(code)
        monkeypatch.syspath_prepend(folder)
        monkeypatch.delitem(sys.modules, "own_policies", raising=False)
        return "own_policies"

    def test_rejects_class_path_in_run_folder(self, own_module, tmp_path):
        run = write_run(tmp_path / "run", 1, encoder_class_name=f"{own_module}:Enc")
        with pytest.raises(ValueError, match=r"config\.json names the encoder_class_name 'own_policies:Enc' by path"):
            load_policy(run)
        assert own_module not in sys.modules

    def test_accepts_class_path_from_python(self, own_module, tmp_path):
        run = write_run(tmp_path / "run", 1)
        config = json.loads((run / "config.json").read_text())
        config["policy"] |= {"class_name": f"{own_module}:Own", "num_actions": A}
        config["env"] = {"num_obs": OBS, "num_privileged_obs": None, "num_actions": A, "obs_segments": SEGMENTS}
        config["runner"]["policy_class_name"] = f"{own_module}:Own"
        (run / "config.json").write_text(json.dumps(config))
        with pytest.raises(ValueError, match=r"by path, and a file must not import code"):
            load_policy(run)
        assert own_module not in sys.modules
        loaded = load_policy(run, policy_class_name=f"{own_module}:Own")
        assert type(loaded.actor_critic).__name__ == "Own"

    def test_rejects_class_path_of_sub_policy(self, own_module, tmp_path):
        run = write_run(tmp_path / "run", 1, encoder_class_name=f"{own_module}:Enc")
        with pytest.raises(ValueError, match="must not import code"):
            ActorCriticFieldMutex(OBS, OBS, A, "ActorCritic", [run], obs_segments=SEGMENTS)
        assert own_module not in sys.modules


def test_loads_mutex_policy(tmp_path):
    runs = [str(write_run(tmp_path / name, seed, normalized=True)) for seed, name in enumerate("ab")]
    config = {
        "runner": {"policy_class_name": "ActorCriticFieldMutex"},
        "policy": {"sub_policy_class_name": "ActorCritic", "sub_policy_paths": runs},
        "env": {"num_obs": OBS, "num_privileged_obs": None, "num_actions": A, "obs_segments": SEGMENTS},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    policy = ActorCriticFieldMutex(OBS, OBS, A, "ActorCritic", runs, obs_segments=SEGMENTS)
    save_checkpoint({"model_state_dict": policy.state_dict(), "iter": 0}, tmp_path / "model_0.pt")
    loaded = load_policy(tmp_path)
    obs = engaged([0, 1, None, 1])
    assert torch.equal(loaded(obs), policy.act_inference(obs))
    assert isinstance(loaded.actor_critic.sub_normalizers[0], EmpiricalNormalization)
