"""npz files with the root in front of the joints, a body `world`, or angular velocities in body frames."""

import numpy as np
import pytest

from st_rl.datasets.clip import MotionError
from st_rl.datasets.formats import SUFFIXES, read_motion
from st_rl.datasets.motion_loader import AMPLoader
from st_rl.utils.tensors import rotations

FRAMES, FPS = 60, 50.0
JOINTS = ("left_hip_joint", "left_knee_joint", "right_hip_joint")
LFS_POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"


def motion():
    """A root that walks to the left of the world, sways and turns, with its velocities, and joints."""
    time = np.arange(FRAMES) / FPS
    heading = rotations.from_rotation_vector((np.pi / 2 + 0.3 * time)[:, None] * np.array([0.0, 0.0, 1.0]))
    sway = rotations.from_rotation_vector(0.2 * np.sin(9.0 * time)[:, None] * np.array([1.0, 0.5, 0.0]))
    rot = rotations.multiply(heading, sway)
    pos = np.stack([np.zeros(FRAMES), 0.6 * time, 0.75 + 0.02 * np.sin(12.0 * time)], axis=1)
    joints = 0.4 * np.sin(7.0 * time[:, None] + np.arange(len(JOINTS)))
    lin_vel, joint_vel = np.gradient(pos, 1.0 / FPS, axis=0), np.gradient(joints, 1.0 / FPS, axis=0)
    return pos, rot, lin_vel, rotations.angular_velocity(rot, 1.0 / FPS), joints, joint_vel


def bodies(values, world):
    """Values `(F, 2, W)` or `(F, 3, W)` of the root and a link above it, `world` first if given."""
    rows = [values, values] if world is None else [np.broadcast_to(world, values.shape), values, values]
    return np.stack(rows, axis=1)


def write_tracking_file(path, world=True, **changes):
    """A file of a whole-body tracker: names, a body `world`, and the root in front of the joints."""
    pos, rot, lin_vel, ang_vel, joints, joint_vel = motion()
    content = {
        "fps": np.array([FPS]),
        "joint_names": np.array(JOINTS),
        "body_names": np.array([*(["world"] if world else []), "pelvis", "torso"]),
        "joint_pos": np.concatenate([pos, rot, joints], axis=1),
        "joint_vel": np.concatenate([lin_vel, rotations.rotate_inverse(rot, ang_vel), joint_vel], axis=1),
        "body_pos_w": bodies(pos, np.zeros(3) if world else None),
        "body_quat_w": bodies(rot, np.array([1.0, 0.0, 0.0, 0.0]) if world else None),
        "body_lin_vel_w": bodies(lin_vel, np.zeros(3) if world else None),
        "body_ang_vel_w": bodies(ang_vel, np.zeros(3) if world else None),
    }
    np.savez(path, **{name: value for name, value in (content | changes).items() if value is not None})
    return path


def assert_is_motion(clip):
    pos, rot, lin_vel, ang_vel, joints, joint_vel = motion()
    for name, expected in {
        "root_pos": pos,
        "root_lin_vel": lin_vel,
        "root_ang_vel": ang_vel,
        "joint_pos": joints,
        "joint_vel": joint_vel,
    }.items():
        np.testing.assert_allclose(getattr(clip, name), expected, atol=1e-6, err_msg=name)
    np.testing.assert_allclose(np.abs((clip.root_rot * rot).sum(axis=1)), 1.0, atol=1e-6)


def test_tracking_file_is_split_and_world_is_dropped(tmp_path):
    (clip,) = read_motion(write_tracking_file(tmp_path / "walk.npz"), joint_names=["a", "b", "c"])
    assert clip.joint_names == JOINTS, "names in the file take precedence"
    assert clip.bodies.names == ("pelvis", "torso")
    assert_is_motion(clip)
    assert clip.notes == ()


def test_names_as_bytes_are_decoded(tmp_path):
    path = write_tracking_file(tmp_path / "walk.npz", joint_names=np.array(JOINTS, dtype="S"))
    assert read_motion(path)[0].joint_names == JOINTS


@pytest.mark.parametrize("names", [None, JOINTS])
def test_root_and_world_are_found_without_names(tmp_path, names):
    path = write_tracking_file(tmp_path / "walk.npz", joint_names=None, body_names=None)
    (clip,) = read_motion(path, robot_joints=names)
    assert clip.joint_names == (names or ("joint_0", "joint_1", "joint_2"))
    assert len(clip.bodies.names) == 2
    assert_is_motion(clip)


def test_joints_without_root_are_kept(tmp_path):
    _, _, _, _, joints, joint_vel = motion()
    path = write_tracking_file(tmp_path / "walk.npz", world=False, joint_pos=joints, joint_vel=joint_vel)
    assert_is_motion(read_motion(path)[0])


def test_qpos_and_qvel_are_split(tmp_path):
    pos, rot, lin_vel, ang_vel, joints, joint_vel = motion()
    qpos = np.concatenate([pos, rot, joints], axis=1)
    # As in MuJoCo, the angular velocity of the free joint is in the frame of the body.
    qvel = np.concatenate([lin_vel, rotations.rotate_inverse(rot, ang_vel), joint_vel], axis=1)
    np.savez(tmp_path / "walk.npz", qpos=qpos, qvel=qvel, fps=FPS, joint_names=np.array(JOINTS))
    (clip,) = read_motion(tmp_path / "walk.npz")
    assert clip.joint_names == JOINTS
    assert clip.bodies is None
    assert_is_motion(clip)
    np.savez(tmp_path / "bare.npz", qpos=qpos)
    (bare,) = read_motion(tmp_path / "bare.npz", fps=FPS)
    assert bare.joint_names == ("joint_0", "joint_1", "joint_2")
    assert bare.estimated == ("joint_vel", "root_lin_vel", "root_ang_vel")


def test_angular_velocities_in_body_frames_are_noticed(tmp_path):
    _, rot, _, ang_vel, _, _ = motion()
    local = bodies(rotations.rotate_inverse(rot, ang_vel), np.zeros(3))
    (clip,) = read_motion(write_tracking_file(tmp_path / "walk.npz", body_ang_vel_w=local))
    assert_is_motion(clip)
    np.testing.assert_allclose(clip.bodies.ang_vel[:, 1], ang_vel, atol=1e-6)
    (note,) = clip.notes
    assert "angular velocities are in the frame of each body" in note


@pytest.mark.parametrize("width", [5, 7])
def test_rejects_qpos_without_joints(tmp_path, width):
    np.savez(tmp_path / "bad.npz", qpos=np.zeros((4, width)), fps=FPS)
    with pytest.raises(MotionError, match=rf"bad\.npz: qpos has shape \(4, {width}\); .*root in front"):
        read_motion(tmp_path / "bad.npz")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_names_git_lfs_pointers(tmp_path, suffix):
    path = tmp_path / f"walk{suffix}"
    path.write_text(LFS_POINTER)
    for read in (lambda: read_motion(path), lambda: AMPLoader("cpu", 0.02, motion_files=path)):
        with pytest.raises(MotionError, match=r"walk\..*: the file is a Git LFS pointer, .*git lfs pull"):
            read()
