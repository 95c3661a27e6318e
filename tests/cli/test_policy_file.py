"""`policy.json` and `policy.onnx` alone are enough to run a policy: a controller from their metadata acts as the task.

The controller below is NumPy, onnxruntime and plain MuJoCo; it reads nothing else of the library.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from st_rl.cli import main
from st_rl.cli.support.run_folders.loaded_run import LoadedRun
from st_rl.cli.support.run_folders.run_folder import RunFolder
from st_rl.env import ObservationHistory
from st_rl.env.policy_metadata import describe_policy_io
from st_rl.sim.tasks import TASKS, make_task, obs_term
from tests.sim.robots.foreign_robots import torque_quadruped

mujoco = pytest.importorskip("mujoco")
runtime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
UNITS_AND_FRAMES = {
    "base_lin_vel": ("m/s", "base"),
    "base_ang_vel": ("rad/s", "base"),
    "projected_gravity": ("", "base"),
    "joint_pos": ("rad", "joint"),
    "joint_vel": ("rad/s", "joint"),
    "commands": ("m/s, m/s, rad/s", "base"),
    "actions": ("", "joint"),
    "clock": ("", ""),
    "cart_position": ("m", "joint"),
    "cart_velocity": ("m/s", "joint"),
    "pole_angle": ("rad", "joint"),
    "pole_velocity": ("rad/s", "joint"),
}


class Controller:
    """Runs a policy on a simulated robot as `policy.json` says."""

    def __init__(self, file: Path, model: Any):
        self.facts = json.loads(file.with_suffix(".json").read_text())["metadata"]
        self.session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        self.model, self.data = model, mujoco.MjData(model)
        joints = [model.joint(name) for name in self.facts["joint_names"]]
        self.q, self.qd = [j.qposadr[0] for j in joints], [j.dofadr[0] for j in joints]
        # The actuator of each joint; its control is gear times the joint position, or the torque divided by gear.
        self.actuator = [list(model.actuator_trnid[:, 0]).index(joint.id) for joint in joints]
        self.gear = model.actuator_gear[self.actuator, 0]
        self.start(np.zeros(model.nq), np.zeros(model.nv), 0.0)

    def start(self, qpos: np.ndarray, qvel: np.ndarray, phase: float) -> None:
        """Start an episode in a state, with the gait clock at a phase."""
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[:], self.data.qvel[:] = qpos, qvel
        self.phase, self.actions = phase, np.zeros(len(self.facts["joint_names"]))
        states = self.facts.get("memory", {"inputs": {}})["inputs"]
        self.states = {name: np.zeros((layers, 1, width), np.float32) for name, (layers, _, width) in states.items()}

    def values(self, command: np.ndarray) -> dict[str, Callable[[], np.ndarray]]:
        """The observation terms by name, in SI units and in the frames of the metadata."""
        facts, qpos, qvel = self.facts, self.data.qpos, self.data.qvel
        base = np.zeros(9)
        if "base_body" in facts:
            free = self.model.joint(int(self.model.body(facts["base_body"]).jntadr[0]))
            place, speed = free.qposadr[0], free.dofadr[0]
            mujoco.mju_quat2Mat(base, qpos[place + 3 : place + 7])
        rotation = base.reshape(3, 3)

        def clock() -> np.ndarray:
            angle = 2 * np.pi * self.phase
            moving = np.linalg.norm(command) > facts["clock"]["moving_threshold"]
            return np.array([np.sin(angle), np.cos(angle)]) * moving

        return {
            "base_lin_vel": lambda: rotation.T @ qvel[speed : speed + 3],
            # MuJoCo has the angular velocity of a free joint in the frame of its body.
            "base_ang_vel": lambda: qvel[speed + 3 : speed + 6],
            "projected_gravity": lambda: rotation.T @ [0.0, 0.0, -1.0],
            "joint_pos": lambda: qpos[self.q] - facts["default_joint_pos"],
            "joint_vel": lambda: qvel[self.qd],
            "commands": lambda: command,
            "actions": lambda: self.actions,
            "clock": clock,
            "cart_position": lambda: qpos[self.q],
            "cart_velocity": lambda: qvel[self.qd],
            "pole_angle": lambda: (qpos[1:] + np.pi) % (2 * np.pi) - np.pi,
            "pole_velocity": lambda: qvel[1:],
        }

    def observe(self, command: np.ndarray) -> np.ndarray:
        """The observation `(O,)` of the current state."""
        values, terms = self.values(command), self.facts["obs_terms"]
        obs = np.full(sum(term["width"] for term in terms), np.nan)
        for term in terms:
            assert term["history_length"] == 1
            scaled = np.asarray(values[term["name"]]()) * term["scale"]
            obs[term["start"] : term["start"] + term["width"]] = np.clip(scaled, -term["clip"], term["clip"])
        return obs

    def act(self, obs: np.ndarray) -> np.ndarray:
        """The actions `(A,)` of the file, and one control period of physics with them."""
        facts = self.facts
        actions, *states = self.session.run(None, {"obs": obs[None].astype(np.float32), **self.states})
        self.states = dict(zip(self.states, states))
        self.actions = np.clip(actions[0], -facts["clip_actions"], facts["clip_actions"])
        scaled = np.asarray(facts["action_scale"]) * self.actions
        substeps = round(facts["control_period_s"] / self.model.opt.timestep)
        for _ in range(substeps):
            self.data.ctrl[self.actuator] = self.control(scaled)
            mujoco.mj_step(self.model, self.data)
        if "clock" in facts:
            self.phase = (self.phase + facts["control_period_s"] / facts["clock"]["period_s"]) % 1.0
        return actions[0]

    def control(self, scaled: np.ndarray) -> np.ndarray:
        """Controls of the actuators for scaled actions."""
        facts = self.facts
        if facts["action_formula"].startswith("force = "):
            return scaled / self.gear
        lower, upper = np.array(facts["joint_target_range"], dtype=float).T
        target = np.clip(facts["default_joint_pos"] + scaled, lower, upper)
        if facts["actuation"] == "position":
            return target * self.gear
        limit = np.array(facts["effort_limit"], dtype=float)
        position, velocity = self.data.qpos[self.q], self.data.qvel[self.qd]
        torque = np.multiply(facts["stiffness"], target - position) - np.multiply(facts["damping"], velocity)
        return np.clip(torque, -limit, limit) / self.gear


ROBOTS = {
    # Scales, clock and action scale that are not the defaults.
    "quadruped-walk": [
        *("--env.normalization.obs-scales.ang-vel", "0.5", "--env.gait.period-s", "0.62"),
        *("--env.control.action-scale", "0.1", "--env.normalization.clip-observations", "0.9"),
    ],
    "quadruped-walk of another robot": ["--env.control.stiffness", "20", "--env.control.damping", "0.6"],
    "humanoid-walk": ["--env.no-observe-linear-velocity"],
    "balance": [],
}
POLICY = ["--policy.actor-hidden-dims", "32", "--policy.critic-hidden-dims", "32", "--runner.empirical-normalization"]


@pytest.fixture(scope="module", params=ROBOTS)
def run(tmp_path_factory, request):
    """A run with an exported policy: hardly trained, with an observation normalizer."""
    folder = tmp_path_factory.mktemp("work")
    options = [*ROBOTS[request.param], *POLICY]
    if request.param.endswith("another robot"):
        (folder / "robot.xml").write_text(torque_quadruped())
        options += ["--env.robot", str(folder / "robot.xml"), "--env.gait.offsets", "0", "0.5", "0.5", "0"]
        options += ["--policy.class-name", "ActorCriticRecurrent", "--policy.rnn-hidden-size", "8"]
    small = ["--iterations", "2", "--num-envs", "16", "--runner.num-steps-per-env", "8", "--runner.engine", "eager"]
    task = request.param.split()[0]
    assert main(["train", task, *options, *small, "--log-dir", str(folder / "run")]) == 0
    assert main(["export", str(folder / "run"), "--checkpoint", "last"]) == 0
    return folder / "run"


def test_controller_of_the_file_acts_as_the_task(run):
    loaded = LoadedRun(RunFolder(run))
    env: Any = loaded.make_eval_env(num_envs=1, seconds=10.0, seed=3)
    policy = loaded.load_policy(env, run / "model_2.pt")
    controller = Controller(run / "policy.onnx", env.backend.model)
    command = np.zeros(3)
    if hasattr(env, "hold_commands"):
        command = np.array([0.5, -0.2, 0.3])
        env.hold_commands(torch.tensor(command[None], dtype=torch.float32))
    largest = np.zeros(2)
    with torch.inference_mode():
        for _ in range(6):
            obs, _ = env.reset()
            policy.reset(torch.ones(1, dtype=torch.bool))
            phase = float(env.phase) if hasattr(env, "phase") else 0.0
            controller.start(env.backend.qpos[0].numpy(), env.backend.qvel[0].numpy(), phase)
            # Each loop has its own physics. Rounding errors grow with every impact of a robot that falls.
            for _ in range(15):
                expected, seen = policy(obs), controller.observe(command)
                actions = controller.act(seen)
                pairs = ((seen, obs), (actions, expected))
                largest = np.maximum(largest, [np.abs(own - task[0].numpy()).max() for own, task in pairs])
                obs, _, dones, _ = env.step(expected)
                if dones.any():
                    break
    assert largest.max() < 1e-3, largest


def test_every_term_has_a_place_a_unit_and_a_frame(run):
    content = json.loads((run / "policy.json").read_text())
    facts = content["metadata"]
    start = 0
    for term in facts["obs_terms"]:
        assert (term["unit"], term["frame"]) == UNITS_AND_FRAMES[term["name"]]
        assert term["description"]
        assert term["start"] == start
        start += term["width"]
    assert start == facts["inputs"]["obs"][1]
    assert {term["frame"] for term in facts["obs_terms"]} - {""} == set(facts["frames"])
    for key in ("obs_formula", "action_formula", "observation_normalizer"):
        assert facts[key]
    assert "raw" not in json.dumps(content)


def test_metadata_of_both_files_is_the_same(run):
    session = runtime.InferenceSession(str(run / "policy.onnx"), providers=["CPUExecutionProvider"])
    inside = {key: json.loads(value) for key, value in session.get_modelmeta().custom_metadata_map.items()}
    assert inside == json.loads((run / "policy.json").read_text())["metadata"]
    assert {entry.name: entry.shape for entry in session.get_inputs()} == inside["inputs"]
    assert {entry.name: entry.shape for entry in session.get_outputs()} == inside["outputs"]


@pytest.mark.parametrize("task", TASKS)
def test_every_built_in_term_is_described(task):
    env = make_task(task, 1, **{"physics.num_threads": 1, "privileged_actor": True})
    lacking = [term["name"] for term in env.observation_table.describe() if not term["description"]]
    assert not lacking
    # Points of a scan and the pose of a camera are part of the description.
    for term in env.observation_table.describe():
        if term["name"] in ("height_scan", "terrain_scan", "forward_depth"):
            assert any(digit in term["description"] for digit in "123456789")


def test_own_term_is_described_by_its_docstring(monkeypatch):
    walk = TASKS["quadruped-walk"].task
    monkeypatch.setattr(walk, "OBSERVATIONS", dict(walk.OBSERVATIONS))

    @obs_term("quadruped-walk", width=4, unit="m", frame="world")
    def sole_height(task):
        """Height of each sole above the ground.

        More about it.
        """
        return task.foot_height

    last = make_task("quadruped-walk", 1).observation_table.describe()[-1]
    assert (last["unit"], last["frame"]) == ("m", "world")
    assert last["description"] == "Height of each sole above the ground."


def test_history_is_described():
    env = ObservationHistory(make_task("quadruped-walk", 1), 5, ["joint_pos", "actions"])
    last = describe_policy_io(env)["obs_terms"][-1]
    assert (last["name"], last["start"], last["width"], last["history_length"]) == ("history", 50, 120, 5)
    assert "joint_pos, actions" in last["description"]
    assert "oldest first" in last["description"]
