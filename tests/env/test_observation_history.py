"""`ObservationHistory`: past observations as an additional component."""

import pytest
import torch

from st_rl.env import ObservationHistory, check_env
from st_rl.runners import OnPolicyRunner
from tests.fakes import ClientEnv, EchoEnv, LegacyEnv


def roll(env, steps: int = 12):
    """Observations, dones and final observations of a rollout with random actions."""
    generator = torch.Generator().manual_seed(0)
    shown, ended, last = [env.get_observations()[0]], [], []
    for _ in range(steps):
        obs, _, dones, infos = env.step(torch.randn(env.num_envs, env.num_actions, generator=generator))
        shown.append(obs)
        ended.append(dones.bool())
        last.append(infos["final_observations"]["policy"])
    return shown, ended, last


def test_history_holds_observations_since_episode_start():
    plain, ended, last = roll(EchoEnv(num_envs=5, episode_length=4, termination_prob=0.2))
    shown, also_ended, also_last = roll(
        ObservationHistory(EchoEnv(num_envs=5, episode_length=4, termination_prob=0.2), 3)
    )
    for robot in range(5):
        past = [plain[0][robot]] * 3
        for step in range(13):
            if step > 0:
                assert bool(ended[step - 1][robot]) == bool(also_ended[step - 1][robot])
                expected = torch.cat([last[step - 1][robot], *past[1:], last[step - 1][robot]])
                assert torch.equal(also_last[step - 1][robot], expected), "the last observation has its history"
                new = plain[step][robot]
                past = [new] * 3 if ended[step - 1][robot] else [*past[1:], new]
            assert torch.equal(shown[step][robot], torch.cat([plain[step][robot], *past]))


def test_history_of_named_components_only():
    env = ObservationHistory(EchoEnv(num_envs=2, num_obs=5, num_actions=2), 4, ["target"])
    assert env.obs_segments == {"target": 2, "noise": (3,), "history": (4, 2)}
    assert env.num_obs == 5 + 4 * 2
    assert env.critic_obs_segments is env.obs_segments
    obs, _ = env.reset()
    assert torch.equal(obs[:, 5:], obs[:, :2].repeat(1, 4))


def test_passes_check_env():
    report = check_env(ObservationHistory(EchoEnv(num_privileged_obs=7), 3))
    assert not report


@pytest.mark.parametrize("make_env", [lambda: EchoEnv(num_privileged_obs=7), ClientEnv, LegacyEnv])
def test_critic_observation_is_unchanged(make_env):
    env = make_env()
    wrapped = ObservationHistory(make_env(), 2)
    cfg = {"num_steps_per_env": 4, "policy": {"actor_hidden_dims": [4], "critic_hidden_dims": [4]}, "algorithm": {}}
    runner = OnPolicyRunner(wrapped, cfg)
    runner.learn(2)
    assert runner.num_obs == env.num_obs + 2 * env.num_obs
    assert runner.num_critic_obs == (env.num_privileged_obs or 3 * env.num_obs)


def test_feed_forward_policy_with_history_solves_memory_task():
    torch.manual_seed(0)
    env = ObservationHistory(EchoEnv(num_envs=64, episode_length=8, memory=True), 2, ["target"])
    encoder = {"encoder_component_names": ["history"], "encoder_kwargs": {"hidden_sizes": [32], "nonlinearity": "ELU"}}
    runner = OnPolicyRunner(
        env,
        {
            "num_steps_per_env": 8,
            "policy": {
                "class_name": "EncoderActorCritic",
                "init_noise_std": 0.5,
                "actor_hidden_dims": [32],
                "critic_hidden_dims": [32],
                **encoder,
                "encoder_output_size": 8,
            },
            "algorithm": {
                "num_learning_epochs": 4,
                "num_mini_batches": 2,
                "learning_rate": 3e-3,
                "schedule": "adaptive",
                "desired_kl": 0.02,
            },
        },
    )
    runner.learn(60)
    policy, errors = runner.get_inference_policy(), []
    with torch.inference_mode():
        obs = env.reset()[0]
        for _ in range(16):
            wanted = env.target
            actions = policy(obs)
            errors.append((actions - wanted).square().mean())
            obs = env.step(actions)[0]
    assert float(torch.stack(errors).mean()) < 0.15, "without the past it is at 0.3"


def test_saved_state_continues_exactly():
    env, other = (ObservationHistory(EchoEnv(num_envs=3, seed=seed), 3) for seed in (0, 1))
    roll(env, 5)
    other.load_state_dict(env.state_dict())
    actions = torch.zeros(3, 2)
    assert torch.equal(env.step(actions)[0], other.step(actions)[0])


def test_rejects_invalid_settings():
    with pytest.raises(ValueError, match="length=0"):
        ObservationHistory(EchoEnv(), 0)
    with pytest.raises(AssertionError, match="no observation component named pose"):
        ObservationHistory(EchoEnv(), 2, ["pose"])
    nameless = EchoEnv()
    nameless.obs_segments = None
    with pytest.raises(ValueError, match="needs obs_segments"):
        ObservationHistory(nameless, 2)
