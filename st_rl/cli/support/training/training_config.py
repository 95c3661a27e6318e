"""The training configuration as typed options, converted to and from the dictionary of a runner."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from st_rl.cli.support.command_line import UsageError
from st_rl.loggers import LoggerName


@dataclass
class RunnerConfig:
    """The training loop."""

    max_iterations: int | None = 300
    """Number of iterations: one rollout and one update each; None with --minutes, for no limit."""
    num_steps_per_env: int = 24
    """Steps of each environment in one rollout."""
    save_interval: int = 50
    """Iterations between two checkpoints; each is evaluated without exploration noise."""
    log_interval: int = 1
    """Iterations between two log entries."""
    video_interval: int | None = None
    """Iterations between two short films of the policy in the log, rendered beside the training; None for no films."""
    keep_last: int | None = None
    """Number of newest checkpoints to keep; None keeps all."""
    keep_best: bool = True
    """Whether to keep the checkpoint with the best score as best.pt."""
    empirical_normalization: bool = False
    """Whether to normalize observations by their running mean and standard deviation."""
    engine: Literal["auto", "eager", "compile", "graph"] = "auto"
    """How rollouts and updates run: eager, torch.compile, or CUDA graphs; auto chooses the fastest."""
    update_threads: int | None = None
    """Threads of torch during updates on a CPU; None measures which number is fastest, before and in the training."""
    rank_timeout_s: float = 600.0
    """Seconds after which a training over several ranks stops if one of them does not respond."""
    logger: LoggerName = "tensorboard"
    """Logger besides progress.csv."""
    wandb_project: str | None = None
    """Weights & Biases project, for logger wandb."""
    neptune_project: str | None = None
    """Neptune project, for logger neptune."""


@dataclass
class PolicyConfig:
    """The networks."""

    class_name: str = "ActorCritic"
    """Policy class."""
    actor_hidden_dims: tuple[int, ...] = (128, 128)
    """Hidden layer sizes of the actor."""
    critic_hidden_dims: tuple[int, ...] = (128, 128)
    """Hidden layer sizes of the critic."""
    activation: str = "elu"
    """Activation function."""
    init_noise_std: float = 1.0
    """Initial standard deviation of the actions."""
    noise_std_type: Literal["scalar", "log"] | None = None
    """Whether the standard deviation of the actions is learned (scalar, the default) or its logarithm (log)."""
    mu_activation: str | None = None
    """Activation of the actor's output."""
    orthogonal_init: bool = False
    """Whether weights start orthogonal, with a small action head; otherwise as in torch."""
    rnn_type: Literal["gru", "lstm"] | None = None
    """RNN of a recurrent policy class."""
    rnn_hidden_size: int | None = None
    """Hidden size of the RNN."""
    rnn_num_layers: int | None = None
    """Layers of the RNN."""
    encoder_component_names: tuple[str, ...] | None = None
    """Observation components that a policy class with encoders encodes."""
    encoder_output_size: int | None = None
    """Size of a latent."""


@dataclass
class AlgorithmConfig:
    """The update."""

    class_name: str = "PPO"
    """Algorithm class."""
    num_learning_epochs: int = 5
    """Epochs over each rollout."""
    num_mini_batches: int = 4
    """Mini-batches of each epoch."""
    learning_rate: float = 1e-3
    """Learning rate; the initial one for the adaptive schedule."""
    schedule: Literal["adaptive", "fixed"] = "adaptive"
    """Whether the learning rate adapts to desired_kl."""
    desired_kl: float | None = 0.01
    """Target KL divergence of an update, for the adaptive schedule."""
    gamma: float = 0.99
    """Discount factor."""
    lam: float = 0.95
    """Lambda of generalized advantage estimation."""
    clip_param: float = 0.2
    """Clipping range of the probability ratio in PPO."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    value_loss_coef: float = 1.0
    """Weight of the value loss."""
    use_clipped_value_loss: bool = True
    """Whether to clip the value loss."""
    max_grad_norm: float = 1.0
    """Gradient clipping norm."""
    optimizer_class_name: str = "Adam"
    """Optimizer class of torch.optim."""
    mixed_precision: Literal["bf16"] | None = None
    """bf16 computes the hidden layers of updates in bfloat16, which is faster on a GPU."""
    reward_normalization: bool = False
    """Whether to divide rewards by the running spread of discounted returns; logged returns stay unscaled."""
    reward_clip: float = 10.0
    """Largest normalized reward."""
    normalize_advantage_per_mini_batch: bool = False
    """Whether to normalize advantages within each mini-batch; otherwise within the rollout only."""
    shuffle_every_epoch: bool = False
    """Whether to draw new mini-batches in every epoch; otherwise each epoch has the same."""
    anneal_learning_rate: bool = False
    """Whether the learning rate falls linearly over the training; needs the fixed schedule."""
    anneal_clip_param: bool = False
    """Whether the clipping range falls linearly over the training."""
    anneal_iterations: int | None = None
    """Iterations over which they fall; None uses all iterations of the training."""
    clip_gradients_separately: bool = False
    """Whether the gradients of actor and critic are clipped each by their own norm, as in rsl_rl 4 and 5."""
    exact_kl: bool = False
    """Whether the adaptive schedule reads the exact KL divergence, as in rsl_rl 4 and 5; otherwise as in rsl_rl 2."""


@dataclass
class TrainingConfig:
    """A training configuration: runner, policy and algorithm."""

    runner: RunnerConfig = field(default_factory=RunnerConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    others: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Settings of each part without a typed option, for example for other policy and algorithm classes."""

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> TrainingConfig:
        """Read the flat or nested dictionary of a runner; missing settings keep their default."""
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
        typed, others = {}, {}
        for part, kind in (("runner", RunnerConfig), ("policy", PolicyConfig), ("algorithm", AlgorithmConfig)):
            optional = {f.name: "None" in str(f.type) for f in dataclasses.fields(kind)}
            known: dict[str, Any] = {
                key: tuple(value) if isinstance(value, list) else value
                for key, value in parts[part].items()
                if key in optional and (value is not None or optional[key])
            }
            typed[part] = kind(**known)
            others[part] = {key: copy.deepcopy(value) for key, value in parts[part].items() if key not in optional}
        return cls(**typed, others=others)

    def to_dict(self) -> dict[str, Any]:
        """Return the dictionary of a runner; it is strict, so an unknown setting is an error."""
        parts = {}
        for name, part in (("runner", self.runner), ("policy", self.policy), ("algorithm", self.algorithm)):
            typed = {key: list(v) if isinstance(v, tuple) else v for key, v in vars(part).items() if v is not None}
            parts[name] = {**copy.deepcopy(self.others.get(name, {})), **typed}
        # The only setting for which None differs from the default.
        parts["algorithm"]["desired_kl"] = self.algorithm.desired_kl
        return {**parts["runner"], "policy": parts["policy"], "algorithm": parts["algorithm"], "strict": True}


def with_settings(config: Mapping[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """Return a copy of a runner's dictionary with assignments `dotted.name=value`; values are JSON or plain words."""
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
