"""`st-rl motion convert`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from st_rl.cli.commands.motion.clips import ClipOptions, load_robot, read_clips, robot_of
from st_rl.cli.support.command_line import UsageError, conf, parse_options

if TYPE_CHECKING:
    from st_rl.datasets.clip import MotionClip

# The control rate of mjlab's tracking tasks, which do not read the rate of a file.
MJLAB_FPS = 50.0


@dataclass
class ConvertOptions(ClipOptions):
    """Options of `st-rl motion convert`."""

    motion: Annotated[str, conf("arg", metavar="CLIP")]
    """File, folder, or name of a built-in clip."""
    output: Annotated[Path, conf("arg", metavar="OUT")]
    """File to write, in the format of its suffix; with --format, a folder for several clips."""
    format: Literal["amp", "isaaclab", "mjlab", "gmr", "csv"] | None = None
    """Format to write; by default the first of amp (.json .txt .pkl), isaaclab (.npz), gmr, csv with that suffix."""
    output_fps: float | None = None
    """Frame rate to write; None keeps that of the file, but is 50 for mjlab, which plays a frame each control step."""
    mirror: bool = False
    """Whether to swap left and right."""
    start: float = 0.0
    """Start time, s."""
    end: float | None = None
    """End time, s; None keeps the end of the clip."""
    reorder: bool = False
    """Whether to reorder the joints by name as in the robot; other joints are dropped."""
    bodies: bool = False
    """Whether to add foot and body poses from the robot model; those of all bodies are what --format mjlab writes."""
    weight: float | None = None
    """Relative sampling weight of the clip; None keeps that of the file."""


def convert(arguments: Sequence[str]) -> int:
    """Convert, resample, mirror or cut a motion: st-rl motion convert FILE OUTPUT."""
    options = parse_options(ConvertOptions, arguments, "motion convert", convert.__doc__)
    from st_rl.datasets.clip import log_notes
    from st_rl.datasets.formats import FORMATS, write_motion

    if options.weight is not None and not options.weight >= 0:
        raise UsageError(f"--weight must not be negative, got {options.weight}")
    clips = read_clips((options.motion,), options)
    log_notes(clips)
    clips = [_convert(clip, options) for clip in clips]
    targets = [(options.output, clips)]
    if not options.output.suffix:
        if options.format is None:
            raise UsageError(f"the folder {options.output} needs --format, one of: {', '.join(FORMATS)}")
        options.output.mkdir(parents=True, exist_ok=True)
        suffix = FORMATS[options.format][1][0]
        targets = [(options.output / f"{clip.name}{suffix}", [clip]) for clip in clips]
    for path, content in targets:
        write_motion(path, content, options.format)
        print(f"{path}: {', '.join(f'{clip.name} ({clip.num_frames} frames, {clip.fps:g} fps)' for clip in content)}")
    return 0


def _convert(clip: MotionClip, options: ConvertOptions) -> MotionClip:
    from st_rl.datasets import processing

    if options.start or options.end is not None:
        clip = processing.cut(clip, options.start, options.end)
    output_fps = MJLAB_FPS if options.output_fps is None and options.format == "mjlab" else options.output_fps
    if output_fps is not None:
        clip = processing.resample(clip, output_fps)
    if options.mirror:
        clip = replace(processing.mirror(clip), name=f"{clip.name}_mirrored")
    if options.weight is not None:
        clip = replace(clip, weight=options.weight)
    # The tracking tasks of mjlab read every body by its index in the robot.
    adds_bodies = options.bodies or (options.format == "mjlab" and clip.bodies is None)
    if options.reorder or adds_bodies:
        from st_rl.sim.motions.clips import add_body_poses

        robot = load_robot(robot_of(options.robot, clip))
        clip = processing.reorder_joints(clip, robot.joint_names)
        clip = add_body_poses(robot, clip) if adds_bodies else clip
    return clip
