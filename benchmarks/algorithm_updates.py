"""Update time of every algorithm relative to PPO at equal sizes: `python benchmarks/algorithm_updates.py`.

All train through the runner on the same prepared data, without a simulation, alternating by iteration. The policy and
the mini-batches are the same. Each algorithm adds a small network: a discriminator (256-128), an estimator (256-128) of
3 values, or a teacher of the size of the student, which also acts.
"""

import argparse
import dataclasses
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
"""Motion features per frame (joints, feet, base); a transition has two frames."""
DISCRIMINATOR = (256, 128)
LIMIT = 1.6


class MotionEnv(RecordedEnv):
    """Prepared steps with named observation components and random motion features of policy and reference."""

    def __init__(self, workload: Workload):
        super().__init__(workload)
        self.obs_segments = {"body": workload.observations - 3, "velocity": 3}
        generator = torch.Generator().manual_seed(1)
        shape = (workload.robots, 2 * FEATURES)
        self._own = torch.randn(shape, generator=generator).to(self.device)
        self._reference = (torch.randn(shape, generator=generator) * 0.7 + 0.3).to(self.device)

    def step(self, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """The next prepared step."""
        obs, rewards, dones, infos = super().step(actions)
        infos["observations"]["ref_obs"] = self._own.view(self.num_envs, 2, FEATURES)
        infos["ref_motion"] = self._reference
        return obs, rewards, dones, infos


def algorithms(hidden: list[int]) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Settings of policy and algorithm by name; the policy class is the feed-forward one."""
    discriminator = {"input_dim": 2 * FEATURES, "hidden_dims": list(DISCRIMINATOR), "style_reward_coef": 1.0}
    amp = {"class_name": "AmpActorCritic", "amp_discriminator": {**discriminator, "task_reward_lerp": 0.5}}
    estimator = {
        "class_name": "StateAc",
        "estimator_target_components": ["velocity"],
        "estimator_kwargs": {"hidden_sizes": [256, 128]},
    }
    distillation = {
        "teacher_policy": {"actor_hidden_dims": hidden, "critic_hidden_dims": hidden},
        "distill_target": "mse_sum",
    }
    return {
        "PPO": ({"class_name": "ActorCritic"}, {}),
        "APPO": (amp, {}),
        "ATPPO": (amp, distillation),
        "TPPO": ({"class_name": "ActorCritic"}, distillation),
        "EstimatorPPO": (estimator, {}),
        "EstimatorTPPO": (estimator, distillation),
    }


class TimedTraining:
    """One algorithm with its own runner, timed."""

    def __init__(self, name: str, workload: Workload):
        torch.manual_seed(0)
        hidden = list(workload.hidden_dims)
        policy, algorithm = algorithms(hidden)[name]
        policy |= {"actor_hidden_dims": hidden, "critic_hidden_dims": hidden}
        if workload.rnn_hidden_size is not None:
            policy |= {"class_name": f"{policy['class_name']}Recurrent", "rnn_hidden_size": workload.rnn_hidden_size}
        config = {
            "num_steps_per_env": workload.steps,
            "empirical_normalization": True,
            "engine": workload.engine,
            "policy": policy,
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
        collect, update = self._runner._collect_rollout, self._runner.alg.update
        self._runner._collect_rollout = lambda: self._measure("acting", collect)
        self._runner.alg.update = lambda iteration: self._measure("update", update, iteration)

    def _measure(self, part: str, function: Any, *arguments: Any) -> Any:
        self._watch.start()
        outcome = function(*arguments)
        self._watch.stop(part)
        return outcome

    def run(self, iterations: int) -> dict[str, list[float]]:
        """Run `iterations` iterations; returns the seconds of each part."""
        self._runner.learn(iterations)
        return self._watch.read()


def compare(workload: Workload, rounds: int) -> dict[str, Any]:
    """One row: times of every algorithm in ms, and the ratios of their update times to PPO's."""
    sides = {name: TimedTraining(name, workload) for name in algorithms([])}
    parts = ("acting", "update", "acting processor", "update processor")
    samples: dict[str, dict[str, list[float]]] = {name: {part: [] for part in parts} for name in sides}
    for side in sides.values():
        side.run(6 if workload.device == "cuda" else 2)
    for round_ in range(rounds):
        for name in sorted(sides, reverse=bool(round_ % 2)):
            seconds = sides[name].run(1)
            for part, values in samples[name].items():
                values += seconds[part]
    row: dict[str, Any] = {"policy": workload.policy, "discriminator": DISCRIMINATOR, "workload": workload.to_json()}
    for name in sides:
        row[name] = {
            part: {"median_ms": 1e3 * statistics.median(values), "min_ms": 1e3 * min(values)}
            for part, values in samples[name].items()
        }
        row[name]["update_ratio"] = ratios(samples[name], samples["PPO"])
    return row


def ratios(ours: dict[str, list[float]], theirs: dict[str, list[float]]) -> dict[str, float]:
    """Ratio of update times; CPU time excludes other load on the machine."""
    return {
        "median": statistics.median(ours["update"]) / statistics.median(theirs["update"]),
        "fastest": min(ours["update"]) / min(theirs["update"]),
        "paired": statistics.median(a / b for a, b in zip(ours["update"], theirs["update"])),
        "processor": statistics.median(ours["update processor"]) / statistics.median(theirs["update processor"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--robots", type=int, default=None, help="1,024 on a CPU, 4,096 on a GPU unless given")
    parser.add_argument("--engine", choices=("eager", "graph", "compile"), help="graph on a GPU unless given")
    parser.add_argument("--rounds", type=int, default=15, help="iterations per side")
    parser.add_argument("--only", default="", help="only rows with this text in the name of the policy, such as 'LSTM'")
    parser.add_argument("--output", type=Path, default=None, help="results file")
    options = parser.parse_args()
    logging.getLogger("st_rl").setLevel(logging.ERROR)
    is_cuda = options.device == "cuda"
    if is_cuda:
        torch.set_float32_matmul_precision("high")
    base = Workload(
        options.robots or (4096 if is_cuda else 1024),
        (512, 256, 128),
        device=options.device,
        engine=options.engine or ("graph" if is_cuda else "eager"),
    )
    rows = []
    for workload in (base, dataclasses.replace(base, hidden_dims=(128, 128), rnn_hidden_size=256)):
        if options.only not in workload.policy:
            continue
        row = compare(workload, options.rounds)
        rows.append(row)
        print(
            f"{row['policy']}, {workload.robots} robots; update time relative to PPO by four measures, limit {LIMIT}:",
            flush=True,
        )
        for name in algorithms([]):
            shown = ", ".join(f"{kind} {value:.2f}" for kind, value in row[name]["update_ratio"].items())
            print(f"  {name:<13} update {row[name]['update']['median_ms']:7.1f} ms: {shown}", flush=True)
    output = options.output or FOLDER / "results" / f"algorithm_updates_{options.device}.json"
    threads = torch.get_num_threads()
    write_results(output, {"benchmark": "algorithm_updates", **describe_machine(), "threads": threads, "rows": rows})
    print(f"results: {output}")


if __name__ == "__main__":
    main()
