"""Policies that encode components of the observation."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from st_rl.modules.actor_critic import ActorCritic
from st_rl.modules.actor_critic_recurrent import ActorCriticRecurrent
from st_rl.modules.amp_discriminator import AmpActorCriticRecurrent
from st_rl.modules.networks.encoders import (
    ComponentSlice,
    apply_encoder,
    as_names,
    build_encoder,
    embed_latents,
    embedded_width,
    find_components,
    latent_size,
    one_for_each,
    resolve_names,
    same_by_name,
)
from st_rl.utils.tensors.segments import get_obs_slice, segment_width

if TYPE_CHECKING:
    _Policy = ActorCritic
else:
    _Policy = object

SHARED = "shared"
DEFAULT_OUTPUT_SIZE = 64


class EncoderActorCriticMixin(_Policy):
    """Replaces named components of the observation by their encoders' latents, each in its component's place."""

    def __init__(
        self,
        num_actor_obs: int,
        num_critic_obs: int,
        num_actions: int,
        obs_segments: Mapping[str, Any] | None = None,
        critic_obs_segments: Mapping[str, Any] | None = None,
        encoder_component_names: Sequence[str] | None = [],
        encoder_class_name: str | Sequence[str] = "MlpModel",
        encoder_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = {},
        encoder_output_size: int | None = None,
        critic_encoder_component_names: str | Sequence[str] | None = None,
        critic_encoder_class_name: str | Sequence[str] | None = None,
        critic_encoder_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ):
        critic_segments = kwargs.pop("privileged_obs_segments", None)
        critic_segments = critic_segments if critic_obs_segments is None else critic_obs_segments
        self.obs_segments = obs_segments
        self.critic_obs_segments = obs_segments if critic_segments is None else critic_segments
        self.encoder_output_size = DEFAULT_OUTPUT_SIZE if encoder_output_size is None else int(encoder_output_size)
        if self.encoder_output_size < 1:
            raise ValueError(f"encoder_output_size is {encoder_output_size}: give a latent at least one number")
        self._set_component_names(encoder_component_names, critic_encoder_component_names)
        self.prepare_obs_slices()
        names, critic_names = self.encoder_component_names, as_names(self.critic_encoder_component_names)
        if critic_encoder_class_name is None:
            critic_encoder_class_name = same_by_name(critic_names, encoder_class_name, names)
        if critic_encoder_kwargs is None:
            critic_encoder_kwargs = same_by_name(critic_names, encoder_kwargs or {}, names)
        actor = encoder_class_name, self.encoder_obs_slices, encoder_kwargs
        critic = critic_encoder_class_name, self.critic_encoder_obs_slices, critic_encoder_kwargs
        actor_sizes = self._latent_sizes(names, *actor)
        critic_sizes = actor_sizes if self.shares_encoders else self._latent_sizes(critic_names, *critic)
        super().__init__(
            embedded_width(num_actor_obs, self.encoder_obs_slices, actor_sizes),
            embedded_width(num_critic_obs, self.critic_encoder_obs_slices, critic_sizes),
            num_actions,
            obs_segments=obs_segments,
            critic_obs_segments=critic_segments,
            **kwargs,
        )
        self.num_actor_obs, self.num_critic_obs = int(num_actor_obs), int(num_critic_obs)
        self.encoders = self.build_encoders(names, *actor, self.encoder_output_size)
        # Empty if the critic shares the actor's encoders or has none.
        self.critic_encoders = nn.ModuleList()
        if critic_names and not self.shares_encoders:
            self.critic_encoders = self.build_encoders(critic_names, *critic, self.encoder_output_size)

    @property
    def shares_encoders(self) -> bool:
        """Whether the critic uses the actor's encoders."""
        return self.critic_encoder_component_names == SHARED

    def network_parameters(self) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """The parameters of actor and critic with their encoders; shared ones are in both."""
        actor, critic = super().network_parameters()
        return actor, [*critic, *self.encoders.parameters()] if self.shares_encoders else critic

    def _set_component_names(self, names: str | Sequence[str] | None, critic_names: str | Sequence[str] | None) -> None:
        """Set the components that actor and critic encode."""
        self.encoder_component_names = resolve_names(names, self.obs_segments, "encoder_component_names")
        self.critic_encoder_component_names = SHARED
        if critic_names != SHARED:
            self.critic_encoder_component_names = resolve_names(
                critic_names, self.critic_obs_segments, "critic_encoder_component_names"
            )

    def prepare_obs_slices(self) -> None:
        """Set the `(slice, shape)` of the encoded components in the order of the names, and their order by position."""
        names = self.encoder_component_names
        self.encoder_obs_slices = find_components(self.obs_segments, names, "encoder_component_names")
        self.critic_encoder_obs_slices = self._find_critic_components()
        self.latents_order = _order_by_position(self.encoder_obs_slices)
        self.critic_latents_order = _order_by_position(self.critic_encoder_obs_slices)

    def _find_critic_components(self) -> list[ComponentSlice]:
        """Return slices and shapes of the components that the critic encodes."""
        segments = self.critic_obs_segments or {}
        if not self.shares_encoders:
            names = as_names(self.critic_encoder_component_names)
            return find_components(self.critic_obs_segments, names, "critic_encoder_component_names")
        found: list[ComponentSlice] = []
        for name, (where, shape) in zip(self.encoder_component_names, self.encoder_obs_slices):
            # A component missing in the critic's segments has the actor's position.
            if name in segments:
                where, critic_shape = get_obs_slice(segments, name)
                if segment_width(critic_shape) != segment_width(shape):
                    raise ValueError(
                        f"'{name}' has shape {shape} for the actor and {critic_shape} for the critic: "
                        'critic_encoder_component_names="shared" needs the same width; name the components instead'
                    )
            # In the shape of the encoder: the critic's segments may have it flat.
            found.append((where, shape))
        return found

    def _latent_sizes(
        self,
        component_names: Sequence[str],
        class_name: str | Sequence[str],
        obs_slices: Sequence[ComponentSlice],
        kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None,
    ) -> list[int]:
        """Return the width of the latent of each component, in the order of the names."""
        class_names = one_for_each(component_names, class_name, "encoder_class_name")
        settings = one_for_each(component_names, kwargs or {}, "encoder_kwargs")
        return [
            latent_size(name, encoder_class, shape, self.encoder_output_size, arguments)
            for name, encoder_class, (_, shape), arguments in zip(component_names, class_names, obs_slices, settings)
        ]

    def build_encoders(
        self,
        component_names: Sequence[str],
        class_name: str | Sequence[str],
        obs_slices: Sequence[ComponentSlice],
        kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None,
        encoder_output_size: int,
    ) -> nn.ModuleList:
        """Build one encoder per component; class and arguments are given once for all, or in lists."""
        class_names = one_for_each(component_names, class_name, "encoder_class_name")
        settings = one_for_each(component_names, kwargs or {}, "encoder_kwargs")
        return nn.ModuleList(
            build_encoder(name, encoder_class, shape, encoder_output_size, arguments)
            for name, encoder_class, (_, shape), arguments in zip(component_names, class_names, obs_slices, settings)
        )

    def embed_encoders_latent(
        self,
        observations: Tensor,
        obs_slices: Sequence[ComponentSlice],
        encoders: nn.ModuleList,
        latents_order: Sequence[int],
    ) -> Tensor:
        """Replace the components by their latents, `(..., O) -> (..., O')`."""
        latents = []
        for index in latents_order:
            where, shape = obs_slices[index]
            latents.append((where, apply_encoder(encoders[index], observations[..., where], shape)))
        return embed_latents(observations, latents)

    def get_encoder_latent(self, observations: Tensor, obs_component: str, critic: bool = False) -> Tensor:
        """Return the latent `(..., L)` of one component of actor (or `critic`) observations `(..., O)`."""
        encoders = self.encoders_by_component(critic)
        if obs_component not in encoders:
            side = "critic" if critic else "actor"
            raise ValueError(f"the {side} has no encoder for '{obs_component}'; it has encoders for {list(encoders)}")
        slices = self.critic_encoder_obs_slices if critic else self.encoder_obs_slices
        where, shape = slices[list(encoders).index(obs_component)]
        return apply_encoder(encoders[obs_component], observations[..., where], shape)

    def encoders_by_component(self, critic: bool = False) -> dict[str, nn.Module]:
        """Return the encoders of the actor, or of the critic, by component."""
        if critic and not self.shares_encoders:
            return dict(zip(self.critic_encoder_component_names, self.critic_encoders))
        return dict(zip(self.encoder_component_names, self.encoders))

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Load as any module; if encoders do not fit, the error tells their sizes here."""
        try:
            return super().load_state_dict(state_dict, *args, **kwargs)
        except RuntimeError as error:
            if "encoders." not in str(error):
                raise
            here = [
                tuple(tensor.shape) for name, tensor in self.encoders.state_dict().items() if name.endswith("weight")
            ]
            raise RuntimeError(
                f"{error}\nThe encoders of {self.encoder_component_names} have weights of shapes {here} and latents of "
                f"{self.encoder_output_size}: set encoder_kwargs and encoder_output_size as they were trained"
            ) from error

    def actor_input(self, observations: Tensor, **kwargs: Any) -> Tensor:
        """Return the parent's input for observations with latents in place of components."""
        embedded = self.embed_encoders_latent(observations, self.encoder_obs_slices, self.encoders, self.latents_order)
        return super().actor_input(embedded, **kwargs)

    def critic_input(self, critic_observations: Tensor, **kwargs: Any) -> Tensor:
        """Return the parent's input for critic observations, with latents in place if the critic has encoders."""
        encoders = self.encoders if self.shares_encoders else self.critic_encoders
        embedded = self.embed_encoders_latent(
            critic_observations, self.critic_encoder_obs_slices, encoders, self.critic_latents_order
        )
        return super().critic_input(embedded, **kwargs)


def _order_by_position(obs_slices: Sequence[ComponentSlice]) -> list[int]:
    return sorted(range(len(obs_slices)), key=lambda index: obs_slices[index][0].start)


class EncoderActorCritic(EncoderActorCriticMixin, ActorCritic):
    """A feed-forward policy with encoders."""


class EncoderActorCriticRecurrent(EncoderActorCriticMixin, ActorCriticRecurrent):
    """A recurrent policy with encoders."""


class EncoderAmpActorCriticRecurrent(EncoderActorCriticMixin, AmpActorCriticRecurrent):
    """A recurrent policy with encoders and a discriminator."""
