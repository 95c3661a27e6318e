"""Splits the return values of an environment, in the current and in the older form of the interface."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from st_rl.env.vec_env import VecEnv
from st_rl.utils.tensors.obs_groups import ACTOR_GROUPS, ObsGroups, join_groups


class Observations(NamedTuple):
    """Result of `get_observations()` or `reset()`: `obs (N, O)`, `critic_obs (N, Oc)` or `None`, `extras`."""

    obs: torch.Tensor
    critic_obs: torch.Tensor | None
    extras: Mapping[str, Any]


class StepResult(NamedTuple):
    """Result of `step()`: `obs (N, O)`, `critic_obs (N, Oc)` or `None`, `rewards (N,)`, `dones (N,)`, `infos`."""

    obs: torch.Tensor
    critic_obs: torch.Tensor | None
    rewards: torch.Tensor
    dones: torch.Tensor
    infos: Mapping[str, Any]


def split_observations(ret: object, obs_groups: ObsGroups | None = None) -> Observations:
    """Split the result of `get_observations()` or `reset()` into `(obs, critic_obs, extras)`.

    Accepts `(obs, extras)`, a mapping of groups alone or in place of `obs` (group `policy`, else `actor`, is the actor
    observation), and the older forms `obs` and `(obs, privileged_obs)`. Without a critic observation that is `None`. A
    mapping of groups becomes `extras["observations"]` of a new dict; otherwise `extras` is the object of the
    environment. With `obs_groups` the two observations are the groups it names, joined.
    """
    if isinstance(ret, torch.Tensor | Mapping):
        ret = (ret, None)
    if not isinstance(ret, tuple | list) or len(ret) != 2:
        raise TypeError(
            f"cannot read observations from {_describe(ret)}; return (obs, extras), a mapping of groups or, in the "
            "older form, the observation tensor"
        )
    if isinstance(ret[1], torch.Tensor):
        return Observations(*_read_groups(ret[0], ret[1], None, obs_groups))
    return Observations(*_read_groups(ret[0], None, ret[1], obs_groups))


def observe(env: VecEnv, obs_groups: ObsGroups | None = None) -> Observations:
    """Current observation, critic observation and extras of an environment, in either form of the interface."""
    delivered = env.get_observations()
    # The older form has a method for the critic observation, the current one a group.
    if isinstance(delivered, torch.Tensor) and hasattr(env, "get_privileged_observations"):
        delivered = (delivered, env.get_privileged_observations())
    return split_observations(delivered, obs_groups)


def split_step(ret: object, obs_groups: ObsGroups | None = None) -> StepResult:
    """Split the result of `step()` into `(obs, critic_obs, rewards, dones, infos)`.

    Accepts `(obs, rewards, dones, infos)`, where `obs` may be a mapping of groups, and the older
    `(obs, privileged_obs, rewards, dones, infos)`. With `obs_groups` the observations are the groups it names, joined.
    """
    if not isinstance(ret, tuple | list) or len(ret) not in (4, 5):
        raise TypeError(
            f"cannot read a step from {_describe(ret)}; return (obs, rewards, dones, infos) or, in the older form, "
            "(obs, privileged_obs, rewards, dones, infos)"
        )
    privileged = None if len(ret) == 4 else ret[1]
    # Numpy arrays too, since an environment that returns gymnasium's values mostly returns arrays.
    if privileged is not None and getattr(privileged, "ndim", 2) < 2:
        raise ValueError(
            f"step() returned five values and the second has shape {tuple(privileged.shape)}: these look like "
            "gymnasium's (obs, rewards, terminated, truncated, infos); wrap the environment in "
            "st_rl.env.GymnasiumVecEnv or return (obs, rewards, dones, infos)"
        )
    rewards, dones, infos = ret[-3:]
    obs, critic_obs, infos = _read_groups(ret[0], privileged, infos, obs_groups)
    return StepResult(obs, critic_obs, rewards, dones, infos)


def split_final_observations(infos: Mapping[str, Any]) -> torch.Tensor | None:
    """Return the last critic observation of finished episodes, rows valid where done, or `None`.

    It is group `critic` of `infos["final_observations"]`, else group `policy`.
    """
    groups = infos.get("final_observations")
    if groups is None or isinstance(groups, torch.Tensor):
        return groups
    critic_obs = groups.get("critic")
    return groups.get("policy") if critic_obs is None else critic_obs


def tensor_error(name: str, value: object) -> TypeError:
    """Return the error for something that the environment delivers and that is not a tensor."""
    kind = type(value)
    return TypeError(
        f"the environment delivers {name} as {kind.__module__}.{kind.__qualname__}, not as a torch.Tensor; "
        "st_rl.env.check_env(env) lists all such errors"
    )


def _read_groups(
    obs: Any, critic_obs: Any, extras: Mapping[str, Any] | None, obs_groups: ObsGroups | None
) -> tuple[torch.Tensor, torch.Tensor | None, Mapping[str, Any]]:
    """Return actor and critic observation, and the extras with the groups of a mapping `obs` as `observations`.

    Without `critic_obs`, the critic observation is the group `critic`, if there is one.
    """
    extras = {} if extras is None else extras
    if not isinstance(extras, Mapping):
        raise TypeError(f"the last value the environment returned must be a dict, not {_describe(extras)}")
    groups = extras.get("observations")
    groups = {} if groups is None else groups
    if not isinstance(groups, Mapping):
        raise TypeError(f"extras['observations'] must be a dict of groups, not {_describe(groups)}")
    if isinstance(obs, Mapping):
        groups = {**groups, **dict(obs.items())}
        extras = {**extras, "observations": groups}
        obs = groups[_actor_group(groups, obs_groups)]
    critic_obs = groups.get("critic") if critic_obs is None else critic_obs
    return (obs, critic_obs, extras) if obs_groups is None else _join(obs_groups, obs, critic_obs, extras, groups)


def _actor_group(groups: Mapping[str, Any], obs_groups: ObsGroups | None) -> str:
    """Return the name of the group that the actor reads, or of the first one of several."""
    wanted = ACTOR_GROUPS if obs_groups is None else obs_groups.actor
    for name in wanted:
        if name in groups:
            return name
    raise ValueError(
        f"the environment returned observation groups {sorted(map(str, groups))} without {' or '.join(wanted)}, "
        "the group the actor reads; name the groups in 'obs_groups': {'actor': [...], 'critic': [...]}"
    )


def _join(
    obs_groups: ObsGroups, obs: Any, critic_obs: Any, extras: Mapping[str, Any], groups: Mapping[str, Any]
) -> tuple[torch.Tensor, torch.Tensor | None, Mapping[str, Any]]:
    """Replace both observations, the RND state and the final observations by the groups that `obs_groups` names."""
    groups = {"policy": obs, **({} if critic_obs is None else {"critic": critic_obs}), **groups}
    joined = obs_groups.join(groups)
    if joined.rnd_state is not None:
        groups["rnd_state"] = joined.rnd_state
    extras = {**extras, "observations": groups}
    final = extras.pop("final_observations", None)
    if isinstance(final, Mapping) and set(obs_groups.critic) <= set(final.keys()):
        extras["final_observations"] = {"critic": join_groups(final, obs_groups.critic)}
    return joined.actor, joined.critic, extras


def _describe(value: object) -> str:
    """Type of a value for an error message, with the types of its parts."""
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)} ({', '.join(type(part).__name__ for part in value)})"
    return f"a {type(value).__name__}"
