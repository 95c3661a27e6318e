"""Write a motion in another format, at another rate, mirrored or cut: st-rl motion convert FILE OUTPUT."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from st_rl.cli.commands.motion.clips import ClipOptions, read_clips, robot_of
from st_rl.cli.support.command_line import UsageError, parse_options


@dataclass
class ConvertOptions(ClipOptions):
    """Options of `st-rl motion convert`."""

    motion: str
    """File, folder, or name of a clip."""
    output: Path
    """File to write; its suffix tells the format. A folder for several clips, with --format."""
    format: Literal["amp", "isaaclab", "mjlab", "gmr", "csv"] | None = None
    """Format to write; by default the first of amp (.json .txt .pkl), isaaclab (.npz), gmr, csv with that suffix."""
    output_fps: float | None = None
    """Frames a second to write; those of the file when None."""
    mirror: bool = False
    """Whether left and right change places."""
    start: float = 0.0
    """Second at which to begin."""
    end: float | None = None
    """Second at which to end; the end of the clip when None."""
    reorder: bool = False
    """Whether joints are put into the robot's order, by name; others are left out."""
    bodies: bool = False
    """Whether feet and bodies are computed from the robot's model."""
    weight: float | None = None
    """How often the clip is drawn, relative to others; as the file says when None."""


def main(arguments: Sequence[str]) -> int:
    """Run the action."""
    options = parse_options(ConvertOptions, arguments, "motion convert", __doc__ or "")
    from st_rl.datasets.formats import FORMATS, write_motion

    if options.weight is not None and not options.weight >= 0:
        raise UsageError(f"--weight is {options.weight}: give a number that is not negative")
    clips = [_changed(clip, options) for clip in read_clips((options.motion,), options)]
    targets = [(options.output, clips)]
    if not options.output.suffix:
        if options.format is None:
            raise UsageError(f"--format says what goes into the folder {options.output}: {', '.join(FORMATS)}")
        options.output.mkdir(parents=True, exist_ok=True)
        suffix = FORMATS[options.format][1][0]
        targets = [(options.output / f"{clip.name}{suffix}", [clip]) for clip in clips]
    for path, content in targets:
        write_motion(path, content, options.format)
        print(f"{path}: {', '.join(f'{clip.name} ({clip.num_frames} frames, {clip.fps:g} fps)' for clip in content)}")
    return 0


def _changed(clip, options: ConvertOptions):
    """The clip as the options want it."""
    from st_rl.datasets import processing

    if options.start or options.end is not None:
        clip = processing.cut(clip, options.start, options.end)
    if options.output_fps is not None:
        clip = processing.resample(clip, options.output_fps)
    if options.mirror:
        clip = replace(processing.mirror(clip), name=f"{clip.name}_mirrored")
    if options.weight is not None:
        clip = replace(clip, weight=options.weight)
    if options.reorder or options.bodies:
        from st_rl.sim.motions.clips import add_body_poses
        from st_rl.sim.robots import Robot, robot_path

        robot = Robot.from_file(robot_path(robot_of(options.robot, clip)))
        clip = processing.reorder_joints(clip, robot.joint_names)
        clip = add_body_poses(robot, clip) if options.bodies else clip
    return clip
