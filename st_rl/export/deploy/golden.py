"""The golden run: raw inputs and expected outputs of a policy in closed loop, resets included.

`T` steps of one robot. `golden.npz` holds, as float32 unless said otherwise:

- each input of `deploy.yaml` by its name, `(T, *shape)`;
- `reset` `(T,)` bool: the step starts a new episode;
- `state_NAME` `(T, *shape)`: the state before the step; a replay takes it where `reset` is True and carries its own
  state otherwise;
- `joint_targets` `(T, J)`, `actions` `(T, J)` and `observation` `(T, O)`: what the trained policy did in the task;
- `low_NAME` and `high_NAME` `(*shape)`: smallest and largest value of each input over all recorded robots;
- `high_target_step` `(J,)`: largest change of a joint target from one step to the next, over all recorded robots;
  an episode starts from the default pose;
- `start_qpos` `(N, nq)` and `start_qvel` `(N, nv)`, float64: initial states of all recorded robots in `robot.xml`;
- after `st-rl eval`, of its `M` robots in fine physics: `evaluation_qpos` `(M, nq)` and `evaluation_qvel` `(M, nv)`,
  their initial states, `evaluation_command` and `evaluation_velocity` `(M, 3)`, the mean commands and velocities, and
  `evaluation_fell` `(M,)` bool.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from st_rl.env.utils import split_observations, split_step
from st_rl.env.vec_env import VecEnv
from st_rl.export.deploy.raw_policy import RawPolicy
from st_rl.export.onnx_file import ExportError
from st_rl.modules.policy.load import InferencePolicy

OUTPUTS = ("joint_targets", "actions", "observation")
Arrays = dict[str, np.ndarray]
ControlStep = Callable[[Mapping[str, np.ndarray], Mapping[str, np.ndarray]], tuple[Arrays, Arrays]]
"""One control step: inputs and states by name to outputs and next states by name."""


@torch.inference_mode()
def record_golden(policy: RawPolicy, trained: InferencePolicy, task: VecEnv, num_steps: int = 600) -> Arrays:
    """Run the trained policy in closed loop on all robots of a task; return the golden arrays of the first one.

    The task must deliver observations without noise. ExportError if the raw policy, fed with the raw inputs, differs
    from what the trained policy saw or from what the task sent to the joints of any robot.
    """
    interface, count = policy.interface, task.num_envs
    obs, state = split_observations(task.reset())[0], policy.initial_state(count)
    trained.reset()
    description, dones = interface.describe(), torch.ones(count, dtype=torch.bool)
    widths = {term["name"]: term["width"] for term in description["observation"]}
    ignored = torch.tensor([name in interface.ignored for name, width in widths.items() for _ in range(width)])
    rows: list[Arrays] = []
    ranges = {name: _Range() for name in (*policy.inputs, "target_step")}
    starts = dict(zip(("start_qpos", "start_qvel"), interface.initial_states(task)))
    default_pos = torch.tensor([joint["default_pos"] for joint in description["joints"]])
    last_targets = default_pos.expand(count, -1)
    for _ in range(num_steps):
        inputs, started = interface.read_task(task)
        zeros = policy.initial_state(count)
        state = {name: _select(dones, started.get(name, zeros[name]), value) for name, value in state.items()}
        step = policy(inputs, state)
        for name, value in inputs.items():
            ranges[name].add(value)
        row = {**inputs, "reset": dones, **{f"state_{name}": value for name, value in state.items()}}
        actions = trained(obs)
        seen = obs.cpu().masked_fill(ignored, 0.0)
        obs, _, _, finished, _ = split_step(task.step(actions))
        sent = interface.sent_targets(task)
        _require_equal("observation", step.observation, seen)
        _require_equal("joint target", step.joint_targets, sent)
        ranges["target_step"].add((sent - _select(dones, default_pos.expand_as(sent), last_targets)).abs())
        last_targets = sent.clone()
        row |= {"joint_targets": sent, "actions": interface.clip(actions.cpu()), "observation": seen}
        rows.append({name: value[0].numpy().copy() for name, value in row.items()})
        trained.reset(finished)
        dones, state = finished.reshape(-1).cpu() > 0, step.state
    golden = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    for name, span in ranges.items():
        golden[f"low_{name}"], golden[f"high_{name}"] = span.low.numpy(), span.high.numpy()
    return golden | starts


class _Range:
    """Smallest and largest value of each element over all rows that were added."""

    def __init__(self) -> None:
        self.low, self.high = torch.tensor(torch.inf), torch.tensor(-torch.inf)

    def add(self, rows: Tensor) -> None:
        """Add rows `(N, ...)`."""
        self.low, self.high = torch.minimum(self.low, rows.amin(0)), torch.maximum(self.high, rows.amax(0))


def _select(mask: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Rows `(N, ...)` of `first` where `mask` `(N,)` is True, else of `second`."""
    return torch.where(mask.view(-1, *[1] * (first.dim() - 1)), first, second)


def _require_equal(what: str, computed: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    """ExportError if any number differs by more than the tolerance, or is NaN."""
    difference = float((computed - expected).abs().max())
    if not difference <= tolerance:
        raise ExportError(
            f"the deployed policy differs from the task by {difference:.2e} in an {what}, more than {tolerance:.0e}: "
            "an observation term depends on more than the sensors that it reads; nothing was written"
        )


def replay_golden(step: ControlStep, golden: Mapping[str, np.ndarray], signals: Mapping[str, Any]) -> dict[str, float]:
    """Largest absolute difference of each output of `step` from the golden run; NaN where an output is NaN.

    `signals` has the names of `inputs` and `states`, as `deploy.yaml` has them.
    """
    worst: dict[str, float] = dict.fromkeys(OUTPUTS, 0.0)
    for index, outputs in enumerate(replay(step, golden, signals)):
        for name in OUTPUTS:
            if name in outputs:
                worst[name] = float(np.maximum(worst[name], np.abs(outputs[name] - golden[name][index]).max()))
    return worst


def replay(step: ControlStep, run: Mapping[str, np.ndarray], signals: Mapping[str, Any]) -> Iterator[Arrays]:
    """Yield the outputs of `step` for the inputs of a run, which has arrays as the golden run has them.

    States are those of the run, zeros where it has none, at the first step and where `reset` is True.
    """
    num_steps = len(run["joint_targets"])
    starts = run.get("reset", np.zeros(num_steps))
    state: Arrays = {}
    for index in range(num_steps):
        if index == 0 or starts[index]:
            zeros = {name: np.zeros(signal["shape"], np.float32) for name, signal in signals["states"].items()}
            state = {n: run[f"state_{n}"][index] if f"state_{n}" in run else zero for n, zero in zeros.items()}
        outputs, state = step({name: run[name][index].astype(np.float32) for name in signals["inputs"]}, state)
        yield outputs
