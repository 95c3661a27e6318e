"""Distillation from a privileged teacher to a student with on-board sensors.

Run it as `python benchmarks/distillation.py --device cuda`.

The teacher of quadruped-walk observes velocity, height, feet, friction, mass, motor strength and latency. The students
are recurrent and observe noisy on-board sensors. They are trained

    scratch     with PPO and without a teacher
    dagger      from the teacher's actions alone (using_ppo=False)
    ppo         with PPO and the teacher's actions, in states visited by the student
    latent      as dagger, and from the latents of the teacher's encoders

and evaluated every few iterations by the return of whole episodes without exploration noise, on robots, commands and
pushes not used in training. Writes one JSON file; `--plot FILE` plots the curves of such a file instead.
"""

import argparse
import copy
import json
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch
from plots import start_plot
from seeds import run_seeds

from st_rl.cli.support.torch_setup import seed_everything, use_tensor_cores
from st_rl.engine import Engine
from st_rl.runners import OnPolicyRunner
from st_rl.sim.evaluation.evaluator import preserve_rng_state
from st_rl.sim.tasks import TASKS, make_task, with_overrides

TASK = "quadruped-walk"
RESULTS = Path(__file__).parent / "results"
HELD_OUT_SEED = 20_001
TARGET_FRACTION = 0.9
"""Fraction of the teacher's return that a student should reach."""
NOISY = ["base_ang_vel", "projected_gravity", "joint_pos", "joint_vel"]
ENCODERS = {
    "encoder_component_names": NOISY,
    "encoder_kwargs": {"hidden_sizes": [64], "nonlinearity": "ELU"},
    "encoder_output_size": 16,
}
DAGGER = {"using_ppo": False, "schedule": "fixed", "learning_rate": 1e-3, "update_times_scale": 10}
STUDENTS: dict[str, dict[str, Any]] = {
    "scratch": {},
    "dagger": DAGGER,
    "ppo": {"schedule": "fixed", "learning_rate": 1e-3, "teacher_act_prob": 0.0, "distillation_loss_coef": 1.0},
    "latent": {**DAGGER, "distill_latent_obs_component_mapping": {name: name for name in NOISY}},
}


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--students", nargs="+", choices=STUDENTS, default=list(STUDENTS))
    parser.add_argument("--robots", type=int, help="4,096 on a GPU and 256 on a CPU by default")
    parser.add_argument("--teacher-iterations", type=int, default=220)
    parser.add_argument("--scratch-iterations", type=int, default=220)
    parser.add_argument("--iterations", type=int, default=80, help="iterations of every student with a teacher")
    parser.add_argument(
        "--interval", type=int, default=5, help="iterations between evaluations; twice that without a teacher"
    )
    parser.add_argument("--eval-robots", type=int, default=512, help="robots in an evaluation")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of an evaluated episode")
    parser.add_argument("--memory", type=int, default=128, help="width of the students' recurrent layer")
    parser.add_argument("--hidden", type=int, nargs="+", default=[256, 128, 128])
    parser.add_argument("--settings", type=json.loads, default={}, help='JSON such as {"ppo": {"learning_rate": 1e-3}}')
    parser.add_argument("--output", type=Path, default=RESULTS / "distillation.json")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="plot the curves of a results file")
    options = parser.parse_args()
    options.robots = options.robots or (4096 if options.device.startswith("cuda") else 256)
    return options


def task_config(**overrides: Any) -> Any:
    """The task of the students, without the base velocity."""
    return with_overrides(TASKS[TASK].cfg(), {"observe_linear_velocity": False, **overrides})


