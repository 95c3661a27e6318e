"""Write, check and compare a deploy kit, which runs a policy on a robot: st-rl deploy RUN KIT | check | compare."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from st_rl import __version__
from st_rl.cli.support.command_line import CommandError, UsageError, asks_for_help, conf, parse_options, run_action
from st_rl.cli.support.run_folders.loaded_run import LoadedRun, open_run
from st_rl.cli.support.run_folders.run_folder import EVAL_FILE, REPORT_FILE, RunOptions

if TYPE_CHECKING:
    from st_rl.export.deploy import RawPolicy
    from st_rl.modules.policy.load import LoadedPolicy
    from st_rl.sim.envs.legged_task import LeggedTask

NUM_ROBOTS = 32
"""Robots of the golden run; the first one is recorded, all are compared."""
EPISODE_S = 3.0
"""Seconds of an episode of the golden run, so that it has several resets."""
_HELP = """usage: st-rl deploy RUN KIT [OPTIONS]
       st-rl deploy ACTION KIT [OPTIONS]

{rows}

A kit is a folder that runs a policy without this library: raw sensors to joint
targets, joints, gains, a recorded run as proof, and the robot for MuJoCo.
st-rl deploy RUN KIT --help lists the options of writing one, st-rl deploy
ACTION --help those of each action."""


@dataclass
class DeployOptions(RunOptions):
    """Options of `st-rl deploy`."""

    kit: Annotated[Path, conf("arg", metavar="KIT")] = field(kw_only=True)
    """Folder of the kit; it must not exist yet."""
    allow_estimates: bool = False
    """Whether observations that no robot measures become inputs, which the robot's own software has to estimate."""
    leapp: bool = False
    """Whether the kit also contains a LEAPP bundle, for ROS stacks that read one; needs pip install leapp."""


@dataclass
class CheckOptions:
    """Options of `st-rl deploy check`."""

    kit: Annotated[Path, conf("arg", metavar="KIT")]
    """Folder of the kit."""
    num_robots: int = 16
    """Robots that walk in each closed loop; if more than 1 of 16 fall, at least 64 walk."""
    seconds: float = 20.0
    """Length of a walk."""


@dataclass
class CompareOptions:
    """Options of `st-rl deploy compare`."""

    kit: Annotated[Path, conf("arg", metavar="KIT")]
    """Folder of the kit."""
    log: Annotated[Path, conf("arg", metavar="LOG")]
    """npz file with the inputs by name (T, ...), joint_targets (T, J) and time (T,) in s."""


def main(arguments: Sequence[str]) -> int:
    """Write the kit of a run, or run the action that the first argument names."""
    if not asks_for_help(arguments[:1]) and arguments[0] not in ACTIONS:
        return write(arguments)
    return run_action("deploy", _HELP, {"RUN KIT": write, **ACTIONS}, arguments)


def write(arguments: Sequence[str]) -> int:
    """Write the deploy kit of a run: st-rl deploy RUN KIT."""
    options = parse_options(DeployOptions, arguments, "deploy", write.__doc__)
    if options.kit.exists():
        raise UsageError(f"{options.kit} already exists: name another folder for the kit, or remove it")
    loaded, checkpoint = open_run(options)
    description = write_run_kit(
        loaded,
        checkpoint,
        options.kit,
        f"st-rl deploy {shlex.join(arguments)}",
        options.allow_estimates,
        _pages(loaded),
        options.leapp,
    )
    inputs = ", ".join(description["inputs"])
    quoted = shlex.quote(str(options.kit))
    print(f"{options.kit}: {inputs} -> joint_targets, every {description['control_period_s'] * 1000:g} ms")
    estimated = [name for name, signal in description["inputs"].items() if signal.get("must_be_estimated")]
    if estimated:
        print(f"Must be estimated on the robot: {', '.join(estimated)}")
    print(f"Next: st-rl deploy check {quoted}, or python {quoted}/simulate.py")
    return 0


def write_run_kit(
    loaded: LoadedRun,
    checkpoint: Path,
    kit: Path,
    command_line: str,
    allow_estimates: bool,
    pages: dict[str, str] | None = None,
    with_leapp: bool = False,
) -> dict[str, Any]:
    """Write the kit of a checkpoint and return the content of its `deploy.yaml`; `pages` are further text files."""
    from st_rl.export.deploy import write_kit

    task = _make_task(loaded, 1)
    trained = loaded.load_policy(task, checkpoint)
    policy = _make_policy(task, trained, loaded.source.name, allow_estimates)
    golden_task = _make_task(loaded, NUM_ROBOTS, **{"noise.level": 0.0, **_golden_episodes(loaded)})
    facts = _facts(loaded, trained, command_line)
    return write_kit(kit, policy, trained, golden_task, facts, pages, with_leapp, _evaluated_walks(loaded))


def _golden_episodes(loaded: LoadedRun) -> dict[str, Any]:
    """Settings of the episodes of a golden run: short walks, or whole clips."""
    from st_rl.sim.envs.motion_tracking_cfg import MotionTrackingCfg

    if isinstance(loaded.env_config, MotionTrackingCfg):
        return {"episode_length_s": 3600.0, "start": "first", "continue_to_next_clip": False}
    return {"episode_length_s": EPISODE_S}


def _make_task(loaded: LoadedRun, num_envs: int, **overrides: Any) -> LeggedTask:
    """The training task of a run; CommandError for a task without joint targets."""
    from st_rl.sim.envs.legged_task import LeggedTask

    task = loaded.source.make(loaded.env_config, num_envs, "cpu", 20_003, **overrides)
    if not isinstance(task, LeggedTask):
        raise CommandError(
            f"{loaded.run.path} is a run of {loaded.settings['task']}, which has no joint targets: a kit is for the "
            "walking and tracking tasks of st-rl tasks; st-rl export writes the policy of any other"
        )
    return task


