"""PPO updates compared with `ReferencePPO`; equal results for equivalent forms of the same data."""

import itertools

import pytest
import torch

from tests.algorithms.reference import ReferencePPO
from tests.algorithms.rollouts import (
    OBS_DIM,
    assert_same_parameters,
    collect,
    make_policy,
    make_ppo,
    parameters_of,
    random_steps,
)


def record_mini_batches(alg):
    """Record the results of `compute_losses` and the learning rate of every mini-batch."""
    records, compute = [], alg.compute_losses

    def recording(minibatch):
        losses, inter_vars, stats = compute(minibatch)
        record = {name: value.item() for name, value in losses.items()}
        if "kl" in inter_vars:
            record["kl"] = inter_vars["kl"].mean().item()
        records.append(record)
        return losses, inter_vars, stats

    def record_rate(optimizer, args, kwargs):
        records[-1]["learning_rate"] = float(optimizer.param_groups[0]["lr"])

    alg.compute_losses = recording
    alg.optimizer.register_step_pre_hook(record_rate)
    return records


def compare_updates(kind, num_envs=6, num_steps=7, num_updates=2, separate_critic=True, **settings):
    """Train the library and the reference on the same data and compare losses, statistics and weights."""
    epochs, mini_batches = settings.pop("epochs", 3), settings.pop("mini_batches", 2)
    alg = make_ppo(
        kind, num_envs, num_steps, separate_critic,
        num_learning_epochs=epochs, num_mini_batches=mini_batches, value_loss_coef=0.7, entropy_coef=0.02,
        clip_param=0.15, gamma=0.97, lam=0.9, **settings,
    )  # fmt: skip
    reference = ReferencePPO(
        alg.actor_critic, epochs=epochs, mini_batches=mini_batches, value_coef=0.7, entropy_coef=0.02, clip=0.15,
        gamma=0.97, lam=0.9, learning_rate=settings.get("learning_rate", 1e-3),
        max_grad_norm=settings.get("max_grad_norm", 1.0), clipped_value=settings.get("use_clipped_value_loss", True),
        schedule=settings.get("schedule", "fixed"), desired_kl=settings.get("desired_kl", 0.01),
    )  # fmt: skip
    all_records = []
    records = record_mini_batches(alg)
    for iteration in range(num_updates):
        critic_dim = alg.actor_critic.num_critic_obs
        steps = random_steps(num_envs, num_steps, seed=iteration, critic_dim=critic_dim)
        if not separate_critic:
            steps = [{**step, "critic_obs": step["obs"]} for step in steps]
        collect(
            alg,
            steps,
            on_step=lambda step, actions: reference.step(
                step["obs"], step["critic_obs"], actions, step["rewards"], step["dones"]
            ),
        )
        reference.finish(steps[-1]["critic_obs"])
        torch.manual_seed(iteration)
        losses, stats = alg.update(iteration)
        torch.manual_seed(iteration)
        expected = reference.update(torch.randperm(num_steps * num_envs))

        assert len(records) == len(expected) == epochs * mini_batches
        for ours, theirs in zip(records, expected):
            for name, value in ours.items():
                assert value == pytest.approx(theirs[name], rel=1e-3, abs=2e-5), name
            assert ours["learning_rate"] == pytest.approx(theirs["learning_rate"], rel=1e-12)
        assert set(losses) == {"surrogate_loss", "value_loss", "entropy", "total_loss"}
        assert stats == {}
        for name, value in losses.items():
            assert value.shape == ()
            mean = sum(record[name] for record in expected) / len(expected)
            assert value.item() == pytest.approx(mean, rel=1e-3, abs=2e-5), name
        rates = {group["lr"] for group in alg.optimizer.param_groups}
        assert rates == {alg.learning_rate}
        assert alg.learning_rate == pytest.approx(reference.learning_rate, rel=1e-12)
        ours = parameters_of(alg)
        theirs = {name: value.detach() for name, value in reference.layers.named_parameters()}
        assert_same_parameters(ours, theirs, atol=2e-5, rtol=1e-4)
        all_records += expected
        records.clear()
    return all_records


@pytest.mark.parametrize("kind", ["mlp", "gru", "lstm", "lstm2"])
@pytest.mark.parametrize("clipped", [True, False])
@pytest.mark.parametrize("schedule", ["fixed", "adaptive"])
def test_update_equals_reference(kind, clipped, schedule):
    records = compare_updates(
        kind, use_clipped_value_loss=clipped, schedule=schedule, learning_rate=4e-3, desired_kl=4e-3
    )
    assert any(record["norm"] > 1.0 for record in records)  # gradient clipping was active
    if schedule == "adaptive":
        rates = [record["learning_rate"] for record in records]
        assert any(b > a for a, b in itertools.pairwise(rates)), "the rate was meant to rise somewhere"
        assert any(b < a for a, b in itertools.pairwise(rates)), "the rate was meant to fall somewhere"


@pytest.mark.parametrize("kind", ["mlp", "lstm"])
def test_update_equals_reference_without_critic_observation(kind):
    compare_updates(kind, separate_critic=False)


@pytest.mark.parametrize("kind", ["mlp", "gru", "lstm"])
def test_update_equals_reference_with_one_env_and_one_mini_batch(kind):
    compare_updates(kind, num_envs=1, num_steps=6, mini_batches=1)


