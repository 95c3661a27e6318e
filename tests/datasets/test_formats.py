"""Every motion format round-trips; errors name the file, the field and the fix."""

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest

from st_rl.datasets.clip import Bodies, MotionError
from st_rl.datasets.formats import read_motion, write_motion
from st_rl.datasets.formats.amp import QUADRUPED_JOINTS, amp_dictionary, column_names
from st_rl.datasets.processing import reorder_joints
from tests.datasets.clips import FEET, JOINTS, random_quaternions, smooth_rotations, some_clip

ARRAYS = ("joint_pos", "joint_vel", "root_pos", "root_rot", "root_lin_vel", "root_ang_vel")


def with_some_bodies(clip):
    rng = np.random.default_rng(5)
    count, frames = 3, clip.num_frames
    pos, rot = rng.normal(size=(frames, count, 3)), random_quaternions(rng, 1, count).repeat(frames, axis=0)
    lin_vel, ang_vel = rng.normal(size=(2, frames, count, 3))
    pos[:, 0], rot[:, 0], lin_vel[:, 0], ang_vel[:, 0] = (
        clip.root_pos,
        clip.root_rot,
        clip.root_lin_vel,
        clip.root_ang_vel,
    )
    return replace(clip, bodies=Bodies(("trunk", "left", "right"), pos, rot, lin_vel, ang_vel))


def assert_same_rotations(a, b, atol):
    np.testing.assert_allclose(np.abs((a * b).sum(axis=-1)), 1.0, atol=atol)


@pytest.mark.parametrize(
    ("file", "format", "kept"),
    [
        ("clip.json", "amp", {"velocities", "names", "feet", "weight"}),
        ("clip.txt", None, {"velocities", "names", "feet", "weight"}),
        ("clip.pkl", "amp", {"velocities", "names", "feet", "weight"}),
        ("clip.npz", "isaaclab", {"velocities", "names", "feet", "weight", "bodies"}),
        ("clip.npz", "mjlab", {"velocities", "feet", "weight", "bodies"}),
        ("clip.pkl", "gmr", set()),
        ("clip.csv", "csv", set()),
    ],
)
def test_write_then_read_returns_same_clip(tmp_path, file, format, kept):
    clip = with_some_bodies(some_clip(fps=30.0))
    write_motion(tmp_path / file, clip, format)
    names = {} if "names" in kept else {"joint_names": JOINTS}
    (read,) = read_motion(tmp_path / file, **names)
    assert read.joint_names == JOINTS
    assert read.fps == pytest.approx(30.0)
    assert read.weight == (2.5 if "weight" in kept else 1.0)
    assert read.source == str(tmp_path / file)
    atol = 1e-6
    np.testing.assert_allclose(read.joint_pos, clip.joint_pos, atol=atol)
    np.testing.assert_allclose(read.root_pos, clip.root_pos, atol=atol)
    assert_same_rotations(read.root_rot, clip.root_rot, atol)
    if "velocities" in kept:
        assert read.estimated == ()
        for name in ("joint_vel", "root_lin_vel", "root_ang_vel"):
            np.testing.assert_allclose(getattr(read, name), getattr(clip, name), atol=atol, err_msg=name)
    else:
        assert read.estimated == ("joint_vel", "root_lin_vel", "root_ang_vel")
        # Never zero: what a difference of the positions says.
        middle = (clip.joint_pos[2:] - clip.joint_pos[:-2]) * 15.0
        np.testing.assert_allclose(read.joint_vel[1:-1], middle, atol=1e-4)
    if "feet" in kept:
        assert read.feet.names == FEET
        np.testing.assert_allclose(read.feet.pos, clip.feet.pos, atol=atol)
        np.testing.assert_allclose(read.feet.vel, clip.feet.vel, atol=2e-6)
    if "bodies" in kept:
        for name in ("pos", "lin_vel", "ang_vel"):
            np.testing.assert_allclose(getattr(read.bodies, name), getattr(clip.bodies, name), atol=atol)
        assert_same_rotations(read.bodies.rot, clip.bodies.rot, atol)


