"""Every algorithm with every policy of the registries, fed with the same made-up rollouts."""

import itertools
from typing import Any

import torch

from st_rl.algorithms import algorithm_classes
from st_rl.engine import Engine
from st_rl.modules import ActorCritic, ActorCriticMutex, policy_classes

NUM_ENVS, NUM_STEPS, NUM_ACTIONS = 8, 6, 4
SEGMENTS = {"joints": 4, "velocity": 3}
JOINTS = ("FL_hip", "FR_hip", "FL_thigh", "FR_thigh")

# What a class needs beyond its defaults. A class that cannot be built without an entry here fails the test that
# compares the engines: add the entry with the class.
POLICY_SETTINGS: dict[str, dict[str, Any]] = {}
ALGORITHM_SETTINGS: dict[str, dict[str, Any]] = {}

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "adaptive": {"schedule": "adaptive", "desired_kl": 0.01},
    "novelty": {
        "rnd_cfg": {"num_states": 3, "num_outputs": 4, "predictor_hidden_dims": [8], "target_hidden_dims": [8]}
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
    """The policies that learn; containers of frozen policies do not, and have tests of their own."""
    return {name: cls for name, cls in policy_classes().items() if not issubclass(cls, ActorCriticMutex)}


def combinations() -> list[tuple[str, str, str]]:
    """Algorithm, policy and variant, all that belong together."""
    policies = trainable_policies()
    everything = itertools.product(algorithm_classes(), policies, VARIANTS)
    return [c for c in everything if not (c[2] == "symmetric" and policies[c[1]].is_recurrent)]


def make_learner(algorithm: str, policy: str, variant: str, engine: Engine, device: str = "cpu") -> Any:
    """An algorithm with seeded weights and a storage."""
    torch.manual_seed(0)
    num_obs = sum(SEGMENTS.values())
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
    """Fill the storage with a made-up rollout that has dones in the middle."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device)

    num_obs = sum(SEGMENTS.values())
    with torch.inference_mode():
        obs = learner.obs_normalizer(draw(NUM_ENVS, num_obs))
        for _ in range(NUM_STEPS):
            actions = learner.act(obs, obs)
            dones = draw(NUM_ENVS) > 1.0
            infos = {"observations": {"rnd_state": draw(NUM_ENVS, 3)}, "time_outs": dones & (draw(NUM_ENVS) > 0)}
            obs = learner.obs_normalizer(draw(NUM_ENVS, num_obs))
            learner.process_env_step(draw(NUM_ENVS) - actions.square().mean(dim=1), dones, infos)
        learner.compute_returns(obs)


def train(learner: Any, num_updates: int, device: str = "cpu") -> list[dict[str, float]]:
    """Several rollouts and updates; returns the losses of each."""
    history = []
    for update in range(num_updates):
        torch.manual_seed(100 + update)
        roll_out(learner, seed=update, device=device)
        torch.manual_seed(200 + update)
        losses, stats = learner.update(update)
        history.append({name: float(value) for name, value in {**losses, **stats}.items()})
    return history
