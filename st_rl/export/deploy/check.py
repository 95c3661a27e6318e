"""Checks of a deploy kit: its files, its golden run, and its closed loop in plain MuJoCo.

No code of the kit is run: the closed loop is that of `files/simulate.py` of this library.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import yaml

from st_rl.export.deploy.cpp_header import HEADER_FILE, replay_header, write_cpp_files
from st_rl.export.deploy.golden import replay_golden
from st_rl.export.deploy.kit import (
    CHECKSUM_FILE,
    CONTROLLER_FILE,
    DESCRIPTION_FILE,
    FORMAT,
    GOLDEN_FILE,
    LEAPP_FOLDER,
    POLICY_FILE,
    ROBOT_FILE,
    TOLERANCE_RAD,
    OnnxStep,
    checksum,
)
from st_rl.export.deploy.leapp_bundle import LeappStep

if TYPE_CHECKING:
    from st_rl.export.deploy.files.simulate import Disturbance, Performance, SimulatedRobot, Walk
    from st_rl.export.deploy.files.simulate import Policy as SimulatedPolicy

ERROR_FACTOR = 1.2
"""Largest forward velocity error in an undisturbed walk, as a multiple of that of the same robots in `st-rl eval`."""
FALLEN_FRACTION = 1 / 16
"""Largest fraction of falls in a disturbed walk."""
NUM_ROBOTS = 64
"""Robots that decide if more than `FALLEN_FRACTION` of the first ones fall, and no evaluation says how many there are.

