"""Options of PPO that tasks of gymnasium need: normalized rewards, mini-batches of every epoch, annealing."""

import numpy as np
import pytest
import torch

from st_rl.algorithms import TPPO
from tests.algorithms.rollouts import collect, make_ppo, random_steps
from tests.fakes import EchoEnv
from tests.runners.training import make_runner, small_config

NUM_ENVS, NUM_STEPS = 6, 5


def update_after_rollout(alg, iteration=0, seed=0):
    collect(alg, random_steps(NUM_ENVS, NUM_STEPS, seed=seed))
    return alg.update(iteration)


def sampled_batches(alg):
    """The mini-batches that one update steps on."""
    batches = []
    step = alg.minibatch_step
    alg.minibatch_step = lambda minibatch: (batches.append(minibatch), step(minibatch))[1]
    update_after_rollout(alg)
    return batches


def test_stored_rewards_are_divided_by_the_spread_of_discounted_returns_and_clipped():
    alg = make_ppo(num_envs=NUM_ENVS, num_steps=NUM_STEPS, gamma=0.9, reward_normalization=True, reward_clip=1.5)
    sums, seen, clipped = np.zeros(NUM_ENVS), [], 0
    for rollout in range(4):
        steps = random_steps(NUM_ENVS, NUM_STEPS, seed=rollout)
        collect(alg, steps)
        for number, step in enumerate(steps[:-1]):
            rewards = step["rewards"].double().numpy()
            sums = 0.9 * sums + rewards
            seen.append(sums.copy())
            scaled = rewards / np.concatenate(seen).std()
            clipped += int((np.abs(scaled) > 1.5).sum())
            np.testing.assert_allclose(alg.storage.rewards[number, :, 0], np.clip(scaled, -1.5, 1.5), rtol=2e-4)
            sums[step["dones"].numpy() > 0] = 0.0
        alg.update(rollout)
    assert clipped > 0


def test_value_of_a_timed_out_state_is_not_scaled():
    alg = make_ppo(num_envs=NUM_ENVS, num_steps=NUM_STEPS, reward_normalization=True)
    steps = random_steps(NUM_ENVS, NUM_STEPS)
    time_outs = [{"time_outs": step["dones"]} for step in steps]
    collect(alg, steps, infos=time_outs)
    reference = make_ppo(num_envs=NUM_ENVS, num_steps=NUM_STEPS, reward_normalization=True)
    collect(reference, steps)
    done = alg.storage.dones > 0
    added = alg.storage.rewards - reference.storage.rewards
    torch.testing.assert_close(added[done], alg.gamma * alg.storage.values[done], rtol=1e-4, atol=1e-5)


class LargeRewards(EchoEnv):
    def step(self, actions):
        obs, rewards, dones, infos = super().step(actions)
        return obs, 1000.0 + 0.0 * rewards, dones, infos


def test_logged_returns_are_in_the_units_of_the_task():
    runner = make_runner(LargeRewards(episode_length=4), small_config(algorithm={"reward_normalization": True}))
    runner.learn(2)
    assert set(runner._episodes.rewbuffer) == {4000.0}
    assert runner.alg.storage.rewards.abs().max() < 20.0


@pytest.mark.parametrize("kind", ["mlp", "lstm"])
def test_every_epoch_has_mini_batches_of_its_own(kind):
    settings = {"num_learning_epochs": 3, "num_mini_batches": 2}
    same = sampled_batches(make_ppo(kind, NUM_ENVS, NUM_STEPS, **settings))
    drawn = sampled_batches(make_ppo(kind, NUM_ENVS, NUM_STEPS, shuffle_every_epoch=True, **settings))
    epochs = [[batch.actions.flatten(0, -2) for batch in drawn[first : first + 2]] for first in (0, 2, 4)]
    # Each epoch has all samples once, in another split.
    everything = [torch.cat(epoch).sort(dim=0).values for epoch in epochs]
    assert len(everything[0]) == NUM_ENVS * NUM_STEPS
    assert all(torch.equal(samples, everything[0]) for samples in everything)
    first_halves = [epoch[0].sort(dim=0).values for epoch in epochs]
    assert not torch.equal(first_halves[0], first_halves[1]) or not torch.equal(first_halves[0], first_halves[2])
    assert same[0] is same[2] is same[4]


