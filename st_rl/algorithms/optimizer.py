"""The gradient step: average over ranks, clip, skip what is not finite, never wait for the device."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from st_rl.utils.config import unknown_name_message
from st_rl.utils.distributed import average_gradients

# Their fused form skips a step on the device when told that a gradient is not finite.
FUSED_OPTIMIZERS = ("Adam", "AdamW")


class GuardedOptimizer:
    """A torch optimiser whose step clips the gradients and leaves the weights alone when they are not finite."""

    def __init__(
        self,
        class_name: str,
        parameters: Iterable[nn.Parameter],
        learning_rate: float,
        max_grad_norm: float,
        device: torch.device | str,
    ):
        cls: Any = getattr(torch.optim, str(class_name), None)
        if not (isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer)):
            names = [n for n, c in vars(torch.optim).items() if isinstance(c, type) and n != "Optimizer"]
            raise ValueError(unknown_name_message("optimizer_class_name", class_name, names))
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self.max_grad_norm = max_grad_norm
        self._fused = class_name in FUSED_OPTIMIZERS and torch.device(device).type in ("cpu", "cuda")
        # On a GPU the rate is a tensor there, so that changing it neither waits nor invalidates a captured step.
        self._rate_tensor = (
            torch.tensor(float(learning_rate), device=device) if torch.device(device).type == "cuda" else None
        )
        rate = learning_rate if self._rate_tensor is None else self._rate_tensor
        options = {"fused": True, "capturable": self._rate_tensor is not None} if self._fused else {}
        self.optimizer: torch.optim.Optimizer = cls(self.parameters, lr=rate, **options)
        self._learning_rate: float | Tensor = rate

    @property
    def learning_rate(self) -> float | Tensor:
        """The rate of every parameter group."""
        return self._learning_rate

    @learning_rate.setter
    def learning_rate(self, value: float | Tensor) -> None:
        if self._rate_tensor is not None:
            self._rate_tensor.copy_(value) if isinstance(value, Tensor) else self._rate_tensor.fill_(value)
            value = self._rate_tensor
        else:
            value = float(value)
        self._learning_rate = value
        for group in self.optimizer.param_groups:
            group["lr"] = value

    def step(self, loss: Tensor) -> Tensor:
        """Descend along the gradient of `loss`; returns the gradient norm before clipping, 0-d."""
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        average_gradients(self.parameters)
        norm = nn.utils.clip_grad_norm_(self.parameters, self.max_grad_norm)
        if self._fused:
            self.optimizer.found_inf = (~torch.isfinite(norm)).float()  # pyright: ignore[reportAttributeAccessIssue]
            self.optimizer.step()
        elif bool(torch.isfinite(norm)):
            self.optimizer.step()
        return norm

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the optimiser and take over its learning rate."""
        self.optimizer.load_state_dict(dict(state))
        self.learning_rate = float(self.optimizer.param_groups[0]["lr"])
