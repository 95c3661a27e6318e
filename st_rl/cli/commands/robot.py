"""Show the joints and feet of a robot file, and whether the robot stands: st-rl robot FILE."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from st_rl.cli.support.command_line import conf, parse_options

if TYPE_CHECKING:
    import numpy as np
    from rich.table import Table

    from st_rl.sim.robots import Robot
    from st_rl.sim.robots.mirror import Mirror
    from st_rl.sim.robots.standing import StandingResult

# Joint errors (rad) and fractions of the effort limit above which standing is reported as a problem.
_LARGE_SAG = 0.3
_LARGE_EFFORT = 0.8
# Minimum width of the joint table.
_TABLE_WIDTH = 110


@dataclass
class RobotOptions:
    """Options of `st-rl robot`."""

    file: Annotated[str, conf("arg", metavar="FILE")]
    """MJCF file, robot description (.yaml), or name of a built-in robot."""
    seconds: float = 2.0
    """Duration of the standing test; 0 skips it."""
    stiffness: float | None = None
    """Position gain, Nm/rad, to hold a robot with torque actuators."""
    damping: float | None = None
    """Velocity gain, Nm s/rad, to hold a robot with torque actuators."""
    image: Path | None = None
    """File of a picture of the robot in its default pose (.png)."""
    width: int = 640
    """Width of the picture in pixels."""
    height: int = 480
    """Height of the picture in pixels."""


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    options = parse_options(RobotOptions, arguments, "robot", __doc__)
    from rich.console import Console

    from st_rl.sim.robots import Robot, robot_path

    robot = Robot.from_file(robot_path(options.file))
    console = Console(highlight=False)
    console.width = max(console.width, _TABLE_WIDTH)
    console.print(_joint_table(robot))
    for line in _facts(robot):
        console.print(line, soft_wrap=True)
    standing = _stand(robot, options)
    lines = [] if standing is None else [_outcome(robot, standing, options.seconds)]
    lines += [f"[yellow]note[/]: {note}" for note in _notes(robot, standing, options)]
    for line in lines:
        console.print(line, soft_wrap=True)
    if options.image is not None:
        _draw(robot, options.image, options.width, options.height)
        console.print(f"picture: {options.image}", soft_wrap=True)
    return 0


def _joint_table(robot: Robot) -> Table:
    from rich.table import Table

    mirror = _mirror(robot)
    table = Table(box=None, padding=(0, 2, 0, 0))
    scaled = ["action"] if robot.action_scale is not None else []
    for column in ("", "joint", "default", "from", "to", "stiffness", "damping", "effort", *scaled, "mirror"):
        table.add_column(column, justify="left" if column == "joint" else "right", no_wrap=True)
    for i, name in enumerate(robot.joint_names):
        numbers = [robot.default_joint_pos[i], *robot.joint_range[i]]
        numbers += [robot.stiffness[i], robot.damping[i], robot.effort_limit[i]]
        numbers += [] if robot.action_scale is None else [robot.action_scale[i]]
        image = "" if isinstance(mirror, str) else f"{'-' if mirror.signs[i] < 0 else '+'}{mirror.joints[i]}"
        table.add_row(str(i), name, *(f"{number:.3g}" for number in numbers), image)
    return table


def _mirror(robot: Robot) -> Mirror | str:
    """Return the left-right symmetry of a robot, or the reason why it has none."""
    try:
        return robot.mirror()
    except ValueError as error:
        return str(error)


def _facts(robot: Robot) -> Iterator[str]:
    kind = "position servos" if robot.actuation == "position" else "torque motors"
    joints = "1 joint" if robot.num_joints == 1 else f"{robot.num_joints} joints"
    yield f"{robot.path}: {joints} with {kind}, {robot.mass:.2f} kg"
    if robot.free_joint is None:
        yield "no free joint: fixed base"
        return
    body = robot.model.body(robot.free_joint.body).name or "unnamed"
    yield f"base: body '{body}', {robot.default_qpos[robot.free_joint.qpos + 2]:.3f} m high in the default pose"
    places = robot.foot_positions
    for order, foot in enumerate(robot.feet_by_place):
        x, y, _ = places[foot]
        where = f"{abs(x):.2f} m {'front' if x > 0 else 'rear'}, {abs(y):.2f} m {'left' if y > 0 else 'right'}"
        yield f"foot {order}: {robot.feet[foot].name}, {where}, centre {robot.feet[foot].radius:.3f} m above its sole"
    model = robot.model
    geoms = {int(model.sensor_adr[s]): int(model.sensor_objid[s]) for s in range(model.nsensor)}
    falls = [model.geom(geoms[address]).name for address in robot.fall_sensors]
    yield f"ground contacts that count as a fall: {', '.join(falls) or 'none'}"


def _stand(robot: Robot, options: RobotOptions) -> StandingResult | None:
    """Simulate the robot standing; None if it cannot stand or the test is skipped."""
    from st_rl.sim.robots.standing import simulate_standing

    gains = None
    if options.stiffness is not None and options.damping is not None:
        gains = (options.stiffness, options.damping)
    can_be_held = robot.actuation == "position" or gains is not None
    if options.seconds <= 0 or robot.free_joint is None or not robot.feet or not can_be_held:
        return None
    return simulate_standing(robot, options.seconds, gains)


def _outcome(robot: Robot, standing: StandingResult, seconds: float) -> str:
    worst = int(abs(standing.sag).argmax())
    sag = f"{robot.joint_names[worst]} has the largest error, {standing.sag[worst]:+.2f} rad"
    down = f"{sum(standing.feet_down)} of {len(robot.feet)} feet on the ground"
    if standing.fell_after is not None:
        return f"[red]falls[/] after {standing.fell_after:.2f} s with position control only; at the end {down}, {sag}"
    return (
        f"[green]stands[/] for {seconds:g} s with position control: base at {standing.height:.3f} m, tilt "
        f"{standing.lean:.1f} degrees, {down}, {sag}"
    )


def _notes(robot: Robot, standing: StandingResult | None, options: RobotOptions) -> Iterator[str]:
    """Yield notes on what could go wrong in a training with this robot."""
    if robot.actuation == "position" and (options.stiffness, options.damping) != (None, None):
        yield "the robot has position servos: --stiffness and --damping, which are for torque motors, were ignored"
    low, high = robot.joint_range.T
    pose = robot.default_joint_pos
    for i, name in enumerate(robot.joint_names):
        if not low[i] <= pose[i] <= high[i]:
            yield f"{name} is at {pose[i]:.3g} by default, outside its range: set a default_pose"
    if robot.free_joint is None:
        yield "a walking task needs a free joint on the base"
        return
    if not robot.feet:
        yield "no feet found: name their geoms '..._foot', or list them as feet in a robot description"
    mirror = _mirror(robot)
    if isinstance(mirror, str):
        yield f"no left-right symmetry: {mirror}"
    if standing is None:
        if robot.actuation == "torque":
            yield "torque motors: set --stiffness and --damping here, --env.control.stiffness and .damping in training"
        return
    for one, other in standing.self_contacts:
        yield f"'{one}' touches '{other}' in the default pose: set self_collisions: false, or another pose"
    if standing.fell_after is not None:
        if len(robot.feet) > 2:
            yield "it falls: increase the stiffness, or set a default_pose with the feet below the base"
        else:
            yield "expected for a biped: position control does not balance, a policy learns to"
        return
    for i, name in enumerate(robot.joint_names):
        fraction = abs(standing.effort[i]) / robot.effort_limit[i]
        if abs(standing.sag[i]) > _LARGE_SAG and low[i] <= pose[i] <= high[i]:
            yield f"{name} is {standing.sag[i]:+.2f} rad from its target: increase the stiffness"
        if fraction > _LARGE_EFFORT:
            yield f"{name} needs {fraction:.0%} of its effort_limit to stand"


def _draw(robot: Robot, path: Path, width: int, height: int) -> None:
    from st_rl.sim.evaluation.rendering import FrameRenderer, prepare_rendering
    from st_rl.sim.require import require_mujoco
    from st_rl.utils.files import atomic_write

    prepare_rendering()
    mujoco = require_mujoco()
    data = mujoco.MjData(robot.model)
    data.qpos[:] = robot.default_qpos
    mujoco.mj_forward(robot.model, data)
    with FrameRenderer(robot.model, width, height) as renderer, atomic_write(path) as temporary:
        temporary.write_bytes(png(renderer.draw(data)))


def png(frame: np.ndarray) -> bytes:
    """Encode an image `(height, width, 3)` uint8 as PNG."""
    height, width, _ = frame.shape
    # Each row begins with its filter type, 0 for none.
    rows = b"".join(b"\0" + frame[row].tobytes() for row in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    parts = [
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)
