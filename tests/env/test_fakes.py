import pytest
import torch

from tests.fakes import BEST_REWARD, BLIND_REWARD, ClientEnv, EchoEnv, LegacyEnv


@pytest.mark.parametrize("memory", [False, True])
def test_reward_is_highest_at_target(memory):
    env = EchoEnv(num_envs=64, num_obs=5, memory=memory, episode_length=7, termination_prob=0.1)
    shown = torch.zeros(64, 2)
    for _ in range(20):
        obs, _ = env.get_observations()
        answer = shown if memory else obs[:, :2]
        shown = obs[:, :2]
        assert torch.equal(env.target, answer)
        _, rewards, dones, _ = env.step(answer)
        assert torch.equal(rewards, torch.full((64,), BEST_REWARD))
        shown = torch.where(dones[:, None], 0.0, shown)


def test_ignoring_target_gives_blind_reward():
    env = EchoEnv(num_envs=512, memory=False)
    rewards = torch.stack([env.step(torch.zeros(512, 2))[1] for _ in range(20)])
    assert abs(rewards.mean().item() - BLIND_REWARD) < 0.01


def test_time_outs_final_observations_and_lengths():
    env = EchoEnv(num_envs=5, episode_length=5, stagger=True, num_privileged_obs=8)
    assert env.reset()[0].shape == (5, 4)
    finished = []
    for _ in range(10):
        before = env.episode_length_buf
        obs, _, dones, infos = env.step(torch.zeros(5, 2))
        assert torch.equal(infos["time_outs"], dones)
        assert torch.equal(dones, before + 1 >= 5)
        assert torch.equal(env.episode_length_buf, torch.where(dones, 0, before + 1))
        same = (infos["final_observations"]["policy"] == obs).all(dim=-1)
        assert torch.equal(same, ~dones)
        assert torch.allclose(infos["final_observations"]["critic"][:, 6], (before + 1) / 5)
        finished.append(dones)
    assert torch.equal(torch.stack(finished).sum(dim=0), torch.full((5,), 2))


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32])
def test_dones_have_configured_dtype(dtype):
    dones = EchoEnv(episode_length=1, dones_dtype=dtype).step(torch.zeros(8, 2))[2]
    assert dones.dtype == dtype
    assert dones.bool().all()


@pytest.mark.parametrize("kind", [EchoEnv, ClientEnv])
def test_loaded_state_continues_exactly(kind):
    env, other = kind(seed=1), kind(seed=2)
    actions = torch.randn(12, env.num_envs, env.num_actions, generator=torch.Generator().manual_seed(0))
    for action in actions[:6]:
        env.step(action)
    other.load_state_dict(env.state_dict())
    assert torch.equal(env.get_observations()[0], other.get_observations()[0])
    assert torch.equal(env.get_observations()[0], env.get_observations()[0])
    for action in actions[6:]:
        left, right = env.step(action), other.step(action)
        for a, b in zip(left[:3], right[:3]):
            assert torch.equal(a, b)
        if "ref_motion" in left[3]:
            assert torch.equal(left[3]["ref_motion"], right[3]["ref_motion"])


@pytest.mark.parametrize("where", ["obs", "critic", "rewards"])
@pytest.mark.parametrize("kind", ["nan_at_step", "inf_at_step"])
def test_non_finite_value_occurs_at_its_step_only(where, kind):
    env = EchoEnv(num_privileged_obs=6, inject_into=where, inject_row=2, **{kind: 3})
    for step in range(6):
        obs, rewards, _, infos = env.step(torch.zeros(8, 2))
        delivered = {"obs": obs, "critic": infos["observations"]["critic"], "rewards": rewards}
        for name, tensor in delivered.items():
            bad_rows = (~tensor.isfinite()).reshape(8, -1).any(dim=-1)
            assert bad_rows.tolist() == [row == 2 and name == where and step == 3 for row in range(8)]


def test_stepping_in_and_out_of_inference_mode():
    for env in (EchoEnv(), ClientEnv(), LegacyEnv()):
        actions = torch.zeros(8, env.num_actions)
        with torch.inference_mode():
            env.step(actions)
        env.episode_length_buf = torch.randint_like(env.episode_length_buf, high=env.max_episode_length)
        env.step(actions)
        env.reset()
