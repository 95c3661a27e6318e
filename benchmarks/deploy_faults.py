"""Planted faults: what `st-rl deploy compare` says to the log of a robot with each, and what `controller.py` does.

    python benchmarks/deploy_faults.py kit another_kit

For each kit and fault: a robot walks 6 s in plain MuJoCo with noise and 10 ms delay, with the fault from the start
(stale data and NaN after 2 s), and the log is compared with the kit. Then a robot without fault stands up and walks
with the controller; the fault starts 2 s later, in five phases of the gait, and the steps are counted until it damps:
all counts, and the largest. A mistake of the integration is there from the start as well: then the state is noted in
which the controller damps, best before the policy starts. Without a fault the controller walks four times 20 s with the
noise of the training, 20 ms delay and 5% lost messages, and must not damp. A kit that does not read foot contacts has
no dead foot sensor. Writes benchmarks/results/deploy_faults.json (or --out); exit code 1 if a comparison misses a fault
or finds one in a good log, or if the controller damps without one.
"""

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from machine import describe_machine, write_results

from st_rl.export.deploy.compare import compare_log
from st_rl.export.deploy.files import simulate
from st_rl.export.deploy.files.controller import Controller, GuardError, Policy, Sensors, State

Values = dict[str, np.ndarray]
Fault = Callable[[Values, list[Values]], None]
"""Changes the values of a measurement, given the measurements before."""
COMMAND = np.array([0.5, 0.0, 0.0])
STAND_UP_S, START_S, WATCH_S = 1.0, 2.0, 4.0
"""Standing up; walking before a live fault; watching the controller from then on."""
PHASES_S = (0.0, 0.08, 0.16, 0.24, 0.32)
"""Later starts of a live fault, in other phases of the gait."""
USUAL = simulate.Disturbance(noise=0.5, delay_s=0.01)
GOOD = simulate.Disturbance(noise=1.0, delay_s=0.02, dropped=0.05)
GOOD_WALKS, GOOD_S = 4, 20.0
"""Walks without a fault, in which the controller must not damp."""


def swap_joints(values: Values, history: list[Values]) -> None:
    for name in ("joint_pos", "joint_vel"):
        values[name][[1, 2]] = values[name][[2, 1]]


def scale_velocities(values: Values, history: list[Values]) -> None:
    values["joint_vel"] *= np.float32(0.05)


def give_xyzw(values: Values, history: list[Values]) -> None:
    values["orientation"] = values["orientation"][[1, 2, 3, 0]]


def give_degrees(values: Values, history: list[Values]) -> None:
    values["joint_pos"] = np.rad2deg(values["joint_pos"])


def halve_rate(values: Values, history: list[Values]) -> None:
    """Nothing: the robot moves on for two periods between two steps."""


def repeat_old_data(values: Values, history: list[Values]) -> None:
    if history:
        values |= {name: value.copy() for name, value in history[-1].items() if name != "command"}


def send_one_nan(values: Values, history: list[Values]) -> None:
    if len(history) == 1:
        values["joint_vel"][3] = np.nan


def silence_foot(values: Values, history: list[Values]) -> None:
    values["foot_contact"][0] = 0.0


FAULTS: dict[str, tuple[Fault, str]] = {
    "swapped joints": (swap_joints, "look swapped"),
    "wrong scale": (scale_velocities, "wrong scale"),
    "xyzw quaternion": (give_xyzw, "x, y, z, w"),
    "degrees": (give_degrees, "degrees"),
    "25 Hz instead of 50": (halve_rate, "(25 Hz)"),
    "stale data": (repeat_old_data, "stale data"),
    "one NaN": (send_one_nan, "1 NaN"),
    "dead foot sensor": (silence_foot, "dead sensor"),
}
"""By name: how to plant it, and words by which the comparison must name it."""
EVENTS = ("stale data", "one NaN")
"""Faults that happen on a robot that worked before; the others are mistakes of its integration."""


class FaultyRobot(simulate.SimulatedRobot):
    """A robot with a fault between its sensors and the policy, from `fault_s` on."""

    def __init__(
        self,
        kit: Path,
        deploy: Mapping[str, Any],
        fault: Fault | None,
        fault_s: float = 0.0,
        disturbance: simulate.Disturbance = USUAL,
    ) -> None:
        super().__init__(deploy, kit / "robot" / "robot.xml", disturbance)
        self._fault, self._fault_s = fault, fault_s
        self._history: list[Values] = []

    def measure(self, command: np.ndarray) -> Values:
        """Raw inputs, with the fault."""
        values = {name: value.copy() for name, value in super().measure(command).items()}
        if self._fault is None or self.data.time < self._fault_s - 1e-9:
            self._history = [values]
            return values
        self._fault(values, self._history)
        self._history.append(values)
        return values

    def apply(self, targets: np.ndarray) -> None:
        """Track joint targets for one control period, or for two at half the rate."""
        super().apply(targets)
        if self._fault is halve_rate and self.data.time >= self._fault_s:
            super().apply(targets)


