"""Trains quadruped-rough, a flat-ground policy and blind students; evaluates all.

    python benchmarks/rough.py train --device cuda --seeds 1 2 3      # MuJoCo Warp, 4,096 robots
    python benchmarks/rough.py evaluate --seeds 1 2 3                 # CPU, fine physics
    python benchmarks/rough.py train --policies rough --runs runs/kl -- --algorithm.desired-kl 0.01

    rough     teacher that observes the height scan, base velocity, friction and masses
    flat      quadruped-walk, trained with the same settings
    student   recurrent policy that observes on-board sensors only, trained by `st-rl distill` with the teacher `rough`
              and with PPO
    tuned     the policy `student`, trained further with PPO alone; not among the default policies

Arguments after `--` are passed to `st-rl train` of `rough`. The evaluation needs only the small run folders under
--runs. It commands 0.5 m/s on slopes of 15 degrees, steps of 8 cm and rubble of 5 cm, 64 robots each, from the middle
of a patch in all directions: a robot succeeds if it passes the rough terrain, 3 m away, in time and without a fall. It
also compares tracking in training physics with fine physics on the CPU, and measures survival under pushes, a heavier
trunk, other friction and latency. Writes benchmarks/results/rough.json (or --out) and a plot of the same name.
"""

import argparse
import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import torch
from machine import describe_machine, write_results
from plots import can_plot, start_plot
from robustness import Plan, evaluate_tracking, few_iterations, sim_to_sim, survival_table
from run_files import (
    TRAINED,
    add_sizes,
    make_parser,
    parse_options,
    read_trained,
    run_training,
    strip_checkpoints,
    summarize_training,
)
from seeds import with_spread

from st_rl.cli.support.run_folders.loaded_run import LoadedRun
from st_rl.cli.support.run_folders.run_folder import TEACHER_FILE, RunFolder
from st_rl.sim.tasks import make_task, with_overrides

TASK = "quadruped-rough"
RESULTS = Path(__file__).parent / "results"
HELD_OUT_SEED = 20_001
SPEED = 0.5
POLICIES = ("rough", "flat", "student", "tuned")
# The teacher's actor gets all critic observations; the student's actor gets neither height scan nor base velocity.
TEACHER = ("--env.privileged-actor", "--env.no-observe-linear-velocity", "--env.no-observe-scan")
# PPO with a decaying distillation loss: a student without a height scan has to lift its feet differently from its
# teacher, which imitation alone does not teach. All actions are the student's, on terrain of all levels.
STUDENT = (
    *("--distillation.using-ppo", "--distillation.teacher-act-prob", "0"),
    *("--distillation.distillation-loss-coef", "exp", "--distillation.update-times-scale", "40"),
    *("--algorithm.learning-rate", "0.0005", "--env.curriculum.start-levels", "0", "7"),
)
# PPO alone, from the student; small steps, because it walks already.
TUNED = (
    *("--env.curriculum.start-levels", "0", "7", "--algorithm.learning-rate", "0.0003"),
    *("--algorithm.desired-kl", "0.01", "--algorithm.num-learning-epochs", "3"),
)
COURSES = {
    "slope of 15 degrees, up": "slope_up",
    "slope of 15 degrees, down": "slope_down",
    "steps of 8 cm, up": "steps_up",
    "steps of 8 cm, down": "steps_down",
    "rubble of 5 cm": "rubble",
}
COURSE = {
    "terrain.kinds": tuple(COURSES.values()),
    "terrain.num_levels": 1,
    "terrain.slope": (15.0, 15.0),
    "terrain.step_height": (0.08, 0.08),
    "terrain.rubble_height": (0.05, 0.05),
    "curriculum.start_levels": (0, 0),
    "curriculum.enabled": False,
}
# Targets: the smallest allowed success rate on the hardest course.
TARGETS = {"rough": 0.9, "student": 0.8, "tuned": 0.8}
CURVES = {"reward": "Train/mean_reward", "level": "Terrain/level", "episode_length": "Train/mean_episode_length"}


