"""Eager code is the reference; every engine must agree with it, for every algorithm and policy there is."""

import pytest
import torch
import torch._inductor.config

from st_rl.engine import Engine
from tests.engine.learners import combinations, make_learner, quick_combinations, train


def assert_same_training(
    engine_of, device: str, combination: tuple[str, str, str], tolerance: float, num_updates: int = 3
) -> None:
    """Train twice, eagerly and with another engine; compare losses, learning rate and every saved number."""
    reference = make_learner(*combination, Engine("eager", device), device)
    other = make_learner(*combination, engine_of(device), device)
    expected, got = train(reference, num_updates, device), train(other, num_updates, device)
    for losses, other_losses in zip(expected, got):
        assert losses == pytest.approx(other_losses, rel=tolerance, abs=tolerance)
    assert float(reference.learning_rate) == pytest.approx(float(other.learning_rate), rel=1e-6)
    for key, state in reference.state_dict().items():
        if not key.endswith("optimizer_state_dict"):
            torch.testing.assert_close(other.state_dict()[key], state, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("combination", quick_combinations(), ids="-".join)
def test_traced_losses_agree_with_eager_losses(combination):
    """The losses trace into one graph of operations without a change of meaning; no C++ is generated here."""
    assert_same_training(
        lambda device: Engine("compile", device, compile_backend="aot_eager"), "cpu", combination, 1e-5, 2
    )


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["graph", "compile"])
@pytest.mark.parametrize("combination", combinations(), ids="-".join)
def test_graphs_agree_with_eager_steps(combination, engine):
    torch.backends.cuda.matmul.allow_tf32 = False
    # Compiled code draws random numbers of its own; here they must be those of eager code.
    with torch._inductor.config.patch(fallback_random=True):
        assert_same_training(lambda device: Engine(engine, device), "cuda", combination, 1e-5, 4)


def test_compiled_losses_agree_with_eager_losses():
    """One combination through the real compiler."""
    assert_same_training(lambda device: Engine("compile", device), "cpu", ("PPO", "ActorCritic", "adaptive"), 1e-5, 2)


def test_unknown_engine_names_the_known_ones():
    with pytest.raises(ValueError, match="unknown engine 'grph'; use one of: auto, eager, compile, graph"):
        Engine("grph")


def test_graphs_need_a_gpu():
    with pytest.raises(ValueError, match="engine 'graph' needs a CUDA device, not 'cpu'"):
        Engine("graph", "cpu")


def test_auto_compiles_only_when_it_pays_back():
    short, long = Engine("auto", "cpu", iterations=10), Engine("auto", "cpu", iterations=10**6)
    assert not short.plan.compiles
    assert "too short" in short.describe()
    assert long.plan.compiles
    assert "pay back" in long.describe()
