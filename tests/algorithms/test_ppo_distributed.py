"""Two ranks end with the weights of one rank that has all the data."""

import pytest
import torch

from st_rl.algorithms import PPO
from st_rl.modules import ActorCritic, ActorCriticRecurrent
from st_rl.utils.distributed import rank
from tests.algorithms.rollouts import CRITIC_DIM, NUM_ACTIONS, OBS_DIM, random_steps
from tests.ranks import run_ranks

NUM_ENVS, NUM_STEPS, ITERATIONS = 8, 5, 3
RND = {"num_states": OBS_DIM, "num_outputs": 3, "predictor_hidden_dims": [8], "target_hidden_dims": [8], "weight": 0.1}


class Repeatable(ActorCritic):
    """Acts without random numbers, so that actions do not depend on the rank."""

    def act(self, observations, **kwargs):
        actions = super().act(observations, **kwargs)
        if observations.dim() == 2:
            actions = self.action_mean.detach() + torch.sin(9.0 * observations[:, :NUM_ACTIONS])
        return actions


class RepeatableMlp(Repeatable):
    pass


class RepeatableLstm(Repeatable, ActorCriticRecurrent):
    pass


def train(policy_class, envs, bad_iteration=None, seed=0):
    """Train on the given environments; returns the values that must be equal on every rank."""
    torch.manual_seed(0)
    settings = {"actor_hidden_dims": [8], "critic_hidden_dims": [8], "rnn_type": "lstm", "rnn_hidden_size": 6}
    policy = policy_class(OBS_DIM, CRITIC_DIM, NUM_ACTIONS, **settings)
    # From here every rank has its own random numbers, also for the RND networks.
    torch.manual_seed(seed)
    alg = PPO(
        policy, num_learning_epochs=3, num_mini_batches=1, schedule="adaptive", learning_rate=4e-3, desired_kl=1.5e-3,
        entropy_coef=0.01, empirical_normalization=True, rnd_cfg=RND,
        reward_normalization=True,
    )  # fmt: skip
    alg.init_obs_norm(OBS_DIM, CRITIC_DIM)
    for normalizer in (alg.obs_normalizer, alg.critic_obs_normalizer, alg.reward_normalizer.statistics):
        normalizer.defers_updates = True  # as on several ranks
    alg.init_storage(envs.stop - envs.start, NUM_STEPS, [OBS_DIM], [CRITIC_DIM], [NUM_ACTIONS])
    alg.train_mode()
    rates, bad = [], []
    for iteration in range(ITERATIONS):
        steps = random_steps(NUM_ENVS, NUM_STEPS, seed=iteration)
        for step in steps:
            # Different reward scale per rank, so that the KL of the ranks differs.
            step["obs"][NUM_ENVS // 2 :] *= 6.0
        steps = [{name: value[envs] for name, value in step.items()} for step in steps]
        with torch.inference_mode():
            for step in steps[:-1]:
                obs, critic_obs = alg.obs_normalizer(step["obs"]), alg.critic_obs_normalizer(step["critic_obs"])
                alg.act(obs, critic_obs)
                infos = {"observations": {"rnd_state": step["obs"]}, "time_outs": step["dones"]}
                alg.process_env_step(step["rewards"], step["dones"], infos)
            alg.compute_returns(alg.critic_obs_normalizer(steps[-1]["critic_obs"]))
        if iteration == bad_iteration and envs.start == 0:
            alg.storage.returns[0, 0] = float("nan")
        alg.update(iteration)
        rates.append(float(alg.learning_rate))
        bad.append(alg.non_finite_counts().get("gradient_norm", 0))
    state = {f"policy.{k}": v for k, v in alg.actor_critic.state_dict().items()}
    state |= {f"obs.{k}": v for k, v in alg.obs_normalizer.state_dict().items()}
    state |= {f"critic_obs.{k}": v for k, v in alg.critic_obs_normalizer.state_dict().items()}
    state |= {f"rnd.{k}": v for k, v in alg.rnd.state_dict().items()}
    state |= {f"rewards.{k}": v for k, v in alg.reward_normalizer.statistics.state_dict().items()}
    return {"state": state, "rates": rates, "bad": bad}


def cases():
    return {
        "mlp": lambda envs, seed: train(RepeatableMlp, envs, seed=seed),
        "lstm": lambda envs, seed: train(RepeatableLstm, envs, seed=seed),
        "bad": lambda envs, seed: train(RepeatableMlp, envs, bad_iteration=1, seed=seed),
    }


def train_half(folder):
    """Train on half of the environments of each case."""
    half = NUM_ENVS // 2
    envs = slice(rank() * half, (rank() + 1) * half)
    return {name: run(envs, rank()) for name, run in cases().items()}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return run_ranks(train_half, tmp_path_factory.mktemp("ranks"), 2)


@pytest.mark.parametrize("case", list(cases()))
def test_ranks_end_with_equal_state(ranks, case):
    first, second = (result[case] for result in ranks)
    assert first["rates"] == second["rates"]
    assert first["bad"] == second["bad"]
    for name, value in first["state"].items():
        assert torch.equal(value, second["state"][name]), name


@pytest.mark.parametrize("case", ["mlp", "lstm"])
def test_two_ranks_equal_one_with_all_the_data(ranks, case):
    alone = cases()[case](slice(0, NUM_ENVS), 0)
    together = ranks[0][case]
    assert together["rates"] == pytest.approx(alone["rates"], rel=1e-9)
    assert len(set(alone["rates"])) > 1
    for name, value in alone["state"].items():
        torch.testing.assert_close(
            together["state"][name], value, atol=3e-5, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_non_finite_value_on_one_rank_skips_step_on_both(ranks):
    for result in ranks:
        assert result["bad"]["bad"] == [0, 3, 0]
        assert all(torch.isfinite(value.float()).all() for value in result["bad"]["state"].values())
