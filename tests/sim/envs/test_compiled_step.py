"""The part of a task that comes after physics can be traced and compiled, with the same numbers.

Only a backend that works in torch alone can be traced as the one of a GPU is, so a stand-in moves the robots here.
"""

import pytest
import torch

from st_rl.sim.backends.base import Backend
from st_rl.sim.envs import task
from st_rl.sim.tasks import find_task


class DriftingBackend(Backend):
    """A fake backend in torch: joints follow their targets, bases sink and tilt."""

    def __init__(self, model, num_envs, physics, device):
        super().__init__(model, num_envs, physics, device)
        home = torch.tensor(model.key_qpos[0], dtype=torch.float32)
        self._qpos = home.repeat(num_envs, 1)
        self._qvel, self._force = (torch.zeros(num_envs, model.nv) for _ in range(2))
        self._sensors = torch.zeros(num_envs, model.nsensordata)
        self._control = torch.zeros(num_envs, model.nu)
        self._time = torch.zeros(num_envs)

    @property
    def qpos(self):
        return self._qpos

    @property
    def qvel(self):
        return self._qvel

    @property
    def sensordata(self):
        return self._sensors

    @property
    def joint_force(self):
        return self._force

    def set_control(self, control):
        self._control.copy_(control)

    def step(self, num_substeps=1, read_sensors=True):
        self._time.add_(0.02)
        self._qvel[:, 6:] = 2.0 * (self._control - self._qpos[:, 7:])
        self._qvel[:, :6] += 0.05 * torch.sin(
            self._time[:, None] * torch.arange(1, 7) + torch.arange(self.num_envs)[:, None]
        )
        self._qpos[:, 7:] += 0.02 * self._qvel[:, 6:]
        self._qpos[:, 4] += 0.02 * self._time
        self._qpos[:, 3:7] /= self._qpos[:, 3:7].norm(dim=1, keepdim=True)
        robot = torch.arange(self.num_envs)[:, None]
        touches = torch.sin(9.0 * self._time[:, None] + robot) > 0.9
        self._sensors.copy_(torch.sin(self._time[:, None] * torch.arange(self._sensors.shape[1])).abs() * touches)

    def reset(self, mask, qpos, qvel):
        self._qpos.copy_(torch.where(mask[:, None], qpos, self._qpos))
        self._qvel.copy_(torch.where(mask[:, None], qvel, self._qvel))
        self._sensors.masked_fill_(mask[:, None], 0.0)
        self._time.masked_fill_(mask, 0.0)

    def add_velocity(self, delta, mask, column=0):
        self._qvel[:, column : column + delta.shape[1]] += delta * mask[:, None]

    def expand(self, field):
        raise NotImplementedError

    def refresh_constants(self):
        raise NotImplementedError

    def check_diverged(self):
        return ~(torch.cat([self._qpos, self._qvel], dim=1).abs().amax(dim=1) < 1.0e10)

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


@pytest.fixture
def tasks(monkeypatch):
    """Two equal tasks with noise, pushes and short episodes."""
    monkeypatch.setattr(task, "make_backend", DriftingBackend)
    entry = find_task("quadruped-walk")
    cfg = entry.cfg(episode_length_s=0.2)
    cfg.randomization = type(cfg.randomization)(None, None, None)
    cfg.push.interval_s = 0.1
    return [entry.task(cfg, 6, "cpu", seed=3) for _ in range(2)]


def flat(outcome):
    """Every tensor that a step returns, by name."""
    obs, rewards, dones, infos = outcome
    found = {"obs": obs, "rewards": rewards, "dones": dones, "time_outs": infos["time_outs"]}
    return (
        found | infos["log"] | infos["observations"] | {f"final {k}": v for k, v in infos["final_observations"].items()}
    )


def test_traced_step_equals_eager_step(tasks):
    eager, traced = tasks
    calls = []

    def backend(graph, example_inputs):
        calls.append(graph)
        return graph

    traced.compile_with(lambda function: torch.compile(function, dynamic=False, backend=backend, fullgraph=True))
    ended = 0
    with torch.inference_mode():
        for step in range(15):
            actions = torch.sin(torch.arange(72.0).view(6, 12) + step)
            if step == 12:
                actions[2, 3] = float("nan")
            expected, got = flat(eager.step(actions)), flat(traced.step(actions))
            assert expected.keys() == got.keys()
            for name, value in expected.items():
                torch.testing.assert_close(
                    got[name], value, rtol=1e-5, atol=1e-6, msg=lambda m, name=name: f"{name}: {m}"
                )
            ended += int(expected["dones"].sum())
            for name, value in eager.buffers.items():
                torch.testing.assert_close(traced.buffers[name], value, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(traced.velocity_error, eager.velocity_error)
            torch.testing.assert_close(traced.joint_vel, eager.joint_vel)
    assert 6 < ended < 60
    # One graph serves all steps.
    assert len(calls) == 1
    assert int(traced.diverged_count) == 1
