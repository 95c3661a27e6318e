"""Starts a policy from the weights of a trained one, with the same or with other observations."""

import re
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from st_rl.modules.actor_critic import ActorCritic
from st_rl.modules.normalizer import EmpiricalNormalization
from st_rl.modules.policy.misaligned import load_misaligned_normalizer, load_misaligned_state_dict
from st_rl.utils.tensors.segments import Segments, segment_width

# Networks without which nothing of the parent's behavior would be left.
_HEADS = {"actor": "actor", "critic": "critic", "memory_a": "actor's RNN", "memory_c": "critic's RNN"}
_NOISE = ("std", "log_std")


class Observations(NamedTuple):
    """Components of the actor's and the critic's observation, name -> shape."""

    actor: Segments
    critic: Segments

    @classmethod
    def of(cls, policy: ActorCritic) -> "Observations":
        """Return the observations of a policy; one component `obs` if it knows no segments."""
        actor = policy.obs_segments or {"obs": policy.num_actor_obs}
        return cls(actor, policy.critic_obs_segments or {"obs": policy.num_critic_obs})


def transfer_policy(policy: ActorCritic, parent: ActorCritic, with_noise: bool = True) -> list[str]:
    """Copy the weights of `parent` into a policy of its class and hidden sizes; returns what is new, in words.

    Observation components are matched by name: the weights of those that the parent lacks, or has in another width,
    start at zero, so that the policy starts with the behavior of its parent. Encoders, estimators and discriminators
    that do not fit stay as they are. Without `with_noise` the standard deviation of the actions does too.
    ValueError if the parent is of another class, or has other actions, layers or activations.
    """
    _check_networks(policy, parent)
    noise = {name: tensor.clone() for name, tensor in policy.state_dict().items() if name in _NOISE}
    new, old = Observations.of(policy), Observations.of(parent)
    shapes = [[(name, tensor.shape) for name, tensor in part.state_dict().items()] for part in (policy, parent)]
    skipped: list[str] = []
    if shapes[0] == shapes[1] and all(list(a.items()) == list(b.items()) for a, b in zip(new, old)):
        policy.load_state_dict(parent.state_dict())
    else:
        _check_components(new.actor, old.actor)
        skipped = load_misaligned_state_dict(policy, parent, *old)[1]
    if not with_noise:
        policy.load_state_dict({**policy.state_dict(), **noise})
    return _describe_new(new, old, skipped)


def _check_networks(policy: ActorCritic, parent: ActorCritic) -> None:
    """ValueError if weights of the parent cannot be used in the policy."""
    if type(policy) is not type(parent):
        raise ValueError(
            f"its policy class is {type(parent).__name__}, the one of this training {type(policy).__name__}"
        )
    if policy.num_actions != parent.num_actions:
        raise ValueError(f"it has {parent.num_actions} actions, this training {policy.num_actions}")
    for name, words in _HEADS.items():
        ours, theirs = (_layers(part, name) for part in (policy, parent))
        if ours != theirs:
            raise ValueError(f"the layers of its {words} are {' '.join(theirs)}, of this training {' '.join(ours)}")


def _layers(policy: ActorCritic, name: str) -> list[str]:
    """Describe the layers of a head or RNN, without their input: sizes and activations."""
    part = dict(policy.named_children()).get(name)
    words = []
    for layer in [] if part is None else part.modules():
        if isinstance(layer, nn.Linear):
            words.append(str(layer.out_features))
        elif isinstance(layer, nn.RNNBase):
            words.append(f"{layer.mode} {layer.num_layers}x{layer.hidden_size}")
        elif not list(layer.children()):
            words.append(type(layer).__name__)
    return words


def _check_components(new: Segments, old: Segments) -> None:
    """ValueError unless the actors have a component in common."""
    if not any(name in old and segment_width(old[name]) == segment_width(shape) for name, shape in new.items()):
        raise ValueError(
            f"its actor observes {_list(old)}, the one of this training {_list(new)}: they have nothing in common"
        )


def _list(segments: Segments) -> str:
    return ", ".join(f"{name} ({segment_width(shape)})" for name, shape in segments.items())


def _describe_new(new: Observations, old: Observations, skipped: list[str]) -> list[str]:
    """Say which components and which whole networks were not copied, and which components the parent alone has."""
    words = []
    for role, ours, theirs in (("actor", new.actor, old.actor), ("critic", new.critic, old.critic)):
        added = [
            name
            for name, shape in ours.items()
            if name not in theirs or segment_width(theirs[name]) != segment_width(shape)
        ]
        gone = [name for name in theirs if name not in ours]
        words += [f"the {role} observes {', '.join(added)}, which the parent does not"] if added else []
        words += [f"the {role} no longer observes {', '.join(gone)}"] if gone else []
    # `encoders.0.model.2.weight` is of the network `encoders.0`.
    whole = [re.match(r"((?:critic_)?encoders\.\d+|[^.]+)", name) for name in skipped if "[" not in name]
    networks = dict.fromkeys(match[1] for match in whole if match)
    return words + ([f"new weights: {', '.join(networks)}"] if networks else [])


def transfer_normalizer(
    normalizer: EmpiricalNormalization,
    state: Mapping[str, Tensor],
    segments: tuple[Segments, Segments] | None,
    max_count: int,
) -> None:
    """Copy the statistics of a parent's normalizer, by component if `segments`, own and parent's, are given.

    With components that the parent lacks, the statistics count for at most `max_count` samples, so that those of the
    new components can adapt. Statistics of another width without segments are not copied.
    """
    width = int(state["_mean"].numel())
    if segments is None or list(segments[0].items()) == list(segments[1].items()):
        if width == normalizer.state_dict()["_mean"].numel():
            normalizer.load_state_dict(state)
        return
    old = EmpiricalNormalization(width)
    old.load_state_dict(state)
    load_misaligned_normalizer(normalizer, old.to(normalizer.count.device), *segments)
    with torch.no_grad():
        normalizer.count.clamp_(max=max_count)
