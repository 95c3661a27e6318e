"""Observation groups: which of them actor and critic read, as `obs_groups` of rsl_rl says it."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from st_rl.utils.tensors.segments import Segments, segment_width

Groups = Mapping[str, Any]
"""Group name -> tensor `(N, ...)`, or mapping of term name -> tensor."""
ACTOR_GROUPS = ("policy", "actor")
"""Names of the actor's observation group in Isaac Lab and mjlab."""


class ObsGroups(NamedTuple):
    """Groups that are joined to the observations of actor and critic, in this order."""

    actor: tuple[str, ...]
    critic: tuple[str, ...]
    rnd_state: tuple[str, ...] = ()

    def join(self, groups: Groups) -> "JoinedGroups":
        """Return the observations `(N, O)` of actor, critic and random network distillation."""
        critic = None if self.critic == self.actor else join_groups(groups, self.critic)
        rnd_state = join_groups(groups, self.rnd_state) if self.rnd_state else None
        return JoinedGroups(join_groups(groups, self.actor), critic, rnd_state)


def resolve_missing(obs_groups: ObsGroups | None, delivered: object) -> ObsGroups | None:
    """Replace a default group that the environment does not deliver, as rsl_rl does: by `policy`, or the actor's.

    `delivered` is what `get_observations()` returned; only a mapping of groups is looked at.
    """
    if obs_groups is None or not isinstance(delivered, Mapping):
        return obs_groups
    known = list(delivered.keys())
    if obs_groups.actor == ("policy",) and "policy" not in known and "actor" in known:
        obs_groups = obs_groups._replace(actor=("actor",))
    if obs_groups.critic in (("critic",), ("teacher",)) and obs_groups.critic[0] not in known:
        obs_groups = obs_groups._replace(critic=("policy",) if "policy" in known else obs_groups.actor)
    return obs_groups


class JoinedGroups(NamedTuple):
    """Joined groups `(N, ...)`; the critic's is None if it reads the actor's."""

    actor: Tensor
    critic: Tensor | None
    rnd_state: Tensor | None


def read_obs_groups(obs_groups: object) -> ObsGroups | None:
    """Read `obs_groups` of rsl_rl; None if it asks for the groups `policy` and `critic`, which are read without it.

    ValueError for a set that no part of a training reads.
    """
    if obs_groups is None:
        return None
    if not isinstance(obs_groups, Mapping):
        raise ValueError(f"obs_groups is {obs_groups!r}; give {{'actor': [...], 'critic': [...]}}")
    sets = {name: _as_names(name, groups) for name, groups in obs_groups.items()}
    unknown = [name for name in sets if name not in (*ACTOR_GROUPS, "critic", "rnd_state")]
    if unknown:
        raise ValueError(f"obs_groups names the sets {unknown}; known: actor (or policy), critic, rnd_state")
    actor = sets.get("actor") or sets.get("policy") or ("policy",)
    critic = sets.get("critic") or ("critic",)
    found = ObsGroups(actor, critic, sets.get("rnd_state", ()))
    return None if found == (("policy",), ("critic",), ()) else found


def _as_names(name: str, groups: object) -> tuple[str, ...]:
    names = (groups,) if isinstance(groups, str) else () if groups is None else groups
    if not isinstance(names, list | tuple) or not all(isinstance(group, str) for group in names):
        raise ValueError(f"obs_groups['{name}'] is {groups!r}; give a list of group names")
    return tuple(names)


def join_groups(groups: Groups, names: Sequence[str]) -> Tensor:
    """Flatten the named groups and concatenate them to `(N, O)`; ValueError for a group that is not there."""
    known = list(groups.keys())
    for name in names:
        if name not in known:
            raise ValueError(f"the environment has no observation group '{name}'; it has {', '.join(map(str, known))}")
    rows = [flatten_group(groups[name]) for name in names]
    return rows[0] if len(rows) == 1 else torch.cat(rows, dim=1)


def flatten_group(group: Tensor | Mapping[str, Tensor]) -> Tensor:
    """Flatten a group `(N, ...)`, or concatenate its terms, to `(N, O)`."""
    if isinstance(group, Mapping):
        return torch.cat([term.flatten(1) for term in group.values()], dim=1)
    return group.flatten(1)


def join_segments(groups: Groups, names: Sequence[str], terms: Mapping[str, Segments | None]) -> dict[str, Any]:
    """Return the segments of joined groups: the known `terms` of a group, else the group as one segment.

    A term that an earlier group has too is named `group/term`.
    """
    segments: dict[str, Any] = {}
    for group in names:
        found, width = terms.get(group), flatten_group(groups[group]).shape[1]
        if not found or sum(segment_width(shape) for shape in found.values()) != width:
            shape = (width,) if isinstance(groups[group], Mapping) else tuple(groups[group].shape[1:])
            found = {group: shape if len(shape) > 1 else width}
        for name, shape in found.items():
            segments[f"{group}/{name}" if name in segments else name] = shape
    return segments
