import time
from pathlib import Path

import numpy as np
import pytest
import torch

from st_rl.utils.distributed import (
    average,
    average_in_place,
    broadcast_module,
    combine_moments,
    is_main,
    limit_exchanges,
    rank,
    world_size,
)
from tests.ranks import run_ranks

BATCH_SIZES = (5, 12)


def batch(number, size):
    """A float64 batch per rank with a mean of a million standard deviations."""
    return 1e3 * (number + 1) + np.random.default_rng(number).normal(size=(size, 3)) * 1e-3


def exchange_on_rank(folder):
    """Compute on one rank for comparison with a computation over all data."""
    this_rank = rank()
    torch.manual_seed(this_rank)
    given = torch.full((2,), 1.0 + this_rank)
    result = {"rank": rank(), "world_size": world_size(), "is_main": is_main(), "average": average(given)}
    result["given"] = given
    result["average_of_ints"] = average(torch.tensor([this_rank, 3]))

    data = torch.from_numpy(batch(this_rank, BATCH_SIZES[this_rank]))
    moments = data.mean(0), data.var(0, correction=0)
    result["moments"] = combine_moments(*moments, torch.tensor(len(data)))
    same = data[:5]
    result["equal_moments"] = combine_moments(same.mean(0), same.var(0, correction=0), 5)

    result["in_place"] = [torch.full((2, 3), float(this_rank)), torch.full((4,), 10.0 + this_rank), torch.tensor(6.0)]
    average_in_place(result["in_place"])
    average_in_place([])

    module = torch.nn.BatchNorm1d(3)
    torch.nn.init.normal_(module.weight)
    module.running_mean.fill_(float(this_rank))
    broadcast_module(module)
    result["module"] = dict(module.state_dict())
    limit_exchanges(0.2)
    if this_rank == 0:
        with pytest.raises(RuntimeError, match=r"(?i)timed out"):
            average(given)
        Path(folder, "rank_0_has_timed_out").touch()
    end = time.monotonic() + 60.0
    while not Path(folder, "rank_0_has_timed_out").exists() and time.monotonic() < end:
        time.sleep(0.05)
    return result


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def results(folder):
    return run_ranks(exchange_on_rank, folder, 2)


def test_rank_and_world_size(results):
    assert [(r["rank"], r["world_size"], r["is_main"]) for r in results] == [(0, 2, True), (1, 2, False)]


def test_exchange_that_a_rank_does_not_join_has_a_time_limit(results, folder):
    assert (folder / "rank_0_has_timed_out").exists()


def test_average_is_the_mean_over_ranks(results):
    for number, result in enumerate(results):
        assert result["average"].tolist() == [1.5, 1.5]
        assert result["given"].tolist() == [1.0 + number] * 2
        assert result["average_of_ints"].tolist() == [0.5, 3.0]


def test_moments_equal_numpy_over_all_samples(results):
    together = np.concatenate([batch(number, size) for number, size in enumerate(BATCH_SIZES)])
    equal = np.concatenate([batch(number, size)[:5] for number, size in enumerate(BATCH_SIZES)])
    for result in results:
        for key, data in (("moments", together), ("equal_moments", equal)):
            mean, var, count = result[key]
            np.testing.assert_allclose(mean.numpy(), data.mean(0), rtol=1e-12)
            np.testing.assert_allclose(var.numpy(), data.var(0), rtol=1e-9)
            assert int(count) == len(data)
        assert isinstance(result["equal_moments"][2], int)


def test_tensors_of_any_shape_are_averaged_in_place(results):
    for result in results:
        first, second, third = result["in_place"]
        assert torch.equal(first, torch.full((2, 3), 0.5))
        assert torch.equal(second, torch.full((4,), 10.5))
        assert torch.equal(third, torch.tensor(6.0))


def test_broadcast_gives_every_rank_the_state_of_rank_0(results):
    assert results[0]["module"]["running_mean"].tolist() == [0.0, 0.0, 0.0]
    torch.testing.assert_close(results[0]["module"], results[1]["module"], rtol=0, atol=0)


def test_one_rank_is_a_no_op():
    assert (world_size(), rank(), is_main()) == (1, 0, True)
    tensor = torch.ones(2)
    assert average(tensor) is tensor
    mean, var = torch.zeros(2), torch.ones(2)
    joint = combine_moments(mean, var, 4)
    assert joint[0] is mean
    assert joint[1] is var
    assert joint[2] == 4
    average_in_place([tensor])
    assert tensor.tolist() == [1.0, 1.0]
    broadcast_module(torch.nn.Linear(1, 1))
