"""Offscreen frames, videos, and errors if rendering is not available."""

import ctypes.util
import subprocess

import numpy as np
import pytest

from st_rl.sim.evaluation import rendering
from st_rl.sim.evaluation.rendering import Arrow, FrameRenderer, RenderingError, choose_gl

mujoco = pytest.importorskip("mujoco")

BALL = (
    '<mujoco><statistic extent="1.5"/><worldbody><light pos="0 0 3"/>'
    '<geom type="sphere" size=".3" rgba="1 0 0 1"/></worldbody></mujoco>'
)


@pytest.fixture
def headless_linux(monkeypatch):
    monkeypatch.setattr(rendering.platform, "system", lambda: "Linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_environment_variable_takes_precedence(headless_linux):
    headless_linux.setenv("MUJOCO_GL", "OSMesa ")
    assert choose_gl() == "osmesa"


@pytest.mark.parametrize(("installed", "chosen"), [({"EGL", "OSMesa"}, "egl"), ({"OSMesa"}, "osmesa")])
def test_chooses_first_installed_library(headless_linux, installed, chosen):
    headless_linux.setattr(ctypes.util, "find_library", lambda name: f"lib{name}.so" if name in installed else None)
    assert choose_gl() == chosen


def test_display_needs_no_offscreen_library(headless_linux):
    headless_linux.setenv("DISPLAY", ":0")
    headless_linux.setattr(ctypes.util, "find_library", lambda name: None)
    assert choose_gl() == ""


def test_no_library_names_the_packages(headless_linux):
    headless_linux.setattr(ctypes.util, "find_library", lambda name: None)
    with pytest.raises(RenderingError, match=r"apt-get install -y libegl1 libosmesa6"):
        choose_gl()


def needs_library():
    try:
        choose_gl()
    except RenderingError as error:
        pytest.skip(str(error))


def test_frame_renders_model_and_scaled_arrows():
    needs_library()
    # Seen from the side: a red bar one metre high, and beside it an arrow one metre high.
    model = mujoco.MjModel.from_xml_string(
        '<mujoco><worldbody><light pos="0 -3 0" dir="0 1 0"/><camera pos="0 -3 0" xyaxes="1 0 0 0 0 1"/>'
        '<geom type="box" size=".01 .01 .5" pos=".2 0 .5" rgba="1 0 0 1"/></worldbody></mujoco>'
    )
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    arrow = Arrow(np.zeros(3), np.array([0.0, 0.0, 1.0]), (0.0, 1.0, 0.0, 1.0))
    with FrameRenderer(model, 200, 240) as renderer:
        plain = renderer.draw(data).astype(int)
        pointed = renderer.draw(data, [arrow]).astype(int)
        dotted = renderer.draw(data, [arrow._replace(vector=np.array([0.0, 0.0, 0.001]))]).astype(int)
    assert plain.shape == (240, 200, 3)
    red = (pointed[..., 0] > pointed[..., 1] + 30).any(axis=1).sum()
    green = (pointed[..., 1] > pointed[..., 0] + 30).any(axis=1).sum()
    assert red > 50
    assert green == pytest.approx(red, rel=0.1)
    assert np.array_equal(dotted, plain), "an arrow of no length must not be drawn"


def test_ghost_stands_beside_the_robot_in_another_pose():
    needs_library()
    # Seen from the side: a red bar one metre high on the ground; its ghost is half a metre higher.
    model = mujoco.MjModel.from_xml_string(
        '<mujoco><visual><headlight ambient=".6 .6 .6"/></visual><worldbody>'
        '<camera pos="0 -4 .7" xyaxes="1 0 0 0 0 1"/><body><freejoint/>'
        '<geom type="box" size=".05 .05 .2" pos="0 0 .3" rgba="1 0 0 1"/>'
        '<geom type="box" size=".05 .05 .2" pos="0 0 .7" rgba="1 0 0 1"/></body></worldbody></mujoco>'
    )
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    higher = data.qpos + np.array([0, 0, 0.5, 0, 0, 0, 0])
    with FrameRenderer(model, 200, 240) as renderer:
        alone = renderer.draw(data).astype(int)
        both = renderer.draw(data, ghost=higher).astype(int)
        again = renderer.draw(data).astype(int)
    assert np.array_equal(again, alone)

    def find(mask):
        rows, columns = np.nonzero(mask)
        return rows.mean(), columns.mean(), len(rows)

    row, column, size = find(alone[..., 0] > alone[..., 2] + 60)
    red_row, red_column, red_size = find(both[..., 0] > both[..., 2] + 60)
    ghost_row, ghost_column, ghost_size = find(both[..., 2] > both[..., 0] + 20)
    assert (red_row, red_size) == (pytest.approx(row, abs=2), pytest.approx(size, rel=0.1))
    assert ghost_size == pytest.approx(size, rel=0.4)
    assert ghost_row < row - 20
    # Both are in the middle of the picture, the ghost on the right.
    assert ghost_column > column > red_column
    assert 0.5 * (red_column + ghost_column) == pytest.approx(column, abs=2)


def test_unknown_camera_lists_cameras_of_model():
    needs_library()
    model = mujoco.MjModel.from_xml_string(BALL.replace("<geom", '<camera name="side" pos="0 -3 0"/><geom'))
    with pytest.raises(ValueError, match=r"no camera 'top'.*side"):
        FrameRenderer(model, 32, 32, camera="top")


def test_video_holds_every_frame_and_appears_only_when_complete(tmp_path):
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    from st_rl.sim.evaluation.video import mp4_to_gif, open_video

    path = tmp_path / "walk.mp4"
    with open_video(path, 64, 48, 25.0) as video:
        for shade in range(0, 250, 10):
            video.add(np.full((48, 64, 3), shade, dtype=np.uint8))
            assert not path.exists()
    count, seconds = ffmpeg.count_frames_and_secs(str(path))
    assert (count, seconds) == (25, pytest.approx(1.0, abs=0.05))
    probe = subprocess.run([ffmpeg.get_ffmpeg_exe(), "-i", str(path)], capture_output=True, text=True, check=False)
    assert "h264" in probe.stderr
    assert "yuv420p" in probe.stderr
    mp4_to_gif(path, tmp_path / "walk.gif", width=32)
    assert (tmp_path / "walk.gif").read_bytes()[:6] == b"GIF89a"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["walk.gif", "walk.mp4"]


def test_every_frame_of_a_gif_has_the_colors_of_the_video_in_all_readers(tmp_path):
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    images = pytest.importorskip("imageio.v3")
    from st_rl.sim.evaluation.video import mp4_to_gif, open_video

    # An orange square moves over gray: the first frame does not have all colors of the film.
    gray = np.linspace(90, 200, 64, dtype=np.uint8)
    frames = np.tile(gray[None, None, :, None], (12, 48, 1, 3))
    for index in range(1, 12):
        frames[index, 16:32, 4 * index : 4 * index + 12] = (250, 120, 20 * index)
    with open_video(tmp_path / "walk.mp4", 64, 48, 12.0) as video:
        for frame in frames:
            video.add(frame)
    mp4_to_gif(tmp_path / "walk.mp4", tmp_path / "walk.gif", width=64)
    has_global_palette = (tmp_path / "walk.gif").read_bytes()[10] & 0x80
    assert not has_global_palette, "imageio draws frames without a palette of their own with that of the first frame"
    command = [
        ffmpeg.get_ffmpeg_exe(),
        "-v",
        "error",
        "-i",
        tmp_path / "walk.gif",
        "-f",
        "rawvideo",
        "-pix_fmt",
        "rgb24",
    ]
    raw = subprocess.run([*map(str, command), "-"], capture_output=True, check=True).stdout
    decoded = np.frombuffer(raw, np.uint8).reshape(-1, 48, 64, 3)
    np.testing.assert_array_equal(images.imread(tmp_path / "walk.gif"), decoded)
    assert len(decoded) == 12
    assert np.abs(decoded.astype(int) - frames).mean() < 6


def test_failed_video_leaves_no_file(tmp_path):
    pytest.importorskip("imageio_ffmpeg")
    from st_rl.sim.evaluation.video import open_video

    def stumble():
        with open_video(tmp_path / "walk.mp4", 64, 48, 25.0) as video:
            video.add(np.zeros((48, 64, 3), dtype=np.uint8))
            raise RuntimeError("stumbled")

    with pytest.raises(RuntimeError, match="stumbled"):
        stumble()
    assert list(tmp_path.iterdir()) == []
