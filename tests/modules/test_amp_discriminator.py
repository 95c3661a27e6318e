"""`AMPDiscriminator`: scores, gradient penalty and style reward; policies with a discriminator."""

import copy

import numpy as np
import pytest
import torch

from st_rl.modules import AmpActorCritic, AmpActorCriticRecurrent, AMPDiscriminator, AmpMixin, build_actor_critic
from tests.fakes import ClientEnv
from tests.modules.graph_safety import NoHostSync

WIDTH = 6
CONFIG = {"input_dim": WIDTH, "style_reward_coef": 0.7, "hidden_dims": [9, 5], "discriminator_grad_pen": 3.0}


def make(**changes) -> AMPDiscriminator:
    torch.manual_seed(3)
    return AMPDiscriminator(**{**CONFIG, **changes}).double()


def scores_by_hand(discriminator: AMPDiscriminator, x: np.ndarray) -> np.ndarray:
    """The network in NumPy, one transition at a time."""
    state = {name: value.detach().numpy() for name, value in discriminator.state_dict().items()}
    layers = sorted({int(name.split(".")[1]) for name in state if name.startswith("trunk")})
    scores = []
    for row in x:
        hidden = row
        for layer in layers:
            hidden = np.maximum(state[f"trunk.{layer}.weight"] @ hidden + state[f"trunk.{layer}.bias"], 0.0)
        scores.append(float(state["amp_linear.weight"][0] @ hidden + state["amp_linear.bias"][0]))
    return np.array(scores)