def train(options: argparse.Namespace, name: str, seed: int) -> None:
    """Train from the command line; the time is written to the run folder."""
    run = options.runs / f"{name}_{seed}"
    plans = {
        "rough": (["train", TASK], options.iterations, [*TEACHER, *options.more]),
        "flat": (["train", "quadruped-walk"], options.flat_iterations, []),
        "student": (
            ["distill", str(options.runs / f"rough_{seed}"), TASK],
            options.student_iterations,
            [*STUDENT, *options.student_options],
        ),
        "tuned": (
            ["train", TASK, "--from", str(options.runs / f"student_{seed}")],
            options.tuned_iterations,
            [*TUNED, *options.tuned_options],
        ),
    }
    arguments, iterations, more = plans[name]
    arguments += ["--seed", str(seed), "--device", options.device, "--num-envs", str(options.robots)]
    arguments += ["--iterations", str(iterations), "--runner.keep-last", "1", "--runner.engine", options.engine]
    arguments += ["--minutes", str(options.minutes)] if options.minutes else []
    arguments += more
    trained = run_training(arguments, run, CURVES)
    arguments = [word for word in arguments if not word.startswith(str(options.runs))]
    if not options.courses_only:
        # Training physics on the device of the training.
        policy, cfg = load(run, options.device)
        trained["own_physics"] = evaluate_tracking(
            TASK, course(cfg), policy, evaluation_plan(), fine=False, device=options.device
        )
    write_results(run / TRAINED, {**trained, "arguments": arguments, **describe_machine()})
    keep_policy_only(run)
    ends = {key: values[-1] for key, values in trained["curve"].items() if values}
    ends.update(trained.get("own_physics", {}))
    print(f"{run.name}: {summarize_training(trained)} {json.dumps(ends)}", flush=True)


def keep_policy_only(run: Path) -> None:
    """Keep in a run folder only what an evaluation needs, without environment states and the copy of the teacher."""
    for path in (*run.glob("model_*.pt"), *run.glob(TEACHER_FILE)):
        path.unlink()
    strip_checkpoints(run)


def load(run: Path, device: str) -> tuple[Any, Any]:
    """The best policy of a run, and a configuration of rough terrain with the actor observations of its training."""
    if run.name.startswith("student") and not (run / TEACHER_FILE).exists():
        teacher = RunFolder(run.with_name(run.name.replace("student", "rough"))).checkpoint()
        shutil.copyfile(teacher, run / TEACHER_FILE)
    saved = LoadedRun(RunFolder(run))
    env = make_task(saved.source.name, 1, device, cfg=saved.env_config)
    policy = saved.load_policy(env, saved.run.checkpoint(), device)
    if saved.source.name == TASK:
        return policy, saved.env_config
    from st_rl.sim.tasks.quadruped_rough import QuadrupedRoughCfg

    # The flat-ground policy keeps its gait settings and has no height scan.
    walk = saved.env_config
    overrides = {"observe_scan": False, "observe_linear_velocity": walk.observe_linear_velocity, "gait": walk.gait}
    return policy, with_overrides(QuadrupedRoughCfg(), overrides)


def course(cfg: Any) -> Any:
    """The terrain of the evaluation."""
    return with_overrides(cfg, COURSE)


def evaluation_plan() -> Plan:
    """Configuration of the comparison between simulators and under disturbances."""
    return Plan(commands=((0.3, 0.7), (0.0, 0.0), (0.0, 0.0)))


@torch.inference_mode()
def cross(cfg: Any, policy: Any, robots_each: int, seconds: float) -> dict[str, dict[str, Any]]:
    """Robots cross every course once, on the CPU in fine physics; fractions that succeed, fall and are too slow."""
    evaluated = with_overrides(course(cfg).for_evaluation(fine=True), {"episode_length_s": seconds + 1.0})
    env: Any = make_task(TASK, robots_each * len(COURSES), "cpu", HELD_OUT_SEED, cfg=evaluated)
    policy.actor_critic.clear_hidden_states()
    env.hold_commands(torch.tensor([[SPEED, 0.0, 0.0]]).repeat(env.num_envs, 1))
    going = torch.ones(env.num_envs, dtype=torch.bool)
    success, fell = torch.zeros(2, env.num_envs, dtype=torch.bool)
    took = torch.full((env.num_envs,), torch.nan)
    obs = env.get_observations()[0]
    for step in range(round(seconds / env.step_dt)):
        obs, _, dones, _ = env.step(policy(obs))
        policy.reset(dones)
        fell |= going & dones
        # An episode that ended has already been reset; stop counting it.
        going &= ~dones
        arrives = going & (env.farthest >= env.rim)
        took[arrives] = (step + 1) * env.step_dt
        success |= arrives
        going &= ~arrives
        if not bool(going.any()):
            break
    outcomes = {}
    for index, name in enumerate(COURSES):
        mine = env.kind == index
        outcomes[name] = {
            "robots": robots_each,
            "success": float(success[mine].float().mean()),
            "fell": float(fell[mine].float().mean()),
            "too_slow": float(going[mine].float().mean()),
            "seconds": float(took[mine].nanmean()) if bool(success[mine].any()) else None,
        }
    return outcomes


