"""Watch a policy in a video (mp4 and gif) or in a viewer: st-rl play RUN."""

from __future__ import annotations

import dataclasses
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from st_rl.cli.support.command_line import CommandError, UsageError, parse_options, program
from st_rl.cli.support.run_folders.loaded_run import LoadedRun, open_run
from st_rl.cli.support.run_folders.run_folder import TRACES_FILE, VIDEO_FILE, RunOptions, make_writable, writable_file
from st_rl.cli.support.task_source import is_external

if TYPE_CHECKING:
    import numpy as np

    from st_rl.env.protocols import RenderableEnv
    from st_rl.sim.evaluation.recording import Recorder


def _has_display() -> bool:
    from st_rl.sim.evaluation.rendering import has_display

    return has_display()


@dataclass
class PlayOptions(RunOptions):
    """Options of `st-rl play`."""

    seconds: float = 12.0
    """Length of the video."""
    command: tuple[float, float, float] | None = None
    """Fixed command lin_vel_x lin_vel_y ang_vel_yaw (m/s, m/s, rad/s); None shows all directions in turn."""
    viewer: bool = field(default_factory=_has_display)
    """Whether to open a viewer instead of writing a video: MuJoCo's, or without a display a page for the browser.

    The default where there is a display.
    """
    width: int = 640
    """Width of the video in pixels."""
    height: int = 360
    """Height of the video in pixels."""
    gif: bool = True
    """Whether to write a gif as well."""
    output: Path | None = None
    """File of the video; None writes play.mp4 and the time series play.json into the run folder."""
    seed: int = 20_002
    """Random seed of the initial state."""


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    options = parse_options(PlayOptions, arguments, "play", __doc__)
    if options.seconds <= 0:
        raise UsageError(f"--seconds must be above 0, got {options.seconds:g}")
    run, checkpoint = open_run(options)
    if options.viewer and not is_external(run.source.name):
        return _open_viewer(run, checkpoint, options) if _has_display() else _open_page(run, checkpoint, options)
    if options.output is None:
        make_writable(run.run.path)
    elif writable_file(options.output).suffix != ".mp4":
        raise UsageError(f"--output {options.output}: the video is an mp4, name it FILE.mp4")
    from st_rl.sim.evaluation.video import require_ffmpeg

    require_ffmpeg()
    if is_external(run.source.name):
        return _record_rendered(run, checkpoint, options)
    return _record_task(run, checkpoint, options, f"{program()} play {shlex.join(arguments)}")


def make_recorder(run: LoadedRun, checkpoint: Path, options: PlayOptions) -> tuple[Recorder, int]:
    """Build a recorder of one robot under the policy and a schedule of commands; also returns the iteration."""
    from st_rl.sim.envs.legged_walk import LeggedWalk
    from st_rl.sim.evaluation.recording import CommandSegment, Recorder, make_command_schedule

    task: Any = run.make_eval_env(1, options.seconds, options.seed, fine=True)
    policy = run.load_policy(task, checkpoint)
    if not isinstance(task, LeggedWalk):
        return Recorder(task, policy), policy.iteration
    schedule = make_command_schedule(task.cfg.commands, options.seconds)
    if options.command is not None:
        schedule = [CommandSegment(options.seconds, options.command)]
    return Recorder(task, policy, schedule), policy.iteration


def _record_task(run: LoadedRun, checkpoint: Path, options: PlayOptions, command_line: str) -> int:
    """Write a video of a built-in task into the run folder."""
    from st_rl.sim.evaluation.rendering import prepare_rendering

    # Before the simulation, so that a missing library is reported immediately.
    prepare_rendering()
    from st_rl.sim.evaluation.recording import record_video
    from st_rl.utils.files import write_json

    recorder, iteration = make_recorder(run, checkpoint, options)
    start = time.perf_counter()
    video = options.output or run.run.file(VIDEO_FILE)
    traces = record_video(recorder, video, options.seconds, options.width & ~1, options.height & ~1)
    if options.output is None:
        shown = {"checkpoint": checkpoint.name, "iteration": iteration, "command_line": command_line}
        write_json(run.run.file(TRACES_FILE), {**dataclasses.asdict(traces), **shown})
    print(f"{video} ({options.seconds:g} s of {checkpoint.name}, rendered in {time.perf_counter() - start:.0f} s)")
    _write_gif(video, options)
    if traces.resets:
        print(f"The robot was reset at {', '.join(f'{t:.1f}' for t in traces.resets)} s")
    return 0


