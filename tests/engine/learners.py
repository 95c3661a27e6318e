"""Every registered algorithm with every registered policy, on the same synthetic rollouts."""

import itertools
from typing import Any

import numpy as np
import torch

from st_rl.algorithms import algorithm_classes
from st_rl.algorithms.appo import APPOAlgoMixin
from st_rl.algorithms.estimator import EstimatorAlgoMixin
from st_rl.engine import Engine
from st_rl.modules import (
    ActorCritic,
    ActorCriticMutex,
    AmpMixin,
    EstimatorMixin,
    PrivilegeEstimatorMixin,
    policy_classes,
)
from st_rl.modules.deterministic_policy import DeterministicPolicyMixin

NUM_ENVS, NUM_STEPS, NUM_ACTIONS = 8, 6, 4
SEGMENTS = {"joints": 4, "velocity": (1, 1, 3)}
NUM_OBS = 7
JOINTS = ("FL_hip", "FR_hip", "FL_thigh", "FR_thigh")

# Required settings without a default. A class that cannot be built without an entry here fails the test that
# compares the engines: add the entry with the class.
ENCODER = {"encoder_component_names": ["velocity"], "encoder_kwargs": {"hidden_sizes": [8]}, "encoder_output_size": 5}
ESTIMATOR = {"estimator_target_components": ["velocity"], "replace_state_prob": 0.5}
ADAPTOR = {"adaptor_target_components": ["velocity"], "privilege_replace_state_prob": 0.5}
VISUAL = {
    "visual_component_name": "velocity",
    "visual_kwargs": {"channels": [4], "kernel_sizes": [1], "strides": [1], "hidden_sizes": [8]},
}
AMP = {"amp_discriminator": {"input_dim": 6, "style_reward_coef": 0.5, "hidden_dims": [8, 8], "task_reward_lerp": 0.3}}
POLICY_SETTINGS: dict[str, dict[str, Any]] = {
    "EncoderActorCritic": {**ENCODER, "critic_encoder_component_names": "shared"},
    "EncoderActorCriticRecurrent": {**ENCODER, "critic_encoder_component_names": ["joints"]},
    "StateAc": ESTIMATOR,
    "StateAcRecurrent": ESTIMATOR,
    "PrivilegeStateAc": {**ADAPTOR, **ESTIMATOR},
    "PrivilegeStateAcRecurrent": {**ADAPTOR, **ESTIMATOR},
    "EncoderStateAc": {**ENCODER, **ESTIMATOR},
    "EncoderStateAcRecurrent": {**ENCODER, "estimator_target_components": ["velocity"], "use_actor_rnn": True},
    "EncoderAmpActorCriticRecurrent": {**ENCODER, **AMP},
    "AmpActorCritic": AMP,
    "AmpActorCriticRecurrent": AMP,
    "VisualDeterministicAC": VISUAL,
    "VisualDeterministicRecurrent": VISUAL,
}
# The policies of each algorithm in the quick selection.
PLAIN_POLICIES = ("ActorCritic", "ActorCriticRecurrent")
QUICK_POLICIES: dict[str, tuple[str, ...]] = {
    "EstimatorPPO": ("PrivilegeStateAc", "PrivilegeStateAcRecurrent", "EncoderStateAcRecurrent"),
    "EstimatorTPPO": ("StateAc",),
    "APPO": ("AmpActorCritic", "AmpActorCriticRecurrent"),
    "ATPPO": ("AmpActorCritic", "AmpActorCriticRecurrent"),
}
# Every schedule changes within the few updates of the test.
TEACHER = {
    "teacher_policy": {"actor_hidden_dims": [16], "critic_hidden_dims": [16]},
    "teacher_act_prob": "exp",
    "distillation_loss_coef": "linear",
    "update_times_scale": 3,
    "hidden_state_resample_prob": 0.5,
    "distill_target": "kl",
}
# All optional settings of a discriminator.
DISCRIMINATOR = {
    "learning_rate": 3e-4,
    "weight_decay": 1e-3,
    "update_interval": 4,
    "logit_reg_coef": 0.05,
    "replay_size": 30,
    "replay_iterations": 2,
    "mask_resets": True,
    "schedules": {"task_reward_lerp": [[0, 0.0], [3, 0.9]], "discriminator_loss_coef": [[0, 1.0], [3, 0.5]]},
}
ALGORITHM_SETTINGS: dict[str, dict[str, Any]] = {
    "TPPO": TEACHER,
    "EstimatorTPPO": TEACHER,
    "APPO": {"mimic_loss_coef": 0.1, "dagger_loss_coef": 0.1},
    "ATPPO": {**TEACHER, "mimic_reward_coef": 0.1, "share_amp_normalizer": False, "discriminator_cfg": DISCRIMINATOR},
}

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "adaptive": {"schedule": "adaptive", "desired_kl": 0.01},
    "novelty": {
        "rnd_cfg": {"num_states": 3, "num_outputs": 4, "predictor_hidden_dims": [8], "target_hidden_dims": [8]}
    },
    "annealed": {
        "reward_normalization": True,
        "normalize_advantage_per_mini_batch": True,
        "shuffle_every_epoch": True,
        "anneal_learning_rate": True,
        "anneal_clip_param": True,
        "anneal_iterations": 4,
    },
    "symmetric": {
        "symmetry_cfg": {
            "joint_names": JOINTS,
            "obs": {"joints": "joints", "velocity": "vector"},
            "mirror_loss_coef": 0.5,
        }
    },
}


