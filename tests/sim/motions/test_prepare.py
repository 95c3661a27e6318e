"""Clips that a task can use, and messages about those that it cannot."""

from dataclasses import replace

import numpy as np
import pytest

from st_rl.datasets.clip import MotionError
from st_rl.datasets.formats import write_motion
from st_rl.datasets.library import load_clips
from st_rl.datasets.processing import cut
from st_rl.sim.motions.ground import lowest_heights, measure_ground_heights
from st_rl.sim.motions.prepare import prepare_clip
from st_rl.sim.robots import Robot, robot_path
from st_rl.sim.tasks import make_task
from st_rl.utils.tensors import rotations


@pytest.fixture(scope="module")
def robot():
    return Robot.from_mjcf(robot_path("humanoid"))


@pytest.fixture
def squat():
    (clip,) = load_clips("squat")
    return replace(clip, feet=None, bodies=None)


def raised(clip, height):
    return replace(clip, root_pos=clip.root_pos + np.array([0.0, 0.0, height]))


def test_clip_has_joints_and_frame_rate_of_the_robot(robot, squat):
    clip = prepare_clip(robot, replace(squat, joint_names=squat.joint_names), 25.0)
    assert clip.joint_names == robot.joint_names
    assert clip.fps == 25.0


def test_rejects_clips_that_cannot_be_followed(robot, squat):
    over = rotations.multiply(squat.root_rot, np.tile([0.0, 1.0, 0.0, 0.0], (squat.num_frames, 1)))
    cases = {
        "upside down": replace(squat, root_rot=over),
        "lasts only 0.8 s": cut(squat, 0.0, 0.8),
        "m below the ground; put it on the ground: st-rl motion edit CLIP OUT --ground constant": raised(squat, -0.5),
        "m above the ground": raised(squat, 0.4),
        r"knee_joint moves from .* rad, far out of its range .* in radians": replace(
            squat, joint_pos=np.rad2deg(squat.joint_pos)
        ),
        "joint_names lack": replace(squat, joint_names=tuple(f"x{name}" for name in squat.joint_names)),
    }
    for message, clip in cases.items():
        with pytest.raises(MotionError, match=message):
            prepare_clip(robot, clip, 50.0)


def test_short_cycle_and_clip_of_another_robot(robot):
    quadruped = Robot.from_mjcf(robot_path("quadruped"))
    (trot,) = load_clips("trot_0.5")
    assert prepare_clip(quadruped, trot, 50.0).duration < 1.0
    with pytest.raises(MotionError, match=r"joint_names lack .* and 18 more; .*use a clip of this robot"):
        prepare_clip(robot, trot, 50.0)


def test_warns_of_a_clip_in_the_ground(robot, squat, caplog):
    prepare_clip(robot, raised(squat, -0.07), 50.0)
    assert "up to 0.07" in caplog.text
    assert "--ground smooth" in caplog.text


def test_lowest_heights_equal_those_of_mujoco(robot):
    from st_rl.sim.motions.clip_states import clip_to_qpos_qvel

    (kick,) = load_clips("kick")
    heights = measure_ground_heights(robot, kick)
    np.testing.assert_allclose(lowest_heights(robot, clip_to_qpos_qvel(robot, kick)[0]), heights.lowest, atol=1e-9)


def test_bad_files_of_a_folder_are_skipped(squat, tmp_path, caplog):
    write_motion(tmp_path / "good.npz", squat)
    write_motion(tmp_path / "deep.npz", raised(squat, -1.0))
    rows = "\n".join(",".join(["0"] * 28) for _ in range(60))
    (tmp_path / "nan.csv").write_text(rows.replace("0", "nan", 1))
    (tmp_path / "other.csv").write_text("\n".join(",".join(["0"] * 20) for _ in range(60)))
    task = make_task("humanoid-track", 2, motions=(str(tmp_path),))
    assert [clip.name for clip in task.reference.clips] == ["good"]
    assert caplog.text.count("skipped") == 3
    for name in ("deep.npz", "nan.csv", "other.csv"):
        assert name in caplog.text
        with pytest.raises(MotionError, match=name):
            make_task("humanoid-track", 2, motions=(str(tmp_path / name),))
    (tmp_path / "good.npz").unlink()
    with pytest.raises(MotionError):
        make_task("humanoid-track", 2, motions=(str(tmp_path),))
