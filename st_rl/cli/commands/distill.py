"""Distill a trained policy into a student: st-rl distill TEACHER TASK."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from st_rl.cli.commands.resume import continue_after_restart
from st_rl.cli.commands.train import (
    EnvConfig,
    TrainOptions,
    drop_default_iterations,
    joined_settings,
    read_settings_file,
    train,
)
from st_rl.cli.support.command_line import (
    CommandError,
    UsageError,
    asks_for_help,
    check_minutes,
    parse_options,
    print_help,
    program,
    quote,
)
from st_rl.cli.support.observation_layout import policy_arguments, read_layout, teacher_uses_critic_obs
from st_rl.cli.support.run_folders.loaded_run import LoadedRun
from st_rl.cli.support.run_folders.run_folder import TEACHER_FILE, PolicyAddress, RunFolder, find_run
from st_rl.cli.support.task_source import TaskSource, find_source, is_external
from st_rl.cli.support.training.device_defaults import choose_device, fit_to_device
from st_rl.cli.support.training.parent_run import without_symmetry_if_recurrent
from st_rl.cli.support.training.ranks import join_ranks, launch_ranks, share_run_folder
from st_rl.cli.support.training.training_config import PolicyConfig, TrainingConfig

Schedule = Literal["linear", "exp", "tanh"]
_PRIVILEGED = "privileged_actor"

_HELP = """usage: st-rl distill TEACHER TASK [OPTIONS]

Distill a trained policy into a student. TEACHER is a run, by its folder or the
beginning of its name. TASK is the task of the student; if it is also the task
of the teacher, it starts from the teacher's settings. A privileged teacher:
  st-rl train quadruped-walk --env.privileged-actor \\
    --env.no-observe-linear-velocity --log-dir runs/teacher
  st-rl distill runs/teacher quadruped-walk --log-dir runs/student

st-rl distill TEACHER TASK --help lists all options. The most useful:
  --distillation.using-ppo          add the PPO loss
  --distillation.distill-target kl  loss between the actions of student and
                                    teacher
  --policy.class-name ActorCritic   policy class of the student (default:
                                    recurrent)
  --checkpoint 500                  checkpoint of the teacher
  --dataset FOLDER                  learn from files, such as those of
                                    st-rl collect and st-rl dagger
  and all options of st-rl train"""


@dataclass
class DistillationConfig:
    """How the student learns from the teacher."""

    using_ppo: bool = False
    """Whether to add the PPO loss; otherwise the student only imitates the teacher."""
    distill_target: Literal["real", "mse_sum", "l1", "tanh", "scaled_tanh", "max_log_prob", "kl"] = "real"
    """Loss between the actions of student and teacher."""
    distillation_loss_coef: float | Schedule = 1.0
    """Weight of that loss: a number, or the schedule by which it decays from 1."""
    teacher_act_prob: float | Schedule = "exp"
    """Fraction of environments in which the teacher acts: a number, or the schedule by which it decays from 1."""
    update_times_scale: float = 10.0
    """Time scale of these schedules, in iterations."""
    action_labels_from_sample: bool = False
    """Whether the teacher's actions are sampled; otherwise they are the mean."""
    hidden_state_resample_prob: float = 0.0
    """Fraction of trajectories that start from a random hidden state of a recurrent student."""
    buffer_dilation_ratio: float = 1.0
    """Number of rollouts in the buffer of an update."""
    latents: dict[str, str] = field(default_factory=dict)
    """Pairs of encoded components, student then teacher, of which the student imitates the latent."""
    distill_latent_target: Literal["real", "l1", "tanh", "scaled_tanh"] = "real"
    """Loss between latents."""
    distill_latent_coef: float = 1.0
    """Weight of that loss."""

    def to_dict(self) -> dict[str, Any]:
        """Return the settings of the algorithm."""
        settings = dataclasses.asdict(self)
        latents = settings.pop("latents")
        return {**settings, "distill_latent_obs_component_mapping": latents} if latents else settings


@dataclass
class DistillOptions(TrainOptions[EnvConfig]):
    """Options of `st-rl distill`."""

    distillation: DistillationConfig = field(default_factory=DistillationConfig)
    """The distillation losses."""
    checkpoint: str = "best"
    """Checkpoint of the teacher: best, last, an iteration number, or a file."""
    dataset: Path | None = None
    """Folder of trajectories to learn from, written by st-rl collect or st-rl dagger; None learns from rollouts."""
    pretrain_iterations: int = -1
    """Iterations on the dataset before the student continues with rollouts; -1 never does."""
    keep_latest_n_trajs: int | None = None
    """Number of newest trajectories of the dataset to use; None uses all."""
    max_policy_age: int | None = None
    """Maximum age, in iterations, of the student that recorded a trajectory; None has no limit."""


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    names = [argument for argument in arguments[:2] if not argument.startswith("-")]
    if len(names) < 2:
        if asks_for_help(arguments):
            return print_help(_HELP, arguments)
        raise UsageError("TEACHER or TASK is missing: st-rl distill TEACHER TASK ..., a run and a task")
    address = PolicyAddress.parse(names[0])
    source, teacher = find_source(names[1]), _load_teacher(find_run(address.run), names[1])
    source = fit_to_device(source, arguments[2:])
    defaults = TrainingConfig.from_dict(source.training)
    start = DistillOptions(
        _student_task(source, teacher),
        defaults.runner,
        _make_recurrent(defaults.policy),
        dataclasses.replace(defaults.algorithm, class_name="TPPO", schedule="fixed"),
        checkpoint=address.checkpoint,
    )
    file = read_settings_file(source, arguments[2:])
    start = start if file is None else file.apply(start)
    options = parse_options(
        DistillOptions[type(source.default_config)],
        arguments[2:],
        f"distill {names[0]} {names[1]}",
        f"Distill a policy into a student for {names[1]}.",
        start,
    )
    options.set = joined_settings(options, start)
    options.device = choose_device(source, options.device)
    options.device = launch_ranks(options.gpus, options.device, "distill", arguments)
    exit_code = continue_after_restart(options.log_dir, source.name)
    if exit_code is not None:
        return exit_code
    return distill(source, teacher, options, defaults.others, arguments)


