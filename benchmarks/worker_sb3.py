"""The Stable-Baselines3 side of returns.py: one PPO training, in its virtual environment; reads and writes JSON."""

import json
import sys
import time
from importlib.metadata import version
from typing import Any

import gymnasium
import numpy as np
import torch
from missing_packages import replace_missing

replace_missing("glfw", "imageio")

from stable_baselines3 import PPO  # noqa: E402
from stable_baselines3.common.callbacks import BaseCallback  # noqa: E402
from stable_baselines3.common.env_util import make_vec_env  # noqa: E402
from stable_baselines3.common.vec_env import VecNormalize  # noqa: E402


def evaluate(model: PPO, normalizer: VecNormalize, job: dict[str, Any]) -> list[float]:
    """The return of one episode without noise from each fixed seed."""
    envs = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make(job["task"])] * job["episodes"])
    obs, _ = envs.reset(seed=job["evaluation_seed"])
    returns, running = np.zeros(job["episodes"]), np.ones(job["episodes"], dtype=bool)
    while running.any():
        actions, _ = model.predict(normalizer.normalize_obs(obs), deterministic=True)
        obs, rewards, terminated, truncated, _ = envs.step(actions)
        returns += np.where(running, rewards, 0.0)
        running &= ~(terminated | truncated)
    envs.close()
    return returns.tolist()


class Evaluations(BaseCallback):
    """Evaluates every `evaluate_every` steps and keeps the time of evaluations apart."""

    def __init__(self, job: dict[str, Any]):
        super().__init__()
        self.job, self.curve, self.paused_s, self.paused_cpu_s = job, [], 0.0, 0.0
        self.begin = time.perf_counter()

    def _on_rollout_start(self) -> None:
        if self.num_timesteps and self.num_timesteps >= (len(self.curve) + 1) * self.job["evaluate_every"]:
            begin, begin_cpu = time.perf_counter(), time.process_time()
            returns = evaluate(self.model, self.model.get_env(), self.job)
            point = {"steps": self.num_timesteps, "mean_return": float(np.mean(returns))}
            self.curve.append(point | {"training_s": begin - self.begin - self.paused_s})
            print(json.dumps({"curve": self.curve}), flush=True)
            self.paused_s += time.perf_counter() - begin
            self.paused_cpu_s += time.process_time() - begin_cpu

    def _on_step(self) -> bool:
        return True


def main() -> None:
    job = json.loads(sys.stdin.read())
    torch.set_num_threads(1)
    rollout = job["num_envs"] * job["num_steps"]
    env = make_vec_env(job["task"], n_envs=job["num_envs"], seed=1000 * job["seed"])
    env = VecNormalize(env, gamma=job["gamma"])
    model = PPO(
        "MlpPolicy",
        env,
        learning_rate=job["learning_rate"],
        n_steps=job["num_steps"],
        batch_size=rollout // job["num_mini_batches"],
        n_epochs=job["num_epochs"],
        gamma=job["gamma"],
        seed=job["seed"],
        device="cpu",
    )
    evaluations = Evaluations(job)
    begin, begin_cpu = time.perf_counter(), time.process_time()
    model.learn(job["steps"], callback=evaluations)
    training_s = time.perf_counter() - begin - evaluations.paused_s
    training_cpu_s = time.process_time() - begin_cpu - evaluations.paused_cpu_s
    returns = evaluate(model, env, job)
    result = {
        "steps": model.num_timesteps,
        "training_s": training_s,
        "training_cpu_s": training_cpu_s,
        "curve": evaluations.curve,
        "final_returns": returns,
        "version": version("stable-baselines3"),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
