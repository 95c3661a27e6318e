"""A policy as one ONNX file: observations as the environment returns them in, mean actions out.

A recurrent policy also takes its hidden states, zeros at the start, and returns the next ones.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from st_rl.export.onnx_file import OPSET, ExportError, open_session, write_onnx
from st_rl.modules import ActorCritic, ActorCriticFieldMutex, EmpiricalNormalization, Memory
from st_rl.utils.files import atomic_write, to_json_values

INPUT_NAME = "obs"
OUTPUT_NAME = "actions"


@dataclass(frozen=True)
class ExportReport:
    """The written file and its agreement with torch."""

    file: str
    opset: int
    largest_difference: float
    """Largest absolute difference of an action between the file in onnxruntime and torch."""
    observations_compared: int
    """Number of observations it was compared on."""
    state_names: tuple[str, ...] = ()
    """Hidden states that the file takes and returns in addition to observations and actions."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """What the file says about itself, as JSON values."""


class DeployedPolicy(nn.Module):
    """A frozen policy with its normalizer: observations of the environment `(N, O)` to mean actions `(N, A)`.

    `state_names` are its hidden states, `(L, N, H)` each: inputs after the observations, outputs after the actions.
    A feed-forward policy has none.
    """

    def __init__(self, actor_critic: ActorCritic, obs_normalizer: nn.Module):
        super().__init__()
        self.actor_critic = copy.deepcopy(actor_critic)
        self.obs_normalizer = copy.deepcopy(obs_normalizer)
        self.to("cpu").eval().requires_grad_(False)
        self.state_names: list[str] = []
        self.start: tuple[Tensor, ...] = ()
        self._memories: list[Memory] = []
        if actor_critic.is_recurrent:
            self._find_memories()
        if isinstance(self.actor_critic, ActorCriticFieldMutex):
            self._add_selection(self.actor_critic)

    def _find_memories(self) -> None:
        """Find the memories that acting uses: those with hidden states after one step."""
        policy = self.actor_critic
        policy.clear_hidden_states()
        policy.act_inference(torch.zeros(1, int(policy.num_actor_obs)))
        memories = {name: module for name, module in policy.named_modules() if isinstance(module, Memory)}
        used = {name: memory for name, memory in memories.items() if memory.state_leaves()}
        self._memories = list(used.values())
        for name, memory in used.items():
            parts = ("hidden", "cell") if len(memory.state_leaves()) == 2 else ("hidden",)
            self.state_names += [f"{name.replace('.', '_')}_{part}" for part in parts]
            self.start += tuple(torch.zeros_like(leaf) for leaf in memory.state_leaves())
        policy.clear_hidden_states()

    def _add_selection(self, policy: ActorCriticFieldMutex) -> None:
        """Make the past selections of skill switching a state; ExportError if its velocities are sampled."""
        for index, velocity in policy.cmd_vel_mapping.items():
            if isinstance(velocity, Sequence):
                raise ExportError(
                    f"cmd_vel_mapping[{index}] is {velocity}, a range to sample from in every episode: give one number"
                )
        if policy.action_smoothing_buffer_len > 1:
            self.state_names.append("selection")
            self.start += (torch.zeros(policy.action_smoothing_buffer_len, 1, len(policy.submodules)),)

    def forward(self, obs: Tensor, state: tuple[Tensor, ...] = ()) -> Any:
        """Return mean actions `(N, A)` for observations `(N, O)`; with states: followed by the next states."""
        policy = self.actor_critic
        with policy.preserve_hidden_states():
            given = iter(state)
            for memory in self._memories:
                leaves = [next(given) for _ in range(2 if isinstance(memory.rnn, nn.LSTM) else 1)]
                memory.load_state_leaves(leaves)
            if isinstance(policy, ActorCriticFieldMutex):
                past = next(given, None)
                policy.action_smoothing_buffer = None if past is None else past > 0.5
            actions = policy.act_inference(self.obs_normalizer(obs))
            following = [leaf for memory in self._memories for leaf in memory.state_leaves()]
        if isinstance(policy, ActorCriticFieldMutex):
            selection, policy.action_smoothing_buffer = policy.action_smoothing_buffer, None
            if policy.action_smoothing_buffer_len > 1 and selection is not None:
                following.append(selection.to(obs.dtype))
        return (actions, *following) if following else actions


def export_onnx(
    actor_critic: ActorCritic,
    obs_normalizer: nn.Module,
    path: str | Path,
    metadata: Mapping[str, Any] | None = None,
    recorded: Tensor | None = None,
    tolerance: float = 1e-5,
) -> ExportReport:
    """Write the policy to `path`, unless the file disagrees with torch.

    The file is compared on random observations and on `recorded` ones `(M, O)`. ExportError when any action differs by
    more than `tolerance`; no file is left then. `metadata` goes into the file, each value as JSON, with `inputs`,
    `outputs`, `memory` of a recurrent policy and `observation_normalizer`.
    """
    path = Path(path)
    policy = DeployedPolicy(actor_critic, obs_normalizer)
    observations = [_random_observations(policy)]
    if recorded is not None:
        observations.append(recorded.detach().to("cpu", torch.float32).reshape(-1, observations[0].shape[1]))
    samples = torch.cat(observations)
    facts: dict[str, Any] = to_json_values(
        {"obs_formula": "obs as the environment returns it", **(metadata or {}), **_describe_tensors(policy)}
    )
    with atomic_write(path) as temporary:
        _write_graph(policy, samples[:2], temporary, facts)
        difference = _largest_difference(temporary, policy, samples)
        # Not `difference > tolerance`: a comparison with NaN is false.
        if not difference <= tolerance:
            raise ExportError(
                f"the exported policy differs from torch by {difference:.2e} in an action, more than {tolerance:.0e}; "
                "nothing was written"
            )
    return ExportReport(path.name, OPSET, difference, len(samples), tuple(policy.state_names), facts)


def _describe_tensors(policy: DeployedPolicy) -> dict[str, Any]:
    """Names and shapes of inputs and outputs, and what the file does to the observations."""
    actor_critic = policy.actor_critic
    states = {name: [leaf.shape[0], "batch", leaf.shape[2]] for name, leaf in zip(policy.state_names, policy.start)}
    is_normalized = isinstance(policy.obs_normalizer, EmpiricalNormalization)
    facts: dict[str, Any] = {
        "inputs": {INPUT_NAME: ["batch", int(actor_critic.num_actor_obs)], **states},
        "outputs": {
            OUTPUT_NAME: ["batch", int(actor_critic.num_actions)],
            **{f"next_{name}": shape for name, shape in states.items()},
        },
        "observation_normalizer": "inside the file: give obs as obs_formula says, and do not normalize it"
        if is_normalized
        else "none: give obs as obs_formula says",
    }
    if states:
        facts["memory"] = {"start": "zeros", "inputs": states, "outputs": [f"next_{name}" for name in states]}
    return facts


def _random_observations(policy: DeployedPolicy, count: int = 256) -> Tensor:
    """Sample observations `(count, O)`, distributed as the normalizer's statistics; the same in every call."""
    generator = torch.Generator().manual_seed(0)
    samples = torch.randn(count, int(policy.actor_critic.num_actor_obs), generator=generator)
    normalizer = policy.obs_normalizer
    return samples * normalizer.std + normalizer.mean if isinstance(normalizer, EmpiricalNormalization) else samples


