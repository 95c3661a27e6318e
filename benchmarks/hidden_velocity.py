"""State estimation of a recurrent policy: accuracy of the estimates, and tracking errors.

Run it as `python benchmarks/hidden_velocity.py EXPERIMENT`:

    velocity     StateAcRecurrent with EstimatorPPO, which estimates the base velocity, compared with a plain recurrent
                 policy of equal size; neither observes the base velocity
    adaptor      PrivilegeStateAcRecurrent, which also estimates friction, mass, motor strength and latency
    misaligned   EncoderStateAcRecurrent, continued with an added observation component and another component order

Every policy is evaluated without exploration noise on robots and commands not used in training; the adaptor also with
exploration noise. Writes one JSON file; `plot_hidden.py` merges and plots those of several seeds.
"""

import argparse
import copy
import itertools
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from machine import describe_machine, write_results
from parkour_trials import learn_with_time_limit
from seeds import with_spread
from torch import Tensor

from st_rl.cli.support.torch_setup import seed_everything, use_tensor_cores
from st_rl.env import VecEnv
from st_rl.modules import policy_classes
from st_rl.modules.policy.misaligned import load_misaligned_normalizer
from st_rl.runners import OnPolicyRunner
from st_rl.sim.evaluation.command_grid import EvaluationCfg, command_grid, command_ranges
from st_rl.sim.evaluation.evaluator import evaluate_walk, make_eval_task
from st_rl.sim.tasks import TASKS, make_task, with_overrides
from st_rl.utils.tensors.segments import get_obs_slice, get_subobs_size, segment_slices

TASK = "quadruped-walk"
RESULTS = Path(__file__).parent / "results"
HELD_OUT_SEED = 20_001
HIDDEN = "base_lin_vel"
PROPERTIES = ("friction", "base mass", "motor strength", "latency")
# Randomization ranges wide enough to change how a policy has to act.
WIDE = {
    "randomization.friction": (0.3, 1.25),
    "randomization.base_mass": (0.8, 1.5),
    "randomization.motor_strength": (0.7, 1.2),
    "control.latency_s": (0.0, 0.02),
}
TRACKING = ("falls", "lin_vel_x_error", "lin_vel_y_error", "ang_vel_yaw_error", "lin_vel_x_mae", "lin_vel_y_mae")
POLICIES = ["estimator", "plain"]
ESTIMATOR = {"estimator_target_components": [HIDDEN], "replace_state_prob": 1.0}
# Estimate from the hidden state of the actor; the actor receives no estimate.
SHARED = {"estimator_target_components": [HIDDEN], "use_actor_rnn": True}


@dataclass
class Settings:
    """Settings of an experiment, from the command line."""

    device: str
    robots: int
    iterations: int
    memory: int
    hidden: list[int]
    seconds: float
    eval_robots: int
    limit: float | None
    policies: list[str]
    shared: bool
    loss_coef: float

    def policy(self, class_name: str, **settings: Any) -> dict[str, Any]:
        """The configuration of a recurrent policy."""
        heads = {"actor_hidden_dims": self.hidden, "critic_hidden_dims": self.hidden}
        memory = {"rnn_type": "gru", "rnn_hidden_size": self.memory}
        return {"class_name": class_name, "init_noise_std": 0.5, "activation": "elu", **heads, **memory, **settings}

    def task_config(self, **overrides: Any) -> Any:
        """The configuration of the task."""
        return with_overrides(TASKS[TASK].cfg(), overrides)


