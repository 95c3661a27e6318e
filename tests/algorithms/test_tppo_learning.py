"""TPPO training: labels, teacher actions, recorded transitions, losses and schedules."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from st_rl import modules
from st_rl.algorithms import TPPO
from st_rl.algorithms.distillation import vector_distance
from st_rl.algorithms.tppo import GET_PROB_FUNC
from st_rl.modules import LstmHiddenState
from tests.algorithms.rollouts import (
    CRITIC_DIM,
    NUM_ACTIONS,
    OBS_DIM,
    assert_same_parameters,
    collect,
    make_ppo,
    parameters_of,
    random_steps,
)
from tests.algorithms.teachers import make_tppo, statistics

KINDS = ["mlp", "gru", "lstm"]


def first_mini_batch(alg):
    return next(iter(alg._mini_batches()))


def replayed_labels(teacher, steps, key="critic_obs"):
    """Teacher actions `(T, N, A)` along a rollout, with hidden states cleared at episode ends."""
    labels = []
    for step in steps[:-1]:
        labels.append(teacher.act_inference(step[key]).detach())
        teacher.reset(step["dones"])
    return torch.stack(labels)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("teacher_kind", ["mlp", "lstm"])
def test_labels_are_teacher_mean_actions(tmp_path, kind, teacher_kind):
    alg, teacher = make_tppo(tmp_path, kind, teacher_kind, teacher_act_prob=0.5)
    steps = random_steps(6, 5)
    collect(alg, steps)
    torch.testing.assert_close(alg.storage.action_labels, replayed_labels(teacher, steps))


def test_labels_can_be_sampled(tmp_path):
    alg, teacher = make_tppo(tmp_path, action_labels_from_sample=True, teacher_act_prob=0.0)
    steps = random_steps(6, 5)
    collect(alg, steps)
    noise = (alg.storage.action_labels - replayed_labels(teacher, steps)) / teacher.std.detach()
    assert 0.7 < noise.std() < 1.3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prob", [0.0, 0.5, 1.0])
def test_ratio_is_one_for_student_and_teacher_actions(tmp_path, kind, prob):
    """Before the first update, stored log-probabilities are the student's for the executed actions."""
    alg, _ = make_tppo(tmp_path, kind, teacher_act_prob=prob)
    torch.manual_seed(1)
    masks = []
    collect(alg, random_steps(6, 5), on_step=lambda step, actions: masks.append(alg.use_teacher_act_mask.clone()))
    storage = alg.storage
    driven = torch.stack(masks)
    assert driven.float().mean() == prob or prob == 0.5
    is_label = (storage.actions == storage.action_labels).all(-1)
    assert torch.equal(is_label, driven)
    _, inter_vars, _ = alg.compute_losses(first_mini_batch(alg))
    ratio = inter_vars["ratio"]
    assert ratio.numel() == 30
    torch.testing.assert_close(ratio, torch.ones_like(ratio), rtol=0, atol=2e-6)


def test_teacher_or_student_acts_for_whole_episodes(tmp_path):
    alg, _ = make_tppo(tmp_path, num_envs=400, teacher_act_prob=lambda iteration: 0.2 if iteration < 5 else 0.9)
    torch.manual_seed(0)
    steps = random_steps(400, 5, done_prob=0.3)
    with torch.inference_mode():
        alg.act(steps[0]["obs"], steps[0]["critic_obs"])
        first = alg.use_teacher_act_mask.clone()
        assert first.dtype == torch.bool
        assert 0.13 < first.float().mean() < 0.27
        alg.current_learning_iteration = 5
        alg.process_env_step(steps[0]["rewards"], steps[0]["dones"], {})
    finished = steps[0]["dones"] > 0
    assert torch.equal(alg.use_teacher_act_mask[~finished], first[~finished])
    assert 0.8 < alg.use_teacher_act_mask[finished].float().mean() < 1.0


