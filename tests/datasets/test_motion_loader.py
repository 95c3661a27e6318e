"""`AMPLoader`, compared with interpolation in NumPy."""

import json

import numpy as np
import pytest
import torch

from st_rl.datasets.clip import MotionError
from st_rl.datasets.formats import write_motion
from st_rl.datasets.formats.amp import column_names
from st_rl.datasets.motion_loader import AMPLoader
from tests.datasets.clips import random_quaternions, some_clip

DURATIONS = (0.02, 0.035)
WEIGHTS = (1.0, 3.0)


def frames_of(index, count):
    rng = np.random.default_rng(index)
    frames = rng.normal(size=(count, 61))
    frames[:, 3:7] = 1.7 * random_quaternions(rng, count)
    return frames


FRAMES = (frames_of(0, 30), frames_of(1, 21))


@pytest.fixture
def folder(tmp_path):
    for index, frames in enumerate(FRAMES):
        content = {"LoopMode": "Wrap", "FrameDuration": DURATIONS[index], "MotionWeight": WEIGHTS[index]}
        content |= {"EnableCycleOffsetPosition": True, "EnableCycleOffsetRotation": True, "Frames": frames.tolist()}
        (tmp_path / f"clip_{index}.txt").write_text(json.dumps(content))
    return tmp_path


@pytest.fixture
def loader(folder):
    return AMPLoader("cpu", 0.02, data_dir=folder)


def standard(q):
    """Unit quaternions x, y, z, w of positive w."""
    q = q / np.linalg.norm(q, axis=-1, keepdims=True)
    return q * np.where(q[..., 3:] < 0, -1.0, 1.0)


def blended(frames, duration, time):
    """The frame at a time, by `np.interp` column by column."""
    grid = np.arange(len(frames)) * duration
    return np.array([np.interp(time, grid, column) for column in frames.T])


def test_columns_and_attributes(loader):
    assert loader.num_motions == 2
    assert loader.observation_dim == 42
    assert loader.trajectory_names == ["clip_0", "clip_1"]
    assert loader.trajectory_idxs == [0, 1]
    np.testing.assert_allclose(loader.trajectory_lens, [29 * 0.02, 20 * 0.035])
    np.testing.assert_allclose(loader.trajectory_weights, [0.25, 0.75])
    np.testing.assert_allclose(loader.trajectory_frame_durations, DURATIONS)
    np.testing.assert_array_equal(loader.trajectory_num_frames, [30, 21])
    for index, frames in enumerate(FRAMES):
        np.testing.assert_allclose(loader.trajectories[index], frames[:, 7:49], rtol=1e-6)
        full = loader.get_trajectory(index)
        assert full.shape == (len(frames), 49)
        np.testing.assert_allclose(full[:, 3:7], standard(frames[:, 3:7]), rtol=1e-5, atol=1e-6)
        assert (full[:, 6] >= 0).all()


def test_blocks_are_in_layout_order():
    names = ("root_pos", "root_rot", "joint_pose", "tar_toe_pos_local", "linear_vel", "angular_vel", "joint_vel")
    edges = (0, 3, 7, 19, 31, 34, 37, 49, 61)
    frame = np.arange(61)
    for name, start, end in zip((*names, "tar_toe_vel_local"), edges, edges[1:]):
        assert getattr(AMPLoader, f"{name.upper()}_START_IDX") == start
        assert getattr(AMPLoader, f"{name.upper()}_END_IDX") == end
        np.testing.assert_array_equal(getattr(AMPLoader, f"get_{name}")(frame), frame[start:end])
        batch = getattr(AMPLoader, f"get_{name}_batch")(torch.from_numpy(np.stack([frame, frame + 100])))
        np.testing.assert_array_equal(batch, np.stack([frame, frame + 100])[:, start:end])
    sizes = (AMPLoader.POS_SIZE, AMPLoader.ROT_SIZE, AMPLoader.JOINT_POS_SIZE, AMPLoader.TAR_TOE_POS_LOCAL_SIZE)
    assert sizes == (3, 4, 12, 12)
    sizes = (AMPLoader.LINEAR_VEL_SIZE, AMPLoader.ANGULAR_VEL_SIZE, AMPLoader.JOINT_VEL_SIZE)
    assert (*sizes, AMPLoader.TAR_TOE_VEL_LOCAL_SIZE) == (3, 3, 12, 12)


def test_states_between_frames_are_blended_linearly(loader):
    rng = np.random.default_rng(9)
    clips, times = rng.integers(2, size=200), rng.uniform(-0.05, 0.75, size=200)
    got = loader.get_frame_at_time_batch(clips, times)
    expected = np.stack([blended(FRAMES[c][:, 7:49], DURATIONS[c], t) for c, t in zip(clips, times)])
    np.testing.assert_allclose(got, expected, atol=2e-5)
    np.testing.assert_allclose(loader.get_frame_at_time(1, 0.1), blended(FRAMES[1][:, 7:49], 0.035, 0.1), atol=2e-5)


