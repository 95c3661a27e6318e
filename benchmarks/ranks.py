"""Trainings over several ranks on a CPU, compared with one process.

Run it as `python -m benchmarks.ranks NAME` in the root of the repository; writes `benchmarks/results/ranks_NAME.json`.

    equal    2 and 4 ranks against one rank with all the data, for every algorithm and policy family
    compiled 2 compiled ranks against each other and against eager ones, for three families
    learn    quadruped-walk, 2 ranks of 128 robots against one process with 256, six seeds each
    amp      humanoid-amp over 2 ranks, once
    distill  quadruped-walk over 2 ranks: the distillation of a policy of `learn`, once
    cost     iterations of 2 ranks of 128 robots against one process with 256, in alternation
    resume   quadruped-walk from 2 to 4, from 4 to 1 and, without a change, from 2 to 2 ranks, three seeds each

`--parallel N` runs N trainings of `learn` and `resume` at once, for machines with more cores.
"""

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch

from benchmarks.machine import describe_machine, write_results
from st_rl.utils.files import load_checkpoint
from tests.ranks import run_ranks
from tests.runners.rank_trainings import families, make_training, save_teacher, shared_state
from tests.runners.training import differences

RESULTS = Path(__file__).parent / "results"
SEEDS = (1, 2, 3)
LEARN_SEEDS = (1, 2, 3, 4, 5, 6)
FORWARD = [
    *("--env.commands.lin-vel-x", "0.3", "1.0", "--env.commands.lin-vel-y", "0", "0"),
    *("--env.commands.ang-vel-yaw", "0", "0", "--env.commands.standing-fraction", "0"),
]
EQUAL_ITERATIONS = 5
TOLERANCE = 1e-6
Case = TypeVar("Case")
Result = TypeVar("Result")


