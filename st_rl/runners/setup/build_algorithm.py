"""Builds the algorithm and its policy from a configuration and an environment."""

from collections.abc import Mapping
from typing import Any

import torch

from st_rl.algorithms import PPO, algorithm_classes
from st_rl.algorithms.appo import read_motion_features
from st_rl.algorithms.symmetry_augmentation import completed_symmetry
from st_rl.env import VecEnv
from st_rl.modules import build_actor_critic
from st_rl.modules.policy.build import EnvSpec
from st_rl.runners.setup.env_sizes import EnvSizes, check_policy_sizes
from st_rl.runners.setup.train_config import TrainConfig
from st_rl.utils.config import drop_none, resolve_class
from st_rl.utils.distributed import broadcast_module
from st_rl.utils.tensors.obs_groups import ACTOR_GROUPS


def build_algorithm(
    env: VecEnv, config: TrainConfig, sizes: EnvSizes, extras: Mapping[str, Any], device: torch.device | str
) -> PPO:
    """Return the configured algorithm with its policy, normalizers and rollout storage.

    `extras` came with the environment's first observation.
    """
    algorithm_class = resolve_class(config.algorithm_class_name, algorithm_classes(), "algorithm class")
    spec = EnvSpec(sizes.num_obs, sizes.num_critic_obs, env.num_actions, sizes.obs_segments, sizes.critic_obs_segments)
    _complete_discriminator(config.policy, extras)
    policy = build_actor_critic(spec, config.policy_class_name, config.policy)
    check_policy_sizes(policy, sizes)
    broadcast_module(policy.to(device))
    # None means "not given", except for `desired_kl`, where it means "no limit".
    settings: dict[str, Any] = {k: v for k, v in config.algorithm.items() if v is not None or k == "desired_kl"}
    settings.pop("class_name", None)
    inner = settings.get("ppo") or {}
    if inner.get("empirical_normalization") is None:
        settings.setdefault("empirical_normalization", bool(config.runner.get("empirical_normalization")))
    if inner.get("anneal_iterations") is None and config.runner.get("max_iterations"):
        settings.setdefault("anneal_iterations", int(config.runner["max_iterations"]))
    rnd_cfg = settings.get("rnd_cfg") or inner.get("rnd_cfg")
    if rnd_cfg:
        settings["rnd_cfg"] = _complete_rnd_cfg(rnd_cfg, extras, env)
    symmetry_cfg = settings.get("symmetry_cfg") or inner.get("symmetry_cfg")
    if symmetry_cfg:
        settings["symmetry_cfg"] = completed_symmetry(symmetry_cfg, env)
        if settings["symmetry_cfg"].get("data_augmentation_func") is not None:
            settings["symmetry_cfg"] |= {"env": env, **_group_shapes(config, sizes, extras)}
    algorithm: PPO = algorithm_class(policy, device=device, **settings)
    if not sizes.has_critic_obs and algorithm.critic_obs_normalization != algorithm.empirical_normalization:
        raise ValueError(
            f"critic_obs_normalization={algorithm.critic_obs_normalization} differs from that of the actor, but the "
            "critic reads the actor's observation; leave it out, or deliver extras['observations']['critic']"
        )
    algorithm.init_obs_norm(sizes.num_obs, sizes.num_critic_obs)
    algorithm.init_storage(
        env.num_envs,
        int(config.runner["num_steps_per_env"]),
        [sizes.num_obs],
        [sizes.num_critic_obs] if sizes.has_critic_obs else [None],
        [env.num_actions],
        **(config.runner.get("storage") or {}),
    )
    return algorithm


def _group_shapes(config: TrainConfig, sizes: EnvSizes, extras: Mapping[str, Any]) -> dict[str, Any]:
    """Return the shapes of the observation groups that actor and critic read, in the order they are joined."""
    groups = extras.get("observations") or {}
    names = config.obs_groups
    if names is None:
        actor = next((name for name in ACTOR_GROUPS if name in groups), ACTOR_GROUPS[0])
        return {"actor_groups": {actor: (sizes.num_obs,)}, "critic_groups": {"critic": (sizes.num_critic_obs,)}}
    return {
        f"{part}_groups": {name: tuple(groups[name].shape[1:]) for name in joined}
        for part, joined in (("actor", names.actor), ("critic", names.critic))
    }


def _complete_discriminator(policy: dict[str, Any], extras: Mapping[str, Any]) -> None:
    """Set `amp_discriminator.input_dim` of a policy configuration, if it is None, to the width of the delivered motion
    features.
    """
    settings, features = policy.get("amp_discriminator"), read_motion_features(extras)[0]
    if isinstance(settings, Mapping) and settings.get("input_dim", 0) is None and features is not None:
        policy["amp_discriminator"] = {**settings, "input_dim": features[0].numel()}


def _complete_rnd_cfg(rnd_cfg: Mapping[str, Any], extras: Mapping[str, Any], env: VecEnv) -> dict[str, Any]:
    """Return the RND settings with `num_states` set to the width of the delivered states.

    With `scale_weight_by_step_dt` the weight is per second, as in rsl_rl 4 and 5.
    """
    rnd_state = (extras.get("observations") or {}).get("rnd_state")
    if rnd_state is None:
        raise ValueError(
            "rnd_cfg is set but the environment delivers no extras['observations']['rnd_state']; "
            "deliver the states (N, R) for the novelty reward, or remove rnd_cfg"
        )
    completed = {"num_states": rnd_state.shape[-1], **drop_none(rnd_cfg)}
    if completed.pop("scale_weight_by_step_dt", False):
        step_dt = getattr(getattr(env, "unwrapped", env), "step_dt", None)
        if step_dt is None:
            raise ValueError(
                "algorithm.rnd_cfg.weight of rsl_rl is per second, but the environment has no unwrapped.step_dt; "
                "add it, in seconds"
            )
        completed["weight"] = float(completed.get("weight", 0.0)) * float(step_dt)
    return completed