def test_times_are_clamped_to_last_frame(loader):
    for index, frames in enumerate(FRAMES):
        for time in (loader.trajectory_lens[index], loader.trajectory_lens[index] + 5.0):
            np.testing.assert_allclose(loader.get_frame_at_time(index, time), frames[-1, 7:49], rtol=1e-5)


def test_rotations_of_full_frames_take_the_short_arc(loader):
    rng = np.random.default_rng(4)
    for time in rng.uniform(0.0, 0.5, size=20):
        place = time / 0.02
        low = int(place)
        a, b = standard(FRAMES[0][low : low + 2, 3:7])
        cosine = a @ b
        b, cosine = (-b, -cosine) if cosine < 0 else (b, cosine)
        angle, share = np.arccos(cosine), place - low
        expected = (np.sin((1 - share) * angle) * a + np.sin(share * angle) * b) / np.sin(angle)
        got = loader.get_full_frame_at_time(0, time)
        assert abs(float(got[3:7] @ torch.tensor(expected, dtype=torch.float32))) == pytest.approx(1.0, abs=1e-5)
        np.testing.assert_allclose(got[7:49], blended(FRAMES[0][:, 7:49], 0.02, time), atol=2e-5)
        np.testing.assert_allclose(got[:3], blended(FRAMES[0][:, :3], 0.02, time), atol=2e-5)
        f0, f1 = loader.get_trajectory(0)[low], loader.get_trajectory(0)[low + 1]
        np.testing.assert_allclose(loader.blend_frame_pose(f0, f1, share), got, atol=1e-4)


def test_slerp_is_a_linear_blend_despite_its_name(loader):
    assert loader.slerp(2.0, 4.0, 0.25) == 2.5


def test_samples_clips_by_weight(loader):
    np.random.seed(0)
    share = np.mean(loader.weighted_traj_idx_sample_batch(20000) == 1)
    assert share == pytest.approx(0.75, abs=0.015)
    assert {loader.weighted_traj_idx_sample() for _ in range(50)} == {0, 1}


def test_times_leave_room_for_a_transition(loader):
    np.random.seed(1)
    times = loader.traj_time_sample_batch(np.full(5000, 1))
    # max(0, length * u - (time_between_frames + frame_duration))
    np.random.seed(1)
    expected = np.maximum(0.0, 0.7 * np.random.uniform(size=5000) - 0.055)
    np.testing.assert_allclose(times, expected)
    assert 0.0 <= loader.traj_time_sample(0) <= 0.58 - 0.04


@pytest.mark.parametrize("preload", [False, True])
def test_transitions_are_states_one_step_apart(folder, preload):
    loader = AMPLoader("cpu", 0.02, data_dir=folder, preload_transitions=preload, num_preload_transitions=700)
    torch.manual_seed(0)
    batches = list(loader.feed_forward_generator(3, 50))
    assert len(batches) == 3
    states = torch.cat([s for s, _ in batches])
    following = torch.cat([n for _, n in batches])
    assert states.shape == following.shape == (150, 42)
    # Every pair is found on one clip: at some time, and 0.02 s later.
    grid = np.linspace(0.0, 0.7, 3501)
    for s, n in zip(states.numpy()[:40], following.numpy()[:40]):
        errors = []
        for clip in (0, 1):
            path = loader.get_frame_at_time_batch(np.full(len(grid), clip), grid).numpy()
            distance = np.abs(path - s).max(axis=1) + np.abs(np.roll(path, -100, axis=0) - n).max(axis=1)
            errors.append(distance[:-100].min())
        assert min(errors) < 0.05
    if preload:
        assert loader.preloaded_s.shape == loader.preloaded_s_next.shape == (700, 49)
        assert loader.get_full_frame_batch(5).shape == (5, 49)
    else:
        share = torch.cat([loader._sample(500)[0] for _ in range(10)]).float().mean()
        assert share == pytest.approx(0.75, abs=0.03)


def test_single_frames_at_random(loader):
    assert loader.get_frame().shape == (42,)
    assert loader.get_full_frame().shape == (49,)
    assert loader.get_full_frame_batch(7).shape == (7, 49)


def test_reorders_legs_only_on_request(folder):
    plain = AMPLoader("cpu", 0.02, data_dir=folder).get_trajectory(0).numpy()
    turned = AMPLoader("cpu", 0.02, data_dir=folder, reorder_joints=True).get_trajectory(0).numpy()
    for start in (7, 19, 37):
        fr, fl, rr, rl = (plain[:, start + 3 * leg : start + 3 * leg + 3] for leg in range(4))
        np.testing.assert_array_equal(turned[:, start : start + 12], np.concatenate([fl, fr, rl, rr], axis=1))
    np.testing.assert_array_equal(turned[:, :7], plain[:, :7])
    np.testing.assert_array_equal(turned[:, 31:37], plain[:, 31:37])
    frame = np.arange(61)
    np.testing.assert_array_equal(AMPLoader.reorder_from_pybullet_to_isaac(frame)[49:52], [52, 53, 54])
    np.testing.assert_array_equal(frame, np.arange(61))


def named_file(path, fields, count=5):
    frames = np.random.default_rng(2).normal(size=(count, len(fields)))
    path.write_text(json.dumps({"FrameDuration": 0.1, "Fields": fields, "Frames": frames.tolist()}))
    return frames


