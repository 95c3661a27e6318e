"""Transfers the weights of a policy to one with other observations."""

import re
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor, nn

from st_rl.modules.actor_critic import ActorCritic
from st_rl.modules.encoder_actor_critic import EncoderActorCriticMixin
from st_rl.modules.networks.cnn import CnnModel
from st_rl.modules.networks.estimator_head import EstimatorHead
from st_rl.modules.normalizer import EmpiricalNormalization
from st_rl.modules.state_adaptor import PrivilegeEstimatorMixin
from st_rl.modules.state_estimator import EstimatorMixin
from st_rl.modules.visual_actor_critic import VisualActorCriticMixin
from st_rl.utils.tensors.segments import Segments, segment_slices, segment_width


class Block(NamedTuple):
    """The range of a component along an axis."""

    width: int
    origin: tuple[tuple[int, ...], ...] | None
    """Shapes of the encoder's parameters; None for a raw component."""


Axes = dict[int, dict[str, Block]]
"""The components along an axis of a parameter, in order, for the axes that consist of components."""


@torch.no_grad()
def load_misaligned_state_dict(
    self: ActorCritic, module: ActorCritic, obs_segments: Segments, critic_obs_segments: Segments | None = None
) -> tuple[list[str], list[str]]:
    """Copy what fits from `module`, a policy of the same family that was trained on the given segments.

    Parameters of equal name and shape are copied. Matrices with observation positions as columns are copied in
    blocks, by component name: columns of a component that `module` does not have, or has in another width, become
    zero, so that the policy starts with the behavior of `module`. Encoders and estimates are matched by component too.
    Returns the names of copied and of skipped parameters; a skipped block is `parameter[component]`.
    """
    critic_segments = obs_segments if critic_obs_segments is None else critic_obs_segments
    old_axes = component_axes(module, obs_segments, critic_segments)
    new_axes = component_axes(self, self.obs_segments or {}, self.critic_obs_segments or {})
    source = module.state_dict()
    copied: list[str] = []
    skipped: list[str] = []
    for name, target in self.state_dict().items():
        old_name = _name_in(module, self, name)
        axes, from_axes = new_axes.get(name, {}), old_axes.get(old_name or name, {})
        if old_name not in source or not _fits(target, source[old_name], axes, from_axes):
            skipped.append(name)
            continue
        skipped += [f"{name}[{component}]" for component in _copy_blocks(target, source[old_name], axes, from_axes)]
        copied.append(name)
    return copied, skipped


@torch.no_grad()
def load_misaligned_normalizer(
    normalizer: EmpiricalNormalization, old: EmpiricalNormalization, segments: Segments, old_segments: Segments
) -> None:
    """Copy the statistics of the components that both observations have; the others are not changed."""
    axes, from_axes = ({1: _raw_blocks(mapping)} for mapping in (segments, old_segments))
    source = old.state_dict()
    for name, target in normalizer.state_dict().items():
        if target.dim() > 1:
            _copy_blocks(target, source[name], axes, from_axes, clear=False)
        else:
            target.copy_(source[name])


def component_axes(policy: ActorCritic, segments: Segments, critic_segments: Segments) -> dict[str, Axes]:
    """Return the axes that consist of components, by parameter, for a policy that observes these segments."""
    first = {"actor": "actor.0.weight", "critic": "critic.0.weight"}
    if policy.is_recurrent:
        first = {"actor": "memory_a.rnn.weight_ih_l0", "critic": "memory_c.rnn.weight_ih_l0"}
    axes: dict[str, Axes] = {
        first["actor"]: {1: _embedded_blocks(policy, segments, critic=False)},
        first["critic"]: {1: _embedded_blocks(policy, critic_segments, critic=True)},
    }
    if isinstance(policy, EstimatorMixin):
        axes |= _head_axes(policy, policy.estimation, "memory_s", "state_estimator", segments, critic_segments)
    if isinstance(policy, PrivilegeEstimatorMixin):
        axes |= _head_axes(policy, policy.adaptation, "memory_p", "state_adaptor", segments, critic_segments)
    return axes