def compare(kit: Path, fault: Fault | None, fault_s: float = 0.0, seconds: float = 6.0) -> list[str]:
    """The faults that `st-rl deploy compare` finds in a walk, as it prints them."""
    policy = simulate.Policy(kit / "policy.onnx")
    log = simulate.walk(policy, FaultyRobot(kit, policy.deploy, fault, fault_s), COMMAND, seconds).log
    if fault is halve_rate:
        log["time"] = 2.0 * log["time"]
    return [f"{finding.name}: {finding.message}" for finding in compare_log(kit, log) if finding.is_fault]


class Reaction(NamedTuple):
    """How the controller ends a fault."""

    steps: int | None
    """Control steps from the first with the fault to damping, 1 for the same step; None if it does not damp."""
    state: str
    """The state before damping, passive if the robot does not even stand up."""
    reason: str


def control(kit: Path, fault: Fault, fault_s: float) -> Reaction:
    """Stand up and walk with the controller, with a fault from `fault_s` on."""
    policy = Policy(kit / "policy.onnx")
    return lead(policy, FaultyRobot(kit, policy.deploy, fault, fault_s), fault_s, max(fault_s, STAND_UP_S) + WATCH_S)


def count_false_alarms(kit: Path) -> list[str]:
    """Why the controller damped in walks without a fault; empty if it never did."""
    policy = Policy(kit / "policy.onnx")
    robot = FaultyRobot(kit, policy.deploy, None, 0.0, GOOD)
    reasons = []
    for seed in range(GOOD_WALKS):
        robot.reset(robot.model.key("home").qpos, np.zeros(robot.model.nv), seed)
        reasons.append(lead(policy, robot, 0.0, GOOD_S).reason)
    return [reason for reason in reasons if reason]


def lead(policy: Policy, robot: FaultyRobot, fault_s: float, seconds: float) -> Reaction:
    """Stand up and walk with the controller."""
    controller = Controller(policy, stand_up_s=STAND_UP_S)
    faulty = 0
    while robot.data.time < seconds:
        now, state = float(robot.data.time), controller.state.value
        faulty += now >= fault_s - 1e-9
        values = {name: value for name, value in robot.measure(COMMAND).items() if name != "command"}
        sensors = Sensors(now, values)
        if controller.state is State.PASSIVE:
            try:
                controller.start_stand_up(sensors, now)
            except GuardError as error:
                return Reaction(faulty, state, str(error))
        elif controller.is_standing(now):
            controller.set_command(COMMAND)
            controller.start_policy(now)
        command = controller.step(sensors, now)
        if controller.state is State.DAMPING:
            return Reaction(faulty, state, controller.reason)
        robot.apply(command.targets)
    return Reaction(None, controller.state.value, "")


def measure_kit(kit: Path) -> dict[str, Any]:
    """All faults of a kit, and a good log."""
    inputs = simulate.Policy(kit / "policy.onnx").deploy["inputs"]
    start_s = STAND_UP_S + START_S
    good, alarms = compare(kit, None), count_false_alarms(kit)
    rows: dict[str, Any] = {"none": {"compare": good, "named": not good and not alarms, "false_alarms": alarms}}
    for name, (fault, words) in FAULTS.items():
        if fault is silence_foot and "foot_contact" not in inputs:
            continue
        found = compare(kit, fault, START_S if name in EVENTS else 0.0)
        reactions = [control(kit, fault, start_s + phase) for phase in PHASES_S]
        steps = [reaction.steps for reaction in reactions]
        worst = None if None in steps else max(step for step in steps if step is not None)
        named = any(words in line for line in found)
        rows[name] = {"compare": found, "named": named, "steps_to_damping": worst, "steps_by_phase": steps}
        rows[name]["reason"] = reactions[0].reason
        if name not in EVENTS:
            rows[name]["from_start"] = control(kit, fault, 0.0)._asdict()
        print(f"{kit.name}, {name}: {rows[name]}", flush=True)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kits", type=Path, nargs="+", help="deploy kits of policies that walk")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "deploy_faults.json")
    options = parser.parse_args()
    kits = {kit.name: measure_kit(kit) for kit in options.kits}
    write_results(options.out, {"benchmark": "deploy_faults", **describe_machine(), "kits": kits})
    missed = [f"{kit}: {fault}" for kit, rows in kits.items() for fault, row in rows.items() if not row["named"]]
    print(f"missed or wrongly found: {', '.join(missed) or 'none'}; results: {options.out}")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