def test_files_hold_the_keys_that_their_readers_expect(tmp_path):
    clip = with_some_bodies(some_clip())
    write_motion(tmp_path / "a.npz", clip, "isaaclab")
    with np.load(tmp_path / "a.npz", allow_pickle=False) as file:
        assert file["fps"].shape == ()
        assert file["dof_names"].tolist() == list(JOINTS)
        assert file["body_names"].tolist() == ["trunk", "left", "right"]
        assert file["dof_positions"].shape == file["dof_velocities"].shape == (12, 5)
        assert file["body_rotations"].shape == (12, 3, 4)
        np.testing.assert_allclose(file["body_rotations"][:, 0], clip.root_rot, atol=1e-6)  # w, x, y, z
        assert file["body_positions"].shape == file["body_linear_velocities"].shape == (12, 3, 3)
        assert file["body_angular_velocities"].shape == (12, 3, 3)
    write_motion(tmp_path / "m.npz", clip, "mjlab")
    with np.load(tmp_path / "m.npz", allow_pickle=False) as file:
        assert file["fps"].shape == (1,)
        keys = {"joint_pos", "joint_vel", "body_pos_w", "body_quat_w", "body_lin_vel_w", "body_ang_vel_w"}
        assert keys <= set(file.files)
    write_motion(tmp_path / "g.pkl", clip, "gmr")
    content = pickle.loads((tmp_path / "g.pkl").read_bytes())
    np.testing.assert_allclose(content["root_rot"], clip.root_rot[:, [1, 2, 3, 0]])  # x, y, z, w
    assert content["dof_pos"].shape == (12, 5)
    write_motion(tmp_path / "c.csv", clip)
    row = [float(cell) for cell in (tmp_path / "c.csv").read_text().splitlines()[3].split(",")]
    expected = np.concatenate([clip.root_pos[3], clip.root_rot[3, [1, 2, 3, 0]], clip.joint_pos[3]])
    np.testing.assert_allclose(row, expected, atol=1e-7)


def test_amp_velocities_and_feet_are_in_the_frame_of_the_base(tmp_path):
    # Turned a quarter to the left and driving to the left of the world: straight ahead for the robot.
    half = np.sqrt(0.5)
    rot = np.tile([half, 0.0, 0.0, half], (5, 1))
    clip = some_clip(num_frames=5)
    still = {"root_rot": rot, "root_lin_vel": np.tile([0.0, 2.0, 0.0], (5, 1)), "root_ang_vel": np.zeros((5, 3))}
    feet = replace(clip.feet, pos=clip.root_pos[:, None] + np.array([[0.0, 0.3, -0.2]] * 2), vel=np.zeros((5, 2, 3)))
    content = amp_dictionary(replace(clip, **still, feet=feet))
    column = {name: np.array(content["Frames"])[:, i] for i, name in enumerate(content["Fields"])}
    np.testing.assert_allclose(column["root_lin_vel_x"], 2.0)
    np.testing.assert_allclose(column["root_lin_vel_y"], 0.0, atol=1e-12)
    np.testing.assert_allclose(column["foot_pos_FL_foot_x"], 0.3)
    np.testing.assert_allclose(column["foot_pos_FL_foot_z"], -0.2)
    # A foot that stands still moves back under the robot.
    np.testing.assert_allclose(column["foot_vel_FL_foot_x"], -2.0)


def test_amp_pickles_hold_several_clips_and_other_files_one(tmp_path):
    clips = [some_clip(name="one"), some_clip(name="two", seed=1)]
    write_motion(tmp_path / "both.pkl", clips, "amp")
    assert [clip.name for clip in read_motion(tmp_path / "both.pkl")] == ["one", "two"]
    with pytest.raises(MotionError, match=r"both.npz: the file cannot hold 2 clips; write each"):
        write_motion(tmp_path / "both.npz", clips)
    with pytest.raises(MotionError, match=r"the suffix '.npz' does not go with 'csv'; use one of: amp"):
        write_motion(tmp_path / "both.npz", clips[0], "csv")
    with pytest.raises(MotionError, match=r"the suffix '.bvh' belongs to no format; use one of: amp"):
        write_motion(tmp_path / "both.bvh", clips[0])


def test_amp_without_names_is_the_layout_of_a_quadruped(tmp_path):
    rng = np.random.default_rng(3)
    frames = rng.normal(size=(6, 61))
    frames[:, 3:7] = random_quaternions(rng, 6)
    path = tmp_path / "dog.txt"
    path.write_text(json.dumps({"FrameDuration": 0.02, "MotionWeight": 0.5, "Frames": frames.tolist()}))
    (clip,) = read_motion(path)
    assert clip.joint_names == QUADRUPED_JOINTS
    assert clip.joint_names[0] == "FR_hip_joint"
    assert clip.fps == pytest.approx(50.0)
    np.testing.assert_allclose(clip.joint_pos, frames[:, 7:19])
    np.testing.assert_allclose(clip.joint_vel, frames[:, 37:49])
    assert_same_rotations(clip.root_rot, frames[:, [6, 3, 4, 5]], 1e-12)
    assert read_motion(path, fps=25.0)[0].fps == 25.0
    (named,) = read_motion(path, joint_names=[f"j{i}" for i in range(12)])
    assert named.joint_names[3] == "j3"


