"""The configuration classes of mjlab 1.6 with their fields and defaults, as far as a training reads them."""

from dataclasses import dataclass, field
from typing import Any

GAUSSIAN = {"class_name": "GaussianDistribution", "init_std": 1.0, "std_type": "scalar"}
CNN = {
    "output_channels": [16, 32],
    "kernel_size": [5, 3],
    "stride": [2, 2],
    "padding": "zeros",
    "activation": "elu",
    "max_pool": False,
    "global_pool": "none",
    "spatial_softmax": True,
    "spatial_softmax_temperature": 1.0,
}
"""`cnn_cfg` of Mjlab-Lift-Cube-Yam-Depth."""
CNN_CLASS = "mjlab.rl.spatial_softmax:SpatialSoftmaxCNNModel"


@dataclass
class ModelCfg:
    hidden_dims: tuple[int, ...] = (128, 128, 128)
    activation: str = "elu"
    obs_normalization: bool = False
    cnn_cfg: dict[str, Any] | None = None
    distribution_cfg: dict[str, Any] | None = None
    rnn_type: str | None = None
    rnn_hidden_dim: int = 256
    rnn_num_layers: int = 1
    class_name: str = "MLPModel"


@dataclass
class AlgorithmCfg:
    num_learning_epochs: int = 5
    num_mini_batches: int = 4
    learning_rate: float = 1e-3
    schedule: str = "adaptive"
    gamma: float = 0.99
    lam: float = 0.95
    entropy_coef: float = 0.005
    desired_kl: float = 0.01
    max_grad_norm: float = 1.0
    value_loss_coef: float = 1.0
    use_clipped_value_loss: bool = True
    clip_param: float = 0.2
    normalize_advantage_per_mini_batch: bool = False
    optimizer: str = "adam"
    share_cnn_encoders: bool = False
    class_name: str = "PPO"


@dataclass
class RunnerCfg:
    seed: int = 42
    num_steps_per_env: int = 24
    max_iterations: int = 300
    obs_groups: dict[str, tuple[str, ...]] = field(default_factory=lambda: {"actor": ("actor",), "critic": ("critic",)})
    save_interval: int = 50
    experiment_name: str = "exp1"
    logger: str = "wandb"
    clip_actions: float | None = None
    upload_model: bool = True
    class_name: str = "OnPolicyRunner"
    actor: ModelCfg = field(default_factory=lambda: ModelCfg(distribution_cfg=dict(GAUSSIAN)))
    critic: ModelCfg = field(default_factory=ModelCfg)
    algorithm: AlgorithmCfg = field(default_factory=AlgorithmCfg)


def depth_cfg() -> RunnerCfg:
    """The settings of Mjlab-Lift-Cube-Yam-Depth with small layers."""
    common: dict[str, Any] = {"hidden_dims": (24, 12), "obs_normalization": True, "class_name": CNN_CLASS}
    return RunnerCfg(
        num_steps_per_env=8,
        obs_groups={"actor": ("actor", "camera"), "critic": ("critic", "camera")},
        actor=ModelCfg(cnn_cfg=dict(CNN), distribution_cfg=dict(GAUSSIAN), **common),
        critic=ModelCfg(cnn_cfg=dict(CNN), **common),
    )
