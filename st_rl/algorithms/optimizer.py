"""The gradient step: clip gradients, skip steps with non-finite ones, and schedule the learning rate."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

from st_rl.utils.config import unknown_name_message

# Their fused step divides by `grad_scale` and skips itself where `found_inf` is 1, without a host sync.
FUSED_OPTIMIZERS = (torch.optim.Adam, torch.optim.AdamW)
# Factor and limits of the adaptive learning rate.
RATE_FACTOR = 1.5
LOWEST_RATE, HIGHEST_RATE = 1.0e-5, 1.0e-2
OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    name: cls
    for name, cls in vars(torch.optim).items()
    if isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer) and cls is not torch.optim.Optimizer
}


class GuardedOptimizer:
    """A torch optimizer with gradient clipping; a step with a non-finite gradient leaves the weights unchanged.

    Uses torch's own fused step. A direct call of its CPU kernel gained less than 5% of an iteration: 547.6 instead of
    562.8 ms of processor time in eager mode, 488.0 instead of 484.7 ms compiled (quadruped-walk, 256 environments, one
    thread of a 2-core x86 machine under load, medians of 36 alternating iterations; wall time was too noisy).
    There is no compiled Adam step for GPUs: it was never measured by itself.
    """

    def __init__(
        self,
        class_name: str,
        parameters: Iterable[nn.Parameter],
        learning_rate: float,
        device: torch.device | str,
        **options: Any,
    ):
        if class_name not in OPTIMIZERS:
            raise ValueError(unknown_name_message("optimizer_class_name", class_name, OPTIMIZERS))
        cls, device_type = OPTIMIZERS[class_name], torch.device(device).type
        self._is_fused = cls in FUSED_OPTIMIZERS and device_type in ("cpu", "cuda")
        # A tensor on a GPU, so that a captured step reads the current rate and no change of it needs a host sync.
        is_captured = self._is_fused and device_type == "cuda"
        self._rate_tensor = torch.tensor(float(learning_rate), device=device) if is_captured else None
        self._learning_rate: float | Tensor = float(learning_rate) if self._rate_tensor is None else self._rate_tensor
        self._options = {"fused": True, "capturable": is_captured} if self._is_fused else {}
        settings: dict[str, Any] = {"lr": self._learning_rate, **self._options}
        try:
            self.optimizer = cls(list(parameters), **settings, **options)
        except TypeError as error:
            raise ValueError(f"{class_name} cannot be made with {options}: {error}") from error

    def replace(self, optimizer: torch.optim.Optimizer) -> None:
        """Step with another optimizer from now on, with its learning rate and its parameters."""
        self.optimizer = optimizer
        # It may be of any class and its rate a float: check the gradients on the host.
        self._is_fused, self._rate_tensor, self._options = False, None, {}
        self._learning_rate = float(optimizer.param_groups[0]["lr"])

    @property
    def learning_rate(self) -> float | Tensor:
        """The learning rate of all parameter groups: a float, or on a GPU a 0-d tensor."""
        return self._learning_rate

    @learning_rate.setter
    def learning_rate(self, value: float | Tensor) -> None:
        if self._rate_tensor is not None:
            self._rate_tensor.copy_(value) if isinstance(value, Tensor) else self._rate_tensor.fill_(value)
        else:
            self._learning_rate = float(value)
        for group in self.optimizer.param_groups:
            group["lr"] = self._learning_rate

    @property
    def needs_host_sync(self) -> bool:
        """Whether a step reads the gradient norm on the host, so that a CUDA graph cannot capture it."""
        return not self._is_fused

    @property
    def settings(self) -> tuple[tuple[str, Any], ...]:
        """Name and value of all settings but the learning rate that a step reads; a scheduler may change them."""
        items = [item for group in self.optimizer.param_groups for item in group.items()]
        return tuple([(name, value) for name, value in items if name not in ("params", "lr", "initial_lr")])

    @property
    def gradients(self) -> list[Tensor]:
        """The gradients of all parameters that have one."""
        groups = self.optimizer.param_groups
        return [p.grad for group in groups for p in group["params"] if p.grad is not None]

    def zero_grad(self) -> None:
        """Discard the gradients."""
        self.optimizer.zero_grad()

    def apply_gradients(
        self,
        max_grad_norm: float,
        skip_step: Tensor | None = None,
        clip_groups: Sequence[Sequence[nn.Parameter]] = (),
    ) -> Tensor:
        """Step along the current gradients, clipped, unless `skip_step` (0-d bool); return their norm, 0-d.

        Each of `clip_groups`, in this order, is clipped by its own norm; without groups, all by the norm of all.
        """
        gradients = self.gradients
        norm = nn.utils.get_total_norm(gradients)
        divisor = ((norm.double() + 1e-6) / max_grad_norm).clamp(min=1.0).float()
        if clip_groups:
            for group in clip_groups:
                own = [parameter.grad for parameter in group if parameter.grad is not None]
                nn.utils.clip_grads_with_norm_(group, max_grad_norm, nn.utils.get_total_norm(own))
            divisor = torch.ones_like(divisor)
        is_skipped = ~(norm < torch.inf)
        if skip_step is not None:
            is_skipped = is_skipped | skip_step
        if self._is_fused:
            self.optimizer.grad_scale, self.optimizer.found_inf = divisor, is_skipped.float()  # pyright: ignore[reportAttributeAccessIssue]
            self.optimizer.step()
        elif not is_skipped:
            for gradient in gradients:
                gradient.div_(divisor)
            self.optimizer.step()
        return norm

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the optimizer and its learning rate."""
        # A checkpoint from another device may turn off `fused`, which the check for non-finite gradients needs.
        groups = [{**group, "lr": float(group["lr"]), **self._options} for group in state["param_groups"]]
        # A copy, because torch keeps the given tensors and writes into them.
        self.optimizer.load_state_dict({"state": copy.deepcopy(state["state"]), "param_groups": groups})
        if self._rate_tensor is None:
            self._learning_rate = groups[0]["lr"]
        else:
            self.learning_rate = groups[0]["lr"]


def adapt_learning_rate(learning_rate: float | Tensor, kl: Tensor, desired_kl: float) -> Tensor:
    """The next learning rate, a 0-d double: lower if `kl`, 0-d, is above twice `desired_kl`, higher if below half."""
    rate, kl = torch.as_tensor(learning_rate, dtype=torch.float64), kl.double()
    slower, faster = (rate / RATE_FACTOR).clamp(min=LOWEST_RATE), (rate * RATE_FACTOR).clamp(max=HIGHEST_RATE)
    is_slow = (kl > 0.0) & (kl < 0.5 * desired_kl)
    return torch.where(is_slow, faster, torch.where(kl > 2.0 * desired_kl, slower, rate))


def make_lr_scheduler(
    name: str, optimizer: torch.optim.Optimizer, settings: Mapping[str, Any]
) -> lr_scheduler.LRScheduler:
    """A scheduler of `torch.optim.lr_scheduler`, to be stepped once per update."""
    known = {key: cls for key, cls in vars(lr_scheduler).items() if _is_usable(cls) and not key.startswith("_")}
    if name not in known:
        raise ValueError(unknown_name_message("lr_scheduler_class_name", name, known))
    return known[name](optimizer, **settings)


def _is_usable(cls: object) -> bool:
    """Whether a class is a scheduler with a step that takes no metric."""
    if not isinstance(cls, type) or not issubclass(cls, lr_scheduler.LRScheduler):
        return False
    return cls not in (lr_scheduler.LRScheduler, lr_scheduler.ReduceLROnPlateau)
