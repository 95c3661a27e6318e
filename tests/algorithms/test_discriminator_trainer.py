"""Options of the discriminator training (`discriminator_cfg`), all off by default."""

import copy

import numpy as np
import pytest
import torch

from st_rl.algorithms.discriminator_trainer import DiscriminatorOptions, differences, scheduled_value
from tests.algorithms.motions import WIDTH, make_appo, rollout
from tests.algorithms.rollouts import assert_same_parameters, collect, parameters_of


def train(alg, num_updates=3, first=0):
    """Rollouts and updates with synthetic motion features; returns losses and statistics of the last update."""
    losses, stats = {}, {}
    for iteration in range(first, first + num_updates):
        torch.manual_seed(iteration)
        np.random.seed(iteration)
        alg.current_learning_iteration = iteration  # as the runner does before a rollout
        steps, infos = rollout(seed=iteration)
        collect(alg, steps, infos)
        losses, stats = alg.update(iteration)
    return losses, stats


def discriminator_parameters(alg):
    return {name: value for name, value in parameters_of(alg).items() if name.startswith("discriminator.")}


REPLAY = {"replay_size": 40, "replay_iterations": 4}
EVERYTHING = {
    "learning_rate": 1e-3,
    "weight_decay": 1e-3,
    "update_interval": 4,
    "replay_size": 50,
    "replay_iterations": 3,
    "mask_resets": True,
    "schedules": {"task_reward_lerp": [[0, 0.0], [4, 1.0]]},
}


class TestReading:
    def test_everything_is_off_by_default(self):
        options = DiscriminatorOptions.read(None)
        assert options == DiscriminatorOptions.read({"learning_rate": None, "schedules": None})
        assert not options.needs_optimizer
        assert (options.replay_size, options.mask_resets, options.logit_reg_coef) == (0, False, 0.0)

    @pytest.mark.parametrize(
        ("config", "message"),
        [
            ({"update_interval": 0}, "discriminator_cfg.update_interval is 0; it must be at least 1"),
            ({"replay_size": -1}, "discriminator_cfg.replay_size is -1; it must be at least 0"),
            ({"saturation_patience": 0}, "discriminator_cfg.saturation_patience is 0; it must be at least 1"),
            ({"schedules": {"task_lerp": [[0, 1]]}}, "unknown weight .* 'task_lerp'; did you mean 'task_reward_lerp'"),
            ({"schedules": {"task_reward_lerp": [[5, 1], [0, 2]]}}, "give points .iteration, value. with rising"),
            ({"schedules": {"task_reward_lerp": []}}, "give points"),
            ({"replay_szie": 3, "strict": True}, "unknown key 'replay_szie' .* did you mean 'replay_size'"),
        ],
    )
    def test_rejects_invalid_settings_with_hint(self, config, message):
        with pytest.raises(ValueError, match=message):
            DiscriminatorOptions.read(config)


class TestOwnOptimizer:
    @pytest.mark.parametrize("option", [{"learning_rate": 1e-3}, {"weight_decay": 0.1}, {"update_interval": 2}])
    def test_discriminator_is_removed_from_policy_optimizer(self, option):
        alg = make_appo(discriminator_cfg=option)
        own = {id(p) for p in alg.actor_critic.discriminator.parameters()}
        of_policy = {id(p) for group in alg.optimizer.param_groups for p in group["params"]}
        assert not own & of_policy
        assert own | of_policy == {id(p) for p in alg.actor_critic.parameters()}

    def test_has_own_learning_rate(self):
        alg = make_appo(
            schedule="adaptive", desired_kl=1e-9, learning_rate=1e-3, discriminator_cfg={"learning_rate": 0.0}
        )
        before = parameters_of(alg)
        train(alg, 1)
        after = parameters_of(alg)
        for name in before:
            assert torch.equal(before[name], after[name]) is name.startswith("discriminator."), name
        assert float(alg.learning_rate) < 1e-3

    def test_policy_gradient_clipping_excludes_discriminator(self):
        # Otherwise the norm of a large discriminator gradient would scale down the policy's.
        policies = []
        for coef in (1.0, 1000.0):
            alg = make_appo(
                discriminator_loss_coef=coef,
                optimizer_class_name="SGD",
                max_grad_norm=0.01,
                discriminator_cfg={"learning_rate": 1e-3},
            )
            train(alg, 1)
            policies.append({n: v for n, v in parameters_of(alg).items() if not n.startswith("discriminator.")})
        assert_same_parameters(*policies)

    def test_weight_decay_equals_sgd(self):
        # Without a loss, one SGD step shrinks every weight by learning rate times decay.
        alg = make_appo(
            optimizer_class_name="SGD",
            discriminator_loss_coef=1e-30,
            discriminator_cfg={"learning_rate": 0.1, "weight_decay": 0.5},
        )
        before = discriminator_parameters(alg)
        train(alg, 1)
        for name, value in discriminator_parameters(alg).items():
            torch.testing.assert_close(value, 0.95 * before[name])

    @pytest.mark.parametrize(("interval", "learned"), [(1, [0, 1, 2, 3, 4]), (2, [0, 2, 4]), (3, [0, 3])])
    def test_update_interval_skips_mini_batches(self, interval, learned):
        alg = make_appo(discriminator_cfg={"learning_rate": 1e-3, "update_interval": interval})
        steps, infos = rollout()
        collect(alg, steps, infos)
        minibatch = next(iter(alg._mini_batches()))
        changed = []
        for number in range(5):
            before = parameters_of(alg)
            alg.minibatch_step(minibatch)
            after = parameters_of(alg)
            if not torch.equal(before["discriminator.amp_linear.weight"], after["discriminator.amp_linear.weight"]):
                changed.append(number)
            assert not torch.equal(before["actor.0.weight"], after["actor.0.weight"])
        assert changed == learned


