"""Construction of TPPO: teacher, settings and observation normalization."""

import inspect
import os
import shutil

import pytest
import torch
from torch import nn

from st_rl.algorithms import TPPO
from st_rl.modules import ActorCritic, ActorCriticRecurrent, EmpiricalNormalization
from st_rl.utils.files import CheckpointError
from tests.algorithms.rollouts import CRITIC_DIM, NUM_ACTIONS, OBS_DIM, collect, make_policy, make_ppo, random_steps
from tests.algorithms.teachers import make_teacher, make_tppo, save_teacher, statistics


def test_documented_defaults():
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(TPPO.__init__).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    assert defaults == {
        "ppo": None, "teacher_policy_class_name": "ActorCritic", "teacher_policy": {}, "teacher_ac_path": None,
        "label_action_with_critic_obs": True, "teacher_act_prob": "exp", "update_times_scale": 100, "using_ppo": True,
        "distillation_loss_coef": 1.0, "distill_target": "real", "distill_latent_coef": 1.0,
        "distill_latent_target": "real", "distill_latent_obs_component_mapping": None, "buffer_dilation_ratio": 1.0,
        "lr_scheduler_class_name": None, "lr_scheduler": {}, "hidden_state_resample_prob": 0.0,
        "action_labels_from_sample": False,
    }  # fmt: skip


def test_every_argument_is_an_attribute():
    alg = TPPO(make_policy(), teacher_act_prob=0.25, update_times_scale=7, hidden_state_resample_prob=0.125)
    for name in inspect.signature(TPPO.__init__).parameters:
        if name not in ("self", "args", "kwargs"):
            assert hasattr(alg, name)
    assert alg.teacher_act_prob(1000) == 0.25
    assert (alg.update_times_scale, alg.hidden_state_resample_prob, alg.lr_scheduler) == (7, 0.125, None)
    assert isinstance(alg.teacher_actor_critic, ActorCritic)


def test_inner_ppo_settings_are_merged_and_top_level_takes_precedence(caplog):
    ppo = {"class_name": "APPO", "gamma": 0.9, "clip_param": 0.3, "lam": None, "desired_kl": None, "entropy_coef": 0.2}
    before = dict(ppo)
    alg = TPPO(make_policy(), ppo=ppo, clip_param=0.1)
    assert (alg.gamma, alg.clip_param, alg.lam, alg.entropy_coef) == (0.9, 0.1, 0.95, 0.2)
    assert alg.desired_kl is None
    assert ppo == before
    assert "unknown key" not in caplog.text
    with pytest.raises(ValueError, match="unknown key 'gama' for TPPO; did you mean 'gamma'"):
        TPPO(make_policy(), ppo={"gama": 0.9}, strict=True)


@pytest.mark.parametrize("settings", [{"strict": True}, {"ppo": {"strict": True}}])
def test_strict_applies_to_teacher_settings(settings):
    with pytest.raises(ValueError, match="'activaton' for ActorCritic; did you mean 'activation'"):
        TPPO(make_policy(), teacher_policy={"activaton": "elu"}, **settings)


def test_warns_about_untrained_teacher_without_path(caplog):
    TPPO(make_policy(), teacher_policy={"teacher_ac_path": None})
    assert "the teacher is untrained" in caplog.text


@pytest.mark.parametrize("kind", ["mlp", "lstm"])
def test_teacher_is_loaded_frozen_and_not_registered(tmp_path, kind):
    alg, teacher = make_tppo(tmp_path, teacher_kind=kind)
    obs = torch.randn(6, CRITIC_DIM)
    assert torch.equal(alg.teacher_actor_critic.act_inference(obs), teacher.act_inference(obs))
    alg.train_mode()
    assert not alg.teacher_actor_critic.training
    assert not any(parameter.requires_grad for parameter in alg.teacher_actor_critic.parameters())
    trained = {id(p) for group in alg.optimizer.param_groups for p in group["params"]}
    assert not trained & {id(p) for p in alg.teacher_actor_critic.parameters()}
    assert not any(name.startswith("teacher") for name, _ in alg.actor_critic.named_modules())
    assert set(alg.state_dict()) == {"model_state_dict", "optimizer_state_dict"}


def test_missing_teacher_settings_come_from_student():
    segments, critic_segments = {"a": 1, "b": 3}, {"a": 1, "b": 3, "c": 1}
    student = make_policy(obs_segments=segments, critic_obs_segments=critic_segments)
    teacher = TPPO(student, teacher_policy={"num_actor_obs": None}).teacher_actor_critic
    assert (teacher.num_actor_obs, teacher.num_critic_obs, teacher.num_actions) == (CRITIC_DIM, CRITIC_DIM, NUM_ACTIONS)
    assert teacher.obs_segments == teacher.critic_obs_segments == critic_segments
    teacher = TPPO(student, label_action_with_critic_obs=False).teacher_actor_critic
    assert (teacher.num_actor_obs, teacher.num_critic_obs) == (OBS_DIM, CRITIC_DIM)
    assert (teacher.obs_segments, teacher.critic_obs_segments) == (segments, critic_segments)
    given = TPPO(student, teacher_policy={"num_actor_obs": 9, "obs_segments": {"all": 9}}).teacher_actor_critic
    assert (given.num_actor_obs, given.obs_segments) == (9, {"all": 9})


