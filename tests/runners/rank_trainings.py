"""Small trainings that run on one rank or are divided among several."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from st_rl.env import VecEnv
from st_rl.modules import ActorCritic, EmpiricalNormalization
from st_rl.runners import OnPolicyRunner, build_runner
from st_rl.utils.distributed import rank, world_size
from tests.fakes import ClientEnv
from tests.runners.training import RND, recurrent, small_config

NUM_ENVS = 8
ENCODER = {
    "class_name": "EncoderActorCritic",
    "encoder_component_names": ["privileged_obs"],
    "encoder_class_name": "MlpModel",
    "encoder_kwargs": {"hidden_sizes": [6], "output_size": 3},
}


class NoveltyClientEnv(ClientEnv):
    """The client's environment with states for random network distillation."""

    def _refresh(self, obs, infos, ref_motion):
        super()._refresh(obs, infos, ref_motion)
        self.extras["observations"]["rnd_state"] = obs[:, :3]


class PartOfEnv(VecEnv):
    """The environments of this rank; each behaves the same on any rank."""

    def __init__(self, seed: int = 0) -> None:
        size = NUM_ENVS // world_size()
        self._part = slice(rank() * size, (rank() + 1) * size)
        self._all = NoveltyClientEnv(num_envs=NUM_ENVS, num_privileged_obs=12, seed=seed)
        self.num_envs, self.num_obs, self.num_actions = size, self._all.num_obs, self._all.num_actions
        self.num_privileged_obs, self.max_episode_length = self._all.num_privileged_obs, self._all.max_episode_length
        self.device, self.cfg = "cpu", {}
        self.obs_segments = self._all.obs_segments
        # Two segments that the actor has as well, so that an estimator has a target.
        self.privileged_obs_segments = self._all.obs_segments

    @property
    def episode_length_buf(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._all.episode_length_buf[self._part]

    def get_observations(self):
        return self._own(self._all.get_observations())

    def reset(self, *args: Any, **kwargs: Any):
        return self._own(self._all.reset())

    def step(self, actions: torch.Tensor):
        every = torch.zeros(NUM_ENVS, self.num_actions)
        every[self._part] = actions
        return self._own(self._all.step(every))

    def state_dict(self) -> dict[str, Any]:
        return self._all.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._all.load_state_dict(state)

    def _own(self, value: Any) -> Any:
        """The rows of this rank in nested tensors."""
        if isinstance(value, torch.Tensor):
            return value[self._part] if value.shape[:1] == (NUM_ENVS,) else value
        if isinstance(value, Mapping):
            return {key: self._own(item) for key, item in value.items()}
        return tuple(map(self._own, value)) if isinstance(value, tuple) else value


def noise_from_observations(policy: ActorCritic) -> None:
    """Make action noise a function of the observation, independent of the rank's generator."""
    policy.reserve_noise_column()

    def sample_noise(observations: torch.Tensor) -> torch.Tensor:
        num_actions = policy.num_actions if policy._samples_actions else 0
        width = num_actions + policy._num_noise_columns
        columns = torch.arange(width, device=observations.device)
        noise = torch.sin(50.0 * observations.sum(dim=-1, keepdim=True) + columns)
        policy._noise = noise[..., num_actions:]
        return noise[..., :num_actions]

    policy._sample_noise = sample_noise


def save_teacher(path: Path) -> None:
    """Save a teacher of critic observations."""
    torch.manual_seed(3)
    teacher = ActorCritic(12, 12, 3, actor_hidden_dims=[8], critic_hidden_dims=[8])
    normalizer = EmpiricalNormalization([12])
    normalizer.update(torch.randn(50, 12))
    state = {"model_state_dict": teacher.state_dict(), "obs_norm_state_dict": normalizer.state_dict()}
    torch.save({**state, "iter": 1, "infos": None}, path)


def families(folder: Path) -> dict[str, dict[str, Any]]:
    """The policy and algorithm parts of a configuration for every algorithm and policy family."""
    teacher = {"class_name": "ActorCritic", "actor_hidden_dims": [8], "critic_hidden_dims": [8]}
    distillation = {
        "teacher_policy": {**teacher, "teacher_ac_path": str(folder / "teacher.pt")},
        "label_action_with_critic_obs": True,
        "teacher_act_prob": 0.0,
    }
    discriminator = {"amp_discriminator": {"input_dim": 42, "hidden_dims": [8], "style_reward_coef": 0.3}}
    estimator = {
        "class_name": "StateAc",
        "estimator_obs_components": ["obs"],
        "estimator_target_components": ["privileged_obs"],
        "estimator_kwargs": {"hidden_sizes": [6]},
    }
    motion_prior = {"discriminator_cfg": {"learning_rate": 1e-3}}
    return {
        "PPO": {},
        "PPO-rnd": {"algorithm": {"rnd_cfg": RND}},
        "PPO-gru": {"policy": recurrent("gru")},
        "PPO-lstm": {"policy": recurrent("lstm")},
        "PPO-encoder": {"policy": ENCODER},
        "APPO": {"policy": {"class_name": "AmpActorCritic", **discriminator}, "algorithm": motion_prior},
        "APPO-mask": {
            "policy": {"class_name": "AmpActorCritic", **discriminator},
            "algorithm": {"discriminator_cfg": {"learning_rate": 1e-3, "mask_resets": True}},
        },
        "APPO-lstm": {"policy": {**recurrent("lstm"), "class_name": "AmpActorCriticRecurrent", **discriminator}},
        "TPPO": {"algorithm": distillation},
        "TPPO-gru": {"policy": recurrent("gru"), "algorithm": distillation},
        "ATPPO": {"policy": {"class_name": "AmpActorCritic", **discriminator}, "algorithm": distillation},
        "EstimatorPPO": {"policy": estimator},
        "EstimatorPPO-gru": {"policy": {**recurrent("gru"), **estimator, "class_name": "StateAcRecurrent"}},
        "EstimatorTPPO": {"policy": estimator, "algorithm": distillation},
    }


def make_training(
    name: str,
    folder: Path,
    log_dir: Path | None = None,
    optimizer: str = "SGD",
    num_mini_batches: int = 1,
    seed: int = 5,
    engine: str = "eager",
    device: str = "cpu",
) -> OnPolicyRunner:
    """Build a training; ranks other than 0 start from another random state."""
    torch.manual_seed(seed + 100 * rank())
    family = families(folder)[name]
    algorithm = {
        "class_name": name.partition("-")[0],
        "optimizer_class_name": optimizer,
        "num_mini_batches": num_mini_batches,
        "learning_rate": 2e-3,
        "schedule": "adaptive",
        "desired_kl": 2e-3,
        **family.get("algorithm", {}),
    }
    config = small_config(family.get("policy"), algorithm, empirical_normalization=True, engine=engine)
    runner = build_runner("OnPolicyRunner", PartOfEnv(), config, log_dir=log_dir, device=device)
    noise_from_observations(runner.alg.actor_critic)
    for network in runner.alg._networks():
        for module in network.modules():
            if isinstance(module, EmpiricalNormalization):
                # As on several ranks.
                module.defers_updates = True
    return runner


def shared_state(runner: OnPolicyRunner) -> dict[str, torch.Tensor]:
    """All tensors of a training that must be the same on every rank, by name."""
    state = {key: value for key, value in runner.alg.state_dict().items() if value is not None}
    flat: dict[str, torch.Tensor] = {"learning_rate": torch.tensor(float(runner.alg.learning_rate))}

    def add(prefix: str, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            # One value per environment of the rank.
            if not prefix.endswith("discounted_sum"):
                flat[prefix] = value.to("cpu", copy=True)
        elif isinstance(value, Mapping):
            for key, item in value.items():
                add(f"{prefix}/{key}", item)

    add("", state)
    return flat