def evaluate(options: argparse.Namespace, name: str, seed: int) -> dict[str, Any]:
    """All metrics of a policy on the CPU."""
    run = options.runs / f"{name}_{seed}"
    trained = read_trained(run)
    policy, cfg = load(run, "cpu")
    courses = cross(cfg, policy, options.eval_robots, options.seconds)
    shown = {key: round(row["success"], 2) for key, row in courses.items()}
    worst = min(row["success"] for row in courses.values())
    print(f"{run.name}: {worst:.0%} on the hardest, {shown}", flush=True)
    figures: dict[str, Any] = {"courses": courses, "worst": worst, "training": trained}
    if name in TARGETS:
        figures["holds"] = worst >= TARGETS[name]
    if not options.courses_only:
        own = trained.get("own_physics") or evaluate_tracking(TASK, course(cfg), policy, evaluation_plan(), fine=False)
        figures["sim_to_sim"] = sim_to_sim(own, evaluate_tracking(TASK, course(cfg), policy, evaluation_plan()))
        print(f"{run.name}: tracking loss in fine physics {figures['sim_to_sim']['tracking_loss']:.1%}", flush=True)
        if name != "flat":
            figures["few_iterations_on_the_cpu"] = few_iterations(TASK, course(cfg), policy, evaluation_plan())
            figures["survival"] = survival_table(TASK, course(cfg), policy, evaluation_plan(), report=print)
    return figures


def plot(results: dict[str, Any], path: Path) -> None:
    """Success on each course, and the level of the teachers over the training time."""
    if not can_plot():
        return
    figure, (bars, curve) = start_plot(2, (9.5, 3.6), width_ratios=(3, 2))
    seeds = list(results["seeds"].values())
    names = [name for name in POLICIES if all(name in row for row in seeds)]
    for index, name in enumerate(names):
        means = [sum(row[name]["courses"][c]["success"] for row in seeds) / len(seeds) for c in COURSES]
        places = [place + (index - (len(names) - 1) / 2) * 0.27 for place in range(len(COURSES))]
        bars.bar(places, means, width=0.25, label=name)
    bars.set_xticks(range(len(COURSES)), [name.replace(", ", "\n").replace(" of ", "\n") for name in COURSES])
    bars.set(ylabel="success rate", ylim=(0, 1.05))
    bars.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(names))
    for row in seeds:
        learned = row.get("rough", {}).get("training", {}).get("curve")
        if learned:
            # In the color of the teachers' bars.
            curve.plot(learned["seconds"][: len(learned["level"])], learned["level"], color="C0", linewidth=1)
    curve.set(xlabel="seconds of training", ylabel="mean terrain level of each teacher")
    figure.savefig(path, dpi=110)


def read_options() -> argparse.Namespace:
    parser = make_parser(__doc__, Path("runs/rough"), RESULTS / "rough.json")
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=["rough", "flat", "student"])
    add_sizes(parser, iterations=360, cpu_robots=256)
    parser.add_argument("--flat-iterations", type=int, default=150)
    parser.add_argument("--student-iterations", type=int, default=200)
    parser.add_argument(
        "--student-options", type=shlex.split, default=[], help='such as --student-options="--policy.rnn-type lstm"'
    )
    parser.add_argument("--tuned-iterations", type=int, default=300)
    parser.add_argument("--tuned-options", type=shlex.split, default=[], help="like --student-options")
    parser.add_argument("--eval-robots", type=int, default=64, help="robots on each course")
    parser.add_argument("--seconds", type=float, default=12.0, help="time limit to cross a course")
    parser.add_argument("--courses-only", action="store_true", help="crossing only, no tracking")
    return parse_options(parser)


def main() -> None:
    options = read_options()

    if options.stage == "train":
        for seed in options.seeds:
            for name in options.policies:
                train(options, name, seed)
        return
    settings = {"speed": SPEED, "robots_each": options.eval_robots, "seconds": options.seconds}
    seeds = {
        str(seed): {
            name: evaluate(options, name, seed)
            for name in options.policies
            if (options.runs / f"{name}_{seed}").is_dir()
        }
        for seed in options.seeds
    }
    results = {"benchmark": "rough", "promises": TARGETS, "settings": settings, **describe_machine(), "seeds": seeds}
    results = with_spread(results)
    write_results(options.out, results)
    plot(results, options.out.with_suffix(".png"))
    print(f"results: {options.out}")


if __name__ == "__main__":
    main()