def _write_gif(video: Path, options: PlayOptions) -> None:
    if not options.gif:
        return
    from st_rl.sim.evaluation.video import mp4_to_gif

    gif = video.with_suffix(".gif")
    mp4_to_gif(video, gif)
    print(gif)


def _open_page(run: LoadedRun, checkpoint: Path, options: PlayOptions) -> int:
    """Show the robot in the browser."""
    from st_rl.cli.commands.view import ViewOptions, view

    return view(run, checkpoint, ViewOptions(options.run, options.checkpoint, options.task, seed=options.seed))


class _ViewerClosed(Exception):
    """The user has closed the window."""


def _open_viewer(run: LoadedRun, checkpoint: Path, options: PlayOptions) -> int:
    """Show the robot in MuJoCo's viewer, in real time, until the window is closed."""
    from st_rl.sim.require import require_mujoco

    mujoco: Any = require_mujoco()
    import mujoco.viewer as viewers

    recorder, _ = make_recorder(run, checkpoint, options)
    task = recorder.task
    data = recorder.snapshot().data
    try:
        viewer = viewers.launch_passive(task.backend.model, data, show_left_ui=False, show_right_ui=False)
    except Exception as error:  # each window library has its own error classes
        raise CommandError(f"cannot open the viewer ({error}); st-rl play RUN --no-viewer writes a video") from error
    with viewer:
        if task.robot.free_joint is not None:
            viewer.cam.type = mujoco.mjtCamera.mjCAMERA_TRACKING
            viewer.cam.trackbodyid = task.robot.free_joint.body
        start, steps = time.perf_counter(), 0

        def show(step: int) -> None:
            nonlocal steps
            steps += 1
            if not viewer.is_running():
                raise _ViewerClosed
            with viewer.lock():
                recorder.snapshot()
            viewer.sync()
            time.sleep(max(0.0, start + steps * task.step_dt - time.perf_counter()))

        try:
            while True:
                recorder.run(options.seconds, show)
                recorder.clear()
        except _ViewerClosed:
            return 0


def _record_rendered(run: LoadedRun, checkpoint: Path, options: PlayOptions) -> int:
    """Write a video of the frames that an environment of gymnasium or mjlab renders."""
    import torch

    from st_rl.env.utils import split_observations, split_step
    from st_rl.sim.evaluation.video import open_video

    env: Any = run.source.make(run.env_config, 1, "cpu", options.seed, render_mode="rgb_array")
    policy = run.load_policy(env, checkpoint)
    fps = float(env.unwrapped.metadata.get("render_fps") or 30)
    video = options.output or run.run.file(VIDEO_FILE)
    frame = _render_frame(env)
    with torch.inference_mode(), open_video(video, frame.shape[1], frame.shape[0], fps) as writer:
        obs = split_observations(env.get_observations())[0]
        for _ in range(round(options.seconds * fps)):
            writer.add(_render_frame(env))
            obs, _, _, dones, _ = split_step(env.step(policy(obs)))
            policy.reset(dones)
    env.close()
    print(video)
    _write_gif(video, options)
    return 0


def _render_frame(env: RenderableEnv) -> np.ndarray:
    """Return the frame `(height, width, 3)` of the first environment, cropped to even sides for the video codec."""
    try:
        frames = env.render()
    except Exception as error:
        if type(error).__module__.startswith("gymnasium"):
            raise CommandError(f"gymnasium cannot render this environment: {error}") from error
        raise
    frame = frames[0] if isinstance(frames, (tuple, list)) else frames
    if frame is None:
        raise CommandError("this environment renders no frames (render_mode rgb_array)")
    return frame[: frame.shape[0] & ~1, : frame.shape[1] & ~1]