class RearrangedEnv(VecEnv):
    """A task with reordered observation components, and some privileged ones added to the actor."""

    def __init__(self, task: Any, added: list[str]):
        self.task = task
        segments, critic_segments = task.obs_segments, task.critic_obs_segments
        self.obs_segments = {name: critic_segments[name] for name in [*added, *reversed(list(segments))]}
        self.critic_obs_segments = {name: critic_segments[name] for name in reversed(list(critic_segments))}
        self.num_obs = get_subobs_size(self.obs_segments, self.obs_segments)
        self.num_privileged_obs = task.num_privileged_obs
        self._columns = self._indices(task.obs_segments, list(reversed(list(segments))))
        self._added = self._indices(critic_segments, added)
        self._critic_columns = self._indices(critic_segments, list(self.critic_obs_segments))

    def _indices(self, segments: Any, names: list[str]) -> Tensor:
        slices = segment_slices(segments)
        columns = [column for name in names for column in range(slices[name].start, slices[name].stop)]
        return torch.tensor(columns, device=self.task.device)

    def _groups(self, groups: dict[str, Tensor]) -> dict[str, Tensor]:
        obs, critic = groups["policy"], groups["critic"]
        actor_obs = torch.cat([critic[:, self._added], obs[:, self._columns]], dim=1)
        return {"policy": actor_obs, "critic": critic[:, self._critic_columns]}

    def get_observations(self) -> tuple[Tensor, dict[str, Any]]:
        """The newest observation, rearranged."""
        groups = self._groups(self.task.get_observations()[1]["observations"])
        return groups["policy"], {"observations": groups}

    def reset(self, *args: Any, **kwargs: Any) -> tuple[Tensor, dict[str, Any]]:
        """Start a new episode of every robot."""
        self.task.reset()
        return self.get_observations()

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
        """A step of the task, its observations rearranged."""
        _, rewards, dones, infos = self.task.step(actions)
        groups, final = self._groups(infos["observations"]), self._groups(infos["final_observations"])
        return groups["policy"], rewards, dones, {**infos, "observations": groups, "final_observations": final}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)


class EvaluatedPolicy:
    """A copy of a trained policy that acts on raw observations with the named component zeroed."""

    def __init__(self, runner: OnPolicyRunner, env: Any, blank: str | None = None, explores: bool = False):
        self.explores = explores
        self.network = copy.deepcopy(runner.alg.actor_critic).eval()
        self.network.clear_hidden_states()
        self.normalizer = copy.deepcopy(runner.alg.obs_normalizer).eval()
        self.critic_normalizer = copy.deepcopy(runner.alg.critic_obs_normalizer).eval()
        self.visible = torch.ones(env.num_obs, device=env.device)
        if blank is not None and blank in env.obs_segments:
            self.visible[get_obs_slice(env.obs_segments, blank)[0]] = 0.0

    def __call__(self, obs: Tensor) -> Tensor:
        """Mean or sampled actions `(N, A)` for raw observations `(N, O)`."""
        act = self.network.act if self.explores else self.network.act_inference
        return act(self.normalizer(obs * self.visible))

    def reset(self, dones: Tensor | None = None) -> None:
        """Reset the hidden states of finished robots, or of all."""
        self.network.reset(dones)

    def in_units(self, estimate: Tensor, columns: slice) -> Tensor:
        """An estimate of the critic's columns in the units of the task."""
        mean, std = self.critic_normalizer.mean[columns], self.critic_normalizer.std[columns]
        return estimate * (std + self.critic_normalizer.eps) + mean


def make_runner(settings: Settings, env: Any, policy: dict[str, Any], algorithm: str, seed: int) -> OnPolicyRunner:
    """A runner with the task's own training configuration and another policy."""
    seed_everything(seed)
    config = TASKS[TASK].training_config()
    config["policy"] = policy
    config["algorithm"]["class_name"] = algorithm
    if algorithm == "EstimatorPPO":
        config["algorithm"]["estimator_loss_coef"] = settings.loss_coef
    return OnPolicyRunner(env, config, log_dir=None, device=settings.device)


def train(settings: Settings, cfg: Any, policy: dict[str, Any], algorithm: str, seed: int) -> tuple[Any, float]:
    """Train from scratch; returns the runner and the seconds."""
    seed_everything(seed)
    env = make_task(TASK, settings.robots, settings.device, seed, cfg=cfg)
    runner = make_runner(settings, env, policy, algorithm, seed)
    return runner, learn_with_time_limit(runner, settings.iterations, settings.limit)


def held_out_task(settings: Settings, cfg: Any) -> Any:
    """New robots, randomized as in training but without pushes."""
    cfg = copy.deepcopy(cfg)
    cfg.push.max_speed = 0.0
    cfg.episode_length_s = settings.seconds + 1.0
    seed_everything(HELD_OUT_SEED)
    return make_task(TASK, settings.eval_robots, settings.device, HELD_OUT_SEED, cfg=cfg)


