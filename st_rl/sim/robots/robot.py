"""`Robot`: joints, actuators, feet and sensors of an MJCF model."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from st_rl.sim.require import MjData, MjModel, MjSpec, mujoco
from st_rl.sim.robots.apply_description import find_action_scale
from st_rl.sim.robots.build_model import build_model, fall_geoms, find_foot_shapes
from st_rl.sim.robots.description import SUFFIXES, RobotDescription
from st_rl.sim.robots.mirror import Mirror, find_mirror
from st_rl.sim.robots.model_queries import FreeJoint, home_qpos, pose_data, scalar_joints, sole_height
from st_rl.sim.robots.sensors import FootShape, SensorKind, sensor_address

# Left and right joints may differ by this much from a mirrored default pose, rad.
_POSE_TOLERANCE = 1e-3


class Foot(NamedTuple):
    """Addresses of the sensors of one foot in `sensordata`."""

    name: str
    contact: int
    """Number of contacts."""
    position: int
    """World position of the geom's centre (3)."""
    velocity: int
    """World velocity of the geom's centre (3)."""
    radius: float
    """Height of the centre above the ground in stance."""


@dataclass(frozen=True, eq=False)
class Robot:
    """A robot as its MJCF file describes it. Arrays over joints are in actuator order."""

    path: Path
    """The file it was read from: an MJCF file or a description."""
    spec: MjSpec
    """The `mujoco.MjSpec` of the model."""
    model: MjModel
    """The compiled `mujoco.MjModel`, with the sensors that locomotion tasks read."""
    actuation: Literal["position", "torque"]
    """Whether the control is a joint position or a joint torque."""
    joint_names: tuple[str, ...]
    qpos_indices: tuple[int, ...]
    """Column of each actuated joint in `qpos`."""
    qvel_indices: tuple[int, ...]
    """Column of each actuated joint in `qvel`."""
    default_qpos: np.ndarray
    """`(nq,)` keyframe "home", else the pose in which the file is written."""
    stiffness: np.ndarray
    """`(nu,)` position gain at the joint, zero for torque actuators."""
    damping: np.ndarray
    """`(nu,)` velocity gain at the joint, zero for torque actuators."""
    joint_range: np.ndarray
    """`(nu, 2)` joint limits, infinite where there are none."""
    control_range: np.ndarray
    """`(nu, 2)` limits of the control (for position actuators as joint positions), else of the joint, else infinite."""
    effort_limit: np.ndarray
    """`(nu,)` largest torque at the joint, infinite where there is no limit."""
    gear: np.ndarray
    """`(nu,)` joint torque for each unit of actuator force, and servo control for each unit of joint position."""
    free_joint: FreeJoint | None
    """The floating base; None for a robot with a fixed base."""
    mass: float
    """Mass of everything that moves."""
    feet: tuple[Foot, ...]
    """Feet, in model order; empty without a floating base."""
    fall_sensors: tuple[int, ...]
    """Addresses of contact counts that are positive only after a fall (base and knees)."""
    action_scale: np.ndarray | None = None
    """`(nu,)` change of a joint's target for an action of one, where a description says so."""

    @classmethod
    def from_file(cls, path: str | Path, build_world: Callable[[MjSpec], None] | None = None) -> "Robot":
        """Read a robot from an MJCF file, or from a description (`.yaml`) of one; see `from_mjcf`."""
        if Path(path).suffix.lower() in SUFFIXES:
            description = RobotDescription.from_file(path)
            return cls.from_mjcf(description.mjcf, build_world, description)
        return cls.from_mjcf(path, build_world)

    @classmethod
    def from_mjcf(
        cls,
        path: str | Path,
        build_world: Callable[[MjSpec], None] | None = None,
        description: RobotDescription | None = None,
    ) -> "Robot":
        """Read an MJCF file with position or torque actuators on its joints.

        A file with a floating base gets a floor, and contact, position and velocity sensors of its feet, where it has
        none; `build_world` may add to its `mujoco.MjSpec` what the robot moves in, after `description` has changed it.
        ValueError, with the file's name and the remedy, for a file that cannot be driven.
        """
        path = Path(path)
        spec, model, floating = build_model(path, build_world, description)
        if model.nu == 0:
            raise ValueError(
                f"{path} has no actuators: add <position> or <motor> actuators to its joints, or give the gains of its "
                "joints in a robot description (actuators in a .yaml file)"
            )
        joints = [_actuated_joint(model, a, path) for a in range(model.nu)]
        actuation = _actuation(model, path)
        position = actuation == "position"
        limited = model.jnt_limited[joints].astype(bool)[:, None]
        joint_range = np.where(limited, model.jnt_range[joints], [-np.inf, np.inf])
        gear = model.actuator_gear[:, 0].copy()
        names = tuple(model.joint(j).name or f"joint_{j}" for j in joints)
        return cls(
            path=path if description is None else description.path,
            spec=spec,
            model=model,
            actuation=actuation,
            joint_names=names,
            qpos_indices=tuple(int(model.jnt_qposadr[j]) for j in joints),
            qvel_indices=tuple(int(model.jnt_dofadr[j]) for j in joints),
            default_qpos=home_qpos(model),
            stiffness=model.actuator_gainprm[:, 0] * gear**2 if position else np.zeros(model.nu),
            damping=-model.actuator_biasprm[:, 2] * gear**2 if position else np.zeros(model.nu),
            joint_range=joint_range,
            control_range=_control_range(model, position, joint_range),
            effort_limit=_effort_limit(model, position),
            gear=gear,
            free_joint=floating,
            mass=float(model.body_mass[1:].sum()),
            feet=() if floating is None else _feet(model, floating, description),
            fall_sensors=() if floating is None else _fall_sensors(model, floating, description),
            action_scale=None if description is None else find_action_scale(names, description),
        )

    @property
    def num_joints(self) -> int:
        """Number of actuated joints."""
        return len(self.joint_names)

    @property
    def default_joint_pos(self) -> np.ndarray:
        """`(nu,)` positions of the actuated joints in the default pose."""
        return self.default_qpos[list(self.qpos_indices)]

    @property
    def foot_positions(self) -> np.ndarray:
        """`(F, 3)` positions of the feet in the default pose, in the base frame."""
        if self.free_joint is None:
            return np.zeros((0, 3))
        data = pose_data(self.model, self.default_qpos)
        return _in_frame(data, self.free_joint.body, [data.geom(foot.name).xpos for foot in self.feet])

    @property
    def hip_positions(self) -> np.ndarray:
        """`(F, 3)` positions of the hips of all feet in the default pose, in the base frame."""
        if self.free_joint is None:
            return np.zeros((0, 3))
        model, base = self.model, self.free_joint.body
        data = pose_data(model, self.default_qpos)
        hips = []
        for foot in self.feet:
            body = int(model.geom_bodyid[model.geom(foot.name).id])
            while body != base and int(model.body_parentid[body]) not in (0, base):
                body = int(model.body_parentid[body])
            hips.append(data.xpos[body])
        return _in_frame(data, base, hips)

    @property
    def feet_by_place(self) -> tuple[int, ...]:
        """Indices of the feet from front to rear, in each row the right one first, whatever the file's order.

        The file's order where there are not as many feet on the right as on the left.
        """
        places = self.foot_positions
        front_to_rear = np.argsort(-places[:, 0], kind="stable")
        is_right = places[:, 1] < places[:, 1].mean() if len(places) else np.zeros(0, dtype=bool)
        right, left = ([int(f) for f in front_to_rear if is_right[f] == side] for side in (True, False))
        if len(right) != len(left):
            return tuple(range(len(places)))
        return tuple(foot for row in zip(right, left) for foot in row)

    def mirror(self) -> Mirror:
        """Left-right partners of joints and feet, measured on the model; ValueError without symmetry."""
        base = self.require_locomotion("a mirror image").body
        joints = [int(joint) for joint in self.model.dof_jntid[list(self.qvel_indices)]]
        feet = [int(self.model.geom(foot.name).id) for foot in self.feet]
        try:
            found = find_mirror(self.model, pose_data(self.model, self.default_qpos), base, joints, feet)
        except ValueError:
            # An asymmetric default pose hides the symmetry of the robot; the check below reports the pose.
            found = find_mirror(self.model, pose_data(self.model, self.model.qpos0), base, joints, feet)
        pose = self.default_joint_pos
        apart = np.abs(pose - pose[list(found.joints)] * found.signs)
        if apart.max() > _POSE_TOLERANCE:
            name = self.joint_names[int(apart.argmax())]
            raise ValueError(
                f"the default pose of {self.path} has no mirror symmetry at '{name}': give left and right joints "
                "angles that mirror each other, or do without symmetry_cfg"
            )
        return found

    def require_locomotion(self, purpose: str) -> FreeJoint:
        """The free joint; ValueError without a free joint or feet, for a purpose such as `walking`."""
        if self.free_joint is None:
            raise ValueError(
                f"{self.path} has no free joint, so its base cannot move: add <freejoint/> to the robot's base body "
                f"for {purpose}, or choose a task for a robot that is bolted down"
            )
        if not self.feet:
            raise ValueError(
                f"{self.path} has no feet that could be found, as {purpose} needs them: name the geoms on the ground "
                "'..._foot' and let them collide (contype or conaffinity not 0), or name them as feet in a description"
            )
        return self.free_joint


