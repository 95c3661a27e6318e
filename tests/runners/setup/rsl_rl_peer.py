"""Compares a policy and an update with arrays that rsl_rl wrote (benchmarks/worker_rsl_rl_parity.py)."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from st_rl.algorithms import TPPO
from st_rl.modules.normalizer import normalize_without_update
from st_rl.modules.policy.rsl_rl_checkpoint import convert_checkpoint
from st_rl.runners import DistillationRunner, OnPolicyRunner

Arrays = Mapping[str, np.ndarray]
# As in the peer's worker: then the mini-batches of both have the same order of samples.
UPDATE_SEED = 11


def pack(arrays: Arrays, path: Path, dtype: type[np.floating] = np.float32) -> None:
    """Write what `compare` reads into one small file: all numbers in one array, with a table of names and shapes."""
    texts = {key: str(value) for key, value in arrays.items() if value.dtype.kind == "U"}
    kept = {k: v for k, v in arrays.items() if k not in texts and "optimizer_state_dict" not in k}
    layout = [[name, list(value.shape)] for name, value in kept.items()]
    values = np.concatenate([value.astype(dtype).ravel() for value in kept.values()])
    np.savez_compressed(path, texts=np.array(json.dumps(texts)), layout=np.array(json.dumps(layout)), values=values)


def unpack(path: Path) -> dict[str, np.ndarray]:
    """Read a file of `pack`, or of the peer's worker."""
    arrays = dict(np.load(path))
    if "layout" not in arrays:
        return arrays
    result = {name: np.array(text) for name, text in json.loads(str(arrays["texts"])).items()}
    start = 0
    for name, shape in json.loads(str(arrays["layout"])):
        size = int(np.prod(shape))
        result[name] = arrays["values"][start : start + size].reshape(shape)
        start += size
    return result


class RecordedEnv:
    """An environment of rsl_rl 5: TensorDict observations, no `reset()`; delivers what the peer's delivered."""

    step_dt = 0.02

    def __init__(self, arrays: Arrays):
        self.tables = {key[4:]: _tensor(arrays[key]) for key in arrays if key.startswith("obs/")}
        self.rewards, self.dones = _tensor(arrays["env/rewards"]), _tensor(arrays["env/dones"])
        self.time_outs = _tensor(arrays["env/time_outs"])
        self.num_envs, self.num_actions = self.rewards.shape[1], arrays["storage/actions"].shape[-1]
        self.max_episode_length, self.device, self.cfg, self.position = 100, "cpu", {}, 0
        self.episode_length_buf = torch.zeros(self.num_envs, dtype=torch.long)
        self.unwrapped = self

    def get_observations(self) -> TensorDict:
        rows = {name: table[self.position] for name, table in self.tables.items()}
        return TensorDict(rows, batch_size=[self.num_envs])

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, Any]]:
        now = self.position % len(self.rewards)
        self.position = now + 1
        return self.get_observations(), self.rewards[now], self.dones[now], {"time_outs": self.time_outs[now]}


def _tensor(values: np.ndarray) -> torch.Tensor:
    """Values in torch's default precision."""
    return torch.tensor(values, dtype=torch.get_default_dtype())


def mirror(env: Any, obs: Any = None, actions: Any = None) -> tuple[Any, Any]:
    """The same function as the peer's: a change of sign of everything."""
    mirrored = None
    if obs is not None:
        groups = {name: torch.cat([value, -value]) for name, value in obs.items()}
        mirrored = TensorDict(groups, batch_size=[2 * obs.batch_size[0]])
    return mirrored, None if actions is None else torch.cat([actions, -actions])


def read_config(arrays: Arrays) -> dict[str, Any]:
    """The dictionary that the peer was configured with."""
    config = json.loads(str(arrays["config"]))
    if config["algorithm"].get("symmetry_cfg"):
        config["algorithm"]["symmetry_cfg"]["data_augmentation_func"] = mirror
    return config


def read_checkpoint(arrays: Arrays, when: str) -> dict[str, Any]:
    """The peer's checkpoint `before` or `after` the update, without its optimizer."""
    checkpoint: dict[str, Any] = {"iter": 7, "infos": None}
    for key, value in arrays.items():
        parts = key.split("/")
        if parts[0] == when and not parts[1].endswith("optimizer_state_dict"):
            is_count = parts[-1].endswith("count")
            tensor = torch.tensor(value, dtype=torch.int64) if is_count else torch.tensor(value)
            checkpoint.setdefault(parts[1], {})["/".join(parts[2:])] = tensor
    return checkpoint