@pytest.mark.parametrize("kind", ["mlp", "gru"])
def test_update_equals_reference_with_one_step(kind):
    compare_updates(kind, num_envs=4, num_steps=1, mini_batches=2)


def test_update_equals_reference_with_one_sample_per_mini_batch():
    compare_updates("mlp", num_envs=2, num_steps=3, mini_batches=6, epochs=1)


@pytest.mark.parametrize("kind", ["mlp", "lstm"])
def test_incomplete_mini_batch_is_dropped(kind):
    compare_updates(kind, num_envs=5, num_steps=5, mini_batches=2)


@pytest.mark.parametrize("kind", ["mlp", "lstm"])
def test_shapes_with_one_env(kind):
    """Squeezing more than the last axis would turn `(T, 1)` into `(T,)` and the ratio into `(T, T)`."""
    alg = make_ppo(kind, num_envs=1, num_steps=6)
    collect(alg, random_steps(1, 6))
    generator = alg.storage.reccurent_mini_batch_generator if kind == "lstm" else alg.storage.mini_batch_generator
    (minibatch,) = generator(1, 1)
    losses, inter_vars, _ = alg.compute_losses(minibatch)
    expected = (6, 1) if kind == "lstm" else (6,)
    assert {tuple(value.shape) for value in inter_vars.values()} == {expected}
    assert {tuple(value.shape) for value in losses.values()} == {()}


@pytest.mark.parametrize("kind", ["mlp", "gru", "lstm"])
def test_dones_of_any_dtype_give_same_update(kind):
    outcomes = []
    for dtype in (torch.bool, torch.uint8, torch.int64, torch.float32):
        torch.manual_seed(0)
        alg = make_ppo(kind, schedule="adaptive", num_learning_epochs=2, num_mini_batches=2)
        for iteration in range(3):
            steps = [{**step, "dones": step["dones"].to(dtype)} for step in random_steps(6, 5, seed=iteration)]
            torch.manual_seed(iteration)
            collect(alg, steps, infos=[{"time_outs": step["dones"]} for step in steps])
            alg.update(iteration)
        outcomes.append(parameters_of(alg))
    for outcome in outcomes[1:]:
        assert_same_parameters(outcomes[0], outcome)


@pytest.mark.parametrize("kind", ["mlp", "gru", "lstm"])
@pytest.mark.parametrize("inference_mode", [True, False])
def test_same_seed_same_weights_with_and_without_inference_mode(kind, inference_mode):
    outcomes = []
    for mode in (True, inference_mode):
        torch.manual_seed(0)
        alg = make_ppo(kind, empirical_normalization=True)
        for iteration in range(2):
            steps = random_steps(6, 5, seed=iteration)
            with torch.inference_mode(mode):
                for step in steps[:-1]:
                    obs = alg.obs_normalizer(step["obs"])
                    critic_obs = alg.critic_obs_normalizer(step["critic_obs"])
                    alg.act(obs, critic_obs)
                    alg.process_env_step(step["rewards"], step["dones"], {})
                alg.compute_returns(critic_obs)
            alg.update(iteration)
        outcomes.append(parameters_of(alg))
    assert_same_parameters(*outcomes)


def test_padding_has_no_effect_on_gradients():
    """Losses and gradients are bit-exact for any finite values in the padding of a mini-batch."""
    alg = make_ppo("lstm", num_learning_epochs=1)
    collect(alg, random_steps(6, 5, done_prob=0.4))
    (minibatch,) = alg.storage.reccurent_mini_batch_generator(1, 1)
    assert not minibatch.masks.all()
    assert torch.count_nonzero(minibatch.obs[~minibatch.masks]) == 0
    assert torch.count_nonzero(minibatch.critic_obs[~minibatch.masks]) == 0

    def gradients(batch):
        alg.optimizer.zero_grad()
        losses, _, _ = alg.compute_losses(batch)
        sum(losses.values()).backward()
        return {name: parameter.grad.clone() for name, parameter in alg.actor_critic.named_parameters()}

    soiled = {name: getattr(minibatch, name).clone() for name in ("obs", "critic_obs")}
    for tensor in soiled.values():
        tensor[~minibatch.masks] = 1e4
    assert_same_parameters(gradients(minibatch), gradients(minibatch._replace(**soiled)))


def test_update_does_not_modify_rollout():
    alg = make_ppo("lstm", num_learning_epochs=2, num_mini_batches=2)
    steps = random_steps(6, 5)
    given = [{name: value.clone() for name, value in step.items()} for step in steps]
    collect(alg, steps, infos=[{"time_outs": step["dones"]} for step in steps])
    alg.update(0)
    for before, after in zip(given, steps):
        assert all(torch.equal(before[name], after[name]) for name in before)
    assert alg.storage.step == 0


def test_update_moves_mean_towards_rewarded_actions():
    torch.manual_seed(0)
    policy = make_policy("mlp")
    alg = make_ppo(policy=policy, num_envs=256, num_steps=4, num_learning_epochs=4, learning_rate=3e-3)
    obs = torch.randn(64, OBS_DIM)
    before = policy.act_inference(obs).mean().item()
    for iteration in range(5):
        steps = random_steps(256, 4, seed=iteration, done_prob=1.0)

        def reward(step, actions):
            step["rewards"] = actions.sum(-1).clone()

        collect(alg, steps, on_step=reward)
        alg.update(iteration)
    assert policy.act_inference(obs).mean().item() > before + 0.05
