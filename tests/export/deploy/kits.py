"""Kits of untrained policies on small tasks."""

from pathlib import Path
from typing import Any

import torch

from st_rl.env import ObservationHistory
from st_rl.export import DeployedPolicy
from st_rl.export.deploy import RawPolicy, find_ignored_terms, write_kit
from st_rl.modules import EmpiricalNormalization, build_actor_critic
from st_rl.modules.policy.load import InferencePolicy
from st_rl.sim.deploy.robot_interface import RobotInterface
from st_rl.sim.envs.legged_walk import LeggedWalk
from st_rl.sim.tasks import make_task

MEASURED = {"observe_linear_velocity": False}


def make_golden_task(name: str = "quadruped-walk", num_envs: int = 4, **overrides: Any) -> LeggedWalk:
    """A task without observation noise and with short episodes."""
    settings = {"noise.level": 0.0, "episode_length_s": 1.0, **MEASURED, **overrides}
    task = make_task(name, num_envs, seed=3, **settings)
    assert isinstance(task, LeggedWalk)
    return task


def make_policy(
    task: LeggedWalk | ObservationHistory, name: str = "ActorCritic", normalized: bool = True, **settings: Any
) -> InferencePolicy:
    """An untrained policy with a normalizer, as `load_policy` returns it."""
    torch.manual_seed(1)
    sizes = {} if "Mutex" in name else {"actor_hidden_dims": [16, 16], "critic_hidden_dims": [8]}
    actor_critic = build_actor_critic(task, name, {**sizes, **settings}).eval().requires_grad_(False)
    if not normalized:
        return InferencePolicy(actor_critic, torch.nn.Identity())
    normalizer = EmpiricalNormalization([task.num_obs])
    normalizer(torch.randn(100, task.num_obs) * 0.7 + 0.1)
    return InferencePolicy(actor_critic, normalizer.eval())


def deploy(task: LeggedWalk, trained: InferencePolicy) -> RawPolicy:
    """The policy from raw sensors to joint targets."""
    policy = DeployedPolicy(trained.actor_critic, trained.obs_normalizer)
    columns = {c.name: slice(c.start, c.start + c.width) for c in RobotInterface(task).columns}
    return RawPolicy(RobotInterface(task, find_ignored_terms(policy, columns)), policy)


def make_kit(folder: Path, task: LeggedWalk, trained: InferencePolicy, with_leapp: bool = False) -> dict[str, Any]:
    """Write a kit and return its description."""
    facts = {"st_rl_version": "test"}
    return write_kit(folder, deploy(task, trained), trained, task, facts, with_leapp=with_leapp)
