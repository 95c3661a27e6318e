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
from st_rl.sim.envs.term_tables import FRAMES, ObservationTable, ObsTerm, RewardTerm, Term
from st_rl.sim.require import MjModel, MjSpec
from st_rl.sim.robots import Robot, robot_path
from st_rl.utils.config import unknown_name_message


class StepOutcome(NamedTuple):
    """Result of the tensor part of a step."""

    obs: torch.Tensor
    """`(N, O)`"""
    critic_obs: torch.Tensor
    """`(N, Oc)`"""
    final: torch.Tensor
    """`(N, Oc)` critic observation before any reset, without noise."""
    rewards: torch.Tensor
    """`(N,)`"""
    dones: torch.Tensor
    """`(N,)` bool"""
    time_outs: torch.Tensor
    """`(N,)` bool"""
    log: torch.Tensor
    """`(L,)` in the order of the log names"""


class Task(VecEnv):
    """`N` robots with observations, rewards, terminations and resets in batched torch.

    A subclass lists its observation terms, reward terms and terminations in the tables below, registers its buffers in
    `__init__`, calls `start` at the end of it, and implements the hooks from `_apply_actions` on. A step is: actions,
    physics, read the state, rewards and terminations, final observation, masked reset, read the state, observation.

    All state that one step passes to the next lives in tensors of `buffers`, written in place, and no step reads a
    tensor on the host, so that a step can be captured in a graph. What `step` returns is new each time. Random numbers
    come from one block per step: on the CPU from a generator of the task that is seeded with `seed`, on a GPU from the
    default generator of the device, which a graph can capture and the caller seeds.
    """

    OBSERVATIONS: ClassVar[dict[str, ObsTerm]] = {}
    """Observation terms by name, in order."""
    REWARDS: ClassVar[dict[str, RewardTerm]] = {}
    """Reward terms by name; `cfg.rewards` holds their weights."""
    TERMINATIONS: ClassVar[dict[str, Term]] = {}
    """Functions `(N,)` bool that end an episode early; a diverged simulation or a non-finite action always does."""
    METRICS: ClassVar[Sequence[str]] = ()
    """Log tags of the columns of `_metrics`."""
    ACTION_FORMULA: ClassVar[str] = ""
    """How `_apply_actions` drives the robot, for a controller, in the names of `describe_io`."""

    # Name and settings by which the commands of `st-rl` build it again; set by `make_task`.
    task_id: str | None = None
    task_config: Mapping[str, Any] | None = None

    def __init_subclass__(cls) -> None:
        """Give every class tables of its own, so that a term added to one task does not reach another."""
        super().__init_subclass__()
        cls.OBSERVATIONS, cls.REWARDS = dict(cls.OBSERVATIONS), dict(cls.REWARDS)
        cls.TERMINATIONS = dict(cls.TERMINATIONS)

    def __init__(self, cfg: TaskCfg, num_envs: int, device: torch.device | str = "cpu", seed: int = 0) -> None:
        """Build the robots and the buffers that all tasks have."""
        self.cfg = copy.deepcopy(cfg)
        self._check_numbers()
        self.robot = Robot.from_file(robot_path(cfg.robot), self._build_world)
        self.backend = make_backend(self._choose_model(), num_envs, cfg.physics, device)
        self.device = self.backend.device
        self.num_envs = num_envs
        self.num_actions = self.robot.num_joints
        self.step_dt = cfg.physics.control_period
        self.max_episode_length = math.ceil(cfg.episode_length_s / self.step_dt - 1e-9)
        self.generator = torch.Generator().manual_seed(seed) if self.device.type == "cpu" else None
        self.buffers: dict[str, torch.Tensor] = {}
        self._episode_length = self.register_buffer("episode_length", self._zeros(dtype=torch.long))
        self.rew_buf = self.register_buffer("rewards", self._zeros())
        self.reset_buf = self.register_buffer("dones", self._zeros(dtype=torch.bool))
        no_count = torch.zeros((), dtype=torch.long, device=self.device)
        self.diverged_count = self.register_buffer("diverged_count", no_count)
        """Simulations that diverged or received non-finite actions so far, 0-d."""
        self.actions = self.register_buffer("actions", self._zeros(self.num_actions))
        """`(N, A)` last action, clipped."""
        self.last_actions = self.register_buffer("last_actions", self._zeros(self.num_actions))
        """`(N, A)` the action before the last."""
        self._reward_functions, self._weights = self._active_rewards()
        self.extras: dict[str, Any] = {}
        self.step_observers: list[Callable[[StepOutcome], None]] = []
        """Called at the end of each step, without a host sync; a captured rollout captures them too."""
        # The tensor part of a step, eager or compiled.
        self._finish = self._finish_step

    def _check_numbers(self) -> None:
        """ValueError for a setting of every task with which no episode can run; comparisons with NaN are false."""
        positive = {
            "episode_length_s": self.cfg.episode_length_s,
            "control.clip_actions": self.cfg.control.clip_actions,
            "normalization.clip_observations": self.cfg.normalization.clip_observations,
        }
        for name, value in positive.items():
            if not value > 0:
                raise ValueError(f"{name} is {value}: give a number above 0")
        if math.isinf(self.cfg.episode_length_s):
            raise ValueError("episode_length_s is infinite: give a number of seconds, for example 3600")

    def observation_terms(self) -> dict[str, ObsTerm]:
        """The observation terms in order; override it where a setting moves a term between actor and critic."""
        return dict(self.OBSERVATIONS)

    def start(self) -> None:
        """Build the observation and the block of random numbers, and reset every robot; last call of `__init__`."""
        self.observation_table = ObservationTable(self, self.observation_terms())
        """Columns of the observation."""
        table = self.observation_table
        self.obs_segments = table.actor_segments
        self.critic_obs_segments = self.privileged_obs_segments = table.critic_segments
        self.num_obs = table.num_actor
        self.num_privileged_obs = table.num_critic if table.num_critic > table.num_actor else None
        self.obs_buf = self.register_buffer("obs", self._zeros(table.num_actor))
        self.privileged_obs_buf = self.obs_buf
        if self.num_privileged_obs is not None:
            self.privileged_obs_buf = self.register_buffer("critic_obs", self._zeros(table.num_critic))
        random = self._random_ranges()
        limits = torch.tensor([limit for ranges in random.values() for limit in ranges], dtype=torch.float32)
        self._random_low = limits[:, 0].to(self.device)
        self._random_span = (limits[:, 1] - limits[:, 0]).to(self.device)
        self._random_block = self._zeros(len(limits))
        widths = [len(ranges) for ranges in random.values()]
        self.random = dict(zip(random, self._random_block.split(widths, dim=1)))
        """Random numbers of this step by name, `(N, width)`, each within its range."""
        self._log_names = [f"Reward/{name}" for name in self._reward_functions]
        self._log_names += [f"Termination/{name}" for name in (*self.TERMINATIONS, "diverged")]
        self._log_names += [*self.METRICS, "Simulation/diverged"]
        with torch.no_grad():
            self._read_state()
            table.check_widths(self)
        self.reset()

    @property
    def episode_length_buf(self) -> torch.Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """`(N,)` steps of the current episode; setting it copies the values."""
        return self._episode_length

    @episode_length_buf.setter
    def episode_length_buf(self, value: torch.Tensor) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._episode_length.copy_(value)

    @property
    def reward_names(self) -> tuple[str, ...]:
        """Reward terms with a weight, in the order in which they begin the log of a step."""
        return tuple(self._reward_functions)

    @property
    def is_graph_safe(self) -> bool:
        """Whether a whole rollout can be captured as one CUDA graph."""
        return torch.device(self.device).type == "cuda"

    def during_capture(self, stream: torch.cuda.Stream) -> AbstractContextManager[None]:
        """Return the context that a capture on `stream` runs in."""
        return self.backend.during_capture(stream)

    def get_observations(self) -> tuple[torch.Tensor, dict[str, Any]]:
        """Return copies of the current observation `(N, O)` and of `{"observations": groups}`."""
        obs = self.obs_buf.clone()
        return obs, {"observations": self._groups(obs, self.privileged_obs_buf.clone())}

    def get_privileged_observations(self) -> torch.Tensor | None:
        """Return a copy of the critic observation `(N, Oc)`, None for a task without one."""
        return None if self.num_privileged_obs is None else self.privileged_obs_buf.clone()

    @torch.no_grad()
    def reset(self, *args: object, **kwargs: object) -> tuple[torch.Tensor, dict[str, Any]]:
        """Reset every robot and return `get_observations()`; arguments are ignored."""
        self._sample_random()
        self._reset_envs(torch.ones(self.num_envs, dtype=torch.bool, device=self.device))
        self._update_errors()
        self._deliver(self.compute_observation())
        return self.get_observations()

    @torch.no_grad()
    def step(self, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Apply actions `(N, A)`; return observation `(N, O)`, reward `(N,)`, dones `(N,)` bool and infos.

        `infos["final_observations"]` holds the observation of every robot before any reset, without noise.
        """
        self._sample_random()
        self.last_actions.copy_(self.actions)
        clip = self.cfg.control.clip_actions
        # A non-finite action ends the episode before it reaches physics or observations. Zero times a finite number is
        # zero; `isfinite` would be five operations instead of one.
        non_finite = (actions.sum(dim=1) * 0.0) != 0.0
        self.actions.copy_(actions).masked_fill_(non_finite[:, None], 0.0).clamp_(-clip, clip)
        self._apply_actions(self.actions)
        outcome = self._finish(non_finite)
        self.extras = {
            "observations": self._groups(outcome.obs, outcome.critic_obs),
            "time_outs": outcome.time_outs,
            "final_observations": self._groups(outcome.final[:, : self.num_obs], outcome.final),
            # Unbound here: each tensor that compiled code returns costs host time.
            "log": dict(zip(self._log_names, outcome.log.unbind())),
        }
        for observe in self.step_observers:
            observe(outcome)
        return outcome.obs, outcome.rewards, outcome.dones, self.extras

    def compile_with(self, compiled: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Replace the part of the step after physics by `compiled(part)`."""
        self._finish = compiled(self._finish_step)

    @torch.no_grad()
    def _finish_step(self, non_finite: torch.Tensor) -> StepOutcome:
        """Compute rewards and terminations after physics, then reset the robots of finished episodes."""
        self._episode_length.add_(1)
        self._read_state()
        self._update_errors()

        diverged = self.backend.check_diverged() | non_finite
        self.diverged_count.add_(diverged.sum())
        # (reasons, N); torch.cat because torch.stack costs one more operation per row.
        reasons = torch.cat([*(reason(self) for reason in self.TERMINATIONS.values()), diverged]).view(
            -1, self.num_envs
        )
        terminated = reasons.any(dim=0)
        self._record_terminations(terminated)
        time_outs = self._is_time_up() & ~terminated
        dones = terminated | time_outs
        rewards, log = self._reward(reasons, diverged)
        # A diverged robot may have non-finite values, which must not reach a caller.
        final = self.compute_observation().masked_fill_(diverged[:, None], 0.0)

        self._reset_envs(dones)
        obs, critic_obs = self._deliver(self.compute_observation())
        self.rew_buf.copy_(rewards)
        self.reset_buf.copy_(dones)
        return StepOutcome(obs, critic_obs, final, rewards, dones, time_outs, log)

    def state_dict(self) -> dict[str, Any]:
        """Return copies of all that the next step depends on: buffers, generator and physics."""
        state: dict[str, Any] = {
            "buffers": {name: value.clone() for name, value in self.buffers.items()},
            "backend": self.backend.state_dict(),
        }
        if self.generator is not None:
            state["generator"] = self.generator.get_state()
        return state

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict` of the same task with the same configuration and number of robots."""
        buffers = state["buffers"]
        saved = {name: tuple(value.shape) for name, value in buffers.items()}
        mine = {name: tuple(value.shape) for name, value in self.buffers.items()}
        if saved != mine:
            differing = sorted(name for name in {*saved, *mine} if saved.get(name) != mine.get(name))
            shown = ", ".join(f"{name} {saved.get(name)} here {mine.get(name)}" for name in differing)
            raise ValueError(f"the saved state belongs to another task, configuration or num_envs: {shown}")
        for name, value in buffers.items():
            self.buffers[name].copy_(value)
        self.backend.load_state_dict(state["backend"])
        if self.generator is not None:
            self.generator.set_state(state["generator"].cpu())
        self._read_state()

    def register_buffer(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """Add a tensor that steps write in place to the state of the task, and return it."""
        self.buffers[name] = value
        return value

    def compute_observation(self) -> torch.Tensor:
        """`(N, Oc)` scaled observation without noise: actor columns, then those of the critic only; a new tensor."""
        return self.observation_table.compute(self)

    def describe_io(self) -> dict[str, Any]:
        """What a controller needs: how the observation is computed, and how actions drive the joints."""
        robot, control, normalization = self.robot, self.cfg.control, self.cfg.normalization
        terms = self.observation_table.describe()
        return {
            "obs_terms": terms,
            "obs_formula": "obs[start : start + width] = clip(scale * value, -clip, clip) for each of obs_terms, "
            "value in its unit and frame, images row by row",
            "frames": {name: text for name, text in FRAMES.items() if name in {term["frame"] for term in terms}},
            "obs_scales": normalization.obs_scales,
            "clip_observations": normalization.clip_observations,
            "control_period_s": self.step_dt,
            "joint_names": list(robot.joint_names),
            "default_joint_pos": robot.default_joint_pos,
            "action_formula": self.ACTION_FORMULA,
            "action_scale": control.action_scale,
            "clip_actions": control.clip_actions,
            "actuation": robot.actuation,
            "effort_limit": robot.effort_limit,
            "stiffness": robot.stiffness if control.stiffness is None else [control.stiffness] * robot.num_joints,
            "damping": robot.damping if control.damping is None else [control.damping] * robot.num_joints,
        }

    # Hooks of a subclass.

    def _build_world(self, spec: MjSpec) -> None:
        """Add the surroundings to the robot's `mujoco.MjSpec`; called once, when only `cfg` is set."""

    def _choose_model(self) -> MjModel:
        """The model to simulate, by default that of the robot; called once, when only `cfg` and `robot` are set."""
        return self.robot.model

    def _random_ranges(self) -> dict[str, Sequence[Range]]:
        """Ranges of the uniform random numbers that a step uses, by name."""
        ranges = self.observation_table.noise_ranges
        return {"noise": ranges} if ranges else {}

    @abstractmethod
    def _apply_actions(self, actions: torch.Tensor) -> None:
        """Step physics for one control period with actions `(N, A)`."""

    @abstractmethod
    def _read_state(self) -> None:
        """Compute what observations and rewards need from the state of the backend."""

    @abstractmethod
    def _reset_envs(self, mask: torch.Tensor) -> None:
        """Reset the robots of `mask` `(N,)`, apply disturbances, and read the state."""

    def _update_errors(self) -> None:
        """Compute what only rewards and terminations need, before any reset."""

    def _is_time_up(self) -> torch.Tensor:
        """`(N,)` bool: the episode ends by time-out if nothing else ends it."""
        return self._episode_length >= self.max_episode_length

    def _record_terminations(self, terminated: torch.Tensor) -> None:
        """Note which robots `(N,)` bool ended their episode early, before any reset."""

    def _metrics(self) -> torch.Tensor:
        """`(N, len(METRICS))` further quantities for the log."""
        return self._zeros(0)

    # The rest of the loop.

    def _zeros(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Zeros `(N, *shape)` on the device of the task."""
        return torch.zeros(self.num_envs, *shape, dtype=dtype, device=self.device)

    def _sample_random(self) -> None:
        self._random_block.uniform_(generator=self.generator).mul_(self._random_span).add_(self._random_low)

    def _active_rewards(self) -> tuple[dict[str, Term], torch.Tensor]:
        """Functions of the reward terms with a nonzero weight, and their weights."""
        for name in self.cfg.rewards:
            if name not in self.REWARDS:
                raise ValueError(unknown_name_message("reward term", name, self.REWARDS))
        active = {name: weight for name, weight in self.cfg.rewards.items() if weight != 0}
        if not active:
            raise ValueError(f"cfg.rewards gives no term a weight; terms: {', '.join(self.REWARDS)}")
        weights = torch.tensor(list(active.values()), dtype=torch.float32, device=self.device)
        return {name: self.REWARDS[name].function for name in active}, weights

    def _reward(self, reasons: torch.Tensor, diverged: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Reward `(N,)` and log `(L,)`: means of the weighted terms, terminations and metrics."""
        terms = torch.cat([term(self) for term in self._reward_functions.values()]).view(-1, self.num_envs)
        terms.masked_fill_(diverged, 0.0)
        rewards = torch.mv(terms.T, self._weights)
        if self.cfg.only_positive_rewards:
            rewards.clamp_(min=0.0)
        metrics = self._metrics().masked_fill_(diverged[:, None], 0.0)
        ended = reasons.float().mean(dim=1)
        rows = (terms.mean(dim=1) * self._weights, ended, metrics.mean(dim=0), ended[-1:] * self.num_envs)
        return rewards * self.step_dt, torch.cat(rows)

    def _deliver(self, clean: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Add noise to the actor's part of an observation `(N, Oc)`, store and return both observations."""
        obs = clean[:, : self.num_obs]
        if "noise" in self.random:
            obs = self.observation_table.add_noise(obs, self.random["noise"])
        self.obs_buf.copy_(obs)
        if self.num_privileged_obs is not None:
            self.privileged_obs_buf.copy_(clean)
        return obs, clean

    def _groups(self, obs: torch.Tensor, critic_obs: torch.Tensor) -> dict[str, torch.Tensor]:
        """Observation groups by name; `critic` only if it differs."""
        if self.num_privileged_obs is None:
            return {"policy": obs}
        return {"policy": obs, "critic": critic_obs}
