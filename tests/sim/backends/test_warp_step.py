"""What the Warp backend leaves out of a substep changes no numbers: MuJoCo on the CPU is the reference for both."""

import contextlib

import pytest
import torch

from st_rl.sim.backends import MujocoBackend, PhysicsCfg, WarpBackend, warp_backend
from st_rl.sim.robots import Robot, robot_path

pytest.importorskip("mujoco_warp")

NUM_ENVS = 8
PHYSICS = PhysicsCfg()
DEVICES = [
    pytest.param("cpu", marks=[pytest.mark.slow, pytest.mark.timeout(1200)]),
    pytest.param("cuda", marks=pytest.mark.gpu),
]


class PlainBackend(WarpBackend):
    """MuJoCo Warp's own step: sensors in every substep, contact sensors and all of its default options."""

    def __init__(self, *args):
        super().__init__(*args)
        with self._warp.ScopedDevice(str(self.device)):
            self._model = self._mjwarp.put_model(self.model)
        self._model.opt.contact_sensor_maxmatch = self._contacts
        self._model.opt.warn_overflow = 0

    def step(self, num_substeps=1, read_sensors=True):
        with self._warp.ScopedDevice(str(self.device)), self._on_torch_stream():
            for _ in range(num_substeps):
                self._mjwarp.step(self._model, self._data)


@pytest.fixture(scope="module")
def model():
    return Robot.from_mjcf(robot_path("quadruped")).model


@pytest.fixture
def backends(model, request):
    """MuJoCo, MuJoCo Warp as it is, and the backend, in the home pose."""
    kinds = ((MujocoBackend, "cpu"), (PlainBackend, request.param), (WarpBackend, request.param))
    backends = [kind(model, NUM_ENVS, PHYSICS, device) for kind, device in kinds]
    for backend in backends:
        put_home(backend)
    return backends


def put_home(backend):
    """The home pose at different heights."""
    qpos = torch.tensor(backend.model.key_qpos[0]).float().repeat(NUM_ENVS, 1)
    qpos[:, 2] += 0.01 * torch.arange(NUM_ENVS)
    everyone = torch.ones(NUM_ENVS, dtype=torch.bool, device=backend.device)
    backend.reset(everyone, qpos.to(backend.device), torch.zeros_like(backend.qvel))


def random_controls(model, steps):
    """Joint targets around the home pose, `(steps, N, nu)`."""
    noise = torch.randn(steps, NUM_ENVS, model.nu, generator=torch.Generator().manual_seed(0))
    return torch.tensor(model.key_ctrl[0]).float() + 0.3 * noise


def differences(reference, others, name):
    """The difference of a field to that of the reference, `(N,)` for each of the others."""
    return [(getattr(each, name).cpu() - getattr(reference, name)).abs().amax(dim=1) for each in others]


@pytest.mark.parametrize("backends", DEVICES, indirect=True)
def test_one_period_from_the_same_state_is_as_near_to_mujoco(model, backends):
    reference, plain, backend = backends
    # Forces are a hundred times as large as positions.
    tolerances = {"qpos": 1e-4, "qvel": 1e-3, "sensordata": 1e-2, "joint_force": 1e-3}
    found: dict[str, list[list[torch.Tensor]]] = {name: [] for name in tolerances}
    foot = int(model.sensor("FR_foot_contact").adr[0])
    has_contact = False
    for control in random_controls(model, 25):
        state = reference.qpos.clone(), reference.qvel.clone()
        everyone = torch.ones(NUM_ENVS, dtype=torch.bool)
        for each in backends:
            each.reset(everyone.to(each.device), *(value.to(each.device) for value in state))
            each.set_control(control.to(each.device))
            each.step(PHYSICS.substeps)
        for name, rows in found.items():
            rows.append(differences(reference, (plain, backend), name))
        has_contact |= bool((reference.sensordata[:, foot] > 0).any())
    assert has_contact
    for name, rows in found.items():
        own, ours = (torch.cat(column).mean() for column in zip(*rows, strict=True))
        assert ours <= 1.01 * own + tolerances[name], name


@pytest.mark.parametrize("backends", DEVICES, indirect=True)
def test_fifty_periods_are_as_near_to_mujoco(model, backends):
    """Robots that tumble multiply every rounding error, so the median of the robots is compared."""
    reference, plain, backend = backends
    for control in random_controls(model, 50):
        for each in backends:
            each.set_control(control.to(each.device))
            each.step(PHYSICS.substeps)
    own, ours = differences(reference, (plain, backend), "qpos")
    assert ours.median() <= 1.5 * own.median() + 1e-3


@pytest.mark.parametrize("backends", DEVICES, indirect=True)
def test_contact_readings_of_standing_robots_equal_the_sensors_of_mujoco(model, backends):
    reference, plain, backend = backends
    home = torch.tensor(model.key_ctrl[0]).float().repeat(NUM_ENVS, 1)
    for each in backends:
        each.set_control(home.to(each.device))
        for _ in range(150):
            each.step(PHYSICS.substeps)
    sensors = [s for s in range(model.nsensor) if model.sensor(s).name.endswith("_contact")]
    counts = [int(model.sensor_adr[s]) for s in sensors]
    columns = [
        column for s in sensors for column in range(model.sensor_adr[s], model.sensor_adr[s] + model.sensor_dim[s])
    ]
    assert reference.sensordata[:, columns].abs().max() > 10, "the robots stand on the ground"
    for each in (plain, backend):
        readings = each.sensordata.cpu()
        assert torch.equal(readings[:, counts], reference.sensordata[:, counts])
        # Friction forces of a standing robot are not unique.
        torch.testing.assert_close(readings[:, columns], reference.sensordata[:, columns], rtol=0, atol=1.5)


