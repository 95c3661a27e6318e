"""`ActorCriticMutex`: pretrained policies from run folders."""

import copy
import json
import logging

import pytest
import torch

from st_rl.modules import ActorCritic, ActorCriticMutex, build_actor_critic
from tests.modules.mutex_runs import OBS, SEGMENTS, A, write_run


class Env:
    """The attributes of an environment that building a policy reads."""

    num_obs, num_privileged_obs, num_actions, obs_segments = OBS, None, A, SEGMENTS


def make(paths, class_name="ActorCritic", **kwargs):
    return ActorCriticMutex(OBS, OBS, A, class_name, paths, obs_segments=SEGMENTS, **kwargs)


def test_loads_highest_numbered_checkpoint_of_each_folder(tmp_path):
    write_run(tmp_path / "a", seed=1, iteration=999999)
    write_run(tmp_path / "a", seed=2, iteration=1000000)
    for name in ("model_best.pt", "old_model_2000000.pt", "model_3000000.pt.tmp"):
        (tmp_path / "a" / name).write_text("not a snapshot")
    newest = torch.load(tmp_path / "a" / "model_1000000.pt", weights_only=True)["model_state_dict"]
    policy = make([tmp_path / "a"])
    assert {key: value.tolist() for key, value in policy.submodules[0].state_dict().items()} == {
        key: value.tolist() for key, value in newest.items()
    }


def test_keys_and_attributes(tmp_path):
    write_run(tmp_path / "a", 1, scale=0.25)
    write_run(tmp_path / "b", 2, scale=[0.1, 0.2, 0.4])
    policy = make([tmp_path / "a", str(tmp_path / "b")], env_action_scale=[0.5, 0.25, 1.0])
    assert isinstance(policy, ActorCritic)
    assert set(policy.state_dict()) == {
        "env_action_scale",
        "subpolicy_action_scale_0",
        "subpolicy_action_scale_1",
        *(f"submodules.{i}.{key}" for i in (0, 1) for key in policy.submodules[0].state_dict()),
    }
    assert policy.subpolicy_action_scale_0.shape == ()
    assert policy.subpolicy_action_scale_1.tolist() == pytest.approx([0.1, 0.2, 0.4])
    assert policy.env_action_scale.tolist() == [0.5, 0.25, 1.0]
    assert make([tmp_path / "a"]).env_action_scale == 0.5
    assert (policy.num_actor_obs, policy.num_critic_obs, policy.num_actions) == (OBS, OBS, A)
    assert policy.obs_segments is SEGMENTS
    assert policy.privileged_obs_segments is policy.critic_obs_segments is SEGMENTS
    assert policy.rnn_type is None
    assert policy.get_hidden_states() is None


def test_recurrent_if_any_sub_policy_is(tmp_path):
    write_run(tmp_path / "a", 1, "ActorCriticRecurrent", rnn_type="gru", rnn_hidden_size=6)
    assert make([tmp_path / "a"], "ActorCriticRecurrent").is_recurrent is True
    write_run(tmp_path / "b", 1)
    assert make([tmp_path / "b"]).is_recurrent is False
    assert ActorCriticMutex.is_recurrent is False


def test_reset_reaches_every_sub_policy(tmp_path):
    folders = [write_run(tmp_path / name, 1, "ActorCriticRecurrent", rnn_type="gru") for name in "ab"]
    policy = make(folders, "ActorCriticRecurrent")
    for sub_policy in policy.submodules:
        sub_policy.act_inference(torch.randn(4, OBS))
    policy.reset(torch.tensor([0, 1, 0, 1]))
    for sub_policy in policy.submodules:
        assert sub_policy.memory_a.hidden_states[0].abs().sum(dim=1).gt(0).tolist() == [True, False, True, False]
    policy.reset()
    assert all(sub_policy.memory_a.hidden_states.eq(0).all() for sub_policy in policy.submodules)


def test_act_and_evaluate_are_for_subclasses(tmp_path):
    policy = make([write_run(tmp_path / "a", 1)])
    for method in (policy.act, policy.act_inference, policy.evaluate):
        with pytest.raises(NotImplementedError):
            method(torch.zeros(2, OBS))


@pytest.mark.parametrize("paths", [None, []])
def test_no_paths_warn_and_give_no_sub_policies(paths, caplog):
    with caplog.at_level(logging.WARNING, logger="st_rl"):
        policy = make(paths)
    assert len(policy.submodules) == 0
    assert "no sub_policy_paths" in caplog.text