@torch.inference_mode()
def record_walk(
    settings: Settings, env: Any, policy: EvaluatedPolicy, read: dict[str, Callable[[], Tensor]]
) -> tuple[float, dict[str, tuple[Tensor, Tensor, Tensor]]]:
    """Walk once under a grid of commands.

    Returns the reward per second of a robot and, for every name of `read`, estimates and truth `(S, E)` of all steps
    after the first second in which the robot had not fallen, and which robot `(S,)` it was.
    """
    env.reset()
    env.hold_commands(command_grid(command_ranges(EvaluationCfg(), env.cfg.commands), env.num_envs).to(env.device))
    obs, extras = env.get_observations()
    critic_obs = extras["observations"]["critic"]
    upright = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
    reward, recorded = 0.0, {name: ([], [], []) for name in read}
    columns = segment_slices(policy.network.critic_obs_segments)
    for step in range(round(settings.seconds / env.step_dt)):
        actions = policy(obs)
        if step * env.step_dt >= 1.0:
            for name, estimate in read.items():
                recorded[name][0].append(policy.in_units(estimate(), columns[name])[upright].cpu())
                recorded[name][1].append(critic_obs[:, columns[name]][upright].cpu())
                recorded[name][2].append(upright.nonzero().squeeze(1).cpu())
        obs, rewards, dones, infos = env.step(actions)
        critic_obs = infos["observations"]["critic"]
        policy.reset(dones)
        upright &= ~dones
        reward += float(rewards.mean())
    return reward / settings.seconds, {
        name: (torch.cat(a), torch.cat(b), torch.cat(c)) for name, (a, b, c) in recorded.items()
    }


def r_squared(estimate: Tensor, truth: Tensor) -> list[float]:
    """Fraction of the variance of `truth (S, E)` explained by `estimate (S, E)`, per column."""
    estimate, truth = estimate.double(), truth.double()
    unexplained = (estimate - truth).square().mean(dim=0)
    return (1.0 - unexplained / truth.var(dim=0, correction=0)).tolist()


def estimate_accuracy(estimate: Tensor, truth: Tensor, robot: Tensor) -> dict[str, dict[str, float]]:
    """Accuracy of estimates `(S, E)` of properties that are constant per robot `(S,)`, by property.

    `r2` is over all single estimates. The other values use the mean estimate of each robot over its walk: R2, and the
    correlation with the truth with its 95% bootstrap interval over robots. Without information the correlation is 0.
    """
    counts = torch.bincount(robot).double()
    has_samples = counts > 0
    sums = torch.zeros(2, len(counts), truth.shape[1], dtype=torch.float64)
    for total, values in zip(sums, (estimate, truth)):
        total.index_add_(0, robot, values.double())
    mean_estimate, mean_truth = (sums[:, has_samples] / counts[has_samples, None]).unbind(0)
    resampled = torch.randint(
        len(mean_estimate), (1000, len(mean_estimate)), generator=torch.Generator().manual_seed(0)
    )
    low, high = correlation(mean_estimate[resampled], mean_truth[resampled]).quantile(
        torch.tensor([0.025, 0.975]).double(), dim=0
    )
    figures = {
        "r2": r_squared(estimate, truth),
        "r2_of_a_walk": r_squared(mean_estimate, mean_truth),
        "correlation": correlation(mean_estimate[None], mean_truth[None])[0].tolist(),
        "correlation_low": low.tolist(),
        "correlation_high": high.tolist(),
    }
    return {name: {key: row[i] for key, row in figures.items()} for i, name in enumerate(PROPERTIES)}


def correlation(first: Tensor, second: Tensor) -> Tensor:
    """`(B, E)` correlation coefficients over the middle axis of `(B, S, E)`."""
    first, second = (t - t.mean(dim=1, keepdim=True) for t in (first, second))
    return (first * second).sum(dim=1) / (first.square().sum(dim=1) * second.square().sum(dim=1)).sqrt()


def tracking(settings: Settings, runner: OnPolicyRunner, cfg: Any, blank: str | None) -> dict[str, float]:
    """Tracking errors of an undisturbed robot in fine physics."""
    plan = EvaluationCfg(num_envs=settings.eval_robots, seconds=settings.seconds, push_speed=0.0)
    env = make_eval_task(TASK, cfg, plan.num_envs, plan.seconds, plan.seed, True, settings.device)
    figures, _ = evaluate_walk(env, EvaluatedPolicy(runner, env, blank), plan)
    return {name: figures[name] for name in TRACKING}


def num_parameters(policy: dict[str, Any], env: Any) -> int:
    """Number of parameters of a policy of this configuration."""
    arguments = {key: value for key, value in policy.items() if key != "class_name"}
    segments = {"obs_segments": env.obs_segments, "critic_obs_segments": env.critic_obs_segments}
    network = policy_classes()[policy["class_name"]](
        env.num_obs, env.num_privileged_obs, env.num_actions, **segments, **arguments
    )
    return sum(parameter.numel() for parameter in network.parameters())