def inputs(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


class TestScores:
    def test_equal_numpy_relu_mlp(self):
        discriminator, x = make(), inputs(11)
        assert discriminator(x).shape == (11, 1)
        np.testing.assert_allclose(discriminator(x).detach().numpy()[:, 0], scores_by_hand(discriminator, x.numpy()))

    def test_accept_leading_axes(self):
        discriminator, x = make(), inputs(4, 3)
        torch.testing.assert_close(discriminator(x).reshape(12, 1), discriminator(x.reshape(12, WIDTH)))

    def test_state_dict_keys_match_published_checkpoints(self):
        assert list(make().state_dict()) == [
            "trunk.0.weight",
            "trunk.0.bias",
            "trunk.2.weight",
            "trunk.2.bias",
            "amp_linear.weight",
            "amp_linear.bias",
        ]

    def test_arguments_are_attributes_with_documented_defaults(self):
        discriminator = AMPDiscriminator(42, 0.5, (16, 8), amp_obs_dim={})
        assert (discriminator.input_dim, discriminator.style_reward_coef) == (42, 0.5)
        assert discriminator.hidden_dims == (16, 8)
        assert (discriminator.task_reward_lerp, discriminator.discriminator_grad_pen) == (0.0, 5)
        assert discriminator.additive_reward is False

    def test_misspelled_setting_suggests_nearest(self, caplog):
        AMPDiscriminator(**CONFIG, task_reward_lrp=0.3)
        assert "did you mean 'task_reward_lerp'?" in caplog.text


class TestGradientPenalty:
    @pytest.mark.parametrize("hidden_dims", [[], [8], [9, 5], [7, 7, 7]])
    @pytest.mark.parametrize("shape", [(10,), (5, 2)])
    def test_agrees_with_finite_differences(self, hidden_dims, shape):
        discriminator, x, step = make(hidden_dims=hidden_dims), inputs(*shape), 1e-6
        rows = x.reshape(-1, WIDTH).numpy()
        lengths = []
        for row in rows:
            gradient = [
                (scores_by_hand(discriminator, np.stack([row + offset, row - offset])) @ [1.0, -1.0]) / (2 * step)
                for offset in step * np.eye(WIDTH)
            ]
            lengths.append(np.sum(np.square(gradient)))
        assert discriminator.compute_grad_pen(x).item() == pytest.approx(3.0 * np.mean(lengths), rel=1e-6)

    @pytest.mark.parametrize("hidden_dims", [[], [8], [9, 5]])
    def test_weight_gradients_equal_double_backward(self, hidden_dims):
        discriminator, x = make(hidden_dims=hidden_dims), inputs(10)
        discriminator.compute_grad_pen(x).backward()
        ours = {name: p.grad for name, p in discriminator.named_parameters()}
        twin = copy.deepcopy(discriminator)
        twin.zero_grad()
        leaf = x.clone().requires_grad_(True)
        (slope,) = torch.autograd.grad(twin(leaf).sum(), leaf, create_graph=True)
        (3.0 * slope.norm(dim=-1).square().mean()).backward()
        for name, parameter in twin.named_parameters():
            expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            got = ours[name]
            torch.testing.assert_close(torch.zeros_like(parameter) if got is None else got, expected)

    def test_works_without_grad_mode_and_keeps_input(self):
        discriminator, x = make(), inputs(4)
        before = x.clone()
        with torch.no_grad():
            penalty = discriminator.compute_grad_pen(x)
        assert penalty.requires_grad
        assert torch.equal(x, before)
        assert not x.requires_grad
        wanted = inputs(4).requires_grad_(True)
        discriminator.compute_grad_pen(wanted).backward()
        assert wanted.grad is None
        assert wanted.requires_grad

    def test_traces_to_one_graph_without_host_sync(self):
        discriminator, x = make(), inputs(8)
        traced = torch.compile(discriminator.compute_grad_pen, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(traced(x), discriminator.compute_grad_pen(x))
        with NoHostSync():
            discriminator.compute_grad_pen(x).backward()


class Bounded(AMPDiscriminator):
    """User-defined discriminator with another score function."""

    def forward(self, x):
        return 0.1 * torch.tanh(super().forward(x))


def smooth() -> AMPDiscriminator:
    """User-defined discriminator with another trunk."""
    discriminator = make()
    discriminator.trunk = torch.nn.Sequential(torch.nn.Linear(WIDTH, 4), torch.nn.LayerNorm(4), torch.nn.Tanh())
    discriminator.amp_linear = torch.nn.Linear(4, 1)
    return discriminator.double()


@pytest.mark.parametrize("build", [lambda: Bounded(**CONFIG).double(), smooth], ids=["scores", "layers"])
def test_penalty_of_user_defined_discriminator_uses_its_scores(build):
    discriminator, x = build(), inputs(7)
    assert not discriminator.has_slopes
    step = 1e-6 * torch.eye(WIDTH, dtype=torch.float64)
    with torch.no_grad():
        up, down = (discriminator(x[:, None] + sign * step).squeeze(-1) for sign in (1, -1))
    slope = (up - down) / 2e-6
    penalty = discriminator.compute_grad_pen(x)
    assert penalty.item() == pytest.approx(3.0 * slope.square().sum(-1).mean().item(), rel=1e-5)
    penalty.backward()
    assert discriminator.trunk[0].weight.grad.abs().sum() > 0


class TestStyleReward:
    @pytest.mark.parametrize("lerp", [0.0, 0.3, 1.0])
    def test_equals_formula(self, lerp):
        discriminator, x = make(task_reward_lerp=lerp), 3.0 * inputs(40)
        task = torch.linspace(-1.0, 1.0, 40, dtype=torch.float64)
        style, returned_task, reward = discriminator.predict_style_reward(x, task)
        score = scores_by_hand(discriminator, x.numpy())
        by_hand = 0.7 * np.array([max(0.0, 1.0 - 0.25 * (d - 1.0) ** 2) for d in score])
        np.testing.assert_allclose(style.numpy(), by_hand)
        assert torch.equal(returned_task, task)
        np.testing.assert_allclose(reward.numpy(), (1.0 - lerp) * by_hand + lerp * task.numpy())
        assert reward.shape == (40,)
        assert not reward.requires_grad

    def test_is_non_negative_and_largest_for_reference(self):
        discriminator = make(hidden_dims=[], input_dim=1)
        with torch.no_grad():
            discriminator.amp_linear.weight.fill_(1.0)
            discriminator.amp_linear.bias.zero_()
        scores = torch.tensor([[-5.0], [-1.0], [0.0], [1.0], [3.0], [9.0]], dtype=torch.float64)
        style, _, _ = discriminator.predict_style_reward(scores, torch.zeros(6, dtype=torch.float64))
        assert style.tolist() == pytest.approx([0.0, 0.0, 0.7 * 0.75, 0.7, 0.0, 0.0])

    def test_excludes_task_reward_by_default(self):
        discriminator, x = make(), inputs(5)
        style, _, reward = discriminator.predict_style_reward(x, torch.full((5,), 100.0, dtype=torch.float64))
        assert torch.equal(reward, style)

    def test_is_mixed_with_task_reward_if_configured(self):
        discriminator, x = make(additive_reward=True, task_reward_lerp=0.3), inputs(5)
        task = torch.arange(5.0, dtype=torch.float64)
        style, _, reward = discriminator.predict_style_reward(x, task)
        np.testing.assert_allclose(reward.numpy(), style.numpy() + np.arange(5.0))

    def test_accepts_task_rewards_with_trailing_axis(self):
        discriminator, x = make(task_reward_lerp=0.3), inputs(5)
        task = torch.arange(5.0, dtype=torch.float64)
        expected = discriminator.predict_style_reward(x, task)
        rewards = discriminator.predict_style_reward(x, task.unsqueeze(-1))
        assert all(torch.equal(reward, same) for reward, same in zip(rewards, expected))

    @pytest.mark.parametrize("mode", [True, False])
    def test_restores_training_mode_and_keeps_axis_of_one_env(self, mode):
        discriminator = make().train(mode)
        style, _, reward = discriminator.predict_style_reward(inputs(1), torch.zeros(1, dtype=torch.float64))
        assert style.shape == reward.shape == (1,)
        assert discriminator.training is mode
        assert all(module.training is mode for module in discriminator.modules())


class TestPolicies:
    @pytest.mark.parametrize("cls", [AmpActorCritic, AmpActorCriticRecurrent])
    def test_have_discriminator_and_act_as_base_class(self, cls):
        config = copy.deepcopy(CONFIG)
        torch.manual_seed(0)
        policy = cls(4, 5, 2, amp_discriminator=config, actor_hidden_dims=[8], critic_hidden_dims=[8])
        assert config == CONFIG
        torch.manual_seed(0)
        plain = cls.__mro__[2](4, 5, 2, actor_hidden_dims=[8], critic_hidden_dims=[8])
        assert isinstance(policy, AmpMixin)
        assert isinstance(policy.discriminator, AMPDiscriminator)
        names = [name for name in policy.state_dict() if not name.startswith("discriminator.")]
        assert names == list(plain.state_dict())
        assert "discriminator.trunk.2.weight" in policy.state_dict()
        obs = torch.randn(3, 4)
        torch.testing.assert_close(policy.act_inference(obs), plain.act_inference(obs))

    @pytest.mark.parametrize("config", [None, {}, {"input_dim": 4}, {**CONFIG, "hidden_dims": None}])
    def test_error_names_missing_discriminator_settings(self, config):
        with pytest.raises(ValueError, match=r"'amp_discriminator' in the policy configuration.*hidden_dims.* missing"):
            AmpActorCritic(4, 4, 2, amp_discriminator=config)

    def test_strict_applies_to_discriminator_settings(self):
        config = {**CONFIG, "hiden_dims": [3]}
        AmpActorCritic(4, 4, 2, amp_discriminator=config)
        with pytest.raises(ValueError, match="'hiden_dims' for amp_discriminator; did you mean 'hidden_dims'"):
            AmpActorCritic(4, 4, 2, amp_discriminator=config, strict=True)

    def test_accept_configuration_object(self):
        class Config:
            def to_dict(self):
                return {**CONFIG, "amp_obs_dim": {}}

        assert AmpActorCritic(4, 4, 2, amp_discriminator=Config()).discriminator.input_dim == WIDTH
        with pytest.raises(ValueError, match="is a dictionary of settings, got list"):
            AmpActorCritic(4, 4, 2, amp_discriminator=[1, 2])

    @pytest.mark.parametrize("name", ["AmpActorCritic", "AmpActorCriticRecurrent"])
    def test_are_built_by_name(self, name):
        policy = build_actor_critic(ClientEnv(), name, {"amp_discriminator": CONFIG, "rnn_hidden_size": 8})
        assert type(policy).__name__ == name
        assert policy.is_recurrent is (name == "AmpActorCriticRecurrent")


def test_score_with_slopes_of_first_transitions():
    torch.manual_seed(0)
    discriminator = AMPDiscriminator(6, 1.0, [5, 4])
    transitions = torch.randn(9, 6)
    scores, slopes = discriminator.score_with_slopes(transitions, 3)
    torch.testing.assert_close(scores, discriminator(transitions))
    _, own = discriminator.score_with_slopes(transitions[:3])
    assert [slope.tolist() for slope in slopes] == [slope.tolist() for slope in own]
