"""Batched steps equal single ones; resets, pushes and randomization apply to the selected robots only."""

import gc
import logging
import os
import signal
import time

import mujoco
import numpy as np
import pytest
import torch

from st_rl.sim.backends import MujocoBackend, PhysicsCfg, fine_physics, make_backend
from st_rl.sim.robots import Robot, robot_path

PHYSICS = PhysicsCfg(num_threads=2)
NUM_ENVS = 6


@pytest.fixture(scope="module")
def robot():
    return Robot.from_mjcf(robot_path("quadruped"))


@pytest.fixture
def backend(robot):
    backend = MujocoBackend(robot.model, NUM_ENVS, PHYSICS)
    reset(backend, robot, torch.ones(NUM_ENVS, dtype=torch.bool))
    return backend


def reset(backend, robot, mask):
    qpos = torch.tensor(robot.default_qpos, dtype=torch.float32).repeat(NUM_ENVS, 1)
    backend.reset(mask, qpos, torch.zeros(NUM_ENVS, robot.model.nv))


def controls(robot, steps, seed=0):
    generator = torch.Generator().manual_seed(seed)
    home = torch.tensor(robot.default_joint_pos, dtype=torch.float32)
    return home + 0.2 * torch.randn(steps, NUM_ENVS, 12, generator=generator)


def run(backend, control):
    for row in control:
        backend.set_control(row)
        backend.step(2)


def one_mask(*robots):
    mask = torch.zeros(NUM_ENVS, dtype=torch.bool)
    mask[list(robots)] = True
    return mask


def alone(robot, control, rows, qpos=None):
    """Plain MuJoCo, one robot: the positions and velocities after the given controls."""
    model, data = backend_model(robot), mujoco.MjData(backend_model(robot))
    data.qpos[:] = robot.default_qpos.astype(np.float32) if qpos is None else qpos
    for row in control:
        data.ctrl[:] = row[rows].double().numpy()
        mujoco.mj_step(model, data, nstep=2)
    return data


def backend_model(robot):
    return MujocoBackend(robot.model, 1, PHYSICS).model


def test_physics_options_reach_the_model_and_not_the_robot(robot):
    before = robot.model.opt.timestep
    model = MujocoBackend(robot.model, 1, fine_physics(PHYSICS)).model
    assert (model.opt.timestep, model.opt.iterations) == (pytest.approx(0.005), 50)
    assert fine_physics(PHYSICS).control_period == pytest.approx(PHYSICS.control_period)
    assert model.opt.integrator == int(mujoco.mjtIntegrator.mjINT_IMPLICITFAST)
    assert robot.model.opt.timestep == before
    with pytest.raises(ValueError, match="substeps"):
        MujocoBackend(robot.model, 1, PhysicsCfg(substeps=0))


@pytest.mark.parametrize("num_threads", [1, 2])
def test_batched_step_equals_mj_step_bitwise(robot, num_threads):
    backend = MujocoBackend(robot.model, NUM_ENVS, PhysicsCfg(num_threads=num_threads))
    reset(backend, robot, torch.ones(NUM_ENVS, dtype=torch.bool))
    control = controls(robot, 15)
    run(backend, control)
    for i in (0, 4):
        data = alone(robot, control, i)
        assert np.array_equal(backend.batch.bind("qpos")[i], data.qpos)
        assert np.array_equal(backend.batch.bind("qvel")[i], data.qvel)
        np.testing.assert_array_equal(backend.qpos[i].numpy(), data.qpos.astype(np.float32))
        np.testing.assert_array_equal(backend.qvel[i].numpy(), data.qvel.astype(np.float32))
        np.testing.assert_array_equal(backend.sensordata[i].numpy(), data.sensordata.astype(np.float32))
        np.testing.assert_array_equal(backend.joint_force[i].numpy(), data.qfrc_actuator.astype(np.float32))


