"""One update compared with Stable-Baselines3's PPO, with equal weights, steps and order of the samples.

    VENV/bin/python benchmarks/sb3_parity.py

VENV has stable-baselines3 and gymnasium[mujoco]. Its PPO collects rollouts and learns from them; this library replays
the same environment steps and actions from the same weights, with the equal settings of returns.py. The largest
differences are written, first with these settings alone, then with the eps of the observation normalizer as there,
and last with the rollout of Stable-Baselines3, so that only the updates differ.
"""

import argparse
import logging
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from machine import describe_machine, write_results
from missing_packages import replace_missing

replace_missing("imageio")

from stable_baselines3 import PPO  # noqa: E402
from stable_baselines3.common.callbacks import BaseCallback  # noqa: E402
from stable_baselines3.common.env_util import make_vec_env  # noqa: E402
from stable_baselines3.common.vec_env import VecEnvWrapper, VecNormalize  # noqa: E402

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent))

from returns import SETTINGS, equal_config  # noqa: E402

from st_rl.env import VecEnv  # noqa: E402
from st_rl.modules import EmpiricalNormalization  # noqa: E402
from st_rl.runners import build_runner  # noqa: E402

NUM_ENVS, NUM_STEPS = SETTINGS["num_envs"], SETTINGS["num_steps"]
LAYERS = {
    "actor": ("mlp_extractor.policy_net.0", "mlp_extractor.policy_net.2", "action_net"),
    "critic": ("mlp_extractor.value_net.0", "mlp_extractor.value_net.2", "value_net"),
}
# Our fields of a rollout, and theirs.
FIELDS = {
    "observations": "observations",
    "rewards": "rewards",
    "values": "values",
    "actions_log_prob": "log_probs",
    "advantages": "advantages",
    "returns": "returns",
}
# HalfCheetah has episodes of 1,000 steps that end by time-out, in the fourth rollout.
ROLLOUTS = {"Hopper-v5": 1, "HalfCheetah-v5": 4}


class RecordedSteps(VecEnvWrapper):
    """Keeps all raw steps of an environment."""

    def reset(self) -> np.ndarray:
        """Start to record."""
        self.steps: list[tuple[Any, ...]] = []
        self.first_obs = self.venv.reset().copy()
        return self.first_obs.copy()

    def step_wait(self) -> tuple[Any, ...]:
        """Record a step."""
        obs, rewards, dones, infos = self.venv.step_wait()
        ends = [(info.get("terminal_observation"), info.get("TimeLimit.truncated", False)) for info in infos]
        self.steps.append((obs.copy(), rewards.copy(), dones.copy(), ends))
        return obs, rewards, dones, infos


class KeptRollouts(BaseCallback):
    """Keeps what the peer learns from."""

    def __init__(self) -> None:
        super().__init__()
        self.rollouts: list[dict[str, torch.Tensor]] = []

    def _on_rollout_end(self) -> None:
        names = ("actions", *FIELDS.values())
        self.rollouts.append({name: torch.tensor(getattr(self.model.rollout_buffer, name)) for name in names})

    def _on_step(self) -> bool:
        return True


class Peer:
    """A training of the peer: the environment's steps, its rollouts, the order of its samples, and its weights."""

    def __init__(self, task: str, num_rollouts: int) -> None:
        self.env = RecordedSteps(make_vec_env(task, n_envs=NUM_ENVS, seed=1000))
        normalized = VecNormalize(self.env, gamma=SETTINGS["gamma"])
        size = NUM_STEPS * NUM_ENVS // SETTINGS["num_mini_batches"]
        model = PPO("MlpPolicy", normalized, n_steps=NUM_STEPS, batch_size=size, seed=1, device="cpu")
        self.first_weights = {name: value.clone() for name, value in model.policy.state_dict().items()}
        kept, self.orders = KeptRollouts(), []
        permutation = np.random.permutation

        def keep_order(count: int) -> np.ndarray:
            self.orders.append(permutation(count))
            return self.orders[-1]

        with mock.patch("numpy.random.permutation", keep_order):
            model.learn(NUM_STEPS * NUM_ENVS * num_rollouts, callback=kept)
        self.rollouts, self.weights = kept.rollouts, model.policy.state_dict()
        self.num_actions = model.action_space.shape[0]
        self.normalizer_eps = normalized.epsilon


