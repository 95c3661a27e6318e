"""Symmetry by a function of the user, in the form of rsl_rl's `data_augmentation_func`."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from st_rl.modules.normalizer import EmpiricalNormalization, normalize_without_update
from st_rl.modules.policy import Policy
from st_rl.storage.fields import MiniBatch
from st_rl.utils.config import STORED_FUNCTION, import_object, is_class_path, report_unused_keys
from st_rl.utils.tensors.obs_groups import join_groups

GroupShapes = Mapping[str, tuple[int, ...]]
"""Observation group -> shape of one observation of it."""
FUNCTION_KEYS = frozenset(
    "data_augmentation_func use_data_augmentation use_mirror_loss mirror_loss_coeff mirror_loss_coef env actor_groups "
    "critic_groups".split()
)


class SymmetryFunction:
    """Adds samples that a function mirrors to mini-batches, and a loss that makes the policy symmetric.

    The function has the form of rsl_rl 3 to 5, `f(env=, obs=, actions=) -> (obs, actions)` with a TensorDict of raw
    observation groups, or of rsl_rl 2, `f(env=, obs=, actions=, obs_type=)` with tensors. It returns the given
    samples followed by one or more mirrored copies; what is given as None it returns as None.

    Configuration: `data_augmentation_func`, `use_data_augmentation` (default False), `use_mirror_loss` and
    `mirror_loss_coeff`, as in rsl_rl; `env` and the shapes of the groups, in their order, are added by the runner.
    """

    def __init__(self, cfg: Mapping[str, Any]):
        report_unused_keys(
            {k: v for k, v in cfg.items() if k not in FUNCTION_KEYS}, "symmetry_cfg", FUNCTION_KEYS, True
        )
        self._function = resolve_function(cfg["data_augmentation_func"])
        self._takes_tensors = "obs_type" in inspect.signature(self._function).parameters
        self._env = cfg.get("env")
        self._actor_groups: GroupShapes = cfg.get("actor_groups") or {}
        self._critic_groups: GroupShapes = cfg.get("critic_groups") or {}
        self.use_data_augmentation = bool(cfg.get("use_data_augmentation", False))
        coefficient = cfg.get("mirror_loss_coeff", cfg.get("mirror_loss_coef"))
        uses_loss = bool(cfg.get("use_mirror_loss", coefficient is not None and "mirror_loss_coef" in cfg))
        self.mirror_loss_coef = float(coefficient or 0.0) if uses_loss else 0.0

    def augmented(self, minibatch: MiniBatch, obs_normalizer: nn.Module, critic_obs_normalizer: nn.Module) -> MiniBatch:
        """The mini-batch `(M, ...)` followed by its mirrored samples, `(k * M, ...)`."""
        if not self.use_data_augmentation:
            return minibatch
        shares_obs = minibatch.critic_obs is minibatch.obs
        critic_obs = None if shares_obs else _raw(critic_obs_normalizer, minibatch.critic_obs)
        mirrored = self._mirror(_raw(obs_normalizer, minibatch.obs), critic_obs, minibatch.actions)
        obs = _append(minibatch.obs, obs_normalizer, mirrored["obs"])
        critic = obs if shares_obs else _append(minibatch.critic_obs, critic_obs_normalizer, mirrored["critic_obs"])
        copies = len(obs) // len(minibatch.obs)
        unchanged = {
            name: getattr(minibatch, name).repeat(copies, *[1] * (getattr(minibatch, name).dim() - 1))
            for name in ("values", "advantages", "returns", "old_actions_log_prob")
        }
        return minibatch._replace(obs=obs, critic_obs=critic, actions=mirrored["actions"], **unchanged)

    def mirror_loss(self, policy: Policy, obs: Tensor, obs_normalizer: nn.Module) -> Tensor:
        """The mean squared distance of the action means for mirrored `obs (M, O)` from the mirrored means, 0-d."""
        mirrored = self._mirror(_raw(obs_normalizer, obs), None, None)["obs"]
        means = policy.act_inference(_append(obs, obs_normalizer, mirrored))
        expected = self._mirror(None, None, means[: len(obs)].detach())["actions"]
        return F.mse_loss(means[len(obs) :], expected[len(obs) :].detach())

    def _mirror(self, obs: Tensor | None, critic_obs: Tensor | None, actions: Tensor | None) -> dict[str, Any]:
        """Call the function on raw observations; returns `obs`, `critic_obs` and `actions`, None for what was None."""
        if self._takes_tensors:
            new_obs, new_actions = self._function(env=self._env, obs=obs, actions=actions, obs_type="policy")
            new_critic = None
            if critic_obs is not None:
                new_critic, _ = self._function(env=self._env, obs=critic_obs, actions=None, obs_type="critic")
            return {"obs": new_obs, "critic_obs": new_critic, "actions": new_actions}
        groups = None if obs is None else _as_groups(obs, self._actor_groups)
        if groups is not None and critic_obs is not None:
            groups = {**_as_groups(critic_obs, self._critic_groups), **groups}
        delivered = None if groups is None else _tensor_dict(groups)
        new_groups, new_actions = self._function(env=self._env, obs=delivered, actions=actions)
        joined: dict[str, Any] = {"obs": None, "critic_obs": None, "actions": new_actions}
        if obs is not None:
            joined["obs"] = join_groups(new_groups, list(self._actor_groups))
        if critic_obs is not None:
            joined["critic_obs"] = join_groups(new_groups, list(self._critic_groups))
        return joined


def resolve_function(function: object) -> Callable[..., Any]:
    """Return a function, or the one at the path `package.module:name`; ValueError for anything else."""
    if callable(function):
        return function
    path = str(function)
    if path.startswith(STORED_FUNCTION) or not is_class_path(path):
        raise ValueError(
            f"symmetry_cfg.data_augmentation_func is {function!r}; give the function itself, or its path as "
            "'package.module:name', from Python"
        )
    return import_object(path, "symmetry_cfg.data_augmentation_func")


def _raw(normalizer: nn.Module, obs: Tensor) -> Tensor:
    """Undo the normalization of observations `(M, O)`."""
    return normalizer.inverse(obs) if isinstance(normalizer, EmpiricalNormalization) else obs


def _append(obs: Tensor, normalizer: nn.Module, mirrored: Tensor) -> Tensor:
    """Observations `(M, O)` followed by the normalized mirrored ones, which `mirrored (k * M, O)` has after a copy."""
    return torch.cat([obs, normalize_without_update(normalizer, mirrored[len(obs) :])])


def _as_groups(obs: Tensor, shapes: GroupShapes) -> dict[str, Tensor]:
    """Split joined observations `(M, O)` into their groups `(M, *shape)`."""
    sizes = [torch.Size(shape).numel() for shape in shapes.values()]
    parts = obs.split(sizes, dim=-1)
    return {name: part.reshape(len(obs), *shape) for (name, shape), part in zip(shapes.items(), parts)}


def _tensor_dict(groups: Mapping[str, Tensor]) -> Any:
    try:
        from tensordict import TensorDict
    except ImportError as error:
        raise ImportError(
            "data_augmentation_func takes observations as a TensorDict: pip install tensordict, or give the function "
            "a parameter obs_type to get tensors"
        ) from error
    return TensorDict(dict(groups), batch_size=[len(next(iter(groups.values())))])
