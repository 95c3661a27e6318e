"""The discriminator of adversarial motion priors, and policies that carry one."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from st_rl.modules.actor_critic import ActorCritic
from st_rl.modules.actor_critic_recurrent import ActorCriticRecurrent
from st_rl.utils.capability import CapabilityMeta
from st_rl.utils.config import (
    Configurable,
    DictConvertible,
    accepted_keys,
    drop_none,
    report_unused_keys,
    resolve_class,
)

if TYPE_CHECKING:
    _Policy = ActorCritic
else:
    _Policy = object

NEEDED_KEYS = ("input_dim", "style_reward_coef", "hidden_dims")


class AMPDiscriminator(nn.Module, Configurable):
    """Scores motion transitions: trained towards +1 on the reference and -1 on the policy."""

    def __init__(
        self,
        input_dim: int,
        style_reward_coef: float | Tensor,
        hidden_dims: Sequence[int],
        task_reward_lerp: float | Tensor = 0.0,
        discriminator_grad_pen: float | Tensor = 5,
        additive_reward: bool = False,
        **kwargs: Any,
    ):
        """Build the network.

        Args:
            input_dim: width `Da` of a transition, all its frames together.
            style_reward_coef: scale of the style reward.
            hidden_dims: widths of the hidden layers.
            task_reward_lerp: weight of the task reward in the reward, from 0 (style alone) to 1 (task alone).
            discriminator_grad_pen: weight of the gradient penalty.
            additive_reward: the reward is task plus style; `task_reward_lerp` is not used.
            **kwargs: ignored; the client sends `amp_obs_dim`.
        """
        super().__init__()
        unused = {key: value for key, value in kwargs.items() if key != "amp_obs_dim"}
        strict = bool(unused.pop("strict", False))
        report_unused_keys(unused, "amp_discriminator", accepted_keys(AMPDiscriminator), strict)
        self.input_dim = int(input_dim)
        self.hidden_dims = hidden_dims
        self.style_reward_coef = style_reward_coef
        self.task_reward_lerp = task_reward_lerp
        self.discriminator_grad_pen = discriminator_grad_pen
        self.additive_reward = additive_reward
        layers: list[nn.Module] = []
        width = self.input_dim
        for hidden in hidden_dims:
            layers += [nn.Linear(width, int(hidden)), nn.ReLU(inplace=True)]
            width = int(hidden)
        self.trunk = nn.Sequential(*layers)
        self.amp_linear = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores `(..., 1)` of transitions `(..., Da)`."""
        return self.amp_linear(self.trunk(x))

    @property
    def has_slopes(self) -> bool:
        """Whether no subclass overrides score or gradient penalty, so that the closed form of the penalty holds."""
        own = AMPDiscriminator
        methods = {own.forward, own.compute_grad_pen, own.score_with_slopes, own.input_gradient}
        cls = type(self)
        is_own = methods == {cls.forward, cls.compute_grad_pen, cls.score_with_slopes, cls.input_gradient}
        return is_own and all(isinstance(layer, nn.Linear | nn.ReLU) for layer in self.trunk)

    def score_with_slopes(self, x: Tensor, count: int | None = None) -> tuple[Tensor, list[Tensor]]:
        """Score transitions `(n, ..., Da) -> (n, ..., 1)`; also return the active hidden units, `(n, ..., H)` each.

        The slopes cover the first `count` transitions, or all when None.
        """
        slopes: list[Tensor] = []
        for layer in self.trunk:
            x = layer(x)
            if isinstance(layer, nn.ReLU):
                slopes.append(x[:count] > 0)
        return self.amp_linear(x), slopes

    def input_gradient(self, slopes: list[Tensor]) -> Tensor:
        """Return the gradient of the score with respect to the input, `(..., Da)`; differentiable in the weights.

        Written out for ReLU layers, because double backward can neither be compiled nor captured. ReLU has piecewise
        constant slopes, so only the weights carry a gradient.
        """
        linears = [layer for layer in self.trunk if isinstance(layer, nn.Linear)]
        gradient = self.amp_linear.weight
        for linear, slope in zip(reversed(linears), reversed(slopes)):
            gradient = (gradient * slope) @ linear.weight
        return gradient

    def compute_grad_pen(self, amp_obs: Tensor, slopes: list[Tensor] | None = None) -> Tensor:
        """Return the weighted gradient penalty, 0-d: mean squared gradient norm of the score at `amp_obs (..., Da)`.

        `slopes` of an earlier `score_with_slopes` save a forward pass.
        """
        if slopes is None and self.has_slopes:
            with torch.no_grad():
                _, slopes = self.score_with_slopes(amp_obs)
        with torch.enable_grad():
            if slopes is None:
                amp_obs = amp_obs.detach().clone().requires_grad_()
                (gradient,) = torch.autograd.grad(self(amp_obs).sum(), amp_obs, create_graph=True)
            else:
                gradient = self.input_gradient(slopes)
            return self.discriminator_grad_pen * gradient.square().sum(dim=-1).mean()

    @torch.no_grad()
    def predict_style_reward(self, state: Tensor, task_reward: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return style, task and total reward `(N,)` of transitions `(N, Da)` with task rewards `(N,)` or `(N, 1)`."""
        score = self(state).squeeze(-1)
        style = self.style_reward_coef * (1.0 - 0.25 * (score - 1.0).square()).clamp(min=0.0)
        task_reward = task_reward.reshape(style.shape)
        return style, task_reward, self.combine_rewards(style, task_reward)

    def combine_rewards(self, style_reward: Tensor, task_reward: Tensor) -> Tensor:
        """Combine style and task rewards `(N,)` into the reward that the policy is trained on."""
        if self.additive_reward:
            return style_reward + task_reward
        return (1.0 - self.task_reward_lerp) * style_reward + self.task_reward_lerp * task_reward


DISCRIMINATORS: dict[str, type[AMPDiscriminator]] = {"AMPDiscriminator": AMPDiscriminator}


@runtime_checkable
class DiscriminatorPolicy(Protocol, metaclass=CapabilityMeta):
    """A policy with a discriminator."""

    discriminator: AMPDiscriminator


class AmpMixin(_Policy):
    """Adds a discriminator to a policy; it shares the optimizer and the checkpoint."""

    def __init__(self, *args: Any, amp_discriminator: object = None, **kwargs: Any):
        cfg = _discriminator_config(amp_discriminator, type(self).__name__)
        super().__init__(*args, **kwargs)
        name = cfg.pop("class_name", "AMPDiscriminator")
        make = resolve_class(name, DISCRIMINATORS, "amp_discriminator.class_name", AMPDiscriminator)
        self.discriminator: AMPDiscriminator = make(**{"strict": kwargs.get("strict", False), **cfg})


def _discriminator_config(config: object, owner: str) -> dict[str, Any]:
    """Return the settings of a discriminator as a dictionary; ValueError if some are missing."""
    if isinstance(config, DictConvertible):
        config = config.to_dict()
    if config is not None and not isinstance(config, Mapping):
        raise ValueError(f"'amp_discriminator' is a dictionary of settings, got {type(config).__name__}")
    settings = drop_none(config or {})
    missing = [key for key in NEEDED_KEYS if key not in settings]
    if missing:
        raise ValueError(
            f"{owner} needs 'amp_discriminator' in the policy configuration, with {', '.join(NEEDED_KEYS)}; "
            f"{', '.join(missing)} missing in {dict(settings)}"
        )
    return settings


class AmpActorCritic(AmpMixin, ActorCritic):
    """The feed-forward actor-critic with a discriminator."""


class AmpActorCriticRecurrent(AmpMixin, ActorCriticRecurrent):
    """The recurrent actor-critic with a discriminator."""