def test_reset_keeps_other_robots_bitwise(robot, backend):
    control = controls(robot, 10)
    run(backend, control)
    before, readings = backend.batch.state.copy(), backend.sensordata.clone()
    positions, velocities = backend.qpos.clone(), backend.qvel.clone()
    reset(backend, robot, one_mask(2))
    others = ~one_mask(2)
    assert np.array_equal(backend.batch.state[others.numpy()], before[others.numpy()])
    assert torch.equal(backend.qpos[others], positions[others])
    assert torch.equal(backend.qvel[others], velocities[others])
    assert torch.equal(backend.sensordata[others], readings[others])
    assert not backend.sensordata[2].any()
    np.testing.assert_array_equal(backend.qpos[2].numpy(), robot.default_qpos.astype(np.float32))
    again = controls(robot, 10, seed=1)
    run(backend, again)
    data = alone(robot, again, 2)
    assert np.array_equal(backend.batch.bind("qpos")[2], data.qpos)


def test_pending_reset_is_written_before_control_push_and_state_dict(robot, backend):
    run(backend, controls(robot, 5))
    reset(backend, robot, one_mask(0, 4))
    push = torch.zeros(NUM_ENVS, 6)
    push[:, 0] = 0.5
    backend.add_velocity(push, one_mask(0, 1))
    saved = backend.state_dict()
    again = controls(robot, 3, seed=1)
    run(backend, again)
    for i, speed in ((0, 0.5), (4, 0.0)):
        data = mujoco.MjData(backend.model)
        data.qpos[:], data.qvel[0] = robot.default_qpos.astype(np.float32), speed
        for row in again:
            data.ctrl[:] = row[i].double().numpy()
            mujoco.mj_step(backend.model, data, nstep=2)
        assert np.array_equal(backend.batch.bind("qpos")[i], data.qpos)
    resumed = MujocoBackend(robot.model, NUM_ENVS, PHYSICS)
    resumed.load_state_dict(saved)
    run(resumed, again)
    assert np.array_equal(resumed.batch.state, backend.batch.state)


def test_tensors_keep_their_address(robot, backend):
    addresses = [t.data_ptr() for t in (backend.qpos, backend.qvel, backend.sensordata)]
    run(backend, controls(robot, 2))
    reset(backend, robot, one_mask(0))
    assert [t.data_ptr() for t in (backend.qpos, backend.qvel, backend.sensordata)] == addresses


def test_push_changes_velocity_of_masked_robots_only(robot, backend):
    run(backend, controls(robot, 3))
    before = backend.batch.state.copy()
    velocity = backend.qvel.clone()
    delta = torch.arange(6.0).repeat(NUM_ENVS, 1)
    backend.add_velocity(delta, one_mask(1, 3))
    torch.testing.assert_close(backend.qvel[[1, 3], :6], velocity[[1, 3], :6] + delta[[1, 3]])
    others = (~one_mask(1, 3)).numpy()
    assert np.array_equal(backend.batch.state[others], before[others])
    assert torch.equal(backend.qvel[others], velocity[others])


@pytest.mark.parametrize("cause", ["position", "control"])
def test_detects_divergence_despite_engine_reset(robot, backend, cause, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    control = controls(robot, 1)[0]
    if cause == "position":
        backend.batch.bind("qpos")[3, 2] = np.nan
    else:
        control[3, 0] = float("nan")
    backend.set_control(control)
    backend.step(2)
    assert backend.qpos.isfinite().all()  # MuJoCo has reset the robot silently
    assert backend.check_diverged().tolist() == one_mask(3).tolist()
    assert not list(tmp_path.iterdir())  # and it leaves no log file
    run(backend, controls(robot, 1))
    assert not backend.check_diverged().any()


def test_detects_divergence_of_earlier_substep(robot, backend):
    backend.batch.bind("qvel")[1, 0] = np.inf
    backend.step(1)
    backend.step(1)
    assert backend.check_diverged().tolist() == one_mask(1).tolist()


def test_detects_non_finite_state(robot):
    model = robot.model.__copy__()
    model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)
    backend = MujocoBackend(model, NUM_ENVS, PHYSICS)
    backend.batch.bind("qpos")[4, 2] = np.nan
    backend.step(1)
    backend.batch.warning[:] = 0
    assert backend.check_diverged().tolist() == one_mask(4).tolist()


