"""Let a student in training act and its teacher say what it should have done: st-rl dagger TEACHER STUDENT."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from st_rl.cli.support.command_line import CommandError, parse_options
from st_rl.cli.support.run_folder import CONFIG_FILE, RUN_FILE, RunFolder, find_run


@dataclass
class DaggerOptions:
    """Options of `st-rl dagger`."""

    teacher: str
    """Run of the teacher: its folder, the beginning of its name, a task (its newest run), or: latest."""
    student: Path
    """Run folder of the student, also one whose training starts later."""
    output: Path | None = None
    """Folder of the data set, where every collector has a folder of its own; the one that the student reads when
    None."""
    id: str | None = None
    """Name of this collector; one that no other has when None."""
    steps: int | None = None
    """Steps to collect at least; until the student's training ends when None."""
    robots: int | None = None
    """Robots that act together; as many as in the student's training when None."""
    checkpoint: str = "best"
    """Which policy of the teacher: best, last, an iteration number, or a file."""
    teacher_act_prob: str | None = None
    """Share of robots that the teacher drives: a number, or linear, exp or tanh; as in the student's run when None."""
    update_times_scale: float | None = None
    """Iterations of the student in which that share fades; as in the student's run when None."""
    action_sample_std: float = 0.0
    """Exploration noise of the student; its own when 0."""
    rollout_length: int = 48
    """Steps between two visits to the disk, and to the student's newest checkpoint."""
    wait_seconds: float = 600.0
    """How long to wait for the student's training to start."""
    seed: int | None = None
    """Of all random numbers; another for every collector when None."""
    device: str = "cpu"
    """Where to simulate: cpu, cuda:0, ..."""


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    options = parse_options(DaggerOptions, arguments, "dagger", __doc__ or "")
    teacher_run = find_run(options.teacher)
    checkpoint = teacher_run.checkpoint(options.checkpoint)
    wait_for_run(options.student, options.wait_seconds)
    import torch

    from st_rl.cli.commands.collect import collect
    from st_rl.cli.support.loaded_run import LoadedRun
    from st_rl.cli.support.torch_setup import check_device, seed_everything
    from st_rl.runners import DaggerSaver
    from st_rl.utils.files.heartbeat import new_writer_id

    check_device(options.device)
    identity = options.id or new_writer_id()
    seed = options.seed if options.seed is not None else sum(identity.encode()) + int(time.time() * 1000) % 100_000
    seed_everything(seed)
    # The networks are small, and one thread leaves the cores to physics and to the other processes.
    torch.set_num_threads(1)
    student = LoadedRun(RunFolder(options.student))
    robots = options.robots or int(student.settings["num_envs"])
    env = student.source.make(student.env_config, robots, options.device, seed)
    teacher = LoadedRun(teacher_run)
    policy, normalizer, sees_critic_obs = load_teacher_for(env, teacher, checkpoint, student, options.device)
    config = student.training.to_dict()
    algorithm = config["algorithm"]
    output = options.output or _folder_that_the_student_reads(config, options.student)
    saver = DaggerSaver(
        env,
        policy,
        output / f"collector_{identity}",
        rollout_storage_length=options.rollout_length,
        min_timesteps=math.inf if options.steps is None else options.steps,
        min_episodes=0,
        use_critic_obs=sees_critic_obs,
        # Whichever stream the teacher sees; the student brings its own.
        obs_normalizer=normalizer,
        critic_obs_normalizer=normalizer,
        training_policy_logdir=options.student,
        teacher_act_prob=_number_or_name(options.teacher_act_prob or algorithm.get("teacher_act_prob", "exp")),
        update_times_scale=options.update_times_scale or float(algorithm.get("update_times_scale", 5000)),
        action_sample_std=options.action_sample_std,
    )
    saver.stop_with_trainer = True
    print(f"{checkpoint} teaches {options.student} with {robots} robots; trajectories go to {saver.save_dir}")
    settings = {"teacher": str(checkpoint), "student": str(options.student), "task": student.source.name, "seed": seed}
    return collect(saver, settings)


def wait_for_run(folder: Path, wait_seconds: float) -> None:
    """Wait until a training has described itself in its folder; CommandError when it never does."""
    begin, said = time.monotonic(), False
    while not all((folder / name).is_file() for name in (RUN_FILE, CONFIG_FILE)):
        if time.monotonic() - begin >= wait_seconds:
            raise CommandError(
                f"no training started in {folder} within {wait_seconds:.0f} s (st-rl distill starts one)"
            )
        if not said:
            print(f"waiting for a training to start in {folder}", flush=True)
            said = True
        time.sleep(0.5)


def load_teacher_for(env: Any, teacher: Any, checkpoint: Path, student: Any, device: str) -> tuple[Any, Any, bool]:
    """The teacher's policy, what normalises its observations, and whether these are those of the student's critic."""
    from st_rl.algorithms.teacher import load_teacher
    from st_rl.cli.commands.distill import looks_through_the_critic, sights
    from st_rl.modules import EmpiricalNormalization

    teacher_sights = sights(teacher.source, teacher.env_config)
    student_sights = sights(student.source, student.env_config)
    sees_critic_obs = looks_through_the_critic(teacher_sights, student_sights)
    sizes = SimpleNamespace(num_actions=env.num_actions, **student_sights.sizes())
    settings = {**teacher.training.to_dict()["policy"], **teacher_sights.sizes()}
    loaded = load_teacher(sizes, settings, "ActorCritic", str(checkpoint), sees_critic_obs, device)
    if loaded.obs_statistics is None:
        return loaded.policy, None, sees_critic_obs
    normalizer = EmpiricalNormalization(teacher_sights.num_obs).to(device).eval()
    normalizer.load_state_dict(dict(loaded.obs_statistics))
    return loaded.policy, normalizer, sees_critic_obs


def _folder_that_the_student_reads(config: dict[str, Any], student: Path) -> Path:
    folder = (config.get("pretrain_dataset") or {}).get("data_dir")
    if not isinstance(folder, str):
        raise CommandError(
            f"{student} does not learn from files: start it with st-rl distill --dataset, or say --output"
        )
    return Path(folder)


def _number_or_name(value: Any) -> Any:
    try:
        return float(value)
    except ValueError:
        return value
