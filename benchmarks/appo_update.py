"""The update of APPO beside that of PPO at equal sizes: `python benchmarks/appo_update.py`.

Both train through the runner on the same prepared data, without a simulation, and take turns. The policy and the
mini-batches are the same; APPO trains a discriminator beside it.
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
"""Numbers of a robot's motion in a frame (joints, feet, body); a transition has two frames."""
DISCRIMINATOR = (256, 128)
LIMIT = 1.6


class MotionEnv(RecordedEnv):
    """Prepared steps with made-up motion features of the robots and of a reference."""

    def __init__(self, workload: Workload):
        super().__init__(workload)
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


class Side:
    """One algorithm with its own runner, timed."""

    def __init__(self, algorithm: str, workload: Workload):
        torch.manual_seed(0)
        prefix = "Amp" if algorithm == "APPO" else ""
        policy: dict[str, Any] = {
            "class_name": f"{prefix}ActorCritic",
            "actor_hidden_dims": list(workload.hidden_dims),
            "critic_hidden_dims": list(workload.hidden_dims),
        }
        if workload.rnn_hidden_size is not None:
            policy |= {"class_name": f"{prefix}ActorCriticRecurrent", "rnn_hidden_size": workload.rnn_hidden_size}
        if algorithm == "APPO":
            sizes = {"input_dim": 2 * FEATURES, "hidden_dims": list(DISCRIMINATOR), "style_reward_coef": 1.0}
            policy["amp_discriminator"] = {**sizes, "task_reward_lerp": 0.5}
        config = {
            "num_steps_per_env": workload.steps,
            "empirical_normalization": True,
            "engine": workload.engine,
            "policy": policy,
            "algorithm": {
                "class_name": algorithm,
                "num_learning_epochs": workload.epochs,
                "num_mini_batches": workload.mini_batches,
                "schedule": "adaptive",
                "entropy_coef": 0.01,
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


def compare(workload: Workload, rounds: int) -> dict[str, Any]:
    """One row: the times of both, in milliseconds, and the ratio of their updates, paired within rounds."""
    sides = {name: Side(name, workload) for name in ("PPO", "APPO")}
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
    # Processor time does not count what else a busy machine does.
    for part in ("acting", "update"):
        ours, theirs = samples["APPO"], samples["PPO"]
        row[f"{part}_ratio"] = {
            "median": statistics.median(ours[part]) / statistics.median(theirs[part]),
            "fastest": min(ours[part]) / min(theirs[part]),
            "paired": statistics.median(a / b for a, b in zip(ours[part], theirs[part])),
            "processor": statistics.median(ours[f"{part} processor"]) / statistics.median(theirs[f"{part} processor"]),
        }
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--robots", type=int, default=None, help="1,024 on a CPU, 4,096 on a GPU unless given")
    parser.add_argument("--rounds", type=int, default=15, help="iterations of each side")
    parser.add_argument("--only", default="", help="rows whose policy contains this text, such as 'LSTM'")
    parser.add_argument("--output", type=Path, default=None, help="where results go")
    options = parser.parse_args()
    logging.getLogger("st_rl").setLevel(logging.ERROR)
    is_cuda = options.device == "cuda"
    if is_cuda:
        torch.set_float32_matmul_precision("high")
    base = Workload(
        options.robots or (4096 if is_cuda else 1024),
        (512, 256, 128),
        device=options.device,
        engine="graph" if is_cuda else "eager",
    )
    rows = []
    for workload in (base, dataclasses.replace(base, hidden_dims=(128, 128), rnn_hidden_size=256)):
        if options.only not in workload.policy:
            continue
        row = compare(workload, options.rounds)
        rows.append(row)
        times = "  ".join(f"{name} {row[name]['update']['median_ms']:.1f} ms" for name in ("PPO", "APPO"))
        ratios = ", ".join(f"{kind} {value:.2f}" for kind, value in row["update_ratio"].items())
        print(f"{row['policy']}, {workload.robots} robots: {times}; ratio {ratios} (limit {LIMIT})", flush=True)
    output = options.output or FOLDER / "results" / f"appo_update_{options.device}.json"
    write_results(
        output, {"benchmark": "appo_update", **describe_machine(), "threads": torch.get_num_threads(), "rows": rows}
    )
    print(f"written to {output}")


if __name__ == "__main__":
    main()
