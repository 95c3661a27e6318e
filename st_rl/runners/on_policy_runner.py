"""The on-policy training loop."""

import dataclasses
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor, nn

import st_rl
from st_rl.algorithms import PPO
from st_rl.engine import Engine, UpdateThreads, can_capture_exchanges
from st_rl.env import VecEnv
from st_rl.env.policy_metadata import describe_policy_io
from st_rl.env.protocols import (
    CompilableEnv,
    ConfiguredEnv,
    GraphSafeEnv,
    NamedTaskEnv,
    ResettableEnv,
    StatefulEnv,
)
from st_rl.env.utils import observe, split_step
from st_rl.export import ExportReport, export_onnx, export_torchscript
from st_rl.loggers.console_panel import ConsolePanel, console_rows
from st_rl.loggers.writers import FailureGuard, make_writer
from st_rl.modules import ActorCritic, ActorCriticMutex, InferencePolicy
from st_rl.modules.normalizer import EmpiricalNormalization, outlier_message
from st_rl.modules.policy import GaussianPolicy
from st_rl.modules.policy.rsl_rl_checkpoint import convert_checkpoint
from st_rl.runners.background import BackgroundCalls
from st_rl.runners.checkpoints import (
    RUN_NAME,
    CheckpointKeeper,
    checkpoint_path,
    describe_run,
    environment_state,
    make_run_folder,
    write_run_config,
)
from st_rl.runners.iteration_statistics import (
    EpisodeStatistics,
    episode_scalars,
    evaluation_scalars,
    infos_to_host,
    memory_scalars,
    read_scalars,
    stack_infos,
)
from st_rl.runners.non_finite import NonFiniteGuard, report_non_finite
from st_rl.runners.setup.build_algorithm import build_algorithm
from st_rl.runners.setup.env_sizes import critic_obs_error, read_sizes
from st_rl.runners.setup.ranks import check_ranks
from st_rl.runners.setup.train_config import CLIENT_KEYS, RUNNER_KEYS, read_train_config
from st_rl.runners.stop_conditions import stop_on_interrupt, time_limit
from st_rl.runners.trial import Trial, pruned_error, report_to_trial
from st_rl.utils import ckpt_manipulator, store_code_state
from st_rl.utils.config import Configurable, unknown_name_message
from st_rl.utils.distributed import (
    RANK_TIMEOUT_S,
    any_rank,
    gather_to_main,
    is_main,
    join_process_group,
    limit_exchanges,
    rank,
    value_of_main,
    world_size,
)
from st_rl.utils.distributed.heartbeat import RankHeartbeat, describe_silent_ranks
from st_rl.utils.files import (
    CheckpointError,
    load_checkpoint,
    name_file,
    plain_value,
    remove_temporary_files,
    save_checkpoint,
    write_checkpoint,
    write_json,
)
from st_rl.utils.files.checkpoint import OTHER_CHECKPOINT
from st_rl.utils.files.folder_lock import FolderLock
from st_rl.utils.log import logger
from st_rl.utils.rng import load_rng_state_dict, rng_state_dict
from st_rl.utils.tensors.obs_groups import resolve_missing
from st_rl.utils.tensors.tree import tree_map

NAN = float("nan")
# The parts of a checkpoint that only a resumed training needs.
OPTIMIZER_KEYS = (
    *("optimizer_state_dict", "lr_scheduler_state_dict", "rnd_optimizer_state_dict"),
    *("discriminator_optimizer_state_dict", "discriminator_replay_state_dict"),
)


