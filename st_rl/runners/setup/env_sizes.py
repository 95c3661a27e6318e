"""Checks widths and types of the tensors that an environment delivers."""

from typing import NamedTuple

from torch import Tensor

from st_rl.env import VecEnv
from st_rl.env.utils import Observations, tensor_error
from st_rl.modules.policy import Policy
from st_rl.modules.policy.build import read_segments
from st_rl.utils.tensors.obs_groups import ACTOR_GROUPS, ObsGroups, join_segments
from st_rl.utils.tensors.segments import Segments


class EnvSizes(NamedTuple):
    """Widths of actor and critic observation, whether the critic observation is a separate one, and the segments."""

    num_obs: int
    num_critic_obs: int
    has_critic_obs: bool
    obs_segments: Segments | None = None
    critic_obs_segments: Segments | None = None


def read_sizes(env: VecEnv, observations: Observations, obs_groups: ObsGroups | None = None) -> EnvSizes:
    """Return sizes and segments of the first observations; ValueError if the environment's own sizes differ.

    With `obs_groups` the observations are joined groups; the environment states sizes of single groups only.
    """
    obs, critic_obs, extras = observations
    if not isinstance(obs, Tensor):
        raise tensor_error("observations", obs)
    segments = read_segments(env)
    if obs_groups is not None:
        groups, terms = extras["observations"], {"critic": segments[1], **dict.fromkeys(ACTOR_GROUPS, segments[0])}
        has_critic_obs = critic_obs is not None
        return EnvSizes(
            int(obs.shape[-1]),
            int(obs.shape[-1] if critic_obs is None else critic_obs.shape[-1]),
            has_critic_obs,
            join_segments(groups, obs_groups.actor, terms),
            join_segments(groups, obs_groups.critic, terms) if has_critic_obs else None,
        )
    num_obs = getattr(env, "num_obs", None) or obs.shape[-1]
    if obs.dim() != 2 or tuple(obs.shape) != (env.num_envs, num_obs):
        raise ValueError(
            f"the environment has num_envs={env.num_envs} and num_obs={num_obs} but delivers observations of shape "
            f"{tuple(obs.shape)}; make them agree"
        )
    if critic_obs is not None:
        return EnvSizes(int(num_obs), int(critic_obs.shape[-1]), True, *segments)
    # Enough to play a policy; training raises `critic_obs_error`.
    num_critic_obs = getattr(env, "num_privileged_obs", None) or num_obs
    return EnvSizes(int(num_obs), int(num_critic_obs), num_critic_obs != num_obs, *segments)


def critic_obs_error(sizes: EnvSizes) -> ValueError:
    """Return the error for a critic observation that is missing, or that was missing at construction."""
    if sizes.has_critic_obs:
        return ValueError(
            f"the environment delivers no critic observations, expected are {sizes.num_critic_obs} values; deliver "
            "extras['observations']['critic'] in get_observations() and in step(), or set num_privileged_obs=0"
        )
    return ValueError(
        "step() delivers infos['observations']['critic'] but get_observations() does not; deliver it in both"
    )


def check_policy_sizes(policy: Policy, sizes: EnvSizes) -> None:
    """ValueError if the policy is configured for other widths than the environment delivers."""
    for name, expected, delivered in (
        ("num_actor_obs", policy.num_actor_obs, sizes.num_obs),
        ("num_critic_obs", policy.num_critic_obs, sizes.num_critic_obs),
    ):
        if expected != delivered:
            raise ValueError(
                f"the policy is configured with {name}={expected} but the environment delivers {delivered}; leave "
                f"'{name}' out of the policy configuration to use that of the environment"
            )