class TestRegularization:
    def test_logit_loss_is_squared_norm_of_last_weights(self):
        alg = make_appo(discriminator_cfg={"logit_reg_coef": 0.05})
        steps, infos = rollout()
        collect(alg, steps, infos)
        minibatch = next(iter(alg._mini_batches()))
        losses, _, _ = alg.compute_losses(minibatch)
        weights = alg.actor_critic.discriminator.amp_linear.weight.detach().double().numpy()
        assert losses["discriminator_logit_loss"].item() == pytest.approx(np.sum(weights**2), rel=1e-6)
        assert alg.discriminator_logit_loss_coef == 0.05


class TestReplay:
    def test_holds_raw_transitions_of_last_iterations(self):
        alg = make_appo(discriminator_cfg=REPLAY)
        came = []
        for iteration in range(6):
            steps, infos = rollout(seed=iteration)
            came.append(torch.cat([info["observations"]["ref_obs"].reshape(-1, WIDTH) for info in infos]))
            collect(alg, steps, infos)
            alg.update(iteration)
        replay = alg._discriminator_trainer.replay
        assert replay is not None
        assert replay.num_samples == 40
        kept = torch.cat([replay.states, replay.next_states], dim=1)
        # Ten of each of the last four; the statistics removed from them changed slightly within a rollout.
        distance = torch.cdist(kept, torch.cat(came[2:]))
        assert distance.min(dim=1).values.max() < 0.3
        origin = distance.argmin(dim=1) // 30
        assert torch.bincount(origin, minlength=4).tolist() == [10, 10, 10, 10]

    def test_mini_batches_hold_past_and_current_transitions(self):
        alg = make_appo(discriminator_cfg=REPLAY, num_mini_batches=3)
        train(alg, 2)
        steps, infos = rollout(seed=9)
        collect(alg, steps, infos)
        alg._update_replay()
        minibatch = next(iter(alg._mini_batches()))
        assert minibatch.past_ref_obs.shape == minibatch.ref_obs.shape == (10, WIDTH)
        losses, _, stats = alg.compute_losses(minibatch)
        with torch.no_grad():
            scores = [alg.actor_critic.discriminator(x).numpy() for x in (minibatch.ref_obs, minibatch.past_ref_obs)]
        expected = 0.25 * np.mean((scores[0] + 1.0) ** 2) + 0.25 * np.mean((scores[1] + 1.0) ** 2)
        assert losses["discriminator_policy_loss"].item() == pytest.approx(expected, rel=1e-5)
        assert stats["amp_policy_pred"].item() == pytest.approx(scores[0].mean(), rel=1e-4, abs=1e-6)

    def test_odd_width_is_stored_completely(self):
        alg = make_appo(discriminator={"input_dim": 5}, discriminator_cfg=REPLAY)
        learning = alg._discriminator_trainer
        rows = torch.arange(50.0).reshape(10, 5)
        learning.insert(rows, None)
        drawn = learning.sample(30)
        assert drawn.shape == (30, 5)
        assert {tuple(row) for row in drawn.tolist()} <= {tuple(row) for row in rows.tolist()}