def _write_graph(policy: DeployedPolicy, example: Tensor, path: Path, metadata: Mapping[str, Any]) -> None:
    """Trace the policy with a dynamic batch size and write it in one file."""
    batch = torch.export.Dim("batch")
    arguments: tuple[Any, ...] = (example,)
    shapes: dict[str, Any] = {"obs": {0: batch}}
    if policy.state_names:
        arguments = (example, tuple(leaf.repeat(1, len(example), 1) for leaf in policy.start))
        shapes["state"] = tuple({1: batch} for _ in policy.start)
    inputs = [INPUT_NAME, *policy.state_names]
    outputs = [OUTPUT_NAME, *(f"next_{name}" for name in policy.state_names)]
    write_onnx(policy, arguments, path, inputs, outputs, metadata, shapes)


def _largest_difference(path: Path, policy: DeployedPolicy, samples: Tensor) -> float:
    """Compare onnxruntime with torch: as a batch and row by row, or along sequences for a recurrent policy."""
    session = open_session(path)
    if policy.state_names:
        return _largest_difference_of_sequences(session, policy, samples)
    with torch.inference_mode():
        expected = policy(samples).numpy()
    array = samples.numpy()
    batch = session.run([OUTPUT_NAME], {INPUT_NAME: array})[0]
    rows = np.concatenate([session.run([OUTPUT_NAME], {INPUT_NAME: row[None]})[0] for row in array[:32]])
    return float(max(np.abs(batch - expected).max(), np.abs(rows - expected[:32]).max()))


def _largest_difference_of_sequences(session: Any, policy: DeployedPolicy, samples: Tensor) -> float:
    """Compare along sequences with resets, each with its own hidden states: one sequence, and several in a batch."""
    differences = []
    for width in (1, 8):
        num_steps = len(samples) // width
        state = tuple(leaf.repeat(1, width, 1) for leaf in policy.start)
        inputs = dict(zip(policy.state_names, (leaf.numpy() for leaf in state)))
        for step, obs in enumerate(samples[: num_steps * width].view(num_steps, width, -1)):
            with torch.inference_mode():
                if step % 25 == 24:
                    # The first sequence starts a new episode.
                    for leaf in (*state, *inputs.values()):
                        leaf[:, 0] = 0.0
                expected, *following = policy(obs, state)
            state = tuple(following)
            actions, *outputs = session.run(None, {INPUT_NAME: obs.numpy(), **inputs})
            inputs = dict(zip(policy.state_names, outputs))
            differences.append(np.abs(actions - expected.numpy()).max())
    return float(np.max(differences))