def trainable_policies() -> dict[str, type[ActorCritic]]:
    """Trainable policies; mutex policies are frozen and have their own tests."""
    return {name: cls for name, cls in policy_classes().items() if not issubclass(cls, ActorCriticMutex)}


def combinations() -> list[tuple[str, str, str]]:
    """All valid combinations of algorithm, policy and variant."""
    everything = itertools.product(algorithm_classes(), trainable_policies(), VARIANTS)
    return [combination for combination in everything if _belong_together(*combination)]


def quick_combinations() -> list[tuple[str, str, str]]:
    """A selection with each algorithm, each policy and each variant at least once."""
    with_own_algorithm = {policy for policies in QUICK_POLICIES.values() for policy in policies}
    return [
        (algorithm, policy, variant)
        for algorithm, policy, variant in combinations()
        if (algorithm == "PPO" and variant == "adaptive" and policy not in with_own_algorithm)
        or (algorithm == "PPO" and policy == "ActorCritic")
        or (variant == "adaptive" and policy in QUICK_POLICIES.get(algorithm, PLAIN_POLICIES))
    ]


def feed_forward_combinations() -> list[tuple[str, str, str]]:
    """Each feed-forward policy with PPO, and each other algorithm with the most complex ones; all with symmetry."""
    return [
        (algorithm, policy, variant)
        for algorithm, policy, variant in combinations()
        if variant == "symmetric" and (algorithm == "PPO" or policy in ("PrivilegeStateAc", "AmpActorCritic"))
    ]


def _belong_together(algorithm: str, policy: str, variant: str) -> bool:
    algorithm_class, policy_class = algorithm_classes()[algorithm], policy_classes()[policy]
    estimates = issubclass(policy_class, EstimatorMixin | PrivilegeEstimatorMixin)
    if issubclass(algorithm_class, EstimatorAlgoMixin) and not estimates:
        return False
    if issubclass(algorithm_class, APPOAlgoMixin) and not issubclass(policy_class, AmpMixin):
        return False
    return variant != "symmetric" or not policy_class.is_recurrent


def draws_in_padding(policy: str) -> bool:
    """Whether a policy samples noise for every cell of padded trajectories."""
    probs = [value for name, value in POLICY_SETTINGS.get(policy, {}).items() if name.endswith("replace_state_prob")]
    return policy_classes()[policy].is_recurrent and any(probs)


def make_learner(algorithm: str, policy: str, variant: str, engine: Engine, device: str = "cpu") -> Any:
    """Build an algorithm with seeded weights and a storage."""
    torch.manual_seed(0)
    num_obs = NUM_OBS
    sizes = {"actor_hidden_dims": [16, 16], "critic_hidden_dims": [16, 16], "rnn_hidden_size": 8}
    network = policy_classes()[policy](
        num_obs, num_obs, NUM_ACTIONS, obs_segments=SEGMENTS, **sizes, **POLICY_SETTINGS.get(policy, {})
    )
    settings = {"num_learning_epochs": 3, "num_mini_batches": 2, "entropy_coef": 0.01, "learning_rate": 1e-3}
    settings |= ALGORITHM_SETTINGS.get(algorithm, {}) | VARIANTS[variant]
    learner = algorithm_classes()[algorithm](network, device=device, empirical_normalization=True, **settings)
    learner.engine = engine
    learner.init_obs_norm(num_obs, num_obs)
    learner.init_storage(NUM_ENVS, NUM_STEPS, [num_obs], [None], [NUM_ACTIONS])
    learner.train_mode()
    return learner


def roll_out(learner: Any, seed: int, device: str = "cpu") -> None:
    """Fill the storage with a synthetic rollout with dones inside."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device)

    num_obs = NUM_OBS
    with torch.inference_mode():
        obs = learner.obs_normalizer(draw(NUM_ENVS, num_obs))
        for _ in range(NUM_STEPS):
            actions = learner.act(obs, obs)
            if isinstance(learner.actor_critic, DeterministicPolicyMixin):
                actions = _disturb(learner.transition, draw(NUM_ENVS, NUM_ACTIONS))
            dones = draw(NUM_ENVS) > 1.0
            infos = {
                "observations": {"rnd_state": draw(NUM_ENVS, 3), "ref_obs": draw(NUM_ENVS, 2, 3)},
                "ref_motion": 1.0 + draw(NUM_ENVS, 6),
                "time_outs": dones & (draw(NUM_ENVS) > 0),
            }
            obs = learner.obs_normalizer(draw(NUM_ENVS, num_obs))
            learner.process_env_step(draw(NUM_ENVS) - actions.square().mean(dim=1), dones, infos)
        learner.compute_returns(obs)


def _disturb(transition: Any, noise: torch.Tensor) -> torch.Tensor:
    """Add `noise (N, A)` to the actions of a policy that acts with its mean.

    The surrogate loss has no gradient at the mean: Adam would turn rounding errors into steps of normal size, and
    engines with different rounding would diverge.
    """
    distribution = torch.distributions.Normal(transition.action_mean, transition.action_sigma, validate_args=False)
    transition.actions = transition.actions + 0.5 * noise
    transition.actions_log_prob = distribution.log_prob(transition.actions).sum(dim=-1)
    return transition.actions


def train(learner: Any, num_updates: int, device: str = "cpu") -> list[dict[str, float]]:
    """Several rollouts and updates; returns the losses of each."""
    history = []
    for update in range(num_updates):
        torch.manual_seed(100 + update)
        roll_out(learner, seed=update, device=device)
        torch.manual_seed(200 + update)
        np.random.seed(update)  # the replay samples with it
        losses, stats = learner.update(update)
        history.append({name: float(value) for name, value in {**losses, **stats}.items()})
    return history
