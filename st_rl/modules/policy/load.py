"""Trained policies as functions of raw observations, and how to load one from a run folder."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from st_rl.modules.actor_critic import ActorCritic
from st_rl.modules.normalizer import NORMALIZE_UNTIL, EmpiricalNormalization
from st_rl.modules.policy import ActingPolicy
from st_rl.modules.policy.build import EnvSpec, SizedEnv, build_actor_critic, read_env_spec
from st_rl.utils.config import drop_none, reject_unsafe_settings
from st_rl.utils.files import name_file, read_json_object
from st_rl.utils.files.checkpoint import OTHER_CHECKPOINT, CheckpointError, load_checkpoint, newest_checkpoint
from st_rl.utils.files.readers import LimitError
from st_rl.utils.tensors.obs_groups import ACTOR_GROUPS, ObsGroups, join_groups, read_obs_groups

# Keys of a policy's configuration that an environment decides.
_ENV_KEYS = frozenset(
    "num_actor_obs num_critic_obs num_actions obs_segments critic_obs_segments privileged_obs_segments".split()
)
# Widest observation of a policy with fewer weights.
_MAX_WIDTH = 2**16
# Weights that the sizes in a configuration may ask for, whatever the checkpoint holds.
_MAX_UNEXPLAINED_WEIGHTS = 2**28


class InferencePolicy:
    """Normalizes observations and returns mean actions.

    Args:
        actor_critic: the policy.
        obs_normalizer: the normalizer of its observations.
        obs_groups: groups that are joined to the actor observation; by default `policy`, else `actor`, is read.
    """

    def __init__(self, actor_critic: ActingPolicy, obs_normalizer: nn.Module, obs_groups: ObsGroups | None = None):
        self.actor_critic = actor_critic
        self.obs_normalizer = obs_normalizer
        self.obs_groups = obs_groups

    def __call__(self, obs: Tensor | Mapping[str, Tensor]) -> Tensor:
        """Return actions `(N, A)` for raw observations `(N, O)`, or for observation groups by name."""
        if isinstance(obs, Mapping):
            default = [name for name in ACTOR_GROUPS if name in obs.keys()][:1] or ACTOR_GROUPS[:1]  # noqa: SIM118
            obs = join_groups(obs, default if self.obs_groups is None else self.obs_groups.actor)
        return self.actor_critic.act_inference(self.obs_normalizer(obs))

    def reset(self, dones: Tensor | None = None) -> None:
        """Clear the hidden states of finished environments `(N,)`, or of all."""
        self.actor_critic.reset(dones)


class LoadedPolicy(InferencePolicy):
    """The policy of a checkpoint: mean actions for raw observations, and what the run folder says about it."""

    actor_critic: ActorCritic

    def __init__(
        self,
        actor_critic: ActorCritic,
        obs_normalizer: nn.Module,
        config: Mapping[str, Any],
        checkpoint: Path,
        iteration: int,
        observations: Tensor | None = None,
    ):
        groups = (config.get("runner") or {}).get("obs_groups")
        super().__init__(actor_critic, obs_normalizer, read_obs_groups(groups) if groups else None)
        self.config = config
        """Content of the run's `config.json`."""
        self.checkpoint = checkpoint
        """File of the weights."""
        self.iteration = iteration
        """Number of completed training iterations."""
        self.observations = observations
        """The normalized observations `(N, O)` from which a resumed training continues; None if there are none."""


def load_policy(
    run: str | Path,
    checkpoint: str | Path | int | None = None,
    device: torch.device | str = "cpu",
    *,
    env: SizedEnv | EnvSpec | None = None,
    policy_class_name: str | None = None,
    trust_pickle: bool = False,
) -> LoadedPolicy:
    """Load policy and observation normalizer of a run, in evaluation mode and without gradients.

    Nothing that `config.json` names is imported: its classes must be registered in `st_rl.modules`.

    Args:
        run: the run folder.
        checkpoint: an iteration, `"best"`, or a file (relative to the run folder or not); the newest when None.
        device: where the policy runs.
        env: sizes and segments (those of a `VecEnv`) that replace the ones of the run.
        policy_class_name: replaces the class name of the run; may be a path `package.module:Class`.
        trust_pickle: load a checkpoint with pickled objects, which may run any code.
    """
    folder = Path(run).expanduser()
    config = read_run_config(folder, allow_policy_path=policy_class_name is not None)
    file = find_checkpoint(folder, checkpoint)
    loaded = load_checkpoint(file, map_location="cpu", trust_pickle=trust_pickle)
    weights = loaded.get("model_state_dict")
    if not isinstance(weights, Mapping) or not all(isinstance(value, Tensor) for value in weights.values()):
        raise CheckpointError(f"{file} has no 'model_state_dict' of tensors; name a model_*.pt file of a run")
    with name_file(folder / "config.json", "restore it from a copy, or name another run"):
        num_weights = sum(weight.numel() for weight in weights.values())
        policy = _build_policy(config, num_weights, env, policy_class_name)
    try:
        policy.load_state_dict(weights)
    except (AttributeError, RuntimeError, TypeError) as error:
        raise ValueError(
            f"{file} does not fit {type(policy).__name__} with {policy.num_actor_obs} observations, "
            f"{policy.num_critic_obs} of the critic and {policy.num_actions} actions: load it with the policy class "
            f"and the environment of its run, and with the {folder / 'config.json'} of its run. {error}"
        ) from error
    with name_file(file, OTHER_CHECKPOINT, CheckpointError):
        normalizer = load_normalizer(policy.num_actor_obs, loaded.get("obs_norm_state_dict")).to(device)
        iteration = int(loaded.get("iter", 0))
        stored = (loaded.get("runner_state_dict") or {}).get("observations")
        observations = None if stored is None else torch.as_tensor(stored[0])
    policy.to(device).eval().requires_grad_(False)
    return LoadedPolicy(policy, normalizer, config, file, iteration, observations)


