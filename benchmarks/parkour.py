"""Does it help to see? Depth beside blind on the first level of parkour: `python benchmarks/parkour.py`.

Two policies of the same class and size learn to run tracks with steps, hurdles and gaps. One sees a depth image of the
ground before it, the other an image of the same shape that shows nothing: a lid covers its lens. Neither is told of the
blocks. Both are then judged without noise on robots and starts that they never met; a robot succeeds if it leaves all
blocks of its track behind. Writes one JSON object.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from machine import describe_machine, write_results
from parkour_trials import TASK, read_overrides, run_tracks, task_config, train

from st_rl.cli.training import use_tensor_cores
from st_rl.sim.tasks import TASKS

RESULTS = Path(__file__).parent / "results"
# The first level only; the actor is not told of blocks.
FIRST_LEVEL = {"tracks.num_levels": 1, "curriculum.moves": False, "observe": ("proprioception", "forward_depth")}
POLICIES = {"depth": {"camera.covered": False}, "blind": {"camera.covered": True}}
FEED_FORWARD = {"class_name": "EncoderActorCritic", "actor_hidden_dims": [256, 128, 128]}


def run_seed(options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Train and judge both policies."""
    results = {}
    for name in options.policies:
        cfg = task_config(**{**FIRST_LEVEL, **POLICIES[name], **read_overrides(options.task)})
        config = TASKS[TASK].training_config()
        if options.feed_forward:
            config["policy"] |= FEED_FORWARD
        config["policy"] |= read_overrides(options.policy)
        config["algorithm"] |= read_overrides(options.algorithm)
        folder = options.runs / f"{name}_{seed}"
        runner, training = train(cfg, config, folder, seed, options.device, options.robots, options.iterations)
        policy = runner.get_inference_policy("cpu")
        parameters = sum(parameter.numel() for parameter in runner.alg.actor_critic.parameters())
        tracks = run_tracks(cfg, policy, options.judged, options.speed)
        blocked = [figures["success"] for track, figures in tracks.items() if cfg.tracks.sequences[track]]
        results[name] = {
            "parameters": parameters,
            "success": sum(blocked) / len(blocked),
            "tracks": tracks,
            "training": training,
        }
        shown = {track: round(figures["success"], 2) for track, figures in tracks.items()}
        print(f"seed {seed} {name}: {results[name]['success']:.2f} {shown} {training['seconds']:.0f} s", flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--robots", type=int, help="256 on a CPU, 4,096 on a GPU")
    parser.add_argument("--iterations", type=int, default=400)
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    parser.add_argument("--feed-forward", action="store_true", help="without a memory")
    parser.add_argument("--judged", type=int, default=64, help="robots that are judged on each track")
    parser.add_argument("--speed", type=float, default=0.75, help="command in the judgement, m/s")
    parser.add_argument("--task", nargs="*", default=[], metavar="NAME=JSON", help="settings of the task")
    parser.add_argument("--policy", nargs="*", default=[], metavar="NAME=JSON", help="settings of the policy")
    parser.add_argument("--algorithm", nargs="*", default=[], metavar="NAME=JSON", help="settings of the algorithm")
    parser.add_argument("--runs", type=Path, help="where run folders go; a temporary folder by default")
    parser.add_argument("--out", type=Path, default=RESULTS / "parkour.json")
    options = parser.parse_args()
    options.robots = options.robots or (4096 if options.device.startswith("cuda") else 256)
    settings = {name: value for name, value in vars(options).items() if name not in ("runs", "out")}
    options.runs = options.runs or Path(tempfile.mkdtemp())
    use_tensor_cores(options.device)
    torch.set_num_threads(1)
    results: dict[str, Any] = {"benchmark": "parkour", **describe_machine(), "settings": settings, "seeds": {}}
    for seed in options.seeds:
        results["seeds"][str(seed)] = run_seed(options, seed)
        write_results(options.out, results)


if __name__ == "__main__":
    main()
