"""The files of a run folder: checkpoints, the best of them, and the configuration."""

import inspect
import os
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from st_rl.env import VecEnv
from st_rl.env.policy_metadata import describe_policy_io
from st_rl.env.protocols import NamedTaskEnv, StatefulEnv
from st_rl.modules.policy import Policy
from st_rl.runners.setup.train_config import TrainConfig
from st_rl.system_info import describe_system
from st_rl.utils.config import DictConvertible, drop_trust
from st_rl.utils.files import (
    CHECKPOINT_NAME,
    CheckpointError,
    load_checkpoint,
    plain_value,
    write_checkpoint,
    write_json,
)
from st_rl.utils.log import logger

BEST_NAME = "best.pt"
RUN_NAME = "run.json"


def environment_state(env: StatefulEnv | None) -> Any:
    """Return the state of an environment for a checkpoint; None if it cannot be saved."""
    if env is None:
        return None
    try:
        return plain_value(env.state_dict(), "env.state_dict()")
    except (NotImplementedError, TypeError) as error:
        logger.warning(f"cannot save the state of the environment; a resumed training will start new episodes: {error}")
        return None


def checkpoint_path(folder: Path, iteration: int) -> Path:
    """Return the path of the checkpoint after a number of completed iterations."""
    return folder / f"model_{iteration}.pt"


class CheckpointKeeper:
    """Removes old checkpoints of a run folder and keeps the best."""

    def __init__(self, folder: Path, keep_last: int | None, keep_best: bool, resumed: bool = False):
        self.folder = folder
        self.keep_last = keep_last
        self.keep_best = keep_best
        # A resumed training must exceed the best score in its folder; a new training starts without one.
        self.best_score = self._score_on_disk() if resumed and keep_best else float("-inf")

    def offer_best(self, checkpoint: dict[str, Any], score: float) -> None:
        """Save the checkpoint as `best.pt` if its score is the highest so far."""
        if self.keep_best and score > self.best_score:
            write_checkpoint({**checkpoint, "score": float(score)}, self.folder / BEST_NAME)
            self.best_score = score

    def remove_old(self, iteration: int) -> None:
        """Delete all but the newest `keep_last` checkpoints up to this iteration; without `keep_last`, none.

        Checkpoints of later iterations belong to another training and are ignored.
        """
        if not self.keep_last:
            return
        matches = ((CHECKPOINT_NAME.fullmatch(entry.name), entry) for entry in self.folder.iterdir())
        checkpoints = sorted((int(match.group(1)), entry) for match, entry in matches if match)
        for path in [path for number, path in checkpoints if number <= iteration][: -self.keep_last]:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                logger.warning(f"cannot delete an old checkpoint: {error}")

    def _score_on_disk(self) -> float:
        """Return the score of `best.pt`; minus infinity without one."""
        path = self.folder / BEST_NAME
        if not path.exists():
            return float("-inf")
        try:
            return float(load_checkpoint(path, map_location="cpu").get("score", float("-inf")))
        except (CheckpointError, TypeError, ValueError) as error:
            logger.warning(f"ignoring the best checkpoint so far: {error}")
            return float("-inf")


def write_run_config(folder: Path, env: VecEnv, config: TrainConfig, policy: Policy) -> None:
    """Write `config.json`, from which `load_policy`, savers and commands rebuild the run."""
    content: dict[str, Any] = {
        "runner": {key: value for key, value in config.runner.items() if key not in ("policy", "algorithm")},
        "policy": config.policy,
        "algorithm": config.algorithm,
        # Sizes and segments that the policy takes from the environment.
        "env": {
            "num_obs": policy.num_actor_obs,
            "num_privileged_obs": policy.num_critic_obs,
            "num_actions": policy.num_actions,
            "obs_segments": policy.obs_segments,
            "critic_obs_segments": policy.critic_obs_segments,
        },
    }
    content["runner"]["policy_class_name"] = config.policy_class_name
    content["runner"]["algorithm_class_name"] = config.algorithm_class_name
    for part, key in (("control", "action_scale"), ("normalization", "obs_scales")):
        value = _look_up(env, f"cfg.{part}.{key}")
        value = _look_up(env, f"unwrapped.cfg.{part}.{key}") if value is None else value
        if value is not None:
            content[part] = {key: _as_plain(value)}
    try:
        # Whoever reads the folder decides again what to trust.
        write_json(folder / "config.json", drop_trust(content))
    except OSError as error:
        raise OSError(f"cannot write the run folder {folder}: {error}. Choose a folder you can write to") from error


def describe_run(env: VecEnv, device: torch.device | str) -> dict[str, Any]:
    """Return what `run.json` says about a training: its task, by which commands build the environment, and versions.

    The task is None for an environment that only a script can build.
    """
    task = (env.task_id, env.task_config) if isinstance(env, NamedTaskEnv) else (None, {})
    return {
        "task": task[0],
        "task_config": task[1],
        "environment": f"{type(env).__module__}.{type(env).__qualname__}",
        "num_envs": int(env.num_envs),
        "seed": torch.initial_seed(),
        "device": str(device),
        "started": time.strftime("%Y-%m-%d %H:%M:%S"),
        "command_line": shlex.join(["python", *sys.argv]),
        "policy_metadata": describe_policy_io(env),
        **describe_system(),
    }


def _look_up(source: object, dotted: str) -> Any:
    """Return a nested attribute or key by its dotted name, None if missing."""
    for name in dotted.split("."):
        source = source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)
        if source is None:
            return None
    return source


def _as_plain(value: object) -> object:
    """Convert a configuration object to a dictionary; returns other values unchanged."""
    if isinstance(value, Mapping | Tensor) or not hasattr(value, "__dict__"):
        return value
    if isinstance(value, DictConvertible):
        return value.to_dict()
    # Configuration classes of legged_gym hold their values on the class, which `vars(instance)` does not see.
    members = inspect.getmembers(value, lambda member: not callable(member))
    return {name: member for name, member in members if not name.startswith("_")}


def make_run_folder(folder: str | os.PathLike) -> Path:
    """Create a run folder; OSError with the remedy if it cannot be written."""
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"cannot create the run folder {path}: {error}. Choose a folder you can write to") from error
    if not os.access(path, os.W_OK):
        raise OSError(f"the run folder {path} is read-only. Choose a folder you can write to")
    return path
