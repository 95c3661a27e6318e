"""`DiagonalGaussian` equals torch's `Normal` at a lower cost; `SquashedGaussian` is its tanh transform."""

import pytest
import torch
from torch import nn
from torch.distributions import AffineTransform, Normal, TanhTransform, TransformedDistribution, kl_divergence

from st_rl.modules.actor_critic import build_head
from st_rl.modules.networks.gaussian import DiagonalGaussian, SquashedGaussian


def _inputs(*shape: int):
    generator = torch.Generator().manual_seed(3)
    mean = torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()
    std = (torch.rand(shape[-1], generator=generator, dtype=torch.float64) + 0.1).requires_grad_()
    return mean, std, torch.randn(*shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("shape", [(4,), (7, 4), (5, 3, 2)])
@pytest.mark.parametrize("quantity", ["log_prob", "entropy"])
def test_values_and_gradients_equal_torch_normal(shape, quantity):
    mean, std, actions = _inputs(*shape)
    arguments = (actions,) if quantity == "log_prob" else ()
    ours = getattr(DiagonalGaussian(mean, std), quantity)(*arguments)
    theirs = getattr(Normal(mean, std.expand_as(mean)), quantity)(*arguments)
    assert ours.shape == theirs.shape
    torch.testing.assert_close(ours, theirs)
    weights = torch.linspace(-1.0, 1.0, ours.numel(), dtype=torch.float64).view_as(ours)
    gradients = [
        torch.autograd.grad((value * weights).sum(), [mean, std], allow_unused=True) for value in (ours, theirs)
    ]
    for our, their in zip(*gradients):
        torch.testing.assert_close(torch.zeros(()) if our is None else our, torch.zeros(()) if their is None else their)


def test_inherits_kl_expand_and_rsample_of_torch_normal():
    mean, std, actions = _inputs(6, 3)
    ours, theirs = DiagonalGaussian(mean, std), Normal(mean, std.expand_as(mean))
    assert isinstance(ours, Normal)
    assert ours.stddev.shape == (6, 3)
    torch.testing.assert_close(kl_divergence(ours, Normal(actions, 1.0)), kl_divergence(theirs, Normal(actions, 1.0)))
    torch.testing.assert_close(ours.expand((2, 6, 3)).log_prob(actions), theirs.expand((2, 6, 3)).log_prob(actions))
    torch.manual_seed(0)
    draw = ours.rsample()
    torch.manual_seed(0)
    torch.testing.assert_close(draw, theirs.rsample())


@pytest.mark.parametrize("activation", ["elu", "selu", "relu", "lrelu", "tanh", "ReLU6"])
def test_inplace_activations_keep_outputs_gradients_and_inputs(activation):
    torch.manual_seed(0)
    head = build_head(5, [8, 8], 3, activation).double()
    plain = nn.Sequential(*(layer if isinstance(layer, nn.Linear) else type(layer)() for layer in head))
    inputs = torch.randn(4, 2, 5, dtype=torch.float64, requires_grad=True)
    before = inputs.detach().clone()
    gradients = []
    for network in (head, plain):
        output = network(inputs)
        gradients.append(torch.autograd.grad(output.square().sum(), [inputs, *network.parameters()]))
    torch.testing.assert_close(head(inputs), plain(inputs), rtol=0.0, atol=0.0)
    torch.testing.assert_close(gradients[0], gradients[1])
    assert torch.equal(inputs, before)


class TestSquashedGaussian:
    def make(self, shape=(6, 3)):
        mean, std, noise = _inputs(*shape)
        bound = torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64)
        return mean, std, bound, bound * torch.tanh(mean.detach() + std.detach() * noise)

    def test_log_prob_equals_transformed_normal(self):
        mean, std, bound, actions = self.make()
        transforms = [TanhTransform(), AffineTransform(0.0, bound)]
        expected = TransformedDistribution(Normal(mean, std.expand_as(mean)), transforms).log_prob(actions)
        torch.testing.assert_close(SquashedGaussian(mean, std, bound).log_prob(actions), expected, rtol=1e-6, atol=1e-6)

    def test_samples_are_within_bounds(self):
        mean, std, bound, _ = self.make()
        distribution, plain = SquashedGaussian(mean, std, bound), Normal(mean, std.expand_as(mean))
        for draw in ("sample", "rsample"):
            torch.manual_seed(0)
            actions = getattr(distribution, draw)((4,))
            torch.manual_seed(0)
            torch.testing.assert_close(actions, bound * torch.tanh(getattr(plain, draw)((4,))))
            assert actions.shape == (4, 6, 3)
        assert actions.requires_grad
        assert not distribution.sample().requires_grad

    def test_density_integrates_to_one(self):
        mean, std = torch.tensor([0.7], dtype=torch.float64), torch.tensor([0.4], dtype=torch.float64)
        bound = torch.tensor([2.0], dtype=torch.float64)
        grid = torch.linspace(-2.0, 2.0, 200_001, dtype=torch.float64)[1:-1]
        density = SquashedGaussian(mean, std, bound).log_prob(grid[:, None]).exp().squeeze(-1)
        assert float(torch.trapezoid(density, grid)) == pytest.approx(1.0, abs=1e-4)

    def test_entropy_is_mean_negative_log_prob(self):
        mean, std, bound, _ = self.make((2, 3))
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(200_000, 2, 3, generator=generator, dtype=torch.float64)
        distribution = SquashedGaussian(mean.detach(), std.detach(), bound)
        drawn = -distribution.log_prob(bound * torch.tanh(mean.detach() + std.detach() * noise)).mean(dim=0)
        torch.testing.assert_close(distribution.entropy(), drawn, rtol=0, atol=0.02)

    def test_log_prob_is_finite_at_bound(self):
        mean, std, bound = torch.zeros(1, 2), torch.ones(2), torch.ones(2)
        mean.requires_grad_()
        log_prob = SquashedGaussian(mean, std, bound).log_prob(torch.tensor([[1.0, -1.0]]))
        log_prob.sum().backward()
        assert bool(torch.isfinite(log_prob).all())
        assert bool(torch.isfinite(mean.grad).all())
