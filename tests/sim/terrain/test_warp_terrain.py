"""Height fields on the GPU: contacts and heights equal the CPU's, and rollouts can be captured."""

import numpy as np
import pytest
import torch

from st_rl.runners import OnPolicyRunner
from st_rl.sim.backends import MujocoBackend, PhysicsCfg, WarpBackend, fine_physics
from st_rl.sim.robots import Robot, robot_path
from st_rl.sim.tasks import find_task, make_task
from st_rl.sim.terrain.height_field import HeightField, add_height_field

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
NUM_ENVS = 16
SMALL = {"terrain.num_levels": 3, "terrain.patch_size": 5.0, "terrain.border": 1.0}


def test_feet_on_large_triangles_move_as_on_the_cpu():
    """Each foot touches one triangle; with more, MuJoCo Warp keeps four contacts and MuJoCo all."""
    columns = np.arange(9)[None, :] * 0.05
    field = HeightField(np.repeat(columns, 9, axis=0), (-2.0, -2.0), 0.5)
    robot = Robot.from_mjcf(robot_path("quadruped"), lambda spec: add_height_field(spec, field))
    physics = fine_physics(PhysicsCfg(max_contacts=16, num_threads=1))
    backends = [MujocoBackend(robot.model, NUM_ENVS, physics), WarpBackend(robot.model, NUM_ENVS, physics, DEVICE)]
    qpos = torch.tensor(robot.default_qpos, dtype=torch.float32).repeat(NUM_ENVS, 1)
    # Level with the slope of one in ten; feet 0.19 m before and behind the base, 0.13 m beside it.
    qpos[:, 0] = torch.linspace(0.25, 0.262, NUM_ENVS)
    qpos[:, 1] = 0.25
    qpos[:, 2] += 0.1 * (qpos[:, 0] + 2.0) + 0.005
    qpos[:, 3], qpos[:, 5] = np.cos(np.arctan(0.1) / 2), -np.sin(np.arctan(0.1) / 2)
    everyone = torch.ones(NUM_ENVS, dtype=torch.bool)
    on_cpu = backends[0]
    on_cpu.reset(everyone, qpos, torch.zeros(NUM_ENVS, robot.model.nv))
    on_cpu.set_control(qpos[:, 7:])
    on_cpu.step(100)
    assert (on_cpu.sensordata[:, [foot.contact for foot in robot.feet]] == 1).all()
    generator = torch.Generator().manual_seed(0)
    for _ in range(8):
        state = (on_cpu.qpos.clone(), on_cpu.qvel.clone())
        targets = qpos[:, 7:] + 0.05 * torch.randn(NUM_ENVS, 12, generator=generator)
        for backend in backends:
            device = backend.device
            backend.reset(everyone.to(device), *(part.to(device) for part in state))
            backend.set_control(targets.to(device))
            backend.step(4)
        torch.testing.assert_close(backends[1].qpos.cpu(), on_cpu.qpos, rtol=1e-4, atol=1e-4)


def test_terrain_observation_equal_on_cpu_and_gpu():
    cfg = find_task("quadruped-rough").cfg().for_evaluation()
    tasks = [make_task("quadruped-rough", NUM_ENVS, device, cfg=cfg) for device in ("cpu", DEVICE)]
    everyone = torch.ones(NUM_ENVS, dtype=torch.bool)
    qpos = tasks[0].backend.qpos.clone()
    qpos[:, :2] += torch.linspace(-2.0, 2.0, NUM_ENVS)[:, None]
    qpos[:, 2] += 0.5
    for task in tasks:
        device = task.device
        task.backend.reset(everyone.to(device), qpos.to(device), torch.zeros_like(task.backend.qvel))
        task.backend.step(1)
        task._read_state()
    for name in ("height_scan", "base_height", "foot_height", "heading", "patch_place"):
        mine, other = (getattr(task, name).cpu() for task in tasks)
        torch.testing.assert_close(other, mine, rtol=1e-4, atol=1e-4, msg=name)


def test_captured_rollout_on_terrain_trains(tmp_path):
    task = make_task("quadruped-rough", 512, DEVICE, **SMALL)
    config = find_task("quadruped-rough").training_config()
    runner = OnPolicyRunner(task, {**config, "engine": "graph"}, log_dir=tmp_path, device=DEVICE)
    runner.learn(30, init_at_random_ep_len=True)
    assert all(torch.isfinite(p).all() for p in runner.alg.actor_critic.parameters())
    assert int(task.diverged_count) == 0
    lengths = runner._episodes.lenbuffer
    assert sum(lengths) / len(lengths) > 30
