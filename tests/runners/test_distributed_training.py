"""A training over several ranks is one training."""

from pathlib import Path

import pytest
import torch

from tests.runners.rank_trainings import families, make_training, run_ranks, save_teacher, shared_state
from tests.runners.training import differences

ITERATIONS = 5
NAMES = list(families(Path()))


def train_all(folder):
    """Five iterations of every family; returns what all ranks must agree on."""
    results = {}
    for name in NAMES:
        runner = make_training(name, folder)
        runner.learn(ITERATIONS)
        results[name] = shared_state(runner)
    return results


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    save_teacher(folder / "teacher.pt")
    return folder


@pytest.fixture(scope="module")
def trained(folder):
    return run_ranks(train_all, folder, 2)


@pytest.mark.parametrize("name", NAMES)
def test_all_ranks_hold_the_same_bits(trained, name):
    first, second = (result[name] for result in trained)
    assert differences(first, second) == []
    assert any("obs_norm" in key for key in first)


@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_equal_one_with_all_the_data(trained, folder, name):
    alone = make_training(name, folder)
    start = shared_state(alone)
    alone.learn(ITERATIONS)
    state = shared_state(alone)
    assert differences(start, state)
    for key, value in state.items():
        torch.testing.assert_close(
            trained[0][name][key], value, atol=1e-6, rtol=1e-5, msg=lambda text, key=key: f"{key}: {text}"
        )
