"""The on-policy training loop."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

import st_rl
from st_rl.engine import Engine, torch_threads
from st_rl.env.utils import observe, split_step
from st_rl.loggers.console import Console
from st_rl.loggers.reporter import console_rows, episode_scalars, gathered_infos, infos_on_host, iteration_scalars
from st_rl.loggers.writers import make_writer
from st_rl.runners.bad_numbers import report_bad_numbers
from st_rl.runners.build_algorithm import build_algorithm, follows_iteration
from st_rl.runners.checkpoints import make_run_folder, write_run_config
from st_rl.runners.env_sizes import checked_critic_obs, checked_tensor, read_sizes
from st_rl.runners.inference_policy import InferencePolicy
from st_rl.runners.saved_training import SavedTraining
from st_rl.runners.train_config import read_train_config
from st_rl.runners.trial import pruned, report_to_trial
from st_rl.utils import store_code_state
from st_rl.utils.devices import move_to
from st_rl.utils.log import logger
from st_rl.utils.number_guard import NumberGuard

NAN = float("nan")


class OnPolicyRunner(SavedTraining):
    """Collects rollouts from an environment, lets the algorithm learn from them, logs, evaluates and saves."""

    default_log_interval = 1

    def __init__(self, env: Any, train_cfg: Any, log_dir: str | Path | None = None, device: torch.device | str = "cpu"):
        super().__init__(env, read_train_config(train_cfg), log_dir, device)
        self.log_interval = int(self.cfg.get("log_interval") or self.default_log_interval)
        self.save_interval = int(self.cfg.get("save_interval") or 50)
        obs, critic_obs, extras = self._observe()
        self._sizes = read_sizes(env, obs, critic_obs)
        self.num_obs, self.num_critic_obs = self._sizes.num_obs, self._sizes.num_critic_obs
        self.alg = build_algorithm(env, self._train_config, self._sizes, extras, self.device)
        self.alg.init_obs_norm(self.num_obs, self.num_critic_obs)
        self.alg.init_storage(
            env.num_envs,
            self.num_steps_per_env,
            [self.num_obs],
            [self.num_critic_obs] if self._sizes.has_critic_obs else [None],
            [env.num_actions],
            **(self.cfg.get("storage") or {}),
        )
        self.metrics_velrmsd = torch.tensor(NAN)
        self.metrics_CoT = torch.tensor(NAN)
        self.git_status_repos = [st_rl.__file__]
        self.logger_type: str | None = None
        self._console = Console()
        self._guard = NumberGuard(device, self.num_steps_per_env)
        self._durations: deque[float] = deque(maxlen=50)
        self._stop_requested = False
        self._rollout_position = 0
        # How a rollout runs, chosen when learning starts.
        self._rollout: Callable[[Any], Any] | None = None
        env.reset()

    # ---- learning ------------------------------------------------------------------------------------------------

    def init_writter(self, init_at_random_ep_len: bool) -> None:
        """Open the run folder and its writers, and optionally spread the episodes of the robots over time."""
        if self.log_dir is not None and self.writer is None:
            folder = make_run_folder(self.log_dir)
            write_run_config(folder, self.env, self._train_config)
            self.logger_type = str(self.cfg.get("logger") or "tensorboard").lower()
            self.writer = make_writer(self.logger_type, self.log_dir, self.cfg, flush_secs=10)
            self.writer.log_config(getattr(self.env, "cfg", None), self.cfg, self.alg_cfg, self.policy_cfg)
        if init_at_random_ep_len:
            self.env.episode_length_buf = torch.randint_like(
                self.env.episode_length_buf, high=int(self.env.max_episode_length)
            )

    def init_writer(self, init_at_random_ep_len: bool) -> None:
        """The correct spelling of `init_writter`."""
        self.init_writter(init_at_random_ep_len)

    def learn(
        self, num_learning_iterations: int, init_at_random_ep_len: bool = False, trial: Any = None
    ) -> tuple[Tensor, Tensor]:
        """Train for a number of iterations; returns the velocity tracking error and the cost of transport.

        A second call goes on with the environment as it finds it. Three iterations and three more are six when
        `get_observations()` still shows what the last step delivered.
        """
        self._stop_requested = False
        self._durations.clear()
        try:
            self.init_writter(init_at_random_ep_len)
            self._start_keeping()
            # An inference policy may have taken it to another device.
            self._move_policy(self.device)
            self._start_engine(num_learning_iterations)
            self._start_observing()
            self.train_mode()
            start = self.current_learning_iteration
            for iteration in range(start, start + num_learning_iterations):
                began = time.perf_counter()
                self._iterate(iteration, start, start + num_learning_iterations, trial)
                self._durations.append(time.perf_counter() - began)
                if self._stop_requested:
                    break
            if self._saved_iteration != self.current_learning_iteration:
                self._save_snapshot()
            self._background.wait()
            self._tell_writer("flush")
        except BaseException:
            self.close()
            raise
        self._console.close()
        return self.metrics_velrmsd, self.metrics_CoT

    def request_stop(self) -> None:
        """Let `learn` finish its iteration, save and return."""
        self._stop_requested = True

    def _iterate(self, iteration: int, start_iter: int, tot_iter: int, trial: Any) -> None:
        """One rollout, one update, evaluation, log and snapshot."""
        begin = time.perf_counter()
        # Schedules that acting reads are at this iteration, in a resumed training too.
        self.alg.current_learning_iteration = iteration
        with self._whole_rollout():
            ep_infos, infos = self._collect()
            collected = time.perf_counter()
            # While robots move, physics has the cores to itself.
            with torch_threads(self.cfg.get("update_threads")):
                losses, stats = self.alg.update(iteration)
        self.evaluation()
        self._report_bad_numbers(iteration, self.alg.bad_numbers())
        learned = time.perf_counter()
        self.tot_timesteps += self.num_steps_per_env * self.env.num_envs
        self.tot_time += learned - begin
        if trial is not None and report_to_trial(trial, iteration, self.metrics_velrmsd, self.metrics_CoT):
            self._prune(iteration)
        if self.log_dir is not None and iteration % self.log_interval == 0:
            episodes = self._episodes
            self.log(
                {
                    "it": iteration,
                    "start_iter": start_iter,
                    "tot_iter": tot_iter,
                    "num_learning_iterations": tot_iter - start_iter,
                    "collection_time": collected - begin,
                    "learn_time": learned - collected,
                    "losses": losses,
                    "stats": stats,
                    "ep_infos": ep_infos,
                    "rframebuffer": episodes.rframebuffer,
                    "rewbuffer": episodes.rewbuffer,
                    "lenbuffer": episodes.lenbuffer,
                    "infos": infos,
                }
            )
        self.current_learning_iteration = iteration + 1
        if self.current_learning_iteration % self.save_interval == 0:
            self._save_snapshot()
        if iteration == start_iter and self.log_dir is not None:
            self._background.wait()
            for path in store_code_state(self.log_dir, self.git_status_repos):
                self._tell_writer("save_file", path)

    def _prune(self, iteration: int) -> None:
        self.current_learning_iteration = iteration + 1
        self._save_snapshot()
        self.close()
        raise pruned(f"trial pruned at iteration {iteration}")

    def _start_observing(self) -> None:
        """The observations to act on first: those of a resumed training, or those the environment shows now."""
        policy = self.alg.actor_critic
        if self._observations is not None and self._continue_from_observations:
            self._continue_from_observations = False
        else:
            if any(
                leaf.shape[1] != self.env.num_envs for leaves in policy.hidden_state_dict().values() for leaf in leaves
            ):
                # Since the last call the policy has been used elsewhere, with another number of robots.
                policy.clear_hidden_states()
            obs, critic_obs, _ = self._observe()
            # What was seen after the last step has been counted by the normalisers already.
            if self._observations is None:
                self.train_mode()
            else:
                self.eval_mode()
            self._rollout_position = 0
            with torch.inference_mode(self._inference_mode):
                self._keep_observations(*self._normalized(*self._clean(obs, critic_obs)))
            self._report_bad_numbers(self.current_learning_iteration)
        # A rollout that was captured before looks for the memory where it left it.
        self.alg.pin_hidden_states()

    def _observe(self) -> tuple[Tensor, Tensor | None, Mapping[str, Any]]:
        """The environment's present observation, critic observation and extras, in whichever form it delivers them."""
        return observe(self.env)

    @property
    def _inference_mode(self) -> bool:
        setting = self.cfg.get("inference_mode_rollout")
        return True if setting is None else bool(setting)

    @contextmanager
    def _whole_rollout(self) -> Iterator[None]:
        """Drops a rollout that breaks off or cannot be learned from, so that the next one finds its place free."""
        storage = self.alg.storage
        first_row = storage.step
        try:
            yield
        except BaseException:
            storage.step = first_row
            self._episodes.drop()
            raise

    def _collect(self) -> tuple[list[dict[str, Any]], Mapping[str, Any]]:
        """One rollout into the storage; returns the episode infos of every step and the infos of the last one."""
        if self._rollout is None:
            raise RuntimeError("there is nothing to act on: collect through learn()")
        outcome = self._rollout(self.alg.rollout_settings())
        self._episodes.drain()
        return outcome

    def _start_engine(self, num_iterations: int) -> None:
        """Choose how rollout and update run, and say so."""
        setting = self.cfg.get("engine") or "auto"
        if setting != "eager" and follows_iteration(self.alg):
            if self._rollout is None:
                logger.warning(
                    f"{type(self.alg).__name__} reads current_learning_iteration, which neither compiled nor captured "
                    "code can follow: its losses run as written. Keep what depends on it in a tensor, such as a "
                    "st_rl.algorithms.schedules.Schedule, to train faster"
                )
            setting = "eager"
        is_captured = getattr(self.env, "is_graph_safe", False)
        if self._rollout is None or not self.alg.engine.suits(setting, num_iterations):
            engine = Engine(setting, self.device, num_iterations)
            engine.announce()
            self.alg.engine = engine
            self._rollout = lambda settings: self._roll_out()
            if hasattr(self.env, "compile_with"):
                self.env.compile_with(engine.compiled)
            if is_captured:
                host_state = [(self.alg.storage, "step"), (self._episodes, "num_recorded")]
                self._rollout = engine.loop(self._roll_out, host_state, self.env.during_capture)
        if hasattr(self.env, "compile_with") and not is_captured:
            # Anew for each `learn`: in between anything may have changed.
            self._rollout = self.alg.engine.repeated(self._roll_out)

    def _move_policy(self, device: torch.device | str) -> None:
        """Put the policy on a device; if it comes back, it will not lie where captured steps look for it."""
        moved = [move_to(module, device) for module in (self.alg.actor_critic, self.alg.obs_normalizer)]
        if any(moved):
            self.alg.engine.discard_graphs()

    def _roll_out(self) -> tuple[list[dict[str, Any]], Mapping[str, Any]]:
        """Act, step and store for the length of a rollout, then compute the returns; no wait for the device."""
        ep_infos: list[dict[str, Any]] = []
        infos: Mapping[str, Any] = {}
        if self._observations is None:
            raise RuntimeError("there is nothing to act on: collect through learn()")
        with torch.inference_mode(self._inference_mode):
            # Copies, which are tensors of this mode like those of all further steps: code is compiled for one kind.
            obs = self._observations[0].clone()
            is_shared = self._observations[1] is self._observations[0]
            critic_obs = obs if is_shared else self._observations[1].clone()
            for step in range(self.num_steps_per_env):
                self._rollout_position = step
                obs, critic_obs, rewards, dones, infos = self.rollout_step(obs, critic_obs)
                episode = infos.get("episode") or infos.get("log")
                if episode:
                    ep_infos.append(dict(episode))
                self._episodes.record(rewards, dones)
            self.alg.compute_returns(critic_obs)
            self._keep_observations(obs, critic_obs)
            self.alg.pin_hidden_states()
            self._episodes.summarize()
        return gathered_infos(ep_infos), infos

    def rollout_step(
        self, obs: Tensor, critic_obs: Tensor, **kwargs: Any
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Mapping[str, Any]]:
        """Act, step the environment, store; takes and returns normalised observations."""
        actions = self.alg.act(obs, critic_obs)
        # A copy: the stored actions stay what the policy drew even if the environment clips them in place.
        outcome = self.env.step(actions.to(getattr(self.env, "device", self.device), copy=True))
        next_obs, next_critic_obs, rewards, dones, infos = split_step(outcome)
        rewards = checked_tensor("rewards", rewards).to(self.device).reshape(-1)
        rewards = self._guard.clean("rewards", rewards, self._rollout_position)
        dones = checked_tensor("dones", dones).to(self.device).reshape(-1)
        obs, critic_obs = self.alg.engine.compiled(self._normalized)(*self._clean(next_obs, next_critic_obs))
        infos = self._clean_infos(infos)
        self.alg.process_env_step(rewards, dones, infos, obs, critic_obs)
        return obs, critic_obs, rewards, dones, infos

    def _clean(self, obs: Tensor, critic_obs: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Observations on the algorithm's device, free of NaN and Inf, which would poison the normalisers for good."""
        step = self._rollout_position
        obs = self._guard.clean("observations", checked_tensor("observations", obs).to(self.device), step)
        critic_obs = checked_critic_obs(critic_obs, self._sizes)
        if critic_obs is not None:
            critic_obs = checked_tensor("critic observations", critic_obs).to(self.device)
            critic_obs = self._guard.clean("critic observations", critic_obs, step)
        return obs, critic_obs

    def _clean_infos(self, infos: Mapping[str, Any]) -> Mapping[str, Any]:
        """The infos with clean numbers where something is learned from them; the environment's own object if so."""
        if infos.get("time_outs") is not None:
            checked_tensor("time_outs", infos["time_outs"])
        for name in self.alg.required_info_keys:
            groups = infos.get("observations") or {}
            value = groups.get(name, infos.get(name))
            if value is None:
                continue  # the algorithm says what is missing
            clean = self._guard.clean(name, checked_tensor(name, value).to(self.device), self._rollout_position)
            if clean is not value:
                infos = {**infos, **({"observations": {**groups, name: clean}} if name in groups else {name: clean})}
        return infos

    def _report_bad_numbers(self, iteration: int, in_update: Mapping[str, int] = MappingProxyType({})) -> None:
        num_rows = self.num_steps_per_env * self.env.num_envs
        report_bad_numbers(iteration, self._guard.report(), in_update, num_rows)

    def _normalized(self, obs: Tensor, critic_obs: Tensor | None) -> tuple[Tensor, Tensor]:
        """Normalise each delivered observation once."""
        obs = self.alg.obs_normalizer(obs)
        return obs, obs if critic_obs is None else self.alg.critic_obs_normalizer(critic_obs)

    def evaluation(self) -> None:
        """Read the tracking error and the cost of transport that the environment offers; NaN where it does not."""
        error = getattr(self.env, "tracking_error", None)
        if error is None:
            error = getattr(self.env, "lin_vel_rmsd", None)
            error = NAN if error is None else torch.as_tensor(error).float().mean()
        cost = getattr(self.env, "CoT", None)
        # Copies, because the environment may go on writing into its own.
        self.metrics_velrmsd = torch.as_tensor(error).detach().float().clone()
        self.metrics_CoT = torch.as_tensor(NAN if cost is None else cost).detach().float().clone()

    # ---- showing -------------------------------------------------------------------------------------------------

    def log(self, locs: dict[str, Any], width: int = 80, pad: int = 35) -> None:
        """Write one iteration to the writers and the console; on a GPU, while the next one begins."""
        scalars, ep_infos = iteration_scalars(self, locs), infos_on_host(locs["ep_infos"])
        by_time = {}
        if locs["rewbuffer"] and self.logger_type != "wandb":
            by_time = {f"{tag}/time": scalars[tag] for tag in ("Train/mean_reward", "Train/mean_episode_length")}
        duration = median(self._durations) if self._durations else locs["collection_time"] + locs["learn_time"]
        seconds_left = duration * (locs["tot_iter"] - locs["it"] - 1)
        totals = self.tot_timesteps, self.tot_time
        title = f"Learning iteration {locs['it']}/{locs['tot_iter']}"

        def write() -> None:
            episodes = episode_scalars(ep_infos)
            if self.writer is not None:
                for tag, value in (scalars | episodes).items():
                    self.writer.add_scalar(tag, value, locs["it"])
                for tag, value in by_time.items():
                    self.writer.add_scalar(tag, value, int(totals[1]))
            self._console.show(title, console_rows(scalars, episodes, locs, *totals, seconds_left), width, pad)

        self._run_in_background(write)

    def close(self) -> None:
        """Close the writers; `learn` may be called again."""
        self._background.close()
        self._console.close()
        self._tell_writer("close")
        self.writer = None

    # ---- using ---------------------------------------------------------------------------------------------------

    def get_inference_policy(self, device: torch.device | str | None = None) -> InferencePolicy:
        """The trained policy as a function of raw observations, with `reset(dones)` and an empty memory."""
        self.eval_mode()
        if device is not None:
            self._move_policy(device)
        self.alg.actor_critic.clear_hidden_states()
        return InferencePolicy(self.alg.actor_critic, self.alg.obs_normalizer)

    def train_mode(self) -> None:
        """Let networks and normalisers learn."""
        self.alg.train_mode()

    def eval_mode(self) -> None:
        """Freeze the statistics of networks and normalisers."""
        self.alg.eval_mode()

    def add_git_repo_to_log(self, repo_file_path: str) -> None:
        """Record the state of another repository with the run."""
        self.git_status_repos.append(repo_file_path)
