"""`DemonstrationSaver`: lets a policy act and saves what happens, trajectory by trajectory."""

import contextlib
import os
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from st_rl.env.utils import observe, split_step
from st_rl.modules.normalizer import EmpiricalNormalization
from st_rl.runners.reporter import clock
from st_rl.storage.rollout_files import layout
from st_rl.storage.rollout_files.folder_claims import FolderClaims
from st_rl.storage.rollout_files.frames import write_frames
from st_rl.storage.rollout_files.rollout_dataset import ITERATION_FIELD
from st_rl.storage.rollout_files.trajectory_pool import COLLECTOR
from st_rl.storage.rollout_storage import RolloutStorage
from st_rl.utils.data_compresser import get_compressor
from st_rl.utils.files import write_json
from st_rl.utils.heartbeat import Heartbeat, heartbeats, is_alive, new_writer_id
from st_rl.utils.log import logger
from st_rl.utils.segments import segment_slices

SUCCESS_RULES = {"timeout": "an episode that ran out of time", "termination": "an episode that ended before its time"}


class StepOutcome(NamedTuple):
    """What a step was taken on, and what came of it."""

    obs: Tensor
    critic_obs: Tensor | None
    actions: Tensor
    rewards: Tensor
    dones: Tensor
    next_obs: Tensor
    next_critic_obs: Tensor | None


