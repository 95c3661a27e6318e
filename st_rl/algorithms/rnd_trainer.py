"""Training of random network distillation."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from st_rl.algorithms.optimizer import GuardedOptimizer
from st_rl.modules.rnd import RandomNetworkDistillation
from st_rl.utils.config import accepted_keys, drop_none, report_unused_keys
from st_rl.utils.distributed import broadcast_module


class RndTrainer:
    """Random network distillation with the optimizer of its predictor.

    Configuration: the arguments of `RandomNetworkDistillation` and `learning_rate` (default 1e-3).
    """

    def __init__(self, cfg: Mapping[str, Any], device: torch.device | str, strict: bool = False):
        accepted = accepted_keys(RandomNetworkDistillation) - {"device"}
        given = drop_none(cfg)
        learning_rate = given.pop("learning_rate", 1e-3)
        strict = bool(given.pop("strict", strict))
        settings = {key: given.pop(key) for key in list(given) if key in accepted}
        report_unused_keys(given, "rnd_cfg", accepted | {"learning_rate"}, strict)
        self.rnd = RandomNetworkDistillation(**settings, device=device)
        broadcast_module(self.rnd)
        self.guarded_optimizer = GuardedOptimizer("Adam", self.rnd.predictor.parameters(), learning_rate, device)

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of the predictor."""
        return self.guarded_optimizer.optimizer

    def backward(self, rnd_state: Tensor) -> Tensor:
        """Compute the gradients of the predictor on states `(..., R)`; returns its loss, 0-d."""
        loss = self.rnd.predictor_loss(rnd_state)
        loss.backward()
        return loss.detach()

    def state_dict(self) -> dict[str, Any]:
        """The parts of a checkpoint by key."""
        return {"rnd_state_dict": self.rnd.state_dict(), "rnd_optimizer_state_dict": self.optimizer.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the parts that a checkpoint has."""
        if "rnd_state_dict" in state_dict:
            self.rnd.load_state_dict(state_dict["rnd_state_dict"])
        if "rnd_optimizer_state_dict" in state_dict:
            self.guarded_optimizer.load_state_dict(state_dict["rnd_optimizer_state_dict"])
