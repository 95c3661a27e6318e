"""`DemonstrationSaver`: lets a policy act and saves what happens, trajectory by trajectory."""

import math
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from st_rl.env.utils import observe, split_step
from st_rl.loggers.iteration_report import format_duration
from st_rl.modules.normalizer import EmpiricalNormalization
from st_rl.runners.trajectory_saver import TrajectorySaver
from st_rl.storage.rollout_storage import RolloutStorage
from st_rl.utils.log import logger


class StepOutcome(NamedTuple):
    """What was done in a step, and what came of it."""

    actions: Tensor
    rewards: Tensor
    dones: Tensor
    next_obs: Tensor
    next_critic_obs: Tensor | None


class DemonstrationSaver(TrajectorySaver):
    """Collects trajectories of a policy into a folder that `RolloutDataset` reads, also while it is being filled.

    Args:
        env: the environment.
        policy: has `act(obs)`, `act_inference(obs)` and `reset(dones)`.
        save_dir: the folder; one that holds trajectories already is added to.
        rollout_storage_length: steps between two visits to the disk.
        min_timesteps: steps to collect at least; `math.inf` for as many as come until `request_stop`.
        min_episodes: finished episodes to collect at least.
        success_traj_only: delete trajectories that failed.
        use_critic_obs: the policy sees the critic's observation instead of the actor's.
        obs_disassemble_mapping: component -> kind of compression; every component is then saved on its own.
        demo_by_sample: draw actions instead of taking the mean.
        obs_normalizer: what the policy's observations pass through; files hold them as the environment gave them.
        critic_obs_normalizer: the same for a policy that sees the critic's.
        success_rule: what counts as success, `timeout` or `termination`, unless `infos["success"]` says.
        file_format: `pickle` or `npz`.
    """

    RolloutStorageCls: Any = RolloutStorage

    def __init__(
        self,
        env: Any,
        policy: Any,
        save_dir: str | os.PathLike[str],
        rollout_storage_length: int = 64,
        min_timesteps: float = 1e6,
        min_episodes: float = 10000,
        success_traj_only: bool = False,
        use_critic_obs: bool = False,
        obs_disassemble_mapping: Mapping[str, str] | None = None,
        demo_by_sample: bool = False,
        obs_normalizer: Any = None,
        critic_obs_normalizer: Any = None,
        success_rule: str = "timeout",
        file_format: str = "pickle",
    ):
        super().__init__(
            env,
            save_dir,
            rollout_storage_length,
            success_traj_only,
            success_rule,
            obs_disassemble_mapping,
            file_format,
        )
        self.policy = policy
        self.min_timesteps = min_timesteps
        self.min_episodes = min_episodes
        self.use_critic_obs = use_critic_obs
        self.demo_by_sample = demo_by_sample
        self.obs_normalizer = obs_normalizer
        self.critic_obs_normalizer = critic_obs_normalizer
        # What is told the share that is done, None where there is no end, and a line for a person.
        self.on_progress: Callable[[float | None, str], None] = lambda share, line: logger.info(line)
        # Made on first use, like the buffer.
        self.transition: Any = None
        self.obs: Tensor | None = None
        self.critic_obs: Tensor | None = None
        self._outcome: StepOutcome | None = None
        self._collecting = False
        self._stop_requested = False
        self._begin = self._interval_begin = time.perf_counter()
        # What the folder held at the beginning, and at the last line of the log.
        self.timesteps_before = 0
        self._begin_progress = 0.0
        self._interval_timesteps = 0

    # ---- collecting ----------------------------------------------------------------------------------------------

    def collect_and_save(self, config: Any = None) -> None:
        """Collect until there are enough steps and episodes; an interrupted collection is complete up to there."""
        self.metadata = self._new_metadata(config)
        try:
            self.init_traj_handlers()
            self.init_storage_buffer()
            self.dump_metadata()
            self.env.reset()
            self._see(*observe(self.env)[:2])
            self.policy_reset(torch.ones(self.env.num_envs, dtype=torch.bool, device=self._device))
            self._collecting = True
            while not self.check_stop():
                for step_i in range(self.rollout_storage_length):
                    self.collect_step(step_i)
                self.save_steps()
                self.rollout_storage.clear()
                self.print_log()
        finally:
            self._collecting = False
            self.close()

    def request_stop(self) -> None:
        """Let `collect_and_save` end after the present rollout."""
        self._stop_requested = True

    def check_stop(self) -> bool:
        """Whether there are enough steps and enough finished episodes."""
        enough = self.total_traj_completed >= self.min_episodes and self.total_timesteps >= self.min_timesteps
        return enough or self._stop_requested

    @torch.no_grad()
    def collect_step(self, step_i: int) -> None:
        """Act, step, store."""
        actions, rewards, dones, infos, next_obs, next_critic_obs = self.get_transition()
        # What it returned counts, whoever has overridden it.
        self._outcome = StepOutcome(actions, rewards, dones, next_obs, next_critic_obs)
        self.build_transition(step_i, actions, rewards, dones, infos)
        self.add_transition(step_i, infos)
        self.policy_reset(dones)

    def get_policy_actions(self) -> Tensor:
        """The policy's actions `(N, A)` on what it sees, drawn or by the mean."""
        obs = self._policy_observation(self.use_critic_obs)
        return self.policy.act(obs) if self.demo_by_sample else self.policy.act_inference(obs)

    def _policy_observation(self, critic: bool) -> Tensor:
        """The present observation as a policy sees it; without critic observations, the actor's."""
        self._start()
        critic = critic and self.critic_obs is not None
        obs = self.critic_obs if critic else self.obs
        return _normalized(obs, self.critic_obs_normalizer if critic else self.obs_normalizer)

    @torch.no_grad()
    def get_transition(self) -> tuple[Tensor, Tensor, Tensor, Mapping[str, Any], Tensor, Tensor | None]:
        """Act and step: actions `(N, A)`, rewards and dones `(N,)`, infos, next observation and critic observation."""
        actions = self.get_policy_actions()
        return self._step(actions, actions)

    def _step(self, executed: Tensor, recorded: Tensor) -> tuple[Any, ...]:
        """Step the environment with some actions and remember it as a step with others."""
        self._start()
        result = split_step(self.env.step(executed.to(self._device, copy=True)))
        next_obs, next_critic_obs, rewards, dones, infos = result
        self._outcome = StepOutcome(recorded, rewards, dones, next_obs, next_critic_obs)
        return recorded, rewards, dones, infos, next_obs, next_critic_obs

    def build_transition(
        self, step_i: int, actions: Tensor, rewards: Tensor, dones: Tensor, infos: Mapping[str, Any]
    ) -> None:
        """Fill the transition with what was seen and done; zeros for what only a training knows."""
        self._start()
        transition = self.transition
        transition.observations = self.obs
        transition.critic_observations = self.critic_obs
        transition.actions = actions
        transition.rewards = rewards
        transition.dones = dones
        transition.action_mean = transition.action_sigma = torch.zeros_like(actions)
        transition.values = transition.actions_log_prob = torch.zeros_like(rewards)

    def add_transition(self, step_i: int, infos: Mapping[str, Any]) -> None:
        """Store the last step and go on from where it led; a full buffer is saved outside of `collect_and_save`."""
        if self._closed:
            raise RuntimeError("the saver is closed; make a new one for the same folder to go on")
        self._start()
        outcome = self._outcome
        if self.transition.observations is None:
            if outcome is None:
                raise RuntimeError("nothing has happened since the last step: call get_transition() first")
            self.build_transition(step_i, outcome.actions, outcome.rewards, outcome.dones, infos)
        self._outcome = None
        row = self.rollout_storage.step
        self.rollout_storage.add_transitions(self.transition)
        self.transition.clear()
        self._host = {}
        self._stamps[row] = -1 if self.policy_iteration is None else self.policy_iteration
        time_outs, success = infos.get("time_outs"), infos.get("success")
        self.transition_has_timeouts |= time_outs is not None
        self.transition_timeouts[row] = False if time_outs is None else time_outs.reshape(-1) > 0
        self._has_success |= success is not None
        self._successes[row] = False if success is None else success.reshape(-1) > 0
        self._see(*(observe(self.env)[:2] if outcome is None else (outcome.next_obs, outcome.next_critic_obs)))
        if not self._collecting and self.rollout_storage.step == self.rollout_storage_length:
            self.save_steps()
            self.rollout_storage.clear()

    def policy_reset(self, dones: Tensor) -> None:
        """Let the policy forget the finished episodes."""
        finished = dones.reshape(-1) > 0
        if bool(finished.any()):
            self.policy.reset(finished)

    # ---- preparing -----------------------------------------------------------------------------------------------

    @property
    def _device(self) -> Any:
        return getattr(self.env, "device", "cpu")

    def _see(self, obs: Tensor, critic_obs: Tensor | None) -> Tensor:
        """Keep the present observation, over which the environment may write its next one; returns the actor's."""
        self.critic_obs = None if critic_obs is None else critic_obs.clone()
        self.obs = obs.clone()
        return self.obs

    def _start(self) -> None:
        """See the first observation and make the buffer for it, unless that was done."""
        if self.rollout_storage is None:
            self.init_storage_buffer()

    def init_traj_handlers(self) -> None:
        """Make the folder, claim a trajectory for every robot and write the metadata; goes on in a folder with data."""
        super().init_traj_handlers()
        self._begin = self._interval_begin = time.perf_counter()
        self._begin_progress, self._interval_timesteps = self.progress(), self.total_timesteps
        self.timesteps_before = self.total_timesteps

    def init_storage_buffer(self) -> None:
        """Make the buffer for `rollout_storage_length` steps."""
        obs = self._see(*observe(self.env)[:2]) if self.obs is None else self.obs
        num_envs = self.env.num_envs
        self.rollout_storage = self.RolloutStorageCls(
            num_envs,
            self.rollout_storage_length,
            [obs.shape[-1]],
            [None] if self.critic_obs is None else [self.critic_obs.shape[-1]],
            [self.env.num_actions],
            device=self._device,
        )
        self.transition = self.RolloutStorageCls.Transition()
        self.transition_has_timeouts = False
        shape = (self.rollout_storage_length, num_envs)
        self.transition_timeouts = torch.zeros(shape, dtype=torch.bool, device=self._device)
        self._successes = torch.zeros_like(self.transition_timeouts)

    def _new_metadata(self, config: Any = None) -> dict[str, Any]:
        return {
            "config": config,
            "env": type(self.env).__name__,
            "policy": type(self.policy).__name__,
            "rollout_storage_length": self.rollout_storage_length,
            "success_traj_only": self.success_traj_only,
            "success_rule": self.success_rule,
            "min_timesteps": self.min_timesteps,
            "min_episodes": self.min_episodes,
            "use_critic_obs": self.use_critic_obs,
            "writer": self.writer_id,
            "total_timesteps": 0,
            "total_trajectories": 0,
        }

    def print_log(self) -> None:
        """Say how far the collection is, how fast it goes and how long it will take."""
        now = time.perf_counter()
        rate = (self.total_timesteps - self._interval_timesteps) / max(now - self._interval_begin, 1e-9)
        self._interval_begin, self._interval_timesteps = now, self.total_timesteps
        left = self.seconds_left()
        self.on_progress(
            None if math.isinf(self.min_timesteps) else self.progress(),
            f"{_out_of(self.total_timesteps, self.min_timesteps)} steps, "
            f"{_out_of(self.total_traj_completed, self.min_episodes)} trajectories, {rate:,.0f} steps/s"
            + (f", {format_duration(left)} left" if left is not None else ""),
        )

    def progress(self) -> float:
        """Share of the collection that is done, from 0 to 1."""
        pairs = ((self.total_timesteps, self.min_timesteps), (self.total_traj_completed, self.min_episodes))
        return min(min(1.0, done / wanted) if wanted > 0 else 1.0 for done, wanted in pairs)

    def seconds_left(self) -> float | None:
        """How long the rest takes at the pace so far; None before there is one."""
        done, elapsed = self.progress(), time.perf_counter() - self._begin
        gained = done - self._begin_progress
        return elapsed * (1.0 - done) / gained if gained > 0 else None


def _out_of(done: float, wanted: float) -> str:
    """How much of what is wanted is there; the number alone when nothing in particular is."""
    return f"{done:,} of {wanted:,.0f}" if 0 < wanted < math.inf else f"{done:,}"


def _normalized(obs: Any, normalizer: Any) -> Tensor:
    """What a policy sees of an observation `(N, O)`; running statistics stay as they are."""
    if normalizer is None:
        return obs
    return normalizer.normalize(obs) if isinstance(normalizer, EmpiricalNormalization) else normalizer(obs)
