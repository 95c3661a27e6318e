"""The side of a saver that faces the disk: folders, files and totals."""

import abc
import contextlib
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from st_rl.storage.rollout_files import layout
from st_rl.storage.rollout_files import maintenance as upkeep
from st_rl.storage.rollout_files.folder_claims import FolderClaims
from st_rl.storage.rollout_files.frames import write_frames
from st_rl.storage.rollout_files.rollout_dataset import ITERATION_FIELD
from st_rl.storage.rollout_files.trajectory_pool import COLLECTOR
from st_rl.utils.data_compresser import get_compressor
from st_rl.utils.files import to_json_values, write_json
from st_rl.utils.files.heartbeat import Heartbeat, heartbeats, is_alive, new_writer_id
from st_rl.utils.log import logger
from st_rl.utils.segments import segment_slices

SUCCESS_RULES = {"timeout": "an episode that ran out of time", "termination": "an episode that ended before its time"}


class TrajectorySaver(abc.ABC):
    """Cuts a buffer of steps into trajectories and keeps them in a folder that other processes may be reading."""

    def __init__(
        self,
        env: Any,
        save_dir: str | os.PathLike[str],
        rollout_storage_length: int,
        success_traj_only: bool,
        success_rule: str,
        obs_disassemble_mapping: Mapping[str, str] | None,
        file_format: str,
    ):
        if success_rule not in SUCCESS_RULES:
            raise ValueError(f"unknown success_rule '{success_rule}'; use one of: {', '.join(SUCCESS_RULES)}")
        if file_format not in layout.FORMATS:
            raise ValueError(f"unknown file_format '{file_format}'; use one of: {', '.join(layout.FORMATS)}")
        self.env = env
        self.save_dir = os.path.expanduser(os.fspath(save_dir))
        self.rollout_storage_length = int(rollout_storage_length)
        self.success_traj_only = success_traj_only
        self.success_rule = success_rule
        self.obs_disassemble_mapping = _checked_mapping(obs_disassemble_mapping, env)
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
        self.transition_has_timeouts = False
        self.transition_timeouts = torch.zeros(self.rollout_storage_length, env.num_envs, dtype=torch.bool)
        self._has_success = False
        self._successes = torch.zeros_like(self.transition_timeouts)
        self._stamps = np.zeros(self.rollout_storage_length, dtype=np.int64)
        # The buffer on the host, read once for all trajectories in it.
        self._host: dict[str, np.ndarray] = {}
        self._folders: FolderClaims | None = None
        self._heartbeat: Heartbeat | None = None
        self._closed = False
        self._warned_of_success = False

    @abc.abstractmethod
    def _new_metadata(self, config: Any = None) -> dict[str, Any]:
        """What `metadata.json` says of the collection."""

    def init_traj_handlers(self) -> None:
        """Make the folder, claim a trajectory for every robot and write the metadata; goes on in a folder with data."""
        self._check_layout()
        os.makedirs(self.save_dir, exist_ok=True)
        self._closed = False
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
            # What no metadata tell is counted.
            before = upkeep.noted_totals(self.save_dir) or upkeep.totals(upkeep.inspect_folder(self.save_dir))
            self.total_timesteps, self.total_traj_completed = before
            logger.info(f"going on in {self.save_dir} after {self.total_timesteps:,} steps")
        self.traj_idxs = np.array(self._folders.claim_first(self.env.num_envs, reuse_empty=not living), dtype=np.int64)
        self.dumped_traj_lengths = np.zeros(self.env.num_envs, dtype=np.int64)
        if self.obs_disassemble_mapping is not None:
            self.metadata["obs_segments"] = dict(self.env.obs_segments)
            self.metadata["obs_disassemble_mapping"] = dict(self.obs_disassemble_mapping)
        if self.success_traj_only:
            logger.info(f"kept is {SUCCESS_RULES[self.success_rule]}, or what infos['success'] says")
        self.dump_metadata()

    def _check_layout(self) -> None:
        """Refuse a folder whose trajectories could no longer be read beside those of this saver."""
        before = layout.read_metadata(self.save_dir) or {}
        if before.get("obs_disassemble_mapping") is None:
            self._check_widths()
            return
        mapping = self.obs_disassemble_mapping
        segments = None if mapping is None else list(to_json_values(self.env.obs_segments).items())
        if before["obs_disassemble_mapping"] != mapping or list((before.get("obs_segments") or {}).items()) != segments:
            raise ValueError(
                f"{self.save_dir} holds observations in the components {before.get('obs_segments')}, compressed as "
                f"{before['obs_disassemble_mapping']}: collect with the same, or into another folder"
            )

    def _check_widths(self) -> None:
        """Refuse a folder with the observations or actions of another environment, by its first readable trajectory."""
        recorded = next((state.widths for state in upkeep.inspect_folder(self.save_dir) if state.widths), {})
        own = {"observations": getattr(self.env, "num_obs", None), "actions": self.env.num_actions}
        for name, width in own.items():
            if width and recorded.get(name, width) != width:
                raise ValueError(
                    f"{self.save_dir} holds {name} of {recorded[name]} numbers, those of this environment have "
                    f"{width}: collect into another folder"
                )

    def save_steps(self) -> None:
        """Save what the buffer holds, a file for each piece of a trajectory, and the metadata."""
        if self._folders is None:
            self.init_traj_handlers()
        num_steps = self.rollout_storage.step
        self._host = {}
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
        stop = start + len(range(*step_slice.indices(self.rollout_storage.step)))
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
        # No more certain to survive a power failure than the files it counts, which nobody waits for either.
        write_json(os.path.join(self.save_dir, layout.METADATA_FILE), self.metadata, durable=False)

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
                self._heartbeat = None

    def __del__(self) -> None:
        # At the end of a process nothing is certain to exist, and nobody is there to hear.
        with contextlib.suppress(Exception):
            self.close()


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
    return dict(mapping)
