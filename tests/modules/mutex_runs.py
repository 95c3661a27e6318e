"""Run folders for the sub-policies of mutex policies."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from st_rl.modules import EmpiricalNormalization, policy_class
from st_rl.utils.files import save_checkpoint, write_json

A = 3
# `block` first and a component between the two, so that no test passes by accident of the segment order.
SEGMENTS = {"engaging_block": (9,), "height": 2, "proprioception": 16}
OBS = 27
BLOCK, PROPRIOCEPTION = slice(0, 9), slice(11, 27)
CMD = 11 + 9
LAST_ACTION = slice(27 - A, 27)
SIZES: dict[str, Any] = {"actor_hidden_dims": [8], "critic_hidden_dims": [4]}


def write_run(
    folder: Path,
    seed: int,
    class_name: str = "ActorCritic",
    scale: float | Sequence[float] | None = 0.5,
    obs_scales: Mapping[str, float] | None = None,
    normalized: bool = False,
    iteration: int = 7,
    **policy: Any,
) -> Path:
    """Write a run folder as the runner does, with a random policy in `model_{iteration}.pt`."""
    torch.manual_seed(seed)
    policy = {**SIZES, **policy}
    settings = {key: value for key, value in policy.items() if key != "mixins"}
    network = policy_class(class_name, policy.get("mixins", ()))(OBS, OBS, A, obs_segments=SEGMENTS, **settings)
    snapshot: dict[str, Any] = {"model_state_dict": network.state_dict(), "iter": iteration}
    if normalized:
        statistics = EmpiricalNormalization(OBS)
        statistics.update(5.0 + 3.0 * torch.randn(50, OBS))
        snapshot["obs_norm_state_dict"] = statistics.state_dict()
    # Keys of a client's configuration that the mutex policy overrides: nulls, sizes and segments.
    config: dict[str, Any] = {
        "runner": {"policy_class_name": class_name},
        "policy": {"class_name": class_name, "num_actions": 99, "obs_segments": {"x": 1}, "mu_activation": None},
    }
    config["policy"] |= policy
    if scale is not None:
        config["control"] = {"action_scale": scale}
    if obs_scales is not None:
        config["normalization"] = {"obs_scales": dict(obs_scales)}
    save_checkpoint(snapshot, folder / f"model_{iteration}.pt")
    write_json(folder / "config.json", config)
    return folder


def engaged(obstacles: Sequence[int | None], up: Sequence[float] | None = None) -> torch.Tensor:
    """Observations `(N, O)` of robots engaged with these obstacles; None: no obstacle."""
    generator = torch.Generator().manual_seed(3)
    obs = torch.randn(len(obstacles), OBS, generator=generator)
    obs[:, BLOCK] = 0.25
    obs[:, 1:6] = 0.0
    for robot, obstacle in enumerate(obstacles):
        if obstacle is not None:
            obs[robot, 1 + obstacle] = 1.0
    if up is not None:
        obs[:, 8] = torch.tensor(up)
    return obs
