"""Inputs of both sides of a speed comparison: settings, prepared data and timer.

Needs torch only, because it also runs in the virtual environment of rsl_rl.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TextIO

import torch
from device_limits import device_limits
from torch import Tensor


@dataclass(frozen=True)
class Workload:
    """One row of a comparison."""

    robots: int
    hidden_dims: tuple[int, ...]
    rnn_hidden_size: int | None = None
    """Width of the LSTM in front of the heads; None for a feed-forward policy."""
    steps: int = 24
    observations: int = 48
    actions: int = 12
    epochs: int = 5
    mini_batches: int = 4
    done_prob: float = 0.01
    """Probability that an episode ends in a step; one in four ends is a time-out."""
    device: str = "cpu"
    engine: str = "eager"
    """Engine of st_rl; rsl_rl runs with its defaults."""
    mixed_precision: str | None = None
    """Mixed precision of the update of st_rl."""
    update_threads: int | str | None = None
    """Threads of the update of st_rl: a number, "auto" to select it as `st-rl train` does, None for the default."""
    task: str | None = None
    """A built-in task to train instead of replaying prepared steps; it sets the observations and actions itself."""

    @property
    def policy(self) -> str:
        """Name of the policy architecture."""
        heads = "MLP " + "-".join(str(width) for width in self.hidden_dims)
        return heads if self.rnn_hidden_size is None else f"LSTM {self.rnn_hidden_size} + {heads}"

    def to_json(self) -> dict[str, Any]:
        """The workload as plain values."""
        return asdict(self)

    def algorithm_config(self) -> dict[str, Any]:
        """Settings of PPO that both libraries have under the same name."""
        return {
            "num_learning_epochs": self.epochs,
            "num_mini_batches": self.mini_batches,
            "schedule": "adaptive",
            "desired_kl": 0.01,
            "entropy_coef": 0.01,
            "gamma": 0.99,
            "lam": 0.95,
        }

    @staticmethod
    def from_json(values: dict[str, Any]) -> "Workload":
        """The workload that `to_json` described."""
        return Workload(**{**values, "hidden_dims": tuple(values["hidden_dims"])})


def matrix_work(workload: Workload) -> dict[str, float]:
    """Floating-point operations in the matrix products of one iteration, for acting and for the update.

    Only useful work counts: no padding of trajectories, no gradient with respect to the observations.
    """
    work = {"acting": 0.0, "update": 0.0}
    samples = workload.robots * workload.steps
    for output_size, acts in ((workload.actions, 1.0), (1, 1.0 + 1.0 / workload.steps)):
        # The critic is evaluated once more than the actor, for the value of the last state.
        width, first, inner = workload.observations, 0.0, 0.0
        if workload.rnn_hidden_size is not None:
            width = workload.rnn_hidden_size
            first = 8.0 * workload.observations * width
            inner = 8.0 * width * width
        for hidden in (*workload.hidden_dims, output_size):
            if first == 0.0:
                first = 2.0 * width * hidden
            else:
                inner += 2.0 * width * hidden
            width = hidden
        work["acting"] += samples * acts * (first + inner)
        work["update"] += samples * workload.epochs * (2.0 * first + 3.0 * inner)
    return work


class RecordedSteps:
    """Random observations, rewards and episode ends, sampled before the timing and replayed cyclically."""

    def __init__(self, workload: Workload, seed: int = 0, rollouts: int = 4):
        generator = torch.Generator().manual_seed(seed)
        shape = (workload.steps * rollouts, workload.robots)
        device = workload.device
        self.observations = (torch.randn(*shape, workload.observations, generator=generator) * 2.0 + 0.5).to(device)
        self.rewards = (torch.randn(*shape, generator=generator) * 0.1).to(device)
        ends = torch.rand(*shape, generator=generator).to(device)
        self.dones = (ends < workload.done_prob).long()
        self.time_outs = ends < workload.done_prob / 4.0
        self.position = 0

    def next(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Observations `(N, O)`, rewards, dones (int64) and time-outs (bool) `(N,)` of the next step."""
        row = self.position
        self.position = (row + 1) % len(self.rewards)
        return self.observations[row], self.rewards[row], self.dones[row], self.time_outs[row]


class Stopwatch:
    """Collects wall-clock and CPU seconds of each part of an iteration."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}
        self._start = (0.0, 0.0)
        self.start()

    def start(self) -> None:
        """Start a part."""
        wait_for_device()
        self._start = (time.perf_counter(), time.process_time())

    def stop(self, part: str) -> None:
        """End the part and start the next."""
        wait_for_device()
        wall, processor = time.perf_counter() - self._start[0], time.process_time() - self._start[1]
        self.seconds.setdefault(part, []).append(wall)
        self.seconds.setdefault(f"{part} processor", []).append(processor)
        self.start()

    def read(self) -> dict[str, list[float]]:
        """Times since the last reading."""
        seconds, self.seconds = self.seconds, {}
        return seconds


def wait_for_device() -> None:
    """Synchronize the GPU, if one is used."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def set_up_torch(workload: Workload) -> None:
    """Seed torch; on a GPU, use TF32 for matrix products."""
    torch.manual_seed(0)
    if workload.device != "cpu":
        torch.set_float32_matmul_precision("high")


def matrix_rate(repeats: int = 200) -> float:
    """Best throughput of a matrix product with the current number of threads, FLOP/s.

    Each product is short, so that some run without interference on a busy machine.
    """
    left, right = torch.randn(1024, 256), torch.randn(256, 256)
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        torch.mm(left, right)
        best = min(best, time.perf_counter() - start)
    return 2.0 * 1024 * 256 * 256 / best


Training = Callable[[int], dict[str, list[float]]]
"""Runs a number of iterations and returns the seconds of every part of each."""


def serve(prepare: Callable[[Workload], Training], versions: Callable[[], dict[str, str]]) -> None:
    """Answer requests, one JSON object per line, until the end of the input."""
    answers = _private_stdout()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    training: Training | None = None
    for line in sys.stdin:
        request = json.loads(line)
        if "workload" in request:
            training = prepare(Workload.from_json(request["workload"]))
            answer: Any = {"versions": versions(), "threads": torch.get_num_threads()}
        elif "iterations" in request and training is not None:
            answer = training(request["iterations"])
        elif request["measure"] == "device limits":
            answer = device_limits()
        else:
            answer = {"matrix_rate": matrix_rate()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _private_stdout() -> TextIO:
    """A stream to the real stdout; redirects prints of libraries to stderr."""
    stream = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return stream
