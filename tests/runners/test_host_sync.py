"""Rollouts and updates have no host sync.

On the CPU no sync occurs, so every operation that would be one on a GPU is caught in the dispatcher. Some
shortcuts read a value on the host on purpose if the data is on the CPU: they are allowed only if the line that reads
tests the device, or if it is listed below with the reason.
"""

import linecache
import sys
from pathlib import Path

import pytest
import torch

import st_rl
from tests.fakes import EchoEnv
from tests.modules.graph_safety import NoHostSync
from tests.runners.training import RND, NoveltyEnv, make_runner, recurrent, small_config

PACKAGE = str(Path(st_rl.__file__).parent)
CPU_ONLY = 'device.type == "cpu" and'
ALLOWED_LINES = {
    # The learning rate is a tensor on a GPU; this is the branch for other devices.
    ("optimizer.py", "self._learning_rate = float(value)"),
}


class CpuShortcutsOnly(NoHostSync):
    """Raises on host syncs, except on lines that run on the CPU only."""

    def __init__(self):
        super().__init__()
        self.shortcuts: set[str] = set()

    def on_wait(self, what):
        frame = sys._getframe()
        while frame is not None and not frame.f_code.co_filename.startswith(PACKAGE):
            frame = frame.f_back
        assert frame is not None, f"{what} is called from outside of the library"
        path, number = frame.f_code.co_filename, frame.f_lineno
        line = linecache.getline(path, number).strip()
        is_allowed = CPU_ONLY in line or (Path(path).name, line) in ALLOWED_LINES
        assert is_allowed, f"{what} waits for the device in {path}:{number}: {line}"
        self.shortcuts.add(line)


@pytest.mark.parametrize("policy", [{}, recurrent("lstm"), recurrent("gru")], ids=["feed_forward", "lstm", "gru"])
@pytest.mark.parametrize(
    "env",
    [
        lambda: EchoEnv(episode_length=4, num_privileged_obs=6, termination_prob=0.2),
        lambda: EchoEnv(episode_length=4, final_observations=False, dones_dtype=torch.int64),
        lambda: NoveltyEnv(episode_length=4, nan_at_step=9, inject_into="rewards"),
    ],
    ids=["final observations", "int64 dones", "novelty and NaN"],
)
def test_rollout_and_update_have_no_host_sync(env, policy):
    env = env()
    algorithm = {"schedule": "adaptive", "entropy_coef": 0.01, "rnd_cfg": RND if isinstance(env, NoveltyEnv) else None}
    runner = make_runner(env, small_config(policy, algorithm, empirical_normalization=True))
    runner.learn(1)  # creates lazily allocated buffers
    if policy:
        # Static shapes as in a captured update; measuring them is the one host sync of an iteration.
        capacity = int(runner.alg.storage.max_trajectories(2)) + 64
        runner.alg.engine.static_size = lambda measure: capacity
    with CpuShortcutsOnly() as watch:
        runner._rollout_steps()
        losses, _ = runner.alg.update(1)
    assert all(torch.isfinite(value) for value in losses.values())
    assert watch.shortcuts


def test_checker_detects_host_sync():
    runner = make_runner()
    runner.learn(1)
    record = runner._episodes.record
    runner._episodes.record = lambda rewards, dones: record(rewards, dones) or runner._episodes.drain()
    with pytest.raises(AssertionError, match=r"waits for the device in .*iteration_statistics.py"), CpuShortcutsOnly():
        runner._rollout_steps()
