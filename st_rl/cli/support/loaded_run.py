"""Brings a run back: its task, its runner, and the policy of one of its checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from st_rl.cli.support.command_line import CommandError, UsageError
from st_rl.cli.support.run_folder import CONFIG_FILE, TEACHER_FILE, RunFolder
from st_rl.cli.support.task_source import TaskSource, find_source, is_foreign
from st_rl.cli.support.training_config import TrainingConfig
from st_rl.utils.registry import reject_class_paths


class LoadedPolicy(NamedTuple):
    """A policy of a run."""

    policy: Any
    """A function of raw observations, with `reset`."""
    iteration: int
    """Completed iterations of its training."""
    checkpoint: Path
    """The file it comes from."""


def _find_source_of(run: RunFolder, task: str) -> TaskSource:
    """The task of a run; CommandError for one that only a file of the user's own adds."""
    try:
        return find_source(task)
    except UsageError as error:
        if is_foreign(task):
            raise
        raise CommandError(
            f"{run.path} is a run of the task '{task}', which st-rl does not know by itself: call the file that adds "
            "it, python FILE.py, in the place of st-rl"
        ) from error


class LoadedRun:
    """A run as its folder describes it."""

    def __init__(self, run: RunFolder):
        self.run = run
        self.settings = run.settings
        self.source: TaskSource = _find_source_of(run, str(self.settings["task"]))
        self.env_config = self.source.read_config(self.settings.get("task_config") or {})
        config = run.read_json(CONFIG_FILE)
        reject_class_paths(config, run.file(CONFIG_FILE))
        self.training = TrainingConfig.from_dict(config)

    def make_runner(self, env: Any, device: str, log_dir: Path | None = None) -> Any:
        """The run's runner on an environment of the same kind."""
        from st_rl.runners import build_runner

        config = self.training.to_dict()
        teacher = self.run.file(TEACHER_FILE)
        if teacher.is_file() and "teacher_policy" in config["algorithm"]:
            # The folder may have been moved since.
            config["algorithm"]["teacher_policy"]["teacher_ac_path"] = str(teacher)
        name = config.get("runner_class_name") or "OnPolicyRunner"
        return build_runner(name, env, config, log_dir=log_dir, device=device)

    def load_policy(self, env: Any, checkpoint: Path, device: str = "cpu") -> LoadedPolicy:
        """The policy of a checkpoint, for environments like `env`."""
        import logging

        import torch

        # The networks are small, and one thread leaves the cores to physics.
        torch.set_num_threads(1)
        # What the runner says about itself interests whoever trains.
        logger = logging.getLogger("st_rl")
        level = logger.level
        logger.setLevel(logging.WARNING)
        try:
            runner = self.make_runner(env, device)
            runner.load(checkpoint, load_optimizer=False)
        finally:
            logger.setLevel(level)
        return LoadedPolicy(runner.get_inference_policy(device), runner.current_learning_iteration, checkpoint)
