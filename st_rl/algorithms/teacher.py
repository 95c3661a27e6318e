"""The frozen teacher of a distillation: its policy and the statistics of its training observations."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from st_rl.modules import ActorCriticMutex, EmpiricalNormalization, policy_class
from st_rl.utils.config import drop_none
from st_rl.utils.distributed import broadcast_module
from st_rl.utils.files import CheckpointError, load_checkpoint, newest_checkpoint
from st_rl.utils.log import logger


class Teacher(NamedTuple):
    """A frozen policy with the observation statistics of its checkpoint."""

    policy: Any
    has_snapshot: bool
    obs_statistics: Mapping[str, Any] | None
    """State of the teacher's observation normalizer; None if it was trained without one."""


def load_teacher(
    student: Any,
    settings: Mapping[str, Any],
    class_name: str,
    path: str | None,
    sees_critic_obs: bool,
    device: torch.device | str,
) -> Teacher:
    """Build the teacher, load its checkpoint and freeze it.

    Sizes and segments missing in `settings` come from the student: those of its critic if the teacher
    `sees_critic_obs`, else those of its actor. Without a `path` the teacher is untrained, unless it is a mutex policy,
    which loads its sub-policies itself.
    """
    settings = drop_none(settings)
    path = settings.pop("teacher_ac_path", None) or path
    class_name = settings.pop("class_name", class_name)
    policy = _build(student, settings, class_name, sees_critic_obs)
    snapshot: Mapping[str, Any] = {}
    if path:
        file = _snapshot_file(path)
        snapshot = load_checkpoint(file, map_location="cpu")
        _load_weights(policy, snapshot, file)
        logger.info(f"teacher: {class_name} from {file}")
    elif not isinstance(policy, ActorCriticMutex):
        logger.warning("teacher_ac_path is not set: the teacher is untrained, its labels teach nothing")
        broadcast_module(policy.to(device))
    policy.to(device).eval().requires_grad_(False)
    has_snapshot = bool(path) or isinstance(policy, ActorCriticMutex)
    return Teacher(policy, has_snapshot, snapshot.get("obs_norm_state_dict") or None)


def make_teacher_normalizer(statistics: Mapping[str, Any] | None, stream: str, width: int) -> nn.Module:
    """The frozen normalizer for the teacher's input: observations of `stream` with `width` components."""
    if statistics is None:
        return nn.Identity().eval()
    taught_on = statistics["_mean"].numel()
    if taught_on != width:
        raise ValueError(
            f"the teacher was trained on {taught_on} observations, the {stream} here have {width}; "
            "check label_action_with_critic_obs and the observations of both tasks"
        )
    normalizer = EmpiricalNormalization(shape=[width], until=1.0e8)
    normalizer.load_state_dict(statistics)
    return normalizer.eval()


def _build(student: Any, settings: dict[str, Any], class_name: str, sees_critic_obs: bool) -> Any:
    make = policy_class(class_name, settings.pop("mixins", ()), "teacher policy class")
    num_obs, segments = student.num_actor_obs, student.obs_segments
    if sees_critic_obs:
        num_obs, segments = student.num_critic_obs, student.critic_obs_segments
    sizes = {"num_actor_obs": num_obs, "num_critic_obs": student.num_critic_obs, "num_actions": student.num_actions}
    sizes = {name: int(settings.pop(name, size)) for name, size in sizes.items()}
    if sizes["num_actions"] != student.num_actions:
        raise ValueError(
            f"the teacher has {sizes['num_actions']} actions and the student {student.num_actions}; "
            "a student can only learn actions it has"
        )
    settings.setdefault("obs_segments", segments)
    if "privileged_obs_segments" not in settings:
        settings.setdefault("critic_obs_segments", student.critic_obs_segments)
    return make(*sizes.values(), **settings)


def _snapshot_file(path: str | os.PathLike[str]) -> Path:
    """The checkpoint at a path; for a run folder its newest one."""
    resolved = Path(os.path.expanduser(os.path.expandvars(path)))
    if not resolved.is_dir():
        return resolved
    newest = newest_checkpoint(resolved)
    if newest is None:
        raise FileNotFoundError(f"the teacher's folder {resolved} holds no model_*.pt; name a snapshot or its folder")
    return newest


def _load_weights(policy: Any, snapshot: Mapping[str, Any], file: Path) -> None:
    if "model_state_dict" not in snapshot:
        raise CheckpointError(f"{file} has no model_state_dict; name a model_*.pt of the teacher's run")
    try:
        policy.load_state_dict(snapshot["model_state_dict"])
    except RuntimeError as error:
        raise CheckpointError(
            f"{file} does not fit the teacher {type(policy).__name__}: copy the 'policy' settings of its run's "
            f"config.json into teacher_policy, and check label_action_with_critic_obs. {error}"
        ) from error