def _load_teacher(run: RunFolder, task: str) -> LoadedRun:
    """Load the run of the teacher; UsageError if its task is of another library and is not the typed TASK."""
    teacher_task = run.task
    if is_external(teacher_task) and teacher_task != task:
        raise UsageError(
            f"{run.path} is a run of {teacher_task}, which imports code from outside st-rl; if you trust it, distill "
            f"into that task: st-rl distill {quote(run.path)} {quote(teacher_task)}"
        )
    return LoadedRun(run, teacher_task)


def _student_task(source: TaskSource[EnvConfig], teacher: LoadedRun) -> EnvConfig:
    """Return the teacher's task configuration without privileged observations; the default one for another task."""
    if teacher.source.name != source.name:
        return source.default_config
    names = {f.name for f in dataclasses.fields(teacher.env_config)}
    return dataclasses.replace(teacher.env_config, **({_PRIVILEGED: False} if _PRIVILEGED in names else {}))


def _make_recurrent(policy: PolicyConfig) -> PolicyConfig:
    """Replace a feed-forward policy by a recurrent one: the student must infer what it does not observe."""
    if policy.class_name != "ActorCritic":
        return policy
    return dataclasses.replace(policy, class_name="ActorCriticRecurrent", rnn_type="gru", rnn_hidden_size=128)


def distill(
    source: TaskSource[EnvConfig],
    teacher: LoadedRun,
    options: DistillOptions[EnvConfig],
    others: dict[str, dict[str, Any]],
    arguments: Sequence[str],
) -> int:
    """Copy the teacher into the student's run folder, then train."""
    check_minutes(options.minutes)
    layout = read_layout(teacher.source, teacher.env_config)
    try:
        uses_critic_obs = teacher_uses_critic_obs(layout, read_layout(source, options.env))
    except CommandError as error:
        if teacher.source.name == source.name:
            raise
        raise CommandError(f"{teacher.run.path} was trained for {teacher.source.name}: {error}") from error
    checkpoint = teacher.run.checkpoint(options.checkpoint)
    run = _make_student_folder(options, source.name, checkpoint)
    algorithm = {
        **without_symmetry_if_recurrent(others.get("algorithm", {}), options.policy.class_name),
        **options.distillation.to_dict(),
        "label_action_with_critic_obs": uses_critic_obs,
        "teacher_policy": {
            **teacher.training.to_dict()["policy"],
            **policy_arguments(layout),
            "teacher_ac_path": str(run.file(TEACHER_FILE)),
        },
    }
    runner = {**others.get("runner", {}), **_runner_settings(options)}
    print(f"Teacher: {checkpoint}, on the {'critic' if uses_critic_obs else 'actor'} observation of the student")
    training = options.training({**others, "algorithm": algorithm, "runner": runner})
    drop_default_iterations(options, training, arguments)
    return train(source, options, training, f"{program()} distill {shlex.join(arguments)}")


def _runner_settings(options: DistillOptions[EnvConfig]) -> dict[str, Any]:
    """Return the runner settings for learning from a dataset; empty for learning from rollouts."""
    if options.dataset is None:
        return {}
    dataset = {"data_dir": str(options.dataset), "dataset_loops": 0, "random_shuffle_traj_order": True}
    if options.keep_latest_n_trajs is not None:
        dataset["keep_latest_n_trajs"] = options.keep_latest_n_trajs
    if options.max_policy_age is not None:
        dataset["max_policy_age"] = options.max_policy_age
    return {
        "runner_class_name": "TwoStageRunner",
        "pretrain_iterations": options.pretrain_iterations,
        "pretrain_dataset": dataset,
    }


def _make_student_folder(options: DistillOptions[EnvConfig], task: str, checkpoint: Path) -> RunFolder:
    """Create the run folder with a copy of the teacher on rank 0, and return it on every rank."""
    from st_rl.cli.support.torch_setup import check_device
    from st_rl.utils.distributed import is_main, value_of_main

    check_device(options.device)
    join_ranks(options.device, dataclasses.asdict(options.runner))
    run = share_run_folder(options.log_dir, task)
    options.log_dir = run.path
    if is_main():
        _copy_teacher(checkpoint, run)
    # The other ranks wait for the copy.
    value_of_main(None)
    return run


def _copy_teacher(checkpoint: Path, run: RunFolder) -> None:
    """Copy the policy of the teacher into the student's run folder, so that the folder can be moved."""
    from st_rl.utils.files import load_checkpoint, save_checkpoint

    content = load_checkpoint(checkpoint, map_location="cpu")
    keys = ("model_state_dict", "obs_norm_state_dict", "iter")
    save_checkpoint({key: content[key] for key in keys if key in content}, run.file(TEACHER_FILE))
