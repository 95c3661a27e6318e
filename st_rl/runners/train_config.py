"""Reading a training configuration: flat or nested, with nulls and foreign keys, never changed."""

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

from st_rl.utils.config import remember_keys, report_unused_keys

# Keys of the runner's own part; those in the second group steer the client and are only carried along.
RUNNER_KEYS = frozenset(
    "num_steps_per_env empirical_normalization policy algorithm policy_class_name algorithm_class_name "
    "storage inference_mode_rollout pretrain_iterations pretrain_dataset ckpt_manipulator strict logger "
    "neptune_project wandb_project log_interval save_interval keep_last keep_best engine".split()
)
CLIENT_KEYS = frozenset(
    "seed device max_iterations experiment_name run_name resume load_run load_checkpoint runner_class_name "
    "class_name clip_actions obs_groups".split()
)
remember_keys(RUNNER_KEYS | CLIENT_KEYS)


class TrainConfig(NamedTuple):
    """The three parts of a training configuration, copies of what the caller gave."""

    runner: dict[str, Any]
    algorithm: dict[str, Any]
    policy: dict[str, Any]
    algorithm_class_name: str
    policy_class_name: str


def read_train_config(train_cfg: Any, extra_keys: frozenset[str] = frozenset()) -> TrainConfig:
    """Take a training configuration apart; TypeError or ValueError say what is wrong with it."""
    if not isinstance(train_cfg, Mapping):
        raise TypeError(
            f"the second argument of a runner is the training configuration, a dictionary; got "
            f"{type(train_cfg).__name__}. Call it as Runner(env, train_cfg, log_dir=..., device=...)"
        )
    config = copy.deepcopy(dict(train_cfg))
    runner = dict(config["runner"]) if "runner" in config else config
    for part in ("policy", "algorithm"):
        if not isinstance(config.get(part), Mapping):
            raise ValueError(f"the training configuration has no '{part}' dictionary; its keys are {sorted(config)}")
    policy, algorithm = dict(config["policy"]), dict(config["algorithm"])
    if not runner.get("num_steps_per_env"):
        raise ValueError("the training configuration needs 'num_steps_per_env', the length of a rollout, e.g. 24")
    strict = bool(runner.get("strict"))
    if strict:
        policy.setdefault("strict", True)
        algorithm.setdefault("strict", True)
    known = RUNNER_KEYS | CLIENT_KEYS | extra_keys
    report_unused_keys({k: v for k, v in runner.items() if k not in known}, "the runner", known, strict)
    return TrainConfig(
        runner,
        algorithm,
        policy,
        algorithm.get("class_name") or runner.get("algorithm_class_name") or "PPO",
        policy.get("class_name") or runner.get("policy_class_name") or "ActorCritic",
    )
