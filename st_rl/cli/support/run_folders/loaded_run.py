"""A run read back from its folder: its task, its training configuration, its runner and its policies."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from st_rl.cli.support.command_line import CommandError, UsageError
from st_rl.cli.support.run_folders.run_folder import (
    CONFIG_FILE,
    RUN_FILE,
    TEACHER_FILE,
    RunFolder,
    RunOptions,
    find_policy,
)
from st_rl.cli.support.task_source import TaskSource, find_source, is_external
from st_rl.cli.support.training.training_config import TrainingConfig

if TYPE_CHECKING:
    from st_rl.env import VecEnv
    from st_rl.modules.policy.load import LoadedPolicy
    from st_rl.runners import OnPolicyRunner


Value = TypeVar("Value")


def open_run(options: RunOptions) -> tuple[LoadedRun, Path]:
    """Return the run and the checkpoint that the options name."""
    run, checkpoint = find_policy(options.run, options.checkpoint)
    return LoadedRun(run, options.task), checkpoint


def _find_source(run: RunFolder, task: str, trusted: str | None) -> TaskSource[Any]:
    """Return the task of a run; CommandError for a task that st-rl alone does not know.

    Tasks of other libraries import code that the id names, and `run.json` is untrusted: UsageError unless the
    command line repeats the id (`trusted`).
    """
    if trusted is not None and trusted != task:
        raise UsageError(f"{run.path} is a run of {task}, not of {trusted}: type --task {shlex.quote(task)}")
    if is_external(task) and trusted is None:
        raise UsageError(
            f"{run.file(RUN_FILE)} names the task {task}, which imports code from outside st-rl; if you trust it, add "
            f"--task {shlex.quote(task)}"
        )
    try:
        return find_source(task)
    except UsageError as error:
        if is_external(task):
            raise
        raise CommandError(
            f"{run.file(RUN_FILE)} names the task '{task}', which st-rl does not know: use the script that registers "
            f"it, {_own_script(run.settings) or 'python FILE.py'}, instead of st-rl"
        ) from error


def _own_script(settings: Mapping[str, Any]) -> str | None:
    """Return how the user's script was started that the run was trained with; None if it was `st-rl` itself.

    `run.json` is untrusted: only the plain name of a script is shown.
    """
    script = re.match(r"\S*python\S* ([\w./-]+\.py) ", str(settings.get("command_line", ""))[:1000])
    return None if script is None else f"python {script[1]}"


class LoadedRun:
    """A run as its folder describes it; `task` is the id that the command line repeats, if any."""

    def __init__(self, run: RunFolder, task: str | None = None):
        from st_rl.utils.config import reject_unsafe_settings

        self.run = run
        self.settings = run.settings
        self.source = _find_source(run, run.task, task)
        script = _own_script(self.settings)
        remedy = f"the run was trained with {script}: use it instead of st-rl" if script else None
        with self._name_file(RUN_FILE, remedy):
            self.env_config = self.source.read_config(self.settings.get("task_config") or {})
        config = run.read_json(CONFIG_FILE)
        reject_unsafe_settings(config, run.file(CONFIG_FILE))
        with self._name_file(CONFIG_FILE):
            self.training = TrainingConfig.from_dict(config)

    def setting(self, key: str, kind: Callable[[Any], Value]) -> Value:
        """Return a value of `run.json`, converted; CommandError if it is missing or of another kind."""
        with self._name_file(RUN_FILE):
            return kind(self.settings[key])

    def optional_setting(self, key: str, kind: Callable[[Any], Value]) -> Value | None:
        """Return a value of `run.json`, converted; None if it is missing or null."""
        return None if self.settings.get(key) is None else self.setting(key, kind)

    def _name_file(self, name: str, remedy: str | None = None) -> AbstractContextManager[None]:
        """Name a file of the run in errors of a block that uses its content, with a remedy, by default of the file."""
        from st_rl.utils.files import name_file

        return name_file(self.run.file(name), remedy or self.run.remedy(name), CommandError)

    def make_env(self, num_envs: int | None, device: str, seed: int) -> VecEnv:
        """Build the training environment; as many environments as in the run if `num_envs` is None."""
        return self.source.make(self.env_config, num_envs or self.setting("num_envs", int), device, seed)

    def make_eval_env(self, num_envs: int, seconds: float, seed: int, fine: bool = False) -> VecEnv:
        """Build an environment for evaluation."""
        return self.source.make_eval(self.env_config, num_envs, seconds, seed, fine)

    def make_runner(self, env: VecEnv, device: str, log_dir: Path | None = None) -> OnPolicyRunner:
        """Build the runner of the run."""
        from st_rl.runners import build_runner

        config = self.training.to_dict()
        teacher = self.run.file(TEACHER_FILE)
        if teacher.is_file() and "teacher_policy" in config["algorithm"]:
            # The folder may have been moved.
            config["algorithm"]["teacher_policy"]["teacher_ac_path"] = str(teacher)
        name = config.get("runner_class_name") or "OnPolicyRunner"
        try:
            return build_runner(name, env, config, log_dir=log_dir, device=device)
        except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
            # Errors in values are ValueErrors that name them; these are of a damaged file.
            with self._name_file(CONFIG_FILE):
                raise error

    def load_policy(self, env: VecEnv, checkpoint: Path, device: str = "cpu") -> LoadedPolicy:
        """Load the policy of a checkpoint, for environments like `env`."""
        import torch

        from st_rl.modules.policy.load import load_policy

        # The networks are small, and one thread leaves the cores to the physics.
        torch.set_num_threads(1)
        return load_policy(self.run.path, checkpoint.resolve(), device, env=env)
