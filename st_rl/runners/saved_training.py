"""Saving a training and going on from where it was saved."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from st_rl.runners.checkpoints import CheckpointKeeper, environment_state, make_run_folder
from st_rl.runners.episode_statistics import EpisodeStatistics
from st_rl.runners.inference_policy import InferencePolicy
from st_rl.runners.train_config import TrainConfig
from st_rl.utils import ckpt_manipulator
from st_rl.utils.background import BackgroundCalls
from st_rl.utils.buffer import buffer_func
from st_rl.utils.config import unknown_name_message
from st_rl.utils.distributed import is_main
from st_rl.utils.files import CheckpointError, load_checkpoint, plain_value, save_checkpoint
from st_rl.utils.log import logger
from st_rl.utils.rng import load_rng_state_dict, rng_state_dict

# What a training has learned with, beside the networks and normalisers that it has learned.
OPTIMIZER_KEYS = (
    *("optimizer_state_dict", "lr_scheduler_state_dict", "rnd_optimizer_state_dict"),
    *("discriminator_optimizer_state_dict", "discriminator_replay_state_dict"),
)


class SavedTraining:
    """The state of a training, which a checkpoint holds and a later process continues."""

    # The algorithm, which a runner builds once it knows the environment's sizes.
    alg: Any

    def __init__(self, env: Any, config: TrainConfig, log_dir: str | Path | None, device: torch.device | str):
        self._train_config = config
        self.cfg, self.alg_cfg, self.policy_cfg = config.runner, config.algorithm, config.policy
        self.device = device
        self.env = env
        self.log_dir = str(log_dir) if log_dir is not None and is_main() else None
        self.num_steps_per_env = int(self.cfg["num_steps_per_env"])
        self.tot_timesteps = 0
        self.tot_time = 0.0
        self.current_learning_iteration = 0
        # A function of an inference policy that returns a score, higher is better; decides which snapshot is the best.
        self.evaluator: Callable[[InferencePolicy], float] | None = None
        # Made when learning starts, so that playing a policy writes nothing.
        self.writer: Any = None
        # What is written beside the training.
        self._background = BackgroundCalls()
        self._keeper: CheckpointKeeper | None = None
        self._saved_iteration: int | None = None
        self._episodes = EpisodeStatistics(self.num_steps_per_env, env.num_envs, device)
        # The normalised observations to act on next; they continue a resumed training exactly.
        self._observations: tuple[Tensor, Tensor] | None = None
        self._continue_from_observations = False

    def _keep_observations(self, obs: Tensor, critic_obs: Tensor) -> None:
        """Remember what to act on next, always in the same place."""
        if self._observations is None:
            with torch.inference_mode(False):
                own = obs.clone()
                self._observations = (own, own if critic_obs is obs else critic_obs.clone())
            return
        for kept, new in zip(self._observations, (obs, critic_obs)):
            kept.copy_(new)

    # ---- saving --------------------------------------------------------------------------------------------------

    def save(self, path: str | Path, infos: Any = None) -> None:
        """Write a checkpoint; readers never see half a file."""
        self._background.wait()
        self._write(self._checkpoint(infos), Path(path))

    def _write(self, payload: dict[str, Any], path: Path) -> None:
        save_checkpoint(payload, path)
        self._tell_writer("save_model", str(path), payload["iter"])

    def _tell_writer(self, method: str, *args: Any) -> None:
        """Call a method of the writer, if it has it: one that a user brings along may know `add_scalar` alone."""
        function = getattr(self.writer, method, None)
        if function is not None:
            function(*args)

    @property
    def _writes_beside(self) -> bool:
        """Whether files are written while the training goes on; on a CPU it needs every core itself."""
        return torch.device(self.device).type == "cuda"

    @property
    def _is_save_overridden(self) -> bool:
        """Whether a user's `save` takes the place of ours, and may count on the file when ours returns."""
        return getattr(self.save, "__func__", None) is not SavedTraining.save

    def _run_in_background(self, function: Callable[..., Any], *args: Any) -> None:
        """Call a function that only writes, beside the training or at once."""
        self._background.call(function, *args) if self._writes_beside else function(*args)

    def _checkpoint(self, infos: Any = None) -> dict[str, Any]:
        """Everything that an exact resume needs."""
        payload = self.alg.state_dict() | {
            "iter": self.current_learning_iteration,
            "infos": infos,
            "rng_state_dict": rng_state_dict(self.device),
            "runner_state_dict": {
                "tot_timesteps": self.tot_timesteps,
                "tot_time": self.tot_time,
                "num_envs": int(self.env.num_envs),
                "learning_rate": float(self.alg.learning_rate),
                "episodes": self._episodes.state_dict(),
                "observations": None if self._observations is None else list(self._observations),
                **self.alg.rollout_state(),
            },
        }
        env_state = environment_state(self.env)
        return payload if env_state is None else payload | {"env_state_dict": env_state}

    def _start_keeping(self) -> None:
        """From now on snapshots are kept in the run folder, if there is one."""
        if self.log_dir is None or self._keeper is not None:
            return
        keep_best = self.cfg.get("keep_best")
        self._keeper = CheckpointKeeper(
            Path(self.log_dir),
            self.cfg.get("keep_last"),
            keep_best=True if keep_best is None else bool(keep_best),
            resumed=self.current_learning_iteration > 0,
        )

    def _save_snapshot(self) -> None:
        """Save this iteration into the run folder, and as the best one if it is."""
        keeper, iteration = self._keeper, self.current_learning_iteration
        if keeper is None:
            return
        payload = self._checkpoint()
        if self._writes_beside:
            # The file is written while the training goes on and changes its tensors.
            payload = buffer_func(plain_value(payload, "checkpoint"), _host_copy)
        if self._is_save_overridden:
            self.save(str(keeper.path(iteration)))
        else:
            self._run_in_background(self._write, payload, keeper.path(iteration))
        self._saved_iteration = iteration
        score = self._score()

        def keep_the_best() -> None:
            if score is not None:
                keeper.offer_best(payload, score)
            keeper.remove_old(iteration)

        self._run_in_background(keep_the_best)

    def _score(self) -> float | None:
        """How good the policy is now: the evaluator's word, else the mean return of finished episodes."""
        if self.evaluator is None:
            return fmean(self._episodes.rewbuffer) if self._episodes.rewbuffer else None
        with self._evaluating():
            return float(self.evaluator(InferencePolicy(self.alg.actor_critic, self.alg.obs_normalizer)))

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Evaluation mode with an empty memory; afterwards training goes on as if nothing had happened."""
        generators = rng_state_dict(self.device)
        self.alg.eval_mode()
        try:
            with self.alg.actor_critic.preserve_hidden_states(), torch.inference_mode():
                self.alg.actor_critic.clear_hidden_states()
                yield
        finally:
            self.alg.train_mode()
            load_rng_state_dict(generators, self.device)

    # ---- loading -------------------------------------------------------------------------------------------------

    def load(
        self, path: str | Path, load_optimizer: bool = True, map_location: Any = None, trust_pickle: bool = False
    ) -> Any:
        """Load a checkpoint and return its `infos`.

        With the optimiser this is a resume: random numbers, counters, memories and, where it offers its state, the
        environment continue exactly. Without it only networks and normalisers are taken.
        """
        location = self.device if map_location is None else map_location
        loaded = load_checkpoint(Path(path), map_location=location, trust_pickle=trust_pickle)
        if self.cfg.get("ckpt_manipulator"):
            loaded = self._manipulated(loaded, Path(path))
        missing = [key for key in ("model_state_dict", "iter") if key not in loaded]
        if missing:
            raise CheckpointError(
                f"{path} has no {' and no '.join(missing)}; its keys are: {', '.join(map(str, loaded))}. Name a "
                "model_*.pt file of a run"
            )
        if not load_optimizer:
            loaded = {key: value for key, value in loaded.items() if key not in OPTIMIZER_KEYS}
        self.alg.load_state_dict(loaded)
        self.current_learning_iteration = int(loaded["iter"])
        self.alg.current_learning_iteration = self.current_learning_iteration
        # Whatever this process saved before belongs to another course of the training.
        self._saved_iteration = None
        if load_optimizer and "runner_state_dict" in loaded:
            self._resume(loaded)
        return loaded.get("infos")

    def _resume(self, loaded: dict[str, Any]) -> None:
        """Continue counters and, with the same number of robots, memories, environment and random numbers."""
        state = loaded["runner_state_dict"]
        self.tot_timesteps, self.tot_time = int(state["tot_timesteps"]), float(state["tot_time"])
        same_robots = state["num_envs"] == self.env.num_envs
        same_episodes = same_robots and self._resume_environment(loaded.get("env_state_dict"))
        self._episodes.load_state_dict(state["episodes"], same_episodes)
        if same_episodes:
            if state["observations"] is not None:
                self._keep_observations(*(tensor.to(self.device) for tensor in state["observations"]))
                self._continue_from_observations = True
            self.alg.load_rollout_state(state)
        if same_robots:
            load_rng_state_dict(loaded["rng_state_dict"], self.device)

    def _resume_environment(self, env_state: Any) -> bool:
        """Whether the environment goes on from its saved state; otherwise its robots start new episodes."""
        if env_state is None or not hasattr(self.env, "load_state_dict"):
            return False
        try:
            self.env.load_state_dict(env_state)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            logger.warning(f"the environment cannot take over its saved state and starts new episodes: {error!r}")
            self.env.reset()
            return False
        return True

    def _manipulated(self, loaded: dict[str, Any], source: Path) -> dict[str, Any]:
        """Apply the configured checkpoint manipulator and keep its result beside the run."""
        name = str(self.cfg["ckpt_manipulator"])
        functions = vars(ckpt_manipulator).items()
        known: dict[str, Any] = {key: f for key, f in functions if callable(f) and not isinstance(f, type)}
        if name not in known:
            raise ValueError(unknown_name_message("ckpt_manipulator", name, known))
        logger.warning(f"*** the checkpoint {source.name} is changed by '{name}' before it is loaded ***")
        result = known[name](loaded, self.alg.state_dict())
        if self.log_dir is not None and "iter" in result:
            target = Path(self.log_dir) / f"model_{result['iter']}.pt"
            if target.resolve() != source.resolve():
                try:
                    make_run_folder(self.log_dir)
                    save_checkpoint(result, target)
                except (OSError, TypeError) as error:
                    logger.warning(f"the changed checkpoint could not be saved: {error}")
        return result


def _host_copy(value: Any) -> Any:
    """A copy of a tensor on the host; anything else as it is."""
    return value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value
