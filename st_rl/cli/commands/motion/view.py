"""`st-rl motion view`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from st_rl.cli.commands.motion.clips import ClipOptions, load_robot, read_clips, robot_of
from st_rl.cli.support.command_line import UsageError, conf, parse_options

if TYPE_CHECKING:
    from st_rl.datasets.clip import MotionClip
    from st_rl.sim.robots import Robot


@dataclass
class ViewOptions(ClipOptions):
    """Options of `st-rl motion view`."""

    motion: Annotated[str, conf("arg", metavar="CLIP")]
    """File, folder, or name of a built-in clip."""
    output: Path = Path("motions")
    """Folder of NAME.png and NAME.mp4."""
    plot: bool = True
    """Whether to plot joints, velocity and feet."""
    video: bool = True
    """Whether to render the robot."""
    repeats: int = 3
    """Repetitions of the clip in the video."""
    width: int = 640
    """Width of the video in pixels."""
    height: int = 360
    """Height of the video in pixels."""


def view(arguments: Sequence[str]) -> int:
    """Render a motion as a video and a plot of joints and feet: st-rl motion view FILE."""
    options = parse_options(ViewOptions, arguments, "motion view", view.__doc__)
    from st_rl.datasets.clip import log_notes
    from st_rl.sim.motions.clips import add_body_poses

    if not options.plot and not options.video:
        raise UsageError("--no-plot and --no-video leave nothing to do: remove one of them")
    clips = read_clips((options.motion,), options)
    log_notes(clips)
    options.output.mkdir(parents=True, exist_ok=True)
    for clip in clips:
        robot = load_robot(robot_of(options.robot, clip))
        if options.plot:
            path = options.output / f"{clip.name}.png"
            plot(add_body_poses(robot, clip), robot, path)
            print(path)
        if options.video:
            path = options.output / f"{clip.name}.mp4"
            _write_video(robot, clip, path, options)
            print(path)
    return 0


def _write_video(robot: Robot, clip: MotionClip, path: Path, options: ViewOptions) -> None:
    """Render the clip in real time, repeated."""
    from st_rl.sim.evaluation.rendering import prepare_rendering
    from st_rl.sim.evaluation.video import require_ffmpeg
    from st_rl.sim.motions.clips import render_clip

    require_ffmpeg()
    prepare_rendering()
    render_clip(robot, clip, path, options.repeats, options.width & ~1, options.height & ~1)


def plot(clip: MotionClip, robot: Robot, path: Path) -> None:
    """Plot joint angles, root velocity and foot height over time."""
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError('plots need matplotlib: pip install "st_rl[plot]"') from error
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np

    time = np.arange(clip.num_frames) / clip.fps
    figure, (joints, speed, feet) = plt.subplots(3, 1, figsize=(8, 8), sharex=True, layout="constrained")
    # Dashed lines above solid ones, so that equal curves are all visible.
    dashes = ("-", (0, (4, 2)), (2, (2, 4)), ":")
    styles = [{"linestyle": dashes[number % 4], "zorder": 2 + number % 4} for number in range(len(clip.joint_names))]
    color = plt.colormaps["tab20"]
    for number, (name, angle) in enumerate(zip(clip.joint_names, clip.joint_pos.T)):
        joints.plot(time, angle, linewidth=1, label=name, color=color(number % 20), **styles[number])
    joints.set(ylabel="joint angle, rad", title=f"{clip.name} ({clip.fps:g} fps)")
    joints.legend(fontsize=6, ncols=2, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    for axis, row in zip("xyz", clip.root_lin_vel.T):
        speed.plot(time, row, label=axis)
    speed.set(ylabel="root velocity, m/s")
    speed.legend(fontsize=6, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    names, heights = (clip.feet.names, clip.feet.pos[..., 2].T) if clip.feet is not None else ((), ())
    for foot, name, height, style in zip(robot.feet, names, heights, styles):
        feet.plot(time, 100.0 * (height - foot.radius), label=name, **style)
    feet.set(xlabel="s", ylabel="foot height, cm")
    feet.legend(fontsize=6, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.savefig(path, dpi=120)
    plt.close(figure)