class ReturnMeter:
    """Measures the mean return of an episode under the mean actions of a policy in training.

    Every evaluation uses the same robots, commands, noise and pushes. On a GPU one step is a CUDA graph.
    """

    def __init__(self, runner: OnPolicyRunner, options: argparse.Namespace, cfg: Any):
        self._runner = runner
        self._network = copy.deepcopy(runner.alg.actor_critic).eval()
        self._normalizer = copy.deepcopy(runner.alg.obs_normalizer).eval()
        cfg = with_overrides(cfg, {"episode_length_s": options.seconds + 1.0})
        with preserve_rng_state(options.device):
            torch.manual_seed(HELD_OUT_SEED)
            self._env = make_task(TASK, options.eval_robots, options.device, HELD_OUT_SEED, cfg=cfg)
        self._start = self._env.state_dict()
        self._steps = round(options.seconds / self._env.step_dt)
        with torch.inference_mode():
            self._obs = self._env.get_observations()[0]
            self._total = torch.zeros(options.eval_robots, device=options.device)
            self._upright = torch.ones(options.eval_robots, dtype=torch.bool, device=options.device)
        on_gpu = options.device.startswith("cuda")
        engine = Engine("graph" if on_gpu else "eager", options.device)
        self._replay_step = engine.loop(self._step, during_capture=self._env.during_capture if on_gpu else None)

    def _step(self) -> None:
        obs, rewards, dones, _ = self._env.step(self._network.act_inference(self._normalizer(self._obs)))
        self._network.reset(dones)
        self._network.pin_hidden_states()
        self._total.add_(torch.where(self._upright, rewards, 0.0))
        self._upright.logical_and_(~dones)
        self._obs.copy_(obs)

    @torch.inference_mode()
    def __call__(self) -> dict[str, float]:
        """Return and falls of the current policy."""
        self._network.load_state_dict(self._runner.alg.actor_critic.state_dict())
        self._normalizer.load_state_dict(self._runner.alg.obs_normalizer.state_dict())
        with preserve_rng_state(self._env.device):
            torch.manual_seed(HELD_OUT_SEED)
            self._env.load_state_dict(self._start)
            self._network.clear_hidden_states()
            self._network.pin_hidden_states()
            self._obs.copy_(self._env.get_observations()[0])
            self._total.zero_()
            self._upright.fill_(True)
            for _ in range(self._steps):
                self._replay_step()
        return {"return": float(self._total.mean()), "fallen": 1.0 - float(self._upright.float().mean())}


def learn(
    runner: OnPolicyRunner, options: argparse.Namespace, cfg: Any, iterations: int, interval: int
) -> dict[str, Any]:
    """Alternate training and evaluation; returns the curve over environment steps and the seconds of training alone."""
    meter = ReturnMeter(runner, options, cfg)
    curve: dict[str, list[float]] = {"steps": [], "return": [], "fallen": []}
    seconds = 0.0
    for done in range(0, iterations + 1, interval):
        if done:
            began = time.perf_counter()
            runner.learn(interval, init_at_random_ep_len=done == interval)
            if options.device.startswith("cuda"):
                torch.cuda.synchronize()
            seconds += time.perf_counter() - began
        curve["steps"].append(runner.tot_timesteps)
        for name, value in meter().items():
            curve[name].append(value)
    best = max(curve["return"])
    return {"training_seconds": seconds, "last_return": curve["return"][-1], "best_return": best, "curve": curve}