@pytest.mark.parametrize("rule", [0.9, lambda iteration: 0.3 * iteration, "linear"])
def test_teacher_act_prob_can_change_during_training(tmp_path, monkeypatch, rule):
    alg, _ = make_tppo(tmp_path, num_envs=400, teacher_act_prob=0.2, update_times_scale=30)
    steps = random_steps(400, 5, done_prob=1.0)
    with monkeypatch.context() as changed:
        alg.current_learning_iteration = 3
        changed.setattr(alg, "teacher_act_prob", rule)
        assert alg.teacher_act_prob(3) == pytest.approx(0.9)
        alg.act(steps[0]["obs"], steps[0]["critic_obs"])
        assert 0.8 < alg.use_teacher_act_mask.float().mean() < 1.0
    alg.process_env_step(steps[0]["rewards"], steps[0]["dones"], {})
    assert 0.13 < alg.use_teacher_act_mask.float().mean() < 0.27
    alg.current_learning_iteration = 0
    assert float(alg.teacher_act_prob.value) == pytest.approx(0.2)


@pytest.mark.parametrize("option", ["linear", "exp", "tanh"])
def test_schedules_follow_iteration(option):
    alg = make_ppo(algorithm=TPPO, teacher_act_prob=option, distillation_loss_coef=option, update_times_scale=4)
    rule = GET_PROB_FUNC(option, 4)
    for iteration in (0, 1, 3, 9):
        alg.current_learning_iteration = iteration
        assert float(alg.teacher_act_prob.value) == pytest.approx(rule(iteration))
        assert float(alg.distillation_loss_coef) == pytest.approx(rule(iteration))
    collect(alg, random_steps(6, 5))
    losses, _ = alg.update(2)
    assert float(alg.distillation_loss_coef) == pytest.approx(rule(2))
    expected = losses["surrogate_loss"] + losses["value_loss"] + rule(2) * losses["distillation_loss"]
    assert float(losses["total_loss"]) == pytest.approx(float(expected), rel=1e-5)
    # A scheduled coefficient does not change the capture key; one set by the user does.
    assert "distillation_loss_coef" not in dict(alg._settings())
    assert dict(make_ppo(algorithm=TPPO, distillation_loss_coef=2)._settings())["distillation_loss_coef"] == 2.0


# ---- recorded transitions ----------------------------------------------------------------------------------------


def recorded(step, following):
    """A transition of a dataset, with an action that neither student nor teacher would take."""
    torch.manual_seed(int(1000 * float(step["rewards"].abs().sum())))
    return SimpleNamespace(
        observation=step["obs"],
        privileged_observation=step["critic_obs"],
        action=3.0 + torch.randn(6, NUM_ACTIONS),
        reward=step["rewards"],
        done=step["dones"] > 0,
        timeout=torch.zeros(6, dtype=torch.bool),
        next_observation=following["obs"],
        next_privileged_observation=following["critic_obs"],
    )


@pytest.mark.parametrize("kind", KINDS)
def test_recorded_transitions_keep_their_actions(tmp_path, kind):
    alg, _ = make_tppo(tmp_path, kind, normalizer=statistics(torch.randn(30, CRITIC_DIM)), empirical_normalization=True)
    alg.obs_normalizer(2.0 + torch.randn(40, OBS_DIM))
    before = {name: value.clone() for name, value in alg.obs_normalizer.state_dict().items()}
    steps = random_steps(6, 5)
    transitions = [recorded(step, following) for step, following in pairwise(steps)]
    with torch.inference_mode():
        for transition in transitions:
            alg.collect_transition_from_dataset(transition, {"time_outs": transition.timeout})
        alg.compute_returns(alg.critic_obs_normalizer(steps[-1]["critic_obs"]))
    storage = alg.storage
    actions = torch.stack([transition.action for transition in transitions])
    assert torch.equal(storage.actions, actions)
    assert torch.equal(storage.action_labels, actions)
    for name, value in before.items():
        assert torch.equal(alg.obs_normalizer.state_dict()[name], value)
    seen = alg.obs_normalizer.normalize(torch.stack([step["obs"] for step in steps[:-1]]))
    torch.testing.assert_close(storage.observations, seen)
    seen = alg.critic_obs_normalizer(torch.stack([step["critic_obs"] for step in steps[:-1]]))
    torch.testing.assert_close(storage.critic_observations, seen)
    _, inter_vars, _ = alg.compute_losses(first_mini_batch(alg))
    torch.testing.assert_close(inter_vars["ratio"], torch.ones_like(inter_vars["ratio"]), rtol=0, atol=1e-5)
    losses, _ = alg.update(0)
    assert torch.isfinite(losses["total_loss"])


