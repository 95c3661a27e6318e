"""Does it help to see? Depth beside blind on the first level of parkour: `python benchmarks/parkour.py`.

Two policies of the same class and size learn to run tracks with steps, hurdles and gaps. One sees a depth image of the
ground before it, the other an image of the same shape that shows nothing: a lid covers its lens. Neither is told of the
blocks. Both are then judged without noise on robots and starts that they never met; a robot succeeds if it leaves all
blocks of its track behind. Writes one JSON object.
"""

import argparse
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

from st_rl.sim.tasks import TASKS

# The first level only; the actor is not told of blocks.
FIRST_LEVEL = {"tracks.num_levels": 1, "curriculum.moves": False, "observe": ("proprioception", "forward_depth")}
POLICIES = {"depth": {"camera.covered": False}, "blind": {"camera.covered": True}}
FEED_FORWARD = {"class_name": "EncoderActorCritic", "actor_hidden_dims": [256, 128, 128]}


def config_of(options: argparse.Namespace, name: str) -> Any:
    """The configuration of the task for one of the policies."""
    return task_config(**{**FIRST_LEVEL, **POLICIES[name], **read_overrides(options.task)})


def train_seed(options: argparse.Namespace, seed: int) -> None:
    """Train the policies that are asked for."""
    for name in options.policies:
        config = TASKS[TASK].training_config() | {"max_iterations": options.iterations}
        if options.feed_forward:
            config["policy"] |= FEED_FORWARD
        config["policy"] |= read_overrides(options.policy)
        config["algorithm"] |= read_overrides(options.algorithm)
        train(config_of(options, name), config, options.runs / f"{name}_{seed}", options, seed)


def judge_seed(options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Success of each policy on each track, and the mean over the tracks with blocks."""
    results = {}
    for name in options.policies:
        cfg, folder = config_of(options, name), options.runs / f"{name}_{seed}"
        tracks = run_tracks(cfg, load_policy(cfg, folder), options.judged, options.speed)
        blocked = [figures["success"] for track, figures in tracks.items() if cfg.tracks.sequences[track]]
        success = sum(blocked) / len(blocked)
        results[name] = {"success": success, "tracks": tracks, "training": read_training(folder)}
        shown = {track: round(figures["success"], 2) for track, figures in tracks.items()}
        print(f"seed {seed} {name}: {success:.2f} {shown}", flush=True)
    return results


def main() -> None:
    parser = make_parser(__doc__, iterations=500, out="parkour.json")
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    parser.add_argument("--feed-forward", action="store_true", help="without a memory")
    parser.add_argument("--policy", nargs="*", default=[], metavar="NAME=JSON", help="settings of the policy")
    parser.add_argument("--algorithm", nargs="*", default=[], metavar="NAME=JSON", help="settings of the algorithm")
    run_stages(parser.parse_args(), "parkour", train_seed, judge_seed)


if __name__ == "__main__":
    main()
