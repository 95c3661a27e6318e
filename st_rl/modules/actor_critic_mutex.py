"""A container of pretrained policies; subclasses select which one acts."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from st_rl.modules.actor_critic import ActorCritic
from st_rl.modules.policy import HiddenState
from st_rl.modules.policy.build import EnvSpec, policy_class
from st_rl.modules.policy.load import load_policy
from st_rl.utils.config import accepted_keys, report_unused_keys
from st_rl.utils.log import logger


class ActorCriticMutex(ActorCritic):
    """Frozen policies from run folders, each with its action scale and, if it has one, its normalizer.

    Sub-policies get raw observations: leave `empirical_normalization` off. `trust_pickle` loads checkpoints with
    pickled objects, which may run any code.
    """

    def __init__(
        self,
        num_actor_obs: int,
        num_critic_obs: int,
        num_actions: int,
        sub_policy_class_name: str | None = None,
        sub_policy_paths: str | Path | Sequence[str | Path] | None = None,
        obs_segments: Mapping[str, Any] | None = None,
        critic_obs_segments: Mapping[str, Any] | None = None,
        env_action_scale: float | Sequence[float] = 0.5,
        trust_pickle: bool = False,
        **kwargs: Any,
    ):
        nn.Module.__init__(self)
        if sub_policy_class_name is None:
            # Not a required parameter: a null in the configuration means the same as a missing key.
            raise TypeError(
                f"{type(self).__name__} needs sub_policy_class_name, the policy class of the runs in sub_policy_paths: "
                'write "sub_policy_class_name": "ActorCritic", or what their config.json has as '
                "runner.policy_class_name, into the policy's configuration"
            )
        self.num_actor_obs, self.num_critic_obs = int(num_actor_obs), int(num_critic_obs)
        self.num_actions = int(num_actions)
        privileged_obs_segments = kwargs.pop("privileged_obs_segments", None)
        report_unused_keys(kwargs, type(self).__name__, accepted_keys(type(self)), bool(kwargs.pop("strict", False)))
        self.obs_segments = obs_segments
        critic_segments = critic_obs_segments if critic_obs_segments is not None else privileged_obs_segments
        self.critic_obs_segments = critic_segments if critic_segments is not None else obs_segments
        self.rnn_type = None
        self.distribution = None
        self.env_action_scale: float | Tensor
        if isinstance(env_action_scale, Sequence):
            self.register_buffer("env_action_scale", torch.tensor(env_action_scale, dtype=torch.float32))
        else:
            self.env_action_scale = env_action_scale
        sizes = self.num_actor_obs, self.num_critic_obs, self.num_actions
        self._env_spec = EnvSpec(*sizes, self.obs_segments, self.critic_obs_segments)
        self.submodules = nn.ModuleList()
        self.sub_normalizers = nn.ModuleList()
        self.sub_policy_configs: list[dict[str, Any]] = []
        self._add_sub_policies(sub_policy_class_name, sub_policy_paths, trust_pickle)
        self.is_recurrent = any(policy.is_recurrent for policy in self._policies())
        self.requires_grad_(False)
        self.train(self.training)

    def _add_sub_policies(
        self, class_name: str, paths: str | Path | Sequence[str | Path] | None, trust_pickle: bool
    ) -> None:
        """Append the policy of each run folder; ValueError for an unknown class, a warning if there are no folders."""
        policy_class(class_name, kind="sub_policy_class_name")
        if not paths:
            logger.warning(
                f"{type(self).__name__} got no sub_policy_paths: it has no policy to choose from. Write "
                '"sub_policy_paths": ["folder of a run", ...] into its configuration'
            )
        for path in as_paths(paths):
            self._add_sub_policy(class_name, path.expanduser(), trust_pickle)

    def _add_sub_policy(self, class_name: str, folder: Path, trust_pickle: bool) -> None:
        """Append the policy of a run folder's newest checkpoint, with the sizes and segments of the container."""
        loaded = load_policy(folder, env=self._env_spec, policy_class_name=class_name, trust_pickle=trust_pickle)
        scale = (loaded.config.get("control") or {}).get("action_scale")
        if scale is None:
            raise ValueError(
                f"{folder / 'config.json'} lacks control.action_scale, which turns the sub-policy's actions into this "
                "environment's: train it in an environment with cfg.control.action_scale, or add the number"
            )
        self.register_buffer(f"subpolicy_action_scale_{len(self.submodules)}", torch.tensor(scale, dtype=torch.float32))
        self.submodules.append(loaded.actor_critic)
        self.sub_normalizers.append(loaded.obs_normalizer)
        self.sub_policy_configs.append(dict(loaded.config))

    def _policies(self) -> list[ActorCritic]:
        return list(self.submodules)  # pyright: ignore[reportReturnType]

    def train(self, mode: bool = True) -> "ActorCriticMutex":
        """Set the mode of the container; its policies and their statistics stay frozen."""
        super().train(mode)
        self.submodules.eval()
        self.sub_normalizers.eval()
        return self

    def reset(self, dones: Tensor | None = None) -> None:
        """Clear the hidden states of finished environments `(N,)`, or of all, in every sub-policy."""
        for policy in self._policies():
            policy.reset(dones)

    def act(
        self,
        observations: Tensor,
        masks: Tensor | None = None,
        hidden_states: HiddenState = None,
        inference: bool = False,
        **kwargs: Any,
    ) -> Tensor:
        """Return `act_inference(observations)`: frozen policies do not sample, and are not trained on stored steps."""
        if masks is not None or hidden_states is not None:
            raise NotImplementedError(f"{type(self).__name__} acts step by step: it takes no masks or hidden_states")
        return self.act_inference(observations)

    def act_inference(self, observations: Tensor) -> Tensor:
        """Subclasses select which sub-policy acts."""
        raise NotImplementedError(f"{type(self).__name__} does not select which of its policies acts; use a subclass")

    def evaluate(self, *args: Any, **kwargs: Any) -> Tensor:
        """Frozen policies have no critic and cannot be trained."""
        raise NotImplementedError(
            f"{type(self).__name__} has no critic: play it, or let a student learn from it as its teacher"
        )


def as_paths(paths: str | Path | Sequence[str | Path] | None) -> list[Path]:
    """Return a list of paths, given as one path, several or None."""
    return [Path(path) for path in ([paths] if isinstance(paths, str | Path) else paths or ())]
