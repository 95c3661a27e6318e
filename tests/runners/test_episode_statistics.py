"""Episode returns and lengths, compared with a loop over environments."""

import random

import pytest
import torch

from st_rl.runners.episode_statistics import EpisodeStatistics, select_last

T, N = 7, 5


def rollouts(count, seed=0):
    generator = random.Random(seed)
    for _ in range(count):
        yield [
            ([generator.uniform(-1, 1) for _ in range(N)], [generator.random() < 0.3 for _ in range(N)])
            for _ in range(T)
        ]


def by_hand(all_rollouts):
    """The three lists in plain Python, environment by environment."""
    sums, lengths = [0.0] * N, [0] * N
    frames, returns, ends = [], [], []
    for rollout in all_rollouts:
        for rewards, dones in rollout:
            for robot in range(N):
                sums[robot] += rewards[robot]
                lengths[robot] += 1
                if dones[robot]:
                    returns.append(sums[robot])
                    ends.append(lengths[robot])
                    sums[robot], lengths[robot] = 0.0, 0
                else:
                    frames.append(rewards[robot])
    return frames[-2000:], returns[-100:], ends[-100:]


def feed(statistics, all_rollouts, dtype=torch.bool):
    for rollout in all_rollouts:
        for rewards, dones in rollout:
            statistics.record(torch.tensor(rewards), torch.tensor(dones).to(dtype))
        statistics.summarize()
        statistics.drain()


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32])
@pytest.mark.parametrize("count", [1, 4, 80])
def test_buffers_equal_a_loop_over_envs(count, dtype):
    statistics = EpisodeStatistics(T, N, "cpu")
    feed(statistics, rollouts(count), dtype)
    frames, returns, lengths = by_hand(rollouts(count))
    assert list(statistics.rframebuffer) == pytest.approx(frames, abs=1e-5)
    assert list(statistics.rewbuffer) == pytest.approx(returns, abs=1e-4)
    assert list(statistics.lenbuffer) == lengths
    assert (statistics.rframebuffer.maxlen, statistics.rewbuffer.maxlen, statistics.lenbuffer.maxlen) == (
        2000,
        100,
        100,
    )


def test_loaded_state_continues_exactly():
    whole = EpisodeStatistics(T, N, "cpu")
    feed(whole, rollouts(6))
    first, second = EpisodeStatistics(T, N, "cpu"), EpisodeStatistics(T, N, "cpu")
    feed(first, list(rollouts(6))[:3])
    state = first.state_dict()
    feed(first, list(rollouts(6))[3:5])  # the state is a copy
    feed(second, rollouts(1))  # earlier records are replaced
    second.load_state_dict(state)
    feed(second, list(rollouts(6))[3:])
    for name in ("rframebuffer", "rewbuffer", "lenbuffer"):
        assert list(getattr(whole, name)) == list(getattr(second, name))


def test_new_episodes_keep_buffers_and_reset_running_sums():
    first, second = EpisodeStatistics(T, N, "cpu"), EpisodeStatistics(T, N + 2, "cpu")
    feed(first, rollouts(2))
    second.load_state_dict(first.state_dict(), same_episodes=False)
    assert list(second.rewbuffer) == list(first.rewbuffer)
    assert not second.cur_reward_sum.any()


def test_discarded_rollout_frees_its_rows():
    statistics = EpisodeStatistics(T, N, "cpu")
    for _ in range(T - 1):
        statistics.record(torch.ones(N), torch.zeros(N))
    statistics.drop()
    feed(statistics, rollouts(1))
    assert len(statistics.rframebuffer) + len(statistics.rewbuffer) == T * N


@pytest.mark.parametrize("share", [0.0, 0.1, 0.6, 1.0])
@pytest.mark.parametrize("count", [1, 4, 50])
def test_select_last_selects_the_last_columns(share, count):
    values, chosen = torch.randn(3, 20), torch.rand(20) < share
    expected = values[:, chosen][:, -count:]
    result = select_last(values, chosen, count)
    assert result.shape == (3, count)
    missing = count - expected.shape[1]
    assert torch.equal(result[:, missing:], expected)
    assert not result[:, :missing].any()