def test_logs_other_engine_warnings_once(backend, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("st_rl"), "propagate", True)
    full = int(mujoco.mjtWarning.mjWARN_CONTACTFULL)
    for _ in range(2):
        backend.batch.warning[0, full, 1] = 1
        backend.step(1)
        assert not backend.check_diverged().any()
    assert len(caplog.records) == 1


def test_randomised_fields_change_the_physics_of_their_robot_only(robot, backend):
    mass, friction = backend.expand("body_mass"), backend.expand("geom_friction")
    assert mass.shape == (NUM_ENVS, robot.model.nbody)
    mass[1] *= 1.5
    friction[2, :, 0] = 0.1
    backend.refresh_constants()
    control = controls(robot, 20)
    run(backend, control)
    expected = alone(robot, control, 0)
    same = [np.array_equal(backend.batch.bind("qpos")[i], alone(robot, control, i).qpos) for i in range(NUM_ENVS)]
    assert same == [True, False, False, True, True, True]
    assert np.array_equal(backend.batch.bind("qpos")[0], expected.qpos)
    heavy = backend.batch.get_model(1)
    np.testing.assert_allclose(heavy.body_subtreemass[1], 1.5 * robot.mass)
    assert robot.model.body_mass[1:].sum() == pytest.approx(robot.mass)


def test_state_dict_continues_bit_by_bit(robot, backend, tmp_path):
    backend.expand("body_mass")[:, 1] *= torch.linspace(0.8, 1.2, NUM_ENVS, dtype=torch.float64)
    backend.refresh_constants()
    run(backend, controls(robot, 5))
    torch.save(backend.state_dict(), tmp_path / "state.pt")
    readings = backend.sensordata.clone()
    later = controls(robot, 10, seed=3)
    run(backend, later)

    resumed = MujocoBackend(robot.model, NUM_ENVS, PHYSICS)
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert torch.equal(resumed.sensordata, readings)
    run(resumed, later)
    assert np.array_equal(resumed.batch.state, backend.batch.state)
    assert torch.equal(resumed.qpos, backend.qpos)
    assert torch.equal(resumed.sensordata, backend.sensordata)


def test_rejects_state_of_other_num_envs(robot, backend):
    with pytest.raises(ValueError, match="same robot and num_envs"):
        MujocoBackend(robot.model, 2, PHYSICS).load_state_dict(backend.state_dict())


def test_rejects_device_without_backend(robot):
    with pytest.raises(ValueError, match=r"device 'meta'.*cpu"):
        make_backend(robot.model, 2, PHYSICS, "meta")
    with pytest.raises(ValueError, match="num_envs"):
        make_backend(robot.model, 0, PHYSICS, "cpu")


def test_snapshot_shows_one_robot(robot, backend):
    run(backend, controls(robot, 5))
    data = backend.snapshot(3)
    np.testing.assert_allclose(data.qpos, backend.qpos[3].numpy())
    np.testing.assert_allclose(data.xpos[1], data.qpos[:3])


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_rejects_missing_gpu(robot):
    with pytest.raises(ValueError, match="torch sees no GPU here; use 'cpu'"):
        make_backend(robot.model, 2, PHYSICS, "cuda")


def run_in_fork(function, timeout_s=30.0):
    """The exit code of a forked child that calls a function and exits normally; None if it hangs."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = function()
        finally:
            gc.collect()
            # Objects must be deleted, but inherited pytest handlers must not run.
            os._exit(code)
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def test_forked_child_gets_an_error_and_can_build_its_own(robot):
    backends = [MujocoBackend(robot.model, NUM_ENVS, PHYSICS)]
    backends[0].step(1)

    def use_in_child():
        with pytest.raises(RuntimeError, match="Create the environment in the child"):
            backends[0].step(1)
        del backends[:]  # without the threads, deletion would wait for them
        gc.collect()
        MujocoBackend(robot.model, NUM_ENVS, PHYSICS).step(1)
        return 0

    assert run_in_fork(use_in_child) == 0
    backends[0].step(1)


def test_forked_child_continues_with_one_thread(robot):
    backend = MujocoBackend(robot.model, NUM_ENVS, PhysicsCfg(num_threads=1))
    backend.step(1)

    def step_in_child():
        backend.step(1)
        return 0

    assert run_in_fork(step_in_child) == 0