def _make_policy(task: LeggedTask, trained: LoadedPolicy, name: str, allow_estimates: bool) -> RawPolicy:
    """The policy from raw sensors to joint targets; CommandError if it needs what no robot measures."""
    from st_rl.export import DeployedPolicy
    from st_rl.export.deploy import RawPolicy, find_ignored_terms
    from st_rl.sim.deploy.tracking_interface import make_interface

    deployed = DeployedPolicy(trained.actor_critic, trained.obs_normalizer)
    columns = make_interface(task).columns
    ignored = find_ignored_terms(deployed, {c.name: slice(c.start, c.start + c.width) for c in columns})
    interface = make_interface(task, ignored)
    if interface.unmeasured and not allow_estimates:
        terms = ", ".join(interface.unmeasured)
        raise CommandError(
            f"the actor observes what joint sensors, IMU and foot contacts do not measure: {terms}. Three ways out: "
            f"train without it (st-rl train {name} --env.deployable), let a state estimator replace it "
            "(--policy.class-name StateAc, see docs/policies.md), or distill a student that does not see it "
            f"(st-rl distill RUN {name} --env.deployable). To compute it in the software of the robot, add "
            "--allow-estimates"
        )
    return RawPolicy(interface, deployed)


def _facts(loaded: LoadedRun, trained: LoadedPolicy, command_line: str) -> dict[str, Any]:
    """Run, versions and evaluation for `deploy.yaml`."""
    import torch

    evaluation = loaded.run.read_optional_json(EVAL_FILE) or {}
    return {
        "task": loaded.settings["task"],
        "run": loaded.run.path.name,
        "checkpoint": trained.checkpoint.name,
        "iteration": trained.iteration,
        "policy_class": type(trained.actor_critic).__name__,
        "st_rl_version": __version__,
        "torch_version": torch.__version__,
        "command_line": command_line,
        "evaluation": evaluation.get("columns"),
    }


def _evaluated_walks(loaded: LoadedRun) -> dict[str, np.ndarray]:
    """Commands, mean velocities and falls of all robots of `st-rl eval` in fine physics, and their initial states.

    `golden.py` lists the arrays; empty without an evaluation.
    """
    from st_rl.sim.deploy.robot_interface import RobotInterface
    from st_rl.sim.envs.legged_walk import LeggedWalk
    from st_rl.sim.evaluation.evaluator import EvaluationCfg

    evaluation = loaded.run.read_optional_json(EVAL_FILE) or {}
    grid = evaluation.get("grid", {}).get("fine physics")
    if grid is None:
        return {}
    plan = EvaluationCfg(num_envs=len(grid["command"]), seed=evaluation.get("seed", EvaluationCfg.seed))
    task = loaded.make_eval_env(plan.num_envs, plan.seconds, plan.seed, fine=True)
    assert isinstance(task, LeggedWalk), "only evaluations of walking tasks have a grid of commands"
    # As an evaluation does; it is the second reset after that of the construction.
    task.reset()
    qpos, qvel = RobotInterface(task).initial_states(task)
    arrays = {name: np.array(grid[name], np.float64) for name in ("command", "velocity")}
    arrays |= {"fell": np.array(grid["fell"], bool), "qpos": qpos, "qvel": qvel}
    return {f"evaluation_{name}": array for name, array in arrays.items()}


def _pages(loaded: LoadedRun) -> dict[str, str]:
    """The report of the run."""
    from st_rl.cli.support.report_page import build_run_page

    return {REPORT_FILE: build_run_page(loaded.run)[1]}


def check(arguments: Sequence[str]) -> int:
    """Check a deploy kit, its files, golden run and closed loop in plain MuJoCo: st-rl deploy check KIT."""
    options = parse_options(CheckOptions, arguments, "deploy check", check.__doc__)
    _require_kit(options.kit)
    from st_rl.export.deploy.check import check_kit

    has_failed = False
    for result in check_kit(options.kit, options.num_robots, options.seconds):
        mark = {True: "pass", False: "FAIL", None: "info"}[result.passed]
        print(f"{mark}  {result.name:<38} {result.detail}", flush=True)
        has_failed |= result.passed is False
    print("The kit failed." if has_failed else "The kit passed.")
    return int(has_failed)


def _require_kit(folder: Path) -> None:
    """UsageError if a folder is not a kit."""
    from st_rl.export.deploy.kit import CHECKSUM_FILE

    if not (folder / CHECKSUM_FILE).is_file():
        raise UsageError(f"{folder} is not a deploy kit (no {CHECKSUM_FILE}): write one with st-rl deploy RUN {folder}")


def compare(arguments: Sequence[str]) -> int:
    """Compare a log of a robot with the golden run of its kit: st-rl deploy compare KIT LOG.npz."""
    options = parse_options(CompareOptions, arguments, "deploy compare", compare.__doc__)
    _require_kit(options.kit)
    from st_rl.export.deploy.compare import compare_log
    from st_rl.utils.files import load_arrays, name_file

    with name_file(options.log, "save it with numpy.savez_compressed", CommandError):
        log = load_arrays(options.log)
    findings = compare_log(options.kit, log)
    for finding in findings:
        print(f"{'FAULT' if finding.is_fault else 'note '}  {finding.name}: {finding.message}")
    num_faults = sum(finding.is_fault for finding in findings)
    print(f"{num_faults} faults found." if num_faults else "No fault found: the targets follow from the inputs.")
    return int(num_faults > 0)


ACTIONS = {"check": check, "compare": compare}