def _in_frame(data: MjData, body: int, places: list[np.ndarray]) -> np.ndarray:
    """World positions as `(len(places), 3)` in the frame of a body."""
    return (np.array(places).reshape(-1, 3) - data.xpos[body]) @ data.xmat[body].reshape(3, 3)


def robot_path(name: str) -> Path:
    """The file of a robot: a path of an MJCF file or a description, or the name of one that comes with the library."""
    own = Path(__file__).parent
    path = Path(name).expanduser()
    for candidate in (path, own / name, own / f"{name}.xml", own / f"{name}.yaml"):
        if candidate.is_file():
            return candidate
    known = ", ".join(sorted(p.stem for p in own.iterdir() if p.suffix in (".xml", ".yaml")))
    raise ValueError(
        f"no robot file '{name}' in {Path.cwd()}: give the path of an MJCF file or of a robot description (.yaml), or "
        f"one of the built-in robots: {known}"
    )


def _feet(model: MjModel, floating: FreeJoint, description: RobotDescription | None) -> tuple[Foot, ...]:
    data = pose_data(model, home_qpos(model))
    return tuple(
        Foot(
            name=model.geom(shape.geom).name,
            contact=_address(model, "contact", shape),
            position=_address(model, "position", shape),
            velocity=_address(model, "velocity", shape),
            radius=sole_height(model, data, shape.geom),
        )
        for shape in find_foot_shapes(model, floating, description)
    )