class TestMask:
    def test_transitions_across_reset_get_no_style_reward_and_no_loss(self):
        alg = make_appo(discriminator_cfg={"mask_resets": True}, discriminator={"task_reward_lerp": 0.5})
        steps, infos = rollout()
        for step, info in zip(steps, infos):
            # Done environments return extreme features, as across a reset.
            info["observations"]["ref_obs"][step["dones"] > 0] = 50.0
        collect(alg, steps, infos)
        dones = torch.stack([step["dones"] for step in steps[:-1]]) > 0
        assert dones.any()
        rewards = torch.stack([step["rewards"] for step in steps[:-1]])
        torch.testing.assert_close(alg.storage.rewards[..., 0][dones], 0.5 * rewards[dones])
        assert torch.equal(alg.storage.ref_mask[..., 0], (~dones).float())

        (minibatch,) = alg._mini_batches()
        losses, _, stats = alg.compute_losses(minibatch)
        count = minibatch.ref_mask[:, 0] > 0
        with torch.no_grad():
            scores = alg.actor_critic.discriminator(minibatch.ref_obs[count]).double().numpy()
        assert losses["discriminator_policy_loss"].item() == pytest.approx(0.5 * np.mean((scores + 1.0) ** 2), rel=1e-5)
        assert stats["amp_policy_pred"].item() == pytest.approx(scores.mean(), rel=1e-4, abs=1e-6)
        assert stats["amp_policy_accuracy"].item() == pytest.approx(np.mean(scores < 0))

    @pytest.mark.parametrize("iterations", [4, 1])
    def test_replay_excludes_transitions_across_reset(self, iterations):
        # After one iteration it samples more rows than there are valid ones.
        config = {"mask_resets": True, "replay_size": 20, "replay_iterations": iterations}
        alg = make_appo(discriminator_cfg=config)
        learning = alg._discriminator_trainer
        rows = torch.arange(60.0).reshape(10, WIDTH)
        mask = torch.tensor([0.0, 1.0] * 5)
        for _ in range(8):
            learning.insert(rows, mask)
        kept = {int(row[0]) // WIDTH for row in learning.sample(200).tolist()}
        assert kept == {1, 3, 5, 7, 9}


class TestSchedules:
    def test_values_are_interpolated_linearly(self):
        points = [[10, 1.0], [20, 3.0], [40, 2.0]]
        values = [scheduled_value(points, iteration) for iteration in (0, 10, 15, 20, 30, 40, 99)]
        assert values == pytest.approx([1.0, 1.0, 2.0, 3.0, 2.5, 2.0, 2.0])

    def test_coefficients_follow_iteration(self):
        schedules = {
            "task_reward_lerp": [[0, 0.0], [4, 1.0]],
            "discriminator_loss_coef": [[0, 1.0], [4, 0.0]],
            "discriminator_grad_pen": [[0, 2.0], [4, 6.0]],
        }
        alg = make_appo(discriminator_cfg={"schedules": schedules})
        discriminator = alg.actor_critic.discriminator
        for iteration in (0, 1, 4):
            alg.current_learning_iteration = iteration
            assert float(discriminator.task_reward_lerp) == pytest.approx(iteration / 4)
            assert float(alg.discriminator_policy_loss_coef) == pytest.approx(1 - iteration / 4)
            assert float(discriminator.discriminator_grad_pen) == pytest.approx(2 + iteration)
            task = torch.tensor([5.0])
            style, _, reward = discriminator.predict_style_reward(torch.ones(1, WIDTH), task)
            torch.testing.assert_close(reward, (1 - iteration / 4) * style + iteration / 4 * task)
        losses, _ = train(alg, 1, first=4)
        expected = losses["surrogate_loss"] + losses["value_loss"]
        torch.testing.assert_close(losses["total_loss"], expected)

    def test_scheduled_coefficient_does_not_change_capture_key(self):
        alg = make_appo(discriminator_cfg={"schedules": {"task_reward_lerp": [[0, 0.0], [4, 1.0]]}})
        first = alg.rollout_settings()
        alg.current_learning_iteration = 3
        assert alg.rollout_settings() == first
        # A coefficient set by the user does.
        alg.actor_critic.discriminator.style_reward_coef = 9.0
        assert alg.rollout_settings() != first


class TestAccuracyWarning:
    def make(self, patience=3):
        return make_appo(discriminator_cfg={"saturation_patience": patience})._discriminator_trainer

    def test_warns_once_if_accuracy_stays_too_high(self):
        learning = self.make()
        warned = [learning.is_saturated(torch.tensor(1.0), torch.tensor(0.995)) for _ in range(12)]
        assert warned == [False, False, True] + [False] * 9

    def test_good_iteration_restarts_count(self):
        learning = self.make()
        assert not any(learning.is_saturated(torch.tensor(1.0), torch.tensor(a)) for a in [1.0, 1.0, 0.9] * 5)

    def test_warns_again_after_recovery(self):
        learning = self.make()
        warned = [learning.is_saturated(torch.tensor(1.0), torch.tensor(a)) for a in [1.0] * 3 + [0.5] * 3 + [1.0] * 3]
        assert [number for number, is_new in enumerate(warned) if is_new] == [2, 8]

    def test_warning_names_features_that_differ_most(self):
        generator = torch.Generator().manual_seed(0)
        own, reference = (torch.randn(500, 5, generator=generator) for _ in range(2))
        own[:, 3] += 5.0
        reference[:, 1] *= 4.0
        (first, own_text, other_text), (second, _, _) = differences(own, reference, 2)
        assert (first, second) == (3, 1)
        assert own_text == f"{own[:, 3].mean():.2g} ± {own[:, 3].std(correction=0):.2g}"
        assert other_text == f"{reference[:, 3].mean():.2g} ± {reference[:, 3].std(correction=0):.2g}"

    def test_training_warns_about_separable_features(self, caplog):
        alg = make_appo(
            discriminator={"discriminator_grad_pen": 0.0},
            learning_rate=1e-2,
            num_learning_epochs=5,
            discriminator_cfg={"saturation_patience": 5},
        )
        for iteration in range(15):
            steps, infos = rollout(seed=iteration, shift=0.0)
            for info in infos:
                info["ref_motion"][:, 4] += 20.0
            collect(alg, steps, infos)
            alg.update(iteration)
        (warning,) = [r.message for r in caplog.records if "the discriminator has been saturated" in r.message]
        assert "Policy and reference differ most in features 4 (" in warning
        assert "against 20 ± 0." in warning
        assert "discriminator_grad_pen" in warning


class TestCheckpoint:
    @pytest.mark.parametrize("kind", ["mlp", "lstm"])
    def test_resume_is_bit_exact(self, kind):
        settings = {"discriminator_cfg": EVERYTHING, "num_learning_epochs": 3, "num_mini_batches": 2}
        whole = make_appo(kind, **settings)
        train(whole, 3)
        state = copy.deepcopy(whole.state_dict())
        memory = copy.deepcopy(whole.actor_critic.hidden_state_dict())
        train(whole, 3, first=3)

        resumed = make_appo(kind, seed=7, **settings)
        resumed.load_state_dict(state)
        resumed.actor_critic.load_hidden_state_dict(memory)
        train(resumed, 3, first=3)
        assert_same_parameters(parameters_of(resumed), parameters_of(whole))
        ours, theirs = (alg.state_dict()["discriminator_replay_state_dict"] for alg in (resumed, whole))
        assert ours["step"] == theirs["step"]
        assert torch.equal(ours["states"], theirs["states"])

    def test_rejects_other_optimizer_before_loading(self):
        state = make_appo(discriminator_cfg={"learning_rate": 1e-3}).state_dict()
        alg = make_appo(seed=3)
        before = parameters_of(alg)
        with pytest.raises(ValueError, match="the checkpoint gives the discriminator its own optimizer"):
            alg.load_state_dict(state)
        assert_same_parameters(parameters_of(alg), before)
        del state["optimizer_state_dict"], state["discriminator_optimizer_state_dict"]
        alg.load_state_dict(state)
        other = make_appo(discriminator_cfg={"update_interval": 2})
        with pytest.raises(ValueError, match="this algorithm gives the discriminator its own optimizer"):
            other.load_state_dict(make_appo().state_dict())

    def test_missing_replay_starts_empty(self, caplog):
        alg = make_appo(discriminator_cfg={"replay_size": 10})
        alg.load_state_dict(make_appo().state_dict())
        assert "no replay buffer for the discriminator: it starts empty" in caplog.text
