"""Switching between three skills on a track that none of them completes alone: `python benchmarks/skill_switching.py`.

Trains one policy per skill: walking on flat ground, steps up, and steps down. `ActorCriticFieldMutex` (one column of
the obstacle one-hot per skill) and `ActorCriticClimbMutex` (one column for steps, distinguished by their direction)
combine them on a track of steps up and down. Every policy and every combination is evaluated without noise in fine
physics on the last level of four tracks, and the combinations on the mixed one with several lengths of smoothing, all
ways to reset inactive hidden states, and their own speeds. `--stage train` splits the work between processes with
the same `--runs`; `--stage evaluate` merges it. Writes one JSON file and, with matplotlib, a plot.
"""

import argparse
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from parkour_trials import (
    TASK,
    make_parser,
    read_overrides,
    read_training,
    run_stages,
    run_tracks,
    task_config,
    train,
)
from plots import start_plot
from torch import nn

from st_rl.modules import ActorCriticFieldMutex, InferencePolicy, build_actor_critic
from st_rl.sim.tasks import make_task
from st_rl.sim.tasks.training import ppo_config
from st_rl.utils.files import load_checkpoint, newest_checkpoint, save_checkpoint
from st_rl.utils.tensors.segments import get_obs_slice

SKILLS: dict[str, tuple[str, ...]] = {
    "walk": (),
    "step_up": ("step_up",) * 3,
    "step_down": ("step_down",) * 3,
}
MIXED = ("step_up", "step_down", "step_down") * 2
# Tracks evaluated together, and the episode length in s: one more than a robot needs at the commanded speed.
TRACKS = {"skills": (SKILLS, 14.0), "mixed": ({"mixed": MIXED}, 20.0)}
FIELD, CLIMB = "ActorCriticFieldMutex", "ActorCriticClimbMutex"
# Columns of the one-hot: one per kind of step for the first class, the same for both kinds for the second.
IDS = {FIELD: {"step_up": 1, "step_down": 2}, CLIMB: {"step_up": 3, "step_down": 3}}
OBSERVED = {"observe": ("proprioception", "engaging_block"), "tracks.step_height": (0.06, 0.16)}
MEMORY = {"class_name": "ActorCriticRecurrent", "rnn_type": "gru", "rnn_hidden_size": 64}
INPUT_WEIGHTS = "memory_a.rnn.weight_ih_l0"
VARIANTS: dict[str, dict[str, Any]] = {
    "smoothing 5": {"action_smoothing_buffer_len": 5},
    "smoothing 15": {"action_smoothing_buffer_len": 15},
    "reset when_skill": {"reset_non_selected": "when_skill"},
    "no reset": {"reset_non_selected": False},
    "own speeds": {"cmd_vel_mapping": {"1": 0.6, "2": [0.5, 0.7]}},
}


