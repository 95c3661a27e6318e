"""The observation components of a task, by which a teacher is matched with its student."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from st_rl.cli.support.command_line import CommandError
from st_rl.cli.support.task_source import EnvConfig, TaskSource

if TYPE_CHECKING:
    from st_rl.modules.policy.build import EnvSpec


def read_layout(source: TaskSource[EnvConfig], config: EnvConfig) -> EnvSpec:
    """Read sizes and components of the observations of a task from a single environment."""
    from st_rl.modules.policy.build import read_env_spec

    spec = read_env_spec(source.make(config, 1, "cpu", 0))
    actor = spec.obs_segments or {"obs": spec.num_obs}
    num_critic_obs = spec.num_privileged_obs or spec.num_obs
    return spec._replace(
        num_privileged_obs=num_critic_obs, obs_segments=actor, critic_obs_segments=spec.critic_obs_segments or actor
    )


def policy_arguments(layout: EnvSpec) -> dict[str, Any]:
    """Return the constructor arguments of a policy for a task, in plain containers."""
    return {
        "num_actor_obs": layout.num_obs,
        "num_critic_obs": layout.num_privileged_obs,
        "obs_segments": dict(layout.obs_segments or {}),
        "critic_obs_segments": dict(layout.critic_obs_segments or {}),
    }


def teacher_uses_critic_obs(teacher: EnvSpec, student: EnvSpec) -> bool:
    """Whether the teacher acts on the student's critic observation (True) or actor observation (False).

    CommandError if neither has the components that the teacher was trained with.
    """
    observed, actor, critic = teacher.obs_segments or {}, student.obs_segments or {}, student.critic_obs_segments or {}
    if list(observed.items()) == list(critic.items()):
        return True
    if list(observed.items()) == list(actor.items()):
        return False
    raise CommandError(
        f"the teacher observes {', '.join(observed)}; the student's actor observes {', '.join(actor)} and its critic "
        f"{', '.join(critic)}. The teacher must match one of them, order included: train it with "
        "--env.privileged-actor and the --env options of the student"
    )