def test_sub_policies_and_their_statistics_are_frozen(tmp_path):
    policy = make([write_run(tmp_path / "a", 1, normalized=True)]).train()
    assert not any(parameter.requires_grad for parameter in policy.parameters())
    before = policy.sub_normalizers[0].state_dict()["count"].clone()
    policy.sub_normalizers[0](torch.randn(5, OBS))
    assert policy.sub_normalizers[0].count == before
    assert policy.training
    assert not policy.submodules[0].training


def test_is_registered_copyable_and_loadable(tmp_path):
    folder = write_run(tmp_path / "a", 1, scale=0.3, normalized=True)

    cfg = {"sub_policy_class_name": "ActorCritic", "sub_policy_paths": [str(folder)], "init_noise_std": 0.4}
    policy = build_actor_critic(Env(), "ActorCriticMutex", cfg)
    other = make([write_run(tmp_path / "b", 2, scale=0.9, normalized=True)])
    other.load_state_dict(copy.deepcopy(policy).state_dict())
    assert other.subpolicy_action_scale_0 == policy.subpolicy_action_scale_0
    assert cfg["sub_policy_paths"] == [str(folder)]


def test_loads_run_of_configured_mixins(tmp_path):
    settings = {"mixins": ["EncoderActorCriticMixin"], "encoder_component_names": ["height"], "encoder_output_size": 3}
    (sub_policy,) = make([write_run(tmp_path / "a", 1, **settings)]).submodules
    saved = torch.load(tmp_path / "a" / "model_7.pt", weights_only=True)["model_state_dict"]
    assert torch.equal(sub_policy.encoders[0].model[0].weight, saved["encoders.0.model.0.weight"])


def test_accepts_single_path_with_tilde(tmp_path, monkeypatch):
    folder = write_run(tmp_path / "a", 1)
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in (folder, str(folder), "~/a"):
        assert len(make(path).submodules) == 1


class TestBadInput:
    def test_rejects_folder_without_checkpoint(self, tmp_path):
        folder = write_run(tmp_path / "a", 1)
        (folder / "model_7.pt").unlink()
        with pytest.raises(FileNotFoundError, match=r"a has no checkpoint \(model_\*\.pt\): let its training"):
            make([folder])

    def test_rejects_folder_without_configuration(self, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"has no config\.json: name a run folder"):
            make([tmp_path])

    def test_rejects_damaged_configuration(self, tmp_path):
        folder = write_run(tmp_path / "a", 1)
        (folder / "config.json").write_text("{")
        with pytest.raises(ValueError, match=r"config\.json: it is not JSON"):
            make([folder])

    def test_rejects_configuration_without_action_scale(self, tmp_path):
        folder = write_run(tmp_path / "a", 1, scale=None)
        assert "control" not in json.loads((folder / "config.json").read_text())
        with pytest.raises(ValueError, match=r"lacks control\.action_scale"):
            make([folder])

    def test_rejects_checkpoint_without_weights(self, tmp_path):
        folder = write_run(tmp_path / "a", 1)
        torch.save({"iter": 8}, folder / "model_8.pt")
        with pytest.raises(ValueError, match=r"model_8\.pt has no 'model_state_dict'"):
            make([folder])

    @pytest.mark.parametrize("name", ["ActorCriticMutex", "ActorCriticFieldMutex", "ActorCriticClimbMutex"])
    @pytest.mark.parametrize("given", [{}, {"sub_policy_class_name": None}])
    def test_rejects_configuration_without_sub_policy_class(self, name, given, tmp_path):
        cfg = {**given, "sub_policy_paths": [str(tmp_path)]}
        with pytest.raises(
            TypeError, match=rf'^{name} needs sub_policy_class_name.*write "sub_policy_class_name": "Act'
        ):
            build_actor_critic(Env(), name, cfg)

    @pytest.mark.parametrize("given", [{}, {"sub_policy_paths": None}])
    def test_rejects_configuration_without_paths_with_hint(self, given, caplog):
        policy = build_actor_critic(Env(), "ActorCriticFieldMutex", {"sub_policy_class_name": "ActorCritic", **given})
        assert len(policy.submodules) == 0
        assert 'got no sub_policy_paths: it has no policy to choose from. Write "sub_policy_paths": [' in caplog.text

    def test_rejects_unknown_class(self, tmp_path):
        folder = write_run(tmp_path / "a", 1)
        with pytest.raises(ValueError, match=r"unknown sub_policy_class_name 'ActorCritc'; did you mean 'ActorCritic'"):
            make([folder], "ActorCritc")

    def test_rejects_policy_of_other_sizes(self, tmp_path):
        folder = write_run(tmp_path / "a", 1)
        with pytest.raises(ValueError, match=r"model_7\.pt does not fit ActorCritic with 28 observations"):
            ActorCriticMutex(OBS + 1, OBS, A, "ActorCritic", [folder])