def _build_policy(
    config: Mapping[str, Any], num_weights: int, env: SizedEnv | EnvSpec | None, policy_class_name: str | None
) -> ActorCritic:
    """Build the policy of a configuration, for a checkpoint with a number of weights."""
    policy_cfg = drop_none(config.get("policy") or {})
    own_cfg = {key: value for key, value in policy_cfg.items() if key not in _ENV_KEYS}
    # Before networks are built that the checkpoint cannot fill.
    _check_layers(own_cfg, num_weights)
    if env is not None:
        policy_cfg, spec = own_cfg, read_env_spec(env)
    elif "env" not in config:
        raise ValueError("it lacks 'env', the sizes of the environment; call load_policy(run, env=...)")
    else:
        spec = EnvSpec(**config["env"])
        sizes = [spec.num_obs, spec.num_privileged_obs or 0, spec.num_actions]
        if max(sizes) > max(num_weights, _MAX_WIDTH):
            raise ValueError(f"observations and actions of {sizes} do not fit a policy of {num_weights:,} weights")
    return build_actor_critic(spec, policy_class_name or run_policy_class_name(config), policy_cfg)


def load_normalizer(width: int | Sequence[int], statistics: Mapping[str, Any] | None) -> nn.Module:
    """The frozen observation normalizer of a checkpoint; the identity if it has no statistics."""
    normalizer = EmpiricalNormalization(width, until=NORMALIZE_UNTIL) if statistics else nn.Identity()
    if statistics:
        normalizer.load_state_dict(statistics)
    return normalizer.eval()


def read_run_config(folder: Path, allow_policy_path: bool = False) -> dict[str, Any]:
    """Read the `config.json` of a run folder; ValueError if it names a class by path or sets `trust_pickle`.

    With `allow_policy_path` the policy's own class name is not checked, because the caller replaces it.
    """
    path = folder / "config.json"
    try:
        config = read_json_object(path, "name a run folder that a runner has written")
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"the folder {folder} has no config.json: name a run folder that a runner has written"
        ) from error
    checked = config
    if allow_policy_path:
        policy = {key: value for key, value in (config.get("policy") or {}).items() if key != "class_name"}
        runner = {key: value for key, value in (config.get("runner") or {}).items() if key != "policy_class_name"}
        checked = {**config, "policy": policy, "runner": runner}
    reject_unsafe_settings(checked, path)
    return config


def run_policy_class_name(config: Mapping[str, Any]) -> str:
    """Return the policy class that a `config.json` names."""
    runner, policy = config.get("runner") or {}, config.get("policy") or {}
    return runner.get("policy_class_name") or policy.get("class_name") or "ActorCritic"


def find_checkpoint(folder: Path, checkpoint: str | Path | int | None = None) -> Path:
    """Return the file of an iteration, of `"best"`, or of a name in the run folder; the newest checkpoint when None."""
    if checkpoint is None:
        newest = newest_checkpoint(folder)
        if newest is None:
            raise FileNotFoundError(
                f"the folder {folder} has no checkpoint (model_*.pt): let its training reach the first save, or name "
                "another run folder"
            )
        return newest
    if isinstance(checkpoint, int):
        return folder / f"model_{checkpoint}.pt"
    if checkpoint == "best":
        return folder / "best.pt"
    file = Path(checkpoint).expanduser()
    return file if file.is_file() else folder / file


def _check_layers(config: object, num_weights: int) -> None:
    """LimitError for sizes in a configuration that need far more weights than there are.

    Successive numbers of a list, such as hidden dimensions, count as layers, any other number as a square layer.
    """
    needed, limit = _count_weights(config), max(2 * num_weights, _MAX_UNEXPLAINED_WEIGHTS)
    if needed > limit:
        raise LimitError(f"its sizes need {needed:,} weights, more than {limit:,}")


def _count_weights(config: object) -> int:
    if isinstance(config, Mapping):
        return sum(map(_count_weights, config.values()))
    if isinstance(config, list | tuple):
        sizes = [abs(item) for item in config if isinstance(item, int)]
        if len(sizes) == len(config) > 1:
            return sum(inputs * outputs for inputs, outputs in pairwise(sizes))
        return sum(map(_count_weights, config))
    return config * config if isinstance(config, int) else 0