def st_rl(num_ranks: int, *arguments: str) -> float:
    """Run an st-rl command on a number of ranks; returns its wall-clock time, s."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)]
    command = [sys.executable, *(launcher if num_ranks > 1 else []), "-m", "st_rl", *arguments]
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return time.perf_counter() - began


def column(run: Path, name: str) -> list[float]:
    """A column of the curves of a run, without empty cells."""
    with open(run / "progress.csv", newline="") as file:
        return [float(row[name]) for row in csv.DictReader(file) if row.get(name)]


def iteration_seconds(run: Path) -> list[float]:
    """Duration of each iteration but the first, s."""
    parts = [column(run, name)[1:] for name in ("Perf/collection time", "Perf/learning_time")]
    return [collection + learning for collection, learning in zip(*parts)]


def evaluate(run: Path, *options: str) -> dict[str, Any]:
    """The metrics of a policy of a run without noise, by default of the best."""
    st_rl(1, "eval", str(run), *options)
    evaluation = json.loads((run / "eval.json").read_text())
    return {key: evaluation[key] for key in ("checkpoint", "iteration", "columns")}


def spread(values: list[float]) -> dict[str, Any]:
    """Values of several seeds with mean and range."""
    return {"values": values, "mean": statistics.fmean(values), "min": min(values), "max": max(values)}


# ---- equal -----------------------------------------------------------------------------------------------------------


def train_families(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    """Five iterations of every family; returns what all ranks must agree on."""
    results = {}
    for name in families(folder):
        runner = make_training(name, folder)
        runner.learn(EQUAL_ITERATIONS)
        results[name] = shared_state(runner)
    return results


def largest_difference(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> float:
    """The largest difference of two states with the same names: absolute, and relative to values above 1."""
    pairs = [(first[key].double(), second[key].double()) for key in first if first[key].numel()]
    return max(float(((ours - theirs).abs() / theirs.abs().clamp(min=1.0)).max()) for ours, theirs in pairs)


def equal(folder: Path) -> dict[str, Any]:
    """Compare ranks with each other and with one process."""
    save_teacher(folder / "teacher.pt")
    rows = []
    alone = run_ranks(train_families, folder, 1)[0]
    for num_ranks in (2, 4):
        ranks = run_ranks(train_families, folder, num_ranks)
        for name, state in alone.items():
            same_bits = all(not differences(ranks[0][name], other[name]) for other in ranks[1:])
            distance = largest_difference(ranks[0][name], state)
            rows.append({
                "ranks": num_ranks, "family": name, "same_bits_on_all_ranks": same_bits,
                "largest_difference_from_one_rank": distance,
            })  # fmt: skip
            print(rows[-1], flush=True)
    largest = max(row["largest_difference_from_one_rank"] for row in rows)
    holds = largest <= TOLERANCE and all(row["same_bits_on_all_ranks"] for row in rows)
    settings = "SGD, adaptive learning rate, float32, eager"
    return {"settings": settings, "holds": holds, "largest_difference": largest, "rows": rows}


COMPILED = ("PPO", "PPO-lstm", "APPO-mask")


def train_compiled(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    """Five iterations of some families, eager and compiled; returns what all ranks must agree on."""
    results = {}
    for name in COMPILED:
        for engine in ("eager", "compile"):
            runner = make_training(name, folder, engine=engine)
            runner.learn(EQUAL_ITERATIONS)
            results[f"{name} {engine}"] = shared_state(runner)
    return results


def compiled(folder: Path) -> dict[str, Any]:
    """Compare compiled ranks with each other and with eager ones."""
    rows = []
    first, second = run_ranks(train_compiled, folder, 2)
    for name in COMPILED:
        compiled_state, eager_state = first[f"{name} compile"], first[f"{name} eager"]
        same_bits = not differences(compiled_state, second[f"{name} compile"])
        distance = largest_difference(compiled_state, eager_state)
        rows.append({"family": name, "same_bits_on_all_ranks": same_bits, "largest_difference_from_eager": distance})
        print(rows[-1], flush=True)
    return {"ranks": 2, "holds": all(row["same_bits_on_all_ranks"] for row in rows), "rows": rows}


# ---- learn -----------------------------------------------------------------------------------------------------------


def learn(folder: Path, parallel: int, seeds: Sequence[int]) -> dict[str, Any]:
    """Train quadruped-walk with the same number of robots on one process and on two ranks."""

    def train(case: tuple[int, int]) -> dict[str, Any]:
        seed, num_ranks = case
        run = folder / f"walk_{num_ranks}_{seed}"
        options = ["--num-envs", str(256 // num_ranks), "--iterations", "250", "--seed", str(seed), *FORWARD]
        if not (run / "model_250.pt").exists():
            st_rl(num_ranks, "train", "quadruped-walk", "--log-dir", str(run), *options)
        # The best is scored by a short walk, in which one fall counts more than the error.
        speeds = ("--lin-vel-x", "0.3", "1.0")
        last = best = evaluate(run, "--checkpoint", "last", *speeds)
        if load_checkpoint(run / "best.pt")["iter"] != last["iteration"]:
            best = evaluate(run, *speeds)
        figures = next(iter(last["columns"].values()))
        rewards = column(run, "Train/mean_reward_each_timestep")
        row = {
            "ranks": num_ranks, "seed": seed,
            "error_m_s": figures["lin_vel_x_error"], "falls": figures["falls"],
            "error_of_best_m_s": next(iter(best["columns"].values()))["lin_vel_x_error"],
            "iteration_of_best": best["iteration"],
            "median_iteration_s": statistics.median(iteration_seconds(run)),
            "reward_per_step_of_50_iterations": [statistics.fmean(rewards[i : i + 50]) for i in range(0, 250, 50)],
        }  # fmt: skip
        print(row, flush=True)
        return {**row, "evaluation": last, "evaluation_of_best": best}

    rows = run_all(train, [(seed, num_ranks) for seed in seeds for num_ranks in (1, 2)], parallel)
    errors = {
        name: {f"{n}_ranks": spread([row[name] for row in rows if row["ranks"] == n]) for n in (1, 2)}
        for name in ("error_m_s", "error_of_best_m_s")
    }
    return {**errors, "trainings_at_once": parallel, "rows": rows}


def run_all(work: Callable[[Case], Result], cases: Sequence[Case], parallel: int) -> list[Result]:
    """The results of `work` for each case, `parallel` at once."""
    with ThreadPoolExecutor(parallel) as pool:
        return list(pool.map(work, cases))


def curve_ends(run: Path, names: dict[str, str]) -> dict[str, Any]:
    """Mean of the first and last ten iterations of columns of the curves."""
    ends = {}
    for label, name in names.items():
        values = column(run, name)
        ends[label] = {"first_10": statistics.fmean(values[:10]), "last_10": statistics.fmean(values[-10:])}
    return ends


RETURNS = {"return": "Train/mean_reward", "episode_length": "Train/mean_episode_length"}


def amp(folder: Path) -> dict[str, Any]:
    """Train humanoid-amp over two ranks."""
    run = folder / "amp"
    options = ["--num-envs", "128", "--iterations", "200", "--seed", "1", "--log-dir", str(run)]
    seconds = st_rl(2, "train", "humanoid-amp", *options)
    return {"arguments": options[:6], "seconds": seconds, **curve_ends(run, RETURNS)}


def distill(folder: Path) -> dict[str, Any]:
    """Distill a policy of `learn` into a recurrent student over two ranks."""
    teacher, run = folder / "walk_1_1", folder / "student"
    options = ["--num-envs", "64", "--iterations", "80", "--seed", "1", "--log-dir", str(run), *FORWARD]
    seconds = st_rl(2, "distill", str(teacher), "quadruped-walk", *options)
    losses = {"distillation_loss": "Loss/distillation_loss"}
    evaluation = evaluate(run, "--lin-vel-x", "0.3", "1.0")
    return {"arguments": options[:6], "seconds": seconds, **curve_ends(run, RETURNS | losses), "evaluation": evaluation}


def cost(folder: Path) -> dict[str, Any]:
    """Durations of iterations, in alternation."""
    rounds: dict[int, list[float]] = {1: [], 2: []}
    for number in range(4):
        for num_ranks in (1, 2) if number % 2 else (2, 1):
            run = folder / f"cost_{number}_{num_ranks}"
            options = ["--num-envs", str(256 // num_ranks), "--iterations", "25", *FORWARD]
            st_rl(num_ranks, "train", "quadruped-walk", "--log-dir", str(run), *options)
            rounds[num_ranks].append(statistics.median(iteration_seconds(run)))
    medians = {f"{number}_ranks_s": statistics.median(values) for number, values in rounds.items()}
    ratio = medians["2_ranks_s"] / medians["1_ranks_s"]
    return {"rounds_s": rounds, "median_iteration": medians, "ratio_of_two_ranks_to_one_process": ratio}


def resume(folder: Path, parallel: int) -> dict[str, Any]:
    """Returns before and after a change of the number of ranks, against trainings without one."""
    half = 60

    def train(case: tuple[int, int, int]) -> dict[str, Any]:
        seed, before, after = case
        run = folder / f"resume_{before}_{after}_{seed}"
        options = ["--num-envs", str(128 // before), "--iterations", str(half), "--seed", str(seed), *FORWARD]
        st_rl(before, "train", "quadruped-walk", "--log-dir", str(run), *options)
        st_rl(after, "resume", str(run), "--iterations", str(half))
        returns = column(run, "Train/mean_reward_each_timestep")
        cut = len(returns) - half
        window = {"last_5_before": returns[cut - 5 : cut], "first_5_after": returns[cut : cut + 5]}
        means = {name: statistics.fmean(values) for name, values in window.items()}
        row = {"from_ranks": before, "to_ranks": after, "seed": seed, **means}
        row |= {"lowest_after": min(returns[cut:]), "last": returns[-1]}
        print(row, flush=True)
        return row

    cases = [(seed, *ranks) for seed in SEEDS for ranks in ((2, 4), (4, 1), (2, 2))]
    rows = run_all(train, cases, parallel)
    return {"quantity": "mean reward per step", "iterations": [half, half], "trainings_at_once": parallel, "rows": rows}


BENCHMARKS: dict[str, Callable[..., dict[str, Any]]] = {
    function.__name__: function for function in (equal, compiled, learn, amp, distill, cost, resume)
}
PARALLEL = (learn, resume)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=BENCHMARKS)
    parser.add_argument("--folder", type=Path, help="folder of the runs; a temporary one by default")
    parser.add_argument("--parallel", type=int, default=1, help="trainings of learn and resume at once")
    parser.add_argument("--seeds", type=int, nargs="+", default=LEARN_SEEDS, help="seeds of learn")
    parser.add_argument("--output", type=Path, help="results file")
    options = parser.parse_args()
    machine, began = describe_machine(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ranks_") as temporary:
        benchmark = BENCHMARKS[options.name]
        arguments: tuple[Any, ...] = (options.parallel,) if benchmark in PARALLEL else ()
        if benchmark is learn:
            arguments += (options.seeds,)
        results = benchmark(options.folder or Path(temporary), *arguments)
    minutes = (time.monotonic() - began) / 60
    write_results(options.output or RESULTS / f"ranks_{options.name}.json", {**machine, "minutes": minutes, **results})
    print(json.dumps({key: value for key, value in results.items() if key != "rows"}, indent=1))
    return 0 if results.get("holds", True) else 1


if __name__ == "__main__":
    sys.exit(main())