class ReplayedEnv(VecEnv):
    """The steps of a peer's environment, whatever the actions."""

    def __init__(self, peer: Peer) -> None:
        self.num_envs, self.num_obs, self.num_privileged_obs = NUM_ENVS, peer.env.first_obs.shape[1], None
        self.num_actions, self.max_episode_length, self.device = peer.num_actions, 1000, "cpu"
        self.episode_length_buf, self.extras = torch.zeros(NUM_ENVS, dtype=torch.int64), {}
        self._steps = iter(peer.env.steps)
        self._obs = torch.tensor(peer.env.first_obs, dtype=torch.float32)

    def get_observations(self) -> tuple[torch.Tensor, dict[str, Any]]:
        """The latest observation."""
        return self._obs, {"observations": {"policy": self._obs}}

    def reset(self) -> tuple[torch.Tensor, dict[str, Any]]:
        """The latest observation: there is nothing to reset."""
        return self.get_observations()

    def step(self, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """The next recorded step."""
        obs, rewards, dones, ends = next(self._steps)
        self._obs = torch.tensor(obs, dtype=torch.float32)
        final_obs = self._obs.clone()
        for env, (terminal_obs, _) in enumerate(ends):
            if terminal_obs is not None:
                final_obs[env] = torch.tensor(terminal_obs, dtype=torch.float32)
        infos: dict[str, Any] = {"observations": {"policy": self._obs}, "final_observations": {"policy": final_obs}}
        infos["time_outs"] = torch.tensor([bool(is_truncated) for _, is_truncated in ends])
        return self._obs, torch.tensor(rewards, dtype=torch.float32), torch.tensor(dones), infos


def parameter_pairs(policy: Any, weights: Mapping[str, torch.Tensor]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Our parameters, and those of the peer."""
    yield policy.log_std, weights["log_std"]
    for head, names in LAYERS.items():
        layers = [layer for layer in getattr(policy, head) if isinstance(layer, torch.nn.Linear)]
        for layer, name in zip(layers, names, strict=True):
            yield layer.weight, weights[f"{name}.weight"]
            yield layer.bias, weights[f"{name}.bias"]


def replay(peer: Peer, equal_normalizer: bool, equal_rollouts: bool) -> dict[str, Any]:
    """Train on the peer's steps; returns the largest differences of each rollout and of the weights at the end."""
    config = equal_config(SETTINGS) | {"max_iterations": len(peer.rollouts), "engine": "eager"}
    runner = build_runner("OnPolicyRunner", ReplayedEnv(peer), config, None, "cpu")
    alg, policy = runner.alg, runner.alg.actor_critic
    with torch.no_grad():
        for own, value in parameter_pairs(policy, peer.first_weights):
            own.copy_(value)
    normalizer = alg.obs_normalizer
    if equal_normalizer and isinstance(normalizer, EmpiricalNormalization):
        normalizer.eps = peer.normalizer_eps
    actions = iter(torch.cat([rollout["actions"] for rollout in peer.rollouts]).float())
    orders, rollouts = iter(peer.orders), iter(peer.rollouts)
    sample, update = policy.act, alg.update
    differences: list[dict[str, float]] = []

    def act(obs: torch.Tensor) -> torch.Tensor:
        sample(obs)
        return next(actions)

    def next_order(count: int, **_: Any) -> torch.Tensor:
        # The peer numbers samples by environment first, this library by step first.
        order = torch.from_numpy(next(orders))
        return order % NUM_STEPS * NUM_ENVS + order // NUM_STEPS

    def compared_update(iteration: int) -> Any:
        theirs, found = next(rollouts), {}
        for name, peer_name in FIELDS.items():
            stored, value = getattr(alg.storage, name), theirs[peer_name].reshape(NUM_STEPS, NUM_ENVS, -1)
            if name == "advantages":
                value = (value - value.mean()) / (value.std() + 1e-8)
            found[name] = (stored - value).abs().max().item()
            if equal_rollouts:
                stored.copy_(value)
        differences.append(found)
        with mock.patch.object(policy, "act", sample), mock.patch("torch.randperm", next_order):
            return update(iteration)

    with mock.patch.object(policy, "act", act), mock.patch.object(alg, "update", compared_update):
        runner.learn(len(peer.rollouts))
    pairs = list(parameter_pairs(policy, peer.weights))
    return {
        "rollouts": differences,
        "weights": max((own - value).abs().max().item() for own, value in pairs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=FOLDER / "results" / "sb3_parity.json", help="the results")
    options = parser.parse_args()
    logging.getLogger("st_rl").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    tasks: dict[str, Any] = {}
    for task, num_rollouts in ROLLOUTS.items():
        peer = Peer(task, num_rollouts)
        pairs = zip(peer.weights.values(), peer.first_weights.values())
        tasks[task] = {
            "weights_moved": max((after - before).abs().max().item() for after, before in pairs),
            "equal settings": replay(peer, False, False),
            "and the normalizer's eps": replay(peer, True, False),
            "and the rollouts": replay(peer, True, True),
        }
        for case, found in tasks[task].items():
            if isinstance(found, dict):
                last = "  ".join(f"{name} {value:.1e}" for name, value in found["rollouts"][-1].items())
                print(f"{task:<15} {case:<26} weights {found['weights']:.1e}  last rollout: {last}")
    results = {"benchmark": "sb3_parity", **describe_machine(), "settings": SETTINGS, "tasks": tasks}
    write_results(options.output, results)


if __name__ == "__main__":
    main()
