"""The frozen teacher of a distillation: its policy and the statistics of its training observations."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from st_rl.modules import ActorCritic, ActorCriticMutex, build_actor_critic
from st_rl.modules.policy.build import EnvSpec, policy_class
from st_rl.modules.policy.load import load_normalizer
from st_rl.utils.config import drop_none
from st_rl.utils.distributed import broadcast_module
from st_rl.utils.files import CheckpointError, load_checkpoint, newest_checkpoint
from st_rl.utils.log import logger

KIND = "teacher policy class"


class Teacher(NamedTuple):
    """A frozen policy with the observation statistics of its checkpoint."""

    policy: ActorCritic
    has_snapshot: bool
    obs_statistics: Mapping[str, Any] | None
    """State of the teacher's observation normalizer; None if it was trained without one."""


def load_teacher(
    student: EnvSpec,
    settings: Mapping[str, Any],
    class_name: str,
    path: str | None,
    sees_critic_obs: bool,
    device: torch.device | str,
) -> Teacher:
    """Build the teacher, load its checkpoint and freeze it.

    Sizes and segments missing in `settings` come from the student's environment: from the critic observation if the
    teacher `sees_critic_obs`, else from the actor observation. Without a `path` the teacher is untrained, unless it is
    a mutex policy, which loads its sub-policies itself. `trust_pickle` in `settings` loads checkpoints with pickled
    objects, which may run any code.
    """
    settings = drop_none(settings)
    path = settings.pop("teacher_ac_path", None) or path
    class_name = settings.pop("class_name", class_name)
    trust_pickle = bool(settings.pop("trust_pickle", False))
    if issubclass(policy_class(class_name, kind=KIND), ActorCriticMutex):
        settings["trust_pickle"] = trust_pickle
    policy = _build(student, settings, class_name, sees_critic_obs)
    snapshot: Mapping[str, Any] = {}
    if path:
        file = Path(os.path.expandvars(path)).expanduser()
        if file.is_dir():
            newest = newest_checkpoint(file)
            if newest is None:
                raise FileNotFoundError(
                    f"the teacher's folder {file} holds no model_*.pt; name a checkpoint or its folder"
                )
            file = newest
        snapshot = load_checkpoint(file, map_location="cpu", trust_pickle=trust_pickle)
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
    taught_on = width if statistics is None else statistics["_mean"].numel()
    if taught_on != width:
        raise ValueError(
            f"the teacher was trained on {taught_on} observations, the {stream} here have {width}; "
            "check label_action_with_critic_obs and the observations of both tasks"
        )
    return load_normalizer(width, statistics)


def _build(student: EnvSpec, settings: Mapping[str, Any], class_name: str, sees_critic_obs: bool) -> ActorCritic:
    num_actions = int(settings.get("num_actions", student.num_actions))
    if num_actions != student.num_actions:
        raise ValueError(
            f"the teacher has {num_actions} actions and the student {student.num_actions}; "
            "a student can only learn actions it has"
        )
    if sees_critic_obs:
        num_obs = student.num_privileged_obs or student.num_obs
        student = student._replace(num_obs=num_obs, obs_segments=student.critic_obs_segments)
    return build_actor_critic(student, class_name, settings, kind=KIND)


def _load_weights(policy: ActorCritic, snapshot: Mapping[str, Any], file: Path) -> None:
    if "model_state_dict" not in snapshot:
        raise CheckpointError(f"{file} has no model_state_dict; name a model_*.pt of the teacher's run")
    try:
        policy.load_state_dict(snapshot["model_state_dict"])
    except (AttributeError, RuntimeError, TypeError) as error:
        raise CheckpointError(
            f"{file} does not fit the teacher {type(policy).__name__}: copy the 'policy' settings of its run's "
            f"config.json into teacher_policy, and check label_action_with_critic_obs. {error}"
        ) from error
