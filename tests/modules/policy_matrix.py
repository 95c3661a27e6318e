"""Every policy with encoders, an estimator, an adaptor or an image, in every valid combination of options."""

from typing import Any

import torch

from st_rl.modules import policy_classes

NUM_ACTIONS = 3
# Two orders of the same components, so that no policy can rely on a component's position.
ORDERS: dict[str, list[str]] = {
    "forward": ["pose", "velocity", "depth", "contact"],
    "backward": ["contact", "depth", "velocity", "pose"],
}
SHAPES: dict[str, Any] = {"pose": 5, "velocity": (2,), "depth": (1, 4, 6), "contact": [2, 2], "friction": 1, "mass": 2}
CRITIC_ORDER = ["mass", "velocity", "pose", "friction", "depth", "contact"]

CONVOLUTION = {"channels": [3], "kernel_sizes": [3], "strides": [2], "hidden_sizes": [8]}
MLP = {"hidden_sizes": [7]}
ENCODERS: dict[str, dict[str, Any]] = {
    "none": {},
    "mlp": {"encoder_component_names": ["contact", "pose"], "encoder_kwargs": MLP, "encoder_output_size": 6},
    "cnn and mlp, shared": {
        "encoder_component_names": ["pose", "depth"],
        "encoder_class_name": ["MlpModel", "Conv2dHeadModel"],
        "encoder_kwargs": [MLP, CONVOLUTION],
        "encoder_output_size": 6,
        "critic_encoder_component_names": "shared",
    },
    "cnn, critic its own": {
        "encoder_component_names": ["depth"],
        "encoder_class_name": "Conv2dHeadModel",
        "encoder_kwargs": CONVOLUTION,
        "encoder_output_size": 4,
        "critic_encoder_component_names": ["mass", "pose"],
        "critic_encoder_class_name": "MlpModel",
        "critic_encoder_kwargs": MLP,
    },
}
ESTIMATOR = {"estimator_obs_components": ["contact", "pose"], "estimator_target_components": ["velocity"]}
ESTIMATORS: dict[str, dict[str, Any]] = {
    "estimates": {**ESTIMATOR, "estimator_kwargs": {"hidden_sizes": [9]}},
    "replaces": {"estimator_target_components": ["velocity", "contact"], "replace_state_prob": 1.0},
}
ACTOR_MEMORY = {"estimates by the actor's memory": {**ESTIMATOR, "use_actor_rnn": True}}
ADAPTORS: dict[str, dict[str, Any]] = {
    "adapts": {"adaptor_target_components": ["friction", "mass"], "adaptor_kwargs": {"hidden_sizes": [9]}},
    "adapts and replaces": {"adaptor_target_components": ["pose"], "privilege_replace_state_prob": 1.0},
}
VISUALS: dict[str, dict[str, Any]] = {
    "sees": {"visual_component_name": "depth", "visual_kwargs": CONVOLUTION, "visual_latent_size": 5}
}
AMP = {"with discriminator": {"amp_discriminator": {"input_dim": 6, "style_reward_coef": 1.0, "hidden_dims": [4]}}}


def _pairs(first: dict[str, dict[str, Any]], second: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {f"{a}; {b}": {**first[a], **second[b]} for a in first for b in second}


OPTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "EncoderActorCritic": ENCODERS,
    "EncoderActorCriticRecurrent": ENCODERS,
    "EncoderAmpActorCriticRecurrent": _pairs(AMP, {"mlp": ENCODERS["mlp"]}),
    "StateAc": ESTIMATORS,
    "StateAcRecurrent": ESTIMATORS | ACTOR_MEMORY,
    "PrivilegeStateAc": _pairs(ADAPTORS, ESTIMATORS),
    "PrivilegeStateAcRecurrent": _pairs(ADAPTORS, ESTIMATORS | ACTOR_MEMORY),
    "EncoderStateAc": _pairs(ENCODERS, ESTIMATORS),
    "EncoderStateAcRecurrent": _pairs(ENCODERS, ESTIMATORS | ACTOR_MEMORY),
    "VisualDeterministicAC": VISUALS,
    "VisualDeterministicRecurrent": VISUALS,
}
CASES = [(name, options) for name, choices in OPTIONS.items() for options in choices]
RECURRENT_CASES = [case for case in CASES if case[0].endswith("Recurrent")]


def segments(order: str = "forward") -> dict[str, Any]:
    """The actor's segments."""
    return {name: SHAPES[name] for name in ORDERS[order]}


def critic_segments() -> dict[str, Any]:
    """The critic's segments."""
    return {name: SHAPES[name] for name in CRITIC_ORDER}


def width(shape: Any) -> int:
    """Width of a component."""
    return shape if isinstance(shape, int) else int(torch.tensor(shape).prod())


NUM_OBS = sum(width(SHAPES[name]) for name in ORDERS["forward"])
NUM_CRITIC_OBS = sum(width(SHAPES[name]) for name in CRITIC_ORDER)


def make_policy(name: str, options: str, order: str = "forward", seed: int = 0, **settings: Any) -> Any:
    """Build a small policy for a case."""
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {"actor_hidden_dims": [10], "critic_hidden_dims": [10]}
    if name.endswith("Recurrent"):
        sizes |= {"rnn_hidden_size": 8, "rnn_type": "gru"}
    observed = {"obs_segments": segments(order), "critic_obs_segments": critic_segments()}
    arguments = {**sizes, **observed, **OPTIONS[name][options], **settings}
    return policy_classes()[name](NUM_OBS, NUM_CRITIC_OBS, NUM_ACTIONS, **arguments)


def observations(*leading: int, seed: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """Random observations of actor and critic."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*leading, NUM_OBS, generator=generator), torch.randn(
        *leading, NUM_CRITIC_OBS, generator=generator
    )


def reordered(obs: torch.Tensor, old: dict[str, Any], new: dict[str, Any]) -> torch.Tensor:
    """Reorder the components of `obs (..., O)`."""
    parts = dict(zip(old, obs.split([width(shape) for shape in old.values()], dim=-1)))
    return torch.cat([parts[name] for name in new], dim=-1)
