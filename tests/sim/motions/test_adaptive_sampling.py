"""Adaptive sampling of frames by failure rates."""

import pytest
import torch

from st_rl.sim.motions.adaptive_sampling import AdaptiveSampler
from tests.modules.graph_safety import NoHostSync


def make_sampler(num_frames=(101, 51), weights=(1.0, 1.0), **settings):
    buffers = {}

    def register_buffer(name, value):
        buffers[name] = value
        return value

    return AdaptiveSampler(num_frames, weights, 0.02, register_buffer, **settings), buffers


def uniform(count=20000):
    return torch.rand(count, 2, generator=torch.Generator().manual_seed(0))


def test_samples_all_but_the_last_frames_evenly_at_first():
    rows = make_sampler()[0].sample(uniform())
    counts = torch.bincount(rows, minlength=152)
    assert counts[[100, 151]].tolist() == [0, 0]
    assert counts[:100].min() > 80
    assert counts[101:151].min() > 80


def test_shifts_mass_to_bins_in_which_robots_fail():
    sampler, _ = make_sampler()
    assert sampler.bin_of_row[[0, 49, 50, 100, 101, 151]].tolist() == [0, 0, 1, 1, 2, 2]
    before = sampler.probabilities()
    rows = torch.arange(152)
    for _ in range(20):
        sampler.update(rows, (rows >= 50) & (rows < 60))
    after = sampler.probabilities()
    assert after[1] > 0.8 > before[1]
    torch.testing.assert_close(after.sum().item(), 1.0)
    # Bins without failures keep the uniform part.
    assert after.min() >= 0.1 / 3 - 1e-9
    sampled = sampler.bin_of_row[sampler.sample(uniform())]
    assert (sampled == 1).float().mean().item() == pytest.approx(float(after[1]), abs=0.02)


def test_failures_are_forgotten_and_a_clip_of_weight_zero_is_never_sampled():
    sampler, _ = make_sampler(weights=(1.0, 0.0), memory_s=1.0)
    rows = torch.arange(152)
    sampler.update(rows, rows == 10)
    high = sampler.probabilities()[0].item()
    for _ in range(500):
        sampler.update(rows, rows < 0)
    assert sampler.probabilities()[0].item() < high
    assert sampler.sample(uniform()).max() < 100


def test_counts_are_buffers_and_nothing_waits_for_the_device():
    sampler, buffers = make_sampler()
    rows = torch.arange(152)
    with NoHostSync():
        sampler.update(rows, rows > 100)
        sampler.sample(uniform(8))
    assert set(buffers) == {"sampling_failures", "sampling_visits"}
    assert buffers["sampling_failures"][2] == 51


def test_rejects_settings_with_their_names():
    with pytest.raises(ValueError, match="uniform_fraction 0"):
        make_sampler(uniform_fraction=0.0)
