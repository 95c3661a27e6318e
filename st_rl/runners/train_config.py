"""Reading a training configuration: flat or nested, with nulls and foreign keys, never changed."""

import copy
from collections.abc import Mapping
from numbers import Integral
from typing import Any, NamedTuple

from st_rl.engine import ENGINES
from st_rl.loggers.writers import LOGGERS
from st_rl.utils.config import report_unused_keys, unknown_name_message
from st_rl.utils.log import logger

# Keys of the runner's own part; those in the second group steer the client and are only carried along.
RUNNER_KEYS = frozenset(
    "num_steps_per_env empirical_normalization policy algorithm policy_class_name algorithm_class_name "
    "storage inference_mode_rollout pretrain_iterations pretrain_dataset ckpt_manipulator strict logger "
    "neptune_project wandb_project log_interval save_interval keep_last keep_best engine update_threads".split()
)
CLIENT_KEYS = frozenset(
    "seed device max_iterations experiment_name run_name resume load_run load_checkpoint runner_class_name "
    "class_name clip_actions obs_groups checkpoint resume_path init_member_classes".split()
)


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
            f"{type(train_cfg).__name__}. Call it as Runner(env, train_cfg, log_dir=..., device=...), with "
            "train_cfg.to_dict() if it is a configuration object"
        )
    config = copy.deepcopy(dict(train_cfg))
    for part in ("policy", "algorithm", *(["runner"] if "runner" in config else [])):
        if not isinstance(config.get(part), Mapping):
            keys = ", ".join(sorted(map(str, config)))
            raise ValueError(
                f"the training configuration has no '{part}' dictionary; its keys are: {keys}{_later_form(config)}"
            )
    runner = dict(config["runner"]) if "runner" in config else config
    policy, algorithm = dict(config["policy"]), dict(config["algorithm"])
    strict = bool(runner.get("strict") or config.get("strict"))
    if strict:
        policy.setdefault("strict", True)
        algorithm.setdefault("strict", True)
    _take_normalisation(policy, runner)
    _report_keys(config, runner, extra_keys, strict)
    _report_groups(runner.get("obs_groups") or config.get("obs_groups"))
    _check_values(runner)
    return TrainConfig(
        runner,
        algorithm,
        policy,
        algorithm.get("class_name") or runner.get("algorithm_class_name") or "PPO",
        policy.get("class_name") or runner.get("policy_class_name") or "ActorCritic",
    )


def _later_form(config: Mapping[str, Any]) -> str:
    """What to write instead of the parts `actor` and `critic` of newer versions of rsl_rl."""
    if not isinstance(config.get("actor"), Mapping):
        return ""
    return (
        ". 'actor' and 'critic' are how rsl_rl 5 writes it; here: 'policy': {'class_name': 'ActorCritic', "
        "'actor_hidden_dims': [...], 'critic_hidden_dims': [...], 'activation': ..., 'init_noise_std': ...}, and "
        "'empirical_normalization': True for obs_normalization"
    )


def _take_normalisation(policy: dict[str, Any], runner: dict[str, Any]) -> None:
    """Move rsl_rl's two switches of normalisation from the policy to the runner's one, which they override."""
    switches = [policy.pop(f"{who}_obs_normalization", None) for who in ("actor", "critic")]
    given = [bool(switch) for switch in switches if switch is not None]
    if not given:
        return
    if any(given) and not all(given):
        logger.warning(
            "actor_obs_normalization and critic_obs_normalization differ; here they are one, and observations of both "
            "are normalised. Write 'empirical_normalization': False beside 'policy' instead of them for none"
        )
    runner["empirical_normalization"] = any(given)


def _report_groups(obs_groups: Any) -> None:
    """Warn of observation groups that rsl_rl would join or choose otherwise than it is done here."""
    if not isinstance(obs_groups, Mapping):
        return
    done_here = {"policy": (["policy"],), "actor": (["policy"],), "critic": (["critic"], ["policy"])}
    for who, groups in obs_groups.items():
        names = [groups] if isinstance(groups, str) else list(groups or [])
        if who in done_here and names not in done_here[who]:
            logger.warning(
                f"obs_groups['{who}'] is {names}, but groups are not joined here: the actor sees the group 'policy', "
                "the critic 'critic' if there is one, else 'policy'; let the environment deliver them so"
            )


def _report_keys(config: Mapping[str, Any], runner: Mapping[str, Any], extra: frozenset[str], strict: bool) -> None:
    """Say which keys the runner does not take."""
    known = RUNNER_KEYS | CLIENT_KEYS | extra
    report_unused_keys({k: v for k, v in runner.items() if k not in known}, "the runner", known, strict)
    if runner is not config:
        # In the nested layout the settings of the runner belong into its own part.
        beside = {k: v for k, v in config.items() if k not in CLIENT_KEYS | {"runner", "policy", "algorithm", "strict"}}
        report_unused_keys(beside, "the training configuration beside 'runner'", CLIENT_KEYS, strict)


def _check_values(runner: dict[str, Any]) -> None:
    """Refuse values with which a training would fail later; whole numbers may come as 500.0."""
    if not runner.get("num_steps_per_env"):
        raise ValueError("the training configuration needs 'num_steps_per_env', the length of a rollout, e.g. 24")
    for key in ("num_steps_per_env", "log_interval", "save_interval", "keep_last", "update_threads"):
        value = runner.get(key)
        if isinstance(value, float) and value.is_integer():
            value = runner[key] = int(value)
        if value is not None and (isinstance(value, bool) or not isinstance(value, Integral) or value < 1):
            raise ValueError(f"'{key}' is {value!r}; give a whole number of at least 1")
    logger_name, engine = str(runner.get("logger") or LOGGERS[0]), runner.get("engine") or ENGINES[0]
    if logger_name.lower() not in LOGGERS:
        raise ValueError(unknown_name_message("logger", logger_name, LOGGERS))
    if engine not in ENGINES:
        raise ValueError(unknown_name_message("engine", engine, ENGINES))