def test_recorded_time_outs_are_bootstrapped(tmp_path):
    alg, _ = make_tppo(tmp_path)
    steps = random_steps(6, 1)
    transition = recorded(*steps)
    transition.timeout = torch.tensor([True, False] * 3)
    with torch.inference_mode():
        alg.collect_transition_from_dataset(transition, {"time_outs": transition.timeout})
    values = alg.actor_critic.evaluate(steps[0]["critic_obs"]).squeeze(-1)
    expected = steps[0]["rewards"] + torch.where(transition.timeout, 0.998 * values, 0.0)
    torch.testing.assert_close(alg.storage.rewards[0, :, 0], expected.detach())


# ---- losses ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("using_ppo", [True, False])
def test_distillation_loss_is_mean_over_all_steps(tmp_path, kind, using_ppo):
    alg, _ = make_tppo(tmp_path, kind, using_ppo=using_ppo, distill_target="mse_sum", teacher_act_prob=0.3)
    steps = random_steps(6, 5)
    collect(alg, steps)
    # Recorded means are those of the current weights before the first update.
    gaps = alg.storage.mu - alg.storage.action_labels
    losses, inter_vars, _ = alg.compute_losses(first_mini_batch(alg))
    expected = sum(float((gaps[t, n] ** 2).sum()) for t in range(5) for n in range(6)) / 30
    assert float(losses["distillation_loss"].detach()) == pytest.approx(expected, rel=1e-5)
    assert set(losses) == {"distillation_loss", *(["surrogate_loss", "value_loss", "entropy"] if using_ppo else [])}
    assert bool(inter_vars) is using_ppo


def test_bounded_targets_log_their_distance(tmp_path):
    alg, _ = make_tppo(tmp_path, distill_target="tanh")
    collect(alg, random_steps(6, 5))
    _, stats = alg.update(0)
    assert set(stats) == {"l1distance", "l1_before_tanh"}


def test_kl_uses_teacher_std_with_minimum(tmp_path):
    alg, teacher = make_tppo(tmp_path, distill_target="kl")
    collect(alg, random_steps(6, 5))
    losses, _, _ = alg.compute_losses(first_mini_batch(alg))
    normal, storage = torch.distributions.Normal, alg.storage
    expected = torch.distributions.kl_divergence(
        normal(storage.action_labels, teacher.std.detach()), normal(storage.mu, storage.sigma)
    )
    assert float(losses["distillation_loss"].detach()) == pytest.approx(float(expected.sum(-1).mean()), rel=1e-5)
    certain = TPPO(alg.actor_critic, distill_target="kl", teacher_policy={"init_noise_std": 0.0})
    assert torch.equal(certain._teacher_std, torch.full((NUM_ACTIONS,), 1e-3))