def train_seed(options: argparse.Namespace, seed: int) -> None:
    """One training for each skill."""
    for name in options.skills:
        blocks = SKILLS[name]
        settings = {**OBSERVED, "tracks.sequences": {name: blocks}, "blocks.ids": IDS[FIELD]}
        cfg = task_config(**{**settings, **read_overrides(options.task)})
        config = ppo_config("skill-switching", options.iterations if blocks else options.iterations // 2, (128, 64))
        config["policy"] |= MEMORY
        # A skill has no statistics of obstacles it was not trained on: rely on the fixed scales of the task.
        config["empirical_normalization"] = False
        train(cfg, config, options.runs / f"{name}_{seed}", options, seed)


def evaluation_config(options: argparse.Namespace, ids: dict[str, int], tracks: str) -> Any:
    """The last level of some of `TRACKS`, with an episode long enough to reach the end."""
    sequences, seconds = TRACKS[tracks]
    cfg = task_config(**{**OBSERVED, "episode_length_s": seconds, **read_overrides(options.task)})
    last = cfg.tracks.num_levels - 1
    cfg.tracks.sequences = sequences
    cfg.blocks.ids = ids
    cfg.curriculum.start_levels, cfg.curriculum.enabled = (last, last), False
    return cfg


def renumbered(folder: Path, kind: str) -> Path:
    """A copy of a skill for the other obstacle indices: the weights of two input columns are swapped."""
    checkpoint = newest_checkpoint(folder)
    if checkpoint is None:
        raise FileNotFoundError(f"{folder} has no checkpoint: run the stage 'train' first")
    target = folder.with_name(f"{folder.name}_as_obstacle_{IDS[CLIMB][kind]}")
    segments = make_task(TASK, 1, cfg=task_config(**OBSERVED)).obs_segments
    first = get_obs_slice(segments, "engaging_block")[0].start + ActorCriticFieldMutex.OBSTACLE_ONEHOT_SLICE.start
    columns = [first + IDS[FIELD][kind], first + IDS[CLIMB][kind]]
    snapshot = load_checkpoint(checkpoint, map_location="cpu")
    weights = snapshot["model_state_dict"][INPUT_WEIGHTS] = snapshot["model_state_dict"][INPUT_WEIGHTS].clone()
    weights[:, columns] = weights[:, columns[::-1]]
    save_checkpoint(snapshot, target / checkpoint.name)
    shutil.copy(folder / "config.json", target)
    return target


def combine(cfg: Any, class_name: str, paths: dict[str, Any], **settings: Any) -> InferencePolicy:
    """A policy that combines several skills, loaded from their run folders."""
    env = make_task(TASK, 1, cfg=cfg)
    own = {"sub_policy_class_name": MEMORY["class_name"], "env_action_scale": cfg.control.action_scale}
    return InferencePolicy(build_actor_critic(env, class_name, {**own, **paths, **settings}), nn.Identity())


def evaluate_seed(options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Success of each skill and of the combined policies on every track."""
    folders = [options.runs / f"{name}_{seed}" for name in SKILLS]
    results: dict[str, Any] = {"training": dict(zip(SKILLS, map(read_training, folders))), "evaluated": {}}
    walk, up, down = map(str, folders)

    def evaluate(name: str, class_name: str, tracks: Iterable[str], paths: dict[str, Any], **settings: Any) -> None:
        figures = results["evaluated"][name] = {}
        for some in tracks:
            cfg = evaluation_config(options, IDS[class_name], some)
            policy = combine(cfg, class_name, paths, **settings)
            figures |= run_tracks(cfg, policy, options.eval_robots, options.speed)
        print(
            f"seed {seed} {name}: { {track: round(row['success'], 2) for track, row in figures.items()} }", flush=True
        )

    for skill, path in zip(SKILLS, (walk, up, down)):
        # A single skill is a container with the same sub-policy for every obstacle.
        evaluate(f"{skill} alone", FIELD, TRACKS, {"sub_policy_paths": [path] * 3}, reset_non_selected=False)
    climb_up, climb_down = (str(renumbered(folder, kind)) for folder, kind in zip(folders[1:], IDS[FIELD]))
    together = {
        FIELD: {"sub_policy_paths": [walk, up, down]},
        # Steps are obstacle 3 here; obstacles 1 and 2, hurdles and gaps, are not on these tracks.
        CLIMB: {"sub_policy_paths": [walk, walk, walk, climb_up], "jump_down_policy_path": climb_down},
    }
    for class_name, paths in together.items():
        evaluate(class_name, class_name, TRACKS, paths)
        for name, settings in VARIANTS.items():
            # Speeds are per column of the one-hot; the other class has one column for both kinds of steps.
            if class_name == FIELD or "cmd_vel_mapping" not in settings:
                evaluate(f"{class_name}, {name}", class_name, ["mixed"], paths, **settings)
    return results


def plot(results: dict[str, Any], path: Path) -> None:
    """Success on the mixed track, and the change of the action at a switch."""
    figure, (left, right) = start_plot(2, (10, 4.2))
    seeds = list(results["seeds"].values())
    names = list(seeds[0]["evaluated"])
    for axes, figure_name in ((left, "success"), (right, "jolt")):
        rows = [[seed["evaluated"][name]["mixed"].get(figure_name, 0.0) for seed in seeds] for name in names]
        axes.barh(range(len(names)), [sum(row) / len(row) for row in rows], color="C0", alpha=0.6)
        for place, row in enumerate(rows):
            axes.plot(row, [place] * len(row), ".", color="black", ms=4)
        axes.invert_yaxis()
    left.set(xlabel="success rate on the mixed track", xlim=(0, 1.02), yticks=range(len(names)), yticklabels=names)
    right.set(xlabel="change of the action at a switch", yticks=[])
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = make_parser(__doc__, iterations=220, out="skill_switching.json")
    parser.add_argument("--skills", nargs="+", choices=SKILLS, default=list(SKILLS), help="skills to train")
    run_stages(parser.parse_args(), "skill_switching", train_seed, evaluate_seed, plot)


if __name__ == "__main__":
    main()
