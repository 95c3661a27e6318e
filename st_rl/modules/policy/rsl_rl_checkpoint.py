"""Converts checkpoints of rsl_rl 2 to 5 to the format of this library."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from st_rl.modules.actor_critic import ActorCritic
from st_rl.modules.normalizer import EmpiricalNormalization
from st_rl.utils.files import CheckpointError
from st_rl.utils.tensors.segments import segment_width

Weights = dict[str, Tensor]
MODELS = {"actor_state_dict": "critic_state_dict", "student_state_dict": None}
"""Keys of the acting and of the value network in checkpoints of rsl_rl 4 and 5."""
_HEAD = re.compile(r"(actor|critic)\.(\d+)\.(weight|bias)")
# Beginnings of names of rsl_rl 3 to 5, after `actor.` or `critic.`, and what replaces them.
_RENAMED = {"mlp.": "", "rnn.rnn.": None, "distribution.std_param": "std", "distribution.log_std_param": "log_std"}


def is_rsl_rl_checkpoint(loaded: Mapping[str, Any]) -> bool:
    """Whether a checkpoint was written by rsl_rl 3, 4 or 5; one of rsl_rl 2 has the keys of this library."""
    if any(key in loaded for key in MODELS):
        return True
    names = loaded.get("model_state_dict")
    # `load_state_dict` rejects anything but a mapping.
    known = ("actor_obs_normalizer.", "actor_cnns.", "student.")
    return isinstance(names, Mapping) and any(name.startswith(known) for name in names)


def convert_checkpoint(loaded: Mapping[str, Any], policy: nn.Module | None = None, splits_std: bool = False) -> Any:
    """Return a checkpoint of rsl_rl with the keys of this library: networks, normalizers, iteration, optimizer.

    Args:
        loaded: the checkpoint; one of this library or of rsl_rl 2 is returned unchanged.
        policy: the policy that it is for; without it the optimizer's state is left out.
        splits_std: whether the last layer of the actor has rows for a state-dependent standard deviation.
    """
    splits_std = splits_std and "std_head.weight" not in (loaded.get("model_state_dict") or {})
    if not is_rsl_rl_checkpoint(loaded) and not splits_std:
        return loaded
    weights, statistics = _split_statistics(_named_weights(loaded))
    converted: dict[str, Any] = {
        "model_state_dict": convert_weights(weights, splits_std),
        "iter": int(loaded.get("iter") or 0),
        "infos": loaded.get("infos"),
    }
    for part, key in (("actor", "obs_norm_state_dict"), ("critic", "critic_obs_norm_state_dict")):
        if statistics[part]:
            converted[key] = statistics[part]
    for key in ("obs_norm_state_dict", "privileged_obs_norm_state_dict"):  # of rsl_rl 2
        if loaded.get(key):
            converted.setdefault(key, loaded[key])
    if policy is None:
        return converted
    known = policy.state_dict()
    # Encoders that actor and critic share are in both networks of rsl_rl.
    converted["model_state_dict"] = {
        name: value
        for name, value in converted["model_state_dict"].items()
        if name in known or not name.startswith("critic_encoders.")
    }
    if not any(name.startswith("critic.") for name in converted["model_state_dict"]):
        # A student has no critic.
        converted["model_state_dict"] = {**known, **converted["model_state_dict"]}
    if isinstance(policy, ActorCritic):
        _fit_statistics(converted, policy)
    optimizer = loaded.get("optimizer_state_dict")
    if optimizer:
        state = _convert_optimizer(optimizer, weights, policy, splits_std)
        if state is not None:
            converted["optimizer_state_dict"] = state
    return converted


def _fit_statistics(converted: dict[str, Any], policy: ActorCritic) -> None:
    """Add columns for the images, which pass unchanged, to statistics of the flat observations alone."""
    streams = {"obs_norm_state_dict": policy.obs_segments, "critic_obs_norm_state_dict": policy.critic_obs_segments}
    for key, segments in streams.items():
        statistics = converted.get(key)
        if statistics is None or not segments:
            continue
        widths = [segment_width(shape) for shape in segments.values()]
        is_image = [isinstance(shape, Sequence) and len(shape) == 3 for shape in segments.values()]
        unchanged = torch.tensor(is_image).repeat_interleave(torch.tensor(widths))
        if statistics["_mean"].numel() != int((~unchanged).sum()) or not unchanged.any():
            continue
        whole = EmpiricalNormalization(len(unchanged), unchanged=unchanged).state_dict()
        for name in ("_mean", "_var", "_std"):
            whole[name][:, ~unchanged] = statistics[name].reshape(1, -1)
        whole["count"].copy_(statistics["count"])
        converted[key] = whole


def teacher_weights(loaded: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the teacher in a distillation's checkpoint, as a checkpoint of rsl_rl; None if there is none."""
    if "teacher_state_dict" in loaded:
        return {"actor_state_dict": loaded["teacher_state_dict"], "iter": 0}
    names = loaded.get("model_state_dict") or {}
    own = {f"actor.{name[8:]}": value for name, value in names.items() if name.startswith("teacher.")}
    prefix, memory = "teacher_obs_normalizer.", "memory_t."
    own |= {f"actor_obs_normalizer.{n.removeprefix(prefix)}": v for n, v in names.items() if n.startswith(prefix)}
    own |= {f"memory_a.{n.removeprefix(memory)}": v for n, v in names.items() if n.startswith(memory)}
    return {"model_state_dict": own, "iter": 0} if own else None