@pytest.mark.parametrize("target", ["real", "max_log_prob"])
def test_loss_of_bounded_student_compares_squashed_actions(target):
    policy = modules.ActorCritic(OBS_DIM, CRITIC_DIM, NUM_ACTIONS, actor_hidden_dims=[8], action_bound=2.0)
    alg = make_ppo(policy=policy, algorithm=TPPO, distill_target=target, teacher_policy={"action_bound": 2.0})
    collect(alg, random_steps(6, 5))
    storage = alg.storage
    losses, _, _ = alg.compute_losses(first_mini_batch(alg))
    mean, std, labels = storage.mu.double(), storage.sigma.double(), storage.action_labels.double()
    expected = (2.0 * torch.tanh(mean) - labels).norm(dim=-1)
    if target == "max_log_prob":
        before = torch.atanh(labels / 2.0)
        slope = torch.log(2.0 * (1.0 - torch.tanh(before) ** 2))
        expected = -(torch.distributions.Normal(mean, std).log_prob(before) - slope).sum(-1)
    assert float(losses["distillation_loss"].detach()) == pytest.approx(float(expected.mean()), rel=1e-4)
    with pytest.raises(ValueError, match="'kl' compares two Gaussians"):
        make_ppo(policy=policy, algorithm=TPPO, distill_target="kl")


@pytest.mark.parametrize(
    ("target", "bound"), [("real", None), ("kl", None), ("max_log_prob", None), ("max_log_prob", 2.0)]
)
def test_mirrored_samples_have_no_labels(target, bound):
    policy = modules.ActorCritic(
        OBS_DIM, CRITIC_DIM, NUM_ACTIONS, actor_hidden_dims=[8], action_bound=bound,
        obs_segments={"command": 2, "joints": 2}, critic_obs_segments={"command": 2, "joints": 2, "height": 1},
    )  # fmt: skip
    kinds = {"command": "scalar", "joints": "joints"}
    symmetry = {"joint_names": ["left_hip", "right_hip"], "obs": kinds, "critic_obs": {**kinds, "height": "scalar"}}
    alg = make_ppo(policy=policy, algorithm=TPPO, distill_target=target, symmetry_cfg=symmetry)
    collect(alg, random_steps(6, 5))
    batch = first_mini_batch(alg)
    mirrored = alg.compute_losses(batch)[0]["distillation_loss"]
    alg.symmetry = None
    torch.testing.assert_close(mirrored, alg.compute_losses(batch)[0]["distillation_loss"])


def test_without_ppo_losses_only_actor_is_trained(tmp_path):
    alg, _ = make_tppo(tmp_path, using_ppo=False, learning_rate=1e-2)
    before = parameters_of(alg)
    collect(alg, random_steps(6, 5))
    assert not alg.storage.returns.any()
    alg.update(0)
    changed = {name for name, value in parameters_of(alg).items() if not torch.equal(value, before[name])}
    assert changed == {name for name in before if name.startswith("actor.")}


@pytest.mark.parametrize("kind", ["gru", "lstm", "lstm2"])
def test_hidden_state_resample_prob_replaces_whole_trajectories(tmp_path, kind):
    alg, _ = make_tppo(tmp_path, kind, num_envs=60, hidden_state_resample_prob=0.4)
    for _ in range(2):
        collect(alg, random_steps(60, 5))
    hidden = first_mini_batch(alg).hidden_states
    torch.manual_seed(0)
    drawn = alg._resampled(hidden)
    assert type(drawn) is type(hidden)
    assert isinstance(drawn.actor, LstmHiddenState) is (kind != "gru")
    pairs = [
        (old, new)
        for part in ("actor", "critic")
        for old, new in zip(*map(_leaves, (getattr(hidden, part), getattr(drawn, part))))
    ]
    chosen = [(old != new).any(dim=(0, 2)) for old, new in pairs]
    # One choice for all leaves of a trajectory; all values of a chosen one are replaced.
    for (old, new), columns in zip(pairs, chosen):
        assert torch.equal(columns, chosen[0])
        assert (old != new)[:, columns].all()
        assert torch.equal(old[:, ~columns], new[:, ~columns])
        fresh = new[:, columns]
        assert fresh.abs().max() <= 1.0
        assert fresh.mean().abs() < 0.1
        assert fresh.std() == pytest.approx(1 / 3**0.5, rel=0.1)
    assert 0.25 < chosen[0].float().mean() < 0.55
    losses, _ = alg.update(0)
    assert torch.isfinite(losses["total_loss"])


def _leaves(state):
    return list(state) if isinstance(state, tuple) else [state]


