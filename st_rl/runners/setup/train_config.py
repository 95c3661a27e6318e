"""Reads the training configuration of a runner: flat or nested, with nulls and keys of other classes."""

import copy
from collections.abc import Mapping
from numbers import Integral
from typing import Any, NamedTuple

from st_rl.engine import ENGINES
from st_rl.loggers import LOGGERS
from st_rl.runners.setup.rsl_rl_settings import translate_config, translate_policy
from st_rl.utils.config import report_unused_keys, unknown_name_message
from st_rl.utils.tensors.obs_groups import ObsGroups, read_obs_groups

# Keys of the runner itself, and keys that only the client reads.
RUNNER_KEYS = frozenset(
    "num_steps_per_env empirical_normalization policy algorithm policy_class_name algorithm_class_name "
    "storage inference_mode_rollout pretrain_iterations pretrain_dataset ckpt_manipulator strict logger "
    "neptune_project wandb_project log_interval save_interval keep_last keep_best engine update_threads "
    "rank_timeout_s video_interval".split()
)
CLIENT_KEYS = frozenset(
    "seed device max_iterations experiment_name run_name resume load_run load_checkpoint runner_class_name "
    "class_name clip_actions obs_groups checkpoint resume_path init_member_classes "
    "check_for_nan torch_compile_mode multi_gpu wandb_tags wandb_entity upload_model".split()
)


class TrainConfig(NamedTuple):
    """The three parts of a training configuration, deep copies of the caller's, two class names and joined groups."""

    runner: dict[str, Any]
    algorithm: dict[str, Any]
    policy: dict[str, Any]
    algorithm_class_name: str
    policy_class_name: str
    obs_groups: ObsGroups | None = None


def read_train_config(train_cfg: Mapping[str, Any], extra_keys: frozenset[str] = frozenset()) -> TrainConfig:
    """Split a training configuration into its parts; TypeError or ValueError if it is invalid."""
    if not isinstance(train_cfg, Mapping):
        raise TypeError(
            f"the second argument of a runner is the training configuration, a dictionary; got "
            f"{type(train_cfg).__name__}. Call it as Runner(env, train_cfg, log_dir=..., device=...), with "
            "train_cfg.to_dict() if it is a configuration object"
        )
    config = translate_config(copy.deepcopy(dict(train_cfg)))
    for part in ("policy", "algorithm", *(["runner"] if "runner" in config else [])):
        if not isinstance(config.get(part), Mapping):
            keys = ", ".join(sorted(map(str, config)))
            raise ValueError(f"the training configuration has no '{part}' dictionary; its keys are: {keys}")
    runner = dict(config["runner"]) if "runner" in config else config
    policy, algorithm = translate_policy(config["policy"]), dict(config["algorithm"])
    strict = bool(runner.get("strict") or config.get("strict"))
    if strict:
        policy.setdefault("strict", True)
        algorithm.setdefault("strict", True)
    _merge_normalization_switches(policy, algorithm, runner)
    _report_keys(config, runner, extra_keys, strict)
    _check_values(runner)
    return TrainConfig(
        runner,
        algorithm,
        policy,
        algorithm.get("class_name") or runner.get("algorithm_class_name") or "PPO",
        policy.get("class_name") or runner.get("policy_class_name") or "ActorCritic",
        read_obs_groups(runner.get("obs_groups") or config.get("obs_groups")),
    )


def _merge_normalization_switches(policy: dict[str, Any], algorithm: dict[str, Any], runner: dict[str, Any]) -> None:
    """Replace the two normalization switches of rsl_rl's policy by those of runner and algorithm."""
    actor, critic = (policy.pop(f"{network}_obs_normalization", None) for network in ("actor", "critic"))
    if actor is None and critic is None:
        return
    runner["empirical_normalization"] = bool(critic if actor is None else actor)
    if critic is not None:
        algorithm["critic_obs_normalization"] = bool(critic)


def _report_keys(config: Mapping[str, Any], runner: Mapping[str, Any], extra: frozenset[str], strict: bool) -> None:
    """Report the keys that the runner does not read."""
    known = RUNNER_KEYS | CLIENT_KEYS | extra
    report_unused_keys({k: v for k, v in runner.items() if k not in known}, "the runner", known, strict)
    if runner is not config:
        # In the nested layout, settings of the runner belong into its part.
        outside = {
            k: v for k, v in config.items() if k not in CLIENT_KEYS | {"runner", "policy", "algorithm", "strict"}
        }
        report_unused_keys(outside, "the training configuration outside 'runner'", CLIENT_KEYS, strict)


def _check_values(runner: dict[str, Any]) -> None:
    """ValueError for values with which training would fail later; integers may be given as 500.0."""
    if not runner.get("num_steps_per_env"):
        raise ValueError("the training configuration needs 'num_steps_per_env', the length of a rollout, e.g. 24")
    for key in ("num_steps_per_env", "log_interval", "save_interval", "keep_last", "update_threads", "video_interval"):
        value = runner.get(key)
        if isinstance(value, float) and value.is_integer():
            value = runner[key] = int(value)
        if value is not None and (isinstance(value, bool) or not isinstance(value, Integral) or value < 1):
            raise ValueError(f"'{key}' is {value!r}; give a whole number of at least 1")
    logger_name, engine = str(runner.get("logger") or "tensorboard"), runner.get("engine") or ENGINES[0]
    if logger_name.lower() not in LOGGERS:
        raise ValueError(unknown_name_message("logger", logger_name, LOGGERS))
    if engine not in ENGINES:
        raise ValueError(unknown_name_message("engine", engine, ENGINES))
