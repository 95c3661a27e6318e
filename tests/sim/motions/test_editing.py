"""Edits of clips and the defects that inspection finds, compared with MuJoCo and finite differences."""

from dataclasses import replace

import mujoco
import numpy as np
import pytest

from st_rl.cli import main
from st_rl.datasets.clip import MotionError
from st_rl.datasets.editing import blend_clips, change_speed, make_loop
from st_rl.datasets.formats import read_motion, write_motion
from st_rl.datasets.library import load_clips
from st_rl.datasets.processing import cut
from st_rl.sim.motions.clip_states import clip_to_qpos_qvel
from st_rl.sim.motions.ground import mirror_on_robot, put_on_ground
from st_rl.sim.motions.inspection import find_defects, find_jumps
from st_rl.sim.robots import Robot, robot_path
from st_rl.utils.tensors import rotations


@pytest.fixture(scope="module")
def robot():
    return Robot.from_mjcf(robot_path("humanoid"))


@pytest.fixture
def walk():
    return load_clips("walk_0.4")[0]


def moved(clip, z):
    return replace(clip, root_pos=clip.root_pos + np.array([0, 0, z]), feet=None)


def test_speed_two_halves_duration_and_doubles_velocities(walk):
    got = change_speed(walk, 2.0)
    assert got.fps == walk.fps
    assert got.duration == pytest.approx(walk.duration / 2)
    np.testing.assert_allclose(got.joint_pos, walk.joint_pos[::2], atol=1e-9)
    np.testing.assert_allclose(got.joint_vel, 2 * walk.joint_vel[::2], atol=1e-9)
    np.testing.assert_allclose(got.root_lin_vel, 2 * walk.root_lin_vel[::2], atol=1e-9)
    with pytest.raises(MotionError, match="above 0"):
        change_speed(walk, 0.0)


def test_loop_repeats_without_jump(walk):
    part = cut(walk, 0.1, 1.5)  # Not a multiple of the stride of 0.8 s.
    got = make_loop(part, 0.3)
    assert got.duration == pytest.approx(part.duration - 0.3)
    np.testing.assert_allclose(got.joint_pos[-1], got.joint_pos[0], atol=1e-9)
    np.testing.assert_allclose(got.joint_vel[-1], got.joint_vel[0], atol=1e-6)
    np.testing.assert_allclose(got.root_lin_vel[-1], got.root_lin_vel[0], atol=1e-6)
    inner = (got.joint_pos[2:] - got.joint_pos[:-2]) * got.fps / 2
    np.testing.assert_allclose(got.joint_vel[1:-1], inner, atol=1e-9)


def test_blend_continues_at_final_position_and_heading(walk):
    turn = np.array([np.cos(0.5), 0, 0, np.sin(0.5)])
    other = replace(walk, root_rot=rotations.multiply(turn, walk.root_rot), feet=None)
    other = replace(other, root_pos=rotations.rotate(turn, walk.root_pos) + np.array([3, 4, 0]))
    got = blend_clips(walk, other, 0.8)  # A stride of 0.8 s: both are in phase.
    assert got.duration == pytest.approx(2 * walk.duration - 0.8)
    np.testing.assert_allclose(got.root_rot[-1], walk.root_rot[-1], atol=1e-6)
    assert got.root_pos[-1, 0] == pytest.approx(0.4 * got.duration, abs=0.01)
    step = (got.root_pos[2:] - got.root_pos[:-2]) * got.fps / 2
    np.testing.assert_allclose(got.root_lin_vel[1:-1], step, atol=1e-9)
    with pytest.raises(MotionError, match="blend clips of the same robot"):
        blend_clips(walk, load_clips("trot_0.5")[0])


def test_mirror_twice_is_identity(robot, walk):
    twice = mirror_on_robot(robot, mirror_on_robot(robot, walk))
    for name in ("joint_pos", "joint_vel", "root_pos", "root_rot", "root_ang_vel"):
        np.testing.assert_allclose(getattr(twice, name), getattr(walk, name), atol=1e-12)


@pytest.mark.parametrize("is_smooth", [False, True])
def test_feet_touch_ground(robot, walk, is_smooth):
    got, data = put_on_ground(robot, moved(walk, -0.2), is_smooth), mujoco.MjData(robot.model)
    lowest = []
    for data.qpos[:] in clip_to_qpos_qvel(robot, got)[0]:
        mujoco.mj_kinematics(robot.model, data)
        boxes = [data.geom(f"{side}_foot") for side in ("left", "right")]
        lowest.append(min(b.xpos[2] - np.abs(b.xmat[6:]) @ [0.10, 0.045, 0.015] for b in boxes))
    assert min(lowest) == pytest.approx(0.0, abs=1e-9)
    assert max(lowest) < 1e-3


def test_finds_planted_defects(robot, walk):
    assert find_defects(robot, walk).slide < 0.02
    assert not find_jumps(walk)
    slide = replace(walk, root_pos=walk.root_pos + np.arange(walk.num_frames)[:, None] / walk.fps * [0.3, 0, 0])
    assert find_defects(robot, slide).slide == pytest.approx(0.3, abs=0.03)
    assert find_defects(robot, moved(walk, -0.1)).penetration == pytest.approx(0.1, abs=1e-3)
    angles = walk.joint_pos.copy()
    angles[30:35, 3] = 2.5
    found = find_defects(robot, replace(walk, joint_pos=angles))
    (violation,) = found.limits
    assert violation.joint == "left_knee_joint"
    assert violation.first_s == pytest.approx(0.6)
    assert [jump.frame for jump in found.jumps] == [30, 35]


def test_inspect_gives_command_that_repairs(capsys, tmp_path, monkeypatch, walk):
    monkeypatch.chdir(tmp_path)
    write_motion("low.npz", moved(walk, -0.1))
    assert main(["motion", "inspect", "low.npz"]) == 0
    command = next(line for line in capsys.readouterr().out.splitlines() if "usable after: " in line)
    assert main(command.split("usable after: st-rl ")[1].split()) == 0
    assert read_motion("low_edited.npz")[0].root_pos[0, 2] == pytest.approx(walk.root_pos[0, 2], abs=1e-3)
    capsys.readouterr()
    assert main(["motion", "inspect", "low_edited.npz"]) == 0
    assert "low_edited: usable\n" in capsys.readouterr().out
    assert main(["motion", "edit", "low.npz", "out.npz"]) == 2
    assert "nothing to do" in capsys.readouterr().err


def test_folder_with_bad_file_uses_the_good_ones(capsys, tmp_path, walk):
    write_motion(tmp_path / "good.npz", walk)
    (tmp_path / "bad.csv").write_text("1,2,3\n")
    assert main(["motion", "inspect", str(tmp_path)]) == 0
    assert "good: usable\n" in capsys.readouterr().out
    assert main(["motion", "inspect", str(tmp_path / "bad.csv")]) == 1
