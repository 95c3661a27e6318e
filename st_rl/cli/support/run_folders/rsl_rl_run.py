"""A run folder from a checkpoint of rsl_rl and the configuration it was trained with."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor

from st_rl.cli.support.command_line import CommandError, UsageError
from st_rl.cli.support.run_folders.run_folder import RUN_FILE
from st_rl.env import VecEnv
from st_rl.env.policy_metadata import FORMAT
from st_rl.modules import build_actor_critic
from st_rl.modules.actor_critic import ActorCritic
from st_rl.modules.networks.cnn import CnnModel
from st_rl.modules.policy.build import EnvSpec
from st_rl.modules.policy.rsl_rl_checkpoint import convert_checkpoint, load_into
from st_rl.runners.checkpoints import checkpoint_path, write_run_config
from st_rl.runners.setup.rsl_rl_settings import ALGORITHM_DEFAULTS
from st_rl.runners.setup.train_config import TrainConfig, read_train_config
from st_rl.utils.config import drop_trust, reject_unsafe_settings
from st_rl.utils.files import (
    CheckpointError,
    load_checkpoint,
    read_json_object,
    read_yaml_object,
    save_checkpoint,
    write_json,
)

if TYPE_CHECKING:
    from st_rl.cli.support.task_source import TaskSource

AGENT_FILE = Path("params") / "agent.yaml"
"""Where Isaac Lab and mjlab keep the configuration of a run, relative to its folder."""
_LAYER = re.compile(r"(actor|critic)\.(\d+)\.weight")
Images = Mapping[str, tuple[int, int, int]]


class ImportedRun(NamedTuple):
    """The run that a checkpoint was converted to."""

    policy: ActorCritic
    iteration: int
    has_optimizer: bool


def import_checkpoint(
    checkpoint: Path,
    folder: Path,
    settings: Mapping[str, Any] | None,
    images: Images,
    activation: str,
    source: TaskSource[Any] | None,
    command_line: str,
) -> ImportedRun:
    """Write a run folder with the policy, the normalizers and the optimizer of a checkpoint of rsl_rl.

    `settings` is the configuration of rsl_rl; without it the sizes are read from the weights. `source` is the task.
    """
    if (folder / RUN_FILE).exists() or any(folder.glob("model_*.pt")):
        raise CommandError(f"{folder} already holds a run: name another folder")
    loaded = load_checkpoint(checkpoint, map_location="cpu")
    config = _read_config(loaded, settings, activation)
    splits_std = bool(config.policy.get("state_dependent_std"))
    try:
        converted = convert_checkpoint(loaded, splits_std=splits_std)
        weights: dict[str, Tensor] = dict(converted["model_state_dict"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{checkpoint} is not a checkpoint of rsl_rl 2 to 5 ({error!r})") from error
    spec = _read_spec(converted, weights, config, images)
    policy = build_actor_critic(spec, config.policy_class_name, config.policy)
    converted = convert_checkpoint(loaded, policy, splits_std)
    load_into(policy, converted["model_state_dict"], checkpoint)
    normalization = bool(converted.get("obs_norm_state_dict"))
    has_critic = converted.get("critic_obs_norm_state_dict") or converted.get("privileged_obs_norm_state_dict")
    config.runner["empirical_normalization"] = normalization
    config.algorithm["critic_obs_normalization"] = bool(has_critic)
    iteration = int(converted["iter"])
    folder.mkdir(parents=True, exist_ok=True)
    write_run_config(folder, cast(VecEnv, None), config, policy)
    save_checkpoint(converted, checkpoint_path(folder, iteration))
    planned = max(int(config.runner.get("max_iterations") or 0), iteration)
    metadata = {"format": FORMAT, "obs_segments": dict(policy.obs_segments or {})}
    write_json(folder / RUN_FILE, {**_describe(source, planned, checkpoint, command_line), "policy_metadata": metadata})
    return ImportedRun(policy, iteration, "optimizer_state_dict" in converted)


def _describe(source: TaskSource[Any] | None, iterations: int, checkpoint: Path, command_line: str) -> dict[str, Any]:
    """Return the content of `run.json`."""
    import dataclasses

    config = None if source is None else source.default_config
    return {
        "iterations": iterations,
        "task": None if source is None else source.name,
        "task_config": {} if config is None else dataclasses.asdict(config),
        "environment": "an environment of rsl_rl",
        "num_envs": int(getattr(config, "num_envs", 1)),
        "seed": 1,
        "device": "cpu",
        "started": time.strftime("%Y-%m-%d %H:%M:%S"),
        "imported_from": checkpoint.name,
        "command_line": command_line,
    }


def _read_config(loaded: Mapping[str, Any], settings: Mapping[str, Any] | None, activation: str) -> TrainConfig:
    """Return the training configuration in the form of this library; it names no class by path."""
    if settings is None:
        settings = _settings_from_weights(loaded, activation)
    config = read_train_config({"num_steps_per_env": 24, **settings})
    parts = drop_trust({"policy": config.policy, "algorithm": config.algorithm})
    reject_unsafe_settings(parts, "the configuration")
    return config._replace(policy=parts["policy"], algorithm=parts["algorithm"])


def _settings_from_weights(loaded: Mapping[str, Any], activation: str) -> dict[str, Any]:
    """Return a configuration with the sizes of the weights and rsl_rl's defaults."""
    weights = convert_checkpoint(loaded).get("model_state_dict") or {}
    if any(name.startswith("encoders.") for name in weights):
        raise UsageError("the checkpoint has a CNN, which its weights do not describe: add --config FILE")
    if not any(name in weights for name in ("std", "log_std")):
        raise UsageError("the checkpoint has no standard deviation of its own: add --config FILE of its training")
    policy: dict[str, Any] = {"activation": activation, "noise_std_type": "scalar" if "std" in weights else "log"}
    for head in ("actor", "critic"):
        layers = sorted((int(f[2]), name) for name in weights if (f := _LAYER.fullmatch(name)) and f[1] == head)
        policy[f"{head}_hidden_dims"] = [int(weights[name].shape[0]) for _, name in layers[:-1]]
    for part, prefix in (("a", ""), ("c", "critic_")):
        names = [name for name in weights if name.startswith(f"memory_{part}.rnn.weight_hh_l")]
        if names:
            rows, width = weights[names[0]].shape
            kind = {3: "gru", 4: "lstm"}[rows // width]
            policy |= {f"{prefix}rnn_type": kind, f"{prefix}rnn_hidden_size": int(width)}
            policy[f"{prefix}rnn_num_layers"] = len(names)
    policy["class_name"] = "ActorCriticRecurrent" if "rnn_type" in policy else "ActorCritic"
    return {"policy": policy, "algorithm": dict(ALGORITHM_DEFAULTS)}


def _read_spec(
    converted: Mapping[str, Any], weights: Mapping[str, Tensor], config: TrainConfig, images: Images
) -> EnvSpec:
    """Return the sizes of observations and actions, and the segments of policies with images."""
    statistics = (
        converted.get("obs_norm_state_dict"),
        converted.get("critic_obs_norm_state_dict") or converted.get("privileged_obs_norm_state_dict"),
    )
    layers = [int(found[2]) for name in weights if (found := _LAYER.fullmatch(name)) and found[1] == "actor"]
    num_actions = int(weights[f"actor.{max(layers)}.weight"].shape[0])
    sizes: list[int] = []
    segments: list[dict[str, Any] | None] = []
    groups = config.obs_groups
    for part, own, names in zip(
        ("actor", "critic"), statistics, (groups.actor, groups.critic) if groups else (("policy",), ("critic",))
    ):
        if f"{part}.0.weight" not in weights:  # a student has no critic
            sizes.append(sizes[0])
            segments.append(segments[0])
            continue
        seen = [name for name in names if name in images]
        first = weights.get(f"memory_{part[0]}.rnn.weight_ih_l0", weights[f"{part}.0.weight"])
        flat = (
            own["_mean"].numel() if own else int(first.shape[1]) - sum(_latent(config, images[name]) for name in seen)
        )
        sizes.append(flat + sum(torch.Size(images[name]).numel() for name in seen))
        flat_name = next((name for name in names if name not in images), "policy")
        segments.append({flat_name: flat, **{name: images[name] for name in seen}} if images else None)
    return EnvSpec(sizes[0], sizes[1], num_actions, *segments)


def _latent(config: TrainConfig, shape: tuple[int, int, int]) -> int:
    """Return the width of an image's latent."""
    kwargs = config.policy.get("encoder_kwargs") or {}
    return CnnModel(shape, **(kwargs[0] if isinstance(kwargs, Sequence) else kwargs)).output_size


def read_settings(path: Path) -> dict[str, Any]:
    """Read a configuration of rsl_rl from YAML or JSON; UsageError if there is no such file, FileError for damage."""
    remedy = "name the agent.yaml of the training"
    if not path.is_file():
        raise UsageError(f"there is no configuration {path}; {remedy}")
    return read_json_object(path, remedy) if path.suffix == ".json" else read_yaml_object(path, remedy)
