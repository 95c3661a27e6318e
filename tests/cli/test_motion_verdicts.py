"""What `st-rl motion inspect` says about clips that no robot can follow."""

from dataclasses import replace

import numpy as np
import pytest

from st_rl.cli import main
from st_rl.datasets.formats import read_motion, write_motion
from st_rl.datasets.library import load_clips
from st_rl.datasets.processing import cut
from st_rl.sim.motions.inspection import find_jumps
from st_rl.utils.tensors import rotations


@pytest.fixture
def walk():
    return replace(load_clips("walk_0.4")[0], feet=None)


def inspect_lines(capsys, path, *options):
    assert main(["motion", "inspect", str(path), "--robot", "humanoid", *options]) == 0
    return capsys.readouterr().out.splitlines()


def turned(clip, angle):
    """The clip rolled about the x axis by an angle in rad."""
    roll = np.array([np.cos(0.5 * angle), np.sin(0.5 * angle), 0.0, 0.0])
    return replace(
        clip, root_rot=rotations.multiply(roll, clip.root_rot), root_pos=rotations.rotate(roll, clip.root_pos)
    )


@pytest.mark.parametrize(("angle", "words"), [(np.pi, "upside down"), (0.6 * np.pi, "not upright")])
def test_clip_that_is_not_upright_is_not_usable(capsys, tmp_path, walk, angle, words):
    write_motion(tmp_path / "clip.npz", turned(walk, angle))
    lines = inspect_lines(capsys, tmp_path / "clip.npz")
    assert lines[-1].startswith(f"clip: not usable: the root is {words} (cosine of its tilt {np.cos(angle):.2f})")
    assert "turn it upright" in lines[-1]
    assert not any("can follow all clips" in line for line in lines)


def test_clip_in_the_other_quaternion_order_names_it(capsys, tmp_path, walk):
    yaw = np.array([np.cos(1.3), 0.0, 0.0, np.sin(1.3)])
    root_pos, root_rot = rotations.rotate(yaw, walk.root_pos), rotations.multiply(yaw, walk.root_rot)
    write_motion(tmp_path / "clip.csv", replace(walk, root_pos=root_pos, root_rot=root_rot))
    lines = inspect_lines(capsys, tmp_path / "clip.csv", "--fps", "50", "--quat-order", "wxyz")
    assert lines[-1].endswith("use --quat-order xyzw")
    assert "upside down" in lines[-1]


def test_clip_in_the_ground_is_usable_after_a_command_that_raises_it(capsys, tmp_path, monkeypatch, walk):
    monkeypatch.chdir(tmp_path)
    write_motion("clip.npz", replace(walk, root_pos=walk.root_pos - [0, 0, 0.4]))
    lines = inspect_lines(capsys, "clip.npz")
    assert any("is 0.400 m below the ground" in line for line in lines)
    assert lines[-1].startswith("clip: usable after: st-rl motion edit clip.npz clip_edited.npz --ground constant")
    assert main(lines[-1].split("usable after: st-rl ")[1].split()) == 0
    np.testing.assert_allclose(read_motion("clip_edited.npz")[0].root_pos, walk.root_pos, atol=2e-3)


def test_clip_shorter_than_a_second_is_not_usable(capsys, tmp_path, walk):
    write_motion(tmp_path / "clip.npz", cut(walk, 0.0, 0.5))
    assert "clip: not usable: 0.50 s without a jump, needs 1 s" in inspect_lines(capsys, tmp_path / "clip.npz")[-1]


def test_clip_of_another_robot_is_not_usable(capsys, tmp_path):
    write_motion(tmp_path / "clip.npz", load_clips("trot_0.5")[0])
    lines = inspect_lines(capsys, tmp_path / "clip.npz")
    wanted = "it has 12 joints and lacks 21 of the 21 of humanoid.xml (left_hip_pitch_joint, ...); name its robot"
    assert lines[-1] == f"clip: not usable: {wanted} with --robot"


@pytest.mark.parametrize("suffix", ["npz", "csv"])
def test_numbers_that_are_missing_are_counted(capsys, tmp_path, walk, suffix):
    path = tmp_path / f"clip.{suffix}"
    write_motion(path, walk)
    if suffix == "npz":
        content = dict(np.load(path))
        content["dof_positions"][70:75, 3] = np.nan
        np.savez(path, **content)
    else:
        table = np.genfromtxt(path, delimiter=",")
        table[-51:-46, 12] = np.nan
        np.savetxt(path, table, delimiter=",")
    assert main(["motion", "inspect", str(path), "--robot", "humanoid", "--fps", "50"]) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert f"clip.{suffix}: joint_pos is not a number at frame 70 and 4 more of 121; repair these frames" in line


@pytest.mark.parametrize("fps", [30.0, 50.0, 120.0])
def test_finds_jumps_of_a_tenth_of_a_radian_in_slow_joints_only(fps):
    """0.15 rad are no jump where a joint moves that fast by itself."""
    from st_rl.datasets.editing import change_speed
    from st_rl.datasets.processing import resample

    walk = resample(load_clips("wave")[0], fps)
    assert not find_jumps(walk)
    assert not find_jumps(change_speed(resample(load_clips("walk_0.8")[0], fps), 1.5))
    for joint, size in ((0, 0.1), (13, -0.15), (18, 0.2)):
        angles = walk.joint_pos.copy()
        angles[40:, joint] += size
        (jump,) = find_jumps(replace(walk, joint_pos=angles))
        assert (jump.frame, jump.name) == (40, walk.joint_names[joint])
        assert jump.size == pytest.approx(abs(size), abs=0.05)
    position = walk.root_pos.copy()
    position[40] += [0.05, 0.0, 0.0]
    glitch = find_jumps(replace(walk, root_pos=position))
    assert [(jump.frame, jump.name) for jump in glitch] == [(40, "root position"), (41, "root position")]
