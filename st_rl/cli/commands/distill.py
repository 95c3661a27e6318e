"""Teach a student what a trained policy can do: st-rl distill TEACHER TASK."""

from __future__ import annotations

import dataclasses
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from st_rl.cli.commands.train import EnvConfig, TrainOptions, train
from st_rl.cli.support.command_line import CommandError, UsageError, parse_options
from st_rl.cli.support.run_folder import (
    RUN_FILE,
    RUNS,
    TEACHER_FILE,
    RunFolder,
    find_run,
    make_writable,
    new_run_folder,
)
from st_rl.cli.support.training_config import PolicyConfig, TrainingConfig

Schedule = Literal["linear", "exp", "tanh"]
_PRIVILEGED = "privileged_actor"

_HELP = """usage: st-rl distill TEACHER TASK [OPTIONS]

Teach a student what a trained policy can do. TEACHER is a run, by its folder or
the beginning of its name; TASK is the student's, and begins with the settings
of the teacher's run if both have the same. A teacher that sees everything:
  st-rl train quadruped-walk --env.privileged-actor \\
    --env.no-observe-linear-velocity --log-dir runs/teacher
  st-rl distill runs/teacher quadruped-walk --log-dir runs/student

st-rl distill TEACHER TASK --help lists all options. The most useful:
  --distillation.using-ppo          learn from rewards, too
  --distillation.distill-target kl  how its actions are compared with the
                                    teacher's
  --policy.class-name ActorCritic   the student's policy; one with a memory by
                                    default
  --checkpoint 500                  which snapshot of the teacher
  --dataset FOLDER                  learn from files, such as those of
                                    st-rl collect and st-rl dagger
  and all options of st-rl train"""


@dataclass
class DistillationConfig:
    """How the student learns from its teacher."""

    using_ppo: bool = False
    """Whether the student learns from rewards, too; otherwise from the teacher alone."""
    distill_target: Literal["real", "mse_sum", "l1", "tanh", "scaled_tanh", "max_log_prob", "kl"] = "real"
    """How its actions are compared with the teacher's."""
    distillation_loss_coef: float | Schedule = 1.0
    """Weight of that distance: a number, or how it fades from 1."""
    teacher_act_prob: float | Schedule = "exp"
    """Share of robots that the teacher drives: a number, or how it fades from 1."""
    update_times_scale: float = 10.0
    """Iterations in which they fade."""
    action_labels_from_sample: bool = False
    """Whether the teacher's actions are drawn with its exploration noise."""
    hidden_state_resample_prob: float = 0.0
    """Share of trajectories that a student with a memory learns from a random state of it."""
    buffer_dilation_ratio: float = 1.0
    """How many rollouts the student learns from at a time."""
    latents: dict[str, str] = field(default_factory=dict)
    """Components with an encoder of the student, each followed by that of the teacher whose latent it imitates."""
    distill_latent_target: Literal["real", "l1", "tanh", "scaled_tanh"] = "real"
    """How latents are compared."""
    distill_latent_coef: float = 1.0
    """Weight of that distance."""

    def to_dict(self) -> dict[str, Any]:
        """The settings as the algorithm takes them."""
        settings = dataclasses.asdict(self)
        latents = settings.pop("latents")
        return {**settings, "distill_latent_obs_component_mapping": latents} if latents else settings


@dataclass
class DistillOptions(TrainOptions[EnvConfig]):
    """Options of `st-rl distill`."""

    distillation: DistillationConfig = field(default_factory=DistillationConfig)
    """The teaching."""
    checkpoint: str = "best"
    """Which policy of the teacher's run: best, last, an iteration number, or a file."""
    dataset: Path | None = None
    """Folder of demonstrations (st-rl collect) or of what collectors make of this student (st-rl dagger), from which
    it learns; from robots of its own when None."""
    dataset_iterations: int = -1
    """Iterations after which it goes on with robots of its own; never when negative."""
    newest: int | None = None
    """How many of the newest trajectories to learn from; all when None."""
    max_policy_age: int | None = None
    """Iterations after which what an older student did is refused; never when None."""


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    names = [argument for argument in arguments[:2] if not argument.startswith("-")]
    if not arguments or (len(names) < 2 and set(arguments) & {"-h", "--help"}):
        print(_HELP)
        return 0 if arguments else 2
    if len(names) < 2:
        raise UsageError("who teaches what? st-rl distill TEACHER TASK ..., with the teacher's run and the task")
    from st_rl.cli.support.loaded_run import LoadedRun
    from st_rl.cli.support.task_source import find_source

    source, teacher = find_source(names[1]), LoadedRun(find_run(names[0]))
    defaults = TrainingConfig.from_dict(source.training)
    options: DistillOptions[Any] = parse_options(
        DistillOptions[type(source.default_config)],
        arguments[2:],
        f"distill {names[0]} {names[1]}",
        f"Teach a student {names[1]}.",
        DistillOptions(
            _student_task(source, teacher),
            defaults.runner,
            _with_memory(defaults.policy),
            dataclasses.replace(defaults.algorithm, class_name="TPPO", schedule="fixed"),
        ),
    )
    if options.iterations is not None:
        options.runner.max_iterations = options.iterations
    if options.logger is not None:
        options.runner.logger = options.logger
    return distill(source, teacher, options, defaults.others, f"st-rl distill {shlex.join(arguments)}")