Of 16 robots, 2 fall by chance in one scenario of twelve if 3 in 100 do.
"""


class CheckResult(NamedTuple):
    """One row of the table."""

    name: str
    passed: bool | None
    """None for a check that only informs, or could not run."""
    detail: str


Motion = TypeVar("Motion", "Walk", "Performance")


class WalkPlan(NamedTuple):
    """How `N` robots start, what they are commanded, and how the same robots walked in `st-rl eval`."""

    qpos: np.ndarray
    """`(N, nq)`"""
    qvel: np.ndarray
    """`(N, nv)`"""
    commands: np.ndarray
    """`(N, 3)`"""
    velocities: np.ndarray | None = None
    """`(N, 3)` mean velocities in fine physics, NaN for a robot that fell; None without an evaluation."""

    def select(self, robots: Sequence[int]) -> WalkPlan:
        """The plan of some of the robots, or of as many of them again."""
        rows = np.array(robots) % len(self.commands)
        return WalkPlan(*(None if values is None else values[rows] for values in self))  # pyright: ignore[reportArgumentType]


class Scenario(NamedTuple):
    """One closed loop with several robots."""

    name: str
    disturbance: Disturbance
    may_fall: bool
    """Whether falls up to `FALLEN_FRACTION` are accepted; otherwise no more than in `st-rl eval`."""
    is_required: bool = True
    """Whether it decides about pass or fail."""


def check_kit(folder: Path, num_robots: int = 16, seconds: float = 20.0) -> Iterator[CheckResult]:
    """Yield the results of all checks, the closed loops last; a damaged kit ends with its first failure."""
    files = check_files(folder)
    yield files
    if not files.passed:
        return
    description = yaml.safe_load((folder / DESCRIPTION_FILE).read_text(encoding="utf-8"))
    if description["format"] != FORMAT:
        detail = f"format {description['format']} of {DESCRIPTION_FILE}, this st_rl reads {FORMAT}: write the kit again"
        yield CheckResult("format", False, detail)
        return
    step = OnnxStep(folder / POLICY_FILE)
    is_same = description == step.description
    yield CheckResult(
        f"{DESCRIPTION_FILE} = metadata of {POLICY_FILE}", is_same, _differing_keys(description, step.description)
    )
    with np.load(folder / GOLDEN_FILE, allow_pickle=False) as arrays:
        golden = dict(arrays)
    yield check_golden(POLICY_FILE, step, golden, description)
    yield check_controller(folder, golden)
    if (folder / LEAPP_FOLDER).is_dir():
        yield check_golden(LEAPP_FOLDER, LeappStep(folder / LEAPP_FOLDER), golden, description)
    yield check_header(folder, golden, description)
    yield from check_motion(folder, description, golden, num_robots, seconds)


def check_files(folder: Path) -> CheckResult:
    """Compare all files with their checksums."""
    listed = dict(line.split("  ", 1)[::-1] for line in (folder / CHECKSUM_FILE).read_text("utf-8").splitlines())
    wrong = []
    for name, expected in listed.items():
        path = folder / name
        if not path.is_file():
            wrong.append(f"{name} is missing")
        elif checksum(path) != expected:
            wrong.append(f"{name} was changed")
    return CheckResult("files and checksums", not wrong, "; ".join(wrong) or f"{len(listed)} files")


def check_golden(
    name: str, step: Callable[..., Any], golden: Mapping[str, np.ndarray], description: Mapping[str, Any]
) -> CheckResult:
    """Replay the golden run with one implementation of the policy."""
    difference = replay_golden(step, golden, description)["joint_targets"]
    steps, resets = len(golden["reset"]), int(golden["reset"].sum())
    detail = f"{difference:.1e} rad over {steps} steps with {resets} starts"
    return CheckResult(f"golden run: {name}", difference <= TOLERANCE_RAD, detail)


def check_header(folder: Path, golden: Mapping[str, np.ndarray], description: Mapping[str, Any]) -> CheckResult:
    """Replay the golden run with the C++ header, where a compiler is installed.

    The header is translated again from the policy and compared with that of the kit before anything is compiled.
    """
    name = f"golden run: {HEADER_FILE}"
    compiler = shutil.which("g++") or shutil.which("clang++")
    if not (folder / HEADER_FILE).is_file():
        return CheckResult(name, None, f"not run: the kit has no {HEADER_FILE}")
    with tempfile.TemporaryDirectory() as temporary:
        own = Path(temporary)
        write_cpp_files(own, folder / POLICY_FILE, golden, description)
        if (own / HEADER_FILE).read_bytes() != (folder / HEADER_FILE).read_bytes():
            return CheckResult(name, False, f"it is not the translation of {POLICY_FILE}")
        if compiler is None:
            return CheckResult(name, None, "not run: there is no C++ compiler (g++ or clang++)")
        result = replay_header(own, compiler)
    difference = result["largest_difference_rad"]
    detail = f"{difference:.1e} rad over {result['steps']:.0f} steps, {result['microseconds_per_step']:.0f} us a step"
    return CheckResult(name, difference <= TOLERANCE_RAD, detail)


def check_controller(folder: Path, golden: Mapping[str, np.ndarray]) -> CheckResult:
    """Replay the golden run with the controller of this library, which that of the kit must equal."""
    from st_rl.export.deploy.files import controller

    name = f"golden run: {CONTROLLER_FILE}"
    if (folder / CONTROLLER_FILE).read_bytes() != Path(controller.__file__).read_bytes():
        return CheckResult(name, False, "not the file of this version of st_rl; write the kit again")
    runner = controller.Controller(controller.Policy(folder / POLICY_FILE))
    difference = controller.replay_golden(runner, golden)
    return CheckResult(name, difference <= TOLERANCE_RAD, f"{difference:.1e} rad over {len(golden['reset'])} steps")


def scenarios() -> list[Scenario]:
    """The closed loops of a check."""
    from st_rl.export.deploy.files.simulate import Disturbance

    rows = [Scenario("walk: undisturbed", Disturbance(), may_fall=False)]
    rows += [Scenario("walk: sensor noise", Disturbance(noise=1.0), may_fall=True)]
    for delay_ms in (10, 20, 30, 40):
        disturbance = Disturbance(noise=1.0, delay_s=delay_ms / 1000)
        rows.append(Scenario(f"walk: noise, {delay_ms} ms delay", disturbance, True, delay_ms <= 20))
    rows += [Scenario("walk: noise, 5% lost messages", Disturbance(noise=1.0, dropped=0.05), may_fall=True)]
    for friction in (0.5, 1.2):
        rows.append(Scenario(f"walk: noise, friction {friction}", Disturbance(noise=1.0, friction=friction), True))
    return rows


def check_motion(
    folder: Path, description: Mapping[str, Any], golden: Mapping[str, np.ndarray], num_robots: int, seconds: float
) -> Iterator[CheckResult]:
    """Walk in plain MuJoCo, or play clips, one scenario after the other."""
    try:
        from st_rl.export.deploy.files import simulate
    except ImportError as error:
        yield CheckResult("walk", None, f"not run: {error.name} is missing, pip install {error.name}")
        return
    if missing := simulate.missing_estimates(description):
        yield CheckResult("walk", None, f"not run: {', '.join(missing)} must be estimated on the robot")
        return
    policy = simulate.Policy(folder / POLICY_FILE)
    if "clips" in description:
        yield from _check_clips(policy, folder, description, num_robots)
        return
    plan = plan_walks(description, golden)
    for scenario in scenarios():
        robot = simulate.SimulatedRobot(description, folder / ROBOT_FILE, scenario.disturbance)

        def walk(number: int, robot: SimulatedRobot = robot) -> Walk:
            row = number % len(plan.commands)
            robot.reset(plan.qpos[row], plan.qvel[row], seed=number)
            return simulate.walk(policy, robot, plan.commands[row], seconds)

        walks = run_robots(walk, len(plan.commands), num_robots, scenario.may_fall)
        yield _evaluate_walks(scenario, list(walks.values()), plan.select(list(walks)))


def run_robots(run: Callable[[int], Motion], count: int, num_first: int, may_fall: bool) -> dict[int, Motion]:
    """Let `num_first` robots of `count` move, and if more of them fall than may, all others too.

    Robots are numbers, which also seed their noise; more than `count` repeat the first ones with other noise.
    """
    total = max(count, num_first)
    first = np.linspace(0, total - 1, num_first).round().astype(int).tolist()
    moved = {number: run(number) for number in first}
    if may_fall and sum(motion.fell for motion in moved.values()) > len(moved) * FALLEN_FRACTION:
        moved |= {number: run(number) for number in range(total) if number not in moved}
    return moved


def _check_clips(
    policy: SimulatedPolicy, folder: Path, description: Mapping[str, Any], num_robots: int
) -> Iterator[CheckResult]:
    """Play all clips from their first frames; `num_robots` performances a scenario, and one of each clip at least."""
    from st_rl.export.deploy.files import simulate

    clips = simulate.Clips(description, (folder / ROBOT_FILE).with_name("clips.npz"))
    evaluated = ((description.get("evaluation") or {}).get("fine physics") or {}).get("joint_pos_error")
    num_clips = len(clips.names)
    for scenario in scenarios():
        robot = simulate.SimulatedRobot(description, folder / ROBOT_FILE, scenario.disturbance)

        def play(number: int, robot: SimulatedRobot = robot) -> Performance:
            return simulate.perform(policy, robot, clips, number % num_clips, seed=number)

        # Without disturbance all performances of a clip are the same.
        num_first, total = (max(num_robots, num_clips), NUM_ROBOTS) if scenario.may_fall else (num_clips, num_clips)
        played = list(run_robots(play, total, num_first, scenario.may_fall).values())
        count, falls = len(played), sum(performance.fell for performance in played)
        error = float(np.mean([performance.joint_error for performance in played]))
        passed = falls <= (count * FALLEN_FRACTION if scenario.may_fall else 0)
        detail = f"{falls} of {count} fell; joint error {error:.3f} rad"
        if evaluated is not None and not scenario.may_fall:
            passed = passed and error <= ERROR_FACTOR * evaluated
            detail += f" (at most {ERROR_FACTOR * evaluated:.3f})"
        name = scenario.name.replace("walk", "clips")
        yield CheckResult(name, passed if scenario.is_required else None, detail)


def plan_walks(description: Mapping[str, Any], golden: Mapping[str, np.ndarray]) -> WalkPlan:
    """The robots of `st-rl eval`.

    Without an evaluation robots of the golden run, with commands within the ranges of the training, none too small to
    walk.
    """
    if "evaluation_command" in golden:
        names = ("qpos", "qvel", "command", "velocity", "fell")
        qpos, qvel, commands, velocities, fell = (golden[f"evaluation_{name}"] for name in names)
        return WalkPlan(qpos, qvel, commands, np.where(fell[:, None], np.nan, velocities))
    low, high = np.array([description["commands"][name] for name in ("lin_vel_x", "lin_vel_y", "ang_vel_yaw")]).T
    commands = np.random.default_rng(0).uniform(low, high, (NUM_ROBOTS, 3))
    is_small = np.linalg.norm(commands, axis=1) <= description["clock"]["moving_threshold"]
    starts = np.arange(NUM_ROBOTS) % len(golden["start_qpos"])
    commands = np.where(is_small[:, None], high, commands)
    return WalkPlan(golden["start_qpos"][starts], golden["start_qvel"][starts], commands)


def _evaluate_walks(scenario: Scenario, walks: list[Walk], plan: WalkPlan) -> CheckResult:
    """Falls and velocity errors of a scenario; the errors are of robots that fell neither here nor in `st-rl eval`.

    They count in an undisturbed walk.
    """
    expected = plan.commands if plan.velocities is None else plan.velocities
    fell, fell_before = np.array([walk.fell for walk in walks]), np.isnan(expected[:, 0])
    falls, counted = int(fell.sum()), ~fell & ~fell_before
    errors = np.array([np.abs(walk.velocity - walk.command) for walk in walks])[counted]
    error = errors.mean(axis=0) if len(errors) else np.full(3, np.nan)
    detail = f"{falls} of {len(walks)} fell; velocity error {error[0]:.3f} {error[1]:.3f} m/s {error[2]:.3f} rad/s"
    passed = falls <= (len(walks) * FALLEN_FRACTION if scenario.may_fall else fell_before.sum())
    if plan.velocities is not None and not scenario.may_fall and len(errors):
        limit = ERROR_FACTOR * float(np.abs(plan.velocities - plan.commands)[counted, 0].mean())
        passed = passed and bool(error[0] <= limit)
        detail += f" (forward at most {limit:.3f}; {fell_before.sum()} fell in st-rl eval)"
    return CheckResult(scenario.name, bool(passed) if scenario.is_required else None, detail)


def _differing_keys(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    keys = [key for key in {**first, **second} if first.get(key) != second.get(key)]
    return f"differ in {', '.join(keys)}" if keys else f"{len(first)} entries"
