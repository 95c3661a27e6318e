"""Three skills and a track that none of them can run alone: `python benchmarks/skill_switching.py`.

Three policies learn one skill each: to walk on flat ground, to climb steps up, and to climb steps down. Combined by
`ActorCriticFieldMutex` (a column of the obstacle one-hot for each skill) and by `ActorCriticClimbMutex` (one column for
steps, told apart by their direction) they run a track of steps up and down. Every policy and every combination is
judged without noise on four tracks, with several lengths of smoothing and all ways to reset unselected memories. Writes
one JSON object.
"""

import argparse
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
from torch import nn

from st_rl.modules import build_actor_critic
from st_rl.runners.inference_policy import InferencePolicy
from st_rl.sim.tasks import make_task
from st_rl.sim.tasks.training import ppo_config

SKILLS: dict[str, tuple[str, ...]] = {
    "walk": (),
    "step_up": ("step_up",) * 3,
    "step_down": ("step_down",) * 3,
}
MIXED = ("step_up", "step_down", "step_up", "step_down")
FIELD, CLIMB = "ActorCriticFieldMutex", "ActorCriticClimbMutex"
# Columns of the one-hot: each kind of step its own for the one container, both the same for the other.
IDS = {FIELD: {"step_up": 1, "step_down": 2}, CLIMB: {"step_up": 3, "step_down": 3}}
OBSERVED = {"observe": ("proprioception", "engaging_block")}
MEMORY = {"class_name": "ActorCriticRecurrent", "rnn_type": "gru", "rnn_hidden_size": 64}
VARIANTS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "smoothing 5": {"action_smoothing_buffer_len": 5},
    "smoothing 15": {"action_smoothing_buffer_len": 15},
    "reset when_skill": {"reset_non_selected": "when_skill"},
    "no reset": {"reset_non_selected": False},
}


def train_seed(options: argparse.Namespace, seed: int) -> None:
    """One training for each skill."""
    for name, blocks in SKILLS.items():
        settings = {**OBSERVED, "tracks.sequences": {name: blocks}, "blocks.ids": IDS[FIELD]}
        cfg = task_config(**{**settings, **read_overrides(options.task)})
        config = ppo_config("skill-switching", options.iterations if blocks else options.iterations // 2, (128, 64))
        config["policy"] |= MEMORY
        # A skill that never met some obstacle has no statistics for it: the fixed scales of the task must do.
        config["empirical_normalization"] = False
        train(cfg, config, options.runs / f"{name}_{seed}", options, seed)


def judged_config(options: argparse.Namespace, ids: dict[str, int]) -> Any:
    """The last level of the tracks of all skills and of the mixed one, with time to run to the end."""
    cfg = task_config(**{**OBSERVED, "episode_length_s": 14.0, **read_overrides(options.task)})
    last = cfg.tracks.num_levels - 1
    cfg.tracks.sequences = {**SKILLS, "mixed": MIXED}
    cfg.blocks.ids = ids
    cfg.curriculum.start_levels, cfg.curriculum.moves = (last, last), False
    return cfg


def combine(cfg: Any, class_name: str, paths: dict[str, Any], **settings: Any) -> InferencePolicy:
    """Several skills in one policy, straight from their run folders."""
    env = make_task(TASK, 1, cfg=cfg)
    own = {"sub_policy_class_name": MEMORY["class_name"], "env_action_scale": cfg.control.action_scale}
    return InferencePolicy(build_actor_critic(env, class_name, {**own, **paths, **settings}), nn.Identity())


def judge_seed(options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Success of the skills alone and together on every track."""
    folders = [options.runs / f"{name}_{seed}" for name in SKILLS]
    results: dict[str, Any] = {"training": dict(zip(SKILLS, map(read_training, folders))), "judged": {}}
    field, climb = (judged_config(options, ids) for ids in IDS.values())
    walk, up, down = map(str, folders)

    def judge(name: str, cfg: Any, policy: InferencePolicy) -> None:
        tracks = results["judged"][name] = run_tracks(cfg, policy, options.judged, options.speed)
        shown = {track: round(figures["success"], 2) for track, figures in tracks.items()}
        print(f"seed {seed} {name}: {shown}", flush=True)

    for skill, path in zip(SKILLS, (walk, up, down)):
        # One skill for whatever comes is a container with nothing to choose from.
        judge(
            f"{skill} alone", field, combine(field, FIELD, {"sub_policy_paths": [path] * 3}, reset_non_selected=False)
        )
    in_field = {"sub_policy_paths": [walk, up, down]}
    # Steps are obstacle 3 here; obstacles 1 and 2, hurdles and gaps, are not on these tracks.
    in_climb = {"sub_policy_paths": [walk, walk, walk, up], "jump_down_policy_path": down}
    for name, settings in VARIANTS.items():
        judge(f"{FIELD}, {name}", field, combine(field, FIELD, in_field, **settings))
        judge(f"{CLIMB}, {name}", climb, combine(climb, CLIMB, in_climb, **settings))
    own_speeds = {"cmd_vel_mapping": {"1": 0.6, "2": [0.5, 0.7]}}
    judge(f"{FIELD}, own speeds", field, combine(field, FIELD, in_field, **own_speeds))
    return results


def main() -> None:
    parser = make_parser(__doc__, iterations=500, out="skill_switching.json")
    run_stages(parser.parse_args(), "skill_switching", train_seed, judge_seed)


if __name__ == "__main__":
    main()
