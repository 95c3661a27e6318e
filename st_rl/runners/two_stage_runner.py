"""`TwoStageRunner`: trains on recorded trajectories first, on the environment afterwards."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from st_rl.algorithms import TPPO
from st_rl.algorithms.appo import APPOAlgoMixin
from st_rl.env import VecEnv
from st_rl.modules.normalizer import EmpiricalNormalization, normalize_without_update
from st_rl.runners.dagger_saver import TRAINER
from st_rl.runners.on_policy_runner import OnPolicyRunner
from st_rl.storage.rollout_files.rollout_dataset import RolloutDataset
from st_rl.utils.config import accepted_keys, drop_none, report_unused_keys
from st_rl.utils.files.heartbeat import Heartbeat, dead_heartbeats, new_writer_id
from st_rl.utils.log import logger

# Maximum number of frames from which the observation statistics of a data set are computed.
STATISTICS_FRAMES = 500_000
# Iterations at which they are computed again while collectors add to the data set: its first frames vary little.
LATER_STATISTICS = (5, 15, 40, 100)

# Infos of recorded steps, which are no scalars to log.
STEP_INFOS = ("time_outs", "observations", "ref_motion")


class DatasetLog(NamedTuple):
    """The counters of a data set when it was last logged."""

    time: float
    num_transitions_read: int
    waiting_seconds: float


class TwoStageRunner(OnPolicyRunner):
    """Trains on files for `pretrain_iterations` iterations (always, if negative), then on the environment.

    Collectors that load the checkpoints of this training may add files meanwhile.
    """

    default_log_interval = 50

    def __init__(
        self,
        env: VecEnv,
        train_cfg: Mapping[str, Any],
        log_dir: str | Path | None = None,
        device: torch.device | str = "cpu",
    ):
        super().__init__(env, train_cfg, log_dir, device)
        self.pretrain_iterations = int(self.cfg.get("pretrain_iterations") or 0)
        if self.cfg.get("pretrain_dataset") is None:
            raise AssertionError(
                "TwoStageRunner needs pretrain_dataset, the arguments of RolloutDataset: {data_dir: ...}"
            )
        if not self.alg.learns_from_dataset:
            raise TypeError(
                f"{type(self.alg).__name__} cannot learn from a data set; use TPPO, APPO or ATPPO, or declare "
                "learns_from_dataset = True in an algorithm with its own collect_transition_from_dataset"
            )
        settings = _dataset_settings(self.cfg["pretrain_dataset"], bool(self.cfg.get("strict")))
        settings.setdefault("motion_features", isinstance(self.alg, APPOAlgoMixin))
        # A user may replace it by an object with `get_transition_batch` only.
        self.rollout_dataset: Any = RolloutDataset(**settings, num_envs=env.num_envs, device=self.alg.device)
        # Whether the last step came from the data set: the next environment step is then the hand-over.
        self._was_pretraining = False
        self._is_exhausted = False
        # Field of the data set -> the normalizer with its statistics.
        self._dataset_normalizers: dict[str, EmpiricalNormalization] = {}
        self._heartbeat: Heartbeat | None = None
        self._last_log = DatasetLog(time.perf_counter(), 0, 0.0)

    @property
    def is_pretraining(self) -> bool:
        """Whether the next step comes from the data set."""
        in_stage = self.pretrain_iterations < 0 or self.current_learning_iteration < self.pretrain_iterations
        return in_stage and not self._is_exhausted

    @property
    def _file_dataset(self) -> RolloutDataset | None:
        """The data set if it is a `RolloutDataset`, None for a user's own."""
        return self.rollout_dataset if isinstance(self.rollout_dataset, RolloutDataset) else None

    # ---- rollout -------------------------------------------------------------------------------------------------

    def rollout_step(
        self, obs: Tensor, critic_obs: Tensor, **kwargs: Any
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Mapping[str, Any]]:
        """Take one step of the data set or of the environment; takes and returns normalized observations."""
        if self.is_pretraining:
            try:
                transition, infos = self.rollout_dataset.get_transition_batch()
            except StopIteration:
                logger.info(
                    f"the data set is exhausted: iteration {self.current_learning_iteration} continues with the "
                    "environment"
                )
                self._is_exhausted = True
            else:
                self._log_infos(infos)
                if transition is not None:
                    return self._dataset_step(transition, infos)
                obs, critic_obs = self._observe()
        if self._was_pretraining:
            obs, critic_obs = self._hand_over()
        return super().rollout_step(obs, critic_obs, **kwargs)

    def _dataset_step(
        self, transition: Any, infos: Mapping[str, Any]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Mapping[str, Any]]:
        """Store a recorded step; returns its next observations, normalized, and its reward, done and infos."""
        if not self._was_pretraining:
            self._check_widths(transition.observation, transition.privileged_observation)
        self._was_pretraining = True
        self.alg.collect_transition_from_dataset(transition, infos)
        obs = normalize_without_update(self.alg.obs_normalizer, transition.next_observation)
        critic_obs = obs
        if self._sizes.has_critic_obs:
            critic_obs = normalize_without_update(
                self.alg.critic_obs_normalizer, transition.next_privileged_observation
            )
        return obs, critic_obs, transition.reward, transition.done, infos

    def _check_widths(self, obs: Tensor, critic_obs: Tensor | None) -> None:
        """ValueError if recorded observations `(..., O)` or `(..., Oc)` differ in width from the environment's."""
        streams = [("observations", obs, self._sizes.num_obs)]
        if self._sizes.has_critic_obs and critic_obs is not None:
            streams.append(("critic observations", critic_obs, self._sizes.num_critic_obs))
        for name, recorded, width in streams:
            if recorded.shape[-1] != width:
                source = "the data set" if self._file_dataset is None else ", ".join(self._file_dataset.data_dirs)
                raise ValueError(
                    f"{source} holds {name} of width {recorded.shape[-1]}, those of the environment have {width}: the "
                    "student needs the observations of the recorded policy. For a student that observes less than its "
                    "teacher, collect with st-rl dagger"
                )

    def _hand_over(self) -> tuple[Tensor, Tensor]:
        """Switch from data set to environment: ends all episodes, clears hidden states, returns its observations."""
        self._was_pretraining = False
        logger.info(f"hand-over from the data set to the environment at iteration {self.current_learning_iteration}")
        storage = self.alg.storage
        storage.dones[storage.step - 1] = 1
        self.alg.actor_critic.clear_hidden_states()
        if isinstance(self.alg, TPPO):
            self.alg.teacher_actor_critic.clear_hidden_states()
        self.alg.pin_hidden_states()
        return self._observe()

    def _collect_rollout(self) -> tuple[list[dict[str, Any]], Mapping[str, Any]]:
        """Fill the storage with one rollout; steps from files and the hand-over are never captured."""
        dataset, iteration = self._file_dataset, self.current_learning_iteration
        if dataset is not None:
            dataset.current_iteration = iteration
        if self.is_pretraining:
            if iteration in LATER_STATISTICS and dataset is not None and dataset.collectors.num_alive:
                self._compute_statistics()
            outcome = self._rollout_steps()
            self._episodes.drain()
            return outcome
        if self._was_pretraining:
            with torch.inference_mode(self._inference_mode):
                self._store_observations(*self._hand_over())
        return super()._collect_rollout()

    # ---- learn, load ---------------------------------------------------------------------------------------------

    def init_writter(self, init_at_random_ep_len: bool) -> None:
        """Create the run folder and its writers, and a heartbeat for the collectors."""
        super().init_writter(init_at_random_ep_len)
        if self.log_dir is not None and self._heartbeat is None:
            self._heartbeat = Heartbeat(self.log_dir, TRAINER, new_writer_id())
            # After the start of the own one: without any heartbeat, collectors stop.
            for path in dead_heartbeats(self.log_dir, TRAINER):
                path.unlink(missing_ok=True)

    @contextmanager
    def _learning_session(self) -> Iterator[None]:
        """Admit one `learn` at a time; the heartbeat for the collectors ends with it."""
        with super()._learning_session():
            if self._file_dataset is not None:
                self._file_dataset.may_wait = True
            try:
                yield
            finally:
                if self._heartbeat is not None:
                    self._heartbeat.stop()
                    self._heartbeat = None

    def request_stop(self) -> None:
        """Make `learn` finish its iteration, save and return; a wait for files ends at once."""
        super().request_stop()
        if self._file_dataset is not None:
            self._file_dataset.may_wait = False

    def load(
        self, path: str | Path, load_optimizer: bool = True, map_location: Any = None, trust_pickle: bool = False
    ) -> Any:
        """Load a checkpoint and continue in its stage; returns its `infos`."""
        infos = super().load(path, load_optimizer, map_location, trust_pickle)
        # Observations and hidden states of a checkpoint of the first stage come from the data set.
        completed = self.current_learning_iteration
        self._was_pretraining = completed > 0 and (
            self.pretrain_iterations < 0 or completed <= self.pretrain_iterations
        )
        return infos

    def _init_observations(self) -> None:
        if self.is_pretraining and not self._dataset_normalizers:
            self._compute_statistics()
        super()._init_observations()

    def _compute_statistics(self) -> None:
        """Set the statistics of untrained normalizers from the data set; steps from it do not update them."""
        self.train_mode()
        streams = {"observations": self.alg.obs_normalizer}
        if self._sizes.has_critic_obs:
            streams["privileged_observations"] = self.alg.critic_obs_normalizer
        # A normalizer that stays in evaluation mode belongs to a teacher.
        self._dataset_normalizers |= {
            name: normalizer
            for name, normalizer in streams.items()
            if isinstance(normalizer, EmpiricalNormalization) and normalizer.training and int(normalizer.count) == 0
        }
        if not self._dataset_normalizers:
            return
        if self._file_dataset is None:
            logger.warning("normalizers start without statistics: the data set cannot be read in advance")
            return
        num_frames = 0
        for frames in self._file_dataset.all_frames():
            if num_frames == 0:
                self._check_widths(frames["observations"], frames.get("privileged_observations"))
            num_frames += len(frames["observations"])
            for name, normalizer in self._dataset_normalizers.items():
                normalizer.update(frames[name].to(self.device))
            if num_frames >= STATISTICS_FRAMES:
                break
        logger.info(f"normalizers have the statistics of {num_frames:,} recorded frames")

    # ---- log -----------------------------------------------------------------------------------------------------

    def _log_infos(self, infos: Mapping[str, Any]) -> None:
        for key, value in infos.items():
            if key not in STEP_INFOS:
                self._call_writer("add_scalar", f"Perf/dataset_{key}", value, self.current_learning_iteration)

    def log(self, locs: dict[str, Any], width: int = 80, pad: int = 35) -> None:
        """Write one iteration to the writers and the console, with the counters of the data set."""
        if self._was_pretraining and self._file_dataset is not None:
            for key, value in self._dataset_scalars(self._file_dataset).items():
                self._call_writer("add_scalar", f"Perf/dataset_{key}", value, locs["it"])
        super().log(locs, width, pad)

    def _dataset_scalars(self, dataset: RolloutDataset) -> dict[str, float]:
        """Return size, reading rate and waiting time of the data set since the last log."""
        before = self._last_log
        now = DatasetLog(time.perf_counter(), dataset.num_transitions_read, dataset.waiting_seconds)
        self._last_log, elapsed = now, max(now.time - before.time, 1e-9)
        return {
            "trajectories": len(dataset.all_available_trajectory_dirs),
            "collectors": dataset.collectors.num_alive,
            "transitions_per_second": (now.num_transitions_read - before.num_transitions_read) / elapsed,
            "waiting_fraction": (now.waiting_seconds - before.waiting_seconds) / elapsed,
            "files_skipped": dataset.num_files_skipped,
            "trajectories_refused": dataset.num_trajectories_refused,
        }


def _dataset_settings(config: Mapping[str, Any], strict: bool) -> dict[str, Any]:
    """Return the arguments of `RolloutDataset` in a configuration, without those that the runner sets."""
    given, accepted = drop_none(config), accepted_keys(RolloutDataset)
    report_unused_keys({k: v for k, v in given.items() if k not in accepted}, "pretrain_dataset", accepted, strict)
    return {key: given[key] for key in accepted - {"num_envs", "device"} if key in given}
