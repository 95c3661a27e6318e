"""Similarity of a gait to its reference: trains a motion-prior task with APPO and with plain PPO and measures both.

    python benchmarks/amp_style.py --device cuda --iterations 300 --jobs 3            # MuJoCo Warp, 4,096 robots
    python benchmarks/amp_style.py --device cpu --minutes 9.5                         # MuJoCo, at most 10 minutes a run
    python benchmarks/amp_style.py --device cuda --iterations 1200 --seeds 1 --gaits trot --only appo --name no_collapse
    python benchmarks/amp_style.py --task humanoid-amp --device cuda --iterations 800 --jobs 2

Plain PPO has the same task and task reward but no reference. The evaluation is without noise, in fine physics, from the
default pose, at the speeds of the clips: error of the mean speed, joint-space distance to the reference over a gait
cycle at the best-matching phase, and phases of the foot contacts. It does not use the discriminator.
Writes benchmarks/results/amp_style.json (named after the task for other tasks, or --out); runs stay under --folder.
"""

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.gait_distance import (
    POINTS,
    contact_offsets,
    cycle_distance,
    gait_cycles,
    joint_distance,
    offset_error,
    stride_frequency,
)
from benchmarks.machine import describe_machine, write_results
from benchmarks.plots import start_plot
from st_rl.cli.support.torch_setup import seed_everything, use_tensor_cores
from st_rl.datasets.gaits import BIPED_GAITS, QUADRUPED_GAITS
from st_rl.runners import build_runner
from st_rl.sim.evaluation.evaluator import make_eval_task
from st_rl.sim.tasks import find_task, make_task, with_overrides
from st_rl.sim.tasks.training import ppo_config
from st_rl.system_info import num_cores

RESULTS = Path(__file__).parent / "results"
ROBOTS_EACH = 4
WARM_UP_S, WALK_S = 2.0, 8.0


class Reference(NamedTuple):
    """References that a task is compared with."""

    gaits: Mapping[str, Any]
    """The gaits of its clips, with `offsets` and `period_s`."""
    speeds: tuple[float, ...]
    """The speeds of the clips, m/s."""
    closer: float
    """Fraction by which APPO should reduce the distance of plain PPO."""


REFERENCES = {
    "quadruped-amp": Reference(QUADRUPED_GAITS, (0.3, 0.5, 0.7, 0.9), closer=0.5),
    "humanoid-amp": Reference(BIPED_GAITS, (0.2, 0.4, 0.6, 0.8), closer=0.4),
}


def task_config(gait: str, algorithm: str, options: argparse.Namespace) -> Any:
    """The task of both algorithms; with plain PPO, episodes do not start from reference states."""
    overrides: dict[str, Any] = {"motions": (gait,), **options.env}
    if algorithm == "ppo":
        overrides["style.start_fraction"] = 0.0
    return with_overrides(find_task(options.task).cfg(), overrides)


def training_config(algorithm: str, options: argparse.Namespace) -> dict[str, Any]:
    """Training configuration: the default of the task, and for plain PPO the same without a discriminator."""
    config = find_task(options.task).training_config()
    hidden = tuple(config["policy"]["actor_hidden_dims"])
    if algorithm == "ppo":
        config = ppo_config(options.task, config["max_iterations"], hidden)
    config |= {"save_interval": 1_000_000, "keep_best": False, "engine": options.engine}
    for name, value in options.set.items() if algorithm == "appo" else ():
        *path, last = name.split(".")
        part = config
        for key in path:
            part = part.setdefault(key, {})
        part[last] = value
    return config


