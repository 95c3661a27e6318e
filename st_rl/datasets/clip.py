"""`MotionClip`: a motion in memory, whatever file format it came from."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from st_rl.utils.files.readers import check_columns, explain
from st_rl.utils.log import logger
from st_rl.utils.tensors import rotations

# Characters of a problem in a message.
_MAX_PROBLEM = 2000


class MotionError(ValueError):
    """An invalid motion; the message names the file, the field and the remedy."""

    def __init__(self, source: str, field: str, problem: str, remedy: str) -> None:
        super().__init__(f"{source}: {field} {problem[:_MAX_PROBLEM]}; {remedy}")


@contextlib.contextmanager
def name_motion(path: Path) -> Iterator[None]:
    """Raise errors of the block as `MotionError`; for a damaged file these may be nearly any."""
    try:
        yield
    except (MotionError, FileNotFoundError):
        raise
    except Exception as error:
        remedy = "write it again with the program that made it; st-rl motion inspect FILE checks it"
        raise MotionError(str(path), "the file", f"cannot be read ({explain(error)})", remedy) from error


@dataclass(frozen=True, eq=False)
class Feet:
    """Feet in the world frame."""

    names: tuple[str, ...]
    """`K` names."""
    pos: np.ndarray
    """`(F, K, 3)` m"""
    vel: np.ndarray
    """`(F, K, 3)` m/s"""


@dataclass(frozen=True, eq=False)
class Bodies:
    """Links of the robot in the world frame, the root first."""

    names: tuple[str, ...]
    """`B` names."""
    pos: np.ndarray
    """`(F, B, 3)` m"""
    rot: np.ndarray
    """`(F, B, 4)` w, x, y, z"""
    lin_vel: np.ndarray
    """`(F, B, 3)` m/s"""
    ang_vel: np.ndarray
    """`(F, B, 3)` rad/s"""


@dataclass(frozen=True, eq=False)
class MotionClip:
    """`F` frames of a robot with `J` joints. Everything but the joints is in the world frame, z up.

    Build one with `make_clip`, which validates it and estimates missing velocities.
    """

    name: str
    fps: float
    joint_names: tuple[str, ...]
    """`J` names, in the order of the columns below."""
    joint_pos: np.ndarray
    """`(F, J)` rad"""
    joint_vel: np.ndarray
    """`(F, J)` rad/s"""
    root_pos: np.ndarray
    """`(F, 3)` m"""
    root_rot: np.ndarray
    """`(F, 4)` w, x, y, z, without sign flips."""
    root_lin_vel: np.ndarray
    """`(F, 3)` m/s"""
    root_ang_vel: np.ndarray
    """`(F, 3)` rad/s"""
    feet: Feet | None = None
    """Feet, if the file has them."""
    bodies: Bodies | None = None
    """Links, if the file has them."""
    weight: float = 1.0
    """Relative sampling weight."""
    source: str = ""
    """The file it came from, for error messages."""
    estimated: tuple[str, ...] = field(default=())
    """Velocities that were estimated because the file lacks them."""
    quat_order: str = ""
    """Order of the quaternions in the file, `xyzw` or `wxyz`; empty for a clip that is not from a file."""
    notes: tuple[str, ...] = field(default=())
    """Findings and assumptions of the reader about what the file does not say, one sentence each."""

    @property
    def num_frames(self) -> int:
        """Number of frames."""
        return self.joint_pos.shape[0]

    @property
    def duration(self) -> float:
        """Seconds from the first frame to the last."""
        return (self.num_frames - 1) / self.fps

    @property
    def where(self) -> str:
        """How error messages name the clip: its file, else its name."""
        return self.source or self.name


def make_clip(
    name: str,
    fps: float,
    joint_names: Sequence[str],
    joint_pos: ArrayLike,
    root_pos: ArrayLike,
    root_rot: ArrayLike,
    *,
    joint_vel: ArrayLike | None = None,
    root_lin_vel: ArrayLike | None = None,
    root_ang_vel: ArrayLike | None = None,
    feet: tuple[Sequence[str], ArrayLike, ArrayLike | None] | None = None,
    bodies: tuple[Sequence[str], ArrayLike, ArrayLike, ArrayLike | None, ArrayLike | None] | None = None,
    weight: float = 1.0,
    source: str = "",
) -> MotionClip:
    """A validated clip with unit quaternions; velocities given as None are estimated.

    `feet` is names, positions `(F, K, 3)` and velocities or None; `bodies` is names, positions, rotations, linear and
    angular velocities or None. Estimates are central differences, for rotations of their logarithm. MotionError for
    values that are not finite, shapes that do not fit, a single frame, or a frame rate that is not positive.
    """
    source, joint_pos = source or name, finite_array(source or name, "joint_pos", joint_pos)
    _check_joints(source, joint_names, joint_pos)
    _check_numbers(source, fps, weight)
    reader = _ClipReader(source, joint_pos.shape[0], 1.0 / fps)
    pos, rot = reader.array("root_pos", root_pos, 3), reader.rotations("root_rot", root_rot)
    clip_feet = None if feet is None else reader.feet(*feet)
    clip_bodies = None if bodies is None else reader.bodies(*bodies)
    return MotionClip(
        name=name,
        fps=float(fps),
        joint_names=tuple(joint_names),
        joint_pos=joint_pos,
        joint_vel=reader.linear_velocity("joint_vel", joint_vel, joint_pos),
        root_pos=pos,
        root_rot=rot,
        root_lin_vel=reader.linear_velocity("root_lin_vel", root_lin_vel, pos),
        root_ang_vel=reader.angular_velocity("root_ang_vel", root_ang_vel, rot),
        feet=clip_feet,
        bodies=clip_bodies,
        weight=float(weight),
        source=source,
        estimated=tuple(reader.estimated),
    )


def log_notes(clips: Iterable[MotionClip]) -> None:
    """Log a warning for every note, with the clips that have it."""
    names: dict[str, list[str]] = {}
    for clip in clips:
        for note in clip.notes:
            names.setdefault(note, []).append(clip.name)
    for note, found in names.items():
        logger.warning(f"{list_names(found)}: {note}")


def list_names(names: Sequence[str]) -> str:
    """The first three names and how many more there are."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