ENCODED = {
    "obs_segments": {"blind": 1, "seen": 3},
    "critic_obs_segments": {"truth": 2, "rest": 3},
    "encoder_kwargs": {"hidden_sizes": [4]},
    "encoder_output_size": 3,
    "actor_hidden_dims": [8],
    "critic_hidden_dims": [8],
}


@pytest.mark.parametrize("sees_critic_obs", [True, False])
@pytest.mark.parametrize("kind", ["EncoderActorCritic", "EncoderActorCriticRecurrent"])
@pytest.mark.parametrize("target", ["real", "l1", "tanh", "scaled_tanh"])
def test_latent_loss_trains_student_towards_teacher(target, kind, sees_critic_obs):
    torch.manual_seed(2)
    student = getattr(modules, kind)(
        OBS_DIM, CRITIC_DIM, NUM_ACTIONS, encoder_component_names=["seen"], rnn_hidden_size=6, **ENCODED
    )
    component = "truth" if sees_critic_obs else "seen"
    teacher_policy = {"class_name": "EncoderActorCritic", "encoder_component_names": [component]}
    teacher_policy |= {key: value for key, value in ENCODED.items() if not key.endswith("segments")}
    alg = make_ppo(
        policy=student,
        algorithm=TPPO,
        using_ppo=False,
        teacher_policy=teacher_policy,
        label_action_with_critic_obs=sees_critic_obs,
        distill_latent_obs_component_mapping={"seen": component},
        distill_latent_target=target,
        distill_latent_coef=0.3,
    )
    assert alg.distill_latent_seen_coef == alg.distill_latent_coef == 0.3
    alg.distill_latent_coef = 0.6
    assert alg.distill_latent_seen_coef == alg.distill_latent_coef == 0.6
    collect(alg, random_steps(6, 5))
    storage, teacher = alg.storage, alg.teacher_actor_critic
    latent = student.encoders[0](storage.observations[..., 1:4])
    source = storage.critic_observations[..., :2] if sees_critic_obs else storage.observations[..., 1:4]
    expected = vector_distance(target, latent, teacher.encoders[0](source)).mean()
    losses, _, _ = alg.compute_losses(first_mini_batch(alg))
    assert set(losses) == {"distillation_loss", "distill_latent_seen"}
    torch.testing.assert_close(losses["distill_latent_seen"], expected, rtol=1e-5, atol=1e-6)
    losses["distill_latent_seen"].backward()
    reached = {name for name, parameter in student.named_parameters() if parameter.grad is not None}
    assert reached == {name for name, _ in student.named_parameters() if name.startswith("encoders.")}
    assert all(parameter.grad is None for parameter in teacher.parameters())


def test_rejects_incompatible_latents():
    student = modules.EncoderActorCritic(OBS_DIM, CRITIC_DIM, NUM_ACTIONS, encoder_component_names=["seen"], **ENCODED)
    teacher = {**ENCODED, "class_name": "EncoderActorCritic", "encoder_component_names": ["truth"]}
    teacher = {key: value for key, value in teacher.items() if not key.endswith("segments")}
    mapping = {"distill_latent_obs_component_mapping": {"seen": "truth"}}
    with pytest.raises(ValueError, match=r"the latent of 'seen' has width 3, that of the teacher's 'truth' 9"):
        TPPO(student, teacher_policy={**teacher, "encoder_output_size": 9}, **mapping)
    with pytest.raises(ValueError, match=r"needs a teacher with encoders.*it is ActorCritic"):
        TPPO(student, **mapping)


# ---- the update --------------------------------------------------------------------------------------------------


