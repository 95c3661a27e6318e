"""See a motion: a video of the robot and a plot of its joints and feet: st-rl motion view FILE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from st_rl.cli.commands.motion.clips import ClipOptions, read_clips, robot_of
from st_rl.cli.support.command_line import UsageError, parse_options


@dataclass
class ViewOptions(ClipOptions):
    """Options of `st-rl motion view`."""

    motion: str
    """File, folder, or name of a clip."""
    output: Path = Path("motions")
    """Folder to write to: NAME.png and NAME.mp4."""
    plot: bool = True
    """Whether to plot joints, speed and feet."""
    video: bool = True
    """Whether to draw the robot."""
    repeats: int = 3
    """How often the video shows the clip."""
    width: int = 640
    """Width of the video in pixels."""
    height: int = 360
    """Height of the video in pixels."""


def main(arguments: Sequence[str]) -> int:
    """Run the action."""
    options = parse_options(ViewOptions, arguments, "motion view", __doc__ or "")
    from st_rl.sim.motions.clips import add_body_poses
    from st_rl.sim.robots import Robot, robot_path

    if not options.plot and not options.video:
        raise UsageError("--no-plot and --no-video leave nothing to show: leave out one of them")
    clips = read_clips((options.motion,), options)
    options.output.mkdir(parents=True, exist_ok=True)
    for clip in clips:
        robot = Robot.from_file(robot_path(robot_of(options.robot, clip)))
        if options.plot:
            path = options.output / f"{clip.name}.png"
            plot(add_body_poses(robot, clip), robot, path)
            print(path)
        if options.video:
            path = options.output / f"{clip.name}.mp4"
            _write_video(robot, clip, path, options)
            print(path)
    return 0


def _write_video(robot: Any, clip: Any, path: Path, options: ViewOptions) -> None:
    """Draw the clip in real time, several times one after the other."""
    from st_rl.sim.evaluation.rendering import prepare_rendering
    from st_rl.sim.evaluation.video import require_ffmpeg
    from st_rl.sim.motions.clips import render_clip

    require_ffmpeg()
    prepare_rendering()
    render_clip(robot, clip, path, options.repeats, options.width & ~1, options.height & ~1)


def plot(clip: Any, robot: Any, path: Path) -> None:
    """Joint angles, velocity of the root and height of the feet over time, as a picture."""
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError('plots need matplotlib: pip install "st_rl[plot]"') from error
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np

    time = np.arange(clip.num_frames) / clip.fps
    figure, (joints, speed, feet) = plt.subplots(3, 1, figsize=(8, 8), sharex=True, layout="constrained")
    # Joints and feet that move together lie on each other: dashes above whole lines let those shine through.
    dashes = ("-", (0, (4, 2)), (2, (2, 4)), ":")
    styles = [{"linestyle": dashes[number % 4], "zorder": 2 + number % 4} for number in range(len(clip.joint_names))]
    color = plt.colormaps["tab20"]
    for number, (name, angle) in enumerate(zip(clip.joint_names, clip.joint_pos.T)):
        joints.plot(time, angle, linewidth=1, label=name, color=color(number % 20), **styles[number])
    joints.set(ylabel="joint angle, rad", title=f"{clip.name} ({clip.fps:g} fps)")
    joints.legend(fontsize=6, ncols=2, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    for axis, row in zip("xyz", clip.root_lin_vel.T):
        speed.plot(time, row, label=axis)
    speed.set(ylabel="velocity of the root, m/s")
    speed.legend(fontsize=6, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    for foot, name, height, style in zip(robot.feet, clip.feet.names, clip.feet.pos[..., 2].T, styles):
        feet.plot(time, 100.0 * (height - foot.radius), label=name, **style)
    feet.set(xlabel="s", ylabel="height of the soles, cm")
    feet.legend(fontsize=6, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.savefig(path, dpi=120)
    plt.close(figure)