class _ClipReader:
    """Checks the arrays of a clip of F frames, `dt` seconds apart, and estimates velocities that are not given."""

    def __init__(self, source: str, num_frames: int, dt: float):
        self.source = source
        self.num_frames = num_frames
        self.dt = dt
        # Names of the fields that are estimated, in order.
        self.estimated: list[str] = []

    def array(self, field: str, value: ArrayLike, *width: int) -> np.ndarray:
        """Return a finite array `(F, *width)`."""
        return finite_array(self.source, field, value, (self.num_frames, *width))

    def rotations(self, field: str, value: ArrayLike, *width: int) -> np.ndarray:
        """Return unit quaternions `(F, *width, 4)` without sign flips; MotionError for a length not close to one."""
        quats = self.array(field, value, *width, 4)
        length = np.linalg.norm(quats, axis=-1)
        if (abs(length - 1.0) > 0.1).any():
            frame = int(np.argwhere(abs(length - 1.0) > 0.1)[0][0])
            raise MotionError(
                self.source,
                field,
                f"has a quaternion of length {length[frame].min():.3g} at frame {frame}",
                "rotations must be unit quaternions: check the order of the columns",
            )
        return rotations.remove_sign_flips(rotations.normalize(quats))

    def linear_velocity(self, field: str, value: ArrayLike | None, positions: np.ndarray) -> np.ndarray:
        """Return given velocities, or the derivatives of `positions (F, ...)`, in the same shape."""
        if value is not None:
            return self.array(field, value, *positions.shape[1:])
        self.estimated.append(field)
        return linear_velocity(positions, self.dt)

    def angular_velocity(self, field: str, value: ArrayLike | None, quats: np.ndarray) -> np.ndarray:
        """Return given angular velocities, or the ones of the motion `quats (F, ..., 4)`: `(F, ..., 3)`."""
        if value is not None:
            return self.array(field, value, *quats.shape[1:-1], 3)
        self.estimated.append(field)
        return rotations.angular_velocity(quats, self.dt)

    def feet(self, names: Sequence[str], pos: ArrayLike, vel: ArrayLike | None) -> Feet:
        """Return the feet; see `make_clip`."""
        positions = self.array("feet.pos", pos, len(names), 3)
        return Feet(tuple(names), positions, self.linear_velocity("feet.vel", vel, positions))

    def bodies(
        self,
        names: Sequence[str],
        pos: ArrayLike,
        rot: ArrayLike,
        lin_vel: ArrayLike | None,
        ang_vel: ArrayLike | None,
    ) -> Bodies:
        """Return the bodies; see `make_clip`."""
        positions = self.array("bodies.pos", pos, len(names), 3)
        quats = self.rotations("bodies.rot", rot, len(names))
        linear = self.linear_velocity("bodies.lin_vel", lin_vel, positions)
        return Bodies(tuple(names), positions, quats, linear, self.angular_velocity("bodies.ang_vel", ang_vel, quats))


def linear_velocity(positions: np.ndarray, dt: float) -> np.ndarray:
    """Velocities `(F, ...)` of positions `(F, ...)` by central differences, of second order at both ends."""
    return np.gradient(positions, dt, axis=0, edge_order=2 if len(positions) > 2 else 1)


