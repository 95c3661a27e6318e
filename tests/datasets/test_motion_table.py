"""Frames of several clips in one table, blended at any time."""

import numpy as np
import pytest
import torch

from st_rl.datasets.motion_table import MotionTable
from st_rl.utils.tensors.rotations import quat_slerp
from tests.datasets.clips import random_quaternions
from tests.modules.graph_safety import NoHostSync


def table_and_clips():
    rng = np.random.default_rng(0)
    clips = [torch.from_numpy(rng.normal(size=(count, 3))).float() for count in (5, 2, 9)]
    return MotionTable(clips, [0.1, 0.2, 0.05], [1.0, 0.0, 4.0], "cpu"), clips


def test_any_time_of_any_clip():
    table, clips = table_and_clips()
    rng = np.random.default_rng(1)
    clip, time = rng.integers(3, size=100), rng.uniform(-0.1, 0.6, size=100)
    got = table.at(torch.from_numpy(clip), torch.from_numpy(time))
    for row, c, t in zip(got.numpy(), clip, time):
        grid = np.arange(len(clips[c])) * (0.1, 0.2, 0.05)[c]
        np.testing.assert_allclose(row, [np.interp(t, grid, column) for column in clips[c].numpy().T], atol=1e-6)
    np.testing.assert_allclose(table.lengths, [0.4, 0.2, 0.4])


def test_samples_clips_by_weight():
    table, _ = table_and_clips()
    uniform = (torch.arange(1000) + 0.5) / 1000
    counts = torch.bincount(table.sample_clips(uniform), minlength=3)
    assert counts.tolist() == [200, 0, 800]


def test_samples_only_clip_and_rejects_zero_weights():
    clip = torch.rand(4, 2)
    table = MotionTable([clip], [0.1], [0.3], "cpu")
    assert table.sample_clips(torch.rand(5)).tolist() == [0] * 5
    with pytest.raises(ValueError, match="sampled by their weights"):
        MotionTable([clip, clip], [0.1, 0.1], [0.0, 0.0], "cpu")


def test_reading_has_no_host_sync():
    table, _ = table_and_clips()
    with NoHostSync():
        table.at(table.sample_clips(torch.rand(8)), torch.rand(8))


def test_rotations_turn_at_a_constant_rate_along_the_short_arc():
    rng = np.random.default_rng(2)
    a, b = torch.from_numpy(random_quaternions(rng, 2, 50))
    angle = 2 * torch.acos((a * b).sum(dim=1).abs())
    for share in (0.0, 0.3, 1.0):
        middle = quat_slerp(a, b, torch.full((50, 1), share, dtype=torch.float64))
        torch.testing.assert_close(middle.norm(dim=1), torch.ones(50, dtype=torch.float64))
        from_start = 2 * torch.acos((a * middle).sum(dim=1).abs().clamp(max=1.0))
        torch.testing.assert_close(from_start, share * angle, atol=1e-6, rtol=0)
    same = quat_slerp(a, a, torch.full((50, 1), 0.5, dtype=torch.float64))
    torch.testing.assert_close(same, a)