def plain_of_equal_size(settings: Settings, wanted: int, env: Any) -> dict[str, Any]:
    """A plain recurrent policy with at least `wanted` parameters."""
    for size in itertools.count(settings.memory, 4):
        policy = settings.policy("ActorCriticRecurrent", rnn_hidden_size=size)
        if num_parameters(policy, env) >= wanted:
            return policy
    raise AssertionError("unreachable")


def velocity(settings: Settings, seed: int) -> dict[str, Any]:
    """The estimator compared with a plain policy of equal size; neither observes the base velocity."""
    evaluate = {"estimator": estimating, "plain": plain}
    return {name: evaluate[name](settings, seed) for name in settings.policies}


def estimating_config(settings: Settings) -> tuple[Any, dict[str, Any]]:
    """Task and policy with an estimator."""
    cfg = settings.task_config(observe_linear_velocity=not settings.shared)
    return cfg, settings.policy("StateAcRecurrent", **(SHARED if settings.shared else ESTIMATOR))


def estimating(settings: Settings, seed: int) -> dict[str, Any]:
    """Accuracy of the velocity estimate of `StateAcRecurrent`, and its tracking errors."""
    cfg, policy = estimating_config(settings)
    runner, seconds = train(settings, cfg, policy, "EstimatorPPO", seed)
    env = held_out_task(settings, cfg)
    evaluated = EvaluatedPolicy(runner, env, blank=HIDDEN)
    reward, values = record_walk(settings, env, evaluated, {HIDDEN: lambda: evaluated.network.get_estimated_state()})
    explained = r_squared(*values[HIDDEN][:2])
    return {
        "parameters": num_parameters(policy, runner.env),
        "iterations": runner.current_learning_iteration,
        "training_seconds": seconds,
        "reward_per_second": reward,
        "r2": dict(zip(("lin_vel_x", "lin_vel_y", "lin_vel_z"), explained)),
        "r2_of_the_plane": sum(explained[:2]) / 2,
        "error_m_s": (values[HIDDEN][0] - values[HIDDEN][1]).abs().mean(dim=0).tolist(),
        "tracking": tracking(settings, runner, cfg, HIDDEN),
    }


def plain(settings: Settings, seed: int) -> dict[str, Any]:
    """Tracking errors of a recurrent policy of equal size without an estimator."""
    hidden = settings.task_config(observe_linear_velocity=False)
    policy = settings.policy("ActorCriticRecurrent")
    # With --shared the estimator adds one layer that does not affect the actions; otherwise match the sizes.
    if not settings.shared:
        cfg, larger = estimating_config(settings)
        size = num_parameters(larger, make_task(TASK, 1, "cpu", 0, cfg=cfg))
        policy = plain_of_equal_size(settings, size, make_task(TASK, 1, "cpu", 0, cfg=hidden))
    runner, seconds = train(settings, hidden, policy, "PPO", seed)
    env = held_out_task(settings, hidden)
    reward, _ = record_walk(settings, env, EvaluatedPolicy(runner, env), {})
    return {
        "parameters": num_parameters(policy, env),
        "iterations": runner.current_learning_iteration,
        "training_seconds": seconds,
        "reward_per_second": reward,
        "tracking": tracking(settings, runner, hidden, None),
    }


def adaptor(settings: Settings, seed: int) -> dict[str, Any]:
    """Accuracy of an adaptor on the properties of robots not used in training."""
    cfg = settings.task_config(**WIDE)
    policy = settings.policy(
        "PrivilegeStateAcRecurrent",
        **ESTIMATOR,
        adaptor_obs_components=["base_ang_vel", "projected_gravity", "joint_pos", "joint_vel", "commands", "actions"],
        adaptor_target_components=["properties"],
    )
    runner, seconds = train(settings, cfg, policy, "EstimatorPPO", seed)
    env = held_out_task(settings, cfg)
    result: dict[str, Any] = {"training_seconds": seconds, "iterations": runner.current_learning_iteration}
    for name, explores in (("exploring", True), ("evaluated", False)):
        evaluated = EvaluatedPolicy(runner, env, HIDDEN, explores)
        read = {"properties": evaluated.network.get_adapted_state, HIDDEN: evaluated.network.get_estimated_state}
        reward, values = record_walk(settings, env, evaluated, read)
        result[name] = {
            "reward_per_second": reward,
            "properties": estimate_accuracy(*values["properties"]),
            "r2_velocity": dict(zip(("lin_vel_x", "lin_vel_y", "lin_vel_z"), r_squared(*values[HIDDEN][:2]))),
        }
    return result