def test_robot_joint_order_applies_only_to_unnamed_formats(tmp_path):
    # A robot with its left legs first, as most do: the legs of AMP files stay where that layout has them.
    robot = tuple(f"{leg}_{joint}_joint" for leg in ("FL", "FR", "RL", "RR") for joint in ("hip", "thigh", "calf"))
    frames = np.tile(np.arange(61.0), (3, 1))
    frames[:, 3:7] = [0.0, 0.0, 0.0, 1.0]
    (tmp_path / "dog.json").write_text(json.dumps({"FrameDuration": 0.02, "Frames": frames.tolist()}))
    (clip,) = read_motion(tmp_path / "dog.json", robot_joints=robot)
    assert clip.joint_names == QUADRUPED_JOINTS
    assert reorder_joints(clip, robot).joint_pos[0].tolist() == [10, 11, 12, 7, 8, 9, 16, 17, 18, 13, 14, 15]

    (tmp_path / "dog.csv").write_text("\n".join(",".join(map(str, row[:19])) for row in frames))
    (clip,) = read_motion(tmp_path / "dog.csv", robot_joints=robot)
    assert clip.joint_names == robot
    (clip,) = read_motion(tmp_path / "dog.csv", robot_joints=robot, joint_names=QUADRUPED_JOINTS)
    assert clip.joint_names == QUADRUPED_JOINTS


def test_csv_with_byte_order_mark_keeps_all_frames(tmp_path):
    row = "0,0,0.3,0,0,0,1,0.1,0.2\r\n"
    (tmp_path / "sheet.csv").write_bytes(b"\xef\xbb\xbf" + 4 * row.encode())
    (clip,) = read_motion(tmp_path / "sheet.csv")
    assert clip.num_frames == 4
    assert clip.joint_names == ("joint_0", "joint_1")


def test_warns_that_a_table_does_not_store_its_frame_rate(tmp_path, caplog):
    write_motion(tmp_path / "slow.csv", some_clip(fps=50.0))
    assert "does not store its frame rate of 50 frames per second: read it with fps=50" in caplog.text


def test_csv_header_names_columns_and_time(tmp_path):
    clip = some_clip(num_frames=4)
    write_motion(tmp_path / "plain.csv", clip)
    lines = (tmp_path / "plain.csv").read_text().splitlines()
    header = ["time", "x", "y", "z", "qx", "qy", "qz", "qw", *JOINTS]
    rows = [f"{0.01 * i},{line}" for i, line in enumerate(lines)]
    (tmp_path / "named.csv").write_text("\n".join([",".join(header), *rows]))
    (named,) = read_motion(tmp_path / "named.csv")
    assert named.joint_names == JOINTS
    assert named.fps == pytest.approx(100.0)
    assert read_motion(tmp_path / "plain.csv")[0].fps == 30.0
    assert read_motion(tmp_path / "plain.csv", fps=60.0)[0].fps == 60.0


def npz(tmp_path, **changes):
    """An Isaac Lab file with some arrays replaced, or left out where None."""
    write_motion(tmp_path / "clip.npz", some_clip(num_frames=4), "isaaclab")
    with np.load(tmp_path / "clip.npz") as file:
        content = {name: file[name] for name in file.files}
    content = {name: value for name, value in (content | changes).items() if value is not None}
    np.savez(tmp_path / "bad.npz", **content)
    return tmp_path / "bad.npz"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dof_positions": np.zeros((4, 7))}, r"joint_pos is 7 wide, but there are 5 joints"),
        ({"dof_positions": np.full((4, 5), np.nan)}, r"joint_pos is not a number at frame 0"),
        ({"dof_positions": np.zeros((1, 5))}, r"joint_pos .*a clip needs two frames"),
        ({"dof_positions": None}, r"joint positions are missing \(found: .*store them as dof_positions or joint_pos"),
        ({"body_rotations": None}, r"body_rotations is missing"),
        ({"body_positions": np.zeros((4, 3))}, r"body_positions has shape \(4, 3\)"),
        ({"time": np.array([0.0, 0.1, 0.05, 0.2])}, r"time goes from 0.1 to 0.05 s at frame 2"),
        ({"fps": None}, r"fps is missing; say how many"),
        ({"fps": np.array(-5.0)}, r"fps is -5"),
        ({"fps": np.array([])}, r"fps is array.*; give a number"),
        ({"weight": np.array("much")}, r"weight is array.*; give a number"),
        ({"time": np.arange(3.0)}, r"time has shape \(3,\), expected \(4,\)"),
        ({"dof_positions": np.array(1.0)}, r"dof_positions has shape \(\); store it as \(frames, joints\)"),
        ({"body_positions": np.zeros((4, 0, 3))}, r"body_positions has shape .* \(frames, bodies, 3\), root first"),
        ({"body_linear_velocities": np.zeros(4)}, r"body_linear_velocities has shape \(4,\)"),
        ({"dof_names": np.array(["a", {"b": 1}], dtype=object)}, r"the file cannot be read .*store plain arrays"),
    ],
)
def test_rejects_invalid_npz(tmp_path, changes, message):
    with pytest.raises(MotionError, match=r"bad\.npz: " + message):
        read_motion(npz(tmp_path, **changes))


