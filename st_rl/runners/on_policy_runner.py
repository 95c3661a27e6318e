"""The on-policy training loop."""

import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import st_rl
from st_rl.algorithms import algorithm_classes
from st_rl.engine import Engine
from st_rl.env.utils import split_observations, split_step
from st_rl.modules import build_actor_critic
from st_rl.runners.checkpoints import CheckpointKeeper, environment_state, make_run_folder, write_run_config
from st_rl.runners.episode_statistics import EpisodeStatistics
from st_rl.runners.inference_policy import InferencePolicy
from st_rl.runners.reporter import Console, console_rows, iteration_scalars, mean
from st_rl.runners.train_config import read_train_config
from st_rl.runners.trial import pruned, report_to_trial
from st_rl.utils import ckpt_manipulator, store_code_state
from st_rl.utils.config import unknown_name_message, without_nulls
from st_rl.utils.distributed import broadcast_module, is_main
from st_rl.utils.files import load_checkpoint, save_checkpoint
from st_rl.utils.log import logger
from st_rl.utils.number_guard import NumberGuard
from st_rl.utils.rng import load_rng_state_dict, rng_state_dict
from st_rl.utils.writers import make_writer

NAN = float("nan")


class OnPolicyRunner:
    """Collects rollouts from an environment, lets the algorithm learn from them, logs, evaluates and saves."""

    def __init__(self, env: Any, train_cfg: Any, log_dir: str | Path | None = None, device: torch.device | str = "cpu"):
        self._train_config = read_train_config(train_cfg)
        self.cfg, self.alg_cfg, self.policy_cfg = self._train_config[:3]
        self.device = device
        self.env = env
        self.log_dir = str(log_dir) if log_dir is not None and is_main() else None
        self.num_steps_per_env = int(self.cfg["num_steps_per_env"])
        self.log_interval = int(self.cfg.get("log_interval") or self.default_log_interval)
        self.save_interval = int(self.cfg.get("save_interval") or 50)

        obs, critic_obs, extras = self._observe()
        self._separate_critic = critic_obs is not None or bool(getattr(env, "num_privileged_obs", None))
        num_obs = getattr(env, "num_obs", None) or obs.shape[-1]
        if obs.shape[-1] != num_obs:
            raise ValueError(f"the environment says num_obs={num_obs} but delivers {obs.shape[-1]} observations")
        num_critic_obs = critic_obs.shape[-1] if critic_obs is not None else None
        num_critic_obs = num_critic_obs or getattr(env, "num_privileged_obs", None) or num_obs
        self.num_obs, self.num_critic_obs = int(num_obs), int(num_critic_obs)
        self.alg = self._build_algorithm(extras)
        self.alg.init_obs_norm(self.num_obs, self.num_critic_obs)
        self.alg.init_storage(
            env.num_envs,
            self.num_steps_per_env,
            [self.num_obs],
            [self.num_critic_obs] if self._separate_critic else [None],
            [env.num_actions],
            **(self.cfg.get("storage") or {}),
        )
        self.tot_timesteps = 0
        self.tot_time = 0.0
        self.current_learning_iteration = 0
        self.metrics_velrmsd = torch.tensor(NAN)
        self.metrics_CoT = torch.tensor(NAN)
        self.git_status_repos = [st_rl.__file__]
        # A function of an inference policy that returns a score, higher is better; decides which snapshot is the best.
        self.evaluator: Callable[[InferencePolicy], float] | None = None
        # Made when learning starts, so that playing a policy writes nothing.
        self.writer: Any = None
        self.logger_type: str | None = None
        self._keeper: CheckpointKeeper | None = None
        self._console = Console()
        self._guard = NumberGuard(device)
        self._episodes = EpisodeStatistics(self.num_steps_per_env, env.num_envs, device)
        # The normalised observations to act on next; they continue a resumed training exactly.
        self._observations: tuple[Tensor, Tensor] | None = None
        self._continue_from_observations = False
        self._stop_requested = False
        self._rollout_position = 0
        # How a rollout runs, chosen when learning starts.
        self._rollout: Callable[[Any], Any] | None = None
        env.reset()

    default_log_interval = 1

    def _build_algorithm(self, extras: Mapping[str, Any]) -> Any:
        classes = algorithm_classes()
        name = self._train_config.algorithm_class_name
        if name not in classes:
            raise ValueError(unknown_name_message("algorithm class", name, classes))
        policy_cfg = without_nulls(self.policy_cfg)
        policy_cfg.setdefault("num_actor_obs", self.num_obs)
        policy_cfg.setdefault("num_critic_obs", self.num_critic_obs)
        policy = build_actor_critic(self.env, self._train_config.policy_class_name, policy_cfg)
        for size, given, delivered in (
            ("num_actor_obs", policy.num_actor_obs, self.num_obs),
            ("num_critic_obs", policy.num_critic_obs, self.num_critic_obs),
        ):
            if given != delivered:
                raise ValueError(f"the policy expects {size}={given} but the environment delivers {delivered}")
        broadcast_module(policy.to(self.device))
        alg_cfg = {key: value for key, value in self.alg_cfg.items() if key != "class_name"}
        if "empirical_normalization" not in (alg_cfg.get("ppo") or {}):
            alg_cfg.setdefault("empirical_normalization", bool(self.cfg.get("empirical_normalization")))
        if alg_cfg.get("rnd_cfg"):
            if "rnd_state" not in extras.get("observations", {}):
                raise ValueError(
                    "rnd_cfg is set but the environment delivers no extras['observations']['rnd_state']; "
                    "deliver the states whose novelty is rewarded, or remove rnd_cfg"
                )
            alg_cfg["rnd_cfg"] = {"num_states": extras["observations"]["rnd_state"].shape[-1], **alg_cfg["rnd_cfg"]}
        return classes[name](policy, device=self.device, **alg_cfg)

    # ---- learning ------------------------------------------------------------------------------------------------

    def init_writter(self, init_at_random_ep_len: bool) -> None:
        """Open the run folder and its writers, and optionally spread the episodes of the robots over time."""
        if self.log_dir is not None and self.writer is None:
            folder = make_run_folder(self.log_dir)
            self.logger_type = str(self.cfg.get("logger") or "tensorboard").lower()
            self.writer = make_writer(self.logger_type, self.log_dir, self.cfg, flush_secs=10)
            write_run_config(folder, self.env, self.cfg, self.policy_cfg, self.alg_cfg, self._train_config)
            self.writer.log_config(getattr(self.env, "cfg", None), self.cfg, self.alg_cfg, self.policy_cfg)
            if self._keeper is None:
                keep_best = self.cfg.get("keep_best")
                self._keeper = CheckpointKeeper(
                    folder, self.cfg.get("keep_last"), True if keep_best is None else bool(keep_best)
                )
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
        """Train for a number of iterations; returns the velocity tracking error and the cost of transport."""
        self.init_writter(init_at_random_ep_len)
        self._stop_requested = False
        try:
            self._start_engine(num_learning_iterations)
            self._start_observing()
            self.train_mode()
            start = self.current_learning_iteration
            for iteration in range(start, start + num_learning_iterations):
                self._iterate(iteration, start, start + num_learning_iterations, trial)
                if self._stop_requested:
                    break
            if self._keeper is not None and not self._keeper.path(self.current_learning_iteration).exists():
                self._save_snapshot()
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
        ep_infos, infos = self._collect()
        collected = time.perf_counter()
        losses, stats = self.alg.update(iteration)
        self.evaluation()
        self._report_bad_numbers(iteration)
        learned = time.perf_counter()
        if trial is not None and report_to_trial(trial, iteration, self.metrics_velrmsd, self.metrics_CoT):
            self._prune(iteration)
        self.tot_timesteps += self.num_steps_per_env * self.env.num_envs
        self.tot_time += learned - begin
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
        if self._keeper is not None and self.current_learning_iteration % self.save_interval == 0:
            self._save_snapshot()
        if iteration == start_iter and self.log_dir is not None:
            for path in store_code_state(self.log_dir, self.git_status_repos):
                self.writer.save_file(path)

    def _prune(self, iteration: int) -> None:
        self.current_learning_iteration = iteration + 1
        if self._keeper is not None:
            self._save_snapshot()
        self.close()
        raise pruned(f"trial pruned at iteration {iteration}")

    def _start_observing(self) -> None:
        """The observations to act on first: those of a resumed training, or fresh ones."""
        if self._observations is not None and self._continue_from_observations:
            self._continue_from_observations = False
            return
        obs, critic_obs, _ = self._observe()
        self.train_mode()
        with torch.inference_mode(self._inference_mode):
            self._keep_observations(*self._normalized(*self._clean(obs, critic_obs)))

    def _observe(self) -> tuple[Tensor, Tensor | None, Mapping[str, Any]]:
        """The environment's present observation, critic observation and extras, in whichever form it delivers them."""
        obs, critic_obs, extras = split_observations(self.env.get_observations())
        if critic_obs is None and hasattr(self.env, "get_privileged_observations"):
            critic_obs = self.env.get_privileged_observations()
        return obs, critic_obs, extras

    @property
    def _inference_mode(self) -> bool:
        setting = self.cfg.get("inference_mode_rollout")
        return True if setting is None else bool(setting)

    def _collect(self) -> tuple[list[dict[str, Any]], Mapping[str, Any]]:
        """One rollout into the storage; returns the episode infos of every step and the infos of the last one."""
        if self._rollout is None:
            raise RuntimeError("there is nothing to act on: collect through learn()")
        outcome = self._rollout(self.alg.rollout_settings())
        self._episodes.drain()
        return outcome

    def _start_engine(self, num_iterations: int) -> None:
        """Choose how rollout and update run, and say so."""
        engine = Engine(self.cfg.get("engine") or "auto", self.device, num_iterations)
        engine.announce()
        self.alg.engine = engine
        self._rollout = lambda settings: self._roll_out()
        if getattr(self.env, "is_graph_safe", False):
            host_state = [(self.alg.storage, "step"), (self._episodes, "num_recorded")]
            self._rollout = engine.loop(self._roll_out, host_state, self.env.during_capture)

    def _roll_out(self) -> tuple[list[dict[str, Any]], Mapping[str, Any]]:
        """Act, step and store for the length of a rollout, then compute the returns; no wait for the device."""
        ep_infos: list[dict[str, Any]] = []
        infos: Mapping[str, Any] = {}
        if self._observations is None:
            raise RuntimeError("there is nothing to act on: collect through learn()")
        obs, critic_obs = self._observations
        with torch.inference_mode(self._inference_mode):
            for step in range(self.num_steps_per_env):
                self._rollout_position = step
                obs, critic_obs, rewards, dones, infos = self.rollout_step(obs, critic_obs)
                episode = infos.get("episode") or infos.get("log")
                if episode:
                    ep_infos.append(dict(episode))
                self._episodes.record(rewards, dones)
            self.alg.compute_returns(critic_obs)
            self._keep_observations(obs, critic_obs)
            self.alg.actor_critic.settle_memory()
        return ep_infos, infos

    def _keep_observations(self, obs: Tensor, critic_obs: Tensor) -> None:
        """Remember what to act on next, always in the same place."""
        if self._observations is None:
            with torch.inference_mode(False):
                own = obs.clone()
                self._observations = (own, own if critic_obs is obs else critic_obs.clone())
            return
        for kept, new in zip(self._observations, (obs, critic_obs)):
            kept.copy_(new)

    def rollout_step(
        self, obs: Tensor, critic_obs: Tensor, **kwargs: Any
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Mapping[str, Any]]:
        """Act, step the environment, store; takes and returns normalised observations."""
        actions = self.alg.act(obs, critic_obs)
        # A copy: the stored actions stay what the policy drew even if the environment clips them in place.
        outcome = self.env.step(actions.to(getattr(self.env, "device", self.device), copy=True))
        next_obs, next_critic_obs, rewards, dones, infos = split_step(outcome)
        rewards = self._guard.clean("rewards", rewards.to(self.device), self._rollout_position)
        dones = dones.to(self.device)
        obs, critic_obs = self._normalized(*self._clean(next_obs, next_critic_obs))
        self.alg.process_env_step(rewards, dones, infos, obs, critic_obs)
        return obs, critic_obs, rewards, dones, infos

    def _clean(self, obs: Tensor, critic_obs: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Observations on the algorithm's device, free of NaN and Inf, which would poison the normalisers for good."""
        step = self._rollout_position
        obs = self._guard.clean("observations", obs.to(self.device), step)
        if critic_obs is not None:
            critic_obs = self._guard.clean("critic observations", critic_obs.to(self.device), step)
        return obs, critic_obs

    def _normalized(self, obs: Tensor, critic_obs: Tensor | None) -> tuple[Tensor, Tensor]:
        """Normalise each delivered observation once."""
        obs = self.alg.obs_normalizer(obs)
        return obs, obs if critic_obs is None else self.alg.critic_obs_normalizer(critic_obs)

    def _report_bad_numbers(self, iteration: int) -> None:
        """One warning for an iteration in which something was NaN or Inf; an error when nothing else is left."""
        from_env = self._guard.report()
        for name, (count, step) in from_env.items():
            logger.warning(
                f"iteration {iteration}: {count} rows of {name} from the environment were NaN or Inf (first at step "
                f"{step} of the rollout); they were set to 0 before the policy saw them. Check that the simulation "
                "is stable"
            )
        num_rows = self.num_steps_per_env * self.env.num_envs
        if from_env.get("observations", (0, 0))[0] >= num_rows:
            raise RuntimeError("the environment delivered nothing but NaN or Inf for a whole rollout; training stopped")
        for name, count in self.alg.bad_numbers().items():
            logger.warning(
                f"iteration {iteration}: {name} was NaN or Inf in {count} mini-batches, which left the weights "
                "unchanged. Lower the learning rate or look at the rewards"
            )

    def evaluation(self) -> None:
        """Read the tracking error and the cost of transport that the environment offers; NaN where it does not."""
        error = getattr(self.env, "tracking_error", None)
        if error is None:
            error = getattr(self.env, "lin_vel_rmsd", None)
            error = NAN if error is None else torch.as_tensor(error).float().mean()
        cost = getattr(self.env, "CoT", None)
        self.metrics_velrmsd = torch.as_tensor(error).detach().float()
        self.metrics_CoT = torch.as_tensor(NAN if cost is None else cost).detach().float()

    # ---- showing -------------------------------------------------------------------------------------------------

    def log(self, locs: dict[str, Any], width: int = 80, pad: int = 35) -> None:
        """Write one iteration to the writers and the console."""
        scalars = iteration_scalars(self, locs)
        for tag, value in scalars.items():
            self.writer.add_scalar(tag, value, locs["it"])
        if locs["rewbuffer"] and self.logger_type != "wandb":
            for tag in ("Train/mean_reward", "Train/mean_episode_length"):
                self.writer.add_scalar(f"{tag}/time", scalars[tag], int(self.tot_time))
        rows = console_rows(scalars, locs, self.tot_timesteps, self.tot_time)
        self._console.show(f"Learning iteration {locs['it']}/{locs['tot_iter']}", rows, width, pad)

    # ---- saving and loading --------------------------------------------------------------------------------------

    def _checkpoint(self, infos: Any = None) -> dict[str, Any]:
        """Everything that an exact resume needs."""
        payload = self.alg.state_dict() | {
            "iter": self.current_learning_iteration,
            "infos": infos,
            "rng_state_dict": rng_state_dict(self.device),
            "runner_state_dict": self._runner_state(),
        }
        env_state = environment_state(self.env)
        return payload if env_state is None else payload | {"env_state_dict": env_state}

    def _runner_state(self) -> dict[str, Any]:
        policy = self.alg.actor_critic
        return {
            "tot_timesteps": self.tot_timesteps,
            "tot_time": self.tot_time,
            "num_envs": int(self.env.num_envs),
            "learning_rate": float(self.alg.learning_rate),
            "best_score": self._keeper.best_score if self._keeper is not None else float("-inf"),
            "episodes": self._episodes.state_dict(),
            "observations": None if self._observations is None else list(self._observations),
            "memory": policy.memory_state(),
        }

    def save(self, path: str | Path, infos: Any = None) -> None:
        """Write a checkpoint; readers never see half a file."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        save_checkpoint(self._checkpoint(infos), Path(path))
        if self.writer is not None:
            self.writer.save_model(str(path), self.current_learning_iteration)

    def _save_snapshot(self) -> None:
        """Save this iteration into the run folder, and as the best one if it is."""
        if self._keeper is None:
            return
        self.save(self._keeper.path(self.current_learning_iteration))
        score = self._score()
        if score is not None:
            self._keeper.offer_best(self._checkpoint(), score)
        self._keeper.remove_old()

    def _score(self) -> float | None:
        """How good the policy is now: the evaluator's word, else the mean return of finished episodes."""
        if self.evaluator is None:
            return mean(self._episodes.rewbuffer) if self._episodes.rewbuffer else None
        with self._evaluating():
            return float(self.evaluator(InferencePolicy(self.alg.actor_critic, self.alg.obs_normalizer)))

    @contextmanager
    def _evaluating(self):
        """Evaluation mode with an empty memory; afterwards training goes on as if nothing had happened."""
        self.eval_mode()
        with self.alg.actor_critic.memory_kept(), torch.inference_mode():
            self.alg.actor_critic.forget()
            yield
        self.train_mode()

    def load(
        self, path: str | Path, load_optimizer: bool = True, map_location: Any = None, trust_pickle: bool = False
    ) -> Any:
        """Load a checkpoint and return its `infos`.

        With the optimiser this is a resume: random numbers, counters, memories and, where it offers its state, the
        environment continue exactly. Without it only policy and normalisers are taken.
        """
        location = self.device if map_location is None else map_location
        loaded = load_checkpoint(Path(path), map_location=location, trust_pickle=trust_pickle)
        if self.cfg.get("ckpt_manipulator"):
            loaded = self._manipulated(loaded, Path(path))
        if not load_optimizer:
            loaded = {k: v for k, v in loaded.items() if k not in ("optimizer_state_dict", "lr_scheduler_state_dict")}
        self.alg.load_state_dict(loaded)
        self.current_learning_iteration = int(loaded["iter"])
        self.alg.current_learning_iteration = self.current_learning_iteration
        if load_optimizer and "runner_state_dict" in loaded:
            self._resume(loaded)
        return loaded.get("infos")

    def _resume(self, loaded: dict[str, Any]) -> None:
        """Continue counters and, with the same number of robots, memories, environment and random numbers."""
        state = loaded["runner_state_dict"]
        self.tot_timesteps, self.tot_time = int(state["tot_timesteps"]), float(state["tot_time"])
        if state["num_envs"] != self.env.num_envs:
            return
        self._episodes.load_state_dict(state["episodes"])
        if "env_state_dict" in loaded and hasattr(self.env, "load_state_dict"):
            self.env.load_state_dict(loaded["env_state_dict"])
            if state["observations"] is not None:
                self._keep_observations(*(tensor.to(self.device) for tensor in state["observations"]))
                self._continue_from_observations = True
            self.alg.actor_critic.load_memory_state(state["memory"])
        load_rng_state_dict(loaded["rng_state_dict"])

    def _manipulated(self, loaded: dict[str, Any], source: Path) -> dict[str, Any]:
        """Apply the configured checkpoint manipulator and keep its result beside the run."""
        name = self.cfg["ckpt_manipulator"]
        manipulate = vars(ckpt_manipulator).get(str(name))
        if not callable(manipulate):
            names = [n for n, f in vars(ckpt_manipulator).items() if callable(f) and not n.startswith("_")]
            raise ValueError(unknown_name_message("ckpt_manipulator", name, names))
        logger.warning(f"*** the checkpoint {source.name} is changed by '{name}' before it is loaded ***")
        result = manipulate(loaded, self.alg.state_dict())
        if self.log_dir is not None:
            target = Path(self.log_dir) / f"model_{result['iter']}.pt"
            if target.resolve() != source.resolve():
                try:
                    make_run_folder(self.log_dir)
                    save_checkpoint(result, target)
                except OSError as error:
                    logger.warning(f"the changed checkpoint could not be saved: {error}")
        return result

    def close(self) -> None:
        """Close the writers; `learn` may be called again."""
        self._console.close()
        if self.writer is not None:
            self.writer.close()
            self.writer = None

    # ---- using ---------------------------------------------------------------------------------------------------

    def get_inference_policy(self, device: torch.device | str | None = None) -> InferencePolicy:
        """The trained policy as a function of raw observations, with `reset(dones)`."""
        self.eval_mode()
        if device is not None:
            self.alg.actor_critic.to(device)
            self.alg.obs_normalizer.to(device)
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