def _fall_sensors(model: MjModel, floating: FreeJoint, description: RobotDescription | None) -> tuple[int, ...]:
    geoms = fall_geoms(model, floating, description)
    return tuple(_address(model, "contact", FootShape(geom, None)) for geom in geoms)


def _address(model: MjModel, kind: SensorKind, shape: FootShape) -> int:
    """Address of a sensor that `build_model` has added."""
    address = sensor_address(model, shape.geom, kind, shape.body)
    if address is None:
        raise RuntimeError(f"geom {shape.geom} has no {kind} sensor although one was added")
    return address


def _actuated_joint(model: MjModel, actuator: int, path: Path) -> int:
    name = model.actuator(actuator).name or f"number {actuator}"
    kinds = (int(mujoco.mjtTrn.mjTRN_JOINT), int(mujoco.mjtTrn.mjTRN_JOINTINPARENT))
    joint = int(model.actuator_trnid[actuator, 0])
    if int(model.actuator_trntype[actuator]) not in kinds or joint not in scalar_joints(model):
        raise ValueError(f"{path}: actuator '{name}' does not drive a hinge or slide joint; give it joint=\"...\"")
    return joint


def _actuation(model: MjModel, path: Path) -> Literal["position", "torque"]:
    """Whether all actuators are position servos or all are torque motors."""
    kinds: set[str] = set()
    for a in range(model.nu):
        fixed_gain = int(model.actuator_gaintype[a]) == int(mujoco.mjtGain.mjGAIN_FIXED)
        stateless = int(model.actuator_dyntype[a]) == int(mujoco.mjtDyn.mjDYN_NONE)
        bias, gain, prm = int(model.actuator_biastype[a]), model.actuator_gainprm[a, 0], model.actuator_biasprm[a]
        servo = bias == int(mujoco.mjtBias.mjBIAS_AFFINE) and gain > 0 and np.isclose(prm[1], -gain)
        motor = bias == int(mujoco.mjtBias.mjBIAS_NONE)
        if not (fixed_gain and stateless and (servo or motor)):
            name = model.actuator(a).name or f"number {a}"
            raise ValueError(f"{path}: actuator '{name}' is neither <position> nor <motor>; use one of these")
        kinds.add("position" if servo else "torque")
    if len(kinds) > 1:
        raise ValueError(f"{path} mixes <position> and <motor> actuators; use one kind for all joints")
    return "position" if kinds == {"position"} else "torque"


def _control_range(model: MjModel, position: bool, joint_range: np.ndarray) -> np.ndarray:
    """`(nu, 2)` limits of the controls; without limits, of a servo's joint, `joint_range` `(nu, 2)`, else infinite."""
    limited = model.actuator_ctrllimited.astype(bool)[:, None]
    if not position:
        return np.where(limited, model.actuator_ctrlrange, [-np.inf, np.inf])
    # A servo's control is gear times the joint angle; here everything is per joint.
    gear = model.actuator_gear[:, :1]
    return np.where(limited, np.sort(model.actuator_ctrlrange / gear, axis=1), joint_range)


def _effort_limit(model: MjModel, position: bool) -> np.ndarray:
    """`(nu,)` largest joint torque: of the actuator's force range, else of a motor's control range."""
    limit = np.full(model.nu, np.inf)
    gear = np.abs(model.actuator_gear[:, 0])
    if not position:
        control = np.abs(model.actuator_ctrlrange).max(axis=1) * np.abs(model.actuator_gainprm[:, 0]) * gear
        limit = np.where(model.actuator_ctrllimited.astype(bool), control, limit)
    force = np.abs(model.actuator_forcerange).max(axis=1) * gear
    return np.where(model.actuator_forcelimited.astype(bool), np.minimum(force, limit), limit)
