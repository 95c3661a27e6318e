"""Episode returns and lengths, compared with a loop over environments."""

import random

import numpy as np
import pytest
import torch

from st_rl.runners.iteration_statistics import (
    EpisodeStatistics,
    aggregate_infos,
    episode_scalars,
    infos_to_host,
    memory_scalars,
    read_scalars,
    select_last,
)

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


def test_infos_are_aggregated_over_entries_and_keys():
    infos = [
        {"reward": 1.0, "height_max": 0.25, "height_min": 0.25, "only_first": 7},
        {
            "reward": torch.tensor(2.0),
            "height_max": torch.tensor([0.5, 0.125]),
            "height_min": torch.tensor([0.5, 0.125]),
        },
        {"reward": np.float32(4.5), "height_max": np.array([0.3]), "height_min": [0.3], "only_last": True},
    ]
    assert aggregate_infos(infos) == {
        "reward": 2.5,
        "height_max": 0.5,
        "height_min": 0.125,
        "only_first": 7.0,
        "only_last": 1.0,
    }


def test_nan_is_ignored_in_mean_max_and_min():
    nan = float("nan")
    infos = [{"a": nan, "a_max": nan, "a_min": 3.0, "b": nan}, {"a": 2.0, "a_max": 5.0, "a_min": nan, "b": nan}]
    assert aggregate_infos(infos) == {"a": 2.0, "a_max": 5.0, "a_min": 3.0}


def test_entries_are_weighted_by_number_of_values():
    infos = [{"x": torch.tensor([1.0, 2.0, 3.0])}, {"x": torch.tensor([])}, {"x": 6.0}]
    assert aggregate_infos(infos) == {"x": 3.0}


def test_text_is_skipped_and_infos_are_unmodified():
    value = torch.tensor([1.0, float("nan")], requires_grad=True)
    infos = [{"x": value, "terrain": "stairs", "none": None}]
    assert aggregate_infos(infos) == {"x": 1.0}
    assert infos[0]["x"] is value
    assert list(infos[0]) == ["x", "terrain", "none"]
    assert aggregate_infos([]) == {}


def test_double_precision_is_kept():
    assert aggregate_infos([{"x": 0.1}, {"x": 0.1}]) == {"x": 0.1}
    assert read_scalars({"lr": 3e-4, "loss": torch.tensor(0.5), "many": torch.tensor([1.0, 2.0])}) == {
        "lr": 3e-4,
        "loss": 0.5,
        "many": 1.5,
    }
    assert read_scalars({}) == {}


def test_key_with_slash_is_used_as_tag():
    assert episode_scalars([{"Curriculum/level": 3, "echo": 1.0}]) == {"Curriculum/level": 3.0, "Episode/echo": 1.0}


def test_memory_of_process_grows_with_allocations():
    before = memory_scalars("cpu")["Perf/process_memory"]
    # Large beside what other threads and the garbage collector release meanwhile.
    block = np.ones(256 * 1024**2, dtype=np.uint8)
    after = memory_scalars("cpu")
    assert list(after) == ["Perf/process_memory"]
    assert after["Perf/process_memory"] - before == pytest.approx(block.nbytes / 1024**3, rel=0.2)


@pytest.mark.gpu
def test_memory_of_gpu():
    memory = memory_scalars("cuda")
    assert 0 <= memory["Perf/gpu_allocated"] < memory["Perf/gpu_total"]
    assert 0 < memory["Perf/gpu_global_free_mem"] < memory["Perf/gpu_total"]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_infos_on_host_aggregate_to_same_values(device):
    infos = [
        {"x": torch.tensor(0.5, device=device), "many": torch.tensor([1.0, 3.0], device=device), "word": "stairs"},
        {"x": torch.tensor([1.5], device=device), "y": 2},
    ]
    read = infos_to_host(infos)
    assert aggregate_infos(read) == aggregate_infos(infos) == {"x": 1.0, "many": 2.0, "y": 2.0}
    assert read[0] is not infos[0]
    assert isinstance(infos[0]["x"], torch.Tensor)


@pytest.mark.gpu
def test_infos_are_copied_before_next_rollout_overwrites_them():
    values = torch.ones(5000, device="cuda")
    read = infos_to_host([{"x": values}])
    values.zero_()
    assert aggregate_infos(read) == {"x": 1.0}
