"""Record a student in training, labeled with the actions of its teacher (DAgger): st-rl dagger TEACHER STUDENT."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from st_rl.cli.commands.collect import collect
from st_rl.cli.commands.distill import Schedule
from st_rl.cli.support.command_line import CommandError, conf, parse_options
from st_rl.cli.support.observation_layout import policy_arguments, read_layout, teacher_uses_critic_obs
from st_rl.cli.support.run_folders.loaded_run import LoadedRun
from st_rl.cli.support.run_folders.run_folder import CONFIG_FILE, RUN_FILE, RunFolder, find_policy

if TYPE_CHECKING:
    from st_rl.modules import ActorCritic, EmpiricalNormalization


@dataclass
class DaggerOptions:
    """Options of `st-rl dagger`."""

    teacher: Annotated[str, conf("arg", metavar="TEACHER")]
    """Run of the teacher: its folder, the beginning of its name, a task (its newest run), or latest."""
    student: Annotated[Path, conf("arg", metavar="STUDENT")]
    """Run folder of the student; its training may start later."""
    output: Path | None = None
    """Folder of the dataset, with a subfolder for each collector; None uses the dataset of the student."""
    collector_id: str | None = None
    """Name of this collector; None makes a unique one."""
    steps: int | None = None
    """Minimum number of steps to collect; None collects until the student's training ends."""
    num_envs: int | None = None
    """Number of robots simulated in parallel; None uses the number of the student's training."""
    checkpoint: str = "best"
    """Checkpoint of the teacher: best, last, an iteration number, or a file."""
    task: str | None = None
    """Task of both runs, to confirm that gym:... or mjlab:... in their run.json may import code."""
    teacher_act_prob: float | Schedule | None = None
    """Fraction of robots that the teacher controls: a number, linear, exp or tanh; None uses the student's."""
    update_times_scale: float | None = None
    """Time scale of that schedule, in iterations of the student; None uses the student's."""
    action_sample_std: float = 0.0
    """Standard deviation of the student's actions; 0 uses the student's."""
    done_files: bool = True
    """Whether to mark finished episodes by an empty file `done`; readers of other libraries may fail on it."""
    rollout_length: int = 48
    """Steps between two writes to disk, and between two looks for a newer checkpoint of the student."""
    wait_seconds: float = 600.0
    """How long to wait for the student's training to start."""
    seed: int | None = None
    """Random seed; None uses a different one for every collector."""
    device: str = "cpu"
    """Device: cpu, cuda:0, ..."""


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    options = parse_options(DaggerOptions, arguments, "dagger", __doc__)
    teacher_run, checkpoint = find_policy(options.teacher, options.checkpoint)
    wait_for_run(options.student, options.wait_seconds)
    import torch

    from st_rl.cli.support.torch_setup import check_device, seed_everything
    from st_rl.runners import DaggerSaver
    from st_rl.utils.files.heartbeat import new_writer_id

    check_device(options.device)
    identity = options.collector_id or new_writer_id()
    seed = options.seed if options.seed is not None else sum(identity.encode()) + int(time.time() * 1000) % 100_000
    seed_everything(seed)
    # The networks are small, and one thread leaves the cores to the physics and to other processes.
    torch.set_num_threads(1)
    student = LoadedRun(RunFolder(options.student), options.task)
    env = student.make_env(options.num_envs, options.device, seed)
    policy, normalizer, uses_critic_obs = load_teacher_for(
        LoadedRun(teacher_run, options.task), checkpoint, student, options.device
    )
    config = student.training.to_dict()
    algorithm, act_prob = config["algorithm"], options.teacher_act_prob
    output = options.output or _dataset_folder(config, options.student)
    saver = DaggerSaver(
        env,
        policy,
        output / f"collector_{identity}",
        rollout_storage_length=options.rollout_length,
        min_timesteps=math.inf if options.steps is None else options.steps,
        min_episodes=0,
        use_critic_obs=uses_critic_obs,
        # For either observation of the teacher; the student has its own normalizer.
        obs_normalizer=normalizer,
        critic_obs_normalizer=normalizer,
        training_policy_logdir=options.student,
        teacher_act_prob=algorithm.get("teacher_act_prob", "exp") if act_prob is None else act_prob,
        update_times_scale=options.update_times_scale or float(algorithm.get("update_times_scale", 5000)),
        action_sample_std=options.action_sample_std,
        done_files=options.done_files,
    )
    saver.stop_with_trainer = True
    print(f"Teacher {checkpoint} labels {options.student} with {env.num_envs} robots into {saver.save_dir}")
    settings = {"teacher": str(checkpoint), "student": str(options.student), "task": student.source.name, "seed": seed}
    return collect(saver, settings)


def wait_for_run(folder: Path, wait_seconds: float) -> None:
    """Wait until a training has written its configuration; CommandError after `wait_seconds`."""
    start, is_announced = time.monotonic(), False
    while not all((folder / name).is_file() for name in (RUN_FILE, CONFIG_FILE)):
        if time.monotonic() - start >= wait_seconds:
            raise CommandError(
                f"no training started in {folder} within {wait_seconds:.0f} s (start one with st-rl distill)"
            )
        if not is_announced:
            print(f"waiting for a training to start in {folder}", flush=True)
            is_announced = True
        time.sleep(0.5)


def load_teacher_for(
    teacher: LoadedRun, checkpoint: Path, student: LoadedRun, device: str
) -> tuple[ActorCritic, EmpiricalNormalization | None, bool]:
    """Return the teacher's policy, its observation normalizer, and whether it acts on the critic observation."""
    from st_rl.algorithms.teacher import load_teacher
    from st_rl.modules import EmpiricalNormalization

    teacher_layout = read_layout(teacher.source, teacher.env_config)
    student_layout = read_layout(student.source, student.env_config)
    uses_critic_obs = teacher_uses_critic_obs(teacher_layout, student_layout)
    settings = {**teacher.training.to_dict()["policy"], **policy_arguments(teacher_layout)}
    loaded = load_teacher(student_layout, settings, "ActorCritic", str(checkpoint), uses_critic_obs, device)
    if loaded.obs_statistics is None:
        return loaded.policy, None, uses_critic_obs
    normalizer = EmpiricalNormalization(teacher_layout.num_obs).to(device).eval()
    normalizer.load_state_dict(dict(loaded.obs_statistics))
    return loaded.policy, normalizer, uses_critic_obs


def _dataset_folder(config: Mapping[str, Any], student: Path) -> Path:
    """Return the folder that a student reads its dataset from."""
    folder = (config.get("pretrain_dataset") or {}).get("data_dir")
    if not isinstance(folder, str):
        raise CommandError(
            f"{student} does not learn from files: start it with st-rl distill --dataset, or name a folder with "
            "--output"
        )
    return Path(folder)
