"""APPO: style reward, storage, losses and checkpoints."""

import copy

import numpy as np
import pytest
import torch

from st_rl.algorithms import APPO, ATPPO, PPO, TPPO
from st_rl.algorithms.appo import GET_PROB_FUNC, APPOAlgoMixin
from st_rl.modules import ActorCritic, AMPDiscriminator, EmpiricalNormalization
from st_rl.storage import AmpRolloutStorage
from tests.algorithms.motions import DISCRIMINATOR, WIDTH, make_amp_policy, make_appo, motion_infos, rollout
from tests.algorithms.rollouts import NUM_ACTIONS, collect, make_ppo, parameters_of, random_steps
from tests.algorithms.teachers import make_teacher, save_teacher

LOSSES = ("discriminator_expert_loss", "discriminator_policy_loss", "discriminator_grad_len_loss")


def step_once(alg, infos, seed=0, num_envs=6):
    """Store one step; returns the rewards of the environment."""
    step = random_steps(num_envs, 1, seed)[0]
    with torch.inference_mode():
        alg.act(step["obs"], step["critic_obs"])
        alg.process_env_step(step["rewards"], step["dones"], infos)
    return step["rewards"]


def first_minibatch(alg, **kwargs):
    steps, infos = rollout(**kwargs)
    collect(alg, steps, infos)
    torch.manual_seed(0)
    return next(iter(alg._mini_batches()))