def train_teacher(options: argparse.Namespace, seed: int, path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """A feed-forward policy with privileged observations; its settings and learning curve."""
    seed_everything(seed)
    cfg = task_config(privileged_actor=True)
    config = TASKS[TASK].training_config()
    config["policy"] |= {"actor_hidden_dims": options.hidden, "critic_hidden_dims": options.hidden}
    config["policy"] |= {"class_name": "EncoderActorCritic", **ENCODERS}
    env = make_task(TASK, options.robots, options.device, seed, cfg=cfg)
    runner = OnPolicyRunner(env, config, device=options.device)
    result = learn(runner, options, cfg, options.teacher_iterations, max(1, options.teacher_iterations // 5))
    runner.save(path)
    return {**config["policy"], "teacher_ac_path": str(path)}, result


def train_student(options: argparse.Namespace, name: str, seed: int, teacher: dict[str, Any]) -> dict[str, Any]:
    """A recurrent policy that observes the on-board sensors."""
    seed_everything(1000 + seed)
    cfg = task_config()
    config = TASKS[TASK].training_config()
    config["policy"] |= {"actor_hidden_dims": options.hidden, "critic_hidden_dims": options.hidden}
    config["policy"] |= {"class_name": "ActorCriticRecurrent", "rnn_type": "gru", "rnn_hidden_size": options.memory}
    iterations, interval = options.scratch_iterations, 2 * options.interval
    if name == "latent":
        config["policy"] |= {"class_name": "EncoderActorCriticRecurrent", **ENCODERS}
    config["algorithm"] |= STUDENTS[name] | options.settings.get(name, {})
    if name != "scratch":
        config["algorithm"] |= {"class_name": "TPPO", "teacher_policy": teacher}
        iterations, interval = options.iterations, options.interval
    env = make_task(TASK, options.robots, options.device, 1000 + seed, cfg=cfg)
    runner = OnPolicyRunner(env, config, device=options.device)
    return learn(runner, options, cfg, iterations, interval)


def steps_to(curve: dict[str, list[float]], target: float) -> float | None:
    """Environment steps after which the return first reached a target; None if it never did."""
    return next((steps for steps, value in zip(curve["steps"], curve["return"]) if value >= target), None)


def run_seed(options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """A teacher and its students."""
    path = options.output.parent / f"distillation_teacher_{seed}.pt"
    with redirect_stdout(sys.stderr):
        teacher, result = train_teacher(options, seed, path)
    row: dict[str, Any] = {"seed": seed, "teacher": result, "students": {}}
    target = TARGET_FRACTION * result["last_return"]
    print(f"seed {seed} teacher: return {result['last_return']:.2f} in {result['training_seconds']:.0f} s", flush=True)
    for name in options.students:
        with redirect_stdout(sys.stderr):
            student = train_student(options, name, seed, teacher)
        student["fraction_of_teacher"] = student["last_return"] / result["last_return"]
        student["steps_to_90_percent"] = steps_to(student["curve"], target)
        row["students"][name] = student
        reached = student["steps_to_90_percent"]
        words = "never" if reached is None else f"after {reached / 1e6:.1f} M steps"
        shown = f"{student['fraction_of_teacher']:.0%} of the teacher's return, 90% {words}"
        print(f"seed {seed} {name}: {shown}, {student['training_seconds']:.0f} s", flush=True)
    path.unlink()
    return row


def plot(source: Path) -> Path:
    """Return over environment steps, mean and range of the seeds, as a fraction of the teacher's."""
    import numpy as np

    rows = json.loads(source.read_text())["rows"]
    figure, axes = start_plot(1, (7, 3.6))
    for name in STUDENTS:
        runs = [row for row in rows if name in row["students"]]
        if not runs:
            continue
        steps = np.array(runs[0]["students"][name]["curve"]["steps"]) / 1e6
        fractions = np.array(
            [np.array(r["students"][name]["curve"]["return"]) / r["teacher"]["last_return"] for r in runs]
        )
        (line,) = axes.plot(steps, fractions.mean(axis=0), label=name)
        axes.fill_between(steps, fractions.min(axis=0), fractions.max(axis=0), color=line.get_color(), alpha=0.2, lw=0)
    axes.axhline(TARGET_FRACTION, color="grey", lw=0.8, ls="--")
    axes.set(xlabel="environment steps of the student, millions", ylabel="return / teacher's return", ylim=(0, None))
    axes.legend()
    target = source.with_suffix(".png")
    figure.savefig(target, dpi=110)
    return target


def main() -> None:
    options = parse_options()
    if options.plot is not None:
        print(f"results: {plot(options.plot)}")
        return
    use_tensor_cores(options.device)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    run_seeds(options.output, "distillation", vars(options), lambda seed: run_seed(options, seed))


if __name__ == "__main__":
    main()
