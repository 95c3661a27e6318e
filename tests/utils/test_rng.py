import random

import numpy as np
import pytest
import torch

from st_rl.utils.files import load_checkpoint, save_checkpoint
from st_rl.utils.rng import load_rng_state_dict, rng_state_dict


def draw():
    """Draw from every generator; Gaussians come in pairs, so that a cached one is part of the state."""
    return (
        torch.randn(3).tolist(),
        torch.randperm(10).tolist(),
        np.random.normal(size=3).tolist(),
        np.random.permutation(5).tolist(),
        [random.random(), random.gauss(0, 1)],
    )


@pytest.mark.parametrize("warm_up", [0, 1])
def test_saved_state_continues_exactly(tmp_path, warm_up):
    for _ in range(warm_up):
        np.random.normal()
        random.gauss(0, 1)
    save_checkpoint({"rng_state_dict": rng_state_dict("cpu")}, tmp_path / "model_1.pt")
    expected = draw()
    assert draw() != expected
    load_rng_state_dict(load_checkpoint(tmp_path / "model_1.pt")["rng_state_dict"])
    assert draw() == expected


def test_saving_does_not_advance_the_generators():
    state = rng_state_dict()
    first = draw()
    load_rng_state_dict(state)
    rng_state_dict()
    assert draw() == first


def test_cuda_state_without_gpu_is_skipped_with_warning(caplog, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    state = {**rng_state_dict(), "cuda": torch.zeros(16, dtype=torch.uint8)}
    load_rng_state_dict(state)
    assert "CUDA" in caplog.text


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_cuda_generator_continues_exactly():
    state = rng_state_dict("cuda")
    expected = torch.randn(4, device="cuda")
    load_rng_state_dict({key: value.cuda() if key == "cuda" else value for key, value in state.items()})
    assert torch.equal(torch.randn(4, device="cuda"), expected)