def test_lr_scheduler_steps_once_per_update_and_is_saved(tmp_path):
    settings = {"lr_scheduler_class_name": "ExponentialLR", "lr_scheduler": {"gamma": 0.5}, "num_learning_epochs": 3}
    alg, _ = make_tppo(tmp_path, learning_rate=1e-3, **settings)
    for update in range(3):
        collect(alg, random_steps(6, 5))
        alg.update(update)
        assert alg.learning_rate == pytest.approx(1e-3 * 0.5 ** (update + 1))
    state = alg.state_dict()
    assert state["lr_scheduler_state_dict"]["last_epoch"] == 3
    other, _ = make_tppo(tmp_path, learning_rate=1e-3, **settings)
    other.load_state_dict(state)
    assert other.learning_rate == pytest.approx(1.25e-4)
    collect(other, random_steps(6, 5))
    other.update(3)
    assert other.learning_rate == pytest.approx(6.25e-5)


def test_warm_up_starts_at_scheduled_learning_rate(tmp_path):
    settings = {"lr_scheduler_class_name": "LinearLR", "lr_scheduler": {"start_factor": 0.1, "total_iters": 9}}
    alg, _ = make_tppo(tmp_path, learning_rate=1e-3, **settings)
    assert alg.learning_rate == alg.optimizer.param_groups[0]["lr"] == pytest.approx(1e-4)
    collect(alg, random_steps(6, 5))
    alg.update(0)
    assert alg.learning_rate == alg.optimizer.param_groups[0]["lr"] == pytest.approx(2e-4)


def test_momentum_schedule_changes_capture_key(tmp_path):
    alg, _ = make_tppo(tmp_path, lr_scheduler_class_name="OneCycleLR", lr_scheduler={"max_lr": 1e-3, "total_steps": 9})
    keys = []
    for update in range(2):
        collect(alg, random_steps(6, 5))
        keys.append(alg._optimizer.settings)
        alg.update(update)
    assert keys[0] != keys[1]
    steady, _ = make_tppo(tmp_path, lr_scheduler_class_name="ExponentialLR", lr_scheduler={"gamma": 0.9})
    before = steady._optimizer.settings
    collect(steady, random_steps(6, 5))
    steady.update(0)
    assert steady._optimizer.settings == before
    assert hash(before) == hash(steady._optimizer.settings)


def test_dilated_buffer_keeps_labels_aligned(tmp_path):
    alg, teacher = make_tppo(tmp_path, buffer_dilation_ratio=2.0)
    for update in range(4):
        collect(alg, random_steps(6, 5, seed=update))
        alg.update(update)
        assert alg.storage.num_valid_steps == (5 if update == 0 else 10)
    labels = teacher.act_inference(alg.storage.critic_observations)
    torch.testing.assert_close(alg.storage.action_labels, labels.detach())


def test_buffer_position_is_part_of_capture_key(tmp_path):
    alg, _ = make_tppo(tmp_path, buffer_dilation_ratio=3.0)
    seen = []
    for update in range(6):
        seen.append(alg.rollout_settings())
        collect(alg, random_steps(6, 5, seed=update))
        alg.update(update)
    assert len(set(seen[:4])) == 4
    assert seen[4] == seen[5]


def test_zero_teacher_weight_equals_ppo(tmp_path):
    """Without teacher actions and with a zero distillation coefficient, TPPO equals PPO."""
    torch.manual_seed(3)
    plain = make_ppo()
    torch.manual_seed(3)
    taught = make_ppo(algorithm=TPPO, distillation_loss_coef=0.0, teacher_act_prob=0.0)
    assert_same_parameters(parameters_of(plain), parameters_of(taught))
    for alg in (plain, taught):
        torch.manual_seed(4)
        steps = random_steps(6, 5)
        with torch.inference_mode():
            for step in steps[:-1]:
                torch.manual_seed(int(step["rewards"].abs().sum() * 1000))
                if alg is taught:
                    alg.use_teacher_act_mask = torch.zeros(6, dtype=torch.bool)
                alg.act(step["obs"], step["critic_obs"])
                alg.process_env_step(step["rewards"], step["dones"], {})
            alg.compute_returns(steps[-1]["critic_obs"])
        torch.manual_seed(5)
        alg.update(0)
    assert_same_parameters(parameters_of(plain), parameters_of(taught))
