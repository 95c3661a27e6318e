"""Demonstrations with known contents for the tests of files and datasets."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch

from st_rl.runners import DemonstrationSaver
from st_rl.utils.files import atomic_write
from tests.fakes import EchoEnv


class RecordingEnv(EchoEnv):
    """The echo task that records every observation, action and reward."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.seen: list[dict[str, np.ndarray]] = []

    def step(self, actions: torch.Tensor) -> Any:
        before, extras = self.get_observations()
        critic = extras["observations"].get("critic", before)
        obs, rewards, dones, infos = super().step(actions)
        time_outs = infos.get("time_outs", torch.zeros_like(dones, dtype=torch.bool))
        step = {"observation": before, "privileged_observation": critic, "action": actions, "reward": rewards}
        self.seen.append(
            {k: v.numpy().copy() for k, v in (step | {"done": dones.bool(), "timeout": time_outs}).items()}
        )
        return obs, rewards, dones, infos

    def trajectories(self) -> list[dict[str, np.ndarray]]:
        """Recorded episodes; the last one of each environment may be unfinished."""
        found = []
        for env in range(self.num_envs):
            start = 0
            for t, step in enumerate(self.seen):
                if step["done"][env] or t == len(self.seen) - 1:
                    found.append({k: np.stack([s[k][env] for s in self.seen[start : t + 1]]) for k in step})
                    start = t + 1
        return found


class EchoPolicy:
    """Echoes the target plus a small function of the observation; records its calls."""

    def __init__(self, num_actions: int = 2) -> None:
        self.num_actions = num_actions
        self.calls: list[str] = []
        self.observations: list[torch.Tensor] = []
        self.resets: list[torch.Tensor] = []

    def act(self, obs: torch.Tensor) -> torch.Tensor:
        self.calls.append("act")
        self.observations.append(obs.clone())
        return obs[:, : self.num_actions] + 0.125

    def act_inference(self, obs: torch.Tensor) -> torch.Tensor:
        self.calls.append("act_inference")
        self.observations.append(obs.clone())
        return 0.5 * obs[:, : self.num_actions]

    def reset(self, dones: torch.Tensor) -> None:
        self.resets.append(dones.clone())


def record(folder: Path, env: RecordingEnv, **kwargs: Any) -> DemonstrationSaver:
    """Collect into a folder; returns the closed saver."""
    settings = {"rollout_storage_length": 7, "min_timesteps": 40, "min_episodes": 4} | kwargs
    saver = DemonstrationSaver(env, settings.pop("policy", EchoPolicy(env.num_actions)), folder, **settings)
    saver.collect_and_save()
    return saver


def write_trajectory(
    save_dir: Path, index: int, lengths: tuple[int, ...] = (4,), ends: bool = True, tag: float = 0.0, **extra: Any
) -> list[Path]:
    """Write a trajectory by hand: frame t of trajectory i has observation [i, t, tag], action [t] and reward t."""
    folder = save_dir / f"trajectory_{index}"
    folder.mkdir(parents=True, exist_ok=True)
    total, start, paths = sum(lengths), 0, []
    for length in lengths:
        frames = np.arange(start, start + length)
        observations = np.stack([np.full(length, index), frames, np.full(length, tag)], -1).astype(np.float32)
        dones = np.zeros((length, 1), dtype=np.uint8)
        if ends and start + length == total:
            dones[-1] = 1
        content = {
            "observations": observations,
            "privileged_observations": np.concatenate([observations, -observations], -1),
            "actions": frames[:, None].astype(np.float32),
            "rewards": frames[:, None].astype(np.float32),
            "dones": dones,
            "values": np.zeros((length, 1), dtype=np.float32),
            "timeouts": np.zeros(length, dtype=bool),
        }
        content |= {key: value(length) if callable(value) else value for key, value in extra.items()}
        path = folder / f"traj_{start:06d}_{start + length:06d}.pickle"
        # As savers do, so that no reader thread reads a partial file.
        with atomic_write(path, durable=False) as temporary:
            temporary.write_bytes(pickle.dumps({key: value for key, value in content.items() if value is not None}))
        paths.append(path)
        start += length
    return paths