def _named_weights(loaded: Mapping[str, Any]) -> Weights:
    """Return all tensors of a checkpoint by `actor.NAME` or `critic.NAME`, or by a name of rsl_rl 2 and 3."""
    for actor, critic in MODELS.items():
        if actor in loaded:
            named = {f"actor.{name}": value for name, value in loaded[actor].items()}
            others = loaded.get(critic) if critic else None
            return named | {f"critic.{name}": value for name, value in (others or {}).items()}
    names = loaded["model_state_dict"]
    # The student of rsl_rl 2 and 3 acts; its teacher is left out.
    renamed = {"student.": "actor.", "student_obs_normalizer.": "actor_obs_normalizer.", "memory_s.": "memory_a."}
    result: Weights = {}
    for name, value in names.items():
        if name.startswith(("teacher", "memory_t.")):
            continue
        prefix = next((old for old in renamed if name.startswith(old)), None)
        result[name if prefix is None else renamed[prefix] + name.removeprefix(prefix)] = value
    return result


def _split_statistics(weights: Mapping[str, Tensor]) -> tuple[Weights, dict[str, Weights]]:
    """Separate the statistics of the observation normalizers of actor and critic from the weights."""
    statistics: dict[str, Weights] = {"actor": {}, "critic": {}}
    others: Weights = {}
    for name, value in weights.items():
        part = name.replace("_obs_normalizer.", ".obs_normalizer.").split(".obs_normalizer.")
        if len(part) == 2:
            statistics[part[0]][part[1]] = value
        else:
            others[name] = value
    return others, statistics


def convert_weights(weights: Mapping[str, Tensor], splits_std: bool = False) -> Weights:
    """Rename weights, or what the optimizer keeps for each of them, to the names of this library."""
    groups: dict[str, list[str]] = {"actor": [], "critic": []}
    converted: Weights = {}
    for name, value in weights.items():
        for new_name in _new_names(name, groups):
            converted[new_name] = value
    return _split_std(converted) if splits_std else converted


def _new_names(name: str, groups: dict[str, list[str]]) -> list[str]:
    """Return the name of one weight here; `groups` collects the image groups of each network in their order."""
    part, _, rest = name.partition(".")
    if part in ("actor_cnns", "critic_cnns"):
        part, rest = part.removesuffix("_cnns"), f"cnns.{rest}"
    if part not in groups:
        return [name]
    if rest.startswith("cnns."):
        _, group, layer = rest.split(".", 2)
        if group not in groups[part]:
            groups[part].append(group)
        encoders = "encoders" if part == "actor" else "critic_encoders"
        return [f"{encoders}.{groups[part].index(group)}.layers.{layer}"]
    for old, new in _RENAMED.items():
        if rest.startswith(old):
            tail = rest.removeprefix(old)
            if new is None:
                return [f"memory_{part[0]}.rnn.{tail}"]
            return [new if tail == "" else f"{part}.{new}{tail}"]
    return [name]


def _split_std(weights: Weights) -> Weights:
    """Move the rows of the last actor layer that compute the standard deviation to `std_head`."""
    last = max(int(found[2]) for found in map(_HEAD.fullmatch, weights) if found and found[1] == "actor")
    for kind in ("weight", "bias"):
        name = f"actor.{last}.{kind}"
        if name in weights:
            weights[name], weights[f"std_head.{kind}"] = weights[name].chunk(2)
    return weights


def _convert_optimizer(
    optimizer: Mapping[str, Any], weights: Mapping[str, Tensor], policy: nn.Module, splits_std: bool
) -> dict[str, Any] | None:
    """Return the optimizer's state in the order of the parameters here; None if it does not belong to these weights."""
    buffers = ("running_mean", "running_var", "num_batches_tracked")
    names = [name for name in weights if not name.endswith(buffers)]
    state: Mapping[Any, Any] = optimizer["state"]
    indices = [index for group in optimizer["param_groups"] for index in group["params"]]
    if len(indices) != len(names):
        return None
    fields: dict[str, dict[str, Any]] = {}
    for name, index in zip(names, indices):
        for field, value in state.get(index, {}).items():
            fields.setdefault(field, {})[name] = value
    moments = {
        field: convert_weights(values, splits_std)
        for field, values in fields.items()
        if all(isinstance(value, Tensor) and value.shape == weights[name].shape for name, value in values.items())
    }
    steps = next(iter(fields.get("step", {}).values()), torch.tensor(0.0))
    own = {name: number for number, name in enumerate(name for name, _ in policy.named_parameters())}
    found = {name for values in moments.values() for name in values}
    if not found <= own.keys():
        return None
    new_state = {
        own[name]: {"step": torch.as_tensor(steps).clone(), **{f: values[name] for f, values in moments.items()}}
        for name in found
    }
    group = {key: value for key, value in optimizer["param_groups"][0].items() if key != "params"}
    return {"state": dict(sorted(new_state.items())), "param_groups": [{**group, "params": list(own.values())}]}


def load_into(policy: nn.Module, weights: Mapping[str, Tensor], source: object) -> None:
    """Load converted weights; CheckpointError that names what is missing, unknown or of another shape."""
    try:
        policy.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointError(
            f"{source} does not fit {type(policy).__name__}: give the configuration that it was trained with. {error}"
        ) from error
