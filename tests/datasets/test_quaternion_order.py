"""The order of quaternions in files that do not name it is found from the posture of the root."""

import logging
import pickle

import numpy as np
import pytest

from st_rl.datasets.formats import read_motion
from st_rl.datasets.library import load_clips
from st_rl.datasets.motion_loader import AMPLoader
from st_rl.utils.tensors import rotations
from st_rl.utils.tensors.rotations import WXYZ_TO_XYZW

FRAMES, FPS = 40, 30.0
COLUMNS = {"xyzw": WXYZ_TO_XYZW, "wxyz": [0, 1, 2, 3]}


def yaw(angle):
    """Rotations `(F, 4)` w, x, y, z about the vertical axis, with a small sway."""
    time = np.arange(FRAMES) / FPS
    sway = 0.05 * np.sin(6.0 * time)[:, None] * np.array([1.0, 0.6, 0.0])
    heading = np.broadcast_to(angle, FRAMES)[:, None] * np.array([0.0, 0.0, 1.0])
    return rotations.multiply(rotations.from_rotation_vector(heading), rotations.from_rotation_vector(sway))


def walk(root_rot, speed=0.5):
    """Root positions `(F, 3)` of a robot that walks along its x axis."""
    velocity = rotations.rotate(root_rot, np.array([speed, 0.0, 0.0]))
    height = 0.75 + 0.02 * np.sin(np.arange(FRAMES))
    return np.concatenate([np.cumsum(velocity[:, :2], axis=0) / FPS, height[:, None]], axis=1)


def write_table(path, root_rot, order, root_pos=None, header=None):
    root_pos = walk(root_rot) if root_pos is None else root_pos
    joints = 0.3 * np.sin(np.arange(FRAMES)[:, None] / 5.0 + np.arange(3))
    table = np.concatenate([root_pos, root_rot[:, COLUMNS[order]], joints], axis=1)
    lines = [] if header is None else [",".join(header)]
    path.write_text("\n".join([*lines, *(",".join(f"{value:.9g}" for value in row) for row in table)]))
    return path


def tilt(clip, root_rot):
    """Largest angle between the rotations of a clip and the true ones, rad."""
    error = rotations.to_rotation_vector(rotations.multiply(clip.root_rot, rotations.conjugate(root_rot)))
    return float(np.linalg.norm(error, axis=1).max())


@pytest.mark.parametrize("order", ["xyzw", "wxyz"])
@pytest.mark.parametrize("heading", [0.0, 1.0, np.pi / 2, -2.0, np.linspace(0.0, 6.0, FRAMES)])
def test_csv_order_is_found_from_the_posture(tmp_path, order, heading):
    root_rot = yaw(heading)
    (clip,) = read_motion(write_table(tmp_path / "walk.csv", root_rot, order))
    assert clip.quat_order == order
    assert tilt(clip, root_rot) < 1e-5
    assert any("read as w, x, y, z, in which the root is upright" in note for note in clip.notes) == (order == "wxyz")


def test_gmr_order_is_found_from_the_posture(tmp_path):
    root_rot = yaw(0.4)
    content = {"fps": FPS, "root_pos": walk(root_rot), "root_rot": root_rot, "dof_pos": np.zeros((FRAMES, 2))}
    (tmp_path / "walk.pkl").write_bytes(pickle.dumps(content))
    (clip,) = read_motion(tmp_path / "walk.pkl")
    assert clip.quat_order == "wxyz"
    assert tilt(clip, root_rot) < 1e-6


def test_npz_order_is_found_from_the_posture(tmp_path):
    root_rot = yaw(1.2)
    content = {"fps": FPS, "joint_pos": np.zeros((FRAMES, 2)), "body_pos_w": np.stack([walk(root_rot)] * 2, axis=1)}
    np.savez(tmp_path / "walk.npz", **content, body_quat_w=np.stack([root_rot[:, WXYZ_TO_XYZW]] * 2, axis=1))
    (clip,) = read_motion(tmp_path / "walk.npz")
    assert clip.quat_order == "xyzw"
    assert tilt(clip, root_rot) < 1e-6
    np.testing.assert_allclose(clip.bodies.rot[:, 1], clip.root_rot)


def test_given_order_is_taken(tmp_path):
    path = write_table(tmp_path / "walk.csv", yaw(0.3), "wxyz")
    (clip,) = read_motion(path, quat_order="xyzw")
    assert clip.quat_order == "xyzw"
    assert tilt(clip, yaw(0.3)) > 2.0
    with pytest.raises(ValueError, match=r"quat_order is 'wyxz'; use one of xyzw, wxyz"):
        read_motion(path, quat_order="wyxz")


@pytest.mark.parametrize("order", ["xyzw", "wxyz"])
def test_header_names_the_order(tmp_path, order):
    header = ["x", "y", "z", *(f"root_q{axis}" for axis in order), "a", "b", "c"]
    upside_down = rotations.multiply(yaw(0.2), np.array([0.0, 1.0, 0.0, 0.0]))
    (clip,) = read_motion(write_table(tmp_path / "walk.csv", upside_down, order, header=header))
    assert clip.quat_order == order
    assert tilt(clip, upside_down) < 1e-5


def test_fall_to_the_side_keeps_the_documented_order(tmp_path):
    # Half of the time the robot lies on its side, which the other order would show as standing.
    roll = np.where(np.arange(FRAMES) < FRAMES // 2, 0.0, np.pi / 2)
    root_rot = rotations.from_rotation_vector(roll[:, None] * np.array([1.0, 0.0, 0.0]))
    root_pos = np.stack([np.zeros(FRAMES), np.zeros(FRAMES), np.where(roll > 0.0, 0.15, 0.75)], axis=1)
    (clip,) = read_motion(write_table(tmp_path / "fall.csv", root_rot, "xyzw", root_pos))
    assert clip.quat_order == "xyzw"


def test_notes_that_no_order_is_upright(tmp_path):
    root_rot = rotations.multiply(yaw(0.0), np.array([0.0, 0.0, 1.0, 0.0]))
    (clip,) = read_motion(write_table(tmp_path / "hang.csv", root_rot, "xyzw"))
    assert clip.quat_order == "xyzw"
    assert any("the root is not upright, whether quaternions are x, y, z, w" in note for note in clip.notes)


def test_notes_that_only_the_other_order_moves_forward(tmp_path):
    path = write_table(tmp_path / "walk.csv", yaw(np.pi), "wxyz")
    (clip,) = read_motion(path)
    assert any("as w, x, y, z it is upright, too, and moves forward" in note for note in clip.notes)
    (forward,) = read_motion(write_table(tmp_path / "forward.csv", yaw(0.0), "xyzw"), fps=FPS)
    assert forward.notes == ()


def test_notes_an_assumed_frame_rate(tmp_path):
    path = write_table(tmp_path / "walk.csv", yaw(0.0), "xyzw")
    assert read_motion(path)[0].notes == ("30 frames per second are assumed: the file does not store the frame rate",)
    assert read_motion(path, fps=60.0)[0].notes == ()


def test_loading_clips_logs_notes_once_for_all(tmp_path, caplog):
    for number in range(5):
        write_table(tmp_path / f"walk_{number}.csv", yaw(0.0), "wxyz")
    with caplog.at_level(logging.WARNING, "st_rl"):
        load_clips(tmp_path)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert all(line.startswith("walk_0, walk_1, walk_2 and 2 more: ") for line in lines)
    caplog.clear()
    AMPLoader("cpu", 1.0 / FPS, data_dir=tmp_path)
    assert "read as w, x, y, z" in caplog.text