def test_class_in_teacher_settings_takes_precedence():
    recurrent = {"class_name": "ActorCriticRecurrent", "rnn_type": "gru", "rnn_hidden_size": 4}
    alg = TPPO(make_policy(), teacher_policy_class_name="ActorCritic", teacher_policy=recurrent)
    assert isinstance(alg.teacher_actor_critic, ActorCriticRecurrent)
    alg = TPPO(make_policy(), teacher_policy_class_name="ActorCriticRecurrent", teacher_policy={"rnn_type": "gru"})
    assert isinstance(alg.teacher_actor_critic, ActorCriticRecurrent)
    with pytest.raises(ValueError, match="unknown teacher policy class 'ActorCritik'; did you mean 'ActorCritic'"):
        TPPO(make_policy(), teacher_policy_class_name="ActorCritik")


def test_path_accepts_variables_tilde_and_run_folder(tmp_path, monkeypatch):
    teacher, settings = make_teacher()
    save_teacher(tmp_path / "run" / "model_7.pt", teacher)
    shutil.copy(tmp_path / "run" / "model_7.pt", tmp_path / "run" / "model_12.pt")
    monkeypatch.setenv("TEACHERS", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in ("$TEACHERS/run/model_7.pt", "~/run/model_7.pt", os.path.join("$TEACHERS", "run")):
        for where in ({"teacher_policy": {**settings, "teacher_ac_path": path}},
                      {"teacher_policy": settings, "teacher_ac_path": path}):  # fmt: skip
            alg = TPPO(make_policy(), **where)
            assert torch.equal(alg.teacher_actor_critic.std, teacher.std)


def test_rejects_unusable_teachers(tmp_path):
    teacher, settings = make_teacher()
    path = save_teacher(tmp_path / "model_7.pt", teacher)
    with pytest.raises(FileNotFoundError, match=r"no checkpoint .*model_8\.pt"):
        TPPO(make_policy(), teacher_policy=settings, teacher_ac_path=str(tmp_path / "model_8.pt"))
    with pytest.raises(CheckpointError, match=r"does not fit the teacher ActorCritic: .*config.json"):
        TPPO(make_policy(), teacher_policy={"actor_hidden_dims": [99]}, teacher_ac_path=path)
    with pytest.raises(ValueError, match="the teacher has 5 actions and the student 2"):
        TPPO(make_policy(), teacher_policy={"num_actions": 5})
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"holds no model_\*\.pt"):
        TPPO(make_policy(), teacher_ac_path=str(tmp_path / "empty"))


def test_rejects_unknown_and_contradicting_settings():
    with pytest.raises(ValueError, match="unknown distill_target 'mse'"):
        TPPO(make_policy(), distill_target="mse")
    with pytest.raises(ValueError, match="unknown distill_latent_target 'kl'"):
        TPPO(make_policy(), distill_latent_target="kl")
    with pytest.raises(ValueError, match="would both set the learning rate"):
        TPPO(make_policy(), schedule="adaptive", lr_scheduler_class_name="StepLR", lr_scheduler={"step_size": 1})
    with pytest.raises(ValueError, match="unknown lr_scheduler_class_name 'StepLr'; did you mean 'StepLR'"):
        TPPO(make_policy(), lr_scheduler_class_name="StepLr")
    with pytest.raises(ValueError, match="needs a student with encoders"):
        TPPO(make_policy(), distill_latent_obs_component_mapping={"a": "b"})
    with pytest.raises(ValueError, match="unknown schedule 'cosine'"):
        TPPO(make_policy(), teacher_act_prob="cosine")


# ---- normalization of the teacher's observations -----------------------------------------------------------------


