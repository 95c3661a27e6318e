"""Policies that encode an image in the observation."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from st_rl.modules.actor_critic import ActorCritic
from st_rl.modules.actor_critic_recurrent import ActorCriticRecurrent
from st_rl.modules.conv2d import Conv2dHeadModel
from st_rl.modules.deterministic_policy import DeterministicPolicyMixin
from st_rl.modules.networks.encoders import (
    DEFAULT_CONVOLUTIONS,
    apply_encoder,
    embed_latents,
    embedded_width,
    find_components,
    image_shape,
)
from st_rl.modules.utils import check_settings
from st_rl.utils.config import drop_none

if TYPE_CHECKING:
    _Policy = ActorCritic
else:
    _Policy = object

VISUAL_DEFAULTS: dict[str, Any] = {**DEFAULT_CONVOLUTIONS, "hidden_sizes": [256]}


class VisualActorCriticMixin(_Policy):
    """Replaces the image in the actor's observation by its latent; the critic keeps the raw observation."""

    def __init__(
        self,
        num_actor_obs: int,
        num_critic_obs: int,
        num_actions: int,
        obs_segments: Mapping[str, Any] | None = None,
        critic_obs_segments: Mapping[str, Any] | None = None,
        visual_component_name: str = "forward_depth",
        visual_kwargs: Mapping[str, Any] | None = {},
        visual_latent_size: int = 256,
        **kwargs: Any,
    ):
        (self.visual_obs_slice,) = find_components(obs_segments, [visual_component_name], "visual_component_name")
        self.visual_component_name = visual_component_name
        self.visual_latent_size = int(visual_latent_size)
        self.visual_kwargs = {**VISUAL_DEFAULTS, **drop_none(visual_kwargs or {})}
        check_settings("visual_kwargs", self.visual_kwargs, Conv2dHeadModel, decided=["image_shape", "output_size"])
        shape = image_shape(visual_component_name, self.visual_obs_slice[1])
        super().__init__(
            embedded_width(num_actor_obs, [self.visual_obs_slice], [self.visual_latent_size]),
            num_critic_obs,
            num_actions,
            obs_segments=obs_segments,
            critic_obs_segments=critic_obs_segments,
            **kwargs,
        )
        self.num_actor_obs = int(num_actor_obs)
        self.visual_encoder = Conv2dHeadModel(shape, output_size=self.visual_latent_size, **self.visual_kwargs)
        # Set while `act_with_embedded_latent` runs: its observations hold the latent already.
        self._is_embedded = False

    def embed_visual_latent(self, observations: Tensor) -> Tensor:
        """Replace the image by its latent, `(..., O) -> (..., O')`."""
        where, shape = self.visual_obs_slice
        latent = apply_encoder(self.visual_encoder, observations[..., where], shape)
        return embed_latents(observations, [(where, latent)])

    def act_with_embedded_latent(self, observations: Tensor, **kwargs: Any) -> Tensor:
        """`act` for observations `(..., O')` from `embed_visual_latent`."""
        self._is_embedded = True
        try:
            return self.act(observations, **kwargs)
        finally:
            self._is_embedded = False

    def actor_input(self, observations: Tensor, **kwargs: Any) -> Tensor:
        """Return the parent's input for observations with the latent in place of the image."""
        embedded = observations if self._is_embedded else self.embed_visual_latent(observations)
        return super().actor_input(embedded, **kwargs)


class VisualDeterministicRecurrent(DeterministicPolicyMixin, VisualActorCriticMixin, ActorCriticRecurrent):
    """A recurrent policy for distillation that observes an image and acts without noise."""


class VisualDeterministicAC(DeterministicPolicyMixin, VisualActorCriticMixin, ActorCritic):
    """A feed-forward policy for distillation that observes an image and acts without noise."""
