"""The observation components of a task, by which a teacher is matched with its student."""

from __future__ import annotations

from typing import Any, NamedTuple

from st_rl.cli.support.command_line import CommandError
from st_rl.cli.support.task_source import EnvConfig, TaskSource


class ObservationLayout(NamedTuple):
    """Components of the actor and critic observation: name -> shape, in order."""

    actor: dict[str, Any]
    critic: dict[str, Any]
    num_obs: int
    num_critic_obs: int

    @classmethod
    def of(cls, source: TaskSource[EnvConfig], config: EnvConfig) -> ObservationLayout:
        """Read the layout of a task from a single environment."""
        env = source.make(config, 1, "cpu", 0)
        num_obs, num_critic_obs = int(env.num_obs), int(env.num_privileged_obs or env.num_obs)
        actor = dict(getattr(env, "obs_segments", None) or {"obs": num_obs})
        critic = dict(getattr(env, "critic_obs_segments", None) or actor)
        return cls(actor, critic, num_obs, num_critic_obs)

    def policy_arguments(self) -> dict[str, Any]:
        """Return the constructor arguments of a policy for this task."""
        segments = {"obs_segments": self.actor, "critic_obs_segments": self.critic}
        return {"num_actor_obs": self.num_obs, "num_critic_obs": self.num_critic_obs, **segments}


def teacher_uses_critic_obs(teacher: ObservationLayout, student: ObservationLayout) -> bool:
    """Whether the teacher acts on the student's critic observation (True) or actor observation (False).

    CommandError if neither has the components that the teacher was trained with.
    """
    components = list(teacher.actor.items())
    if components == list(student.critic.items()):
        return True
    if components == list(student.actor.items()):
        return False
    raise CommandError(
        f"the teacher observes {', '.join(teacher.actor)}; the student's actor observes {', '.join(student.actor)} "
        f"and its critic {', '.join(student.critic)}. The teacher must match one of them, order included: train it "
        "with --env.privileged-actor and the --env options of the student"
    )