@torch.inference_mode()
def walk(task: Any, policy: Any, commands: torch.Tensor) -> dict[str, torch.Tensor]:
    """Recorded motion under the commands, `(T, N, ...)` each, after the warm-up."""
    task.reset()
    task.hold_commands(commands)
    policy.reset(None)
    rows: dict[str, list[torch.Tensor]] = {"joint_pos": [], "contact": [], "velocity": [], "fell": []}
    fell = torch.zeros(task.num_envs, dtype=torch.bool)
    obs = task.get_observations()[0]
    for _ in range(round((WARM_UP_S + WALK_S) / task.step_dt)):
        obs, _, dones, _ = task.step(policy(obs))
        policy.reset(dones)
        fell |= dones
        for name, value in (
            ("joint_pos", task.joint_pos),
            ("contact", task.foot_contact),
            ("velocity", task.base_lin_vel[:, 0]),
            ("fell", fell),
        ):
            rows[name].append(value.clone())
    warm_up_steps = round(WARM_UP_S / task.step_dt)
    return {name: torch.stack(values)[warm_up_steps:] for name, values in rows.items()}


def reference_cycle(task: Any, gait: str, period_s: float, speed: float) -> torch.Tensor:
    """One stride `(P, J)` of the clip of a gait at a speed."""
    clip = next(clip for clip in task.reference.clips if clip.name == f"{gait}_{speed:g}")
    joint_pos = torch.from_numpy(clip.joint_pos)
    return gait_cycles(joint_pos, 1.0 / period_s, 1.0 / clip.fps, POINTS)[0].float()


def evaluate(
    task: Any, policy: Any, cycles: Mapping[float, torch.Tensor], foot_offsets: Sequence[float]
) -> dict[str, Any]:
    """Metrics of a policy compared with reference strides `(P, J)` by speed, and with the phases of the feet."""
    robots_each = task.num_envs // len(cycles)
    speeds = [speed for speed in cycles for _ in range(robots_each)]
    commands = torch.tensor([[speed, 0.0, 0.0] for speed in speeds])
    recorded = walk(task, policy, commands)
    standing = ~recorded["fell"][-1]
    mean_speed = recorded["velocity"].mean(dim=0)
    frequency = stride_frequency(recorded["joint_pos"], task.step_dt)
    offsets = contact_offsets(recorded["contact"], frequency, task.step_dt)
    joint_pos = recorded["joint_pos"].split(robots_each, dim=1)
    distances = [joint_distance(part, cycle, task.step_dt) for part, cycle in zip(joint_pos, cycles.values())]
    expected = torch.tensor(foot_offsets) - foot_offsets[0]
    errors = offset_error(offsets, expected.double())
    return {
        "falls": int((~standing).sum()),
        "speed_error": float((mean_speed - commands[:, 0]).abs().mean()),
        "speed_mae": float((recorded["velocity"] - commands[:, 0]).abs().mean()),
        "joint_distance": float(torch.cat(distances).mean()),
        "joint_distance_by_speed": {f"{speed:g}": float(part.mean()) for speed, part in zip(cycles, distances)},
        "stride_hz": float(frequency.median()),
        "contact_offsets": [round(float(x), 3) for x in _circular_mean(offsets)],
        "expected_offsets": expected.tolist(),
        "offset_error": float(errors[:, 1:].max(dim=1).values.median()),
        "stance_fraction": float(recorded["contact"].float().mean()),
    }


def evaluate_style(task: str, config: Any, policy: Any) -> dict[str, Any]:
    """Metrics of a policy compared with the gait of its task's clips, on the CPU in fine physics."""
    reference, gait = REFERENCES[task], config.motions[0]
    gait_cfg, robots = reference.gaits[gait], len(reference.speeds) * ROBOTS_EACH
    env = make_eval_task(task, config, robots, WARM_UP_S + WALK_S, 20_001, fine=True)
    cycles = {speed: reference_cycle(env, gait, gait_cfg.period_s, speed) for speed in reference.speeds}
    return evaluate(env, policy, cycles, gait_cfg.offsets)


