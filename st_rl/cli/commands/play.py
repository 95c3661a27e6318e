"""Watch a policy: writes an mp4 and a gif, or opens MuJoCo's viewer: st-rl play RUN."""

from __future__ import annotations

import dataclasses
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from st_rl.cli.support.command_line import CommandError, UsageError, parse_options
from st_rl.cli.support.run_folder import RunFolder, find_run, make_writable
from st_rl.sim.evaluation.rendering import has_display

if TYPE_CHECKING:
    from st_rl.cli.support.loaded_run import LoadedRun

VIDEO_FILE = "play.mp4"
GIF_FILE = "play.gif"
TRACES_FILE = "play.json"


@dataclass
class PlayOptions:
    """Options of `st-rl play`."""

    run: str
    """Folder of the run, the beginning of its name, a task (its newest run), or: latest."""
    seconds: float = 12.0
    """Length of the video."""
    command: tuple[float, float, float] | None = None
    """One command for the whole video, lin_vel_x, lin_vel_y, ang_vel_yaw (m/s, rad/s); a schedule of all when None."""
    viewer: bool = field(default_factory=has_display)
    """Whether to open MuJoCo's viewer instead of writing a video; the default is to do so where there is a screen."""
    width: int = 640
    """Width of the video in pixels."""
    height: int = 360
    """Height of the video in pixels."""
    gif: bool = True
    """Whether to write a gif too."""
    seed: int = 20_002
    """Of the starting pose."""
    checkpoint: str = "best"
    """Which policy: best, last, an iteration number, or a file."""


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    options = parse_options(PlayOptions, arguments, "play", __doc__ or "")
    if options.seconds <= 0:
        raise UsageError(f"--seconds must be above 0, got {options.seconds:g}")
    run = find_run(options.run)
    checkpoint = run.checkpoint(options.checkpoint)
    from st_rl.cli.support.loaded_run import LoadedRun
    from st_rl.cli.support.task_source import BuiltInTask

    saved = LoadedRun(run)
    if not isinstance(saved.source, BuiltInTask):
        make_writable(run.path, "copy the run to a folder of yours")
        return _play_rendered(saved, checkpoint, options)
    if options.viewer:
        return _open_viewer(saved, checkpoint, options)
    make_writable(run.path, "copy the run to a folder of yours")
    return _write_video(saved, checkpoint, options, f"st-rl play {shlex.join(arguments)}")


def make_recorder(saved: LoadedRun, checkpoint: Path, options: PlayOptions) -> Any:
    """One robot under the policy, with the commands that it is shown with."""
    from st_rl.sim.evaluation.evaluator import is_commanded, make_eval_task
    from st_rl.sim.evaluation.recording import CommandSegment, Recorder, make_command_schedule

    task = make_eval_task(saved.source.name, saved.env_config, 1, options.seconds, options.seed, fine=True)
    policy = saved.load_policy(task, checkpoint).policy
    if not is_commanded(task):
        return Recorder(task, policy)
    given = options.command
    schedule = (
        make_command_schedule(task.cfg.commands, options.seconds)
        if given is None
        else [CommandSegment(options.seconds, given)]
    )
    return Recorder(task, policy, schedule)


def _write_video(saved: LoadedRun, checkpoint: Path, options: PlayOptions, command: str) -> int:
    """Record the robot into the run folder."""
    from st_rl.sim.evaluation.rendering import prepare_rendering
    from st_rl.sim.evaluation.video import require_ffmpeg

    # What is missing should be said before the robot walks.
    require_ffmpeg()
    prepare_rendering()
    from st_rl.sim.evaluation.recording import record_video
    from st_rl.utils.files import write_json

    recorder = make_recorder(saved, checkpoint, options)
    run = saved.run
    begin = time.perf_counter()
    video = run.file(VIDEO_FILE)
    traces = record_video(recorder, video, options.seconds, options.width & ~1, options.height & ~1)
    write_json(
        run.file(TRACES_FILE), {**dataclasses.asdict(traces), "checkpoint": checkpoint.name, "command_line": command}
    )
    print(f"{video} ({options.seconds:g} s of {checkpoint.name}, drawn in {time.perf_counter() - begin:.0f} s)")
    _write_gif(run, options)
    if traces.resets:
        print(f"the robot ended its episode and was put back at second {', '.join(f'{t:.1f}' for t in traces.resets)}")
    return 0


