"""Every policy family learns an echo task in seconds; recurrent ones a task that needs memory."""

from typing import Any

import pytest
import torch

from st_rl.env import VecEnv
from st_rl.modules import VisualDeterministicAC, VisualDeterministicRecurrent
from st_rl.runners import OnPolicyRunner
from tests.fakes import EchoEnv


class AnsweredEcho(VecEnv):
    """The echo task with the target action as the last component of the observation.

    A policy that replaces it with an estimate has to infer the target.
    """

    def __init__(self, memory: bool):
        self.env = EchoEnv(num_envs=64, num_obs=4, episode_length=8, memory=memory, final_observations=False)
        self.num_envs, self.num_actions, self.device = 64, 2, "cpu"
        self.num_obs, self.num_privileged_obs = 6, None
        self.max_episode_length = self.env.max_episode_length
        self.obs_segments = {"target": 2, "noise": 2, "answer": 2}

    @property
    def episode_length_buf(self) -> torch.Tensor:
        return self.env.episode_length_buf

    @episode_length_buf.setter
    def episode_length_buf(self, value: torch.Tensor) -> None:
        self.env.episode_length_buf = value

    def observation(self) -> torch.Tensor:
        return torch.cat([self.env.obs, self.env.target], dim=-1)

    def get_observations(self) -> tuple[torch.Tensor, dict[str, Any]]:
        return self.observation(), {"observations": {}}

    def reset(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        self.env.reset()
        return self.get_observations()

    def step(self, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]:
        _, rewards, dones, infos = self.env.step(actions)
        return self.observation(), rewards, dones, {"time_outs": infos["time_outs"], "observations": {}}


ESTIMATE = {"estimator_target_components": ["answer"], "replace_state_prob": 1.0}
ENCODE = {
    "encoder_component_names": ["target"],
    "encoder_kwargs": {"hidden_sizes": [16], "nonlinearity": "ELU"},
    "encoder_output_size": 8,
}
FAMILIES = {
    "StateAc": {**ESTIMATE},
    "StateAcRecurrent": {**ESTIMATE},
    "PrivilegeStateAc": {
        "adaptor_target_components": ["answer"],
        "privilege_replace_state_prob": 1.0,
        "estimator_target_components": ["target"],
        "estimator_obs_components": ["answer"],
    },
}


@pytest.mark.parametrize("name", FAMILIES)
def test_policy_with_estimated_target_learns(name):
    torch.manual_seed(0)
    env = AnsweredEcho(memory=name.endswith("Recurrent"))
    sizes = {"actor_hidden_dims": [32], "critic_hidden_dims": [32], "rnn_hidden_size": 24, "rnn_type": "gru"}
    runner = OnPolicyRunner(
        env,
        {
            "num_steps_per_env": 8,
            "policy": {"class_name": name, "init_noise_std": 0.5, **sizes, **FAMILIES[name]},
            "algorithm": {
                "class_name": "EstimatorPPO",
                "num_learning_epochs": 4,
                "num_mini_batches": 2,
                "learning_rate": 1e-2,
            },
        },
    )
    runner.learn(60)
    policy, errors, estimates, answers = runner.get_inference_policy(), [], [], []
    with torch.inference_mode():
        obs = env.reset()[0]
        for _ in range(24):
            blank = obs.clone()
            blank[:, 4:] = 1e3
            answers.append(env.env.target)
            actions = policy(blank)
            errors.append((actions - answers[-1]).square().mean())
            network = policy.actor_critic
            estimates.append(network.get_adapted_state() if "Privilege" in name else network.get_estimated_state())
            obs, _, dones, _ = env.step(actions)
            policy.reset(dones)
    unexplained = (torch.cat(estimates) - torch.cat(answers)).square().mean() / torch.cat(answers).var()
    assert float(1.0 - unexplained) > 0.9, "share of the variance that the estimate explains"
    assert float(torch.stack(errors).mean()) < 0.06, "a blind policy is at 1/3, one without memory at 0.3"


@pytest.mark.parametrize("name", ["EncoderActorCritic", "EncoderActorCriticRecurrent"])
def test_policy_with_encoders_learns(name):
    torch.manual_seed(0)
    env = EchoEnv(num_envs=64, episode_length=8, memory=name.endswith("Recurrent"))
    sizes = {"actor_hidden_dims": [32], "critic_hidden_dims": [32], "rnn_hidden_size": 24, "rnn_type": "gru"}
    settings = {"num_learning_epochs": 4, "num_mini_batches": 2, "learning_rate": 3e-3}
    settings |= {"schedule": "adaptive", "desired_kl": 0.02}
    policy_cfg = {"class_name": name, "init_noise_std": 0.5, "critic_encoder_component_names": "shared"}
    runner = OnPolicyRunner(
        env, {"num_steps_per_env": 8, "policy": {**policy_cfg, **sizes, **ENCODE}, "algorithm": settings}
    )
    runner.learn(60)
    policy, errors = runner.get_inference_policy(), []
    with torch.inference_mode():
        obs = env.reset()[0]
        for _ in range(16):
            wanted = env.target
            actions = policy(obs)
            errors.append((actions - wanted).square().mean())
            obs, _, dones, _ = env.step(actions)
            policy.reset(dones)
    assert float(torch.stack(errors).mean()) < 0.12, "a blind policy is at 1/3, one without memory at 0.3"


@pytest.mark.parametrize("policy_class", [VisualDeterministicAC, VisualDeterministicRecurrent])
def test_visual_student_learns_from_images(policy_class):
    """The target is the position of the bright column; for the recurrent student, its previous position."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    policy = policy_class(
        40, 40, 1, actor_hidden_dims=[32], critic_hidden_dims=[4], obs_segments={"forward_depth": (1, 5, 8)},
        visual_kwargs={"channels": [8], "kernel_sizes": [3], "strides": [1], "hidden_sizes": [32]},
        visual_latent_size=16, **({"rnn_hidden_size": 24} if policy_class.is_recurrent else {}),
    )  # fmt: skip
    optimizer = torch.optim.Adam(policy.parameters(), lr=5e-3)
    for _ in range(250):
        column = torch.randint(8, (4, 32), generator=generator)
        images = torch.zeros(4, 32, 5, 8).scatter_(3, column[..., None, None].expand(4, 32, 5, 1), 1.0)
        actions = policy.act(images.flatten(2)).squeeze(-1)
        wanted = column / 3.5 - 1.0
        error = actions - wanted if not policy_class.is_recurrent else actions[1:] - wanted[:-1]
        optimizer.zero_grad()
        error.square().mean().backward()
        optimizer.step()
    assert float(error.detach().square().mean()) < 0.02, "a blind student is at 0.43"