def clip_style(task: str, config: Any, policy: Any) -> dict[str, Any]:
    """The same for a task with two feet and one recorded clip, at its speed and compared with its mean stride.

    The first second of the clip, in which it may start to walk, is left out. Adds what the clip itself measures: its
    speed, its frequency and the distance of its strides from their mean.
    """
    env: Any = make_eval_task(task, config, 4 * ROBOTS_EACH, WARM_UP_S + WALK_S, 20_001, fine=True)
    clip = env.reference.clips[0]
    first = round(clip.fps)
    joint_pos = torch.from_numpy(clip.joint_pos[first:]).float()
    frequency = float(stride_frequency(joint_pos[:, None], env.step_dt))
    strides = gait_cycles(joint_pos, frequency, env.step_dt)
    mean_stride = strides.mean(dim=0)
    path = clip.root_pos[-1, :2] - clip.root_pos[first, :2]
    speed = float((path**2).sum() ** 0.5) * clip.fps / (len(joint_pos) - 1)
    measured = {"speed": speed, "stride_hz": frequency, "distance": float(cycle_distance(strides, mean_stride).mean())}
    return evaluate(env, policy, {speed: mean_stride}, (0.0, 0.5)) | {"clip": measured}


def _circular_mean(offsets: torch.Tensor) -> torch.Tensor:
    angle = 2.0 * torch.pi * offsets
    return torch.remainder(torch.atan2(angle.sin().mean(dim=0), angle.cos().mean(dim=0)) / (2.0 * torch.pi), 1.0)


