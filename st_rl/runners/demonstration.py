"""`DemonstrationSaver`: runs a policy and saves its trajectories."""

import contextlib
import inspect
import math
import os
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from st_rl.algorithms.appo import read_motion_features
from st_rl.env import VecEnv
from st_rl.env.protocols import SegmentedEnv
from st_rl.env.utils import observe, split_step
from st_rl.loggers.console_panel import format_duration
from st_rl.modules.normalizer import normalize_without_update
from st_rl.modules.policy import ActingPolicy
from st_rl.storage.rollout_files import layout, maintenance
from st_rl.storage.rollout_files.folder_allocator import FolderAllocator
from st_rl.storage.rollout_files.frame_store import MOTION_FIELDS
from st_rl.storage.rollout_files.frames import write_frames
from st_rl.storage.rollout_files.metadata import load_metadata
from st_rl.storage.rollout_files.rollout_dataset import ITERATION_FIELD
from st_rl.storage.rollout_storage import RolloutStorage
from st_rl.utils.data_compresser import get_compressor
from st_rl.utils.files import write_json
from st_rl.utils.files.heartbeat import Heartbeat, dead_heartbeats, new_writer_id
from st_rl.utils.log import logger
from st_rl.utils.tensors.segments import segment_slices

SUCCESS_RULES = {"timeout": "end by time-out", "termination": "end by termination"}


class StepOutcome(NamedTuple):
    """The recorded actions of a step, its rewards and dones, and the next observations."""

    actions: Tensor
    rewards: Tensor
    dones: Tensor
    next_obs: Tensor
    next_critic_obs: Tensor | None


