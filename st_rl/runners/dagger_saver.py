"""`DaggerSaver`: collects the states that a student visits, labelled with the actions of its teacher."""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from st_rl.algorithms.schedules import GET_PROB_FUNC
from st_rl.env.utils import observe
from st_rl.loggers.console_panel import ConsolePanel
from st_rl.modules import ActorCritic, build_actor_critic
from st_rl.modules.deterministic_policy import DeterministicPolicyMixin
from st_rl.modules.policy import GaussianPolicy
from st_rl.modules.policy.load import load_normalizer, read_run_config, run_policy_class_name
from st_rl.runners.demonstration import DemonstrationSaver
from st_rl.runners.iteration_statistics import aggregate_infos
from st_rl.runners.setup.env_sizes import read_sizes
from st_rl.utils.config import drop_none
from st_rl.utils.files import CheckpointError, load_checkpoint, name_file, newest_checkpoint
from st_rl.utils.files.checkpoint import OTHER_CHECKPOINT
from st_rl.utils.files.heartbeat import HeartbeatMonitor, heartbeats
from st_rl.utils.log import logger

TRAINER = "trainer"
_CHECK_INTERVAL_S = 1.0
_LOAD_ATTEMPTS = 5
_RETRY_S = 0.2


class DaggerSaver(DemonstrationSaver):
    """Collects the states that a student visits, labelled with its teacher's actions, while the student is trained.

    Args:
        *args: those of `DemonstrationSaver`; `policy` is the teacher.
        training_policy_logdir: run folder of the student: its `config.json` and checkpoints.
        teacher_act_prob: probability that the teacher acts in an environment, as in `TPPO`, at the student's iteration.
        update_times_scale: iterations over which a named schedule of that probability decays.
        action_sample_std: above 0, the standard deviation of the student's actions.
        log_to_tensorboard: write episode statistics to a subfolder of the student's run.
        trust_pickle: load checkpoints of the student with pickled objects, which may run any code.
        **kwargs: those of `DemonstrationSaver`.
    """

    def __init__(
        self,
        *args: Any,
        training_policy_logdir: str | os.PathLike[str],
        teacher_act_prob: str | float | Callable[[int], float] = "exp",
        update_times_scale: float = 5000,
        action_sample_std: float = 0.0,
        log_to_tensorboard: bool = False,
        trust_pickle: bool = False,
        **kwargs: Any,
    ):
        teacher = args[1] if len(args) > 1 else kwargs.get("policy")
        if teacher is None or isinstance(teacher, str | os.PathLike):
            raise TypeError("DaggerSaver needs policy=..., the teacher that labels the student's states")
        super().__init__(*args, **kwargs)
        self.training_policy_logdir = os.path.expanduser(os.fspath(training_policy_logdir))
        self.teacher_act_prob = _as_schedule(teacher_act_prob, update_times_scale)
        self.update_times_scale = update_times_scale
        self.action_sample_std = float(action_sample_std)
        self.log_to_tensorboard = log_to_tensorboard
        self.trust_pickle = trust_pickle
        self.training_policy_iteration = self.policy_iteration = 0
        self.rollout_episode_infos: list[dict[str, Any]] = []
        self.tb_writer: Any = _make_writer(self.training_policy_logdir, self.save_dir) if log_to_tensorboard else None
        # The student, built when collection starts: its run folder may not exist before.
        self.training_policy: Any = None
        self.training_policy_normalizer: nn.Module | None = None
        # Environments in which the teacher acts, `(N,)`; sampled whenever the student is loaded.
        self.use_teacher_act_mask: Tensor | None = None
        # Whether collection also ends when the trainer has finished.
        self.stop_with_trainer = False
        self.trainers = HeartbeatMonitor()
        self._last_check = 0.0
        self._loaded: Path | None = None
        self._reported_untrained = False
        self._console = ConsolePanel()

    # ---- student -------------------------------------------------------------------------------------------------

    def init_traj_handlers(self) -> None:
        """Create the folder and build the student."""
        self.metadata = self.metadata or self._new_metadata()
        self.metadata["training_policy_logdir"] = self.training_policy_logdir
        self.metadata["update_times_scale"] = self.update_times_scale
        self.metadata["action_sample_std"] = self.action_sample_std
        super().init_traj_handlers()
        self.build_training_policy()

    def init_storage_buffer(self) -> None:
        """Allocate the buffers for steps and episode infos."""
        super().init_storage_buffer()
        self.rollout_episode_infos = []

    def build_training_policy(self) -> None:
        """Build the untrained student from the configuration in its run folder."""
        config = read_run_config(Path(self.training_policy_logdir))
        policy_cfg, name = drop_none(config["policy"]), run_policy_class_name(config)
        sizes = read_sizes(self.env, observe(self.env))
        policy_cfg = {"num_actor_obs": sizes.num_obs, "num_critic_obs": sizes.num_critic_obs, **policy_cfg}
        self.training_policy = build_actor_critic(self.env, name, policy_cfg).to(self._device).eval()
        self.training_policy_iteration = self.policy_iteration = 0
        self._loaded = None
        self._set_noise()

    def load_latest_training_policy(self) -> None:
        """Load the student's newest checkpoint if it is new, and sample the environments in which the teacher acts."""
        if self.training_policy is None:
            self.build_training_policy()
        newest = newest_checkpoint(self.training_policy_logdir)
        if newest is None:
            if not self._reported_untrained:
                logger.info(f"{self.training_policy_logdir} has no checkpoint yet: the student is untrained")
            self._reported_untrained = True
        elif newest != self._loaded:
            self._load(newest)
        # `training_policy_iteration` also counts logs; the schedule depends on the training of the student alone.
        probability = float(self.teacher_act_prob(self.policy_iteration or 0))
        self.use_teacher_act_mask = torch.rand(self.env.num_envs, device=self._device) < probability

    def _load(self, path: Path) -> None:
        """Load a checkpoint of the student; one that cannot be read is reported and tried again later."""
        reason: Exception | None = None
        for attempt in range(_LOAD_ATTEMPTS):
            if attempt:
                # Other libraries write checkpoints in place, and `keep_last` removes old ones.
                time.sleep(_RETRY_S)
                path = newest_checkpoint(self.training_policy_logdir) or path
            try:
                loaded = load_checkpoint(path, self._device, self.trust_pickle)
                if not {"model_state_dict", "iter"} <= loaded.keys():
                    raise CheckpointError(f"{path} has no model_state_dict or no iter; {OTHER_CHECKPOINT}")
            except (CheckpointError, FileNotFoundError) as error:
                reason = error
                continue
            with name_file(path, f"name the run folder of the student, or {OTHER_CHECKPOINT}", CheckpointError):
                self._load_student(loaded)
            self._loaded = path
            return
        logger.warning(f"the student stays at iteration {self.training_policy_iteration}: {reason}")

    def _load_student(self, loaded: Mapping[str, Any]) -> None:
        """Load weights, iteration and normalizer of the student."""
        self.training_policy.load_state_dict(loaded["model_state_dict"])
        self.training_policy_iteration = self.policy_iteration = int(loaded["iter"])
        statistics = loaded.get("obs_norm_state_dict")
        if statistics is not None:
            normalizer = load_normalizer(statistics["_mean"].shape[1:], statistics).to(self._device)
            self.training_policy_normalizer = normalizer
        self._set_noise()

    def _set_noise(self) -> None:
        """Set the standard deviation of a stochastic student to `action_sample_std` if that is positive."""
        if self.action_sample_std <= 0 or self._is_deterministic:
            return
        if isinstance(self.training_policy, ActorCritic):
            self.training_policy.fill_std(self.action_sample_std)
        else:
            with torch.no_grad():
                self.training_policy.std.fill_(self.action_sample_std)

    @property
    def _is_deterministic(self) -> bool:
        """Whether the student samples no noise."""
        policy = self.training_policy
        return isinstance(policy, DeterministicPolicyMixin) or not isinstance(policy, GaussianPolicy)

    # ---- collect -------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def get_transition(self) -> tuple[Tensor, Tensor, Tensor, Mapping[str, Any], Tensor, Tensor | None]:
        """Step with the actions of the student, or of the teacher where masked; returns the teacher's as labels."""
        if self.use_teacher_act_mask is None:
            self.load_latest_training_policy()
        self._check_trainer()
        teacher_actions = self.get_policy_actions()
        mask = torch.as_tensor(self.use_teacher_act_mask)
        executed = torch.where(mask[:, None], teacher_actions, self._student_actions())
        return self._step(executed, teacher_actions)

    def _student_actions(self) -> Tensor:
        obs = torch.as_tensor(self.obs)
        if self.training_policy_normalizer is not None:
            obs = self.training_policy_normalizer(obs)
        actions = self.training_policy.act(obs)
        if self.action_sample_std > 0 and self._is_deterministic:
            return actions + self.action_sample_std * torch.randn_like(actions)
        return actions

    def add_transition(self, step_i: int, infos: Mapping[str, Any]) -> None:
        """Store the last step and its episode infos."""
        super().add_transition(step_i, infos)
        episode = infos.get("episode") or infos.get("log")
        if episode:
            self.rollout_episode_infos.append(dict(episode))

    def policy_reset(self, dones: Tensor) -> None:
        """Clear the hidden states of teacher and student in finished episodes."""
        super().policy_reset(dones)
        self.training_policy.reset(dones.reshape(-1) > 0)

    def check_stop(self) -> bool:
        """Load the newest student, then return whether to stop."""
        self.load_latest_training_policy()
        has_finished = self.trainers.num_finished > 0 and self.trainers.num_alive == 0
        return super().check_stop() or (self.stop_with_trainer and has_finished)

    def _check_trainer(self) -> None:
        """Log when the student's trainer starts, finishes or dies; checks at most once a second."""
        now = time.monotonic()
        if now - self._last_check >= _CHECK_INTERVAL_S:
            self._last_check = now
            for line in self.trainers.check(heartbeats(self.training_policy_logdir, TRAINER)):
                logger.info(line)

    def print_log(self) -> None:
        """Log the episode infos of this rollout and the progress of the collection."""
        # Always below `Episode/`, unlike in the log of a training, where a key with a slash is the tag itself.
        scalars = {f"Episode/{key}": value for key, value in aggregate_infos(self.rollout_episode_infos).items()}
        if self.tb_writer is not None:
            for tag, value in scalars.items():
                self.tb_writer.add_scalar(tag, value, self.training_policy_iteration)
        if scalars:
            rows = [(tag, f"{value:.4f}") for tag, value in scalars.items()]
            self._console.show(f"Student at iteration {self.policy_iteration}", rows, width=80, pad=35)
        self.training_policy_iteration += 1
        self.rollout_episode_infos = []
        super().print_log()

    def close(self) -> None:
        """Save the rest of the buffer and close the writer."""
        super().close()
        self._console.close()
        if self.tb_writer is not None:
            self.tb_writer.close()


def _as_schedule(option: str | float | Callable[[int], float], iteration_scale: float) -> Callable[[int], Any]:
    """Return a function of the iteration for the name of a schedule, a constant or a function."""
    if callable(option):
        return option
    return GET_PROB_FUNC(option, iteration_scale) if isinstance(option, str) else lambda iteration: float(option)


def _make_writer(training_policy_logdir: str, save_dir: str) -> Any:
    """Return the TensorBoard writer of a collector, in a subfolder of the student's run."""
    from st_rl.loggers.summary_writer import SummaryWriter

    name = "_".join(os.path.basename(os.path.normpath(save_dir)).split("_")[:2])
    return SummaryWriter(os.path.join(training_policy_logdir, f"collector_{name}"), flush_secs=10)