ROOTED = [[0.0] * 6 + [1.0, 0.1, 0.2]] * 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"Frames": [[0.0] * 61]}, r"Frames have shape \(1, 61\); a clip needs two frames"),
        ({"Frames": [[0.0] * 61, [0.0] * 60]}, "Frames is not an array of numbers"),
        ({"Frames": [[0.0] * 61, [float("nan")] * 61]}, "Frames is not a number at frame 1"),
        ({"Frames": [[0.0] * 50] * 3}, r"Frames are 50 wide and have no names.*add Fields"),
        ({"Frames": [[0.0] * 3] * 3, "Fields": ["a", "b"]}, "Fields name 2 columns, the frames are 3 wide"),
        ({"Frames": [[0.0] * 2] * 3, "Fields": ["a", "a"]}, "Fields repeat a"),
        ({"Frames": [[0.0] * 2] * 3, "Fields": ["joint_pos_a", "x"]}, "Fields lack root_pos; name its columns"),
        ({"FrameDuration": 0.0}, "FrameDuration is 0.0 s, so time does not increase"),
        ({"FrameDuration": "soon"}, "FrameDuration is 'soon'; give a number"),
        ({"FrameDuration": None}, "FrameDuration is None; give a number"),
        ({"MotionWeight": -1}, "MotionWeight is -1"),
        ({"Fields": 61}, "Fields is 61; list the names of all columns"),
        ({"Frames": [[0.0] * 61] * 3}, "root rotation is zero at frame 0; write unit quaternions"),
        (
            {"Frames": ROOTED, "Fields": [*column_names(["a"], [])[:8], "foot_pos_FR_x"]},
            "Fields lack x, y or z of FR; name foot_pos_FOOT_x",
        ),
    ],
)
def test_rejects_invalid_amp_file(tmp_path, changes, message):
    content = {"FrameDuration": 0.02, "Frames": [[0.0] * 6 + [1.0] + [0.0] * 54] * 3} | changes
    (tmp_path / "bad.json").write_text(json.dumps(content))
    with pytest.raises(MotionError, match=r"bad\.json: " + message):
        read_motion(tmp_path / "bad.json")


class Malicious:
    def __reduce__(self):
        return (exec, ("raise SystemExit('ran')",))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"dof_pos": Malicious()}, r"the pickle is refused .*builtins\.exec.*; save it again as a dictionary of numpy"),
        (
            {"dof_pos": np.zeros((3, 2)), "root_pos": np.zeros((3, 3))},
            r"root_rot is missing \(found: dof_pos, root_pos",
        ),
        (
            {"dof_pos": np.zeros((3, 2)), "root_pos": np.zeros((3, 3)), "root_rot": np.zeros((3, 4))},
            "fps is missing",
        ),
        (
            {"dof_pos": np.zeros((3, 2)), "root_pos": np.zeros((3, 3)), "root_rot": np.zeros(3), "fps": 30},
            r"root_rot has shape \(3,\)",
        ),
        (
            {"dof_pos": [[0.0], [0.0, 1.0]], "root_pos": np.zeros((2, 3)), "root_rot": np.ones((2, 4)), "fps": 30},
            r"dof_pos is not an array of numbers",
        ),
        (
            {"dof_pos": np.ones((2, 1)), "root_pos": np.zeros((2, 3)), "root_rot": np.ones((2, 4)), "fps": "30 Hz"},
            r"fps is '30 Hz'; give a number",
        ),
        ([1, 2], "the pickle holds no trajectories"),
        ({"walk": {"Frames": [[0.0]]}}, "FrameDuration is missing"),
    ],
)
def test_rejects_unsafe_pickle_without_executing_it(tmp_path, content, message):
    (tmp_path / "bad.pkl").write_bytes(pickle.dumps(content))
    with pytest.raises(MotionError, match=r"bad\.pkl: " + message):
        read_motion(tmp_path / "bad.pkl")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2,3\n", r"the table has shape \(1, 3\)"),
        ("1,2\n1\n", "the table is not numbers of one width"),
        ("1,x\n2,3\n", "the table is not numbers"),
        ("time,a,b\n0,1\n", "the header names 3 columns of 2"),
        ("", r"the table has shape \(0,\)"),
        ("0,1,\xe9", "the text is not UTF-8"),
    ],
)
def test_rejects_invalid_csv(tmp_path, text, message):
    (tmp_path / "bad.csv").write_bytes(text.encode("latin1"))
    with pytest.raises(MotionError, match=r"bad\.csv: " + message):
        read_motion(tmp_path / "bad.csv")