class DemonstrationSaver:
    """Collects trajectories of a policy into a folder that `RolloutDataset` reads, also while it is being filled.

    Args:
        env: the environment.
        policy: has `act(obs)`, `act_inference(obs)` and `reset(dones)`. A method that requires two positional arguments
            gets the actor and the critic observation.
        save_dir: the folder; trajectories are added to those it holds.
        rollout_storage_length: steps per environment between two writes to disk.
        min_timesteps: minimum number of steps to collect; `math.inf` collects until `request_stop`.
        min_episodes: minimum number of finished episodes to collect.
        success_traj_only: delete failed trajectories.
        use_critic_obs: the policy acts on the critic observation instead of the actor observation.
        obs_disassemble_mapping: component -> compression; each component is then saved as an array of its own.
        demo_by_sample: sample actions instead of taking the mean.
        obs_normalizer: normalizes the policy's observations; files hold raw ones.
        critic_obs_normalizer: the same for critic observations.
        success_rule: `timeout` or `termination`: how a successful episode ends, unless `infos["success"]` is given.
        file_format: `pickle` or `npz`.
        done_files: mark finished episodes by an empty file `done`; readers of other libraries may fail on it.
    """

    RolloutStorageCls: type[RolloutStorage] = RolloutStorage
    # Storage, transition and observations are created on first use, the others when trajectories are opened.
    rollout_storage: RolloutStorage | None = None
    transition: Any = None
    obs: Tensor | None = None
    critic_obs: Tensor | None = None
    _outcome: StepOutcome | None = None
    _folders: FolderAllocator | None = None
    _heartbeat: Heartbeat | None = None

    def __init__(
        self,
        env: VecEnv,
        policy: ActingPolicy,
        save_dir: str | os.PathLike[str],
        rollout_storage_length: int = 64,
        min_timesteps: float = 1e6,
        min_episodes: float = 10000,
        success_traj_only: bool = False,
        use_critic_obs: bool = False,
        obs_disassemble_mapping: Mapping[str, str] | None = None,
        demo_by_sample: bool = False,
        obs_normalizer: nn.Module | None = None,
        critic_obs_normalizer: nn.Module | None = None,
        success_rule: str = "timeout",
        file_format: str = "pickle",
        done_files: bool = True,
    ):
        _check_choice("success_rule", success_rule, SUCCESS_RULES)
        _check_choice("file_format", file_format, layout.FORMATS)
        self.env = env
        self.policy = policy
        acts = policy.act if demo_by_sample else policy.act_inference
        self._policy_takes_both_obs = _num_required_arguments(acts) == 2
        self.save_dir = os.path.expanduser(os.fspath(save_dir))
        self.rollout_storage_length = int(rollout_storage_length)
        self.min_timesteps, self.min_episodes = min_timesteps, min_episodes
        self.success_traj_only, self.success_rule = success_traj_only, success_rule
        self.use_critic_obs, self.demo_by_sample = use_critic_obs, demo_by_sample
        self.obs_disassemble_mapping = _check_mapping(obs_disassemble_mapping, env)
        self.obs_normalizer, self.critic_obs_normalizer = obs_normalizer, critic_obs_normalizer
        self.file_format, self.done_files = file_format, done_files
        # Training iteration of the acting policy; saved with every frame if known.
        self.policy_iteration: int | None = None
        # Receives the completed fraction (None for an endless collection) and a log line.
        self.on_progress: Callable[[float | None, str], None] = lambda fraction, line: logger.info(line)
        self.metadata: dict[str, Any] = {}
        self.writer_id = new_writer_id()
        self.total_timesteps = self.total_traj_completed = 0
        # Steps of this saver, those of deleted trajectories included; the rate counts them.
        self._num_collected_steps = 0
        self._reset_progress()
        self._device = getattr(env, "device", "cpu")
        self._init_outcome_buffers()
        self.traj_idxs = np.zeros(env.num_envs, dtype=np.int64)
        self.dumped_traj_lengths = np.zeros(env.num_envs, dtype=np.int64)
        self._collecting = self._stop_requested = self._closed = self._warned_of_success = False

    # ---- collect -------------------------------------------------------------------------------------------------

    def collect_and_save(self, config: object = None) -> None:
        """Collect until there are enough steps and episodes; if interrupted, what was collected so far is saved."""
        self.metadata = self._new_metadata(config)
        try:
            self.init_traj_handlers()
            self.init_storage_buffer()
            self.dump_metadata()
            self.env.reset()
            self._set_observations(*observe(self.env)[:2])
            self.policy_reset(torch.ones(self.env.num_envs, dtype=torch.bool, device=self._device))
            self._collecting = True
            while not self.check_stop():
                for step_i in range(self.rollout_storage_length):
                    self.collect_step(step_i)
                self.save_steps()
                self._storage().clear()
                self.print_log()
        finally:
            self._collecting = False
            self.close()

    def request_stop(self) -> None:
        """Make `collect_and_save` end after the current rollout."""
        self._stop_requested = True

    def check_stop(self) -> bool:
        """Return whether there are enough steps and finished episodes, or a stop is requested."""
        enough = self.total_traj_completed >= self.min_episodes and self.total_timesteps >= self.min_timesteps
        return enough or self._stop_requested

    @torch.no_grad()
    def collect_step(self, step_i: int) -> None:
        """Act, step and store the transition."""
        actions, rewards, dones, infos, next_obs, next_critic_obs = self.get_transition()
        # Again, for a `get_transition` that a user has overridden.
        self._outcome = StepOutcome(actions, rewards, dones, next_obs, next_critic_obs)
        self.build_transition(step_i, actions, rewards, dones, infos)
        self.add_transition(step_i, infos)
        self.policy_reset(dones)

    def get_policy_actions(self) -> Tensor:
        """Return the policy's actions `(N, A)`, sampled or the mean."""
        self._storage()
        act = cast(Callable[..., Tensor], self.policy.act if self.demo_by_sample else self.policy.act_inference)
        if self._policy_takes_both_obs:
            return act(self._policy_obs(critic=False), self._policy_obs(critic=True))
        return act(self._policy_obs(critic=self.use_critic_obs))

    def _policy_obs(self, critic: bool) -> Tensor:
        """Return the normalized actor or critic observation; the actor's if the environment has no critic's."""
        obs, normalizer = self.obs, self.obs_normalizer
        if critic and self.critic_obs is not None:
            obs, normalizer = self.critic_obs, self.critic_obs_normalizer
        obs = torch.as_tensor(obs)
        return obs if normalizer is None else normalize_without_update(normalizer, obs)

    @torch.no_grad()
    def get_transition(self) -> tuple[Tensor, Tensor, Tensor, Mapping[str, Any], Tensor, Tensor | None]:
        """Act and step: actions `(N, A)`, rewards and dones `(N,)`, infos, next observation and critic observation."""
        actions = self.get_policy_actions()
        return self._step(actions, actions)

    def _step(
        self, executed: Tensor, recorded: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Mapping[str, Any], Tensor, Tensor | None]:
        """Step the environment with the executed actions; the recorded ones go into the transition."""
        self._storage()
        result = split_step(self.env.step(executed.to(self._device, copy=True)))
        next_obs, next_critic_obs, rewards, dones, infos = result
        self._outcome = StepOutcome(recorded, rewards, dones, next_obs, next_critic_obs)
        return recorded, rewards, dones, infos, next_obs, next_critic_obs

    def build_transition(
        self, step_i: int, actions: Tensor, rewards: Tensor, dones: Tensor, infos: Mapping[str, Any]
    ) -> None:
        """Fill the transition; values, log-probabilities, means and standard deviations are zeros."""
        self._storage()
        transition = self.transition
        transition.observations = self.obs
        transition.critic_observations = self.critic_obs
        transition.actions = actions
        transition.rewards = rewards
        transition.dones = dones
        transition.action_mean = transition.action_sigma = torch.zeros_like(actions)
        transition.values = transition.actions_log_prob = torch.zeros_like(rewards)

    def add_transition(self, step_i: int, infos: Mapping[str, Any]) -> None:
        """Store the last step and advance to the next observation; outside `collect_and_save`, save a full buffer."""
        if self._closed:
            raise RuntimeError("the saver is closed; create another one for the same folder to continue")
        storage, outcome = self._storage(), self._outcome
        if self.transition.observations is None:
            if outcome is None:
                raise RuntimeError("no step since the last transition: call get_transition() first")
            self.build_transition(step_i, outcome.actions, outcome.rewards, outcome.dones, infos)
        self._outcome = None
        row = storage.step
        storage.add_transitions(self.transition)
        self.transition.clear()
        self._host_arrays = {}
        self._policy_iterations[row] = -1 if self.policy_iteration is None else self.policy_iteration
        time_outs, success = infos.get("time_outs"), infos.get("success")
        self.transition_has_timeouts |= time_outs is not None
        self.transition_timeouts[row] = False if time_outs is None else time_outs.reshape(-1) > 0
        self._has_success |= success is not None
        self._successes[row] = False if success is None else success.reshape(-1) > 0
        self._record_motion_features(row, infos)
        next_observations = observe(self.env)[:2] if outcome is None else (outcome.next_obs, outcome.next_critic_obs)
        self._set_observations(*next_observations)
        if not self._collecting and storage.step == self.rollout_storage_length:
            self.save_steps()
            storage.clear()

    def _record_motion_features(self, row: int, infos: Mapping[str, Any]) -> None:
        """Record the motion features of a step if the environment delivers those of policy and reference."""
        ref_obs, ref_motion = read_motion_features(infos)
        if row == 0:
            self._num_motion_steps = 0
        if ref_obs is None or ref_motion is None:
            return
        for name, value in zip(MOTION_FIELDS, (ref_obs, ref_motion)):
            flat = value.reshape(self.env.num_envs, -1)
            if name not in self._motion_features:
                shape = (self.rollout_storage_length, *flat.shape)
                self._motion_features[name] = torch.zeros(shape, dtype=torch.float32, device=self._device)
            self._motion_features[name][row] = flat
        self._num_motion_steps += 1

    def policy_reset(self, dones: Tensor) -> None:
        """Clear the policy's hidden states of finished episodes."""
        finished = dones.reshape(-1) > 0
        if bool(finished.any()):
            self.policy.reset(finished)

    def _set_observations(self, obs: Tensor, critic_obs: Tensor | None) -> None:
        """Copy the current observations: the environment may overwrite its own."""
        self.obs = obs.clone()
        self.critic_obs = None if critic_obs is None else critic_obs.clone()

    # ---- buffers -------------------------------------------------------------------------------------------------

    def init_storage_buffer(self) -> None:
        """Allocate the buffer for `rollout_storage_length` steps."""
        if self.obs is None:
            self._set_observations(*observe(self.env)[:2])
        self.rollout_storage = self.RolloutStorageCls(
            self.env.num_envs,
            self.rollout_storage_length,
            [torch.as_tensor(self.obs).shape[-1]],
            [None] if self.critic_obs is None else [self.critic_obs.shape[-1]],
            [self.env.num_actions],
            device=self._device,
        )
        self.transition = self.RolloutStorageCls.Transition()
        self._init_outcome_buffers()

    def _storage(self) -> RolloutStorage:
        """Return the storage, created on first use."""
        if self.rollout_storage is None:
            self.init_storage_buffer()
        return cast(RolloutStorage, self.rollout_storage)

    def _init_outcome_buffers(self) -> None:
        """Allocate what a step delivers in addition to its transition, `(T, N)`."""
        shape = (self.rollout_storage_length, self.env.num_envs)
        self.transition_has_timeouts = self._has_success = False
        self.transition_timeouts = torch.zeros(shape, dtype=torch.bool, device=self._device)
        self._successes = torch.zeros_like(self.transition_timeouts)
        self._policy_iterations = np.zeros(self.rollout_storage_length, dtype=np.int64)
        # Allocated with the first step that has them, `(T, N, Da)`; saved only if all steps of the buffer have them.
        self._motion_features: dict[str, Tensor] = {}
        self._num_motion_steps = 0
        # The buffers on the host, `(N, T, ...)`, read once for all trajectories.
        self._host_arrays: dict[str, np.ndarray] = {}

    def _read_buffers(self) -> dict[str, np.ndarray]:
        """Return the buffers on the host, environment-major: `(N, T, ...)`."""
        if not self._host_arrays:
            storage = self._storage()
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
            if self._num_motion_steps == storage.step:
                buffers |= self._motion_features
            self._host_arrays = {
                name: buffer.transpose(0, 1).contiguous().cpu().numpy()
                for name, buffer in buffers.items()
                if buffer is not None
            }
        return self._host_arrays

    # ---- folder --------------------------------------------------------------------------------------------------

    def init_traj_handlers(self) -> None:
        """Create the folder, claim a trajectory for every environment and write the metadata; continues a folder."""
        before = load_metadata(self.save_dir)
        if before.problem is not None:
            logger.warning(
                f"{os.path.join(self.save_dir, layout.METADATA_FILE)}: {before.problem}; it is written again"
            )
        self._check_layout(before.content)
        os.makedirs(self.save_dir, exist_ok=True)
        self._closed = False
        self.metadata = self.metadata or self._new_metadata()
        if self._heartbeat is None:
            # Before looking for others: of two that start together, each sees the other.
            self._heartbeat = Heartbeat(self.save_dir, layout.COLLECTOR, self.writer_id)
        totals = self._recover_from_kill(before.content) or maintenance.recorded_totals(before.content)
        # The folders first: a writer that creates some of them has its heartbeat before.
        self._folders = FolderAllocator(self.save_dir)
        others_are_alive = self._warn_of_other_writers()
        if not self._folders.is_fresh:
            # Without metadata, the files are counted.
            totals = totals or maintenance.totals(maintenance.inspect_folder(self.save_dir))
            self.total_timesteps, self.total_traj_completed = totals
            logger.info(f"continuing {self.save_dir} after {self.total_timesteps:,} steps")
        indices = self._folders.allocate(self.env.num_envs, reuse_empty=not others_are_alive)
        self.traj_idxs = np.array(indices, dtype=np.int64)
        self.dumped_traj_lengths = np.zeros(self.env.num_envs, dtype=np.int64)
        if self.obs_disassemble_mapping is not None:
            self.metadata["obs_segments"] = dict(self._obs_segments)
            self.metadata["obs_disassemble_mapping"] = dict(self.obs_disassemble_mapping)
        if self.success_traj_only:
            logger.info(f"keeping episodes that {SUCCESS_RULES[self.success_rule]}, or with infos['success'] if given")
        self.dump_metadata()
        self._reset_progress()

    def _recover_from_kill(self, metadata: Mapping[str, Any]) -> tuple[int, int] | None:
        """Return steps and finished trajectories after removing what killed writers left; None if there were none.

        The totals in the metadata of a killed writer are older than its files.
        """
        dead = dead_heartbeats(self.save_dir, layout.COLLECTOR)
        if not dead:
            return None
        # Of episodes that were to be deleted, the end may be on disk too.
        mark_finished = self.done_files and not self.success_traj_only
        totals = maintenance.recover_folder(self.save_dir, metadata, mark_finished)
        # Last, so that the next start recovers the folder if this one is killed meanwhile.
        for path in dead:
            path.unlink(missing_ok=True)
        return totals

    def _warn_of_other_writers(self) -> bool:
        """Return whether another writer is alive."""
        names = maintenance.active_writers(self.save_dir)
        others = [name for name in names if self._heartbeat is None or name != self._heartbeat.path.name]
        if others:
            logger.warning(
                f"{self.save_dir} is being written to by {', '.join(others)} too: trajectories get separate indices"
            )
        return bool(others)

    @property
    def _obs_segments(self) -> Mapping[str, Any]:
        return self.env.obs_segments if isinstance(self.env, SegmentedEnv) else {}

    def _check_layout(self, before: Mapping[str, Any]) -> None:
        """ValueError if the folder holds observations in another layout: a reader could not read both."""
        if before.get("obs_disassemble_mapping") is None:
            self._check_widths()
            return
        mapping = self.obs_disassemble_mapping
        own = None if mapping is None else list(segment_slices(self._obs_segments).items())
        # Not the shapes: rebuilt metadata has widths only.
        recorded = list(segment_slices(before.get("obs_segments") or {}).items())
        if before["obs_disassemble_mapping"] != mapping or recorded != own:
            raise ValueError(
                f"{self.save_dir} holds observations in the components {before.get('obs_segments')}, compressed as "
                f"{before['obs_disassemble_mapping']}: collect with the same, or into another folder"
            )

    def _check_widths(self) -> None:
        """ValueError for a folder with observations or actions of other widths, by its first readable trajectory."""
        recorded = next((state.widths for state in maintenance.inspect_folder(self.save_dir) if state.widths), {})
        own = {"observations": getattr(self.env, "num_obs", None), "actions": self.env.num_actions}
        for name, width in own.items():
            if width and recorded.get(name, width) != width:
                raise ValueError(
                    f"{self.save_dir} holds {name} of width {recorded[name]}, those of this environment have {width}: "
                    "collect into another folder"
                )

    def _new_metadata(self, config: object = None) -> dict[str, Any]:
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
            layout.DONE_FILES_KEY: self.done_files,
            "writer": self.writer_id,
            "total_timesteps": 0,
            "total_trajectories": 0,
        }

    def dump_metadata(self) -> None:
        """Write `metadata.json` with the current totals."""
        self.metadata["total_timesteps"] = self.total_timesteps
        self.metadata["total_trajectories"] = self.total_traj_completed
        # Not flushed to disk, like the files that it counts.
        write_json(os.path.join(self.save_dir, layout.METADATA_FILE), self.metadata, durable=False)

    # ---- save ----------------------------------------------------------------------------------------------------

    def save_steps(self) -> None:
        """Save the buffer, one file for each part of a trajectory, and the metadata."""
        if self._folders is None:
            self.init_traj_handlers()
        storage = self._storage()
        self._host_arrays = {}
        try:
            dones = self._read_buffers()["dones"][:, : storage.step, 0]
            for env_i in range(self.env.num_envs):
                start = 0
                for last in np.flatnonzero(dones[env_i]).tolist():
                    self.dump_to_file(env_i, slice(start, last + 1))
                    self.update_traj_handler(env_i, slice(start, last + 1))
                    start = last + 1
                if start < storage.step:
                    self.dump_to_file(env_i, slice(start, storage.step))
            self.dump_metadata()
        except OSError as error:
            # The unsaved steps are lost, and no trajectory may continue after the gap.
            storage.clear()
            self.close()
            raise OSError(
                error.errno,
                f"cannot save trajectories to {self.save_dir}: {error.strerror or error}; what was saved before is "
                "complete. Make room or make the folder writable, then start again to continue there",
            ) from error

    def dump_to_file(self, env_i: int, step_slice: slice) -> None:
        """Save steps of one environment as the next file of its trajectory."""
        start = int(self.dumped_traj_lengths[env_i])
        stop = start + len(range(*step_slice.indices(self._storage().step)))
        name = layout.frame_file_name(start, stop, self.file_format)
        write_frames(os.path.join(self._trajectory_folder(env_i), name), self.wrap_up_trajectory(env_i, step_slice))
        self.dumped_traj_lengths[env_i] = stop
        self.total_timesteps += stop - start
        self._num_collected_steps += stop - start

    def wrap_up_trajectory(self, env_i: int, step_slice: slice) -> dict[str, np.ndarray]:
        """Return the content of a file: arrays `(n, ...)` of the steps of one environment."""
        arrays = {name: array[env_i, step_slice] for name, array in self._read_buffers().items()}
        del arrays["successes"]
        if not self.transition_has_timeouts:
            del arrays["timeouts"]
        if self.policy_iteration is not None:
            arrays[ITERATION_FIELD] = self._policy_iterations[step_slice]
        if self.obs_disassemble_mapping is None:
            return arrays
        observations = arrays.pop("observations")
        for name, columns in segment_slices(self._obs_segments).items():
            part, kind = observations[:, columns], self.obs_disassemble_mapping.get(name)
            arrays[f"obs_{name}"] = part if kind is None else get_compressor(kind)(part)
        return arrays

    def _trajectory_folder(self, env_i: int) -> str:
        return layout.trajectory_folder(self.save_dir, int(self.traj_idxs[env_i]))

    def update_traj_handler(self, env_i: int, step_slice: slice) -> None:
        """Finish a trajectory and claim the next one; a failed one is deleted and its index reused."""
        folder = self._trajectory_folder(env_i)
        if self.success_traj_only and not self._is_success(env_i, step_slice.stop - 1):
            for name in layout.frame_files(folder):
                os.unlink(os.path.join(folder, name))
            self.total_timesteps -= int(self.dumped_traj_lengths[env_i])
        else:
            if self.done_files:
                with open(os.path.join(folder, layout.DONE_FILE), "wb"):
                    pass
            self.total_traj_completed += 1
            if self._folders is None:
                raise RuntimeError("no trajectories are open: call init_traj_handlers() first")
            self.traj_idxs[env_i] = self._folders.allocate_next()
        self.dumped_traj_lengths[env_i] = 0

    def _is_success(self, env_i: int, last_step: int) -> bool:
        """Return whether the episode that ends at a step is a success; all are if the environment reports nothing."""
        arrays = self._read_buffers()
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

    def close(self) -> None:
        """Save the rest of the buffer, remove empty folders and write the final metadata; idempotent."""
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
                logger.warning(f"the totals in {self.save_dir} are outdated: {error}; count with st-rl dataset check")
            if self._heartbeat is not None:
                self._heartbeat.stop()
                self._heartbeat = None

    def __del__(self) -> None:
        # At interpreter shutdown anything may be missing.
        with contextlib.suppress(Exception):
            self.close()

    # ---- progress ------------------------------------------------------------------------------------------------

    def _reset_progress(self) -> None:
        """Measure rate and remaining time from now on."""
        self._begin = self._interval_begin = time.perf_counter()
        self._begin_progress = self.progress()
        self.timesteps_before = self.total_timesteps
        self._interval_steps = self._num_collected_steps

    def print_log(self) -> None:
        """Report steps, trajectories, steps per second and remaining time."""
        now = time.perf_counter()
        rate = (self._num_collected_steps - self._interval_steps) / max(now - self._interval_begin, 1e-9)
        self._interval_begin, self._interval_steps = now, self._num_collected_steps
        left = self.seconds_left()
        self.on_progress(
            None if math.isinf(self.min_timesteps) else self.progress(),
            f"{_format_count(self.total_timesteps, self.min_timesteps)} steps, "
            f"{_format_count(self.total_traj_completed, self.min_episodes)} trajectories, {rate:,.0f} steps/s"
            + (f", {format_duration(left)} left" if left is not None else ""),
        )

    def progress(self) -> float:
        """Return the completed fraction of the collection, from 0 to 1."""
        pairs = ((self.total_timesteps, self.min_timesteps), (self.total_traj_completed, self.min_episodes))
        return min(min(1.0, done / wanted) if wanted > 0 else 1.0 for done, wanted in pairs)

    def seconds_left(self) -> float | None:
        """Estimate the remaining time from the average rate; None before the first progress."""
        done, elapsed = self.progress(), time.perf_counter() - self._begin
        gained = done - self._begin_progress
        return elapsed * (1.0 - done) / gained if gained > 0 else None


def _num_required_arguments(function: Callable[..., Any]) -> int:
    """Return the number of positional arguments without a default; 1 for a function without a signature."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 1
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty for p in parameters)


def _format_count(done: float, wanted: float) -> str:
    """Format `done of wanted`, or `done` alone if there is no finite target."""
    return f"{done:,} of {wanted:,.0f}" if 0 < wanted < math.inf else f"{done:,}"


def _check_choice(name: str, value: str, known: Collection[str]) -> None:
    if value not in known:
        raise ValueError(f"unknown {name} '{value}'; use one of: {', '.join(known)}")


def _check_mapping(mapping: Mapping[str, str] | None, env: VecEnv) -> Mapping[str, str] | None:
    """Return a copy of the mapping; ValueError for unknown components and compressions."""
    if mapping is None:
        return None
    if not isinstance(env, SegmentedEnv):
        raise ValueError("obs_disassemble_mapping needs an environment with obs_segments")
    for name, kind in mapping.items():
        if name not in env.obs_segments:
            raise ValueError(
                f"obs_disassemble_mapping names '{name}'; the environment has {', '.join(env.obs_segments)}"
            )
        get_compressor(kind)
    return dict(mapping)
