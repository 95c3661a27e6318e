"""Distances between student and teacher as pure functions of tensors."""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from st_rl.modules.actor_critic import ActorCritic
from st_rl.modules.networks.gaussian import gaussian_kl
from st_rl.modules.policy import EncoderPolicy, GaussianPolicy, Policy
from st_rl.utils.config import unknown_name_message

BOUNDED_TARGETS = ("tanh", "scaled_tanh")
LATENT_TARGETS = ("real", "l1", *BOUNDED_TARGETS)
DISTILL_TARGETS = ("real", "mse_sum", "mse_mean", "huber", "l1", *BOUNDED_TARGETS, "max_log_prob", "kl")
# Lower limit of the teacher's standard deviation in the KL divergence, which grows without bound below it.
MIN_TEACHER_STD = 1.0e-3
_INSIDE_ONE = 1.0 - 1.0e-6


def check_target(name: str, value: str, known: tuple[str, ...]) -> None:
    """Raise ValueError for an unknown distance."""
    if value not in known:
        raise ValueError(unknown_name_message(name, value, known))


def vector_distance(kind: str, x: Tensor, y: Tensor) -> Tensor:
    """The distance between vectors, `(..., D) -> (...)`; `kind` as in `distill_target`."""
    if kind == "real":
        return torch.linalg.vector_norm(x - y, dim=-1)
    if kind == "mse_sum":
        return (x - y).square().sum(dim=-1)
    if kind == "mse_mean":
        return (x - y).square().mean(dim=-1)
    if kind == "huber":
        return F.huber_loss(x, y, reduction="none").mean(dim=-1)
    if kind == "l1":
        return (x - y).abs().sum(dim=-1)
    crossed = 2.0 * _cross_entropy(x, y).mean(dim=-1)
    return crossed if kind == "tanh" else crossed * (x - y).abs().sum(dim=-1) / x.shape[-1]


def _cross_entropy(x: Tensor, y: Tensor) -> Tensor:
    """The binary cross-entropy of numbers in [-1, 1] read as probabilities, `(...)`; what is outside is clamped."""
    guess, truth = ((value + 1.0).mul(0.5).clamp(0.0, 1.0) for value in (x, y))
    # torch refuses to compute this in less than float32.
    with torch.autocast(x.device.type, enabled=False):
        return F.binary_cross_entropy(guess.float(), truth.float(), reduction="none")


def action_distance(kind: str, mean: Tensor, std: Tensor, labels: Tensor, label_std: Tensor | None) -> Tensor:
    """The distance of a Gaussian student from the teacher's actions, all `(..., A) -> (...)`.

    `label_std (A,)` is the teacher's standard deviation, which only `kl` reads.
    """
    if kind == "max_log_prob":
        return -torch.distributions.Normal(mean, std, validate_args=False).log_prob(labels).sum(dim=-1)
    if kind == "kl" and label_std is not None:
        return gaussian_kl(mean, std, labels, label_std, ratio_offset=0.0)
    return vector_distance(kind, mean, labels)


def teacher_std(student: Policy, teacher: Policy) -> Tensor:
    """The teacher's standard deviation `(A,)`; ValueError where one of the two policies has none."""
    for policy in (student, teacher):
        is_bounded = isinstance(policy, ActorCritic) and policy.action_bound is not None
        if is_bounded or not isinstance(policy, GaussianPolicy):
            raise ValueError(
                f"distill_target='kl' compares two Gaussians, which a {type(policy).__name__} without a standard "
                "deviation or with an action_bound is not; use 'max_log_prob' or 'real'"
            )
    return cast(GaussianPolicy, teacher).std.detach().clamp(min=MIN_TEACHER_STD)


def bounded_statistics(mean: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Statistics of bounded actions, 0-d: their L1 distance after and before the tanh."""
    before = [torch.atanh(value.clamp(-_INSIDE_ONE, _INSIDE_ONE)) for value in (mean, labels)]
    return {
        "l1distance": (mean - labels).abs().sum(dim=-1).mean(),
        "l1_before_tanh": (before[0] - before[1]).abs().sum(dim=-1).mean(),
    }


def check_encoders(policy: Policy, role: str) -> EncoderPolicy:
    """The policy as one with encoders; ValueError if it has none."""
    if not isinstance(policy, EncoderPolicy):
        raise ValueError(
            f"distill_latent_obs_component_mapping needs a {role} with encoders, such as EncoderActorCritic; "
            f"it is {type(policy).__name__}"
        )
    return policy


@torch.no_grad()
def latent_width(policy: Policy, component: str) -> int:
    """The width of the latent of an observation component."""
    encoders = check_encoders(policy, "policy")
    obs = torch.zeros(1, policy.num_actor_obs, device=next(policy.parameters()).device)
    return encoders.get_encoder_latent(obs, component).shape[-1]
