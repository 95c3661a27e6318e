"""The gradient step: average over ranks, clip, skip what is not finite, never wait for the device."""

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from st_rl.algorithms import compiled_adam, host_adam
from st_rl.algorithms.compiled_adam import step_factors
from st_rl.utils.config import unknown_name_message
from st_rl.utils.distributed import average_gradients

# Their fused form skips a step on the device when told that a gradient is not finite.
FUSED_OPTIMIZERS = ("Adam", "AdamW")


def _is_optimizer(value: Any) -> bool:
    base = torch.optim.Optimizer
    return isinstance(value, type) and issubclass(value, base) and value is not base


def identity(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself."""
    return function


class GuardedOptimizer:
    """A torch optimiser whose step clips the gradients and leaves the weights alone when they are not finite."""

    def __init__(
        self,
        class_name: str,
        parameters: Iterable[nn.Parameter],
        learning_rate: float,
        device: torch.device | str,
        weight_decay: float = 0.0,
    ):
        known = {name: cls for name, cls in vars(torch.optim).items() if _is_optimizer(cls)}
        if class_name not in known:
            raise ValueError(unknown_name_message("optimizer_class_name", class_name, known))
        self._fused = class_name in FUSED_OPTIMIZERS and torch.device(device).type in ("cpu", "cuda")
        # On a GPU the rate is a tensor there, so that changing it neither waits nor invalidates a captured step.
        tensor_rate = self._fused and torch.device(device).type == "cuda"
        self._rate_tensor = torch.tensor(float(learning_rate), device=device) if tensor_rate else None
        rate = float(learning_rate) if self._rate_tensor is None else self._rate_tensor
        self._options = {"fused": True, "capturable": self._rate_tensor is not None} if self._fused else {}
        decay = {"weight_decay": weight_decay} if weight_decay else {}
        self.optimizer: torch.optim.Optimizer = known[class_name](list(parameters), lr=rate, **decay, **self._options)
        self._learning_rate: float | Tensor = rate

    def adopt(self, optimizer: torch.optim.Optimizer) -> None:
        """Step with another optimiser from now on, with its rate and for what it trains."""
        self.optimizer = optimizer
        # It may be of any kind, and its rate a number: it is asked whether gradients are good.
        self._rate_tensor, self._options = None, {}
        self._learning_rate = float(optimizer.param_groups[0]["lr"])

    @property
    def parameters(self) -> list[Tensor]:
        """What is trained, groups that were added to the optimiser included."""
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

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

    @property
    def waits(self) -> bool:
        """Whether a step asks the device if the gradients are good, so that it cannot be captured."""
        return self._rate_tensor is None

    @property
    def settings(self) -> tuple[tuple[str, Any], ...]:
        """Every plain value but the rate that a step reads; a scheduler may change the momentum, say."""
        items = (item for group in self.optimizer.param_groups for item in group.items())
        return tuple((name, value) for name, value in items if name not in ("params", "lr", "initial_lr"))

    def step(self, loss: Tensor, max_grad_norm: float, fused: Callable[..., Any] = identity) -> Tensor:
        """Descend along the gradient of `loss`; returns the gradient norm before clipping, 0-d."""
        self.zero_grad()
        loss.backward()
        return self.apply_gradients(max_grad_norm, fused=fused)

    def zero_grad(self) -> None:
        """Make room for those of the next loss."""
        for parameter in self.parameters:
            parameter.grad = None

    def apply_gradients(
        self, max_grad_norm: float, pause: Tensor | None = None, fused: Callable[..., Any] = identity
    ) -> Tensor:
        """Descend along the gradients that are there, unless `pause`, 0-d, is true; returns their norm, 0-d.

        `fused` may make one kernel of many small ones.
        """
        parameters = self.parameters
        average_gradients(parameters)
        learning, gradients = [], []
        for parameter in parameters:
            gradient = parameter.grad
            if gradient is not None:
                learning.append(parameter)
                gradients.append(gradient)
        norms = torch._foreach_norm(gradients)  # pyright: ignore[reportPrivateImportUsage]
        if self._rate_tensor is None:
            norm = torch.linalg.vector_norm(torch.stack(list(norms)))
            # On the host: each small operation on tensors costs more than all of this. NaN compares false.
            size = float(norm)
            if size < torch.inf and (pause is None or not bool(pause)):
                excess = (size + 1e-6) / max_grad_norm
                if host_adam.can_step(self.optimizer, learning):
                    host_adam.follow(self.optimizer, learning, gradients, max(excess, 1.0))
                else:
                    if excess > 1.0:
                        torch._foreach_div_(gradients, excess)  # pyright: ignore[reportPrivateImportUsage]
                    self.optimizer.step()
            return norm
        # Nothing waits on a GPU: the step itself divides the gradients, and skips itself if told to.
        norm, divisor, skip = fused(step_factors)(norms, max_grad_norm, pause)
        if fused(step_factors) is not step_factors and compiled_adam.can_step(self.optimizer, learning):
            compiled_adam.follow(self.optimizer, learning, gradients, (divisor, skip), fused)
            return norm
        told: Any = self.optimizer
        told.grad_scale, told.found_inf = divisor, skip
        self.optimizer.step()
        return norm

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the optimiser and take over its learning rate."""
        # A file from another device or program may say "not fused", which would put the guard out of action.
        groups = [{**group, "lr": float(group["lr"]), **self._options} for group in state["param_groups"]]
        # A copy, because torch would go on writing into the tensors it is given.
        self.optimizer.load_state_dict({"state": copy.deepcopy(state["state"]), "param_groups": groups})
        self._learning_rate = self.optimizer.param_groups[0]["lr"]
        if self._rate_tensor is not None:
            self.learning_rate = self._learning_rate
