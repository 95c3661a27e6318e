"""The training configuration as typed options; becomes the dictionary that runners take."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from st_rl.cli.support.command_line import UsageError


@dataclass
class RunnerConfig:
    """How long to train, and what to keep."""

    max_iterations: int = 300
    """Number of iterations: one rollout and one update each."""
    num_steps_per_env: int = 24
    """Steps of every robot in one rollout."""
    save_interval: int = 50
    """Iterations between two checkpoints; each is judged without noise, and the best one is kept as best.pt."""
    log_interval: int = 1
    """Iterations between two log entries."""
    keep_last: int | None = None
    """Newest checkpoints to keep; all of them when None."""
    keep_best: bool = True
    """Whether the checkpoint that scores best is kept as best.pt."""
    empirical_normalization: bool = False
    """Whether observations are normalised by their running mean and deviation."""
    engine: Literal["auto", "eager", "compile", "graph"] = "auto"
    """How the hot code runs: as written, compiled, or as CUDA graphs; auto takes what pays."""
    update_threads: int | None = None
    """Threads of torch while a policy learns on a CPU; when None, a short measurement before the training chooses."""
    logger: Literal["tensorboard", "wandb", "neptune"] = "tensorboard"
    """Where curves go, besides progress.csv."""
    wandb_project: str | None = None
    """Project of Weights & Biases, for logger=wandb."""
    neptune_project: str | None = None
    """Project of Neptune, for logger=neptune."""


@dataclass
class PolicyConfig:
    """The networks."""

    class_name: str = "ActorCritic"
    """Policy class of st_rl.modules."""
    actor_hidden_dims: tuple[int, ...] = (128, 128)
    """Hidden layers of the actor."""
    critic_hidden_dims: tuple[int, ...] = (128, 128)
    """Hidden layers of the critic."""
    activation: str = "elu"
    """Activation between layers."""
    init_noise_std: float = 1.0
    """Exploration noise at the beginning."""
    mu_activation: str | None = None
    """Activation after the last layer of the actor."""
    rnn_type: Literal["gru", "lstm"] | None = None
    """Memory of a recurrent policy class."""
    rnn_hidden_size: int | None = None
    """Width of that memory."""
    rnn_num_layers: int | None = None
    """Layers of that memory."""
    encoder_component_names: tuple[str, ...] | None = None
    """Observation components that a policy class with encoders replaces by latents."""
    encoder_output_size: int | None = None
    """Width of a latent."""


@dataclass
class AlgorithmConfig:
    """How the policy learns from a rollout."""

    class_name: str = "PPO"
    """Algorithm class of st_rl.algorithms."""
    num_learning_epochs: int = 5
    """Passes over each rollout."""
    num_mini_batches: int = 4
    """Mini-batches of each pass."""
    learning_rate: float = 1e-3
    """Step size of the optimiser, at the beginning if the schedule is adaptive."""
    schedule: Literal["adaptive", "fixed"] = "adaptive"
    """Whether the learning rate follows desired_kl."""
    desired_kl: float | None = 0.01
    """How far one update may move the policy (Kullback-Leibler divergence)."""
    gamma: float = 0.99
    """Discount factor."""
    lam: float = 0.95
    """Decay of generalised advantage estimation."""
    clip_param: float = 0.2
    """Clipping range of the probability ratio."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    value_loss_coef: float = 1.0
    """Weight of the value loss."""
    use_clipped_value_loss: bool = True
    """Whether the value loss is clipped too."""
    max_grad_norm: float = 1.0
    """Largest norm of a gradient."""
    optimizer_class_name: str = "Adam"
    """Optimiser of torch.optim."""
    mixed_precision: Literal["bf16"] | None = None
    """Whether the hidden layers learn in bfloat16, which a GPU computes faster."""


@dataclass
class TrainingConfig:
    """The three parts of a training configuration."""

    runner: RunnerConfig = field(default_factory=RunnerConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    others: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Settings of each part that a task gives and that have no typed option, such as those of a class of its own."""

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> TrainingConfig:
        """Read the flat or nested dictionary of a runner; what it does not name keeps its default."""
        runner = config.get("runner", config)
        parts = {
            "runner": {key: value for key, value in runner.items() if key not in ("policy", "algorithm", "strict")},
            "policy": dict(config.get("policy") or {}),
            "algorithm": dict(config.get("algorithm") or {}),
        }
        for part in ("policy", "algorithm"):
            name = parts["runner"].pop(f"{part}_class_name", None)
            if name is not None:
                parts[part].setdefault("class_name", name)
            parts[part].pop("strict", None)
        classes = {"runner": RunnerConfig, "policy": PolicyConfig, "algorithm": AlgorithmConfig}
        typed, others = {}, {}
        for part, values in parts.items():
            names = {f.name: f for f in dataclasses.fields(classes[part])}
            known = {key: _as_tuple(value) for key, value in values.items() if key in names and value is not None}
            nulls = {
                key: None for key, value in values.items() if value is None and names.get(key) and _optional(names[key])
            }
            typed[part] = classes[part](**nulls, **known)
            others[part] = {key: copy.deepcopy(value) for key, value in values.items() if key not in names}
        return cls(**typed, others=others)

    def to_dict(self) -> dict[str, Any]:
        """The dictionary that a runner takes; strict, so that a name that nothing knows is an error."""
        parts = {}
        for part in ("runner", "policy", "algorithm"):
            values = {f.name: getattr(getattr(self, part), f.name) for f in dataclasses.fields(getattr(self, part))}
            typed = {key: list(v) if isinstance(v, tuple) else v for key, v in values.items() if v is not None}
            parts[part] = {**copy.deepcopy(self.others.get(part, {})), **typed}
        # The only null that means something: no limit on how far an update may go.
        parts["algorithm"]["desired_kl"] = self.algorithm.desired_kl
        return {**parts["runner"], "policy": parts["policy"], "algorithm": parts["algorithm"], "strict": True}


def with_settings(config: Mapping[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """A copy of a runner's dictionary with assignments `dotted.name=value`; a value is JSON, or else a word."""
    result = copy.deepcopy(dict(config))
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        *path, last = name.split(".")
        if not equals or not all((*path, last)):
            raise UsageError(f"--set takes dotted.name=value, such as algorithm.rnd_cfg.weight=0.1; got '{assignment}'")
        part = result
        for key in path:
            part[key] = dict(part.get(key) or {})
            part = part[key]
        try:
            part[last] = json.loads(text)
        except json.JSONDecodeError:
            part[last] = text
    return result


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _optional(field_: dataclasses.Field[Any]) -> bool:
    return "None" in str(field_.type)
