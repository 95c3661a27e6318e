"""`st-rl motion make`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from st_rl.cli.commands.motion.clips import load_robot
from st_rl.cli.support.command_line import UsageError, conf, parse_options

if TYPE_CHECKING:
    from st_rl.datasets.clip import MotionClip

ALL = "all"


@dataclass
class MakeOptions:
    """Options of `st-rl motion make`."""

    motion_or_run: Annotated[str, conf("arg", metavar="MOTION|RUN")]
    """A gait (trot, pace, bound; walk for a biped), all (quadruped gaits), squat, wave, kick or turn of a biped, or a
    run to record: its folder, a task, or latest."""
    speeds: tuple[float, ...] = (0.3, 0.5, 0.7, 0.9)
    """Forward speeds of a gait or a recording, m/s, one clip each."""
    output: Path = Path("motions")
    """Folder to write to."""
    format: str = "isaaclab"
    """File format: isaaclab (.npz), mjlab (.npz), amp (.json), gmr (.pkl), csv."""
    robot: str | None = None
    """Robot, except for a recording: an MJCF file, a robot description (.yaml), or the name of a built-in robot; None
    uses the quadruped for its gaits, otherwise the humanoid."""
    fps: float = 50.0
    """Frame rate, except for a recording."""
    strides: int = 3
    """Strides of a gait."""
    seconds: float = 2.0
    """Length of a recording, s."""
    checkpoint: str = "best"
    """Checkpoint of a run: best, last, an iteration number, or a file."""


def make(arguments: Sequence[str]) -> int:
    """Make clips of synthetic motions or of a trained policy: st-rl motion make MOTION | RUN."""
    options = parse_options(MakeOptions, arguments, "motion make", make.__doc__)
    from st_rl.datasets.formats import FORMATS, write_motion
    from st_rl.datasets.gaits import BIPED_GAITS, QUADRUPED_GAITS
    from st_rl.sim.motions.standing_motions import STANDING_MOTIONS, make_standing_motion

    if options.format not in FORMATS:
        raise UsageError(f"unknown format '{options.format}'; known: {', '.join(FORMATS)}")
    if not options.speeds:
        raise UsageError("--speeds is empty: give one or more speeds in m/s")
    name = options.motion_or_run
    if name in STANDING_MOTIONS:
        clips = [make_standing_motion(load_robot(options.robot or "humanoid"), name, options.fps)]
    else:
        clips = _gaits(options) if name in (*QUADRUPED_GAITS, ALL, *BIPED_GAITS) else _recordings(options)
    options.output.mkdir(parents=True, exist_ok=True)
    suffix = FORMATS[options.format][1][0]
    for clip in clips:
        path = options.output / f"{clip.name}{suffix}"
        write_motion(path, clip, options.format)
        print(f"{path} ({clip.num_frames} frames, {clip.duration:.2f} s)")
    return 0


def _gaits(options: MakeOptions) -> list[MotionClip]:
    """Synthesize a gait, or all quadruped gaits, at all speeds."""
    from st_rl.datasets.gaits import BIPED_GAITS, QUADRUPED_GAITS, make_biped_gait, make_quadruped_gait
    from st_rl.sim.motions.geometry import biped_geometry, quadruped_geometry

    if options.motion_or_run in BIPED_GAITS:
        make_gait = partial(make_biped_gait, biped_geometry(load_robot(options.robot or "humanoid")))
    else:
        make_gait = partial(make_quadruped_gait, quadruped_geometry(load_robot(options.robot or "quadruped")))
    names = tuple(QUADRUPED_GAITS) if options.motion_or_run == ALL else (options.motion_or_run,)
    return [make_gait(name, speed, options.fps, options.strides) for name in names for speed in options.speeds]


def _recordings(options: MakeOptions) -> list[MotionClip]:
    """Record the policy of a run, one clip per speed if its task has commands."""
    from st_rl.cli.support.run_folders.loaded_run import LoadedRun
    from st_rl.cli.support.run_folders.run_folder import find_policy
    from st_rl.cli.support.task_source import is_external
    from st_rl.datasets.gaits import BIPED_GAITS, QUADRUPED_GAITS
    from st_rl.sim.evaluation.evaluator import is_commanded, make_eval_task
    from st_rl.sim.motions.clips import record_policy
    from st_rl.sim.motions.standing_motions import STANDING_MOTIONS

    try:
        run, checkpoint = find_policy(options.motion_or_run, options.checkpoint)
    except UsageError as error:
        raise UsageError(
            f"'{options.motion_or_run}' is not a motion "
            f"({', '.join((*QUADRUPED_GAITS, ALL, *BIPED_GAITS, *STANDING_MOTIONS))}), nor a run: {error}"
        ) from error
    if is_external(run.task):
        raise UsageError(f"{run.path} is a run of {run.task}: only built-in tasks can be recorded")
    saved = LoadedRun(run)
    task = make_eval_task(saved.source.name, saved.env_config, 1, options.seconds + 2.0, 20_004, fine=True)
    policy = saved.load_policy(task, checkpoint)
    name = saved.source.name.replace("-", "_")
    if not is_commanded(task):
        return [record_policy(task, policy, name, options.seconds)]
    return [
        record_policy(task, policy, f"{name}_{speed:g}", options.seconds, command=(speed, 0.0, 0.0))
        for speed in options.speeds
    ]
