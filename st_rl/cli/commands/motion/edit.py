"""`st-rl motion edit`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from st_rl.cli.commands.motion.clips import ClipOptions, load_robot, read_clips, robot_of
from st_rl.cli.support.command_line import UsageError, conf, parse_options

if TYPE_CHECKING:
    from st_rl.datasets.clip import MotionClip


@dataclass
class EditOptions(ClipOptions):
    """Options of `st-rl motion edit`; edits are made in the order of this list."""

    motion: Annotated[str, conf("arg", metavar="CLIP")]
    """File or name of a built-in clip."""
    output: Annotated[Path, conf("arg", metavar="OUT")]
    """File to write, in the format of its suffix."""
    start: float = 0.0
    """Start time, s."""
    end: float | None = None
    """End time, s; None keeps the end of the clip."""
    speed: float = 1.0
    """Factor of the speed; 2 is twice as fast."""
    mirror: bool = False
    """Whether to swap left and right, by the symmetry of the robot."""
    blend: str | None = None
    """Clip to append; it continues from the position and heading of the first."""
    joint_limits: bool = False
    """Whether to clamp joint positions to the ranges of the robot."""
    loop: bool = False
    """Whether to blend the end into the beginning, so that the clip repeats without a jump."""
    fade: float = 0.3
    """Seconds of the cross-fade of --blend and --loop."""
    ground: Literal["constant", "smooth"] | None = None
    """Put the feet on the ground: by a constant height, or by a smooth one that also removes drift."""


def edit(arguments: Sequence[str]) -> int:
    """Crop, speed up, mirror, blend, loop a clip or put it on the ground: st-rl motion edit CLIP OUT."""
    options = parse_options(EditOptions, arguments, "motion edit", edit.__doc__)
    from st_rl.datasets.clip import log_notes
    from st_rl.datasets.formats import write_motion

    flags = (options.mirror, options.blend, options.joint_limits, options.loop, options.ground, options.start)
    if not any(flags) and options.end is None and options.speed == 1.0:
        raise UsageError(
            "nothing to do: give --start, --end, --speed, --mirror, --blend, --joint-limits, --loop or --ground"
        )
    clip = _read_one(options.motion, options)
    log_notes([clip])
    clip = _edit(clip, options)
    write_motion(options.output, clip)
    print(f"{options.output}: {clip.name} ({clip.num_frames} frames, {clip.fps:g} fps, {clip.duration:.2f} s)")
    return 0


def _read_one(motion: str, options: EditOptions) -> MotionClip:
    clips = read_clips((motion,), options)
    if len(clips) != 1:
        names = ", ".join(clip.name for clip in clips)
        raise UsageError(f"'{motion}' has {len(clips)} clips ({names}): name one of them")
    return clips[0]


def _edit(clip: MotionClip, options: EditOptions) -> MotionClip:
    from st_rl.datasets import editing, processing
    from st_rl.sim.motions.clips import add_body_poses
    from st_rl.sim.motions.ground import mirror_on_robot, put_on_ground

    has_feet = clip.feet is not None
    robot = load_robot(robot_of(options.robot, clip))
    if options.start or options.end is not None:
        clip = processing.cut(clip, options.start, options.end)
    if options.speed != 1.0:
        clip = editing.change_speed(clip, options.speed)
    if options.mirror:
        clip = mirror_on_robot(robot, clip)
    if options.blend is not None:
        clip = editing.blend_clips(clip, _read_one(options.blend, options), options.fade)
    if options.joint_limits:
        clip = editing.clamp_joints(processing.reorder_joints(clip, robot.joint_names), robot.joint_range)
    if options.loop:
        clip = editing.make_loop(clip, options.fade)
    if options.ground is not None:
        clip = put_on_ground(robot, clip, options.ground == "smooth")
    clip = add_body_poses(robot, clip) if has_feet and clip.feet is None else clip
    return replace(clip, name=options.output.stem)
