"""The base of every task: the loop of a step, and the contract that runners rely on."""

import copy
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, NamedTuple

import torch

from st_rl.env import VecEnv
from st_rl.sim.backends import make_backend
from st_rl.sim.envs.cfg import Range, TaskCfg
from st_rl.sim.robots import Robot, robot_path
from st_rl.utils.config import unknown_name_message
from st_rl.utils.segments import get_subobs_size

Term = Callable[[Any], torch.Tensor]


class StepOutcome(NamedTuple):
    """What a step ends with."""

    obs: torch.Tensor
    """`(N, O)`"""
    critic_obs: torch.Tensor
    """`(N, Oc)`"""
    final: torch.Tensor
    """`(N, Oc)` what the critic would have seen of the episode had it gone on, without noise."""
    rewards: torch.Tensor
    """`(N,)`"""
    dones: torch.Tensor
    """`(N,)` bool"""
    time_outs: torch.Tensor
    """`(N,)` bool"""
    log: torch.Tensor
    """`(L,)` in the order of the names for the log"""


class Task(VecEnv):
    """`N` robots with observations, rewards, terminations and resets in batched torch.

    A subclass lists its reward terms and terminations, functions of the task that return `(N,)`, sets its buffers up
    in `__init__`, calls `start`, and writes the hooks below `_apply_actions`. One step is: act, physics, read the
    state, rewards and terminations, last observation of the episode, masked reset, read the state, observation.

    Everything a step hands to the next one lives in a tensor of `buffers`, written in place, and nothing depends on
    values on the host, so that a step can be captured in a graph. What `step` returns is new each time. Random numbers
    come from one block for each step: on the CPU from a generator of the task's own that starts at
    `seed`, on a GPU from the default generator of the device, which a graph can capture and the caller seeds.
    """

    REWARDS: ClassVar[Mapping[str, Term]] = {}
    """Reward terms that the weights of `cfg.rewards` may name."""
    TERMINATIONS: ClassVar[Mapping[str, Term]] = {}
    """Reasons for which an episode ends early, `(N,)` bool each; a diverged simulation, or an action
    that is not a number, is always one."""
    METRICS: ClassVar[Sequence[str]] = ()
    """Names under which the log shows the means of `_metrics`."""

    def __init__(self, cfg: TaskCfg, num_envs: int, device: torch.device | str = "cpu", seed: int = 0) -> None:
        """Build the robots; the subclass goes on and calls `start` at the end."""
        self.cfg = copy.deepcopy(cfg)
        self.robot = Robot.from_file(robot_path(cfg.robot), self._build_world)
        self.backend = make_backend(self.robot.model, num_envs, cfg.physics, device)
        self.device = self.backend.device
        self.num_envs = num_envs
        self.num_actions = self.robot.num_joints
        self.step_dt = cfg.physics.control_period
        self.max_episode_length = math.ceil(cfg.episode_length_s / self.step_dt - 1e-9)
        self.generator = torch.Generator().manual_seed(seed) if self.device.type == "cpu" else None
        self.buffers: dict[str, torch.Tensor] = {}
        self._episode_length = self.keep("episode_length", self._zeros(dtype=torch.long))
        self.rew_buf = self.keep("rewards", self._zeros())
        self.reset_buf = self.keep("dones", self._zeros(dtype=torch.bool))
        self.diverged_count = self.keep("diverged_count", torch.zeros((), dtype=torch.long, device=self.device))
        """How many simulations have diverged, or were sent actions that are not numbers, so far; 0-d."""
        self.actions = self.keep("actions", self._zeros(self.num_actions))
        """`(N, A)` last action, clipped."""
        self.last_actions = self.keep("last_actions", self._zeros(self.num_actions))
        """`(N, A)` the action before the last."""
        self._terms, self._weights = self._active_rewards()
        self.extras: dict[str, Any] = {}
        # The second half of a step, as it is or compiled.
        self._finish = self._finish_step

    def start(
        self, segments: Mapping[str, Any], privileged: Mapping[str, Any], random: Mapping[str, Sequence[Range]]
    ) -> None:
        """Fix the layout, then reset every robot.

        Args:
            segments: Names and widths or shapes of the actor's observation, those with noise first.
            privileged: What only the critic sees, in addition.
            random: Names of the random numbers that one step of a robot needs, with the range of each. Those called
                `noise` are added to the leading columns of the actor's observation.
        """
        if self.cfg.privileged_actor:
            # In the order of the critic: what this actor sees is what the critic of a student sees.
            segments, privileged = {**segments, **privileged}, {}
            random = {name: ranges for name, ranges in random.items() if name != "noise"}
        self.obs_segments = dict(segments)
        self.critic_obs_segments = {**segments, **privileged} if privileged else self.obs_segments
        self.privileged_obs_segments = self.critic_obs_segments
        self.num_obs = get_subobs_size(segments, segments)
        critic_width = get_subobs_size(self.critic_obs_segments, self.critic_obs_segments)
        self.num_privileged_obs = critic_width if privileged else None
        self.obs_buf = self.keep("obs", self._zeros(self.num_obs))
        self.privileged_obs_buf = self.obs_buf
        if privileged:
            self.privileged_obs_buf = self.keep("critic_obs", self._zeros(critic_width))
        limits = torch.tensor([limit for ranges in random.values() for limit in ranges], dtype=torch.float32)
        self._random_low = limits[:, 0].to(self.device)
        self._random_span = (limits[:, 1] - limits[:, 0]).to(self.device)
        self._random_block = self._zeros(len(limits))
        widths = [len(ranges) for ranges in random.values()]
        self.random = dict(zip(random, self._random_block.split(widths, dim=1)))
        """Random numbers of this step by name, `(N, width)`, each within its range."""
        self._log_names = [f"Reward/{name}" for name in self._terms]
        self._log_names += [f"Termination/{name}" for name in (*self.TERMINATIONS, "diverged")]
        self._log_names += [*self.METRICS, "Simulation/diverged"]
        self.reset()

    @property
    def episode_length_buf(self) -> torch.Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """`(N,)` steps of the current episode; setting it copies the values."""
        return self._episode_length

    @episode_length_buf.setter
    def episode_length_buf(self, value: torch.Tensor) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._episode_length.copy_(value)

    @property
    def is_graph_safe(self) -> bool:
        """Whether a whole rollout of this task can be captured as one graph."""
        return torch.device(self.device).type == "cuda"

    def during_capture(self, stream: Any) -> AbstractContextManager[None]:
        """What must be around the capture of a rollout on a stream."""
        return self.backend.during_capture(stream)

    def get_observations(self) -> tuple[torch.Tensor, dict[str, Any]]:
        """The newest observation `(N, O)` and `{"observations": groups}`, as copies."""
        obs = self.obs_buf.clone()
        return obs, {"observations": self._groups(obs, self.privileged_obs_buf.clone())}

    def get_privileged_observations(self) -> torch.Tensor | None:
        """The newest critic observation `(N, Oc)`, None for a task without one."""
        return None if self.num_privileged_obs is None else self.privileged_obs_buf.clone()

    @torch.no_grad()
    def reset(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        """Start a new episode of every robot; arguments are accepted for older callers and unused."""
        self._draw_random()
        self._reset_envs(torch.ones(self.num_envs, dtype=torch.bool, device=self.device))
        self._judge()
        self._deliver(self._observe())
        return self.get_observations()

    @torch.no_grad()
    def step(self, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Apply actions `(N, A)`; return observation `(N, O)`, reward `(N,)`, dones `(N,)` bool and infos.

        `infos["final_observations"]` holds, for every robot, what it saw before a reset, without noise.
        """
        self._draw_random()
        self.last_actions.copy_(self.actions)
        clip = self.cfg.control.clip_actions
        # A policy that sends no numbers ends the episode at once, before they reach physics or observations.
        # Zero times any number is zero; `isfinite` would be five operations instead of one.
        no_numbers = (actions.sum(dim=1) * 0.0) != 0.0
        self.actions.copy_(actions).masked_fill_(no_numbers[:, None], 0.0).clamp_(-clip, clip)
        self._apply_actions(self.actions)
        outcome = self._finish(no_numbers)
        self.extras = {
            "observations": self._groups(outcome.obs, outcome.critic_obs),
            "time_outs": outcome.time_outs,
            "final_observations": self._groups(outcome.final[:, : self.num_obs], outcome.final),
            # Taken apart here: each tensor that compiled code returns costs time on the host.
            "log": dict(zip(self._log_names, outcome.log.unbind())),
        }
        return outcome.obs, outcome.rewards, outcome.dones, self.extras

    def compile_with(self, compiled: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Let everything of a step that comes after physics run as what `compiled` makes of it."""
        self._finish = compiled(self._finish_step)

    @torch.no_grad()
    def _finish_step(self, no_numbers: torch.Tensor) -> StepOutcome:
        """Compute rewards and terminations after physics, then reset the robots of finished episodes."""
        self._episode_length.add_(1)
        self._read_state()
        self._judge()

        diverged = self.backend.check_diverged() | no_numbers
        self.diverged_count.add_(diverged.sum())
        # One row for each reason, (reasons, N); torch.cat, because torch.stack costs an operation more for each row.
        reasons = torch.cat([*(reason(self) for reason in self.TERMINATIONS.values()), diverged]).view(
            -1, self.num_envs
        )
        terminated = reasons.any(dim=0)
        time_outs = (self._episode_length >= self.max_episode_length) & ~terminated
        dones = terminated | time_outs
        rewards, log = self._reward(reasons, diverged)
        # A diverged robot may hold numbers that are none; nobody bootstraps from it, but nobody should trip over it.
        final = self._observe().masked_fill_(diverged[:, None], 0.0)

        self._reset_envs(dones)
        obs, critic_obs = self._deliver(self._observe())
        self.rew_buf.copy_(rewards)
        self.reset_buf.copy_(dones)
        return StepOutcome(obs, critic_obs, final, rewards, dones, time_outs, log)

    def state_dict(self) -> dict[str, Any]:
        """All that the next step depends on, as copies: buffers, generator and physics."""
        state: dict[str, Any] = {
            "buffers": {name: value.clone() for name, value in self.buffers.items()},
            "backend": self.backend.state_dict(),
        }
        if self.generator is not None:
            state["generator"] = self.generator.get_state()
        return state

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict` of the same task with the same configuration and number of robots."""
        saved = {name: tuple(value.shape) for name, value in state["buffers"].items()}
        mine = {name: tuple(value.shape) for name, value in self.buffers.items()}
        if saved != mine:
            differing = sorted(name for name in {*saved, *mine} if saved.get(name) != mine.get(name))
            shown = ", ".join(f"{name} {saved.get(name)} here {mine.get(name)}" for name in differing)
            raise ValueError(f"the saved state belongs to another task, configuration or num_envs: {shown}")
        for name, value in state["buffers"].items():
            self.buffers[name].copy_(value)
        self.backend.load_state_dict(state["backend"])
        if self.generator is not None:
            self.generator.set_state(state["generator"].cpu())
        self._read_state()

    def keep(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """Register a tensor that steps write in place as part of the state of the task, and return it."""
        self.buffers[name] = value
        return value

    # What a subclass writes.

    def _build_world(self, spec: Any) -> None:
        """Add to the robot's `mujoco.MjSpec` what it moves in; called once, before anything but `cfg` is there."""

    @abstractmethod
    def _apply_actions(self, actions: torch.Tensor) -> None:
        """Advance physics by one control period under actions `(N, A)`."""

    @abstractmethod
    def _read_state(self) -> None:
        """Compute from the backend what observations and rewards need."""

    @abstractmethod
    def _observe(self) -> torch.Tensor:
        """The observation without noise, `(N, O)` or with what only the critic sees behind it, `(N, Oc)`; new."""

    @abstractmethod
    def _reset_envs(self, mask: torch.Tensor) -> None:
        """Reset the robots of `mask` `(N,)`, disturb whom it is due, and read the state."""

    def _judge(self) -> None:
        """Compute what only rewards and terminations need, before robots are reset."""

    def _metrics(self) -> torch.Tensor:
        """Further quantities for the log, `(N, len(METRICS))`."""
        return self._zeros(0)

    # The rest of the loop.

    def _zeros(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Zeros `(N, *shape)` on the device of the task."""
        return torch.zeros(self.num_envs, *shape, dtype=dtype, device=self.device)

    def _draw_random(self) -> None:
        """Fill the block of random numbers for this step."""
        self._random_block.uniform_(generator=self.generator).mul_(self._random_span).add_(self._random_low)

    def _active_rewards(self) -> tuple[dict[str, Term], torch.Tensor]:
        """Reward terms with a weight other than zero, and their weights."""
        for name in self.cfg.rewards:
            if name not in self.REWARDS:
                raise ValueError(unknown_name_message("reward term", name, self.REWARDS))
        active = {name: weight for name, weight in self.cfg.rewards.items() if weight != 0}
        if not active:
            raise ValueError(f"cfg.rewards gives no term a weight; terms: {', '.join(self.REWARDS)}")
        weights = torch.tensor(list(active.values()), dtype=torch.float32, device=self.device)
        return {name: self.REWARDS[name] for name in active}, weights

    def _reward(self, reasons: torch.Tensor, diverged: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Reward `(N,)` of the step and the log `(L,)`: means of weighted terms, terminations and metrics."""
        terms = torch.cat([term(self) for term in self._terms.values()]).view(-1, self.num_envs)
        terms.masked_fill_(diverged, 0.0)
        rewards = torch.mv(terms.T, self._weights)
        if self.cfg.only_positive_rewards:
            rewards.clamp_(min=0.0)
        metrics = self._metrics().masked_fill_(diverged[:, None], 0.0)
        ended = reasons.float().mean(dim=1)
        rows = (terms.mean(dim=1) * self._weights, ended, metrics.mean(dim=0), ended[-1:] * self.num_envs)
        return rewards * self.step_dt, torch.cat(rows)

    def _deliver(self, clean: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Add noise to the actor's part of an observation, keep it, and return both observations."""
        obs = clean[:, : self.num_obs]
        if "noise" in self.random:
            noise = self.random["noise"]
            obs = obs.clone()
            obs[:, : noise.shape[1]] += noise
        self.obs_buf.copy_(obs)
        if self.num_privileged_obs is not None:
            self.privileged_obs_buf.copy_(clean)
        return obs, clean

    def _groups(self, obs: torch.Tensor, critic_obs: torch.Tensor) -> dict[str, torch.Tensor]:
        """Observation groups by name; `critic` only where it differs."""
        if self.num_privileged_obs is None:
            return {"policy": obs}
        return {"policy": obs, "critic": critic_obs}
