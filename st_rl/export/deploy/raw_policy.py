"""A policy from raw sensors to joint position targets: one call per control step, state in, state out."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from st_rl.env.signals import Signal
from st_rl.export.onnx_policy import DeployedPolicy

Tensors = Mapping[str, Tensor]


class SensorInterface(Protocol):
    """What lies between sensors and observation, and between action and joint target; an `nn.Module`."""

    inputs: dict[str, Signal]
    """Raw inputs by name."""
    states: dict[str, Signal]
    """Tensors that one step passes to the next; zeros at the start of an episode."""
    unmeasured: dict[str, str]
    """What no robot measures, by the name of the observation term that reads it."""
    ignored: frozenset[str]
    """Observation terms that the policy does not use; zeros."""

    def observe(self, inputs: Tensors, state: Tensors) -> Tensor:
        """`(N, O)` observation as in training, before the normalizer."""
        ...

    def clip(self, actions: Tensor) -> Tensor:
        """Actions `(N, J)` within their limits."""
        ...

    def joint_targets(self, inputs: Tensors, state: Tensors, actions: Tensor) -> Tensor:
        """`(N, J)` joint position targets of clipped actions, rad."""
        ...

    def next_state(self, inputs: Tensors, state: Tensors, obs: Tensor, actions: Tensor) -> dict[str, Tensor]:
        """The states after a step with observation `(N, O)` and clipped actions `(N, J)`."""
        ...

    def read_task(self, task: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Inputs and states of all robots of a simulated task, as a robot would deliver them."""
        ...

    def initial_states(self, task: Any) -> tuple[np.ndarray, np.ndarray]:
        """Positions `(N, nq)` and velocities `(N, nv)` of all robots of a simulated task."""
        ...

    def save_robot(self, path: Path) -> None:
        """Write the robot as an MJCF file with all files it needs; its controls are joint targets."""
        ...

    def sent_targets(self, task: Any) -> Tensor:
        """`(N, J)` joint targets that the last step of a simulated task sent to its joints, rad."""
        ...

    def describe(self) -> dict[str, Any]:
        """What a controller needs to know of robot and task."""
        ...


class PolicyStep(NamedTuple):
    """Outcome of one control step."""

    joint_targets: Tensor
    """`(N, J)` rad, within the limits."""
    actions: Tensor
    """`(N, J)` normalized actions, clipped."""
    observation: Tensor
    """`(N, O)` what the policy saw, scaled and clipped, before the normalizer; for logs."""
    state: dict[str, Tensor]
    """States for the next step."""


class RawPolicy(nn.Module):
    """Observation, normalizer, policy and action mapping as one function of raw inputs and states.

    All tensors have a leading axis `N`; a hidden state of `L` layers is `(N, L, H)`.
    """

    def __init__(self, interface: SensorInterface, policy: DeployedPolicy):
        super().__init__()
        self.interface = interface
        self.policy = policy
        self.inputs = dict(interface.inputs)
        """Raw inputs by name."""
        self.states = dict(interface.states)
        """States by name; all start as zeros."""
        for name, leaf in zip(policy.state_names, policy.start):
            self.states[name] = Signal((leaf.shape[0], leaf.shape[2]), "1", "hidden state of the policy")
        num_joints = policy.actor_critic.num_actions
        self.outputs: dict[str, Signal] = {
            "joint_targets": Signal((num_joints,), "rad", "joint position targets, within the limits"),
            "actions": Signal((num_joints,), "1", "normalized actions, clipped"),
            "observation": Signal((policy.actor_critic.num_actor_obs,), "scaled", "what the policy saw, for logs"),
        }
        """Outputs by name, before the next states."""

    def initial_state(self, num_robots: int = 1) -> dict[str, Tensor]:
        """States at the start of an episode: zeros."""
        return {name: torch.zeros(num_robots, *signal.shape) for name, signal in self.states.items()}

    def forward(self, inputs: Tensors, state: Tensors) -> PolicyStep:
        """One control step of `N` robots."""
        obs = self.interface.observe(inputs, state)
        hidden = tuple(state[name].transpose(0, 1) for name in self.policy.state_names)
        output = self.policy(obs, hidden)
        actions, *following = output if hidden else (output,)
        actions = self.interface.clip(actions)
        next_state = self.interface.next_state(inputs, state, obs, actions)
        next_state |= {name: leaf.transpose(0, 1) for name, leaf in zip(self.policy.state_names, following)}
        return PolicyStep(self.interface.joint_targets(inputs, state, actions), actions, obs, next_state)


@torch.inference_mode()
def find_ignored_terms(policy: DeployedPolicy, terms: Mapping[str, slice]) -> list[str]:
    """Observation terms, given by their columns, that change neither actions nor hidden states of a policy.

    An estimator that replaces its targets is the reason: the policy acts on the estimate.
    """
    generator = torch.Generator().manual_seed(0)
    obs = torch.randn(16, policy.actor_critic.num_actor_obs, generator=generator)
    state = tuple(torch.randn(len(leaf), 16, leaf.shape[2], generator=generator) for leaf in policy.start)
    expected = policy(obs, state)

    def changes_nothing(columns: slice) -> bool:
        changed = obs.clone()
        changed[:, columns] = torch.randn(changed[:, columns].shape, generator=generator)
        outputs = policy(changed, state)
        return all(torch.equal(a, b) for a, b in zip(as_tuple(outputs), as_tuple(expected)))

    return [name for name, columns in terms.items() if changes_nothing(columns)]


def as_tuple(outputs: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """One tensor or several as a tuple."""
    return outputs if isinstance(outputs, tuple) else (outputs,)


class SingleRobot(nn.Module):
    """A `RawPolicy` of one robot as a function of plain tensors without a batch axis, in the order of `names`."""

    def __init__(self, policy: RawPolicy):
        super().__init__()
        self.policy = policy
        self.input_names = [*policy.inputs, *policy.states]
        self.output_names = [*policy.outputs, *(f"next_{name}" for name in policy.states)]

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Inputs and states to outputs and next states."""
        named = {name: tensor.unsqueeze(0) for name, tensor in zip(self.input_names, tensors)}
        step = self.policy(named, named)
        outputs = (step.joint_targets, step.actions, step.observation)
        following = tuple(step.state[name] for name in self.policy.states)
        return tuple(tensor.squeeze(0) for tensor in (*outputs, *following))
