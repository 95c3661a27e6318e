"""Robustness of a walking policy to other physics and disturbances; shared by the humanoid and rough-terrain scripts.

`sim_to_sim` compares the tracking of a policy in training physics with that in fine physics on the CPU,
`few_iterations` evaluates it in training physics on the CPU, `survival_table` measures the survival under pushes, a
heavier trunk, other friction and latency. They take the name of a task made of `LeggedWalk`, its configuration and a
policy (see `InferencePolicy`) on the same device.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from st_rl.engine import Engine
from st_rl.sim.evaluation.command_grid import command_grid
from st_rl.sim.evaluation.evaluator import preserve_rng_state
from st_rl.sim.tasks import make_task, with_overrides
from st_rl.sim.terms.rewards import TRACKING_SCALE

Range = tuple[float, float]
HELD_OUT_SEED = 20_001


class Condition(NamedTuple):
    """One disturbance."""

    task: Mapping[str, Any] = MappingProxyType({})
    """Settings of the undisturbed task that are replaced, by dotted name."""
    push_speed: float = 0.0
    """Speed of the pushes, m/s, in a random direction per robot and push."""


PUSH_INTERVAL_S = 4.0
FRICTION, MASS, LATENCY = "randomization.friction", "randomization.base_mass", "control.latency_s"
CONDITIONS: dict[str, Condition] = {
    "undisturbed": Condition(),
    "pushes of 0.8 m/s": Condition(push_speed=0.8),
    "trunk 30% heavier": Condition({MASS: (1.3, 1.3)}),
    "friction 0.4": Condition({FRICTION: (0.4, 0.4)}),
    "friction 1.2": Condition({FRICTION: (1.2, 1.2)}),
    "latency of 20 ms": Condition({LATENCY: (0.02, 0.02)}),
    "all of these": Condition({MASS: (1.3, 1.3), FRICTION: (0.4, 1.2), LATENCY: (0.02, 0.02)}, push_speed=0.8),
}


class Plan(NamedTuple):
    """Duration, number of robots and commands of an evaluation."""

    robots: int = 64
    """Robots evaluated in parallel, each with its own command."""
    seconds: float = 20.0
    """Length of the walk."""
    warm_up_s: float = 1.0
    """Seconds at the beginning that are excluded from the tracking metrics."""
    commands: Sequence[Range] | None = None
    """Ranges of lin_vel_x, lin_vel_y and ang_vel_yaw; those of the task if None."""


def evaluate_tracking(
    task: str,
    cfg: Any,
    policy: Any,
    plan: Plan | None = None,
    condition: Condition | None = None,
    fine: bool = True,
    device: str = "cpu",
) -> dict[str, float]:
    """Falls and tracking of a policy without exploration noise.

    Errors are means over robots and time of the absolute difference to the command, which the task may change;
    `tracking` is the mean of the two tracking rewards, 1 for perfect tracking. Steps after the first fall of a robot
    are not counted.
    """
    plan, condition = plan or Plan(), condition or Condition()
    evaluated = cfg.for_evaluation(fine)
    evaluated.episode_length_s = max(evaluated.episode_length_s, plan.seconds + 1.0)
    with preserve_rng_state(device), torch.inference_mode():
        torch.manual_seed(HELD_OUT_SEED)
        env = make_task(task, plan.robots, device, HELD_OUT_SEED, cfg=with_overrides(evaluated, condition.task))
        return _Meter(env, policy, plan).measure(condition.push_speed)


def sim_to_sim(coarse: Mapping[str, float], fine: Mapping[str, float]) -> dict[str, Any]:
    """One row: two results of `evaluate_tracking`, and the loss of tracking from the first to the second."""
    moved = {name: fine[name] - coarse[name] for name in ("lin_vel_x_error", "ang_vel_yaw_error")}
    loss = 1.0 - fine["tracking"] / coarse["tracking"]
    return {"trained_on": dict(coarse), "evaluated_on": dict(fine), "tracking_loss": loss, "more_error": moved}


def few_iterations(task: str, cfg: Any, policy: Any, plan: Plan | None = None) -> dict[str, dict[str, float]]:
    """`evaluate_tracking` on the CPU in training physics, with its number of solver iterations and with one more.

    Where few iterations have not converged, MuJoCo and MuJoCo Warp integrate the same accelerations differently.
    """
    counts = (cfg.physics.iterations, cfg.physics.iterations + 1)
    conditions = {f"{count} iterations": Condition({"physics.iterations": count}) for count in counts}
    return {name: evaluate_tracking(task, cfg, policy, plan, row, fine=False) for name, row in conditions.items()}


def survival_table(
    task: str,
    cfg: Any,
    policy: Any,
    plan: Plan | None = None,
    conditions: Mapping[str, Condition] = CONDITIONS,
    report: Callable[[str], None] | None = None,
) -> dict[str, dict[str, float]]:
    """`evaluate_tracking` in fine physics on the CPU under each condition; `report` is called after each."""
    table = {}
    for name, condition in conditions.items():
        table[name] = evaluate_tracking(task, cfg, policy, plan, condition)
        if report is not None:
            row = table[name]
            report(f"{name}: {row['survival']:.0%} survive, forward error {row['lin_vel_x_error']:.3f} m/s")
    return table


class _Meter:
    """Runs one evaluation and accumulates errors on the device; on a GPU a feed-forward step is a CUDA graph."""

    def __init__(self, env: Any, policy: Any, plan: Plan) -> None:
        self._env, self._policy, self._plan = env, policy, plan
        self._axes = torch.zeros(env.num_envs, 3, device=env.device)
        self._tracking = torch.zeros(env.num_envs, device=env.device)
        self._counted = torch.zeros(env.num_envs, device=env.device)
        self._weight = torch.zeros((), device=env.device)
        self._upright = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)

    def measure(self, push_speed: float) -> dict[str, float]:
        env, plan = self._env, self._plan
        self._policy.actor_critic.clear_hidden_states()
        commands = env.cfg.commands
        ranges = plan.commands or (commands.lin_vel_x, commands.lin_vel_y, commands.ang_vel_yaw)
        env.hold_commands(command_grid(ranges, env.num_envs).to(env.device))
        self._obs = env.get_observations()[0].clone()
        step_once = self._step
        if torch.device(env.device).type == "cuda" and not self._policy.actor_critic.is_recurrent:
            step_once = Engine("graph", str(env.device)).loop(self._step, during_capture=env.during_capture)
        generator = torch.Generator().manual_seed(7)
        push_steps, warm_up_steps = (round(s / env.step_dt) for s in (PUSH_INTERVAL_S, plan.warm_up_s))
        for step in range(round(plan.seconds / env.step_dt)):
            self._weight.fill_(float(step >= warm_up_steps))
            if push_speed > 0 and step and step % push_steps == 0:
                self._push(push_speed, generator)
            step_once()
        return self._figures()

    def _push(self, speed: float, generator: torch.Generator) -> None:
        angle = torch.rand(self._env.num_envs, generator=generator) * (2 * torch.pi)
        velocity = speed * torch.stack([angle.cos(), angle.sin(), torch.zeros_like(angle)], dim=1)
        self._env.push(velocity.to(self._env.device), self._upright)
        self._obs.copy_(self._env.get_observations()[0])

    def _step(self) -> None:
        env = self._env
        obs, _, dones, _ = env.step(self._policy(self._obs))
        self._policy.reset(dones)
        self._upright.logical_and_(~dones)
        error = env.velocity_error
        reward = torch.exp(-error[:, :2].square().sum(dim=1) / TRACKING_SCALE)
        reward = (reward + torch.exp(-error[:, 2].square() / TRACKING_SCALE)) / 2
        weight = self._upright * self._weight
        self._axes.add_(torch.where(weight[:, None] > 0, error.abs(), 0.0))
        self._tracking.add_(torch.where(weight > 0, reward, 0.0))
        self._counted.add_(weight)
        self._obs.copy_(obs)

    def _figures(self) -> dict[str, float]:
        count = self._counted.sum().clamp(min=1.0)
        errors = (self._axes.sum(dim=0) / count).tolist()
        names = ("lin_vel_x_error", "lin_vel_y_error", "ang_vel_yaw_error")
        return {
            "robots": self._env.num_envs,
            "survival": float(self._upright.float().mean()),
            "tracking": float(self._tracking.sum() / count),
            **dict(zip(names, errors)),
        }