def normalized(values: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Values normalized with the statistics of the samples `seen`."""
    return (values - seen.mean(axis=0)) / (seen.std(axis=0) + 1e-2)


class TestConstruction:
    def test_names_and_bases(self):
        from st_rl.algorithms import tppo

        assert GET_PROB_FUNC is tppo.GET_PROB_FUNC
        assert APPO.__mro__[1:3] == (APPOAlgoMixin, PPO)
        assert ATPPO.__mro__[1:3] == (APPOAlgoMixin, TPPO)

    @pytest.mark.parametrize("given", [None, {}, WIDTH])
    def test_discriminator_has_feature_width(self, given):
        assert make_appo(amp_obs_dim=given).amp_obs_dim == WIDTH

    def test_rejects_other_feature_width(self):
        with pytest.raises(ValueError, match="amp_obs_dim is 7 but the discriminator takes 6 features"):
            make_appo(amp_obs_dim=7)
        with pytest.raises(ValueError, match="amp_obs_dim is 0 but"):
            make_appo(amp_obs_dim=0)
        with pytest.raises(ValueError, match=r"amp_obs_shape is \(7,\), the discriminator takes 6"):
            make_appo().init_storage(6, 5, [4], [5], [2], amp_obs_shape=(7,))

    @pytest.mark.parametrize("algorithm", [APPO, ATPPO])
    def test_rejects_policy_without_discriminator(self, algorithm):
        with pytest.raises(
            TypeError, match=rf"{algorithm.__name__} needs a policy with a discriminator.*ActorCritic has"
        ):
            algorithm(ActorCritic(4, 4, 2))

    def test_strict_applies_to_discriminator_settings(self):
        with pytest.raises(ValueError, match="unknown key 'replay' for discriminator_cfg"):
            make_appo(discriminator_cfg={"replay": 3}, strict=True)

    def test_one_coefficient_for_three_losses_and_documented_defaults(self):
        alg = make_appo(discriminator_loss_coef=0.3)
        assert [getattr(alg, f"{name}_coef") for name in LOSSES] == [0.3] * 3
        assert alg.discriminator_loss_coef == 0.3
        plain = make_appo()
        assert (plain.discriminator_loss_coef, plain.mimic_loss_coef) == (1.0, 0.0)
        assert (plain.share_amp_normalizer, plain.mimic_reward_coef, plain.dagger_loss_coef) == (True, 0.0, 0.0)

    def test_normalizer_is_shared_by_default(self):
        shared, separate = make_appo(), make_appo(share_amp_normalizer=False)
        assert shared.ref_obs_normalizer is shared.ref_motion_normalizer
        assert separate.ref_obs_normalizer is not separate.ref_motion_normalizer
        for normalizer in (separate.ref_obs_normalizer, separate.ref_motion_normalizer):
            assert isinstance(normalizer, EmpiricalNormalization)
            assert (normalizer.shape, normalizer.until, normalizer.training) == ((WIDTH,), 1.0e8, True)

    def test_modes_reach_normalizers(self):
        alg = make_appo(share_amp_normalizer=False)
        alg.eval_mode()
        assert not alg.ref_obs_normalizer.training
        assert not alg.ref_motion_normalizer.training
        alg.train_mode()
        assert alg.ref_obs_normalizer.training
        assert alg.ref_motion_normalizer.training

    def test_storage_has_motion_features(self):
        storage = make_appo().storage
        assert type(storage) is AmpRolloutStorage
        assert storage.ref_obs.shape == storage.ref_motion.shape == (5, 6, WIDTH)
        assert storage.MiniBatch._fields[-2:] == ("ref_obs", "ref_motion")

    def test_optimizer_includes_discriminator(self):
        alg = make_appo()
        trained = {id(p) for group in alg.optimizer.param_groups for p in group["params"]}
        assert {id(p) for p in alg.actor_critic.discriminator.parameters()} <= trained


class TestCollecting:
    @pytest.mark.parametrize("shared", [True, False])
    def test_features_are_normalized_after_statistics_update(self, shared):
        alg = make_appo(share_amp_normalizer=shared)
        infos = motion_infos(6, 3)
        seen_obs, seen_motion = np.zeros((0, WIDTH)), np.zeros((0, WIDTH))
        for row, info in enumerate(infos):
            step_once(alg, info, seed=row)
            obs = info["observations"]["ref_obs"].double().numpy().reshape(6, WIDTH)
            motion = info["ref_motion"].double().numpy()
            seen_obs, seen_motion = np.concatenate([seen_obs, obs]), np.concatenate([seen_motion, motion])
            both = np.concatenate([seen_obs, seen_motion])
            expected = (
                normalized(obs, both if shared else seen_obs),
                normalized(motion, both if shared else seen_motion),
            )
            np.testing.assert_allclose(alg.storage.ref_obs[row].numpy(), expected[0], rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(alg.storage.ref_motion[row].numpy(), expected[1], rtol=1e-4, atol=1e-5)
        assert int(alg.ref_obs_normalizer.count) == (36 if shared else 18)

    @pytest.mark.parametrize("lerp", [0.0, 0.3, 1.0])
    @pytest.mark.parametrize("mimic", [0.0, 0.2])
    def test_stored_reward_mixes_style_and_task(self, lerp, mimic):
        alg = make_appo(discriminator={"task_reward_lerp": lerp}, mimic_reward_coef=mimic)
        infos = motion_infos(6, 1)[0]
        rewards = step_once(alg, infos)
        given = rewards.clone()
        ref_obs, ref_motion = alg.storage.ref_obs[0], alg.storage.ref_motion[0]
        with torch.no_grad():
            score = alg.actor_critic.discriminator(ref_obs).numpy()[:, 0]
        style = 0.7 * np.maximum(0.0, 1.0 - 0.25 * (score - 1.0) ** 2)
        distance = np.sqrt(((ref_obs - ref_motion).numpy() ** 2).sum(axis=1))
        expected = (1.0 - lerp) * style + lerp * given.numpy() - mimic * distance
        np.testing.assert_allclose(alg.storage.rewards[0, :, 0].numpy(), expected, rtol=1e-5, atol=1e-6)
        assert float(infos["log"]["Episode_Reward/style_reward"]) == pytest.approx(style.mean(), rel=1e-5)
        assert float(infos["log"]["Episode_Reward/task_reward"]) == pytest.approx(float(given.mean()), rel=1e-5)
        assert all(value.dim() == 0 for value in infos["log"].values())

    def test_rewards_of_caller_are_not_modified(self):
        alg = make_appo()
        step = random_steps(6, 1)[0]
        before = step["rewards"].clone()
        alg.act(step["obs"], step["critic_obs"])
        alg.process_env_step(step["rewards"], step["dones"], motion_infos(6, 1)[0])
        assert torch.equal(step["rewards"], before)

    def test_existing_log_is_kept(self):
        alg = make_appo()
        infos = {**motion_infos(6, 1)[0], "log": {"mine": 1.0}, "episode": {"length": 3.0}}
        log = infos["log"]
        step_once(alg, infos)
        assert infos["log"] is log
        assert log["mine"] == 1.0
        # The runner logs `episode` if present.
        assert (
            set(log) - {"mine"}
            == set(infos["episode"]) - {"length"}
            == {
                "Episode_Reward/style_reward",
                "Episode_Reward/task_reward",
            }
        )

    def test_error_names_missing_or_wrong_features(self):
        alg = make_appo()
        infos = motion_infos(6, 1)[0]
        with pytest.raises(AssertionError, match="ref_obs"):
            step_once(alg, {"ref_motion": infos["ref_motion"]})
        with pytest.raises(KeyError, match="ref_motion"):
            step_once(alg, {"observations": infos["observations"]})
        with pytest.raises(KeyError, match="ref_motion"):
            step_once(alg, {**infos, "ref_motion": None})
        with pytest.raises(ValueError, match=r"ref_motion'\] has shape \(6, 4\): 4 features.*discriminator takes 6"):
            step_once(alg, {**infos, "ref_motion": torch.zeros(6, 4)})
        # One reference row would broadcast over all environments silently.
        with pytest.raises(ValueError, match=r"ref_motion'\] has shape \(1, 6\).*there are 6 environments"):
            step_once(alg, {**infos, "ref_motion": torch.zeros(1, 6)})

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64])
    def test_features_are_converted_to_float32(self, dtype):
        infos = motion_infos(6, 1)[0]
        infos = {
            "observations": {"ref_obs": (4 * infos["observations"]["ref_obs"]).to(dtype)},
            "ref_motion": (4 * infos["ref_motion"]).to(dtype),
        }
        alg, plain = make_appo(), make_appo()
        step_once(alg, infos)
        step_once(
            plain,
            {"observations": {"ref_obs": infos["observations"]["ref_obs"].float()}}
            | {"ref_motion": infos["ref_motion"].float()},
        )
        for name in ("ref_obs", "ref_motion", "rewards"):
            assert torch.equal(getattr(alg.storage, name)[0], getattr(plain.storage, name)[0])

    def test_accepts_tensordict_groups(self):
        tensordict = pytest.importorskip("tensordict")
        alg, infos = make_appo(), motion_infos(6, 1)[0]
        step_once(alg, {**infos, "observations": tensordict.TensorDict(infos["observations"], [6])})
        assert alg.storage.ref_obs[0].abs().sum() > 0

    def test_action_labels_are_actions_without_teacher(self):
        alg = make_appo()
        steps, infos = rollout()
        collect(alg, steps, infos)
        assert torch.equal(alg.storage.action_labels, alg.storage.actions)
        assert alg.storage.action_labels.data_ptr() != alg.storage.actions.data_ptr()

    def test_time_out_bootstrap_equals_ppo(self):
        alg = make_appo(discriminator={"task_reward_lerp": 1.0})
        infos = {**motion_infos(6, 1)[0], "time_outs": torch.tensor([1, 0, 0, 1, 0, 0])}
        rewards = step_once(alg, infos)
        expected = rewards + alg.gamma * alg.storage.values[0, :, 0] * infos["time_outs"]
        torch.testing.assert_close(alg.storage.rewards[0, :, 0], expected)


class TestLosses:
    @pytest.mark.parametrize("kind", ["mlp", "lstm"])
    def test_equal_formulas(self, kind):
        alg = make_appo(kind, mimic_loss_coef=0.5, dagger_loss_coef=0.25, num_mini_batches=2)
        minibatch = first_minibatch(alg)
        plain = PPO.compute_losses(alg, minibatch)[0]
        losses, _, stats = alg.compute_losses(minibatch)
        for name, value in plain.items():
            torch.testing.assert_close(losses[name], value)
        losses = {name: value.detach() for name, value in losses.items()}
        assert set(losses) - set(plain) == {*LOSSES, "dagger_loss", "mimic_loss"}

        discriminator = alg.actor_critic.discriminator
        rows = {name: getattr(minibatch, name).reshape(-1, WIDTH) for name in ("ref_obs", "ref_motion")}
        with torch.no_grad():
            expert = discriminator(rows["ref_motion"]).double().numpy()
            policy = discriminator(rows["ref_obs"]).double().numpy()
        assert float(losses[LOSSES[0]]) == pytest.approx(0.5 * np.mean((expert - 1.0) ** 2), rel=1e-5)
        assert float(losses[LOSSES[1]]) == pytest.approx(0.5 * np.mean((policy + 1.0) ** 2), rel=1e-5)
        leaf = rows["ref_motion"].clone().requires_grad_(True)
        (slope,) = torch.autograd.grad(discriminator(leaf).sum(), leaf)
        lengths = slope.double().norm(dim=1).numpy()
        assert float(losses[LOSSES[2]]) == pytest.approx(2.0 * np.mean(lengths**2), rel=1e-5)
        distance = (rows["ref_obs"] - rows["ref_motion"]).double().numpy()
        assert float(losses["mimic_loss"]) == pytest.approx(np.mean(np.sqrt((distance**2).sum(axis=1))), rel=1e-5)
        error = (alg.actor_critic.action_mean - minibatch.action_labels).detach().double().reshape(-1, NUM_ACTIONS)
        assert float(losses["dagger_loss"]) == pytest.approx(float(error.norm(dim=1).mean()), rel=1e-5)

        assert float(stats["amp_policy_pred"]) == pytest.approx(policy.mean(), rel=1e-5, abs=1e-7)
        assert float(stats["amp_expert_pred"]) == pytest.approx(expert.mean(), rel=1e-5, abs=1e-7)
        assert float(stats["amp_policy_accuracy"]) == pytest.approx(np.mean(policy < 0))
        assert float(stats["amp_expert_accuracy"]) == pytest.approx(np.mean(expert > 0))
        assert float(stats["amp_gradient_norm"]) == pytest.approx(np.sqrt(np.mean(lengths**2)), rel=1e-5)

    def test_are_omitted_if_coefficient_is_zero(self):
        alg = make_appo(discriminator_loss_coef=0.0)
        losses, _, stats = alg.compute_losses(first_minibatch(alg))
        assert set(losses) == {"surrogate_loss", "value_loss", "entropy"}
        assert stats == {}

    def test_discriminator_coefficient_scales_gradient(self):
        gradients = []
        for coef in (1.0, 0.25):
            alg = make_appo(discriminator_loss_coef=coef)
            total, _, _ = alg._objective(first_minibatch(alg))
            alg.actor_critic.zero_grad()
            total.backward()
            gradients.append([p.grad.clone() for p in alg.actor_critic.discriminator.parameters()])
        for full, quarter in zip(*gradients):
            torch.testing.assert_close(quarter, 0.25 * full)

    def test_three_coefficients_can_be_set_separately(self):
        alg = make_appo()
        alg.discriminator_expert_loss_coef, alg.discriminator_policy_loss_coef = 2.0, 3.0
        alg.discriminator_grad_len_loss_coef, alg.value_loss_coef, alg.entropy_coef = 5.0, 0.0, 0.0
        minibatch = first_minibatch(alg)
        losses, _, _ = alg.compute_losses(minibatch)
        total, measured, _ = alg._objective(minibatch)
        expected = (
            losses["surrogate_loss"] + 2.0 * losses[LOSSES[0]] + 3.0 * losses[LOSSES[1]] + 5.0 * losses[LOSSES[2]]
        )
        torch.testing.assert_close(total, expected)
        torch.testing.assert_close(measured["loss/total_loss"], expected.detach())

    def test_mimic_loss_has_no_gradient(self):
        alg = make_appo(mimic_loss_coef=10.0)
        minibatch = first_minibatch(alg)
        losses, _, _ = alg.compute_losses(minibatch)
        assert not losses["mimic_loss"].requires_grad
        trained = []
        for coef in (0.0, 10.0):
            alg = make_appo(mimic_loss_coef=coef)
            steps, infos = rollout()
            collect(alg, steps, infos)
            torch.manual_seed(4)
            means, _ = alg.update(0)
            trained.append((parameters_of(alg), means))
        for name, value in trained[0][0].items():
            assert torch.equal(value, trained[1][0][name])
        difference = trained[1][1]["total_loss"] - trained[0][1]["total_loss"]
        torch.testing.assert_close(difference, 10.0 * trained[1][1]["mimic_loss"], rtol=1e-4, atol=1e-4)

    def test_policy_and_discriminator_losses_have_separate_gradients(self):
        alg = make_appo()
        losses, _, _ = alg.compute_losses(first_minibatch(alg))
        own = list(alg.actor_critic.discriminator.parameters())
        others = [p for p in alg.actor_critic.parameters() if all(p is not q for q in own)]
        adversarial = sum(losses[name] for name in LOSSES)
        rest = losses["surrogate_loss"] + losses["value_loss"]
        assert all(g is None for g in torch.autograd.grad(adversarial, others, retain_graph=True, allow_unused=True))
        assert all(g is None for g in torch.autograd.grad(rest, own, allow_unused=True))

    def test_shared_normalizer_lets_discriminator_see_shift(self):
        accuracy = {}
        for shared in (True, False):
            alg = make_appo(share_amp_normalizer=shared, learning_rate=3e-3, num_learning_epochs=5, num_mini_batches=2)
            for iteration in range(12):
                steps, infos = rollout(seed=iteration, shift=3.0)
                for info in infos:
                    # The two streams differ only in shift and scale.
                    info["ref_motion"] = 3.0 + 2.0 * torch.randn(6, WIDTH)
                collect(alg, steps, infos)
                _, stats = alg.update(iteration)
            accuracy[shared] = 0.5 * float(stats["amp_policy_accuracy"] + stats["amp_expert_accuracy"])
        assert accuracy[True] > 0.95
        assert accuracy[False] < 0.8

    def test_mixed_precision_does_not_apply_to_discriminator(self):
        exact, mixed = make_appo(), make_appo(mixed_precision="bf16")
        measured = []
        for alg in (exact, mixed):
            minibatch = first_minibatch(alg)
            with alg._autocast():
                measured.append(alg.compute_losses(minibatch)[0])
        for name in LOSSES:
            assert torch.equal(measured[0][name], measured[1][name])


class TestTeacher:
    def make(self, tmp_path, **kwargs):
        teacher, settings = make_teacher()
        path = save_teacher(tmp_path / "model_7.pt", teacher)
        teacher_policy = {**settings, "teacher_ac_path": path}
        return make_appo(algorithm=ATPPO, teacher_policy=teacher_policy, teacher_act_prob=0.5, **kwargs), teacher

    def test_labels_are_teacher_actions(self, tmp_path):
        alg, teacher = self.make(tmp_path)
        steps, infos = rollout()
        collect(alg, steps, infos)
        for row, step in enumerate(steps[:-1]):
            expected = teacher.act_inference(step["critic_obs"])
            torch.testing.assert_close(alg.storage.action_labels[row], expected.detach())
        assert not torch.equal(alg.storage.action_labels, alg.storage.actions)

    def test_losses_include_teacher_and_discriminator(self, tmp_path):
        alg, _ = self.make(tmp_path)
        losses, _, _ = alg.compute_losses(first_minibatch(alg))
        assert set(losses) == {"surrogate_loss", "value_loss", "entropy", "distillation_loss", *LOSSES}
        assert all(torch.isfinite(value) for value in losses.values())

    def test_inner_settings_are_read_and_top_level_takes_precedence(self, tmp_path, caplog):
        ppo = {
            "class_name": "APPO",
            "gamma": 0.9,
            "mimic_loss_coef": 0.25,
            "discriminator_loss_coef": 0.5,
            "amp_obs_dim": {},
            "share_amp_normalizer": False,
            "dagger_loss_coef": None,
        }
        before = copy.deepcopy(ppo)
        alg, _ = self.make(tmp_path, ppo=ppo, discriminator_loss_coef=1.0, mimic_loss_coef=None)
        assert ppo == before
        assert (alg.gamma, alg.mimic_loss_coef, alg.dagger_loss_coef) == (0.9, 0.25, 0.0)
        assert alg.share_amp_normalizer is False
        # Takes precedence although it is the default value.
        assert alg.discriminator_loss_coef == alg.discriminator_policy_loss_coef == 1.0
        assert "ignores keys" not in caplog.text
        assert "unknown key" not in caplog.text

    def test_buffer_dilation_reaches_storage(self, tmp_path):
        alg, _ = self.make(tmp_path, buffer_dilation_ratio=2.0)
        assert alg.storage.max_num_steps == 10
        for iteration in range(3):
            steps, infos = rollout(seed=iteration)
            collect(alg, steps, infos)
            losses, _ = alg.update(iteration)
        assert alg.storage.ref_obs.shape == (10, 6, WIDTH)
        assert torch.isfinite(losses["discriminator_policy_loss"])

    def test_recorded_steps_need_motion_features(self, tmp_path):
        from types import SimpleNamespace

        alg, _ = self.make(tmp_path)
        step, infos = random_steps(6, 1)[0], motion_infos(6, 1)[0]
        recorded = SimpleNamespace(
            observation=step["obs"],
            privileged_observation=step["critic_obs"],
            action=torch.full((6, NUM_ACTIONS), 0.5),
            reward=step["rewards"],
            done=step["dones"],
            next_observation=step["obs"],
            next_privileged_observation=step["critic_obs"],
        )
        with pytest.raises(ValueError, match="ATPPO learns from recorded steps only if infos carries"):
            alg.collect_transition_from_dataset(recorded, {})
        with torch.inference_mode():
            alg.collect_transition_from_dataset(recorded, infos)
        assert torch.equal(alg.storage.action_labels[0], recorded.action)
        assert torch.equal(alg.storage.actions[0], recorded.action)
        assert alg.storage.ref_motion[0].abs().sum() > 0


class TestCheckpoint:
    @pytest.mark.parametrize("shared", [True, False])
    def test_normalizer_round_trip(self, shared):
        alg = make_appo(share_amp_normalizer=shared)
        steps, infos = rollout()
        collect(alg, steps, infos)
        alg.update(0)
        state = copy.deepcopy(alg.state_dict())
        keys = {"ref_obs_norm_state_dict"} | (set() if shared else {"ref_motion_norm_state_dict"})
        assert {key for key in state if key.startswith("ref_")} == keys
        assert set(state["ref_obs_norm_state_dict"]) == {"_mean", "_var", "_std", "count"}
        other = make_appo(share_amp_normalizer=shared, seed=9)
        other.load_state_dict(state)
        for key in ("model_state_dict", *keys):
            for name, value in state[key].items():
                assert torch.equal(other.state_dict()[key][name], value), (key, name)

    def test_checkpoint_without_statistics_warns(self, caplog):
        state = make_ppo(policy=make_amp_policy(), algorithm=PPO).state_dict()
        make_appo().load_state_dict(state)
        assert "the checkpoint has no 'ref_obs_norm_state_dict'" in caplog.text

    def test_separate_reference_statistics_are_ignored_with_warning(self, caplog):
        state = make_appo(share_amp_normalizer=False).state_dict()
        make_appo().load_state_dict(state)
        assert "set share_amp_normalizer=False" in caplog.text

    def test_default_keys(self):
        keys = {"model_state_dict", "optimizer_state_dict", "ref_obs_norm_state_dict"}
        assert set(make_appo().state_dict()) == keys
        assert DISCRIMINATOR["input_dim"] == WIDTH


def test_losses_use_overridden_discriminator_methods():
    class Own(AMPDiscriminator):
        def forward(self, x):
            return 0.1 * torch.tanh(super().forward(x))

        def compute_grad_pen(self, amp_obs):
            return self(amp_obs).square().mean()

    alg = make_appo()
    alg.actor_critic.discriminator = discriminator = Own(**DISCRIMINATOR)
    minibatch = first_minibatch(alg)
    losses, _, _ = alg.compute_losses(minibatch)
    expected = 0.5 * (discriminator(minibatch.ref_motion) - 1.0).square().mean()
    torch.testing.assert_close(losses["discriminator_expert_loss"], expected)
    expected = 0.5 * (discriminator(minibatch.ref_obs) + 1.0).square().mean()
    torch.testing.assert_close(losses["discriminator_policy_loss"], expected)
    expected = discriminator(minibatch.ref_motion).square().mean()
    torch.testing.assert_close(losses["discriminator_grad_len_loss"], expected)
