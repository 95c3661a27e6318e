"""One huge observation in a training that normalizes its observations.

Run it as `python -m benchmarks.faults.huge_observation` in the root of the repository.

`balance` is trained with 64 robots. In one step of iteration 5, one robot observes a pole angle of 1e6. Three variants
per seed: without that value, with it, and with it but without the clipping of outliers in the statistics of the
normalizer. Writes the mean reward of each iteration, in units of the best possible one, as one JSON file.
"""

import argparse
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from benchmarks.machine import describe_machine, write_results
from st_rl.modules import normalizer
from st_rl.runners import build_runner
from st_rl.sim.tasks import find_task, make_task

RESULTS = Path(__file__).parents[1] / "results" / "faults_huge_observation.json"
TASK, NUM_ENVS, HUGE, ITERATION, STEP = "balance", 64, 1e6, 5, 3
ANGLE = 2
VARIANTS = ("clean", "clipped", "not clipped")


def watch(env: Any, call: int | None) -> list[float]:
    """Return the list of mean rewards that `env.step` fills; call number `call`, from 1, returns the huge number."""
    step, rewards_of_steps = env.step, []

    def watched_step(actions: torch.Tensor) -> Any:
        obs, rewards, dones, infos = step(actions)
        rewards_of_steps.append(float(rewards.mean()) / env.step_dt)
        if len(rewards_of_steps) == call:
            obs = obs.clone()
            obs[0, ANGLE] = HUGE
            infos["observations"] = {**infos["observations"], "policy": obs}
        return obs, rewards, dones, infos

    env.step = watched_step
    return rewards_of_steps


def train(variant: str, seed: int, iterations: int) -> dict[str, Any]:
    """The rewards of a training and the standard deviation of the pole angle in its normalizer."""
    normalizer.OUTLIER_WARM_UP = 32 if variant == "clipped" else 10**12
    torch.manual_seed(seed)
    env = make_task(TASK, NUM_ENVS, seed=seed, **{"physics.num_threads": 1})
    config = find_task(TASK).training_config() | {"engine": "eager"}
    runner = build_runner(config["runner_class_name"], env, config)
    length = runner.num_steps_per_env
    of_steps = watch(env, None if variant == "clean" else ITERATION * length + STEP + 1)
    runner.learn(iterations)
    rewards = [fmean(of_steps[start : start + length]) for start in range(0, len(of_steps), length)]
    return {"reward": rewards, "last_20": fmean(rewards[-20:]), "std": float(runner.alg.obs_normalizer.std[ANGLE])}


def main() -> None:
    """Train all variants with all seeds and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5, 6])
    parser.add_argument("--iterations", type=int, default=120)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    trained: dict[str, dict[int, Any]] = {variant: {} for variant in VARIANTS}
    for seed in options.seeds:
        for variant in VARIANTS:
            trained[variant][seed] = train(variant, seed, options.iterations)
            print(f"seed {seed}, {variant}: {trained[variant][seed]['last_20']:.3f}", flush=True)
    means = {variant: fmean(run["last_20"] for run in runs.values()) for variant, runs in trained.items()}
    print(means)
    write_results(options.out, {**describe_machine(), "mean_of_last_20": means, "variants": trained})


if __name__ == "__main__":
    main()
