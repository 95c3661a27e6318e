import multiprocessing
from collections import OrderedDict, namedtuple

import numpy as np
import pytest
import torch

from st_rl.utils.buffer import (
    buffer_expand,
    buffer_from_example,
    buffer_func,
    buffer_method,
    buffer_swap,
    buffer_to,
    build_array,
    get_leading_dims,
    numpify_buffer,
    torchify_buffer,
)
from st_rl.utils.collections import namedarraytuple

State = namedarraytuple("State", ["hidden", "cell"])
Plain = namedtuple("Plain", "x")


def nested():
    return OrderedDict(
        state=State(torch.arange(6.0).view(3, 2), None),
        arrays=[np.arange(3), (torch.ones(3, 1, dtype=torch.bool),)],
        plain=Plain(torch.zeros(3)),
        nothing=None,
    )


def test_zero_buffer_has_containers_dtypes_and_shapes_of_example():
    buffer = buffer_from_example(nested(), (5, 2))
    assert type(buffer) is OrderedDict
    assert type(buffer["state"]) is State
    assert type(buffer["plain"]) is Plain
    assert type(buffer["arrays"]) is list
    assert buffer["state"].hidden.shape == (5, 2, 3, 2)
    assert buffer["state"].cell is None
    assert buffer["nothing"] is None
    assert isinstance(buffer["arrays"][0], np.ndarray)
    assert buffer["arrays"][0].dtype == np.arange(3).dtype
    assert buffer["arrays"][1][0].dtype == torch.bool
    assert not buffer["state"].hidden.any()
    assert buffer_from_example(torch.zeros(2, device="meta"), 4).device.type == "meta"
    assert buffer_from_example(torch.zeros(2), 4).shape == (4, 2)
    assert buffer_from_example(None, 4) is None


def test_build_array_from_numbers_and_lists():
    assert build_array(1.5, 3).shape == (3,)
    assert build_array([1, 2], (3, 4)).shape == (3, 4, 2)
    assert build_array(True, 2).dtype == np.bool_
    with pytest.raises(TypeError, match="dict"):
        build_array({}, 2)


def _write(torch_part, numpy_part):
    torch_part[1] = 3.0
    numpy_part[1] = 4


def test_shared_memory_is_visible_to_another_process():
    buffer = buffer_from_example([torch.zeros(2), np.zeros(2, dtype=np.int32)], 3, share_memory=True)
    process = multiprocessing.get_context("fork").Process(target=_write, args=buffer)
    process.start()
    process.join(30)
    assert buffer[0].tolist() == [[0, 0], [3, 3], [0, 0]]
    assert buffer[1].tolist() == [[0, 0], [4, 4], [0, 0]]


@pytest.mark.parametrize("dim", [0, 1])
def test_expand_appends_zeros_and_keeps_the_rows(dim):
    example = State(torch.ones(2, 3), np.ones((2, 3), dtype=np.int64))
    longer = buffer_expand(example, 2, dim=dim)
    expected = np.zeros((4, 3) if dim == 0 else (2, 5))
    expected[:2, :3] = 1
    np.testing.assert_array_equal(longer.hidden.numpy(), expected)
    np.testing.assert_array_equal(longer.cell, expected)
    assert longer.cell.dtype == np.int64
    assert example.hidden.shape == (2, 3)
    assert buffer_expand(example, 0).hidden.shape == (2, 3)
    assert buffer_expand(torch.ones(3, 2).t(), 1, contiguous=True).is_contiguous()
    with pytest.raises(ValueError, match="-1"):
        buffer_expand(example, -1)


def test_swap_moves_rows_from_cursor_to_front():
    example = State(torch.arange(5), np.arange(5))
    for cursor in range(6):
        expected = [*range(cursor, 5), *range(cursor)]
        swapped = buffer_swap(example, cursor)
        assert swapped.hidden.tolist() == expected
        assert swapped.cell.tolist() == expected
    assert buffer_swap(example, 0).hidden is example.hidden
    assert buffer_swap(example, 5).cell is example.cell
    assert buffer_swap(None, 2) is None
    with pytest.raises(ValueError, match="dim=1"):
        buffer_swap(example, 1, dim=1)
    with pytest.raises(ValueError, match="cursor 6"):
        buffer_swap(example, 6)


def test_torch_and_numpy_share_memory_both_ways():
    array, tensor = np.zeros(3), torch.zeros(3)
    as_torch = torchify_buffer([array, tensor, None, np.float32(2.0)])
    as_torch[0][0] = 5
    assert array[0] == 5
    assert as_torch[1] is tensor
    assert as_torch[2] is None
    assert as_torch[3].dtype == torch.float32
    as_numpy = numpify_buffer({"a": tensor, "b": array, "c": torch.ones(1, requires_grad=True)})
    as_numpy["a"][0] = 6
    assert tensor[0] == 6
    assert as_numpy["b"] is array
    assert isinstance(as_numpy["c"], np.ndarray)


def test_move_method_and_function_reach_every_leaf():
    moved = buffer_to(State(torch.zeros(2), None), "meta")
    assert moved.hidden.device.type == "meta"
    with pytest.raises(TypeError, match="torchify_buffer"):
        buffer_to([np.zeros(2)], "cpu")
    assert buffer_method(State(torch.ones(2), None), "sum").hidden == 2
    assert buffer_method([torch.ones(2, 3)], "sum", dim=1)[0].tolist() == [3, 3]
    assert buffer_func({"a": torch.ones(2)}, torch.mul, 3)["a"].tolist() == [3, 3]
    assert buffer_func(None, torch.mul, 3) is None


def test_leading_dims_must_agree():
    buffer = State(torch.zeros(4, 2, 3), [np.zeros((4, 2)), None])
    assert get_leading_dims(buffer) == (4,)
    assert get_leading_dims(buffer, n_dim=2) == (4, 2)
    assert get_leading_dims(None) is None
    with pytest.raises(ValueError, match="different"):
        get_leading_dims(buffer, n_dim=3)
