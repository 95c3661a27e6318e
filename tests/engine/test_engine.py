"""Every engine equals eager execution, for every algorithm and policy."""

from functools import partial
from typing import Any

import pytest
import torch
import torch._dynamo.utils
import torch._inductor.config
from torch.utils._python_dispatch import TorchDispatchMode

from st_rl.algorithms import PPO
from st_rl.engine import Engine
from tests.algorithms.rollouts import collect, make_ppo, random_steps
from tests.engine.learners import (
    NUM_ENVS,
    combinations,
    draws_in_padding,
    feed_forward_combinations,
    make_learner,
    quick_combinations,
    roll_out,
    train,
)

STATIC_SIZE = 32
"""Trajectories of a mini-batch, with room for every rollout of these tests."""
RECURRENT = [("TPPO", "ActorCriticRecurrent", "adaptive"), ("PPO", "VisualDeterministicRecurrent", "plain")]


@pytest.fixture
def full_float32():
    """Disable TF32 for matrix products and convolutions."""
    switches: list[Any] = [torch.backends.cuda.matmul, torch.backends.cudnn]
    before = [switch.allow_tf32 for switch in switches]
    for switch in switches:
        switch.allow_tf32 = False
    yield
    for switch, value in zip(switches, before):
        switch.allow_tf32 = value


def doubled(tensor):
    return 2 * tensor


