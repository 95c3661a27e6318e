"""What a run folder keeps: snapshots of the training, the best of them, and the configuration."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from st_rl.utils.files import CHECKPOINT_NAME, plain_value, save_checkpoint, write_json
from st_rl.utils.log import logger

BEST_NAME = "best.pt"


def environment_state(env: Any) -> Any:
    """The state of an environment that offers one a checkpoint can hold, else None."""
    if not hasattr(env, "state_dict"):
        return None
    try:
        return plain_value(env.state_dict(), "env.state_dict()")
    except TypeError as error:
        logger.warning(f"the environment's state is not saved, so a resumed training starts new episodes: {error}")
        return None


class CheckpointKeeper:
    """Writes snapshots into a run folder, removes old ones and remembers the best."""

    def __init__(self, folder: Path, keep_last: int | None, keep_best: bool):
        self.folder = folder
        self.keep_last = keep_last
        self.keep_best = keep_best
        self.best_score = float("-inf")

    def path(self, iteration: int) -> Path:
        """The snapshot's name after a number of completed iterations."""
        return self.folder / f"model_{iteration}.pt"

    def offer_best(self, payload: dict[str, Any], score: float) -> None:
        """Keep `payload` as the best snapshot if its score, higher is better, beats all before."""
        if self.keep_best and score > self.best_score:
            self.best_score = score
            save_checkpoint({**payload, "score": float(score)}, self.folder / BEST_NAME)

    def remove_old(self) -> None:
        """Delete all but the newest `keep_last` snapshots; keeps everything when that is not set."""
        if not self.keep_last:
            return
        matches = ((CHECKPOINT_NAME.fullmatch(entry.name), entry) for entry in self.folder.iterdir())
        snapshots = sorted((int(match.group(1)), entry) for match, entry in matches if match)
        for _, snapshot in snapshots[: -self.keep_last]:
            snapshot.unlink(missing_ok=True)


def _look_up(source: Any, dotted: str) -> Any:
    """A nested attribute or key by its dotted name; None when it is not there."""
    for name in dotted.split("."):
        source = source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)
        if source is None:
            return None
    return source


def write_run_config(folder: Path, env: Any, runner: Mapping, policy: Mapping, algorithm: Mapping, names: Any) -> None:
    """Write `config.json`, from which mutex policies, savers and commands rebuild the run."""
    config: dict[str, Any] = {
        "runner": {key: value for key, value in runner.items() if key not in ("policy", "algorithm")},
        "policy": dict(policy),
        "algorithm": dict(algorithm),
    }
    config["runner"]["policy_class_name"] = names.policy_class_name
    config["runner"]["algorithm_class_name"] = names.algorithm_class_name
    for part, key in (("control", "action_scale"), ("normalization", "obs_scales")):
        for source in (env, getattr(env, "unwrapped", None)):
            value = _look_up(source, f"cfg.{part}.{key}")
            if value is not None:
                config.setdefault(part, {})[key] = _as_plain(value)
                break
    try:
        write_json(folder / "config.json", config)
    except OSError as error:
        raise OSError(f"cannot write the run folder {folder}: {error}. Choose a folder you can write to") from error


def _as_plain(value: Any) -> Any:
    """Configuration objects as dictionaries, tensors as lists; everything else as it is."""
    if isinstance(value, Tensor):
        return value.tolist()
    if hasattr(value, "to_dict"):
        return value.to_dict()
    return dict(vars(value)) if hasattr(value, "__dict__") else value


def make_run_folder(folder: str | os.PathLike) -> Path:
    """Create a run folder, or say why it cannot be written."""
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"cannot create the run folder {path}: {error}. Choose a folder you can write to") from error
    if not os.access(path, os.W_OK):
        raise OSError(f"the run folder {path} is read-only. Choose a folder you can write to")
    return path