def test_named_columns_choose_the_state(tmp_path):
    fields = ["knee", "root_pos_x", "root_rot_x", "root_rot_y", "root_rot_z", "root_rot_w", "hip"]
    frames = named_file(tmp_path / "a.json", fields)
    loader = AMPLoader("cpu", 0.1, motion_files=[tmp_path / "a.json"])
    assert loader.observation_dim == 6  # all but root positions
    np.testing.assert_allclose(loader.trajectories[0][:, [0, 5]], frames[:, [0, 6]], rtol=1e-6)
    np.testing.assert_allclose(loader.trajectories[0][:, 1:5], standard(frames[:, 2:6]), rtol=1e-5)
    chosen = AMPLoader("cpu", 0.1, motion_files=[tmp_path / "a.json"], fields=["hip", "knee"])
    np.testing.assert_allclose(chosen.trajectories[0], frames[:, [6, 0]], rtol=1e-6)
    s, n = next(chosen.feed_forward_generator(1, 4))
    assert s.shape == n.shape == (4, 2)
    with pytest.raises(MotionError, match=r"a\.json: fields name an unknown column 'kne'; did you mean 'knee'"):
        AMPLoader("cpu", 0.1, motion_files=[tmp_path / "a.json"], fields=["kne"])
    with pytest.raises(MotionError, match="leave reorder_joints off"):
        AMPLoader("cpu", 0.1, motion_files=[tmp_path / "a.json"], reorder_joints=True)


def test_other_widths_need_names(tmp_path):
    frames = np.random.default_rng(0).normal(size=(4, 3))
    (tmp_path / "a.json").write_text(json.dumps({"FrameDuration": 0.1, "Frames": frames.tolist()}))
    with pytest.raises(MotionError, match=r"a\.json: Frames are 3 wide and have no names.*name all 3 columns"):
        AMPLoader("cpu", 0.1, motion_files=[tmp_path / "a.json"])
    loader = AMPLoader("cpu", 0.1, motion_files=[tmp_path / "a.json"], fields=["root_pos_x", "hip", "knee"])
    np.testing.assert_allclose(loader.trajectories[0], frames[:, 1:], rtol=1e-6)
    assert loader.trajectories_full[0].shape == (4, 3)


def test_columns_of_the_quadruped_can_be_chosen_by_name(folder):
    loader = AMPLoader("cpu", 0.02, data_dir=folder, fields=["joint_pos_RL_calf_joint"])
    np.testing.assert_allclose(loader.trajectories[0][:, 0], FRAMES[0][:, 18], rtol=1e-6)


def test_files_of_other_formats_are_loaded_too(tmp_path):
    quadruped = [name.removeprefix("joint_pos_") for name in column_names() if name.startswith("joint_pos_")]
    clip = some_clip(joints=tuple(quadruped), feet=(list("abcd"), np.zeros((12, 4, 3)), None))
    write_motion(tmp_path / "a.npz", clip, "isaaclab")
    write_motion(tmp_path / "b.pkl", [some_clip(name="x"), some_clip(name="y")], "amp")
    assert AMPLoader("cpu", 0.02, motion_files=[tmp_path / "a.npz"]).observation_dim == 42
    loader = AMPLoader("cpu", 0.02, motion_files=[tmp_path / "b.pkl"])
    assert loader.trajectory_names == ["x", "y"]
    with pytest.raises(MotionError, match=r"b\.pkl: Frames are .* wide with columns unlike those of .*a\.npz"):
        AMPLoader("cpu", 0.02, data_dir=tmp_path)


def test_rejects_folder_without_usable_motions(tmp_path):
    with pytest.raises(ValueError, match="no motion files in"):
        AMPLoader("cpu", 0.02, data_dir=tmp_path)
    (tmp_path / "notes.md").write_text("walks")
    with pytest.raises(MotionError, match=r"notes\.md: the suffix is '\.md'"):
        AMPLoader("cpu", 0.02, data_dir=tmp_path)
    (tmp_path / "notes.md").unlink()
    (tmp_path / "a.json").write_text(
        json.dumps({"FrameDuration": 0.1, "MotionWeight": 0, "Frames": frames_of(0, 3).tolist()})
    )
    with pytest.raises(ValueError, match="MotionWeight 0"):
        AMPLoader("cpu", 0.02, data_dir=tmp_path)


def test_hidden_files_of_folder_are_skipped(folder, monkeypatch):
    (folder / ".DS_Store").write_bytes(b"\0\1")
    (folder / ".tmp-1-clip_2.txt").write_text("half a fi")
    monkeypatch.setenv("HOME", str(folder.parent))
    assert AMPLoader("cpu", 0.02, data_dir=f"~/{folder.name}").trajectory_names == ["clip_0", "clip_1"]


@pytest.mark.parametrize("kind", [str, lambda path: path, lambda path: [str(path)]])
def test_accepts_single_motion_file(folder, kind):
    assert AMPLoader("cpu", 0.02, motion_files=kind(folder / "clip_1.txt")).trajectory_names == ["clip_1"]
