"""`TwoStageRunner`: learns from recorded trajectories first, from the environment after that."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from st_rl.algorithms import PPO
from st_rl.modules.normalizer import EmpiricalNormalization, normalize_without_update
from st_rl.runners.dagger_saver import TRAINER
from st_rl.runners.on_policy_runner import OnPolicyRunner
from st_rl.storage.rollout_files.rollout_dataset import RolloutDataset
from st_rl.utils.config import accepted_keys, drop_none, report_unused_keys
from st_rl.utils.files.heartbeat import Heartbeat, new_writer_id
from st_rl.utils.log import logger

# Frames from which the observation statistics of a data set are taken.
STATISTICS_FRAMES = 500_000
# Iterations before which that is done again while collectors add to the data set: the first frames are all alike.
LATER_STATISTICS = (5, 15, 40, 100)


class TwoStageRunner(OnPolicyRunner):
    """Feeds the algorithm from files for `pretrain_iterations` iterations (for ever, if negative), then from robots.

    The files may still be written to by collectors that follow this training's checkpoints.
    """

    default_log_interval = 50

    def __init__(self, env: Any, train_cfg: Any, log_dir: str | Path | None = None, device: torch.device | str = "cpu"):
        super().__init__(env, train_cfg, log_dir, device)
        self.pretrain_iterations = int(self.cfg.get("pretrain_iterations") or 0)
        if self.cfg.get("pretrain_dataset") is None:
            raise AssertionError(
                "TwoStageRunner needs pretrain_dataset, the arguments of RolloutDataset: {data_dir: ...}"
            )
        if type(self.alg).collect_transition_from_dataset is PPO.collect_transition_from_dataset:
            raise TypeError(f"{type(self.alg).__name__} cannot learn from a data set; use TPPO")
        settings = _dataset_settings(self.cfg["pretrain_dataset"], bool(self.cfg.get("strict")))
        # A user may put another one in its place, of which `get_transition_batch` is enough.
        self.rollout_dataset: Any = RolloutDataset(**settings, num_envs=env.num_envs, device=self.alg.device)
        # Whether the last step came from the data set, so that the next one of the environment is the hand-over.
        self._was_pretraining = False
        self._is_exhausted = False
        # Normalisers, by the field of the data set whose statistics they have.
        self._taught: dict[str, EmpiricalNormalization] = {}
        self._heartbeat: Heartbeat | None = None
        self._logged = (time.perf_counter(), 0, 0.0)

    @property
    def is_pretraining(self) -> bool:
        """Whether the next step comes from the data set."""
        in_time = self.pretrain_iterations < 0 or self.current_learning_iteration < self.pretrain_iterations
        return in_time and not self._is_exhausted

    @property
    def _recorded(self) -> RolloutDataset | None:
        """The data set where it is one of files, which tells more than the next transition."""
        return self.rollout_dataset if isinstance(self.rollout_dataset, RolloutDataset) else None

    # ---- stepping ------------------------------------------------------------------------------------------------

    def rollout_step(
        self, obs: Tensor, critic_obs: Tensor, **kwargs: Any
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Mapping[str, Any]]:
        """One step of the data set or of the environment; takes and returns normalised observations."""
        if self.is_pretraining:
            try:
                transition, infos = self.rollout_dataset.get_transition_batch()
            except StopIteration:
                logger.info(
                    f"the data set is exhausted: iteration {self.current_learning_iteration} goes on with robots"
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

    def _dataset_step(self, transition: Any, infos: Mapping[str, Any]) -> tuple[Any, ...]:
        """Let the algorithm store a recorded step; what follows it is normalised as the algorithm does."""
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
        """ValueError for recorded observations, `(..., O)` and `(..., Oc)`, that are not those of the environment."""
        streams = [("", obs, self._sizes.num_obs)]
        if self._sizes.has_critic_obs and critic_obs is not None:
            streams.append((" of the critic", critic_obs, self._sizes.num_critic_obs))
        for whose, recorded, width in streams:
            if recorded.shape[-1] != width:
                source = "the data set" if self._recorded is None else ", ".join(self._recorded.data_dirs)
                raise ValueError(
                    f"{source} holds observations{whose} of {recorded.shape[-1]} numbers, those of the environment "
                    f"have {width}: a data set fits a student that sees what the "
                    "recorded policy saw; for a student that sees less than its teacher, st-rl dagger collects"
                )

    def _hand_over(self) -> tuple[Tensor, Tensor]:
        """Leave the data set: no episode or memory goes on from it, and the robots are seen as they stand."""
        self._was_pretraining = False
        logger.info(f"hand-over from the data set to the environment at iteration {self.current_learning_iteration}")
        storage = self.alg.storage
        storage.dones[storage.step - 1] = 1
        for policy in (self.alg.actor_critic, getattr(self.alg, "teacher_actor_critic", None)):
            if policy is not None:
                policy.clear_hidden_states()
        # Where a rollout that is captured from now on begins.
        self.alg.pin_hidden_states()
        return self._observe()

    def _collect_rollout(self) -> tuple[list[dict[str, Any]], Mapping[str, Any]]:
        """One rollout; files cannot be part of a captured one, and neither can the hand-over."""
        recorded, iteration = self._recorded, self.current_learning_iteration
        if recorded is not None:
            recorded.current_iteration = iteration
        if self.is_pretraining:
            if iteration in LATER_STATISTICS and recorded is not None and recorded.collectors.num_alive:
                self._learn_statistics()
            outcome = self._rollout_steps()
            self._episodes.drain()
            return outcome
        if self._was_pretraining:
            with torch.inference_mode(self._inference_mode):
                self._store_observations(*self._hand_over())
        return super()._collect_rollout()

    # ---- beginning and ending ------------------------------------------------------------------------------------

    def init_writter(self, init_at_random_ep_len: bool) -> None:
        """Open the run folder; from now on collectors see that this training lives."""
        super().init_writter(init_at_random_ep_len)
        if self.log_dir is not None and self._heartbeat is None:
            self._heartbeat = Heartbeat(self.log_dir, TRAINER, new_writer_id())

    def learn(
        self, num_learning_iterations: int, init_at_random_ep_len: bool = False, trial: Any = None
    ) -> tuple[Tensor, Tensor]:
        """Train as `OnPolicyRunner` does, and say goodbye to the collectors at the end."""
        if self._recorded is not None:
            self._recorded.may_wait = True
        try:
            return super().learn(num_learning_iterations, init_at_random_ep_len, trial)
        finally:
            if self._heartbeat is not None:
                self._heartbeat.stop()
                self._heartbeat = None

    def request_stop(self) -> None:
        """Let `learn` finish its iteration, save and return; a wait for files, which may be long, ends at once."""
        super().request_stop()
        if self._recorded is not None:
            self._recorded.may_wait = False

    def load(
        self, path: str | Path, load_optimizer: bool = True, map_location: Any = None, trust_pickle: bool = False
    ) -> Any:
        """Load a checkpoint and go on in the stage in which it was taken; returns its `infos`."""
        infos = super().load(path, load_optimizer, map_location, trust_pickle)
        # What such a checkpoint remembers of observations and memories comes from the data set.
        completed = self.current_learning_iteration
        self._was_pretraining = completed > 0 and (
            self.pretrain_iterations < 0 or completed <= self.pretrain_iterations
        )
        return infos

    def _init_observations(self) -> None:
        if self.is_pretraining and not self._taught:
            self._learn_statistics()
        super()._init_observations()

    def _learn_statistics(self) -> None:
        """Give normalisers that know nothing yet the statistics of the data set, which playing it will not change."""
        self.train_mode()
        streams = {"observations": self.alg.obs_normalizer}
        if self._sizes.has_critic_obs:
            streams["privileged_observations"] = self.alg.critic_obs_normalizer
        # One that stays in evaluation mode belongs to a teacher.
        self._taught |= {
            name: normalizer
            for name, normalizer in streams.items()
            if isinstance(normalizer, EmpiricalNormalization) and normalizer.training and int(normalizer.count) == 0
        }
        if not self._taught:
            return
        if self._recorded is None:
            logger.warning("normalisers know nothing of the data set, which cannot be read before it is played")
            return
        num_frames = 0
        for frames in self._first_frames(self._recorded):
            if num_frames == 0:
                self._check_widths(frames["observations"], frames.get("privileged_observations"))
            num_frames += len(frames["observations"])
            for name, normalizer in self._taught.items():
                normalizer.update(frames[name].to(self.device))
        logger.info(f"normalisers have learned the statistics of {num_frames:,} recorded frames")

    @staticmethod
    def _first_frames(dataset: RolloutDataset) -> Iterator[Mapping[str, Tensor]]:
        num_frames = 0
        for frames in dataset.all_frames():
            yield frames
            num_frames += len(frames["observations"])
            if num_frames >= STATISTICS_FRAMES:
                return

    # ---- showing -------------------------------------------------------------------------------------------------

    def _log_infos(self, infos: Mapping[str, Any]) -> None:
        if self.writer is not None:
            for key, value in infos.items():
                if key != "time_outs":
                    self.writer.add_scalar(f"Perf/dataset_{key}", value, self.current_learning_iteration)

    def log(self, locs: dict[str, Any], width: int = 80, pad: int = 35) -> None:
        """Write one iteration to the writers and the console, with the state of the data set."""
        if self._was_pretraining and self.writer is not None and self._recorded is not None:
            for key, value in self._dataset_scalars(self._recorded).items():
                self.writer.add_scalar(f"Perf/dataset_{key}", value, locs["it"])
        super().log(locs, width, pad)

    def _dataset_scalars(self, dataset: RolloutDataset) -> dict[str, float]:
        """How much there is to read, how fast it is read and how much of the time is spent waiting."""
        now = time.perf_counter()
        then, read, waited = self._logged
        self._logged = (now, dataset.num_transitions_read, dataset.waiting_seconds)
        elapsed = max(now - then, 1e-9)
        return {
            "trajectories": len(dataset.all_available_trajectory_dirs),
            "collectors": dataset.collectors.num_alive,
            "transitions_per_second": (dataset.num_transitions_read - read) / elapsed,
            "waiting_share": (dataset.waiting_seconds - waited) / elapsed,
            "files_skipped": dataset.num_files_skipped,
            "trajectories_refused": dataset.num_trajectories_refused,
        }


def _dataset_settings(config: Mapping[str, Any], strict: bool) -> dict[str, Any]:
    """What of a configuration `RolloutDataset` takes; number and device of the robots are the runner's to say."""
    given, accepted = drop_none(config), accepted_keys(RolloutDataset)
    report_unused_keys({k: v for k, v in given.items() if k not in accepted}, "pretrain_dataset", accepted, strict)
    return {key: given[key] for key in accepted - {"num_envs", "device"} if key in given}