def test_rejects_zero_frame_rate(tmp_path):
    (tmp_path / "bad.csv").write_text(3 * "0,0,0.3,0,0,0,1,0.1\n")
    with pytest.raises(MotionError, match=r"bad\.csv: fps is 0"):
        read_motion(tmp_path / "bad.csv", fps=0.0)


def test_rejects_unreadable_files(tmp_path):
    with pytest.raises(MotionError, match=r"walk\.bvh: the suffix is '\.bvh'; use one of \.json"):
        read_motion(tmp_path / "walk.bvh")
    with pytest.raises(MotionError, match=r"walk\.npz: the file is not there"):
        read_motion(tmp_path / "walk.npz")
    with open(tmp_path / "array.npz", "wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(MotionError, match=r"array\.npz: the file cannot be read \(it is a single array"):
        read_motion(tmp_path / "array.npz")
    (tmp_path / "walk.json").write_text("{")
    with pytest.raises(MotionError, match=r"walk\.json: the text is not JSON"):
        read_motion(tmp_path / "walk.json")


def test_column_names_follow_blocks():
    names = column_names()
    assert len(names) == 61
    assert names[3:7] == ("root_rot_x", "root_rot_y", "root_rot_z", "root_rot_w")
    assert names[7] == "joint_pos_FR_hip_joint"
    assert names[60] == "foot_vel_RL_foot_z"


def test_quaternion_order_round_trip(tmp_path):
    rot = smooth_rotations(np.arange(6) * 0.3, axis=(1.0, -2.0, 0.5))
    clip = replace(some_clip(num_frames=6), root_rot=rot)
    for file, format in (("a.json", "amp"), ("a.csv", "csv"), ("a.pkl", "gmr"), ("a.npz", "mjlab")):
        write_motion(tmp_path / file, clip, format)
        assert_same_rotations(read_motion(tmp_path / file, joint_names=JOINTS)[0].root_rot, rot, 1e-6)


def amp_pickle_of_shared_lists(depth=60):
    lists = b"]q\x00" + b"".join(b"]q%c(h%ch%ce" % (n + 1, n, n) for n in range(depth))
    return b"\x80\x02}X\x01\x00\x00\x00a}(X\x06\x00\x00\x00Frames" + lists + b"X\x0d\x00\x00\x00FrameDurationK\x01us."


WIDE = [[0.0] * 5000] * 2
BOMBS = {
    "wide.csv": b"0," * 3_000_000,
    "wide.json": json.dumps({"Frames": WIDE, "FrameDuration": 1.0}).encode(),
    "deep.json": b"[" * 1_000_000,
    "shared.pkl": amp_pickle_of_shared_lists(),
    "wide.pkl": pickle.dumps(
        {"fps": 30, "dof_pos": WIDE, "root_pos": [[0.0] * 3] * 2, "root_rot": [[0, 0, 0, 1.0]] * 2}
    ),
    "strings.pkl": pickle.dumps({"fps": [1], "dof_pos": "x", "root_pos": None, "root_rot": {}}),
    "huge.json": b'{"Frames": [[1' + b"0" * 400 + b'], [1]], "FrameDuration": 1}',
}


@pytest.mark.parametrize("name", BOMBS)
def test_rejects_motion_beyond_limits_with_file(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(BOMBS[name])
    with pytest.raises(MotionError, match=name):
        read_motion(path)
