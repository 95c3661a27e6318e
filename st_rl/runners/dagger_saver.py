"""`DaggerSaver`: a student in training acts, its teacher says what it should have done, and both are saved."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from st_rl.algorithms.schedules import GET_PROB_FUNC
from st_rl.env.utils import observe
from st_rl.loggers.console_panel import ConsolePanel
from st_rl.loggers.iteration_report import episode_scalars
from st_rl.modules import build_actor_critic
from st_rl.modules.deterministic_policy import DeterministicPolicyMixin
from st_rl.modules.load_policy import read_run_config, run_policy_class_name
from st_rl.modules.normalizer import EmpiricalNormalization
from st_rl.runners.demonstration import DemonstrationSaver
from st_rl.runners.env_sizes import read_sizes
from st_rl.utils.config import drop_none
from st_rl.utils.files import CheckpointError, load_checkpoint, newest_checkpoint
from st_rl.utils.files.heartbeat import HeartbeatMonitor, heartbeats
from st_rl.utils.log import logger

TRAINER = "trainer"
_LOOK_EVERY_S = 1.0
_LOAD_ATTEMPTS = 5
_RETRY_S = 0.2


class DaggerSaver(DemonstrationSaver):
    """Collects the states that a student visits, labelled with its teacher's actions, while the student is trained.

    Args:
        *args: those of `DemonstrationSaver`, of which `policy` is the teacher.
        training_policy_logdir: run folder of the student: its `config.json` and checkpoints.
        teacher_act_prob: share of robots that the teacher drives, as in `TPPO`, at the student's iteration.
        update_times_scale: iterations within which a named schedule of that share falls.
        action_sample_std: above 0, the student's exploration noise.
        log_to_tensorboard: write episode statistics beside the student's.
        **kwargs: those of `DemonstrationSaver`.
    """

    def __init__(
        self,
        *args: Any,
        training_policy_logdir: str | os.PathLike[str],
        teacher_act_prob: Any = "exp",
        update_times_scale: float = 5000,
        action_sample_std: float = 0.0,
        log_to_tensorboard: bool = False,
        **kwargs: Any,
    ):
        teacher = args[1] if len(args) > 1 else kwargs.get("policy")
        if teacher is None or isinstance(teacher, str | os.PathLike):
            raise TypeError("DaggerSaver needs policy=..., the teacher whose actions label what the student does")
        super().__init__(*args, **kwargs)
        self.training_policy_logdir = os.path.expanduser(os.fspath(training_policy_logdir))
        self.teacher_act_prob = _as_schedule(teacher_act_prob, update_times_scale)
        self.update_times_scale = update_times_scale
        self.action_sample_std = float(action_sample_std)
        self.log_to_tensorboard = log_to_tensorboard
        self.training_policy_iteration = self.policy_iteration = 0
        self.rollout_episode_infos: list[dict[str, Any]] = []
        self.tb_writer: Any = _make_writer(self.training_policy_logdir, self.save_dir) if log_to_tensorboard else None
        # The student, built when collection starts; its folder may not exist before.
        self.training_policy: Any = None
        self.training_policy_normalizer: EmpiricalNormalization | None = None
        # Drawn when the student is first looked for.
        self.use_teacher_act_mask: Tensor | None = None
        # Whether to end when the trainer has finished, too.
        self.stop_with_trainer = False
        self.trainers = HeartbeatMonitor()
        self._last_look = 0.0
        self._loaded: Path | None = None
        self._said_untrained = False
        self._console = ConsolePanel()

    # ---- the student ---------------------------------------------------------------------------------------------

    def init_traj_handlers(self) -> None:
        """Make the folder and build the student."""
        self.metadata = self.metadata or self._new_metadata()
        self.metadata["training_policy_logdir"] = self.training_policy_logdir
        self.metadata["update_times_scale"] = self.update_times_scale
        self.metadata["action_sample_std"] = self.action_sample_std
        super().init_traj_handlers()
        self.build_training_policy()

    def init_storage_buffer(self) -> None:
        """Make the buffers for steps and episode infos."""
        super().init_storage_buffer()
        self.rollout_episode_infos = []

    def build_training_policy(self) -> None:
        """Build the student, untrained, as its run folder describes it."""
        config = read_run_config(Path(self.training_policy_logdir))
        policy_cfg, name = drop_none(config["policy"]), run_policy_class_name(config)
        obs, critic_obs, _ = observe(self.env)
        sizes = read_sizes(self.env, obs, critic_obs)
        policy_cfg = {"num_actor_obs": sizes.num_obs, "num_critic_obs": sizes.num_critic_obs, **policy_cfg}
        self.training_policy = build_actor_critic(self.env, name, policy_cfg).to(self._device).eval()
        self.training_policy_iteration = self.policy_iteration = 0
        self._loaded = None
        self._set_noise()

    def load_latest_training_policy(self) -> None:
        """Take over the student's newest checkpoint, if there is a newer one, and draw who is driven by the teacher."""
        if self.training_policy is None:
            self.build_training_policy()
        newest = newest_checkpoint(self.training_policy_logdir)
        if newest is None:
            if not self._said_untrained:
                logger.info(f"{self.training_policy_logdir} has no checkpoint yet: the student is untrained")
            self._said_untrained = True
        elif newest != self._loaded:
            self._load(newest)
        # The log counts its own iteration on; the schedule goes by what the student has learned.
        probability = float(self.teacher_act_prob(self.policy_iteration))
        self.use_teacher_act_mask = torch.rand(self.env.num_envs, device=self._device) < probability

    def _load(self, path: Path) -> None:
        """Load a checkpoint of the student; one that cannot be read is said and left for the next time."""
        reason: Exception | None = None
        for attempt in range(_LOAD_ATTEMPTS):
            if attempt:
                # Other libraries write their checkpoints in place; ours may remove old ones.
                time.sleep(_RETRY_S)
                path = newest_checkpoint(self.training_policy_logdir) or path
            try:
                self._take_over(load_checkpoint(path, map_location=self._device))
                self._loaded = path
                return
            except (CheckpointError, FileNotFoundError, KeyError) as error:
                reason = error
        logger.warning(f"the student stays at iteration {self.training_policy_iteration}: {reason}")

    def _take_over(self, loaded: Mapping[str, Any]) -> None:
        """Give the student the weights, iteration and normaliser of a checkpoint."""
        self.training_policy.load_state_dict(loaded["model_state_dict"])
        self.training_policy_iteration = self.policy_iteration = int(loaded["iter"])
        self._load_normalizer(loaded.get("obs_norm_state_dict"))
        self._set_noise()

    def _set_noise(self) -> None:
        """Give a student that draws its actions the noise that was asked for, if any was."""
        if self.action_sample_std > 0 and not self._is_deterministic:
            with torch.no_grad():
                self.training_policy.std.fill_(self.action_sample_std)

    def _load_normalizer(self, state: Mapping[str, Tensor] | None) -> None:
        """What the student's observations pass through, as its training has it now."""
        if state is None:
            return
        if self.training_policy_normalizer is None:
            shape = state["_mean"].shape[1:]
            self.training_policy_normalizer = EmpiricalNormalization(shape).to(self._device).eval()
        self.training_policy_normalizer.load_state_dict(dict(state))

    @property
    def _is_deterministic(self) -> bool:
        """Whether the student draws no noise itself."""
        return isinstance(self.training_policy, DeterministicPolicyMixin) or not hasattr(self.training_policy, "std")

    # ---- collecting ----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def get_transition(self) -> tuple[Tensor, Tensor, Tensor, Mapping[str, Any], Tensor, Tensor | None]:
        """Let the student, or for some robots the teacher, act; the actions returned are always the teacher's."""
        if self.use_teacher_act_mask is None:
            self.load_latest_training_policy()
        self._look_after_trainer()
        teacher_actions = self.get_policy_actions()
        student_actions = self._student_actions()
        executed = torch.where(self.use_teacher_act_mask[:, None], teacher_actions, student_actions)  # pyright: ignore[reportOptionalSubscript]
        return self._step(executed, teacher_actions)

    def _student_actions(self) -> Tensor:
        obs = torch.as_tensor(self.obs)
        if self.training_policy_normalizer is not None:
            obs = self.training_policy_normalizer.normalize(obs)
        actions = self.training_policy.act(obs)
        if self.action_sample_std > 0 and self._is_deterministic:
            return actions + self.action_sample_std * torch.randn_like(actions)
        return actions

    def add_transition(self, step_i: int, infos: Mapping[str, Any]) -> None:
        """Store the last step, and what the environment says of episodes."""
        super().add_transition(step_i, infos)
        episode = infos.get("episode") or infos.get("log")
        if episode:
            self.rollout_episode_infos.append(dict(episode))

    def policy_reset(self, dones: Tensor) -> None:
        """Let teacher and student forget the finished episodes."""
        super().policy_reset(dones)
        self.training_policy.reset(dones.reshape(-1) > 0)

    def check_stop(self) -> bool:
        """Take over the newest student, then say whether there is enough."""
        self.load_latest_training_policy()
        left_alone = self.trainers.num_finished > 0 and self.trainers.num_alive == 0
        return super().check_stop() or (self.stop_with_trainer and left_alone)

    def _look_after_trainer(self) -> None:
        """Say when the student's trainer comes, leaves or dies; looks at most once a second."""
        now = time.monotonic()
        if now - self._last_look >= _LOOK_EVERY_S:
            self._last_look = now
            for line in self.trainers.check(heartbeats(self.training_policy_logdir, TRAINER)):
                logger.info(line)

    def print_log(self) -> None:
        """Show the episodes of this rollout and how far the collection is."""
        scalars = episode_scalars(self.rollout_episode_infos)
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
        """Save what is left and close the writer."""
        super().close()
        self._console.close()
        if self.tb_writer is not None:
            self.tb_writer.close()


def _as_schedule(option: Any, iteration_scale: float) -> Any:
    """A function of the iteration: a schedule's name, a constant, or the function itself."""
    if callable(option):
        return option
    return GET_PROB_FUNC(option, iteration_scale) if isinstance(option, str) else lambda iteration: float(option)


def _make_writer(training_policy_logdir: str, save_dir: str) -> Any:
    """The writer of a collector, in a folder of its own beside the student's."""
    from st_rl.loggers.summary_writer import SummaryWriter

    name = "_".join(os.path.basename(os.path.normpath(save_dir)).split("_")[:2])
    return SummaryWriter(os.path.join(training_policy_logdir, f"collector_{name}"), flush_secs=10)
