"""The widths and kinds of what an environment delivers."""

from typing import Any, NamedTuple

from torch import Tensor


class EnvSizes(NamedTuple):
    """Widths of the actor's and the critic's observations, and whether the critic has observations of its own."""

    num_obs: int
    num_critic_obs: int
    has_critic_obs: bool


def read_sizes(env: Any, obs: Tensor, critic_obs: Tensor | None) -> EnvSizes:
    """The sizes of an environment that delivers `obs (N, O)` and maybe `critic_obs (N, Oc)`; ValueError if they lie."""
    check_tensor("observations", obs)
    num_obs = getattr(env, "num_obs", None) or obs.shape[-1]
    if obs.dim() != 2 or tuple(obs.shape) != (env.num_envs, num_obs):
        raise ValueError(
            f"the environment says num_envs={env.num_envs} and num_obs={num_obs} but delivers observations of shape "
            f"{tuple(obs.shape)}; make them agree"
        )
    if critic_obs is not None:
        return EnvSizes(int(num_obs), int(critic_obs.shape[-1]), True)
    # Enough to play a policy, whose critic is not asked; learning then fails in `check_critic_obs`.
    num_critic_obs = getattr(env, "num_privileged_obs", None) or num_obs
    return EnvSizes(int(num_obs), int(num_critic_obs), num_critic_obs != num_obs)


def check_tensor(name: str, value: Any) -> Tensor:
    """What the environment delivers; TypeError when it is no tensor."""
    if not isinstance(value, Tensor):
        kind = type(value)
        raise TypeError(
            f"the environment delivers {name} as {kind.__module__}.{kind.__qualname__}, not as a torch.Tensor; "
            "st_rl.env.check_env(env) lists all that is not as it should be"
        )
    return value


def check_critic_obs(critic_obs: Tensor | None, sizes: EnvSizes) -> Tensor | None:
    """The critic's observation `(N, Oc)`; ValueError when it is missing, or comes although there was none before."""
    if (critic_obs is not None) == sizes.has_critic_obs:
        return critic_obs
    if critic_obs is None:
        raise ValueError(
            f"the environment delivers no critic observations, of which {sizes.num_critic_obs} numbers were promised; "
            "deliver extras['observations']['critic'] in get_observations() and in step(), or say num_privileged_obs=0"
        )
    raise ValueError(
        "step() delivers infos['observations']['critic'] but get_observations() does not; deliver it in both"
    )


def check_policy_sizes(policy: Any, sizes: EnvSizes) -> None:
    """ValueError for a policy that was configured for other observations than the environment delivers."""
    for name, expected, delivered in (
        ("num_actor_obs", policy.num_actor_obs, sizes.num_obs),
        ("num_critic_obs", policy.num_critic_obs, sizes.num_critic_obs),
    ):
        if expected != delivered:
            raise ValueError(
                f"the policy is configured with {name}={expected} but the environment delivers {delivered}; leave "
                f"'{name}' out of the policy configuration to take the environment's"
            )
