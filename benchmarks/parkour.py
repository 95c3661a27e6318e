"""Depth compared with blind on the first level of parkour: `python benchmarks/parkour.py`.

Trains two policies of the same class and size on tracks with hurdles and gaps. One observes a depth image of the
ground in front of it, the other a blank image of the same shape; neither observes `engaging_block`. The block sizes
grow during training to slightly beyond the first level. Both are evaluated on the first level, without noise and in
fine physics, with robots, initial states and block distances not used in training; a robot succeeds if it clears all
blocks of its track. `--stage train` and `--policies` split the work between processes with the same `--runs`; `--stage
evaluate` merges it. Writes one JSON file and, with matplotlib, a plot.
"""

import argparse
from pathlib import Path
from typing import Any

from parkour_trials import (
    TASK,
    load_policy,
    make_parser,
    read_overrides,
    read_training,
    run_stages,
    run_tracks,
    task_config,
    train,
)
from plots import start_plot

from st_rl.sim.tasks import TASKS
from st_rl.sim.terrain.parkour_tracks import TracksCfg

OBSERVED = {"observe": ("proprioception", "forward_depth")}
TRACKS: dict[str, tuple[str, ...]] = {
    "hurdle": ("hurdle",) * 3,
    "gap": ("gap",) * 3,
    "both": ("gap", "hurdle", "gap"),
}
FIRST = TracksCfg(TRACKS)
# Block sizes grow from almost nothing over the first level of the task (level 3 of 4 here) to slightly beyond it, at
# speeds that reach the end of a track within an episode.
TRAINED = {
    "tracks.sequences": TRACKS,
    "tracks.num_levels": 4,
    "tracks.hurdle_height": (0.03, 1.5 * FIRST.hurdle_height[0] - 0.015),
    "tracks.gap_length": (0.06, 1.5 * FIRST.gap_length[0] - 0.03),
    "commands.lin_vel_x": (0.6, 1.0),
}
# Another seed, so that the distances between blocks differ from those in training.
EVALUATED = {
    "tracks.sequences": {"walk": (), **TRACKS},
    "tracks.num_levels": 1,
    "tracks.seed": 1,
    "curriculum.enabled": False,
}
POLICIES = {"depth": {"camera.covered": False}, "blind": {"camera.covered": True}}
FEED_FORWARD = {"class_name": "EncoderActorCritic", "actor_hidden_dims": [256, 128, 128]}


def config_of(options: argparse.Namespace, name: str, settings: dict[str, Any]) -> Any:
    """The configuration of the task of one policy, for training or evaluation."""
    return task_config(**{**OBSERVED, **settings, **POLICIES[name], **read_overrides(options.task)})


def train_seed(options: argparse.Namespace, seed: int) -> None:
    """Train the selected policies with one seed."""
    for name in options.policies:
        config = TASKS[TASK].training_config() | {"max_iterations": options.iterations}
        if options.feed_forward:
            config["policy"] |= FEED_FORWARD
        config["policy"] |= read_overrides(options.policy)
        config["algorithm"] |= read_overrides(options.algorithm)
        train(config_of(options, name, TRAINED), config, options.runs / f"{name}_{seed}", options, seed)


def evaluate_seed(options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Success of each policy on each track, and the mean over the tracks with blocks."""
    results = {}
    for name in options.policies:
        cfg, folder = config_of(options, name, EVALUATED), options.runs / f"{name}_{seed}"
        tracks = run_tracks(cfg, load_policy(cfg, folder), options.eval_robots, options.speed)
        blocked = [figures["success"] for track, figures in tracks.items() if cfg.tracks.sequences[track]]
        success = sum(blocked) / len(blocked)
        results[name] = {"success": success, "tracks": tracks, "training": read_training(folder)}
        shown = {track: round(figures["success"], 2) for track, figures in tracks.items()}
        print(f"seed {seed} {name}: {success:.2f} {shown}", flush=True)
    return results


def plot(results: dict[str, Any], path: Path) -> None:
    """Plot the success rate on each track and the curriculum level during training."""
    figure, (left, right) = start_plot(2, (9, 3.4))
    seeds, names = list(results["seeds"].values()), list(results["settings"]["policies"])
    tracks = list(seeds[0][names[0]]["tracks"])
    for place, name in enumerate(names):
        rates = [[seed[name]["tracks"][track]["success"] for seed in seeds] for track in tracks]
        means = [sum(row) / len(row) for row in rates]
        where = [track + 0.4 * (place - 0.5) for track in range(len(tracks))]
        left.bar(where, means, width=0.38, label=name, color=f"C{place}", alpha=0.6)
        for x, row in zip(where, rates):
            left.plot([x] * len(row), row, ".", color="black", ms=4)
        for index, seed in enumerate(seeds):
            training = seed[name]["training"]
            curve = training["curves"]["Parkour/level"]
            iterations = [training["iterations"] * (i + 1) / len(curve) for i in range(len(curve))]
            right.plot(iterations, curve, color=f"C{place}", label=None if index else name)
    left.set(ylabel="success rate", ylim=(0, 1.05), xticks=range(len(tracks)), xticklabels=tracks)
    right.set(xlabel="iteration", ylabel="mean curriculum level")
    right.legend()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = make_parser(__doc__, iterations=320, out="parkour.json")
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    parser.add_argument("--feed-forward", action="store_true", help="feed-forward policies instead of recurrent ones")
    parser.add_argument("--policy", nargs="*", default=[], metavar="NAME=JSON", help="settings of the policy")
    parser.add_argument("--algorithm", nargs="*", default=[], metavar="NAME=JSON", help="settings of the algorithm")
    run_stages(parser.parse_args(), "parkour", train_seed, evaluate_seed, plot)


if __name__ == "__main__":
    main()