def test_recurrent_mini_batches_of_random_environments_fit_the_static_size():
    alg = make_ppo("lstm", NUM_ENVS, NUM_STEPS)
    collect(alg, random_steps(NUM_ENVS, NUM_STEPS, done_prob=0.4))
    storage = alg.storage
    storage.shuffles_envs = True
    capacity = int(storage.max_trajectories(3))
    for _ in range(5):
        batches = list(storage.reccurent_mini_batch_generator(3, 1))
        assert max(batch.obs.shape[1] for batch in batches) <= capacity
        # Each trajectory keeps the hidden state of its own environment and step.
        for batch in batches:
            recorded = storage.observations.flatten(0, 1)
            first = batch.obs[0]
            index = (first.unsqueeze(1) == recorded.unsqueeze(0)).all(-1).int().argmax(1)
            steps, envs = index // NUM_ENVS, index % NUM_ENVS
            for saved, given in zip(storage.saved_hidden_states.actor, batch.hidden_states.actor):
                assert torch.equal(given, saved[steps, :, envs].transpose(0, 1))


def test_learning_rate_and_clip_range_fall_linearly():
    settings = {"learning_rate": 0.4, "clip_param": 0.2, "anneal_iterations": 4}
    alg = make_ppo(anneal_learning_rate=True, anneal_clip_param=True, **settings)
    rates, ranges = [], []
    for iteration in range(6):
        alg.current_learning_iteration = iteration
        rates.append(float(alg.learning_rate))
        ranges.append(float(alg.clip_range))
    assert rates == pytest.approx([0.4, 0.3, 0.2, 0.1, 0.1, 0.1])
    assert ranges == pytest.approx([0.2, 0.15, 0.1, 0.05, 0.05, 0.05])
    assert alg.optimizer.param_groups[0]["lr"] == pytest.approx(0.1)
    assert make_ppo(clip_param=0.3).clip_range == 0.3


def test_losses_use_the_annealed_clip_range():
    losses = []
    for settings in ({"clip_param": 0.05}, {"clip_param": 0.2, "anneal_clip_param": True, "anneal_iterations": 4}):
        torch.manual_seed(0)
        alg = make_ppo(num_envs=NUM_ENVS, num_steps=NUM_STEPS, learning_rate=0.05, num_learning_epochs=4, **settings)
        losses.append({name: float(value) for name, value in update_after_rollout(alg, iteration=3)[0].items()})
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_annealing_defaults_to_iterations_of_run():
    config = small_config(algorithm={"anneal_learning_rate": True, "learning_rate": 0.4}, max_iterations=8)
    runner = make_runner(config=config)
    runner.learn(3)
    assert float(runner.alg.learning_rate) == pytest.approx(0.4 * 6 / 8)


def test_advantages_of_each_mini_batch_have_mean_0_and_deviation_1():
    alg = make_ppo(num_envs=NUM_ENVS, num_steps=NUM_STEPS, num_mini_batches=2, normalize_advantage_per_mini_batch=True)
    (batch, other) = sampled_batches(alg)
    assert abs(batch.advantages.mean()) > 1e-3
    _, inter_vars, _ = alg.compute_losses(batch)
    advantages = batch.advantages[:, 0].double().numpy()
    expected = (advantages - advantages.mean()) / advantages.std(ddof=1)
    np.testing.assert_allclose(-inter_vars["surrogate"].detach() / inter_vars["ratio"].detach(), expected, rtol=1e-4)
    assert other is not batch


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"anneal_learning_rate": True}, "anneal_iterations is None"),
        ({"anneal_clip_param": True, "anneal_iterations": 0}, "anneal_iterations is 0"),
        (
            {"anneal_learning_rate": True, "anneal_iterations": 5, "schedule": "adaptive"},
            "anneal_learning_rate=True and schedule='adaptive' would both set the learning rate",
        ),
        ({"reward_normalization": True, "reward_clip": 0.0}, "reward_clip is 0.0"),
    ],
)
def test_rejects_options_that_cannot_train(settings, message):
    with pytest.raises(ValueError, match=message):
        make_ppo(**settings)


def test_rejects_a_scheduler_beside_an_annealed_rate():
    settings = {"anneal_learning_rate": True, "anneal_iterations": 5, "lr_scheduler_class_name": "ConstantLR"}
    with pytest.raises(ValueError, match="and anneal_learning_rate=True would both set"):
        make_ppo(algorithm=TPPO, **settings)
