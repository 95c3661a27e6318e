"""`AMPLoader`: expert states and transitions for adversarial motion priors."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from st_rl.datasets.clip import MotionClip, MotionError, log_notes, name_motion
from st_rl.datasets.formats import read_motion
from st_rl.datasets.formats.amp import (
    QUADRUPED_WIDTH,
    AmpTrajectory,
    amp_dictionary,
    column_names,
    read_trajectories,
    unit_rotations,
)
from st_rl.datasets.formats.lfs_pointer import reject_lfs_pointer
from st_rl.datasets.formats.pickles import PICKLES, load_pickle
from st_rl.datasets.formats.retargeted import is_retargeted
from st_rl.datasets.motion_table import MotionTable
from st_rl.utils.config import unknown_name_message
from st_rl.utils.tensors.rotations import quat_slerp

Frames = TypeVar("Frames", np.ndarray, Tensor)
_ROTATION = ("root_rot_x", "root_rot_y", "root_rot_z", "root_rot_w")
# Preloaded transitions are computed in chunks of this size.
_CHUNK = 65536


class _Layout(NamedTuple):
    """Columns of a frame."""

    names: tuple[str, ...]
    """Columns of a full frame."""
    state: tuple[int, ...]
    """Columns of the AMP state in a full frame."""
    rotation: tuple[int, ...]
    """Columns of the quaternion x, y, z, w in a full frame; empty without one."""


def _block(start: int, end: int) -> Callable[[Any], Any]:
    """A getter of columns `start` to `end` of frames `(..., W)`."""

    def get(frames: Frames) -> Frames:
        return frames[..., start:end]

    return get


class AMPLoader:
    """Motion clips, sampled by weight and interpolated at any time.

    An AMP state is a frame without the pose of the root: joint positions, feet, velocities.
    """

    POS_SIZE = 3
    ROT_SIZE = 4
    JOINT_POS_SIZE = 12
    TAR_TOE_POS_LOCAL_SIZE = 12
    LINEAR_VEL_SIZE = 3
    ANGULAR_VEL_SIZE = 3
    JOINT_VEL_SIZE = 12
    TAR_TOE_VEL_LOCAL_SIZE = 12

    ROOT_POS_START_IDX, ROOT_POS_END_IDX = 0, 3
    ROOT_ROT_START_IDX, ROOT_ROT_END_IDX = 3, 7
    JOINT_POSE_START_IDX, JOINT_POSE_END_IDX = 7, 19
    TAR_TOE_POS_LOCAL_START_IDX, TAR_TOE_POS_LOCAL_END_IDX = 19, 31
    LINEAR_VEL_START_IDX, LINEAR_VEL_END_IDX = 31, 34
    ANGULAR_VEL_START_IDX, ANGULAR_VEL_END_IDX = 34, 37
    JOINT_VEL_START_IDX, JOINT_VEL_END_IDX = 37, 49
    TAR_TOE_VEL_LOCAL_START_IDX, TAR_TOE_VEL_LOCAL_END_IDX = 49, 61

    # Blocks of frames in the quadruped layout, of one frame or of a batch.
    get_root_pos = get_root_pos_batch = staticmethod(_block(ROOT_POS_START_IDX, ROOT_POS_END_IDX))
    get_root_rot = get_root_rot_batch = staticmethod(_block(ROOT_ROT_START_IDX, ROOT_ROT_END_IDX))
    get_joint_pose = get_joint_pose_batch = staticmethod(_block(JOINT_POSE_START_IDX, JOINT_POSE_END_IDX))
    get_tar_toe_pos_local = get_tar_toe_pos_local_batch = staticmethod(
        _block(TAR_TOE_POS_LOCAL_START_IDX, TAR_TOE_POS_LOCAL_END_IDX)
    )
    get_linear_vel = get_linear_vel_batch = staticmethod(_block(LINEAR_VEL_START_IDX, LINEAR_VEL_END_IDX))
    get_angular_vel = get_angular_vel_batch = staticmethod(_block(ANGULAR_VEL_START_IDX, ANGULAR_VEL_END_IDX))
    get_joint_vel = get_joint_vel_batch = staticmethod(_block(JOINT_VEL_START_IDX, JOINT_VEL_END_IDX))
    get_tar_toe_vel_local = get_tar_toe_vel_local_batch = staticmethod(
        _block(TAR_TOE_VEL_LOCAL_START_IDX, TAR_TOE_VEL_LOCAL_END_IDX)
    )

    def __init__(
        self,
        device: torch.device | str,
        time_between_frames: float,
        data_dir: str | Path = "",
        preload_transitions: bool = False,
        num_preload_transitions: int = 1000000,
        motion_files: str | Path | Sequence[str | Path] | None = None,
        fields: Sequence[str] | None = None,
        reorder_joints: bool = False,
    ) -> None:
        """Read the clips.

        Args:
            device: Device of the states.
            time_between_frames: Seconds between the two states of a transition.
            data_dir: Folder of motion files, read in the order of their names, if `motion_files` is None.
            preload_transitions: Whether transitions are sampled and interpolated once, here.
            num_preload_transitions: Number of preloaded transitions.
            motion_files: One or several motion files: AMP (`.json`, `.txt`, `.pkl`) or any other that `read_motion`
                reads.
            fields: Columns of the AMP state for files with Fields; names of all columns for files without.
            reorder_joints: Whether to reorder the legs of files without Fields to FL, FR, RL, RR.
        """
        self.device = device
        self.time_between_frames = time_between_frames
        self.preload_transitions = preload_transitions
        read = [trajectory for path in _paths(data_dir, motion_files) for trajectory in _read(path)]
        if not read:
            raise ValueError(f"no motion files in '{data_dir}': name them with motion_files, or another data_dir")
        if not any(trajectory.weight for trajectory in read):
            raise ValueError("all motion files have MotionWeight 0: give at least one a positive weight")
        self._layout = _common_layout(read, fields)
        width = len(self._layout.names)
        frames = [self._prepare(trajectory, reorder_joints)[:, :width] for trajectory in read]
        self.trajectories_full = [torch.tensor(f, dtype=torch.float32, device=device) for f in frames]
        """Full frames `(F, W)` of each trajectory."""
        self.trajectories = [full[:, list(self._layout.state)] for full in self.trajectories_full]
        """AMP states `(F, D)` of each trajectory."""
        self.trajectory_names = [trajectory.name for trajectory in read]
        self.trajectory_idxs = list(range(len(read)))
        self.trajectory_num_frames = np.array([len(f) for f in frames])
        self.trajectory_frame_durations = np.array([trajectory.frame_duration for trajectory in read])
        self.trajectory_lens = (self.trajectory_num_frames - 1) * self.trajectory_frame_durations
        weights = np.array([trajectory.weight for trajectory in read])
        self.trajectory_weights = weights / weights.sum()
        self._build_tables(weights.tolist())
        self._unused_seconds = torch.as_tensor(self.trajectory_frame_durations + time_between_frames, device=device)
        if preload_transitions:
            self._preload(num_preload_transitions)

    def _build_tables(self, weights: list[float]) -> None:
        """Build the tables that interpolate AMP states and full frames; quaternions are interpolated as rotations."""
        durations = self.trajectory_frame_durations.tolist()
        rotation, state = self._layout.rotation, self._layout.state
        inside = [tuple(state.index(column) for column in rotation)] if rotation and set(rotation) <= set(state) else []
        self._states = MotionTable(self.trajectories, durations, weights, self.device, inside)
        quaternions = [rotation] if rotation else []
        self._full = MotionTable(self.trajectories_full, durations, weights, self.device, quaternions)

    @property
    def observation_dim(self) -> int:
        """Width of an AMP state."""
        return len(self._layout.state)

    @property
    def num_motions(self) -> int:
        """Number of trajectories."""
        return len(self.trajectory_names)

    @staticmethod
    def reorder_from_pybullet_to_isaac(motion_data: Frames) -> Frames:
        """A copy of frames `(..., 61)` with the legs of each block reordered from FR, FL, RR, RL to FL, FR, RL, RR."""
        order = list(range(QUADRUPED_WIDTH))
        for start in (7, 19, 37, 49):
            order[start : start + 12] = [start + 3 * leg + part for leg in (1, 0, 3, 2) for part in range(3)]
        return motion_data[..., order]

    # Sampling of trajectories and times, on the host.

    def weighted_traj_idx_sample(self) -> int:
        """A trajectory index, sampled by weight."""
        return int(np.random.choice(self.trajectory_idxs, p=self.trajectory_weights))

    def weighted_traj_idx_sample_batch(self, size: int) -> np.ndarray:
        """`(size,)` trajectory indices, sampled by weight."""
        return np.random.choice(self.trajectory_idxs, size=size, p=self.trajectory_weights)

    def traj_time_sample(self, traj_idx: int) -> float:
        """A random time of a trajectory that leaves room for one transition."""
        return float(self.traj_time_sample_batch(np.array([traj_idx]))[0])

    def traj_time_sample_batch(self, traj_idxs: ArrayLike) -> np.ndarray:
        """`(n,)` random times of trajectories `(n,)`."""
        traj_idxs = np.asarray(traj_idxs)
        unused = self.time_between_frames + self.trajectory_frame_durations[traj_idxs]
        return np.maximum(0.0, self.trajectory_lens[traj_idxs] * np.random.uniform(size=len(traj_idxs)) - unused)

    # Frames.

    def get_trajectory(self, traj_idx: int) -> Tensor:
        """The full frames `(F, W)` of a trajectory."""
        return self.trajectories_full[traj_idx]

    @staticmethod
    def slerp(v0: Any, v1: Any, blend: Any) -> Any:
        """Linear interpolation from `v0` to `v1`, despite the name."""
        return (1.0 - blend) * v0 + blend * v1

    def blend_frame_pose(self, frame0: Tensor, frame1: Tensor, blend: float | Tensor) -> Tensor:
        """The full frame `(..., W)` at `blend` between two: the rotation by slerp, all else linearly."""
        weight = torch.as_tensor(blend, dtype=frame0.dtype, device=frame0.device).unsqueeze(-1)
        blended = torch.lerp(frame0, frame1, weight)
        rotation = list(self._layout.rotation)
        if rotation:
            blended[..., rotation] = quat_slerp(frame0[..., rotation], frame1[..., rotation], weight)
        return blended

    def get_frame_at_time(self, traj_idx: int, time: float) -> Tensor:
        """AMP state `(D,)` of a trajectory at a time."""
        return self.get_frame_at_time_batch([traj_idx], [time])[0]

    def get_frame_at_time_batch(self, traj_idxs: ArrayLike | Tensor, times: ArrayLike | Tensor) -> Tensor:
        """AMP states `(n, D)` of trajectories `(n,)` at times `(n,)`."""
        return self._states.at(self._on_device(traj_idxs, torch.long), self._on_device(times, torch.float64))

    def get_full_frame_at_time(self, traj_idx: int, time: float) -> Tensor:
        """Full frame `(W,)` of a trajectory at a time."""
        return self.get_full_frame_at_time_batch([traj_idx], [time])[0]

    def get_full_frame_at_time_batch(self, traj_idxs: ArrayLike | Tensor, times: ArrayLike | Tensor) -> Tensor:
        """Full frames `(n, W)` of trajectories `(n,)` at times `(n,)`."""
        return self._full.at(self._on_device(traj_idxs, torch.long), self._on_device(times, torch.float64))

    def get_frame(self) -> Tensor:
        """AMP state `(D,)` at a random time of a random trajectory."""
        traj_idx = self.weighted_traj_idx_sample()
        return self.get_frame_at_time(traj_idx, self.traj_time_sample(traj_idx))

    def get_full_frame(self) -> Tensor:
        """Full frame `(W,)` at a random time of a random trajectory."""
        return self.get_full_frame_batch(1)[0]

    def get_full_frame_batch(self, num_frames: int) -> Tensor:
        """Full frames `(num_frames, W)` at random times, for example as initial states."""
        if self.preload_transitions:
            return self.preloaded_s[self._sample_preloaded(num_frames)]
        return self._full.at(*self._sample(num_frames))

    def feed_forward_generator(self, num_mini_batch: int, mini_batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield `num_mini_batch` pairs of states `(mini_batch_size, D)` before and after a transition."""
        for _ in range(num_mini_batch):
            if self.preload_transitions:
                rows = torch.nn.functional.embedding(self._sample_preloaded(mini_batch_size), self._transitions)
                before, after = rows.split(rows.shape[1] // 2, dim=1)
                yield self._state_of(before), self._state_of(after)
            else:
                clip, time = self._sample(mini_batch_size)
                times = torch.cat([time, time + self.time_between_frames])
                before, after = self._states.at(clip.repeat(2), times).split(mini_batch_size)
                yield before, after

    def _prepare(self, trajectory: AmpTrajectory, reorder_joints: bool) -> np.ndarray:
        """The frames of a trajectory with unit quaternions of positive w and reordered legs."""
        frames = trajectory.frames.copy()
        if reorder_joints:
            if trajectory.fields is not None or frames.shape[1] != QUADRUPED_WIDTH:
                raise MotionError(
                    trajectory.source,
                    "Fields",
                    "name the columns, or are not those of a quadruped",
                    "leave reorder_joints off and name the columns in your order with fields",
                )
            frames = self.reorder_from_pybullet_to_isaac(frames)
        rotation = list(self._layout.rotation)
        if rotation:
            unit = unit_rotations(trajectory.source, frames[:, rotation])
            frames[:, rotation] = np.where(unit[:, 3:] < 0, -unit, unit)
        return frames

    def _sample(self, size: int) -> tuple[Tensor, Tensor]:
        """Random trajectories and times `(size,)`, sampled on the device."""
        uniform = torch.rand(2, size, dtype=torch.float64, device=self.device)
        clip = self._full.sample_clips(uniform[0])
        return clip, (self._full.lengths[clip] * uniform[1] - self._unused_seconds[clip]).clamp_(min=0.0)

    def _preload(self, count: int) -> None:
        """Sample and interpolate transitions once; a row holds both full frames."""
        if count < 1:
            raise ValueError(f"num_preload_transitions must be at least 1, got {count}")
        width = len(self._layout.names)
        self._transitions = torch.empty(count, 2 * width, device=self.device)
        for rows in self._transitions.split(_CHUNK):
            clip, time = self._sample(len(rows))
            rows[:, :width] = self._full.at(clip, time)
            rows[:, width:] = self._full.at(clip, time + self.time_between_frames)
        self.preloaded_s, self.preloaded_s_next = self._transitions.split(width, dim=1)

    def _sample_preloaded(self, size: int) -> Tensor:
        """Indices `(size,)` of consecutive preloaded transitions from a random one on; each was sampled at random."""
        count = len(self._transitions)
        start = int(torch.randint(count, ()))
        return torch.arange(start, start + size, device=self.device).remainder_(count)

    def _state_of(self, full: Tensor) -> Tensor:
        """AMP states `(n, D)` of full frames `(n, W)`; a view if their columns are adjacent."""
        state = self._layout.state
        if state == tuple(range(state[0], state[0] + len(state))):
            return full[:, state[0] : state[0] + len(state)]
        return full[:, list(state)]

    def _on_device(self, values: ArrayLike | Tensor, dtype: torch.dtype) -> Tensor:
        return torch.as_tensor(values, dtype=dtype, device=self.device)


def _paths(data_dir: str | Path, motion_files: str | Path | Sequence[str | Path] | None) -> list[Path]:
    """The given files, or the visible files of the folder, sorted by name."""
    if motion_files is None:
        inside = Path(data_dir).expanduser().glob("*")
        return sorted(path for path in inside if path.is_file() and not path.name.startswith("."))
    named = [motion_files] if isinstance(motion_files, str | Path) else motion_files
    return [Path(path).expanduser() for path in named]


def _read(path: Path) -> list[AmpTrajectory]:
    """The trajectories of a motion file of any format."""
    reject_lfs_pointer(path)
    with name_motion(path):
        content = load_pickle(path) if path.suffix.lower() in PICKLES else None
        is_amp = path.suffix.lower() in (".json", ".txt") if content is None else not is_retargeted(content)
        if is_amp:
            return read_trajectories(path, content)
        clips = read_motion(path)
        log_notes(clips)
        return [_trajectory_of_clip(clip) for clip in clips]


def _trajectory_of_clip(clip: MotionClip) -> AmpTrajectory:
    """A clip as AMP frames, in the quadruped layout if they have its width."""
    content = amp_dictionary(clip)
    frames = np.array(content["Frames"])
    fields = None if frames.shape[1] == QUADRUPED_WIDTH else tuple(content["Fields"])
    return AmpTrajectory(clip.name, frames, fields, content["FrameDuration"], clip.weight, clip.where)


def _common_layout(trajectories: Sequence[AmpTrajectory], fields: Sequence[str] | None) -> _Layout:
    """The layout of all trajectories; MotionError if one differs."""
    layouts = [_layout(trajectory, fields) for trajectory in trajectories]
    for trajectory, layout in zip(trajectories, layouts):
        if layout != layouts[0]:
            raise MotionError(
                trajectory.source,
                "Frames",
                f"are {trajectory.frames.shape[1]} wide with columns unlike those of {trajectories[0].source}",
                "load files of one layout together, or convert them with st-rl motion convert",
            )
    return layouts[0]


def _layout(trajectory: AmpTrajectory, fields: Sequence[str] | None) -> _Layout:
    names, width, chosen = trajectory.fields, trajectory.frames.shape[1], fields
    if names is None and width == QUADRUPED_WIDTH and (fields is None or len(fields) != width):
        names = column_names()
        if fields is None:
            full, first = AMPLoader.JOINT_VEL_END_IDX, AMPLoader.JOINT_POSE_START_IDX
            return _Layout(names[:full], tuple(range(first, full)), tuple(range(3, 7)))
    elif names is None:
        if fields is None or len(fields) != width:
            given = "none are" if fields is None else f"{len(fields)} are"
            raise MotionError(
                trajectory.source,
                "Frames",
                f"are {width} wide and have no names; {given} given with fields",
                f"name all {width} columns, or add Fields to the file",
            )
        names, chosen = tuple(fields), None
    index = {name: column for column, name in enumerate(names or ())}
    for name in chosen or ():
        if name not in index:
            message = unknown_name_message("column", name, index)
            raise MotionError(trajectory.source, "fields", f"name an {message}", "choose among these")
    state = list(chosen) if chosen is not None else [name for name in index if not name.startswith("root_pos")]
    rotation = tuple(index[name] for name in _ROTATION) if all(name in index for name in _ROTATION) else ()
    return _Layout(tuple(index), tuple(index[name] for name in state), rotation)
