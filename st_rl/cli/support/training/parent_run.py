"""The run that a training starts from: `st-rl train TASK --from RUN[:CHECKPOINT]`."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from st_rl.cli.support.command_line import CommandError, escape_control, quote
from st_rl.cli.support.run_folders.pretrained import PRETRAINED_PREFIX
from st_rl.cli.support.run_folders.run_folder import CONFIG_FILE, PARENTS, RUN_FILE, RunFolder, find_policy
from st_rl.cli.support.task_source import EnvConfig, TaskSource
from st_rl.cli.support.training.training_config import TrainingConfig

if TYPE_CHECKING:
    from st_rl.runners import OnPolicyRunner


@dataclass
class ParentRun:
    """A trained policy that another training starts from. Nothing that its files name is imported."""

    run: RunFolder
    checkpoint: Path
    typed: str
    """What the user typed."""
    settings: dict[str, Any]
    """Its `run.json`; empty without one."""
    training: TrainingConfig

    @classmethod
    def find(cls, address: str) -> ParentRun:
        """Find the run `RUN` or `RUN:CHECKPOINT`; UsageError or CommandError if it is gone or damaged."""
        from st_rl.utils.config import reject_unsafe_settings
        from st_rl.utils.files import name_file

        try:
            run, checkpoint = find_policy(address)
        except CommandError as error:
            raise type(error)(f"--from {quote(address)}: {error}") from error
        config = run.read_json(CONFIG_FILE)
        with name_file(run.file(CONFIG_FILE), run.remedy(CONFIG_FILE), CommandError):
            reject_unsafe_settings(config, run.file(CONFIG_FILE))
            training = TrainingConfig.from_dict(config)
        return cls(run, checkpoint, address, run.read_optional_json(RUN_FILE) or {}, training)

    @property
    def address(self) -> str:
        """How to name the policy again; `latest` may become another run."""
        return self.typed if self.typed.startswith(PRETRAINED_PREFIX) else f"{self.run.path}:{self.checkpoint.name}"

    def inherit(
        self, source: TaskSource[EnvConfig], env: EnvConfig, training: TrainingConfig
    ) -> tuple[EnvConfig, TrainingConfig]:
        """Return the settings that a training of a task starts with: the parent's if the task is the same.

        Of another task, and of a student that was distilled, only the networks are taken. The number of robots and of
        iterations are always those of the task.
        """
        inherited = self.inherit_networks(training)
        if self.settings.get("task") != source.name:
            return env, inherited
        from st_rl.utils.files import name_file

        with name_file(self.run.file(RUN_FILE), self.run.remedy(RUN_FILE), CommandError):
            values = {key: value for key, value in self.settings.get("task_config", {}).items() if key != "num_envs"}
            env = source.read_config(values)
        if "teacher_policy" in self.training.others["algorithm"]:
            return env, inherited
        runner = dataclasses.replace(
            self.training.runner, max_iterations=training.runner.max_iterations, update_threads=None
        )
        return env, dataclasses.replace(copy.deepcopy(self.training), runner=runner)

    def inherit_networks(self, training: TrainingConfig) -> TrainingConfig:
        """Return a training configuration with the networks and the normalization of the parent."""
        parent = self.training
        normalization = parent.runner.empirical_normalization
        algorithm = without_symmetry_if_recurrent(training.others.get("algorithm", {}), parent.policy.class_name)
        return TrainingConfig(
            dataclasses.replace(training.runner, empirical_normalization=normalization),
            dataclasses.replace(parent.policy),
            training.algorithm,
            {**training.others, "policy": copy.deepcopy(parent.others.get("policy", {})), "algorithm": algorithm},
        )

    def start(self, runner: OnPolicyRunner) -> None:
        """Copy weights and normalizers into a new runner and print what is new; CommandError if they do not fit."""
        from st_rl.modules.policy.load import load_policy
        from st_rl.utils.distributed import is_main
        from st_rl.utils.files import load_checkpoint

        policy = load_policy(self.run.path, self.checkpoint.resolve(), runner.device)
        state = load_checkpoint(self.checkpoint, map_location=runner.device)
        given, own = runner.policy_cfg.get("init_noise_std"), self.training.policy.init_noise_std
        try:
            new = runner.alg.start_from(policy.actor_critic, state, with_noise=given == own)
        except ValueError as error:
            raise CommandError(f"cannot start from {self.address}: {error}; name another run, or {_REMEDY}") from error
        self.settings["iteration"] = policy.iteration
        if is_main():
            print(f"Starting from {escape_control(self.address)}, iteration {policy.iteration}")
            for words in new:
                print(f"  {escape_control(words)}")

    def chain(self) -> list[dict[str, Any]]:
        """Return this run and those that it descends from, nearest first, for `run.json`."""
        earlier = self.settings.get(PARENTS)
        own = {
            "run": self.typed if self.typed.startswith(PRETRAINED_PREFIX) else str(self.run.path.resolve()),
            "checkpoint": self.checkpoint.name,
            "iteration": self.settings.get("iteration"),
            "task": self.settings.get("task"),
        }
        return [own, *(earlier if isinstance(earlier, list) else [])]


_REMEDY = "leave out the options that change networks or normalization"


def without_symmetry_if_recurrent(algorithm: dict[str, Any], policy_class_name: str) -> dict[str, Any]:
    """Return the settings of an algorithm without symmetry if the policy is recurrent: mirroring needs the past."""
    from st_rl.modules.policy.build import policy_class

    if "symmetry_cfg" not in algorithm or not policy_class(policy_class_name).is_recurrent:
        return algorithm
    print("The policy is recurrent: without the symmetry of the task, which needs a feed-forward policy")
    return {key: value for key, value in algorithm.items() if key != "symmetry_cfg"}