@pytest.mark.parametrize("device", DEVICES)
def test_sensors_are_read_in_the_last_substep(model, device):
    backends = [WarpBackend(model, NUM_ENVS, PHYSICS, device) for _ in range(2)]
    for backend in backends:
        put_home(backend)
    backends[0].step(2)
    backends[1].step(1, read_sensors=False)
    assert not backends[1].sensordata.any()
    backends[1].step(1)
    torch.testing.assert_close(backends[1].sensordata, backends[0].sensordata)
    assert backends[0].sensordata.any()


FULL_SCENE = """<mujoco><worldbody><geom type="plane" size="5 5 1"/>
<body pos="0 0 0.3"><freejoint/><site name="imu"/><geom type="box" size="0.2 0.1 0.05" mass="3"/>
<body pos="0.2 0 0"><joint name="hip" axis="0 1 0" frictionloss="{friction}" range="-1 1" limited="true"
actuatorfrclimited="{limited}" actuatorfrcrange="-1 1"/>
<geom type="capsule" size="0.03" fromto="0 0 0 0 0 -0.2" mass="0.5"/>
<body pos="0 0 -0.2" gravcomp="{gravcomp}"><joint name="knee" axis="0 1 0" stiffness="{stiffness}"/>
<geom type="capsule" size="0.03" fromto="0 0 0 0 0 -0.2" mass="0.3"/></body></body></body></worldbody>
{tendon}<actuator><position joint="hip" kp="20" kv="1"/><general joint="knee" {activation}/></actuator>
<sensor><accelerometer site="imu"/><jointactuatorfrc joint="hip"/></sensor></mujoco>"""
TENDON = '<tendon><fixed damping="0.3"><joint joint="hip" coef="1"/><joint joint="knee" coef="-1"/></fixed></tendon>'
PLAIN = {"friction": 0, "gravcomp": 0, "stiffness": 0, "limited": "false", "tendon": "", "activation": ""}
FORCES = {"friction": 0.5, "gravcomp": 1, "stiffness": 1, "limited": "true"}
SCENES = {
    "plain": PLAIN,
    "tendon": {**PLAIN, "tendon": TENDON},
    "everything": {**FORCES, "tendon": TENDON, "activation": 'dyntype="filter" dynprm="0.1"'},
}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("name", "settings", "field"),
    [
        ("quadruped", {}, None),
        ("plain", {}, None),
        ("plain", {}, "dof_frictionloss"),
        ("plain", {"solver": "CG"}, "body_gravcomp"),
        ("plain", {}, "dof_damping"),
        ("tendon", {}, None),
        ("everything", {}, None),
        ("everything", {"cone": "elliptic", "iterations": 1}, None),
        ("everything", {"integrator": "RK4", "iterations": 20}, None),
    ],
)
def test_kernels_that_are_left_out_change_no_bit(model, name, settings, field, monkeypatch):
    mujoco = pytest.importorskip("mujoco")
    if name != "quadruped":
        model = mujoco.MjModel.from_xml_string(FULL_SCENE.format(**SCENES[name]))
    physics = PhysicsCfg(**settings)
    lean, full = (WarpBackend(model, NUM_ENVS, physics, "cpu") for _ in range(2))
    for backend in (lean, full):
        if field:
            backend.expand(field).copy_(0.1 * torch.arange(NUM_ENVS)[:, None])
        with monkeypatch.context() as patch:
            if backend is full:
                patch.setattr(warp_backend, "lean_launches", lambda *_: contextlib.nullcontext())
            controls = torch.randn(20, NUM_ENVS, model.nu, generator=torch.Generator().manual_seed(0))
            for control in controls:
                backend.set_control(control)
                backend.step(3)
    assert not torch.equal(lean.qpos[0], lean.qpos[1])
    for field in ("qpos", "qvel", "sensordata", "joint_force"):
        assert torch.equal(getattr(lean, field), getattr(full, field)), field


CAMERA_SCENE = """<mujoco><worldbody><light pos="0 0 3"/><body pos="0 0 1"><freejoint/>
<geom type="sphere" size="0.1"/><camera name="eye" pos="0.1 0 0.2"/></body></worldbody>
<sensor>{}</sensor></mujoco>"""


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("sensor", ["", '<framepos objtype="camera" objname="eye"/>'])
def test_poses_of_cameras_are_computed_for_sensors_only(device, sensor, monkeypatch):
    warp = pytest.importorskip("warp")
    scene = pytest.importorskip("mujoco").MjModel.from_xml_string(CAMERA_SCENE.format(sensor))
    backends = [MujocoBackend(scene, 2, PHYSICS, "cpu"), WarpBackend(scene, 2, PHYSICS, device)]
    launched, launch = [], warp.launch

    def record(kernel, dim, *args, **kwargs):
        launched.append(kernel.key if min(dim if isinstance(dim, tuple | list) else [dim]) else None)
        return launch(kernel, dim, *args, **kwargs)

    monkeypatch.setattr(warp, "launch", record)
    for backend in backends:
        backend.step(2)
    torch.testing.assert_close(backends[1].sensordata.cpu(), backends[0].sensordata)
    assert ("_cam_local_to_global" in launched) == bool(sensor)
    assert "_light_local_to_global" not in launched
