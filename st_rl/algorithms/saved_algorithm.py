"""What a checkpoint keeps of an algorithm."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from st_rl.algorithms.optimizer import GuardedOptimizer
from st_rl.algorithms.rnd_trainer import RndTrainer
from st_rl.engine import Engine
from st_rl.modules.normalizer import EmpiricalNormalization
from st_rl.utils.log import logger


class SavedAlgorithm:
    """Saves and restores the policy, its optimiser, the normalisers and the novelty predictor of an algorithm."""

    actor_critic: Any
    obs_normalizer: nn.Module
    critic_obs_normalizer: nn.Module
    _optimizer: GuardedOptimizer
    _rnd_trainer: RndTrainer | None
    engine: Engine

    def state_dict(self) -> dict[str, Any]:
        """Everything of the algorithm that a checkpoint keeps."""
        state: dict[str, Any] = {
            "model_state_dict": self.actor_critic.state_dict(),
            "optimizer_state_dict": self._optimizer.optimizer.state_dict(),
        }
        scheduler = getattr(self, "lr_scheduler", None)
        if scheduler is not None:
            state["lr_scheduler_state_dict"] = scheduler.state_dict()
        for key, normalizer in self._normalizers().items():
            if isinstance(normalizer, EmpiricalNormalization):
                state[key] = normalizer.state_dict()
        return state if self._rnd_trainer is None else state | self._rnd_trainer.state_dict()

    def _normalizers(self) -> dict[str, nn.Module]:
        """Checkpoint key -> normaliser."""
        return {
            "obs_norm_state_dict": self.obs_normalizer,
            "critic_obs_norm_state_dict": self.critic_obs_normalizer,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave; everything but the model may be missing."""
        # Refused before anything is changed.
        statistics = self._normalizer_states(state_dict)
        self.actor_critic.load_state_dict(state_dict["model_state_dict"])
        if "optimizer_state_dict" in state_dict:
            self._optimizer.load_state_dict(state_dict["optimizer_state_dict"])
        self._load_lr_scheduler(state_dict.get("lr_scheduler_state_dict"))
        for key, state in statistics.items():
            self._normalizers()[key].load_state_dict(state)
        if self._rnd_trainer is not None:
            self._rnd_trainer.load_state_dict(state_dict)
        # Optimisers have new tensors now, and captured steps would go on with the old ones.
        self.engine.discard_graphs()

    def _normalizer_states(self, state_dict: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
        """The statistics in a checkpoint by our key; ValueError when there is no normaliser to take them."""
        upstream_names = {"critic_obs_norm_state_dict": "privileged_obs_norm_state_dict"}
        states: dict[str, Mapping[str, Any]] = {}
        for key, normalizer in self._normalizers().items():
            state = state_dict.get(key) or state_dict.get(upstream_names.get(key, key))
            if not state:
                continue
            if not isinstance(normalizer, EmpiricalNormalization):
                raise ValueError(
                    f"the checkpoint was trained with normalised observations ('{key}'), but this algorithm has no "
                    "normaliser: set empirical_normalization=True, or the policy sees numbers it was not trained on"
                )
            states[key] = state
        return states

    def _load_lr_scheduler(self, state: Mapping[str, Any] | None) -> None:
        scheduler = getattr(self, "lr_scheduler", None)
        if state is not None and scheduler is None:
            logger.warning("the checkpoint has a learning-rate scheduler, this algorithm has none: ignored")
        elif state is not None and scheduler is not None:
            scheduler.load_state_dict(state)
        elif scheduler is not None:
            logger.warning("the checkpoint has no learning-rate scheduler state: the scheduler starts anew")

    # ---- between two rollouts ------------------------------------------------------------------------------------

    def pin_hidden_states(self) -> None:
        """Keep the present state of all memories where the next rollout will look for it."""
        self.actor_critic.pin_hidden_states()

    def rollout_state(self) -> dict[str, Any]:
        """What the next rollout continues from beside the environment: the memories of the running episodes."""
        return {"memory": self.actor_critic.hidden_state_dict()}

    def load_rollout_state(self, state: Mapping[str, Any]) -> None:
        """Continue the episodes of which `rollout_state` told."""
        self.actor_critic.load_hidden_state_dict(state["memory"])