class DemonstrationSaver:
    """Collects trajectories of a policy into a folder that `RolloutDataset` reads, also while it is being filled.

    Args:
        env: the environment.
        policy: has `act(obs)`, `act_inference(obs)` and `reset(dones)`.
        save_dir: the folder; one that holds trajectories already is added to.
        rollout_storage_length: steps between two visits to the disk.
        min_timesteps: steps to collect at least.
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
        if success_rule not in SUCCESS_RULES:
            raise ValueError(f"unknown success_rule '{success_rule}'; use one of: {', '.join(SUCCESS_RULES)}")
        if file_format not in layout.FORMATS:
            raise ValueError(f"unknown file_format '{file_format}'; use one of: {', '.join(layout.FORMATS)}")
        self.env = env
        self.policy = policy
        self.save_dir = os.path.expanduser(os.fspath(save_dir))
        self.rollout_storage_length = int(rollout_storage_length)
        self.min_timesteps = min_timesteps
        self.min_episodes = min_episodes
        self.success_traj_only = success_traj_only
        self.use_critic_obs = use_critic_obs
        self.obs_disassemble_mapping = _checked_mapping(obs_disassemble_mapping, env)
        self.demo_by_sample = demo_by_sample
        self.obs_normalizer = obs_normalizer
        self.critic_obs_normalizer = critic_obs_normalizer
        self.success_rule = success_rule
        self.file_format = file_format
        # The training iteration of the policy that acts; stamped on every frame where it is known.
        self.policy_iteration: int | None = None

        self.metadata: dict[str, Any] = {}
        self.writer_id = new_writer_id()
        self.total_timesteps = 0
        self.total_traj_completed = 0
        self.traj_idxs = np.zeros(env.num_envs, dtype=np.int64)
        self.dumped_traj_lengths = np.zeros(env.num_envs, dtype=np.int64)
        # Made on first use, when the environment shows its sizes.
        self.rollout_storage: Any = None
        self.transition: Any = None
        self.transition_has_timeouts = False
        self.transition_timeouts = torch.zeros(self.rollout_storage_length, env.num_envs, dtype=torch.bool)
        self._has_success = False
        self._successes = torch.zeros_like(self.transition_timeouts)
        self._stamps = np.zeros(self.rollout_storage_length, dtype=np.int64)
        self.obs: Tensor | None = None
        self.critic_obs: Tensor | None = None
        self._outcome: StepOutcome | None = None
        self._host: dict[str, np.ndarray] = {}
        self._folders: FolderClaims | None = None
        self._heartbeat: Heartbeat | None = None
        self._collecting = False
        self._stop_requested = False
        self._closed = False
        self._warned_of_success = False
        self._begin = self._interval_begin = time.perf_counter()
        self._begin_timesteps = self._interval_timesteps = 0

    # ---- collecting ----------------------------------------------------------------------------------------------

    def collect_and_save(self, config: Any = None) -> None:
        """Collect until there are enough steps and episodes; an interrupted collection is complete up to there."""
        self.metadata = self._new_metadata(config)
        try:
            self.init_traj_handlers()
            self.init_storage_buffer()
            self.dump_metadata()
            self.env.reset()
            self.obs, self.critic_obs, _ = observe(self.env)
            self._begin = self._interval_begin = time.perf_counter()
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
        actions, rewards, dones, infos, _, _ = self.get_transition()
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
        # The environment may write its next observation over this one.
        obs = torch.clone(self.obs)  # pyright: ignore[reportArgumentType]
        critic_obs = None if self.critic_obs is None else self.critic_obs.clone()
        result = split_step(self.env.step(executed.to(self._device, copy=True)))
        next_obs, next_critic_obs, rewards, dones, infos = result
        self._outcome = StepOutcome(obs, critic_obs, recorded, rewards, dones, next_obs, next_critic_obs)
        return recorded, rewards, dones, infos, next_obs, next_critic_obs

    def build_transition(
        self, step_i: int, actions: Tensor, rewards: Tensor, dones: Tensor, infos: Mapping[str, Any]
    ) -> None:
        """Fill the transition with what was seen and done; zeros for what only a training knows."""
        transition, outcome = self.transition, self._last_outcome
        transition.observations = outcome.obs
        transition.critic_observations = outcome.critic_obs
        transition.actions = actions
        transition.rewards = rewards
        transition.dones = dones
        transition.action_mean = transition.action_sigma = torch.zeros_like(actions)
        transition.values = transition.actions_log_prob = torch.zeros_like(rewards)

    @property
    def _last_outcome(self) -> StepOutcome:
        if self._outcome is None:
            raise RuntimeError("nothing has happened yet: call get_transition() first")
        return self._outcome

    def add_transition(self, step_i: int, infos: Mapping[str, Any]) -> None:
        """Store the last step and go on from where it led; a full buffer is saved outside of `collect_and_save`."""
        if self._closed:
            raise RuntimeError("the saver is closed; make a new one for the same folder to go on")
        outcome = self._last_outcome
        if self.transition.observations is None:
            self.build_transition(step_i, outcome.actions, outcome.rewards, outcome.dones, infos)
        row = self.rollout_storage.step
        self.rollout_storage.add_transitions(self.transition)
        self.transition.clear()
        self._host = {}
        self._stamps[row] = -1 if self.policy_iteration is None else self.policy_iteration
        if infos.get("time_outs") is not None:
            self.transition_has_timeouts = True
            self.transition_timeouts[row] = infos["time_outs"].reshape(-1) > 0
        if infos.get("success") is not None:
            self._has_success = True
            self._successes[row] = infos["success"].reshape(-1) > 0
        self.obs, self.critic_obs = outcome.next_obs, outcome.next_critic_obs
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

    def _start(self) -> None:
        """See the first observation and make the buffer for it, unless that was done."""
        if self.obs is None:
            self.obs, self.critic_obs, _ = observe(self.env)
        if self.rollout_storage is None:
            self.init_storage_buffer()

    def init_storage_buffer(self) -> None:
        """Make the buffer for `rollout_storage_length` steps."""
        if self.obs is None:
            self.obs, self.critic_obs, _ = observe(self.env)
        num_envs = self.env.num_envs
        self.rollout_storage = self.RolloutStorageCls(
            num_envs,
            self.rollout_storage_length,
            [self.obs.shape[-1]],
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

    def init_traj_handlers(self) -> None:
        """Make the folder, claim a trajectory for every robot and write the metadata; goes on in a folder with data."""
        os.makedirs(self.save_dir, exist_ok=True)
        self.metadata = self.metadata or self._new_metadata()
        if self._heartbeat is None:
            # First the sign of life, then the look around: of two that start together, each sees the other.
            self._heartbeat = Heartbeat(self.save_dir, COLLECTOR, self.writer_id)
        others = [path for path in heartbeats(self.save_dir, COLLECTOR) if path != self._heartbeat.path]
        living = [path for path in others if is_alive(path)]
        if living:
            names = ", ".join(path.name for path in living)
            logger.warning(f"{self.save_dir} is being written to by {names} too: trajectories get indices of their own")
        for path in set(others) - set(living):
            with contextlib.suppress(OSError):
                path.unlink()
        self._folders = FolderClaims(self.save_dir)
        if not self._folders.is_fresh:
            before = layout.read_metadata(self.save_dir) or {}
            self.total_timesteps = int(before.get("total_timesteps", 0))
            self.total_traj_completed = int(before.get("total_trajectories", 0))
            logger.info(f"going on in {self.save_dir} after {self.total_timesteps:,} steps")
        self.traj_idxs = np.array(self._folders.claim_first(self.env.num_envs, reuse_empty=not living), dtype=np.int64)
        self.dumped_traj_lengths = np.zeros(self.env.num_envs, dtype=np.int64)
        self._begin_timesteps = self._interval_timesteps = self.total_timesteps
        if self.obs_disassemble_mapping is not None:
            self.metadata["obs_segments"] = dict(self.env.obs_segments)
            self.metadata["obs_disassemble_mapping"] = dict(self.obs_disassemble_mapping)
        if self.success_traj_only:
            logger.info(f"kept is {SUCCESS_RULES[self.success_rule]}, or what infos['success'] says")
        self.dump_metadata()

    # ---- saving --------------------------------------------------------------------------------------------------

    def save_steps(self) -> None:
        """Save what the buffer holds, a file for each piece of a trajectory, and the metadata."""
        if self._folders is None:
            self.init_traj_handlers()
        num_steps = self.rollout_storage.step
        try:
            dones = self._host_arrays()["dones"][:, :num_steps, 0]
            for env_i in range(self.env.num_envs):
                start = 0
                for last in np.flatnonzero(dones[env_i]).tolist():
                    self.dump_to_file(env_i, slice(start, last + 1))
                    self.update_traj_handler(env_i, slice(start, last + 1))
                    start = last + 1
                if start < num_steps:
                    self.dump_to_file(env_i, slice(start, num_steps))
            self.dump_metadata()
        except OSError as error:
            # What could not be written is lost, and no trajectory may go on over the gap.
            self.rollout_storage.clear()
            self.close()
            raise OSError(
                error.errno,
                f"cannot save trajectories to {self.save_dir}: {error.strerror or error}; what was saved before is "
                "complete. Make room or make the folder writable, then start again: collection goes on there",
            ) from error

    def _host_arrays(self) -> dict[str, np.ndarray]:
        """The buffers of the rollout on the host, robot by robot: `(N, T, ...)`."""
        if not self._host:
            storage = self.rollout_storage
            buffers = {
                "observations": storage.observations,
                "privileged_observations": storage.privileged_observations,
                "actions": storage.actions,
                "rewards": storage.rewards,
                "dones": storage.dones,
                "values": storage.values,
                "timeouts": self.transition_timeouts,
                "successes": self._successes,
            }
            self._host = {
                name: buffer.transpose(0, 1).contiguous().cpu().numpy()
                for name, buffer in buffers.items()
                if buffer is not None
            }
        return self._host

    def wrap_up_trajectory(self, env_i: int, step_slice: slice) -> dict[str, np.ndarray]:
        """What a file holds of one robot's steps: arrays `(n, ...)`."""
        arrays = {name: array[env_i, step_slice] for name, array in self._host_arrays().items()}
        del arrays["successes"]
        if not self.transition_has_timeouts:
            del arrays["timeouts"]
        if self.policy_iteration is not None:
            arrays[ITERATION_FIELD] = self._stamps[step_slice]
        if self.obs_disassemble_mapping is None:
            return arrays
        observations = arrays.pop("observations")
        for name, where in segment_slices(self.env.obs_segments).items():
            part, kind = observations[:, where], self.obs_disassemble_mapping.get(name)
            arrays[f"obs_{name}"] = part if kind is None else get_compressor(kind)(part)
        return arrays

    def dump_to_file(self, env_i: int, step_slice: slice) -> None:
        """Save one robot's steps as the next file of its trajectory."""
        start = int(self.dumped_traj_lengths[env_i])
        stop = start + step_slice.stop - step_slice.start
        name = layout.frame_file_name(start, stop, self.file_format)
        write_frames(os.path.join(self._folder(env_i), name), self.wrap_up_trajectory(env_i, step_slice))
        self.dumped_traj_lengths[env_i] = stop
        self.total_timesteps += stop - start

    def _folder(self, env_i: int) -> str:
        return layout.trajectory_folder(self.save_dir, int(self.traj_idxs[env_i]))

    def update_traj_handler(self, env_i: int, step_slice: slice) -> None:
        """Close a finished trajectory and begin the next one; a failure is deleted and its index used again."""
        folder = self._folder(env_i)
        if self.success_traj_only and not self._succeeded(env_i, step_slice.stop - 1):
            for name in layout.frame_files(folder):
                os.unlink(os.path.join(folder, name))
            self.total_timesteps -= int(self.dumped_traj_lengths[env_i])
        else:
            with open(os.path.join(folder, layout.DONE_FILE), "wb"):
                pass
            self.total_traj_completed += 1
            if self._folders is None:
                raise RuntimeError("no trajectories are open: call init_traj_handlers() first")
            self.traj_idxs[env_i] = self._folders.claim_next()
        self.dumped_traj_lengths[env_i] = 0

    def _succeeded(self, env_i: int, last_step: int) -> bool:
        """Whether an episode counts as a success; everything does where nothing tells."""
        arrays = self._host_arrays()
        if self._has_success:
            return bool(arrays["successes"][env_i, last_step])
        if self.transition_has_timeouts:
            return bool(arrays["timeouts"][env_i, last_step]) == (self.success_rule == "timeout")
        if not self._warned_of_success:
            self._warned_of_success = True
            logger.warning(
                "success_traj_only has no effect: the environment delivers neither infos['time_outs'] nor "
                "infos['success'], so every trajectory is kept"
            )
        return True

    def dump_metadata(self) -> None:
        """Write `metadata.json` with the present totals."""
        self.metadata["total_timesteps"] = self.total_timesteps
        self.metadata["total_trajectories"] = self.total_traj_completed
        write_json(os.path.join(self.save_dir, layout.METADATA_FILE), self.metadata)

    def print_log(self) -> None:
        """Say how far the collection is, how fast it goes and how long it will take."""
        now = time.perf_counter()
        rate = (self.total_timesteps - self._interval_timesteps) / max(now - self._interval_begin, 1e-9)
        self._interval_begin, self._interval_timesteps = now, self.total_timesteps
        left = self.seconds_left()
        logger.info(
            f"{self.total_timesteps:,} of {self.min_timesteps:,.0f} steps, {self.total_traj_completed:,} of "
            f"{self.min_episodes:,.0f} trajectories, {rate:,.0f} steps/s"
            + (f", {clock(left)} left" if left is not None else "")
        )

    def progress(self) -> float:
        """Share of the collection that is done, from 0 to 1."""
        pairs = ((self.total_timesteps, self.min_timesteps), (self.total_traj_completed, self.min_episodes))
        return min(min(1.0, done / wanted) if wanted > 0 else 1.0 for done, wanted in pairs)

    def seconds_left(self) -> float | None:
        """How long the rest takes at the pace so far; None before there is one."""
        elapsed, done = time.perf_counter() - self._begin, self.progress()
        return elapsed * (1.0 - done) / done if done > 0 and self.total_timesteps > self._begin_timesteps else None

    def close(self) -> None:
        """Save what is left in the buffer, remove empty folders and write the final metadata; once."""
        if self._closed or self._folders is None:
            return
        self._closed = True
        try:
            if self.rollout_storage is not None and self.rollout_storage.step > 0:
                self.save_steps()
                self.rollout_storage.clear()
        finally:
            self._folders.release(self.traj_idxs.tolist())
            try:
                self.dump_metadata()
            except OSError as error:
                logger.warning(f"the totals in {self.save_dir} are not up to date: {error}; st-rl dataset check counts")
            if self._heartbeat is not None:
                self._heartbeat.stop()

    def __del__(self) -> None:
        # At the end of a process nothing is certain to exist, and nobody is there to hear.
        with contextlib.suppress(Exception):
            self.close()


def _normalized(obs: Any, normalizer: Any) -> Tensor:
    """What a policy sees of an observation `(N, O)`; running statistics stay as they are."""
    if normalizer is None:
        return obs
    return normalizer.normalize(obs) if isinstance(normalizer, EmpiricalNormalization) else normalizer(obs)


def _checked_mapping(mapping: Mapping[str, str] | None, env: Any) -> Mapping[str, str] | None:
    """The mapping; ValueError for components that the environment does not have and kinds that do not exist."""
    if mapping is None:
        return None
    segments = getattr(env, "obs_segments", None)
    if segments is None:
        raise ValueError("obs_disassemble_mapping needs an environment with obs_segments")
    for name, kind in mapping.items():
        if name not in segments:
            raise ValueError(f"obs_disassemble_mapping names '{name}'; the environment has {', '.join(segments)}")
        get_compressor(kind)
    return mapping
