from collections import OrderedDict

import numpy as np
import pytest
import torch

from st_rl.utils.tensors.segments import segment_slices, segment_width
from st_rl.utils.utils import get_obs_slice, get_subobs_by_components, get_subobs_size, substitute_estimated_state

SEGMENTS = OrderedDict(lin_vel=3, image=(1, 2, 4), command=[2], extra=np.int64(5))
WIDTH = 3 + 8 + 2 + 5


def test_slices_have_python_ints_and_stored_shapes():
    where, shape = get_obs_slice(SEGMENTS, "command")
    assert (where.start, where.stop) == (11, 13)
    assert type(where.start) is int
    assert type(where.stop) is int
    assert shape is SEGMENTS["command"]
    where, _ = get_obs_slice(SEGMENTS, "extra")
    assert (type(where.start), type(where.stop), where.stop) == (int, int, WIDTH)
    torch.nn.GRU(where.stop, 4)  # refuses numpy ints


def test_plain_int_in_parentheses_is_a_width():
    where, shape = get_obs_slice(OrderedDict({"obs": (103), "privileged_obs": (91)}), "privileged_obs")
    assert (where.start, where.stop, shape) == (103, 194, 91)


def test_widths():
    assert segment_width(7) == 7
    assert segment_width((2, 3, 4)) == 24
    assert segment_width(torch.Size([2, 5])) == 10
    assert type(segment_width(np.int32(4))) is int
    assert list(segment_slices(SEGMENTS)) == list(SEGMENTS)
    assert get_subobs_size(SEGMENTS, ["extra", "image"]) == 13
    assert get_subobs_size(SEGMENTS, []) == 0


def test_sub_observation_is_in_segment_order():
    obs = torch.arange(2.0 * WIDTH).view(2, WIDTH)
    expected = torch.cat([obs[:, 0:3], obs[:, 11:13]], dim=-1)
    assert torch.equal(get_subobs_by_components(obs, ["command", "lin_vel"], SEGMENTS), expected)
    sequence = obs.expand(4, 2, WIDTH)
    assert torch.equal(get_subobs_by_components(sequence, ("command", "lin_vel"), SEGMENTS), expected.expand(4, 2, 5))
    assert get_subobs_by_components(obs, [], SEGMENTS).shape == (2, 0)


def test_estimate_replaces_targets_only_in_segment_order():
    obs = torch.zeros(2, WIDTH)
    estimate = torch.arange(1.0, 11.0).view(2, 5)
    returned = substitute_estimated_state(obs, ["command", "lin_vel"], estimate, SEGMENTS)
    assert returned is obs
    assert torch.equal(obs[:, :3], estimate[:, :3])
    assert torch.equal(obs[:, 11:13], estimate[:, 3:])
    assert torch.count_nonzero(obs) == 10


def test_unknown_component_raises_assertion_error_with_known_ones():
    obs = torch.zeros(2, WIDTH)
    for call in (
        lambda: get_obs_slice(SEGMENTS, "depth"),
        lambda: get_subobs_size(SEGMENTS, ["depth"]),
        lambda: get_subobs_by_components(obs, ["depth"], SEGMENTS),
        lambda: substitute_estimated_state(obs, ["depth"], obs, SEGMENTS),
    ):
        with pytest.raises(AssertionError, match=r"depth.*lin_vel"):
            call()


def test_rejects_estimate_of_wrong_width():
    with pytest.raises(ValueError, match="width 4"):
        substitute_estimated_state(torch.zeros(2, WIDTH), ["lin_vel"], torch.zeros(2, 4), SEGMENTS)