def misaligned(settings: Settings, seed: int) -> dict[str, Any]:
    """Reward of a policy, of its continuation with other observations, and of a new one with these."""
    cfg = settings.task_config()
    encoder = {
        "encoder_component_names": ["joint_vel"],
        "encoder_kwargs": {"hidden_sizes": [64]},
        "encoder_output_size": 16,
    }
    policy = settings.policy("EncoderStateAcRecurrent", **ESTIMATOR, **encoder)
    old, seconds = train(settings, cfg, policy, "EstimatorPPO", seed)

    def reward_of(runner: OnPolicyRunner, env: Any) -> float:
        return record_walk(settings, env, EvaluatedPolicy(runner, env, HIDDEN), {})[0]

    held_out = held_out_task(settings, cfg)
    result: dict[str, Any] = {"training_seconds": seconds, "old": reward_of(old, held_out)}
    rearranged = RearrangedEnv(held_out, ["foot_contact"])
    seed_everything(seed)
    for name, is_continued in (("continued", True), ("new", False)):
        env = RearrangedEnv(make_task(TASK, settings.robots, settings.device, seed + 1, cfg=cfg), ["foot_contact"])
        runner = make_runner(settings, env, policy, "EstimatorPPO", seed + 1)
        if is_continued:
            copied, skipped = load_misaligned(old, runner)
            result |= {"copied": len(copied), "skipped": skipped}
        result[f"{name}_at_start"] = reward_of(runner, rearranged)
        runner.learn(max(1, settings.iterations // 5), init_at_random_ep_len=True)
        result[f"{name}_after_a_fifth"] = reward_of(runner, rearranged)
    return result


def load_misaligned(old: OnPolicyRunner, runner: OnPolicyRunner) -> tuple[list[str], list[str]]:
    """Load networks and normalizers of a training with other observations."""
    before, now = old.env, runner.env
    for normalizer, segments in (("obs_normalizer", "obs_segments"), ("critic_obs_normalizer", "critic_obs_segments")):
        load_misaligned_normalizer(
            getattr(runner.alg, normalizer),
            getattr(old.alg, normalizer),
            getattr(now, segments),
            getattr(before, segments),
        )
    return runner.alg.actor_critic.load_misaligned_state_dict(
        old.alg.actor_critic, before.obs_segments, before.critic_obs_segments
    )


EXPERIMENTS = {"velocity": velocity, "adaptor": adaptor, "misaligned": misaligned}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--robots", type=int, help="256 on a CPU and 4,096 on a GPU by default")
    parser.add_argument("--iterations", type=int, help="600 on a CPU and 220 on a GPU by default")
    parser.add_argument("--limit", type=float, help="time limit of each training, s")
    parser.add_argument(
        "--policies", nargs="+", choices=POLICIES, default=POLICIES, help="policies of the velocity experiment"
    )
    parser.add_argument(
        "--shared", action="store_true", help="estimate from the actor's hidden state, without replacement"
    )
    parser.add_argument("--loss-coef", type=float, default=1.0, help="weight of the estimator's loss")
    parser.add_argument("--memory", type=int, default=64, help="width of each recurrent layer")
    parser.add_argument("--hidden", type=int, nargs="+", default=[128, 64], help="widths of the layers of the heads")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of the evaluated walk")
    parser.add_argument("--eval-robots", type=int, default=256, help="evaluated robots")
    parser.add_argument("--out", type=Path, help="results file; benchmarks/results/hidden_EXPERIMENT.json by default")
    options = parser.parse_args()
    on_gpu = options.device.startswith("cuda")
    settings = Settings(
        options.device,
        options.robots or (4096 if on_gpu else 256),
        options.iterations or (220 if on_gpu else 600),
        options.memory,
        options.hidden,
        options.seconds,
        options.eval_robots,
        options.limit,
        options.policies,
        options.shared,
        options.loss_coef,
    )
    use_tensor_cores(options.device)
    if not on_gpu:
        torch.set_num_threads(1)
    results: dict[str, Any] = {
        "benchmark": options.experiment,
        **describe_machine(),
        "settings": vars(settings),
        "seeds": {},
    }
    path = options.out or RESULTS / f"hidden_{options.experiment}.json"
    for seed in options.seeds:
        with redirect_stdout(sys.stderr):
            results["seeds"][str(seed)] = EXPERIMENTS[options.experiment](settings, seed)
        write_results(path, with_spread(results))
        print(seed, results["seeds"][str(seed)], flush=True)


if __name__ == "__main__":
    main()