class OnPolicyRunner(Configurable):
    """Collects rollouts, updates the algorithm on them, evaluates, logs and saves."""

    config_keys = RUNNER_KEYS | CLIENT_KEYS
    default_log_interval = 1
    evaluator: Callable[[InferencePolicy], float] | None = None
    """Scores an inference policy, higher is better; selects `best.pt`. Without it, the mean return of training does."""
    time_limit_s: float | None = None
    """Seconds after which `learn` saves and returns, even if iterations are left; None for no limit."""
    writer: Any = None
    """Writes the curves. Created when learning starts, so that playing a policy writes nothing."""
    logger_type: str | None = None
    """Name of the logger, known when learning starts."""
    # State of the run folder; None until learning starts.
    _folder_lock: FolderLock | None = None
    _run_description: dict[str, Any] | None = None
    _checkpoints: CheckpointKeeper | None = None
    _saved_iteration: int | None = None

    def __init__(
        self,
        env: VecEnv,
        train_cfg: Mapping[str, Any],
        log_dir: str | Path | None = None,
        device: torch.device | str = "cpu",
    ):
        self._train_config = read_train_config(train_cfg)
        self.cfg, self.alg_cfg, self.policy_cfg = self._train_config[:3]
        self._rank_timeout_s = float(self.cfg.get("rank_timeout_s") or RANK_TIMEOUT_S)
        self.device = device = join_process_group(device, self._rank_timeout_s)
        self.env = env
        self._stateful_env = env if isinstance(env, StatefulEnv) else None
        # The folder of rank 0, on every rank; only rank 0 writes to it and has a `log_dir`.
        folder = value_of_main(None if log_dir is None else str(log_dir))
        self._run_folder = None if folder is None else Path(folder)
        self.log_dir = str(log_dir) if log_dir is not None and is_main() else None
        self.num_steps_per_env = int(self.cfg["num_steps_per_env"])
        self.log_interval = int(self.cfg.get("log_interval") or self.default_log_interval)
        self.save_interval = int(self.cfg.get("save_interval") or 50)
        self._obs_groups = resolve_missing(self._train_config.obs_groups, env.get_observations())
        self._train_config = self._train_config._replace(obs_groups=self._obs_groups)
        observations = observe(env, self._obs_groups)
        self._sizes = read_sizes(env, observations, self._obs_groups)
        check_ranks(env.num_envs, self.num_steps_per_env, observations.obs)
        self.num_obs, self.num_critic_obs = self._sizes.num_obs, self._sizes.num_critic_obs
        self.alg: PPO = build_algorithm(env, self._train_config, self._sizes, observations.extras, device)
        self._has_std = isinstance(self.alg.actor_critic, GaussianPolicy)
        # Infos that the algorithm learns from.
        self._info_keys = ("time_outs", *self.alg.required_info_keys)
        self.tot_timesteps = self.current_learning_iteration = 0
        self.tot_time = 0.0
        self.metrics_velrmsd = self.metrics_CoT = torch.tensor(NAN)
        # The number of the configuration; the command line replaces it by one that is measured during the training.
        self.update_threads = UpdateThreads(self.cfg.get("update_threads"))
        self.git_status_repos = [st_rl.__file__]
        # Called with the number of finished iterations after each of them, on the main rank.
        self.iteration_observers: list[Callable[[int], None]] = []
        # Repositories with their git state in the run folder already.
        self._recorded_repos: list[str] = []
        # Added to what `run.json` says about the training; the command line sets its options here.
        self.run_settings: dict[str, Any] = {}
        self._writer_guard = FailureGuard("runner.writer")
        self._is_learning = threading.Lock()
        # Created by the first call, so that a runner that writes at once starts no thread.
        self._background: BackgroundCalls | None = None
        self._console = ConsolePanel()
        self._episodes = EpisodeStatistics(self.num_steps_per_env, env.num_envs, device)
        self._non_finite = NonFiniteGuard(device, self.num_steps_per_env)
        self._durations: deque[float] = deque(maxlen=50)
        self._stop_requested = False
        self._may_be_pruned = False
        self._learn_begin = 0.0
        self._inference_mode = self.cfg.get("inference_mode_rollout") in (None, True)
        # Normalized actor and critic observations to act on next, in fixed buffers that a captured rollout reads.
        self._last_observations: tuple[Tensor, Tensor] | None = None
        self._resumes_from_observations = False
        # `_rollout_steps` as a CUDA graph; selected when learning starts, None without one.
        self._engine_rollout: Callable[[Any], Any] | None = None
        self._has_engine = False
        self._reset_env()

    # ---- learn ---------------------------------------------------------------------------------------------------

    def init_writter(self, init_at_random_ep_len: bool) -> None:
        """Create the run folder and its writers; optionally randomize the elapsed time of all episodes."""
        self.lock_run_folder()
        if self.log_dir is not None and self.writer is None:
            write_run_config(Path(self.log_dir), self.env, self._train_config, self.alg.actor_critic)
            self.logger_type = str(self.cfg.get("logger") or "tensorboard").lower()
            self.writer = make_writer(self.logger_type, self.log_dir, self.cfg, flush_secs=10)
            env_cfg = self.env.cfg if isinstance(self.env, ConfiguredEnv) else None
            self.writer.log_config(env_cfg, self.cfg, self.alg_cfg, self.policy_cfg)
        if init_at_random_ep_len:
            self.env.episode_length_buf = torch.randint_like(
                self.env.episode_length_buf, high=int(self.env.max_episode_length)
            )

    def _write_run_file(self, num_learning_iterations: int | None) -> None:
        """Write `run.json`, by which commands find the run and its task; that of a resumed run stays as it is."""
        if self.log_dir is None:
            return
        path = Path(self.log_dir) / RUN_NAME
        if self._run_description is None:
            if self.current_learning_iteration > 0 and not self.run_settings and path.is_file():
                return
            self._run_description = describe_run(self.env, self.device)
        done, added = self.current_learning_iteration, num_learning_iterations
        planned = {"iterations": None if added is None else done + added}
        write_json(path, {**planned, **self._run_description, **self.run_settings})

    def init_writer(self, init_at_random_ep_len: bool) -> None:
        """Call `init_writter`, the documented spelling."""
        self.init_writter(init_at_random_ep_len)

    def learn(
        self, num_learning_iterations: int | None, init_at_random_ep_len: bool = False, trial: Trial | None = None
    ) -> tuple[Tensor, Tensor]:
        """Train for a number of iterations, or for `time_limit_s` seconds if that comes first or the number is None.

        Returns the velocity tracking error and the cost of transport.
        A second call continues from the current environment state, so `learn(3); learn(3)` equals `learn(6)` if
        `get_observations()` still returns the last step's observation. Ctrl-C finishes the iteration, saves a
        checkpoint and raises KeyboardInterrupt.
        """
        if isinstance(self.alg.actor_critic, ActorCriticMutex):
            raise ValueError(
                f"{type(self.alg.actor_critic).__name__} cannot be trained: its sub-policies are frozen and it has no "
                "critic. Play it with get_inference_policy(), record it with DemonstrationSaver, or name it in "
                "teacher_policy of TPPO to train a student"
            )
        if num_learning_iterations is None and self.time_limit_s is None:
            raise ValueError("learn(None) needs time_limit_s: set runner.time_limit_s, or give a number of iterations")
        with stop_on_interrupt(self.request_stop), self._learning_session():
            self.init_writter(init_at_random_ep_len)
            self._write_run_file(num_learning_iterations)
            self._init_checkpoints()
            # An inference policy may have moved it to another device.
            self.alg.engine.move_modules((self.alg.actor_critic, self.alg.obs_normalizer), self.device)
            self._init_engine(num_learning_iterations)
            self._init_observations()
            self.train_mode()
            self._may_be_pruned = any_rank(trial is not None, self.device)
            start_iter = self.current_learning_iteration
            tot_iter = None if num_learning_iterations is None else start_iter + num_learning_iterations
            with time_limit(self.time_limit_s, self.request_stop):
                for it in itertools.count(start_iter) if tot_iter is None else range(start_iter, tot_iter):
                    begin = time.perf_counter()
                    self._iterate(it, start_iter, tot_iter, trial)
                    self._durations.append(time.perf_counter() - begin)
                    if any_rank(self._stop_requested, self.device):
                        break
                    if it == start_iter:
                        limit_exchanges(self._rank_timeout_s)
            if self._run_folder is not None:
                self._finish_log()
        return self.metrics_velrmsd, self.metrics_CoT

    @contextmanager
    def _learning_session(self) -> Iterator[None]:
        """Admit one `learn` at a time, with the run folder locked; an exception closes the writers."""
        if not self._is_learning.acquire(blocking=False):
            raise RuntimeError(
                "learn() is already running in this runner: call it again after it has returned, or build another "
                "runner with its own environment and log_dir"
            )
        # Some ranks start later than others: loggers, kernels, the first evaluation.
        limit_exchanges(max(self._rank_timeout_s, RANK_TIMEOUT_S))
        heartbeat = RankHeartbeat(self._rank_timeout_s) if world_size() > 1 else None
        try:
            self._stop_requested = False
            self._durations.clear()
            self._learn_begin = time.perf_counter()
            self.lock_run_folder()
            yield
        except BaseException as error:
            self._save_if_interrupted(error)
            self.close()
            # What torch raises when an exchange between ranks fails.
            silent = describe_silent_ranks() if isinstance(error, RuntimeError) and world_size() > 1 else ""
            if silent:
                logger.error(f"rank {rank()} stops: {silent}")
            raise
        finally:
            if heartbeat is not None:
                heartbeat.stop()
            self._unlock_run_folder()
            self._is_learning.release()

    def _save_if_interrupted(self, error: BaseException) -> None:
        """Save a checkpoint after a KeyboardInterrupt inside an iteration; several ranks would wait for each other."""
        done = self.current_learning_iteration
        if isinstance(error, KeyboardInterrupt) and self._saved_iteration != done > 0 and world_size() == 1:
            self._save_checkpoint()

    def lock_run_folder(self) -> None:
        """Create the run folder and lock it until `learn` ends or `close`; removes temporary files of killed trainings.

        `learn` calls it; call it before that to write to the folder earlier. FolderInUseError names another writer.
        """
        if self.log_dir is not None and self._folder_lock is None:
            folder = make_run_folder(self.log_dir)
            self._folder_lock = FolderLock(folder)
            for part in (folder, folder / "git"):
                remove_temporary_files(part)

    def _unlock_run_folder(self) -> None:
        if self._folder_lock is not None:
            self._folder_lock.release()
            self._folder_lock = None

    def _finish_log(self) -> None:
        """Save the last iteration, wait until everything is written and leave the last panel on the terminal."""
        if self._saved_iteration != self.current_learning_iteration:
            self._save_checkpoint()
        self._finish_writing()
        self._call_writer("flush")
        self._console.close()

    def request_stop(self) -> None:
        """Make `learn` finish its iteration, save and return."""
        self._stop_requested = True

    def close(self) -> None:
        """Close the writers and unlock the run folder; `learn` may be called again."""
        try:
            self._finish_writing()
        finally:
            self._console.close()
            self._call_writer("close")
            self.writer = None
            self._unlock_run_folder()

    def _iterate(self, it: int, start_iter: int, tot_iter: int | None, trial: Trial | None) -> None:
        """Run one iteration: rollout, update, evaluation, log and checkpoint; an error discards the rollout."""
        begin = time.perf_counter()
        # Schedules that `act` reads depend on it.
        self.alg.current_learning_iteration = it
        storage = self.alg.storage
        first_row = storage.step
        try:
            ep_infos, infos = self._collect_rollout()
            collected = time.perf_counter()
            # During the rollout the physics threads need the cores.
            with self.update_threads.measured():
                losses, stats = self.alg.update(it)
        except BaseException:
            storage.step = first_row
            self._episodes.drop()
            raise
        self.evaluation()
        self._report_non_finite(it, self.alg.non_finite_counts())
        for name, num_clipped in self.alg.take_outlier_counts().items():
            logger.warning(f"iteration {it}: {outlier_message(name, num_clipped)}")
        learned = time.perf_counter()
        self.tot_timesteps += self.num_steps_per_env * self.env.num_envs * world_size()
        self.tot_time += learned - begin
        is_pruned = trial is not None and report_to_trial(trial, it, self.metrics_velrmsd, self.metrics_CoT)
        if self._may_be_pruned and any_rank(is_pruned, self.device):
            self._prune(it)
        if self.log_dir is not None and it % self.log_interval == 0:
            locs = {"it": it, "start_iter": start_iter, "tot_iter": tot_iter, "losses": losses, "stats": stats}
            num_iterations = None if tot_iter is None else tot_iter - start_iter
            locs |= {"num_learning_iterations": num_iterations, "ep_infos": ep_infos, "infos": infos}
            locs |= {"collection_time": collected - begin, "learn_time": learned - collected}
            self.log(locs | self._episodes.buffers())
        self.current_learning_iteration = it + 1
        if self.current_learning_iteration % self.save_interval == 0:
            self._save_checkpoint()
        if is_main():
            for observe_iteration in self.iteration_observers:
                observe_iteration(it + 1)
        if self.log_dir is not None and self._recorded_repos != self.git_status_repos:
            self._recorded_repos = list(self.git_status_repos)
            self._finish_writing()
            for path in store_code_state(self.log_dir, self.git_status_repos):
                self._call_writer("save_file", path)

    def _prune(self, it: int) -> None:
        self.current_learning_iteration = it + 1
        self._save_checkpoint()
        self.close()
        raise pruned_error(f"trial pruned at iteration {it}")

    def _init_engine(self, num_iterations: int | None) -> None:
        """Select how rollout and update run (eager, compiled or captured) and log the choice."""
        setting = self.cfg.get("engine") or "auto"
        obstacle = None if setting == "eager" else self.alg.capture_obstacle()
        if obstacle is not None:
            if not self._has_engine:
                logger.warning(obstacle)
            setting = "eager"
        is_new = not self._has_engine or not self.alg.engine.matches(setting, num_iterations, self.time_limit_s)
        if is_new:
            limits = num_iterations, self.time_limit_s
            captures_exchanges = setting == "eager" or can_capture_exchanges(self.device)
            self.alg.engine = Engine(setting, self.device, *limits, captures_exchanges=captures_exchanges)
            self._has_engine = True
            self._engine_rollout = None
            logger.info(self.alg.engine.describe())
            if isinstance(self.env, CompilableEnv):
                self.env.compile_with(self.alg.engine.compile)
        engine, env = self.alg.engine, self.env
        if is_new and engine.plan.graphs and isinstance(env, GraphSafeEnv) and env.is_graph_safe:
            host_state = [(self.alg.storage, "step"), (self._episodes, "num_recorded")]
            self._engine_rollout = engine.loop(self._rollout_steps, host_state, env.during_capture)

    # ---- rollout -------------------------------------------------------------------------------------------------

    def _init_observations(self) -> None:
        """Set the observations to act on first: those of a resumed training, or the environment's current ones."""
        policy = self.alg.actor_critic
        if self._last_observations is not None and self._resumes_from_observations:
            self._resumes_from_observations = False
        else:
            states = policy.hidden_state_dict().values() if policy.is_recurrent else ()
            if any(leaf.shape[1] != self.env.num_envs for leaves in states for leaf in leaves):
                # Since the last call the policy has acted for another number of environments.
                policy.clear_hidden_states()
            # The normalizers have already counted an observation that follows a step.
            if self._last_observations is None:
                self.train_mode()
            else:
                self.eval_mode()
            self._non_finite.step = 0
            with torch.inference_mode(self._inference_mode):
                self._store_observations(*self._observe())
            self._report_non_finite(self.current_learning_iteration, {})
        self.alg.pin_hidden_states()

    def _observe(self) -> tuple[Tensor, Tensor]:
        """Return the environment's current actor and critic observation, cleaned and normalized."""
        obs, critic_obs, _ = observe(self.env, self._obs_groups)
        return self._normalize(*self._clean(obs, critic_obs))

    def _reset_env(self) -> None:
        """Reset the environment, if it can: one of rsl_rl 5 has no `reset()` and starts by itself."""
        if isinstance(self.env, ResettableEnv):
            self.env.reset()

    def _store_observations(self, obs: Tensor, critic_obs: Tensor) -> None:
        """Copy the observations to act on next into their fixed buffers."""
        if self._last_observations is None:
            with torch.inference_mode(False):
                buffer = obs.clone()
                self._last_observations = (buffer, buffer if critic_obs is obs else critic_obs.clone())
            return
        for buffer, new in zip(self._last_observations, (obs, critic_obs)):
            buffer.copy_(new)

    def _collect_rollout(self) -> tuple[list[dict[str, Any]], Mapping[str, Any]]:
        """Fill the storage with one rollout; returns the episode infos of all steps and the infos of the last."""
        if self._engine_rollout is None:
            outcome = self._rollout_steps()
        else:
            outcome = self._engine_rollout(self.alg.rollout_settings())
        if not self.alg.engine.plan.captures_exchanges and self._last_observations is not None:
            with torch.inference_mode(self._inference_mode):
                self.alg.compute_returns(self._last_observations[1])
        self._episodes.drain()
        return outcome

    def _rollout_steps(self) -> tuple[list[dict[str, Any]], Mapping[str, Any]]:
        """Run `num_steps_per_env` steps and compute the returns, if their exchange may be captured; no host sync."""
        ep_infos: list[dict[str, Any]] = []
        infos: Mapping[str, Any] = {}
        if self._last_observations is None:
            raise RuntimeError("there are no observations to act on; collect through learn()")
        with torch.inference_mode(self._inference_mode):
            # Copies are inference tensors like those of all later steps: code is compiled for one kind.
            obs = self._last_observations[0].clone()
            is_shared = self._last_observations[1] is self._last_observations[0]
            critic_obs = obs if is_shared else self._last_observations[1].clone()
            for step in range(self.num_steps_per_env):
                self._non_finite.step = step
                obs, critic_obs, rewards, dones, infos = self.rollout_step(obs, critic_obs)
                episode = infos.get("episode") or infos.get("log")
                if episode:
                    ep_infos.append(dict(episode))
                self._episodes.record(rewards, dones)
            if self.alg.engine.plan.captures_exchanges:
                self.alg.compute_returns(critic_obs)
            self._store_observations(obs, critic_obs)
            self.alg.pin_hidden_states()
            self._episodes.summarize()
        return stack_infos(ep_infos), infos

    def rollout_step(
        self, obs: Tensor, critic_obs: Tensor, **kwargs: Any
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Mapping[str, Any]]:
        """Act, step the environment and store the transition; takes and returns normalized observations."""
        actions = self.alg.act(obs, critic_obs)
        # A copy: the environment may clip its actions in place, the storage keeps the sampled ones.
        outcome = self.env.step(actions.to(getattr(self.env, "device", self.device), copy=True))
        next_obs, next_critic_obs, rewards, dones, infos = split_step(outcome, self._obs_groups)
        rewards = self._non_finite.clean("rewards", rewards).reshape(-1)
        dones = self._non_finite.clean("dones", dones).reshape(-1)
        obs, critic_obs = self.alg.engine.compile(self._normalize)(*self._clean(next_obs, next_critic_obs))
        infos = self._clean_infos(infos)
        self.alg.process_env_step(rewards, dones, infos, obs, critic_obs)
        return obs, critic_obs, rewards, dones, infos

    def _clean(self, obs: Tensor, critic_obs: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Move observations to the device and replace non-finite values, which would corrupt the normalizers."""
        obs = self._non_finite.clean("observations", obs)
        if (critic_obs is not None) != self._sizes.has_critic_obs:
            raise critic_obs_error(self._sizes)
        return obs, None if critic_obs is None else self._non_finite.clean("critic observations", critic_obs)

    def _clean_infos(self, infos: Mapping[str, Any]) -> Mapping[str, Any]:
        """Replace non-finite values in the infos that the algorithm reads; without any, returns the same object."""
        for name in self._info_keys:
            groups = infos.get("observations") or {}
            value = groups.get(name, infos.get(name))
            if value is None:
                continue  # the algorithm reports what is missing
            clean = self._non_finite.clean(name, value)
            if clean is not value:
                infos = {**infos, **({"observations": {**groups, name: clean}} if name in groups else {name: clean})}
        return infos

    def _normalize(self, obs: Tensor, critic_obs: Tensor | None) -> tuple[Tensor, Tensor]:
        """Normalize an observation that the environment delivered, once; updates the statistics in training mode."""
        obs = self.alg.obs_normalizer(obs)
        return obs, obs if critic_obs is None else self.alg.critic_obs_normalizer(critic_obs)

    def _report_non_finite(self, it: int, in_update: Mapping[str, int]) -> None:
        num_rows = self.num_steps_per_env * self.env.num_envs
        report_non_finite(it, self._non_finite.report(), in_update, num_rows, self.device)

    # ---- evaluation and log --------------------------------------------------------------------------------------

    def evaluation(self) -> None:
        """Read tracking error and cost of transport from the environment; NaN where it has none."""
        error, cost = self._read_metric("tracking_error"), self._read_metric("CoT")
        if error is None:
            rmsd = self._read_metric("lin_vel_rmsd")
            error = torch.tensor(NAN) if rmsd is None else rmsd.mean()
        self.metrics_velrmsd = error
        self.metrics_CoT = torch.tensor(NAN) if cost is None else cost

    def _read_metric(self, name: str) -> Tensor | None:
        """Return a copy of an optional metric of the environment as floats."""
        value = getattr(self.env, name, None)
        return None if value is None else torch.as_tensor(value).detach().float().clone()

    def _iteration_scalars(self, locs: dict[str, Any]) -> dict[str, float]:
        """Return the scalars of one iteration by log tag, without those of episode infos; one host sync."""
        alg, returns, step_rewards = self.alg, locs["rewbuffer"], locs["rframebuffer"]
        seconds = locs["collection_time"] + locs["learn_time"]
        scalars: dict[str, float | Tensor] = {f"Loss/{name}": value for name, value in locs["losses"].items()}
        if "Loss/entropy" in scalars:
            # The loss is minus the entropy.
            scalars["Loss/entropy"] = -scalars["Loss/entropy"]
        scalars |= {f"Train/{name}": value for name, value in locs["stats"].items()}
        scalars["Loss/learning_rate"] = alg.learning_rate
        scalars["Policy/mean_noise_std"] = alg.actor_critic.std if self._has_std else NAN
        scalars["Perf/total_fps"] = self.num_steps_per_env * self.env.num_envs * world_size() / max(seconds, 1e-9)
        scalars["Perf/collection time"] = locs["collection_time"]
        scalars["Perf/learning_time"] = locs["learn_time"]
        scalars |= memory_scalars(self.device)
        if step_rewards:
            scalars["Train/mean_reward_each_timestep"] = fmean(step_rewards)
        if returns:
            mean_return = scalars["Train/mean_reward"] = fmean(returns)
            scalars["Train/ratio_above_mean_reward"] = fmean(value > mean_return for value in returns)
            scalars["Train/mean_episode_length"] = fmean(locs["lenbuffer"])
        scalars["Metrics/velrmsd"] = self.metrics_velrmsd
        scalars["Metrics/CoT"] = self.metrics_CoT
        if alg.rnd is not None and alg.intrinsic_rewards is not None:
            scalars["Rnd/mean_extrinsic_reward"] = fmean(step_rewards) if step_rewards else NAN
            scalars["Rnd/mean_intrinsic_reward"] = alg.intrinsic_rewards
            scalars["Rnd/weight"] = alg.rnd.weight
        return read_scalars(scalars)

    def log(self, locs: dict[str, Any], width: int = 80, pad: int = 35) -> None:
        """Write one iteration to the writers and the console; on a GPU, in the background."""
        scalars, ep_infos = self._iteration_scalars(locs), infos_to_host(locs["ep_infos"])
        by_time = {}
        if locs["rewbuffer"] and self.logger_type != "wandb":
            by_time = {f"{tag}/time": scalars[tag] for tag in ("Train/mean_reward", "Train/mean_episode_length")}
        seconds_left = self._seconds_left(locs)
        totals = self.tot_timesteps, self.tot_time
        ranks = f", {world_size()} ranks x {self.env.num_envs} environments" if world_size() > 1 else ""
        total = "" if locs["tot_iter"] is None else f"/{locs['tot_iter']}"
        title = f"Learning iteration {locs['it']}{total}{ranks}"

        def write() -> None:
            episodes = episode_scalars(ep_infos)
            for tag, value in (scalars | episodes).items():
                self._call_writer("add_scalar", tag, value, locs["it"])
            for tag, value in by_time.items():
                self._call_writer("add_scalar", tag, value, int(totals[1]))
            self._console.show(title, console_rows(scalars, episodes, locs, *totals, seconds_left), width, pad)

        self._run_in_background(write)

    def log_film(self, video: Path, gif: Path, iteration: int) -> None:
        """Give a film of the policy of an iteration to the writers that show films."""
        self._run_in_background(self._call_writer, "add_film", "Film/policy", video, gif, iteration)

    def _seconds_left(self, locs: Mapping[str, Any]) -> float:
        """Time until the first limit of `learn`: its iterations at their median duration, or the time limit."""
        limits = []
        if locs["tot_iter"] is not None:
            duration = median(self._durations) if self._durations else locs["collection_time"] + locs["learn_time"]
            limits.append(duration * (locs["tot_iter"] - locs["it"] - 1))
        if self.time_limit_s is not None:
            limits.append(self.time_limit_s - (time.perf_counter() - self._learn_begin))
        return min(limits)

    def _call_writer(self, method: str, *args: Any) -> None:
        """Call a method of the writer; a user's own may have `add_scalar` only, and its exceptions are reported."""
        function = getattr(self.writer, method, None)
        if function is not None:
            self._writer_guard.call(method, function, *args)

    @property
    def _writes_in_background(self) -> bool:
        """Whether files are written during training; on a CPU, training needs all cores."""
        return torch.device(self.device).type == "cuda"

    def _run_in_background(self, function: Callable[..., Any], *args: Any) -> None:
        """Call a function that only writes, in the background or at once."""
        if not self._writes_in_background:
            function(*args)
            return
        if self._background is None:
            self._background = BackgroundCalls()
        self._background.call(function, *args)

    def _finish_writing(self) -> None:
        """Wait until everything is written that is written in the background; raises what failed there."""
        background, self._background = self._background, None
        if background is not None:
            background.close()

    # ---- save ----------------------------------------------------------------------------------------------------

    def save(self, path: str | Path, infos: object = None) -> None:
        """Write a checkpoint; it appears under its name only when complete. With several ranks, call it on all."""
        self._finish_writing()
        checkpoint = self._checkpoint(infos)
        if is_main():
            self._write_checkpoint(checkpoint, Path(path))

    def _write_checkpoint(self, checkpoint: dict[str, Any], path: Path) -> None:
        # A resumed training replaces the curves from its checkpoint on: what is before must be on disk.
        self._call_writer("flush")
        write_checkpoint(checkpoint, path)
        self._call_writer("save_model", str(path), checkpoint["iter"])

    def _checkpoint(self, infos: object = None) -> dict[str, Any]:
        """Return everything that a bit-exact resume needs, in types that a checkpoint holds; complete on rank 0."""
        shared = {"iter": self.current_learning_iteration, "infos": infos}
        checkpoint = plain_value(self.alg.state_dict() | shared, "checkpoint")
        own = self._rank_state()
        if world_size() == 1:
            return checkpoint | own
        ranks = gather_to_main(tree_map(_copy_to_host, own | plain_value(self.alg.rank_state_dict(), "checkpoint")))
        return checkpoint | own | {"rank_state_dicts": ranks[1:]}

    def _rank_state(self) -> dict[str, Any]:
        """Return what differs between ranks: random generators, running episodes, environment."""
        state: dict[str, Any] = {
            "rng_state_dict": rng_state_dict(self.device),
            "runner_state_dict": {
                "tot_timesteps": self.tot_timesteps,
                "tot_time": self.tot_time,
                "num_envs": int(self.env.num_envs),
                "learning_rate": float(self.alg.learning_rate),
                "episodes": self._episodes.state_dict(),
                "observations": None if self._last_observations is None else list(self._last_observations),
                **self.alg.rollout_state(),
            },
        }
        state = plain_value(state, "checkpoint")
        env_state = environment_state(self._stateful_env)
        return state if env_state is None else state | {"env_state_dict": env_state}

    def _init_checkpoints(self) -> None:
        """Save checkpoints to the run folder from now on, if there is one."""
        if self.log_dir is None or self._checkpoints is not None:
            return
        keep_best = self.cfg.get("keep_best")
        self._checkpoints = CheckpointKeeper(
            Path(self.log_dir),
            self.cfg.get("keep_last"),
            keep_best=True if keep_best is None else bool(keep_best),
            resumed=self.current_learning_iteration > 0,
        )

    def _save_checkpoint(self) -> None:
        """Save this iteration to the run folder, also as `best.pt` if its score is the highest so far."""
        keeper, iteration = self._checkpoints, self.current_learning_iteration
        if self._run_folder is None:
            return
        checkpoint, path = self._checkpoint(), checkpoint_path(self._run_folder, iteration)
        self._saved_iteration = iteration
        is_overridden = type(self).save is not OnPolicyRunner.save or "save" in vars(self)
        if is_overridden:
            # It may read the file when ours returns, so it is not called in the background.
            self.save(str(path))
        if keeper is None:
            return
        if self._writes_in_background:
            # Training changes its tensors while the file is written.
            checkpoint = tree_map(_copy_to_host, checkpoint)
        try:
            score = self._score_policy()
            if self.evaluator is not None and score is not None:
                # Before the checkpoint, which flushes the row of this iteration.
                self._run_in_background(self._log_evaluation, evaluation_scalars(self.evaluator, score), iteration - 1)
        finally:
            if not is_overridden:
                self._run_in_background(self._write_checkpoint, checkpoint, path)

        def update_folder() -> None:
            if score is not None:
                keeper.offer_best(checkpoint, score)
            keeper.remove_old(iteration)

        self._run_in_background(update_folder)

    def _log_evaluation(self, scalars: Mapping[str, float], step: int) -> None:
        for tag, value in scalars.items():
            self._call_writer("add_scalar", tag, value, step)

    def _score_policy(self) -> float | None:
        """Return the evaluator's score, else the mean return of finished episodes."""
        if self.evaluator is None:
            return fmean(self._episodes.rewbuffer) if self._episodes.rewbuffer else None
        with self._preserve_training_state():
            return float(
                self.evaluator(InferencePolicy(self.alg.actor_critic, self.alg.obs_normalizer, self._obs_groups))
            )

    @contextmanager
    def _preserve_training_state(self) -> Iterator[None]:
        """Switch to evaluation mode with cleared hidden states; restores these, the mode and the random generators."""
        generators = rng_state_dict(self.device)
        self.alg.eval_mode()
        try:
            with self.alg.actor_critic.preserve_hidden_states(), torch.inference_mode():
                self.alg.actor_critic.clear_hidden_states()
                yield
        finally:
            self.alg.train_mode()
            load_rng_state_dict(generators, self.device)

    # ---- load ----------------------------------------------------------------------------------------------------

    def load(
        self, path: str | Path, load_optimizer: bool = True, map_location: Any = None, trust_pickle: bool = False
    ) -> Any:
        """Load a checkpoint and return its `infos`.

        With the optimizer this is a resume: random generators, counters, hidden states and, where it saves its state,
        the environment continue bit-exactly. Without it, only networks and normalizers are loaded.
        """
        location = self.device if map_location is None else map_location
        loaded = load_checkpoint(Path(path), map_location=location, trust_pickle=trust_pickle)
        policy = self.alg.actor_critic
        splits_std = isinstance(policy, ActorCritic) and policy.std_head is not None
        loaded = convert_checkpoint(loaded, policy, splits_std)
        if self.cfg.get("ckpt_manipulator"):
            loaded = self._apply_ckpt_manipulator(loaded, Path(path))
        missing = [key for key in ("model_state_dict", "iter") if key not in loaded]
        if missing:
            raise CheckpointError(
                f"{path} has no {' and no '.join(missing)}; its keys are: {', '.join(map(str, loaded))}. Name a "
                "model_*.pt file of a run"
            )
        if not load_optimizer:
            loaded = {key: value for key, value in loaded.items() if key not in OPTIMIZER_KEYS}
        elif rank() > 0 and len(loaded.get("rank_state_dicts", ())) == world_size() - 1:
            loaded |= loaded["rank_state_dicts"][rank() - 1]
        with name_file(path, f"load it with the configuration of its run, or {OTHER_CHECKPOINT}", CheckpointError):
            self.alg.load_state_dict(loaded)
            self.current_learning_iteration = int(loaded["iter"])
            self.alg.current_learning_iteration = self.current_learning_iteration
            # A file of this iteration, saved before, holds other weights.
            self._saved_iteration = None
            if load_optimizer and "runner_state_dict" in loaded:
                self._resume(loaded)
        return loaded.get("infos")

    def _resume(self, loaded: dict[str, Any]) -> None:
        """Restore counters and, with the same number of environments, hidden states, environment and generators."""
        state, num_ranks = loaded["runner_state_dict"], 1 + len(loaded.get("rank_state_dicts", ()))
        self.tot_timesteps, self.tot_time = int(state["tot_timesteps"]), float(state["tot_time"])
        if num_ranks != world_size():
            logger.warning(
                f"the checkpoint was trained on {num_ranks} ranks and continues on {world_size()}: weights, optimizer "
                "and normalizers are the same, all environments start new episodes (not bit-exact)"
            )
        same_num_envs = num_ranks == world_size() and state["num_envs"] == self.env.num_envs
        same_episodes = same_num_envs and self._load_env_state(loaded.get("env_state_dict"))
        self._episodes.load_state_dict(state["episodes"], same_episodes)
        if same_episodes:
            if state["observations"] is not None:
                self._store_observations(*(tensor.to(self.device) for tensor in state["observations"]))
                self._resumes_from_observations = True
            self.alg.load_rollout_state(state)
        if same_num_envs:
            load_rng_state_dict(loaded["rng_state_dict"], self.device)

    def _load_env_state(self, env_state: Mapping[str, Any] | None) -> bool:
        """Load the environment's state; returns False if it starts new episodes instead."""
        if env_state is None or self._stateful_env is None:
            return False
        try:
            self._stateful_env.load_state_dict(env_state)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            logger.warning(f"the environment cannot load its saved state and starts new episodes: {error!r}")
            self._reset_env()
            return False
        return True

    def _apply_ckpt_manipulator(self, loaded: dict[str, Any], source: Path) -> dict[str, Any]:
        """Apply the configured checkpoint manipulator and save its result to the run folder."""
        name = str(self.cfg["ckpt_manipulator"])
        functions = vars(ckpt_manipulator).items()
        known: dict[str, Any] = {key: f for key, f in functions if callable(f) and not isinstance(f, type)}
        if name not in known:
            raise ValueError(unknown_name_message("ckpt_manipulator", name, known))
        logger.warning(f"*** checkpoint {source.name} is modified by '{name}' before it is loaded ***")
        result = known[name](loaded, self.alg.state_dict())
        if self.log_dir is not None and "iter" in result:
            target = Path(self.log_dir) / f"model_{result['iter']}.pt"
            if target.resolve() != source.resolve():
                was_locked = self._folder_lock is not None
                try:
                    self.lock_run_folder()
                    save_checkpoint(result, target)
                except (OSError, TypeError) as error:
                    logger.warning(f"could not save the modified checkpoint: {error}")
                if not was_locked:
                    self._unlock_run_folder()
        return result

    # ---- inference -----------------------------------------------------------------------------------------------

    def get_inference_policy(self, device: torch.device | str | None = None) -> InferencePolicy:
        """Return the policy as a function of raw observations, in evaluation mode with cleared hidden states."""
        self.eval_mode()
        if device is not None:
            self.alg.engine.move_modules((self.alg.actor_critic, self.alg.obs_normalizer), device)
        self.alg.actor_critic.clear_hidden_states()
        return InferencePolicy(self.alg.actor_critic, self.alg.obs_normalizer, self._obs_groups)

    def export(self, path: str | Path) -> ExportReport:
        """Write the policy as an ONNX file, compared with torch, and what a controller needs as JSON next to it.

        ExportError if the file would differ from torch; ImportError names the packages to install.
        """
        normalizer, observations = self.alg.obs_normalizer, None
        if self._last_observations is not None:
            observations = self._last_observations[0]
            if isinstance(normalizer, EmpiricalNormalization):
                observations = normalizer.inverse(observations)
        task = self.env.task_id if isinstance(self.env, NamedTaskEnv) else None
        metadata = {"task": task, "iteration": self.current_learning_iteration, "st_rl_version": st_rl.__version__}
        metadata |= describe_policy_io(self.env)
        report = export_onnx(self.alg.actor_critic, normalizer, path, metadata, observations)
        write_json(Path(path).with_suffix(".json"), dataclasses.asdict(report))
        return report

    @property
    def obs_normalizer(self) -> nn.Module:
        """The normalizer of the actor's observations, where scripts for rsl_rl 2 look for it."""
        return self.alg.obs_normalizer

    def export_policy_to_onnx(self, path: str | Path, filename: str = "policy.onnx", verbose: bool = False) -> None:
        """Write the policy as an ONNX file into the folder `path`: the name that rsl_rl has for `export`."""
        Path(path).mkdir(parents=True, exist_ok=True)
        self.export(Path(path) / filename)

    def export_policy_to_jit(self, path: str | Path, filename: str = "policy.pt") -> None:
        """Write the policy as a TorchScript file into the folder `path`, as rsl_rl does."""
        Path(path).mkdir(parents=True, exist_ok=True)
        export_torchscript(self.alg.policy, Path(path) / filename)

    def train_mode(self) -> None:
        """Set networks and normalizers to training mode."""
        self.alg.train_mode()

    def eval_mode(self) -> None:
        """Set networks and normalizers to evaluation mode."""
        self.alg.eval_mode()

    def add_git_repo_to_log(self, repo_file_path: str) -> None:
        """Record the git state of another repository with the run."""
        self.git_status_repos.append(repo_file_path)


def _copy_to_host(value: object) -> object:
    """Copy a tensor to the host; returns any other value unchanged."""
    return value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value