def train_and_evaluate(options: argparse.Namespace) -> dict[str, Any]:
    """One run, and its metrics for every reference it is compared with."""
    gait, algorithm, seed = options.one[0], options.one[1], int(options.one[2])
    torch.set_num_threads(1)
    use_tensor_cores(options.device)
    seed_everything(seed)
    config = task_config(gait, algorithm, options)
    env = make_task(options.task, options.robots, options.device, seed, cfg=config)
    folder = options.folder / f"{gait}_{algorithm}_{seed}"
    training = training_config(algorithm, options)
    if options.device == "cpu":
        training["update_threads"] = max(1, num_cores() // options.jobs)
    runner = build_runner(training.get("runner_class_name", "OnPolicyRunner"), env, training, folder, options.device)
    timer = threading.Timer(60.0 * options.minutes, runner.request_stop)
    timer.daemon = True
    start = time.perf_counter()
    timer.start()
    runner.learn(options.iterations, init_at_random_ep_len=True)
    seconds = time.perf_counter() - start
    timer.cancel()
    runner.close()
    policy = runner.get_inference_policy("cpu")
    config.physics = type(config.physics)(num_threads=options.eval_threads)
    result: dict[str, Any] = {
        "gait": gait,
        "algorithm": algorithm,
        "seed": seed,
        "iterations": runner.current_learning_iteration,
        "steps": runner.tot_timesteps,
        "seconds": seconds,
    }
    result["curves"] = read_curves(folder / "progress.csv")
    for compared in [gait] if algorithm == "appo" else options.gaits:
        cfg = with_overrides(config, {"motions": (compared,)})
        result.setdefault("evaluated", {})[compared] = evaluate_style(options.task, cfg, policy)
    return result


def read_curves(path: Path, points: int = 100) -> dict[str, list[float]]:
    """Logged values of style and discriminator at up to `points` iterations."""
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    names = [
        name
        for name in rows[-1]
        if any(
            word in name for word in ("amp_", "style_reward", "task_reward", "lin_vel_x_error", "noise_std", "length")
        )
    ]
    every = max(1, len(rows) // points)
    return {name: [_number(row.get(name)) for row in rows[::every]] for name in names}


def _number(text: str | None) -> float:
    try:
        return float(text or "nan")
    except ValueError:
        return float("nan")


def collapse_figures(result: dict[str, Any]) -> dict[str, Any]:
    """Whether the discriminator stays useful: accuracy on the policy, and style reward relative to its maximum."""
    curves = result["curves"]
    accuracy = next((v for k, v in curves.items() if k.endswith("amp_policy_accuracy")), [])
    style = next((v for k, v in curves.items() if k.endswith("style_reward")), [])
    smooth = [statistics.fmean(style[max(0, i - 4) : i + 1]) for i in range(len(style))]
    later = len(accuracy) // 10
    return {
        "largest_policy_accuracy": max(accuracy[later:], default=float("nan")),
        "final_policy_accuracy": accuracy[-1] if accuracy else float("nan"),
        "final_style_over_best": smooth[-1] / max(smooth) if smooth and max(smooth) > 0 else float("nan"),
    }


def summarize(results: list[dict[str, Any]], gaits: list[str], closer: float) -> dict[str, Any]:
    """Means over seeds for each gait, and whether the targets are met."""
    table: dict[str, Any] = {}
    for gait in gaits:
        row = {}
        for algorithm in ("appo", "ppo"):
            figures = [
                r["evaluated"][gait] for r in results if r["algorithm"] == algorithm and gait in r.get("evaluated", {})
            ]
            if figures:
                row[algorithm] = {
                    key: statistics.fmean(f[key] for f in figures)
                    for key in (
                        "falls",
                        "speed_error",
                        "speed_mae",
                        "joint_distance",
                        "offset_error",
                        "stride_hz",
                    )
                }
                row[algorithm]["offset_error_largest"] = max(f["offset_error"] for f in figures)
        if len(row) == 2:
            row["closer"] = 1.0 - row["appo"]["joint_distance"] / row["ppo"]["joint_distance"]
            row["speed_error_difference"] = row["appo"]["speed_error"] - row["ppo"]["speed_error"]
            row["holds"] = (
                row["closer"] >= closer
                and row["speed_error_difference"] <= 0.03
                and row["appo"]["offset_error_largest"] <= 0.15
            )
        table[gait] = row
    return table


def run_all(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run all trainings in separate processes, `options.jobs` in parallel."""
    runs = [(gait, "appo", seed) for gait in options.gaits for seed in options.seeds]
    runs += [(options.gaits[0], "ppo", seed) for seed in options.seeds]
    waiting = [run for run in runs if options.only is None or run[1] == options.only]
    running: list[tuple[subprocess.Popen[bytes], Path]] = []
    finished: list[dict[str, Any]] = []
    options.folder.mkdir(parents=True, exist_ok=True)
    while waiting or running:
        while waiting and len(running) < options.jobs:
            run = [str(part) for part in waiting.pop(0)]
            path = options.folder / f"{'_'.join(run)}.json"
            command = [sys.executable, __file__, "--one", *run, "--write", str(path), *sys.argv[1:]]
            log = open(path.with_suffix(".log"), "w")  # noqa: SIM115
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            running.append((subprocess.Popen(command, stdout=log, stderr=log, env=environment), path))
        time.sleep(0.2)
        for process, path in [pair for pair in running if pair[0].poll() is not None]:
            running.remove((process, path))
            if process.returncode:
                print(f"{path.stem} failed:\n{path.with_suffix('.log').read_text()[-2000:]}", flush=True)
                continue
            finished.append(json.loads(path.read_text()))
            print_result(finished[-1])
    return finished


def print_result(result: dict[str, Any]) -> None:
    for gait, figures in result["evaluated"].items():
        print(
            f"{result['algorithm']:5} {result['gait']:6} seed {result['seed']} {result['seconds']:5.0f} s "
            f"{result['steps'] / 1e6:6.1f} M steps | compared with {gait:6}: falls {figures['falls']:2d} speed error "
            f"{figures['speed_error']:.3f} joints {figures['joint_distance']:.3f} rad, {figures['stride_hz']:.2f} Hz, "
            f"offsets {figures['contact_offsets']} (error {figures['offset_error']:.2f})",
            flush=True,
        )
    if result["algorithm"] == "appo":
        print("      " + ", ".join(f"{k} {v:.3f}" for k, v in result["collapse"].items()), flush=True)


def plot(source: Path) -> Path:
    """Plot the distance to the reference with and without a prior, and the discriminator accuracy of a long training
    (or, for other tasks, the speed error).
    """
    content = json.loads(source.read_text())
    results, gaits = content["results"], list(content["summary"])
    figure, (bars, curve) = start_plot(2, (9, 3.4))
    for place, gait in enumerate(gaits):
        for shift, (algorithm, color) in enumerate((("appo", "tab:blue"), ("ppo", "tab:gray"))):
            values = [
                r["evaluated"][gait]["joint_distance"]
                for r in results
                if r["algorithm"] == algorithm and gait in r["evaluated"]
            ]
            at = place + 0.36 * shift
            bars.bar(at, statistics.mean(values), 0.32, color=color, label=algorithm.upper() if place == 0 else None)
            bars.plot([at] * len(values), values, "k.", markersize=4)
    places = [place + 0.18 for place in range(len(gaits))]
    bars.set(title="distance to the reference over a stride, rad", xticks=places, xticklabels=gaits)
    bars.legend()
    long_run = source.with_name("no_collapse.json")
    if content["benchmark"] != "amp_style":
        for result in results:
            values = result["curves"]["Tracking/lin_vel_x_error"]
            steps = [result["iterations"] * number / len(values) for number in range(len(values))]
            curve.plot(steps, values, color={"appo": "tab:blue", "ppo": "tab:gray"}[result["algorithm"]])
        curve.set(title="speed error in training, m/s", xlabel="iteration", ylim=(0, None))
    elif long_run.is_file():
        curves = json.loads(long_run.read_text())["results"][0]["curves"]
        for name, label in (("Train/amp_policy_accuracy", "robot"), ("Train/amp_expert_accuracy", "reference")):
            steps = [1200 * number / len(curves[name]) for number in range(len(curves[name]))]
            curve.plot(steps, curves[name], label=f"accuracy on the {label}")
        curve.set(title="training of 1,200 iterations", xlabel="iteration", ylim=(0, 1.02))
        curve.legend()
    target = source.with_suffix(".png")
    figure.savefig(target, dpi=110)
    return target


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="quadruped-amp", choices=list(REFERENCES))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--robots", type=int, help="4,096 on a GPU and 256 on a CPU by default")
    parser.add_argument("--gaits", nargs="+", help="all of the task by default")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--iterations", type=int, default=100_000)
    parser.add_argument("--minutes", type=float, default=9.5, help="limit of the training time")
    parser.add_argument("--jobs", type=int, default=1, help="parallel runs")
    parser.add_argument("--engine", default="auto", choices=("auto", "eager", "compile", "graph"))
    parser.add_argument("--only", choices=("appo", "ppo"))
    parser.add_argument("--set", type=json.loads, default={}, help='settings of APPO: {"algorithm.desired_kl": 0.01}')
    parser.add_argument(
        "--env", type=json.loads, default={}, help='settings of the task: {"style.start_fraction": 1.0}'
    )
    parser.add_argument("--eval-threads", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path("runs/amp_style"))
    parser.add_argument("--name", help="amp_style by default, for other tasks the task name")
    parser.add_argument("--out", type=Path, help="results file; benchmarks/results/NAME.json by default")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="plot a results file, with no_collapse.json of the same folder"
    )
    parser.add_argument("--one", nargs=3, metavar=("GAIT", "ALGORITHM", "SEED"), help=argparse.SUPPRESS)
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    gaits = list(REFERENCES[options.task].gaits)
    options.gaits = options.gaits or gaits
    if unknown := set(options.gaits) - set(gaits):
        parser.error(f"{options.task} has no gait {', '.join(sorted(unknown))}; it has {', '.join(gaits)}")
    options.name = options.name or ("amp_style" if options.task == "quadruped-amp" else options.task.replace("-", "_"))
    options.env = {key: tuple(v) if isinstance(v, list) else v for key, v in options.env.items()}
    options.robots = options.robots or (4096 if options.device.startswith("cuda") else 256)
    return options


def main() -> None:
    options = parse_options()
    if options.plot:
        print(f"results: {plot(options.plot)}")
        return
    if options.one:
        result = train_and_evaluate(options)
        if result["algorithm"] == "appo":
            result["collapse"] = collapse_figures(result)
        options.write.write_text(json.dumps(result))
        return
    results = run_all(options)
    summary = summarize(results, options.gaits, REFERENCES[options.task].closer)
    print(json.dumps(summary, indent=1))
    named = {k: v for k, v in vars(options).items() if k not in ("one", "write", "plot") and not isinstance(v, Path)}
    content = {
        "benchmark": options.name,
        "options": named,
        **describe_machine(),
        "summary": summary,
        "results": results,
    }
    write_results(options.out or RESULTS / f"{options.name}.json", content)


if __name__ == "__main__":
    main()