def _embedded_blocks(policy: ActorCritic, segments: Segments, critic: bool) -> dict[str, Block]:
    """Return the input of the actor or the critic, with latents in place of their components."""
    encoders: dict[str, tuple[nn.Module, int]] = {}
    if isinstance(policy, EncoderActorCriticMixin):
        for name, encoder in policy.encoders_by_component(critic).items():
            size = encoder.output_size if isinstance(encoder, CnnModel) else policy.encoder_output_size
            encoders[name] = encoder, size
    if isinstance(policy, VisualActorCriticMixin) and not critic:
        encoders[policy.visual_component_name] = policy.visual_encoder, policy.visual_latent_size
    blocks = _raw_blocks(segments)
    for name, (encoder, latent_size) in encoders.items():
        if name in blocks:
            shapes = tuple(tuple(tensor.shape) for tensor in encoder.state_dict().values())
            blocks[name] = Block(latent_size, shapes)
    return blocks


def _head_axes(
    policy: ActorCritic,
    head: EstimatorHead,
    memory_name: str,
    head_name: str,
    segments: Segments,
    critic_segments: Segments,
) -> dict[str, Axes]:
    """Return the axes of an estimator head: what it or its memory reads, and what it estimates."""
    layers = policy.get_submodule(f"{head_name}.model").children()
    linears = [index for index, layer in enumerate(layers) if isinstance(layer, nn.Linear)]
    first, last = (f"{head_name}.model.{linears[place]}" for place in (0, -1))
    targets = _raw_blocks(critic_segments, head.target_components)
    axes: dict[str, Axes] = {f"{last}.weight": {0: targets}, f"{last}.bias": {0: targets}}
    inputs = _raw_blocks(segments, head.obs_components)
    if memory_name in dict(policy.named_children()):
        axes[f"{memory_name}.rnn.weight_ih_l0"] = {1: inputs}
    elif not policy.is_recurrent:
        axes.setdefault(f"{first}.weight", {})[1] = inputs
    return axes


def _raw_blocks(segments: Segments, names: Sequence[str] | None = None) -> dict[str, Block]:
    """Return raw components, all or those named, in the order of the segments."""
    return {
        name: Block(segment_width(shape), None) for name, shape in segments.items() if names is None or name in names
    }


def _name_in(module: ActorCritic, policy: ActorCritic, name: str) -> str | None:
    """Return the name in `module` of the parameter `name` of `policy`; encoders are matched by component."""
    match = re.match(r"(critic_)?encoders\.(\d+)\.(.*)", name)
    if match is None:
        return name
    if not isinstance(module, EncoderActorCriticMixin) or not isinstance(policy, EncoderActorCriticMixin):
        return None
    critic = match.group(1) is not None
    component = list(policy.encoders_by_component(critic))[int(match.group(2))]
    known = list(module.encoders_by_component(critic))
    return f"{match.group(1) or ''}encoders.{known.index(component)}.{match.group(3)}" if component in known else None


def _fits(target: Tensor, source: Tensor, axes: Axes, from_axes: Axes) -> bool:
    """Whether two parameters agree in all axes; those of components must have the lengths of their blocks."""
    return target.dim() == source.dim() and all(
        (target.shape[axis] == source.shape[axis] and axis not in axes and axis not in from_axes)
        or (_length(axes, axis) == target.shape[axis] and _length(from_axes, axis) == source.shape[axis])
        for axis in range(target.dim())
    )


def _length(axes: Axes, axis: int) -> int:
    return sum(block.width for block in axes.get(axis, {}).values())


def _copy_blocks(target: Tensor, source: Tensor, axes: Axes, from_axes: Axes, clear: bool = True) -> list[str]:
    """Copy the blocks that both have; zero the columns of the others and return their names."""
    missing: list[str] = []
    pairs: list[list[tuple[slice, slice]]] = []
    for axis in range(target.dim()):
        if axis not in axes:
            pairs.append([(slice(None), slice(None))])
            continue
        places, from_places = _places(axes[axis]), _places(from_axes[axis])
        same = [name for name, block in axes[axis].items() if from_axes[axis].get(name) == block]
        pairs.append([(places[name], from_places[name]) for name in same])
        others = [name for name in places if name not in same]
        missing += others
        if axis == 1 and clear:
            for name in others:
                target[:, places[name]] = 0.0
    for places_of_block in product(*pairs):
        target[tuple(place for place, _ in places_of_block)] = source[tuple(place for _, place in places_of_block)]
    return missing


def _places(blocks: dict[str, Block]) -> dict[str, slice]:
    return segment_slices({name: block.width for name, block in blocks.items()})
