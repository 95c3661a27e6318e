"""PPO on two Gymnasium tasks, three seeds each: `python benchmarks/learn_gymnasium.py`.

A policy is evaluated without exploration noise by its mean return over 20 episodes from fixed seeds.
"""

import argparse
import logging
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from machine import describe_machine, write_results
from plots import start_plot

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent))

from st_rl.env.gymnasium_adapter import GymnasiumVecEnv, make_gymnasium  # noqa: E402
from st_rl.runners import build_runner  # noqa: E402

EPISODES = 20
EVALUATION_SEED = 10_000


@dataclass(frozen=True)
class Task:
    """A gymnasium task, the return that counts as solved, and the settings."""

    solved: float
    """Mean return without noise that a seed must reach."""
    iterations: int
    steps: int
    robots: int = 16
    evaluate_every: int = 5
    algorithm: dict[str, Any] = field(default_factory=dict)
    init_noise_std: float = 1.0

    def config(self) -> dict[str, Any]:
        """The runner's configuration."""
        algorithm = {
            "class_name": "PPO",
            "num_learning_epochs": 5,
            "num_mini_batches": 4,
            "schedule": "adaptive",
            "desired_kl": 0.01,
            "use_clipped_value_loss": False,
            **self.algorithm,
        }
        policy = {
            "class_name": "ActorCritic",
            "actor_hidden_dims": [64, 64],
            "critic_hidden_dims": [64, 64],
            "activation": "tanh",
            "init_noise_std": self.init_noise_std,
        }
        return {
            "num_steps_per_env": self.steps,
            "empirical_normalization": True,
            "policy": policy,
            "algorithm": algorithm,
        }


TASKS = {
    "InvertedPendulum-v5": Task(
        solved=950.0, iterations=40, steps=128, algorithm={"gamma": 0.99, "lam": 0.95, "learning_rate": 1e-3}
    ),
    "Pendulum-v1": Task(
        solved=-250.0,
        iterations=60,
        steps=200,
        algorithm={"gamma": 0.9, "lam": 0.95, "learning_rate": 1e-3, "num_learning_epochs": 10},
    ),
}


@torch.inference_mode()
def evaluate(runner: Any, env: GymnasiumVecEnv) -> list[float]:
    """The return of the first episode of every environment from its fixed seed, without noise."""
    policy = runner.get_inference_policy()
    obs, _ = env.reset(seed=EVALUATION_SEED)
    returns = torch.zeros(env.num_envs)
    running = torch.ones(env.num_envs, dtype=torch.bool)
    while running.any():
        obs, rewards, dones, _ = env.step(policy(obs))
        returns += torch.where(running, rewards, 0.0)
        running &= ~dones
    return returns.tolist()


def train(name: str, task: Task, seed: int) -> dict[str, Any]:
    """Train with one seed; returns the evaluation curve, the final evaluation and the time."""
    torch.manual_seed(seed)
    env = make_gymnasium(name, task.robots, seed=1000 * seed, rescale_actions=True)
    eval_env = make_gymnasium(name, EPISODES, rescale_actions=True)
    runner = build_runner("OnPolicyRunner", env, task.config(), None, "cpu")
    curve: dict[str, list[float]] = {"steps": [], "mean_return": []}
    training_s, returns = 0.0, [0.0]
    for done in range(0, task.iterations, task.evaluate_every):
        begin = time.perf_counter()
        runner.learn(min(task.evaluate_every, task.iterations - done), init_at_random_ep_len=done == 0)
        training_s += time.perf_counter() - begin
        returns = evaluate(runner, eval_env)
        curve["steps"].append(runner.tot_timesteps)
        curve["mean_return"].append(statistics.fmean(returns))
    for opened in (env, eval_env):
        opened.close()
    return {
        "seed": seed,
        "training_s": training_s,
        "steps": runner.tot_timesteps,
        "curve": curve,
        "final_returns": returns,
        "final_mean": statistics.fmean(returns),
        "final_spread": statistics.stdev(returns),
    }


def plot(results: dict[str, Any], path: Path) -> None:
    """Plot the learning curves of all seeds, one panel per task."""
    figure, axes = start_plot(len(results), (4.5 * len(results), 3.2), squeeze=False)
    for axis, (name, result) in zip(axes[0], results.items()):
        for run in result["seeds"]:
            axis.plot(
                [steps / 1e3 for steps in run["curve"]["steps"]],
                run["curve"]["mean_return"],
                label=f"seed {run['seed']}",
            )
        axis.axhline(result["solved"], color="grey", linestyle="--", linewidth=1, label="solved")
        axis.set(title=name, xlabel="thousand steps", ylabel=f"mean return, {EPISODES} episodes")
        axis.legend(fontsize=8)
    figure.savefig(path, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS), help="tasks to train on")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="seeds of the trainings")
    parser.add_argument("--output", type=Path, default=FOLDER / "results", help="folder of the results")
    options = parser.parse_args()
    logging.getLogger("st_rl").setLevel(logging.ERROR)
    # Small networks run faster on one thread.
    torch.set_num_threads(1)

    results: dict[str, Any] = {}
    for name in options.tasks:
        task = TASKS[name]
        runs = []
        for seed in options.seeds:
            runs.append(train(name, task, seed))
            run = runs[-1]
            print(
                f"{name:<20} seed {seed}: {run['final_mean']:8.1f} +- {run['final_spread']:6.1f} after "
                f"{run['steps']} steps in {run['training_s']:.1f} s",
                flush=True,
            )
        means = [run["final_mean"] for run in runs]
        results[name] = {
            "solved": task.solved,
            "all_seeds_solved": min(means) >= task.solved,
            "mean": statistics.fmean(means),
            "spread": statistics.stdev(means) if len(means) > 1 else 0.0,
            "robots": task.robots,
            "config": task.config(),
            "seeds": runs,
        }
        print(f"{name:<20} mean {results[name]['mean']:.1f}, solved at {task.solved}", flush=True)
    write_results(
        options.output / "learn_gymnasium.json",
        {"benchmark": "learn_gymnasium", **describe_machine(), "episodes": EPISODES, "tasks": results},
    )
    plot(results, options.output / "learn_gymnasium.png")
    if not all(result["all_seeds_solved"] for result in results.values()):
        sys.exit("not every seed solved its task")


if __name__ == "__main__":
    main()
