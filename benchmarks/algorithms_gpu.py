"""The update of every algorithm beside that of PPO at equal sizes on a GPU: `python benchmarks/algorithms_gpu.py`.

All train through the runner on the same prepared data, without a simulation, one iteration each in turn. What an
algorithm adds is small beside the policy: a discriminator of 256-128, an estimator of 256-128 for 3 numbers, a teacher
of the size of the student, which also acts.
"""

import argparse
import logging
import statistics
from pathlib import Path
from typing import Any

import torch
from machine import describe_machine, write_results
from worker_st_rl import RecordedEnv
from workload import Stopwatch, Workload

from st_rl.runners import build_runner

FOLDER = Path(__file__).resolve().parent
FEATURES = 42
"""Numbers of a robot's motion in a frame; a transition has two frames."""


class MotionEnv(RecordedEnv):
    """Prepared steps with named parts of the observation and made-up motion of the robots and of a reference."""

    def __init__(self, workload: Workload):
        super().__init__(workload)
        self.obs_segments = {"body": workload.observations - 3, "velocity": 3}
        generator = torch.Generator().manual_seed(1)
        self._own = torch.randn(self.num_envs, 2, FEATURES, generator=generator).to(self.device)
        self._reference = torch.randn(self.num_envs, 2 * FEATURES, generator=generator).to(self.device)

    def step(self, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """The next prepared step."""
        obs, rewards, dones, infos = super().step(actions)
        infos["observations"]["ref_obs"] = self._own
        infos["ref_motion"] = self._reference
        return obs, rewards, dones, infos


def algorithms(hidden: list[int]) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Settings of policy and algorithm by name."""
    discriminator = {"input_dim": 2 * FEATURES, "hidden_dims": [256, 128], "style_reward_coef": 1.0}
    amp = {"class_name": "AmpActorCritic", "amp_discriminator": {**discriminator, "task_reward_lerp": 0.5}}
    estimator = {
        "class_name": "StateAc",
        "estimator_target_components": ["velocity"],
        "estimator_kwargs": {"hidden_sizes": [256, 128]},
    }
    teacher = {"teacher_policy": {"actor_hidden_dims": hidden, "critic_hidden_dims": hidden}, "distill_target": "mse_sum"}
    return {
        "PPO": ({"class_name": "ActorCritic"}, {}),
        "APPO": (amp, {}),
        "TPPO": ({"class_name": "ActorCritic"}, teacher),
        "EstimatorPPO": (estimator, {}),
    }


class Side:
    """One algorithm with its own runner."""

    def __init__(self, name: str, workload: Workload):
        torch.manual_seed(0)
        hidden = list(workload.hidden_dims)
        policy, algorithm = algorithms(hidden)[name]
        config = {
            "num_steps_per_env": workload.steps,
            "empirical_normalization": True,
            "engine": workload.engine,
            "policy": {"actor_hidden_dims": hidden, "critic_hidden_dims": hidden, **policy},
            "algorithm": {
                "class_name": name,
                "num_learning_epochs": workload.epochs,
                "num_mini_batches": workload.mini_batches,
                "schedule": "adaptive",
                "entropy_coef": 0.01,
                **algorithm,
            },
        }
        self._runner = build_runner("OnPolicyRunner", MotionEnv(workload), config, None, workload.device)
        self._watch = Stopwatch()
        collect, update = self._runner._collect, self._runner.alg.update
        self._runner._collect = lambda: self._timed("acting", collect)
        self._runner.alg.update = lambda iteration: self._timed("update", update, iteration)

    def _timed(self, part: str, function: Any, *arguments: Any) -> Any:
        self._watch.start()
        outcome = function(*arguments)
        self._watch.stop(part)
        return outcome

    def run(self, iterations: int) -> dict[str, list[float]]:
        """The seconds of each part of so many iterations."""
        self._runner.learn(iterations)
        return self._watch.read()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--engine", default="graph", choices=("eager", "graph", "compile"))
    parser.add_argument("--robots", type=int, default=4096)
    parser.add_argument("--hidden", type=int, nargs="+", default=[512, 256, 128])
    parser.add_argument("--rounds", type=int, default=15, help="iterations of each algorithm")
    parser.add_argument("--output", type=Path, default=FOLDER / "results" / "algorithms_gpu.json")
    options = parser.parse_args()
    logging.getLogger("st_rl").setLevel(logging.ERROR)
    torch.set_float32_matmul_precision("high")
    workload = Workload(options.robots, tuple(options.hidden), device=options.device, engine=options.engine)
    sides = {name: Side(name, workload) for name in algorithms(options.hidden)}
    samples: dict[str, dict[str, list[float]]] = {}
    for side in sides.values():
        side.run(6)
    for round_ in range(options.rounds):
        for name in sorted(sides, reverse=bool(round_ % 2)):
            for part, values in sides[name].run(1).items():
                samples.setdefault(name, {}).setdefault(part, []).extend(values)
    rows = {}
    for name, parts in samples.items():
        rows[name] = {f"{part}_ms": 1e3 * statistics.median(parts[part]) for part in ("acting", "update")}
        rows[name]["update_ratio"] = statistics.median(a / b for a, b in zip(parts["update"], samples["PPO"]["update"]))
    for name, row in rows.items():
        print(f"{name:<13} acting {row['acting_ms']:6.1f} ms, update {row['update_ms']:6.1f} ms", end="")
        print(f", {row['update_ratio']:.2f} of PPO")
    machine = {"benchmark": "algorithms_gpu", **describe_machine()}
    write_results(options.output, {**machine, "workload": workload.to_json(), "rounds": options.rounds, "rows": rows})


if __name__ == "__main__":
    main()
