"""Small trainings shared by the tests of this folder."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from st_rl.runners import OnPolicyRunner
from tests.fakes import EchoEnv

RND = {
    "num_outputs": 4,
    "predictor_hidden_dims": [8],
    "target_hidden_dims": [8],
    "weight": 0.1,
    "state_normalization": True,
    "reward_normalization": True,
    "weight_schedule": {"mode": "linear", "final_step": 40, "final_value": 0.0},
}


class NoveltyEnv(EchoEnv):
    """The echo task with RND states."""

    def _groups(self, obs, target, length):
        return {**super()._groups(obs, target, length), "rnd_state": obs[:, :3]}


class StatelessEnv(EchoEnv):
    """The echo task without a state to save."""

    state_dict = property(lambda self: self._no_state())  # pyright: ignore[reportAssignmentType]
    load_state_dict = property(lambda self: self._no_state())  # pyright: ignore[reportAssignmentType]

    def _no_state(self) -> None:
        raise AttributeError("this environment cannot be saved")


def small_config(
    policy: Mapping[str, Any] | None = None, algorithm: Mapping[str, Any] | None = None, **runner: Any
) -> dict[str, Any]:
    """Configuration of a training of milliseconds."""
    return {
        "num_steps_per_env": 6,
        "policy": {"actor_hidden_dims": [8], "critic_hidden_dims": [8], **(policy or {})},
        "algorithm": {"num_learning_epochs": 2, "num_mini_batches": 2, **(algorithm or {})},
        **runner,
    }


def recurrent(rnn_type: str) -> dict[str, Any]:
    """Policy section of a small recurrent policy."""
    return {"class_name": "ActorCriticRecurrent", "rnn_type": rnn_type, "rnn_hidden_size": 8}


def make_runner(env: Any = None, config: Mapping[str, Any] | None = None, **kwargs: Any) -> OnPolicyRunner:
    """A runner on the echo task."""
    return OnPolicyRunner(EchoEnv() if env is None else env, small_config() if config is None else config, **kwargs)


def weights(runner: OnPolicyRunner) -> dict[str, torch.Tensor]:
    """Copies of the policy parameters."""
    return {name: value.clone() for name, value in runner.alg.actor_critic.state_dict().items()}


def progress(folder: Path | str) -> list[dict[str, str]]:
    """Rows of a run's progress.csv without empty cells."""
    with open(Path(folder) / "progress.csv", newline="", encoding="utf-8") as file:
        return [{tag: value for tag, value in row.items() if value != ""} for row in csv.DictReader(file)]


def differences(first: Any, second: Any, where: str = "") -> list[str]:
    """Paths at which two nested values differ; bit-exact, NaN equals NaN."""
    if isinstance(first, torch.Tensor):
        same = isinstance(second, torch.Tensor) and first.dtype == second.dtype and first.shape == second.shape
        same = same and torch.equal(
            first.contiguous().view(-1).view(torch.uint8), second.contiguous().view(-1).view(torch.uint8)
        )
        return [] if same else [where]
    if isinstance(first, Mapping):
        if not isinstance(second, Mapping) or list(first) != list(second):
            return [f"{where} keys"]
        return [d for key in first for d in differences(first[key], second[key], f"{where}/{key}")]
    if isinstance(first, list | tuple):
        if type(first) is not type(second) or len(first) != len(second):
            return [f"{where} length"]
        return [d for i, (a, b) in enumerate(zip(first, second)) for d in differences(a, b, f"{where}/{i}")]
    return [] if first == second or (first != first and second != second) else [f"{where}: {first!r} != {second!r}"]
