"""Aggregated infos, scalars and console rows of an iteration."""

import math

import numpy as np
import pytest
import torch

from st_rl.loggers.iteration_report import (
    aggregate_infos,
    console_rows,
    episode_scalars,
    format_duration,
    infos_to_host,
    memory_scalars,
    read_scalars,
)


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


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00:00"), (59.9, "0:00:59"), (3661, "1:01:01"), (-5, "0:00:00"), (360000, "100:00:00")]
)
def test_format_duration(seconds, text):
    assert format_duration(seconds) == text


def rows_of(**scalars):
    base = {"Perf/total_fps": 123456.7, "Policy/mean_noise_std": 0.5, "Metrics/velrmsd": 0.25, "Metrics/CoT": 1.5}
    base["Perf/process_memory"] = 0.534
    locs = {"collection_time": 0.5, "learn_time": 0.25}
    return dict(console_rows({**base, **scalars}, {"Episode/echo": 0.125}, locs, 1_000_000, 3600.0, 61.0))


def test_rows_of_the_console():
    assert rows_of(
        **{"Loss/value_loss": 0.0123456, "Train/mean_reward": 12.345, "Train/mean_episode_length": 99.96}
    ) == {
        "Computation": "123,457 steps/s",
        "Collection + learning": "0.500 s + 0.250 s",
        "value_loss": "0.01235",
        "Mean action noise std": "0.500",
        "Mean reward": "12.35",
        "Mean episode length": "100.0",
        "Episode/echo": "0.1250",
        "Velocity error": "0.2500",
        "Cost of transport": "1.5000",
        "Total timesteps": "1,000,000",
        "Process memory": "0.53 GiB",
        "Iteration time": "0.750 s",
        "Total time": "1:00:00",
        "ETA": "0:01:01",
    }


def test_rows_show_memory_of_gpu():
    rows = rows_of(**{"Perf/gpu_allocated": 3.0, "Perf/gpu_global_free_mem": 67.5, "Perf/gpu_total": 79.25})
    assert rows["GPU memory"] == "11.75 of 79.25 GiB"


def test_rows_without_a_value_are_not_shown():
    rows = rows_of(**{"Metrics/velrmsd": math.nan, "Metrics/CoT": math.nan})
    assert not {"Mean reward", "Velocity error", "Cost of transport"} & set(rows)


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