def assert_same_training(
    engine_of, device: str, combination: tuple[str, str, str], tolerance: float, num_updates: int = 3
) -> None:
    """Train eagerly and with another engine; compare losses, learning rate and the saved state."""
    reference = make_learner(*combination, Engine("eager", device), device)
    other = make_learner(*combination, engine_of(device), device)
    if draws_in_padding(combination[1]):
        # With other padding the same seed would sample other noise.
        reference.engine.static_size = engine_of(device).static_size
    expected, got = train(reference, num_updates, device), train(other, num_updates, device)
    assert not other.engine.eager_fallbacks
    for losses, other_losses in zip(expected, got):
        assert losses == pytest.approx(other_losses, rel=tolerance, abs=tolerance)
    assert float(reference.learning_rate) == pytest.approx(float(other.learning_rate), rel=1e-6)
    for key, state in reference.state_dict().items():
        if not key.endswith("optimizer_state_dict"):
            torch.testing.assert_close(other.state_dict()[key], state, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("combination", quick_combinations(), ids="-".join)
def test_traced_losses_equal_eager(combination, monkeypatch):
    """Losses traced by the compiler, without code generation, equal eager ones.

    Recurrent policies are padded to static shapes, as on a GPU, so that they are traced once; one has changing shapes.
    """
    if combination[:2] != ("PPO", "ActorCriticRecurrent"):
        monkeypatch.setattr(Engine, "static_size", lambda engine, measure: STATIC_SIZE)
    assert_same_training(
        lambda device: Engine("compile", device, compile_backend="aot_eager"), "cpu", combination, 1e-5, 2
    )


@pytest.mark.parametrize("combination", feed_forward_combinations(), ids="-".join)
def test_feed_forward_policy_is_traced_in_one_graph(combination):
    """Losses and acting have no graph breaks: `fullgraph` would raise."""
    learner = make_learner(*combination, engine=Engine("eager"))
    roll_out(learner, seed=0)
    minibatch = next(learner._mini_batches())
    torch._dynamo.reset()
    traced: Any = partial(torch.compile, backend="eager", fullgraph=True, dynamic=False)
    with learner.actor_critic.no_sampling():
        traced(learner._objective)(minibatch)
    traced(learner._policy_step)(minibatch.obs[:NUM_ENVS], minibatch.obs[:NUM_ENVS])


class CountRandomOps(TorchDispatchMode):
    """Counts the operations that use torch's random generator."""

    def __init__(self):
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.number += torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("combination", feed_forward_combinations(), ids="-".join)
def test_compiled_code_samples_once(combination):
    """Torch before 2.13 reorders several random operations in compiled code."""
    learner = make_learner(*combination, engine=Engine("eager"))
    roll_out(learner, seed=0)
    minibatch = next(learner._mini_batches())
    with CountRandomOps() as learning, learner.actor_critic.no_sampling():
        learner._objective(minibatch)
    with CountRandomOps() as acting:
        learner._policy_step(minibatch.obs[:NUM_ENVS], minibatch.obs[:NUM_ENVS])
    assert learning.number <= 1
    assert acting.number <= 1


@pytest.mark.parametrize("combination", RECURRENT, ids="-".join)
def test_only_recurrent_networks_break_the_graph(combination):
    """And resampling of hidden states, which runs eagerly; padded to static shapes as on a GPU."""
    learner = make_learner(*combination, engine=Engine("eager"))
    learner.engine.static_size = lambda measure: 2 * int(measure())
    roll_out(learner, seed=0)
    minibatch = next(learner._mini_batches())
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with learner.actor_critic.no_sampling():
        Engine("compile", compile_backend="eager").compile(learner._objective)(minibatch)
    reasons = [reason.split("\n")[0] for reason in torch._dynamo.utils.counters["graph_break"]]
    assert reasons
    assert [reason for reason in reasons if "RNN" not in reason and "disable" not in reason] == []


@pytest.mark.gpu
@pytest.mark.usefixtures("full_float32")
@pytest.mark.parametrize("engine", ["graph", "compile"])
@pytest.mark.parametrize("combination", combinations(), ids="-".join)
def test_cuda_graphs_equal_eager(combination, engine):
    # Compiled code has its own random numbers; here they must equal those of eager code.
    with torch._inductor.config.patch(fallback_random=True):
        assert_same_training(lambda device: Engine(engine, device), "cuda", combination, 1e-5, 4)


def test_compiled_losses_equal_eager():
    """One combination with code generation."""
    assert_same_training(lambda device: Engine("compile", device), "cpu", ("PPO", "ActorCritic", "adaptive"), 1e-5, 2)


def test_falls_back_to_eager_when_the_compiler_fails(monkeypatch):
    """With one log line and equal results."""
    lines, attempts = [], []
    monkeypatch.setattr("st_rl.engine.engine.logger.warning", lines.append)

    def broken_backend(graph, inputs):
        attempts.append(graph)
        raise KeyError("no such instruction")

    torch._dynamo.reset()
    engine = Engine("compile", compile_backend=broken_backend)
    for number in (1.0, 2.0, 3.0):
        assert float(engine.compile(doubled)(torch.tensor(number))) == 2 * number
    assert len(attempts) == 1
    assert len(lines) == 1
    assert "torch.compile failed for doubled; falling back to eager" in lines[0]
    assert "no such instruction" in lines[0]
    assert list(engine.eager_fallbacks) == ["doubled"]


def test_errors_of_compiled_code_are_raised():
    def refuse(number):
        raise ValueError(f"{number + 1} is too much")

    engine = Engine("compile", compile_backend="eager")
    for _ in range(2):
        with pytest.raises(ValueError, match=r"^8 is too much$") as caught:
            engine.compile(refuse)(7)
        assert caught.value.__cause__ is None
    assert not engine.eager_fallbacks


def test_unknown_engine_lists_known_ones():
    with pytest.raises(ValueError, match="unknown engine 'grph'; use one of: auto, eager, compile, graph"):
        Engine("grph")


def test_graphs_need_a_gpu():
    with pytest.raises(ValueError, match="engine 'graph' needs a CUDA device, not 'cpu'"):
        Engine("graph", "cpu")


def test_auto_compiles_only_when_it_pays_back():
    short, long = Engine("auto", "cpu", iterations=10), Engine("auto", "cpu", iterations=10**6)
    assert not short.plan.compiles
    assert "too few iterations" in short.describe()
    assert long.plan.compiles
    assert "pay off" in long.describe()


def test_compiled_losses_accept_mini_batches_of_other_sizes_in_later_epochs():
    """A user's generator may split every epoch differently."""
    losses = []
    for engine in (Engine("eager"), Engine("compile", compile_backend="aot_eager")):
        learner = make_learner("PPO", "ActorCritic", "adaptive", engine)
        roll_out(learner, seed=0)
        (whole,) = learner.storage.mini_batch_generator(1, 1)
        sizes = (len(whole.actions), 7, 5, 7)
        parts = [type(whole)(*(field if field is None else field[:size] for field in whole)) for size in sizes]
        learner.storage.mini_batch_generator = lambda number, epochs, parts=parts: iter(parts)
        losses.append({name: float(value) for name, value in learner.update(0)[0].items()})
    assert losses[1] == pytest.approx(losses[0], rel=1e-5, abs=1e-6)


def test_compiled_losses_read_the_current_iteration():
    class Fading(PPO):
        graph_safe = True

        def compute_losses(self, minibatch):
            losses, inter_vars, stats = super().compute_losses(minibatch)
            losses["fading"] = 0.5**self.iteration * torch.ones(())
            return losses, inter_vars, stats

    learner = make_ppo(algorithm=Fading)
    learner.engine = Engine("compile", compile_backend="aot_eager")
    for iteration in (0, 1, 3):
        collect(learner, random_steps(6, 5))
        losses, _ = learner.update(iteration)
        assert float(losses["fading"]) == 0.5**iteration
