"""Kits of policies that track clips: the clips are inside, and an input says which one is played."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from mujoco import mju_mulQuat

from st_rl.export import DeployedPolicy
from st_rl.export.deploy import RawPolicy, write_kit
from st_rl.export.deploy.check import check_controller, check_golden, check_header
from st_rl.export.deploy.kit import OnnxStep, make_guards
from st_rl.sim.deploy.tracking_interface import make_interface
from st_rl.sim.tasks import make_task
from st_rl.utils.tensors import rotations
from tests.export.deploy.kits import make_policy


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    """Two gaits that repeat, and a clip that ends in another pose than it begins in."""
    from st_rl.datasets.editing import change_speed
    from st_rl.datasets.formats import write_motion
    from st_rl.datasets.library import load_clips
    from st_rl.datasets.processing import cut

    path = tmp_path_factory.mktemp("clips") / "lift.npz"
    write_motion(path, cut(change_speed(load_clips("bound_0.3")[0], 0.5), 0.0, 1.1))
    return ("trot_0.5", "pace_0.5", str(path))


@pytest.fixture(scope="module")
def task(clips):
    settings = {"noise.level": 0.0, "deployable": True, "continue_to_next_clip": False, "future_steps": (3, 7)}
    settings["action_center"] = "default_pose"
    return make_task("quadruped-track", 4, seed=3, motions=clips, transition_distance=0.05, **settings)


@pytest.fixture(scope="module")
def policy(task):
    trained = make_policy(task)
    return RawPolicy(make_interface(task), DeployedPolicy(trained.actor_critic, trained.obs_normalizer)), trained


@pytest.fixture(scope="module")
def kit(task, policy, tmp_path_factory) -> Path:
    """A kit; writing it compares observations and targets of raw policy, ONNX and task, with resets."""
    folder = tmp_path_factory.mktemp("kits") / "kit"
    write_kit(folder, *policy, task, {"st_rl_version": "test"})
    return folder


def test_inputs_are_sensors_and_the_number_of_the_clip(policy):
    interface = policy[0].interface
    assert set(interface.inputs) == {"joint_pos", "joint_vel", "base_ang_vel", "orientation", "clip"}
    assert interface.unmeasured == {}
    assert [clip["repeats"] for clip in interface.describe()["clips"]] == [True, True, False]


def test_policy_controller_and_header_agree_on_the_golden_run(kit):
    step = OnnxStep(kit / "policy.onnx")
    with np.load(kit / "golden.npz") as arrays:
        golden = dict(arrays)
    assert golden["reset"].sum() > 3
    assert len(np.unique(golden["clip"])) == 3
    assert check_golden("policy.onnx", step, golden, step.description).passed
    assert check_controller(kit, golden).passed
    if shutil.which("g++") or shutil.which("clang++"):
        assert check_header(kit, golden, step.description).passed


def yaw(angle):
    return np.array([np.cos(angle / 2), 0.0, 0.0, np.sin(angle / 2)])


def turned_about(quaternion, rotation):
    result, angle = np.zeros(4), np.linalg.norm(rotation)
    mju_mulQuat(result, np.append(np.cos(angle / 2), np.sin(angle / 2) * rotation / angle), quaternion)
    return result


def turned(quaternion, angle):
    result = np.zeros(4)
    mju_mulQuat(result, yaw(angle), quaternion)
    return result


@torch.inference_mode()
def play(policy, task, numbers, angle=0.7):
    """Joint references and relative heading that the policy sees when a perfect robot plays clips `numbers` in turn."""
    raw, reference = policy, task.reference
    state, seen = raw.initial_state(), []
    clip, frame = -1, 0
    columns = {c.name: slice(c.start, c.start + c.width) for c in raw.interface.columns}
    for number in numbers:
        if number != clip:
            clip, frame = number, 0
        row = int(reference.first_row[clip]) + frame
        qpos = reference.qpos[row].double().numpy()
        inputs = {
            "joint_pos": torch.zeros(1, 12),
            "joint_vel": torch.zeros(1, 12),
            "base_ang_vel": torch.zeros(1, 3),
            "orientation": torch.from_numpy(turned(qpos[3:7], angle)).float()[None],
            "clip": torch.tensor([[float(number)]]),
        }
        step = raw(inputs, state)
        state = step.state
        obs = step.observation[0]
        scale = raw.interface.obs_scale
        seen.append(
            (
                (obs / scale)[columns["reference_joint_pos"]].numpy(),
                (obs / scale)[columns["anchor_rot"]].numpy(),
                int(state["frame"][0, 0]),
            )
        )
        frame += 1
    return seen


def test_another_clip_begins_at_once_and_at_the_heading_of_the_robot(policy, task):
    numbers = [0] * 6 + [1] * 5 + [0] * 3
    seen = play(policy[0], task, numbers)
    assert [frame for _, _, frame in seen] == [1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 1, 2, 3]
    default = np.asarray(task.robot.default_joint_pos)
    for (joints, rotation, frame), number in zip(seen, numbers):
        expected = task.reference.clips[number].joint_pos[frame] - default
        np.testing.assert_allclose(joints, expected, atol=1e-5)
        # The robot is as the clip is, turned by its heading, so that only the step to the next frame is left.
        before, after = task.reference.clips[number].root_rot[frame - 1 : frame + 1]
        turn = rotations.multiply(rotations.conjugate(before), after)
        expected = np.stack([rotations.rotate(turn, axis) for axis in np.eye(3)[:2]], axis=1)
        np.testing.assert_allclose(rotation.reshape(3, 2), expected, atol=1e-5)


def test_clip_is_repeated_or_held_at_its_end(policy, task):
    frames = [task.reference.num_frames[number] for number in (0, 2)]
    repeated = [frame for _, _, frame in play(policy[0], task, [0] * (frames[0] - 1))]
    assert repeated[-1] == frames[0] - 1
    state_at_end = {**policy[0].initial_state(), "frame": torch.tensor([[frames[1] - 1.0]])}
    for number, following in ((0, 1), (2, frames[1] - 1)):
        state = {
            **state_at_end,
            "played_clip": torch.tensor([[number + 1.0]]),
            "frame": torch.tensor([[task.reference.num_frames[number] - 1.0]]),
            "heading": torch.tensor([[1.0, 0.0]]),
        }
        inputs = {name: torch.zeros(1, *signal.shape) for name, signal in policy[0].inputs.items()}
        inputs |= {"orientation": torch.tensor([[1.0, 0.0, 0.0, 0.0]]), "clip": torch.tensor([[float(number)]])}
        assert int(policy[0](inputs, state).state["frame"]) == following


def test_kit_plays_its_clips_in_plain_mujoco(kit, capsys):
    from st_rl.export.deploy.files import simulate

    player = simulate.Policy(kit / "policy.onnx")
    robot = simulate.SimulatedRobot(player.deploy, kit / "robot" / "robot.xml", simulate.Disturbance())
    clips = simulate.Clips(player.deploy, kit / "robot" / "clips.npz")
    assert clips.find("pace_0.5") == clips.find("1") == 1
    played = simulate.perform(player, robot, clips, 1)
    steps = len(played.log["time"])
    assert played.seconds == pytest.approx(steps * 0.02)
    assert (played.log["clip"] == 1.0).all()
    rows = clips.rows(1)
    assert len(rows) - 1 >= steps
    error = np.abs(robot.data.qpos[player.deploy["robot"]["joint_qpos"]] - clips.qpos[rows[steps], 7:]).mean()
    assert played.joint_error < 2 * error + 0.5
    with pytest.raises(SystemExit, match=r"no clip 'gallop'; the kit has: trot_0.5, pace_0.5, lift"):
        clips.find("gallop")


def test_falls_are_those_of_the_task(kit, task):
    """Robots in states around the frames of a clip: too high, too low, tilted, with other joints, or near it."""
    from st_rl.export.deploy.files import simulate

    deploy = OnnxStep(kit / "policy.onnx").description
    robot = simulate.SimulatedRobot(deploy, kit / "robot" / "robot.xml", simulate.Disturbance())
    random, seen = np.random.default_rng(0), set()
    for _ in range(30):
        task.row.copy_(torch.from_numpy(random.integers(0, 20, 4)))
        frames = task.reference.qpos[task.row].double().numpy()
        states = frames.copy()
        states[:, 2] += random.uniform(-0.3, 0.3, 4)
        states[:, 3:7] = [turned_about(q, random.normal(size=3) * random.uniform(0, 1.5)) for q in states[:, 3:7]]
        states[:, 7:] += random.uniform(-0.6, 0.6, (4, 12))
        task.backend.qpos.copy_(torch.from_numpy(states))
        task._read_state()
        task._update_errors()
        expected = torch.stack([term(task) for term in task.TERMINATIONS.values()]).any(dim=0)
        for state, frame, is_fall in zip(states, frames, expected.tolist()):
            robot.data.qpos[:] = state
            assert robot.is_off_clip(frame) is is_fall
            seen.add(is_fall)
    task.reset()
    assert seen == {True, False}


def test_robot_on_its_knees_has_not_fallen(kit, task):
    """A clip that kneels is played to its end, although knees touch the ground."""
    from st_rl.export.deploy.files import simulate

    deploy = OnnxStep(kit / "policy.onnx").description
    robot = simulate.SimulatedRobot(deploy, kit / "robot" / "robot.xml", simulate.Disturbance())
    qpos = task.robot.default_qpos.copy()
    qpos[list(task.robot.qpos_indices)] = np.tile([0.0, 0.0, -1.5], 4)
    qpos[2] = 0.2
    robot.reset(qpos, np.zeros(robot.model.nv))
    assert (robot.data.sensordata[list(task.robot.fall_sensors)] > 0).any()
    assert robot.is_off_clip(qpos) is False


def test_tilt_guard_is_wider_than_the_clips_lean(kit):
    deploy = OnnxStep(kit / "policy.onnx").description
    leaning = [clip["max_tilt_rad"] for clip in deploy["clips"]]
    assert 0 < max(leaning) < 0.5
    assert deploy["guards"]["max_tilt_rad"] == 1.0
    clips = [{**clip, "max_tilt_rad": 1.4} for clip in deploy["clips"]]
    with np.load(kit / "golden.npz") as golden:
        assert make_guards({**deploy, "clips": clips}, golden)["max_tilt_rad"] == pytest.approx(1.9)


def test_controller_plays_the_clips_that_are_asked_for(kit):
    from st_rl.export.deploy.files import controller

    runner = controller.Controller(controller.Policy(kit / "policy.onnx"))
    assert controller.find_clip(runner.deploy, "pace_0.5") == 1
    runner.set_clip(1)
    assert runner._asked["clip"].tolist() == [1.0]
    with pytest.raises(ValueError, match="no clip 3, only 0 to 2"):
        runner.set_clip(3)


def test_kit_with_actions_around_the_clip(clips, tmp_path):
    """Targets of the policy without training are near the clip, in the task, ONNX, controller and header."""
    settings = {"noise.level": 0.0, "deployable": True, "continue_to_next_clip": False}
    task = make_task("quadruped-track", 4, seed=3, motions=clips, action_center="reference", **settings)
    trained = make_policy(task)
    raw = RawPolicy(make_interface(task), DeployedPolicy(trained.actor_critic, trained.obs_normalizer))
    write_kit(tmp_path / "kit", raw, trained, task, {"st_rl_version": "test"})
    test_policy_controller_and_header_agree_on_the_golden_run(tmp_path / "kit")
    inputs = {name: torch.zeros(1, *signal.shape) for name, signal in raw.inputs.items()}
    inputs |= {"orientation": torch.tensor([[1.0, 0.0, 0.0, 0.0]]), "clip": torch.tensor([[1.0]])}
    state = {**raw.initial_state(), "played_clip": torch.tensor([[2.0]]), "frame": torch.tensor([[4.0]])}
    state["heading"] = torch.tensor([[1.0, 0.0]])
    actions = torch.full((1, 12), 0.1)
    expected = task.reference.clips[1].joint_pos[5] + 0.1 * task.cfg.control.action_scale
    np.testing.assert_allclose(raw.interface.joint_targets(inputs, state, actions)[0], expected, atol=1e-6)