def _student_task(source: Any, teacher: Any) -> Any:
    """The task as the teacher knows it, without its privilege; another task as it is."""
    if teacher.source.name != source.name:
        return source.default_config
    names = {f.name for f in dataclasses.fields(teacher.env_config)}
    return dataclasses.replace(teacher.env_config, **({_PRIVILEGED: False} if _PRIVILEGED in names else {}))


def _with_memory(policy: PolicyConfig) -> PolicyConfig:
    """What a student cannot see it must remember: a memory in the place of a plain policy."""
    if policy.class_name != "ActorCritic":
        return policy
    return dataclasses.replace(policy, class_name="ActorCriticRecurrent", rnn_type="gru", rnn_hidden_size=128)


def distill(
    source: Any, teacher: Any, options: DistillOptions[Any], others: dict[str, dict[str, Any]], command_line: str
) -> int:
    """Put the teacher into the student's run folder, then train."""
    teacher_sights = sights(teacher.source, teacher.env_config)
    try:
        sees_critic_obs = looks_through_the_critic(teacher_sights, sights(source, options.env))
    except CommandError as error:
        if teacher.source.name == source.name:
            raise
        raise CommandError(f"{teacher.run.path} was trained for {teacher.source.name}: {error}") from error
    folder = options.log_dir or new_run_folder(source.name, time.strftime("%Y-%m-%d_%H-%M-%S"), RUNS)
    if (folder / RUN_FILE).is_file():
        raise UsageError(f"{folder} already holds a run: go on with st-rl resume {folder}, or choose another --log-dir")
    checkpoint = teacher.run.checkpoint(options.checkpoint)
    make_writable(folder, "choose another with --log-dir")
    options.log_dir = folder
    _copy_teacher(checkpoint, folder)
    algorithm = {
        **others.get("algorithm", {}),
        **options.distillation.to_dict(),
        "label_action_with_critic_obs": sees_critic_obs,
        "teacher_policy": {
            **teacher.training.to_dict()["policy"],
            **teacher_sights.sizes(),
            "teacher_ac_path": str(folder / TEACHER_FILE),
        },
    }
    parts = {**others, "algorithm": algorithm, "runner": {**others.get("runner", {}), **_runner_settings(options)}}
    training = TrainingConfig(options.runner, options.policy, options.algorithm, parts)
    print(f"The teacher is {checkpoint} and sees what the student's {'critic' if sees_critic_obs else 'actor'} sees.")
    return train(source, options, training, command_line)


def _runner_settings(options: DistillOptions[Any]) -> dict[str, Any]:
    """Where the student's experience comes from: robots of its own, or files."""
    if options.dataset is None:
        return {}
    dataset = {"data_dir": str(options.dataset), "dataset_loops": 0, "random_shuffle_traj_order": True}
    if options.newest is not None:
        dataset["keep_latest_n_trajs"] = options.newest
    if options.max_policy_age is not None:
        dataset["max_policy_age"] = options.max_policy_age
    return {
        "runner_class_name": "TwoStageRunner",
        "pretrain_iterations": options.dataset_iterations,
        "pretrain_dataset": dataset,
    }


class Sights(NamedTuple):
    """What actor and critic of a task see: names and widths, in order."""

    actor: dict[str, Any]
    critic: dict[str, Any]
    num_obs: int
    num_critic_obs: int

    def sizes(self) -> dict[str, Any]:
        """The sizes of a policy for this task, by the names of its arguments."""
        segments = {"obs_segments": self.actor, "critic_obs_segments": self.critic}
        return {"num_actor_obs": self.num_obs, "num_critic_obs": self.num_critic_obs, **segments}


def sights(source: Any, config: Any) -> Sights:
    """What a task shows, asked from one robot of it."""
    env = source.make(config, 1, "cpu", 0)
    num_obs, num_critic_obs = int(env.num_obs), int(getattr(env, "num_privileged_obs", None) or env.num_obs)
    actor = dict(getattr(env, "obs_segments", None) or {"obs": num_obs})
    critic = dict(getattr(env, "critic_obs_segments", None) or actor)
    return Sights(actor, critic, num_obs, num_critic_obs)


def looks_through_the_critic(teacher: Sights, student: Sights) -> bool:
    """Whether the teacher sees what the student's critic sees, or else what its actor sees; an error if neither."""
    seen = list(teacher.actor.items())
    for names, is_critic in ((student.critic, True), (student.actor, False)):
        if seen == list(names.items()):
            return is_critic
    raise CommandError(
        f"the teacher sees {', '.join(teacher.actor)}; the student's actor sees {', '.join(student.actor)} and its "
        f"critic {', '.join(student.critic)}. It must be one of the two, in this order: train the teacher with "
        "--env.privileged-actor and otherwise the --env options of the student"
    )


def _copy_teacher(checkpoint: Path, folder: Path) -> None:
    """Keep what the teacher needs to act beside the student, so that the run can be moved and understood."""
    from st_rl.utils.files import load_checkpoint, save_checkpoint

    loaded = load_checkpoint(checkpoint, map_location="cpu")
    kept = ("model_state_dict", "obs_norm_state_dict", "iter")
    save_checkpoint({key: loaded[key] for key in kept if key in loaded}, RunFolder(folder).file(TEACHER_FILE))