@pytest.mark.parametrize("empirical_normalization", [True, False])
@pytest.mark.parametrize("sees_critic_obs", [True, False])
def test_teacher_keeps_its_own_normalizer(tmp_path, caplog, sees_critic_obs, empirical_normalization):
    num_obs = CRITIC_DIM if sees_critic_obs else OBS_DIM
    normalizer = statistics(3.0 + 2.0 * torch.randn(50, num_obs))
    alg, teacher = make_tppo(
        tmp_path,
        normalizer=normalizer,
        sees_critic_obs=sees_critic_obs,
        empirical_normalization=empirical_normalization,
        teacher_act_prob=0.0,
    )
    stream, other = "critic_obs", "obs"
    if not sees_critic_obs:
        stream, other = other, stream
    frozen, own = getattr(alg, f"{stream}_normalizer"), getattr(alg, f"{other}_normalizer")
    assert f"{stream} are normalized with the frozen statistics of the teacher" in caplog.text
    assert isinstance(own, EmpiricalNormalization if empirical_normalization else nn.Identity)
    alg.train_mode()
    for step in random_steps(6, 5):
        frozen(step[stream])
        own(step[other])
    for name, value in normalizer.state_dict().items():
        assert torch.equal(frozen.state_dict()[name], value)
    if empirical_normalization:
        assert own.count == 36
    # Labels are teacher actions on observations normalized as in its own training.
    step = random_steps(6, 1)[0]
    alg.act(alg.obs_normalizer(step["obs"]), alg.critic_obs_normalizer(step["critic_obs"]))
    expected = teacher.act_inference(normalizer.normalize(step[stream]))
    torch.testing.assert_close(alg.transition.action_labels, expected)
    assert set(alg.state_dict()) >= {f"{stream}_norm_state_dict"}


def test_loaded_checkpoint_does_not_change_teacher_normalizer(tmp_path, caplog):
    """A student pretrained with PPO has its own statistics, which the teacher must not use."""
    normalizer = statistics(3.0 + 2.0 * torch.randn(50, CRITIC_DIM))
    alg, _ = make_tppo(tmp_path, normalizer=normalizer, empirical_normalization=True)
    alg.load_state_dict(alg.state_dict())
    assert "is not loaded" not in caplog.text
    before = make_ppo(empirical_normalization=True)
    for stream, width in (("obs", OBS_DIM), ("critic_obs", CRITIC_DIM)):
        getattr(before, f"{stream}_normalizer")(torch.randn(40, width))
    alg.load_state_dict(before.state_dict())
    assert torch.equal(alg.obs_normalizer.mean, before.obs_normalizer.mean)
    assert torch.equal(alg.critic_obs_normalizer.mean, normalizer.mean)
    assert "'critic_obs_norm_state_dict' of the checkpoint is not loaded: the teacher's statistics stay" in caplog.text


def test_teacher_without_statistics_gets_raw_observations(tmp_path, caplog):
    alg, _ = make_tppo(tmp_path, empirical_normalization=True)
    assert isinstance(alg.critic_obs_normalizer, nn.Identity)
    assert isinstance(alg.obs_normalizer, EmpiricalNormalization)
    assert "the teacher was trained without normalization: critic_obs are not normalized" in caplog.text


def test_rejects_teacher_statistics_of_other_width(tmp_path):
    with pytest.raises(ValueError, match="the teacher was trained on 9 observations, the critic_obs here have 5"):
        make_tppo(tmp_path, normalizer=statistics(torch.randn(20, 9)), empirical_normalization=True)


@pytest.mark.parametrize(("sees_critic_obs", "stream"), [(True, "critic_observations"), (False, "observations")])
def test_rejects_teacher_of_other_width_before_acting(sees_critic_obs, stream):
    with pytest.raises(
        ValueError, match=rf"the teacher takes 9 observations, the {stream} here have [45]; check label_action"
    ):
        make_ppo(algorithm=TPPO, label_action_with_critic_obs=sees_critic_obs, teacher_policy={"num_actor_obs": 9})


@pytest.mark.parametrize("separate", [True, False])
def test_storage_decides_which_normalizer_is_frozen(tmp_path, separate):
    """Only the storage knows whether a critic observation of the actor's width is a separate one."""
    teacher, settings = make_teacher(num_obs=OBS_DIM)
    teacher = ActorCritic(OBS_DIM, OBS_DIM, NUM_ACTIONS, **{k: v for k, v in settings.items() if k != "class_name"})
    path = save_teacher(tmp_path / "model_1.pt", teacher, statistics(torch.randn(20, OBS_DIM)))
    policy = make_policy(num_critic_obs=OBS_DIM)
    alg = TPPO(policy, teacher_policy=settings, teacher_ac_path=path, empirical_normalization=True)
    alg.init_obs_norm(OBS_DIM, OBS_DIM)
    alg.init_storage(6, 5, [OBS_DIM], [OBS_DIM] if separate else [None], [NUM_ACTIONS])
    alg.train_mode()
    assert alg.critic_obs_normalizer.training is not separate
    assert alg.obs_normalizer.training is separate


def test_teacher_gets_actor_observation_without_critic_observation(tmp_path):
    alg = make_ppo(algorithm=TPPO, separate_critic=False, teacher_policy={"actor_hidden_dims": [7]})
    steps = [{**step, "critic_obs": step["obs"]} for step in random_steps(6, 5)]
    collect(alg, steps)
    expected = alg.teacher_actor_critic.act_inference(steps[0]["obs"])
    torch.testing.assert_close(alg.storage.action_labels[0], expected)