def _write_gif(run: RunFolder, options: PlayOptions) -> None:
    if not options.gif:
        return
    from st_rl.sim.evaluation.video import mp4_to_gif

    mp4_to_gif(run.file(VIDEO_FILE), run.file(GIF_FILE))
    print(run.file(GIF_FILE))


def _open_viewer(saved: LoadedRun, checkpoint: Path, options: PlayOptions) -> int:
    """Show the robot in MuJoCo's viewer, in real time, until its window is closed."""
    from st_rl.sim.require import require_mujoco

    mujoco: Any = require_mujoco()
    import mujoco.viewer as viewers

    recorder = make_recorder(saved, checkpoint, options)
    task = recorder.task
    data, _ = recorder.snapshot()
    try:
        viewer = viewers.launch_passive(task.backend.model, data, show_left_ui=False, show_right_ui=False)
    except Exception as error:  # each window library has error classes of its own
        raise CommandError(f"cannot open the viewer ({error}); st-rl play RUN --no-viewer writes a video") from error
    with viewer:
        follow = task.robot.free_joint
        if follow is not None:
            viewer.cam.type = mujoco.mjtCamera.mjCAMERA_TRACKING
            viewer.cam.trackbodyid = follow.body

        class _Closed(Exception):
            """The window is gone."""

        start, steps = time.perf_counter(), 0

        def show(step: int) -> None:
            nonlocal steps
            steps += 1
            if not viewer.is_running():
                raise _Closed
            with viewer.lock():
                recorder.snapshot()
            viewer.sync()
            time.sleep(max(0.0, start + steps * task.step_dt - time.perf_counter()))

        try:
            while True:
                recorder.run(options.seconds, show)
                recorder.clear()
        except _Closed:
            return 0


def _play_rendered(saved: LoadedRun, checkpoint: Path, options: PlayOptions) -> int:
    """Write a video of what an environment of gymnasium or mjlab renders."""
    import torch

    from st_rl.env.utils import split_observations, split_step
    from st_rl.sim.evaluation.video import open_video, require_ffmpeg

    require_ffmpeg()
    source: Any = saved.source
    env = source.make(saved.env_config, 1, "cpu", options.seed, render_mode="rgb_array")
    policy = saved.load_policy(env, checkpoint).policy
    fps = float(env.unwrapped.metadata.get("render_fps") or 30)
    video = saved.run.file(VIDEO_FILE)
    frame = _rendered_frame(env)
    with torch.inference_mode(), open_video(video, frame.shape[1], frame.shape[0], fps) as writer:
        obs = split_observations(env.get_observations())[0]
        for _ in range(round(options.seconds * fps)):
            writer.add(_rendered_frame(env))
            obs, _, _, dones, _ = split_step(env.step(policy(obs)))
            policy.reset(dones)
    env.close()
    print(video)
    _write_gif(saved.run, options)
    return 0


def _rendered_frame(env: Any) -> Any:
    """The picture of the first environment, with even sides as videos need them."""
    try:
        frames = env.render()
    except Exception as error:
        if type(error).__module__.startswith("gymnasium"):
            raise CommandError(f"gymnasium cannot render this environment: {error}") from error
        raise
    frame = frames[0] if isinstance(frames, (tuple, list)) else frames
    if frame is None:
        raise CommandError("this environment renders no pictures (render_mode rgb_array)")
    return frame[: frame.shape[0] & ~1, : frame.shape[1] & ~1]