def make_runner(arrays: Arrays, folder: Path) -> OnPolicyRunner:
    """A runner with the peer's configuration, which has loaded the peer's checkpoint."""
    config = read_config(arrays)
    runner_class = DistillationRunner if "student" in config else OnPolicyRunner
    runner = runner_class(RecordedEnv(arrays), config, log_dir=None, device="cpu")  # pyright: ignore[reportArgumentType]
    file = folder / "peer.pt"
    torch.save(read_checkpoint(arrays, "before"), file)
    runner.load(file)
    if runner.alg.rnd is not None:
        saved = [torch.tensor(arrays[key]) for key in arrays if key.startswith("before/rnd_state_dict/")]
        for own, value in zip(runner.alg.rnd.parameters(), saved, strict=True):
            own.data.copy_(value)
    return runner


def compare(arrays: Arrays, folder: Path) -> dict[str, float]:
    """Largest differences of parameters, means, values, log-probabilities, returns, losses and updated weights."""
    runner = make_runner(arrays, folder)
    alg, policy = runner.alg, runner.alg.actor_critic
    is_distillation = "storage/privileged_actions" in arrays
    own = policy.network_parameters()[0] if is_distillation else list(policy.parameters())
    found = {"parameters": abs(sum(p.numel() for p in own) - int(arrays["num_parameters"])), "mean": 0.0}
    env = RecordedEnv(arrays)
    runner.env = env  # pyright: ignore[reportAttributeAccessIssue]
    alg.train_mode()
    if isinstance(alg, TPPO):
        alg.use_teacher_act_mask = torch.zeros(env.num_envs, dtype=torch.bool)
    with torch.inference_mode():
        for step in range(len(env.rewards)):
            obs, critic_obs = _observe(runner)
            alg._begin_transition(obs, critic_obs)
            actions = torch.tensor(arrays["storage/actions"][step])
            fields = alg._policy_step(obs, critic_obs)
            fields = alg._with_executed_actions(actions, fields.get("action_labels", actions), fields)
            found["mean"] = max(found["mean"], _difference(fields["action_mean"], arrays[f"mean/{step}"]))
            if not is_distillation:
                fields.pop("action_labels")
            for name, value in fields.items():
                setattr(alg.transition, name, value)
            groups, rewards, dones, infos = env.step(actions)
            joined = runner._obs_groups.join(dict(groups.items())) if runner._obs_groups else None
            if joined is not None and joined.rnd_state is not None:
                infos = {**infos, "observations": {"rnd_state": joined.rnd_state}}
            alg.process_env_step(rewards, dones, infos)
        alg.compute_returns(_observe(runner)[1])
    found |= _compare_storage(alg, arrays, is_distillation)
    torch.manual_seed(UPDATE_SEED)
    losses, _ = alg.update(0)
    before, after = (
        convert_checkpoint(read_checkpoint(arrays, when), policy, policy.std_head is not None)["model_state_dict"]
        for when in ("before", "after")
    )
    weights = policy.state_dict()
    # A student's critic is no part of the peer.
    names = [name for name in after if name in weights and not (is_distillation and name.startswith("critic."))]
    found["update"] = max(_difference(weights[name], after[name]) for name in names)
    found["moved"] = max(_difference(weights[name], before[name]) for name in names)
    key = "distillation_loss" if is_distillation else "value_loss"
    found["loss"] = _difference(losses[key], arrays["loss/behavior" if is_distillation else "loss/value"])
    found["learning_rate"] = abs(float(alg.learning_rate) - float(arrays["learning_rate"]))
    return found


def _observe(runner: OnPolicyRunner) -> tuple[torch.Tensor, torch.Tensor]:
    """Current observations, normalized with the loaded statistics."""
    joined = runner._obs_groups.join(dict(runner.env.get_observations().items()))  # pyright: ignore
    obs = normalize_without_update(runner.alg.obs_normalizer, joined.actor)
    if joined.critic is None:
        return obs, obs
    return obs, normalize_without_update(runner.alg.critic_obs_normalizer, joined.critic)


def _compare_storage(alg: Any, arrays: Arrays, is_distillation: bool) -> dict[str, float]:
    storage = alg.storage
    if is_distillation:
        return {"labels": _difference(storage.action_labels, arrays["storage/privileged_actions"])}
    return {
        "values": _difference(storage.values, arrays["storage/values"]),
        "log_prob": _difference(storage.actions_log_prob, arrays["storage/actions_log_prob"]),
        "std": _difference(storage.sigma, arrays["storage/distribution_1"]),
        "rewards": _difference(storage.rewards, arrays["storage/rewards"]),
        "returns": _difference(storage.returns, arrays["storage/returns"]),
    }


def _difference(own: torch.Tensor, other: np.ndarray | torch.Tensor) -> float:
    return float((own.detach().double() - torch.as_tensor(other).double().reshape(own.shape)).abs().max())
