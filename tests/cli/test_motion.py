"""`st-rl motion`: inspect, convert, view and make."""

import importlib.util
import subprocess
import sys

import numpy as np
import pytest

from st_rl.cli import main
from st_rl.datasets.formats import read_motion, write_motion
from st_rl.datasets.library import CLIPS, load_clips
from st_rl.sim.robots import robot_path
from st_rl.utils.tensors import rotations


def test_help_lists_the_actions(capsys):
    assert main(["motion", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(action in shown for action in ("inspect", "convert", "view", "make"))
    assert main(["motion", "inspekt"]) == 2
    assert "did you mean 'inspect'" in capsys.readouterr().err


def test_inspect_shows_figures_and_remarks(capsys, tmp_path):
    assert main(["motion", "inspect", "trot"]) == 0
    shown = capsys.readouterr().out
    assert "trot_0.5" in shown
    assert "FR_hip_joint" in shown
    assert "can follow all clips" in shown
    (clip,) = load_clips(["trot_0.5"])
    write_motion(tmp_path / "bare.csv", clip)
    assert main(["motion", "inspect", str(tmp_path / "bare.csv"), "--fps", "50"]) == 0
    assert "estimated: joint_vel, root_lin_vel, root_ang_vel" in " ".join(capsys.readouterr().out.split())


def write_biped(path):
    """An MJCF of a base with two hinges and two feet, without actuators."""
    leg = (
        '<body pos="0 {y} -0.1"><joint name="{side}_hip" type="hinge" axis="0 1 0" range="-30 30"/>'
        '<geom name="{side}_foot" type="sphere" size="0.05" pos="0 0 -0.4" mass="1"/></body>'
    )
    legs = "".join(leg.format(y=y, side=side) for side, y in (("left", 0.1), ("right", -0.1)))
    path.write_text(
        '<mujoco><worldbody><body name="base" pos="0 0 0.55"><freejoint/><geom type="box" size="0.1 0.1 0.1" mass="5"/>'
        f"{legs}</body></worldbody></mujoco>"
    )
    return str(path)


def write_biped_clip(path, fps=50.0, velocity_factor=1.0, joints=("left_hip", "right_hip", "tail"), **changes):
    time = np.arange(60) / fps
    angles = 0.3 * np.sin(6.0 * time[:, None] + np.arange(len(joints)))
    pos = np.stack([0.4 * time, 0.0 * time, 0.55 + 0.01 * np.sin(12.0 * time)], axis=1)
    content = {
        "fps": fps,
        "joint_names": np.array(joints),
        "joint_pos": angles,
        "joint_vel": velocity_factor * np.gradient(angles, 1.0 / fps, axis=0),
        "body_pos_w": pos[:, None],
        "body_quat_w": np.tile([1.0, 0.0, 0.0, 0.0], (60, 1, 1)),
        "body_lin_vel_w": velocity_factor * np.gradient(pos, 1.0 / fps, axis=0)[:, None],
    }
    np.savez(path, **(content | changes))
    return str(path)


def inspect_text(capsys, *arguments):
    assert main(["motion", "inspect", *arguments]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_inspect_accepts_a_robot_without_actuators_and_continues_after_foreign_joints(capsys, tmp_path):
    robot, clip = write_biped(tmp_path / "biped.xml"), write_biped_clip(tmp_path / "walk.npz", velocity_factor=0.5)
    shown = inspect_text(capsys, clip, "--robot", robot)
    assert "walk: joints that the robot does not have: tail" in shown
    assert "positions move 2.00 times as fast as joint_vel" in shown
    clip = write_biped_clip(tmp_path / "kick.npz", joints=("left_hip", "arm"), joint_pos=np.full((60, 2), 0.7))
    shown = inspect_text(capsys, clip, "--robot", robot)
    assert "kick: missing joints of the robot: right_hip" in shown
    assert "kick: joints that the robot does not have: arm" in shown
    assert "kick: left_hip leaves its range by 0.176 rad" in shown
    assert main(["motion", "convert", clip, str(tmp_path / "out.npz"), "--robot", robot, "--reorder"]) == 1


def test_inspect_compares_stored_velocities_with_finite_differences(capsys, tmp_path):
    robot = write_biped(tmp_path / "biped.xml")
    joints = ("left_hip", "right_hip")
    fitting = write_biped_clip(tmp_path / "a.npz", joints=joints)
    assert "can follow all clips" not in inspect_text(capsys, fitting, "--robot", robot)  # estimated: root_ang_vel
    slow = write_biped_clip(tmp_path / "b.npz", joints=joints, fps=50.0, velocity_factor=0.6)
    shown = inspect_text(capsys, slow, "--robot", robot)
    assert "b: positions move 1.67 times as fast as joint_vel: wrong fps? It fits 30 frames per second" in shown
    assert "b: positions move 1.67 times as fast as root_lin_vel" in shown
    still = write_biped_clip(tmp_path / "c.npz", joints=joints, joint_vel=np.zeros((60, 2)))
    assert "c: joint_vel is zero, but the positions change" in inspect_text(capsys, still, "--robot", robot)
    noise = np.random.default_rng(0).normal(size=(60, 2))
    other = write_biped_clip(tmp_path / "d.npz", joints=joints, joint_vel=noise)
    assert "d: joint_vel does not agree with the finite differences" in inspect_text(capsys, other, "--robot", robot)
    assert "times as fast" not in inspect_text(capsys, fitting, "--robot", robot)


def test_inspect_reports_the_quaternion_order(capsys, tmp_path):
    (clip,) = load_clips(["trot_0.5"])
    rows = np.concatenate([clip.root_pos, clip.root_rot, clip.joint_pos], axis=1)
    path = tmp_path / "first.csv"
    path.write_text("\n".join(",".join(map(str, row)) for row in rows))
    shown = inspect_text(capsys, str(path))
    assert "12 - - wxyz" in shown
    assert "first: 30 frames per second are assumed" in shown
    assert "first: quaternions are read as w, x, y, z, in which the root is upright" in shown
    shown = inspect_text(capsys, str(path), "--quat-order", "xyzw", "--fps", "50")
    assert "12 - - xyzw" in shown
    assert "first: the root is not upright" in shown
    assert "assumed" not in shown


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_inspect_finds_quaternion_order_from_sliding_feet(capsys, tmp_path, direction):
    # Both orders are upright: a robot that faces -x, and one that walks backward along x.
    (clip,) = load_clips(["walk_0.4"])
    columns, signs = [0, 1, 2, 3], np.array([-1.0, -1.0, 1.0])
    rot, pos = rotations.multiply(np.array([0.0, 0.0, 0.0, 1.0]), clip.root_rot), clip.root_pos * signs
    joints = clip.joint_pos
    if direction == "backward":
        columns, rot, pos, joints = rotations.WXYZ_TO_XYZW, clip.root_rot[::-1], clip.root_pos[::-1], joints[::-1]
    rows = np.concatenate([pos, rot[:, columns], joints], axis=1)
    (tmp_path / "walk.csv").write_text("\n".join(",".join(map(str, row)) for row in rows))
    shown = inspect_text(capsys, str(tmp_path / "walk.csv"), "--robot", "humanoid", "--fps", "50")
    assert "walk: quaternions are read as x, y, z, w, and the root moves backward" in shown
    assert ("use --quat-order wxyz" in shown) == (direction == "forward")
    shown = inspect_text(capsys, str(tmp_path / "walk.csv"), "--fps", "50", "--quat-order", "wxyz")
    assert ("use --quat-order xyzw" in shown) == (direction == "backward")


def test_inspect_reports_a_bad_file_in_one_line(capsys, tmp_path):
    (tmp_path / "bad.csv").write_text("1,2,3\n")
    assert main(["motion", "inspect", str(tmp_path / "bad.csv")]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("st-rl: ")
    assert "bad.csv: the table has shape (1, 3)" in shown
    assert shown.count("\n") == 1


def test_convert_changes_format_rate_side_and_length(capsys, tmp_path):
    target = tmp_path / "pace.json"
    command = ["motion", "convert", "pace_0.5", str(target), "--output-fps", "100", "--mirror", "--end", "0.5"]
    assert main([*command, "--weight", "3"]) == 0
    assert "pace_0.5_mirrored (51 frames, 100 fps)" in capsys.readouterr().out
    (got,) = read_motion(target)
    (clip,) = load_clips(["pace_0.5"])
    assert got.weight == 3.0
    assert got.fps == pytest.approx(100.0)
    np.testing.assert_allclose(got.joint_pos[0, 3:6], clip.joint_pos[0, 0:3] * [-1, 1, 1], atol=1e-6)


def test_convert_writes_a_folder_with_all_bodies_for_mjlab(capsys, tmp_path):
    assert main(["motion", "convert", "trot", str(tmp_path / "all"), "--format", "mjlab"]) == 0
    files = sorted((tmp_path / "all").iterdir())
    assert [file.name for file in files] == [f"trot_{speed}.npz" for speed in (0.3, 0.5, 0.7, 0.9)]
    with np.load(files[0]) as file:
        # mjlab plays a frame in each control step of 0.02 s, whatever the file says.
        assert file["fps"] == 50.0
        assert file["body_pos_w"].shape == (len(file["joint_pos"]), 13, 3)
    slow = tmp_path / "slow"
    assert main(["motion", "convert", "trot", str(slow), "--format", "mjlab", "--output-fps", "25"]) == 0
    with np.load(slow / files[0].name) as file:
        assert file["fps"] == 25.0
    assert main(["motion", "convert", "trot", str(slow), "--format", "mjlab", "--output-fps", "0"]) != 0
    assert "give the frames per second, a positive number" in capsys.readouterr().err
    assert main(["motion", "convert", "trot", str(tmp_path / "none")]) == 2
    assert "needs --format, one of" in capsys.readouterr().err


def test_make_reproduces_the_built_in_clips(capsys, tmp_path):
    assert main(["motion", "make", "bound", "--speeds", "0.5", "--output", str(tmp_path)]) == 0
    with np.load(tmp_path / "bound_0.5.npz") as made, np.load(CLIPS / "bound_0.5.npz") as kept:
        assert set(made.files) == set(kept.files)
        np.testing.assert_allclose(made["dof_positions"], kept["dof_positions"], atol=1e-6)
    assert main(["motion", "make", "bound", "--format", "bvh"]) == 2
    assert main(["motion", "make", "no-such-run", "--output", str(tmp_path)]) == 2


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            ["make", "trott"],
            "'trott' is not a motion (trot, pace, bound, all, walk, squat, wave, kick, turn), nor a run: no run",
        ),
        (["make", "kick", "--robot", "quadruped"], "is not a biped"),
        (["make", "kick", "--fps", "0"], "fps is 0.0; a motion needs more than 0"),
        (["make", "trot", "--speeds"], "--speeds is empty"),
        (["make", "trot", "--strides", "0"], "strides is 0; a gait needs more than 0"),
        (["view", "trot_0.5", "--no-plot", "--no-video"], "--no-plot and --no-video leave nothing to do"),
        (["make", "trot", "--fps", "0"], "fps is 0.0; a gait needs more than 0"),
        (["convert", "trot_0.5", "trot.json", "--weight", "-1"], "--weight must not be negative, got -1.0"),
        (
            ["convert", "trot_0.5", "trot.bvh"],
            "trot.bvh: the suffix '.bvh' belongs to no format; use one of: amp .json",
        ),
    ],
)
def test_invalid_make_and_convert_report_an_error_and_write_nothing(capsys, tmp_path, monkeypatch, command, message):
    monkeypatch.chdir(tmp_path)
    assert main(["motion", *command]) in (1, 2)
    assert message in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.*"))


def test_make_walk_for_described_robot(tmp_path):
    (tmp_path / "robot.yaml").write_text(f"mjcf: {robot_path('humanoid')}\n")
    arguments = ["--robot", str(tmp_path / "robot.yaml"), "--speeds", "0.4", "--output", str(tmp_path)]
    assert main(["motion", "make", "walk", *arguments]) == 0
    with np.load(tmp_path / "walk_0.4.npz") as made, np.load(CLIPS / "humanoid" / "walk_0.4.npz") as kept:
        np.testing.assert_allclose(made["dof_positions"], kept["dof_positions"], atol=1e-6)


def test_robot_is_chosen_by_the_joints_of_the_clip(capsys):
    assert main(["motion", "inspect", "walk_0.4", "trot_0.5"]) == 0
    assert "humanoid, quadruped: can follow all clips" in capsys.readouterr().out


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="needs matplotlib")
@pytest.mark.parametrize("clip", ["trot_0.9", "walk_0.8"])
def test_view_plots_a_clip(capsys, tmp_path, clip):
    assert main(["motion", "view", clip, "--no-video", "--output", str(tmp_path)]) == 0
    assert (tmp_path / f"{clip}.png").stat().st_size > 10_000


def test_view_renders_a_clip(capsys, tmp_path):
    pytest.importorskip("imageio_ffmpeg")
    from st_rl.sim.evaluation.rendering import RenderingError, prepare_rendering

    try:
        prepare_rendering()
    except RenderingError as error:
        pytest.skip(str(error))
    command = ["motion", "view", "trot_0.9", "--no-plot", "--repeats", "1", "--width", "160", "--height", "96"]
    assert main([*command, "--output", str(tmp_path)]) == 0
    assert (tmp_path / "trot_0.9.mp4").stat().st_size > 1_000


def test_motions_can_be_imported_before_the_environments():
    subprocess.run([sys.executable, "-c", "import st_rl.sim.motions.clips"], check=True)