def single_number(source: str, field: str, value: object) -> float:
    """The number in a file, a scalar or an array of one; MotionError for anything else."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        array = np.empty(0)
    if array.size != 1 or not np.isfinite(array).all():
        raise MotionError(source, field, f"is {value!r}", "give a number")
    return float(array.item())


def require_keys(source: str, content: object, keys: Iterable[str], remedy: str) -> Mapping[str, Any]:
    """The content of a file if it is a dictionary with these keys; MotionError with what it has for anything else."""
    for key in keys:
        if not isinstance(content, Mapping) or key not in content:
            found = ", ".join(map(str, content)) if isinstance(content, Mapping) else type(content).__name__
            raise MotionError(source, key, f"is missing (found: {found})", remedy)
    return cast("Mapping[str, Any]", content)


def stored_frame_rate(source: str, content: Mapping[str, Any], num_frames: int, fps: float | None) -> float:
    """Frames per second: as given, from the time stamps `time`, or from `fps` in the file."""
    if fps is None and content.get("time") is not None:
        return frame_rate(source, content["time"], num_frames)
    fps = content.get("fps") if fps is None else fps
    if fps is None:
        raise MotionError(source, "fps", "is missing", "say how many frames per second it has with fps")
    return single_number(source, "fps", fps)


def numbered_names(names: Sequence[str] | None, count: int, kind: str) -> list[str]:
    """The names, else numbered ones such as `joint_0`."""
    return list(names) if names is not None else [f"{kind}_{number}" for number in range(count)]


def frame_rate(source: str, times: ArrayLike, num_frames: int) -> float:
    """Frames per second from one time stamp per frame; MotionError unless they are evenly spaced and increasing."""
    times = finite_array(source, "time", np.ravel(times), (num_frames,))
    steps = np.diff(times)
    if len(steps) == 0:
        raise MotionError(source, "time", "has a single frame", "a clip needs two frames or more")
    if (steps <= 0).any():
        frame = int(np.flatnonzero(steps <= 0)[0]) + 1
        raise MotionError(
            source,
            "time",
            f"goes from {times[frame - 1]:g} to {times[frame]:g} s at frame {frame}",
            "sort the frames and drop repeated ones, so that time increases",
        )
    if steps.max() > 1.5 * steps.min():
        raise MotionError(
            source,
            "time",
            f"has steps from {steps.min():.4g} to {steps.max():.4g} s",
            "resample it to an even frame rate, or fill the gap",
        )
    return float(len(steps) / (times[-1] - times[0]))


def finite_array(source: str, field: str, value: ArrayLike, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """A finite float64 array of the given shape; MotionError for anything else."""
    try:
        array = np.array(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise MotionError(
            source, field, f"is not an array of numbers ({error})", "give every frame the same number of values"
        ) from error
    if shape is not None and array.shape != shape:
        raise MotionError(
            source,
            field,
            f"has shape {array.shape}, expected {shape}",
            "give every quantity the same number of frames, and one column per name",
        )
    if not np.isfinite(array).all():
        frames = np.unique(np.argwhere(~np.isfinite(array))[:, 0])
        more = f" and {len(frames) - 1} more" if len(frames) > 1 else ""
        remedy = "repair these frames, or write those before and after them to files of their own"
        raise MotionError(source, field, f"is not a number at frame {frames[0]}{more} of {len(array)}", remedy)
    return array


def _check_numbers(source: str, fps: float, weight: float) -> None:
    if not (np.isfinite(fps) and fps > 0):
        raise MotionError(source, "fps", f"is {fps}", "give the frames per second, a positive number")
    if not (np.isfinite(weight) and weight >= 0):
        raise MotionError(source, "weight", f"is {weight}", "give a non-negative number")


def _check_joints(source: str, names: Sequence[str], joint_pos: np.ndarray) -> None:
    if joint_pos.ndim != 2 or joint_pos.shape[0] < 2:
        frames = joint_pos.shape[0] if joint_pos.ndim else 0
        raise MotionError(
            source, "joint_pos", f"has shape {joint_pos.shape}, {frames} frame(s)", "a clip needs two frames or more"
        )
    width = joint_pos.shape[1]
    check_columns(width, "joints")
    if len(names) != width:
        raise MotionError(
            source,
            "joint_pos",
            f"is {width} wide, but there are {len(names)} joints ({list_names(names)})",
            "use a clip of this robot, or name the joints of the file, in its order, with joint_names",
        )
    repeated = sorted({name for name in names if list(names).count(name) > 1})
    if repeated:
        raise MotionError(source, "joint_names", f"repeats {', '.join(repeated)}", "name every joint once")
