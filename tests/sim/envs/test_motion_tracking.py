"""Motion tracking: reference, errors, rewards, terminations, sampling, and passing from clip to clip."""

import mujoco
import numpy as np
import pytest
import torch

from st_rl.runners import build_runner
from st_rl.sim.backends.contact_readings import can_read
from st_rl.sim.tasks import find_task, make_task
from st_rl.utils.tensors import rotations
from tests.sim.envs.test_compiled_step import DriftingBackend, flat

QUIET = {
    "noise.level": 0.0,
    "reset.joint_pos": 0.0,
    "reset.rotation": 0.0,
    "reset.velocity": 0.0,
    "push.max_speed": 0.0,
    "physics.num_threads": 1,
}


def build(num_envs=8, name="humanoid-track", seed=0, **overrides):
    return make_task(name, num_envs, seed=seed, **(QUIET | overrides))


def place(task, qpos, qvel):
    """Set the state of all robots and compare them with their references."""
    everyone = torch.ones(task.num_envs, dtype=torch.bool)
    task.backend.reset(everyone, qpos, qvel)
    task._read_state()
    task._update_errors()


def disturbed_states(task, seed=0, size=0.1):
    """States near the reference, moved and turned in the world."""
    generator = torch.Generator().manual_seed(seed)
    qpos, qvel = (value.clone() for value in task.reference.start(task.row))
    qpos[:, 7:] += size * torch.randn(qpos[:, 7:].shape, generator=generator)
    qpos[:, :3] += size * torch.randn(task.num_envs, 3, generator=generator)
    turn = torch.nn.functional.normalize(
        torch.randn(task.num_envs, 4, generator=generator) * size + torch.tensor([1.0, 0, 0, 0]), dim=1
    )
    qpos[:, 3:7] = torch.from_numpy(rotations.multiply(turn.numpy(), qpos[:, 3:7].numpy()))
    qvel += size * torch.randn(qvel.shape, generator=generator)
    return qpos, qvel


def mujoco_bodies(task, qpos, qvel, names):
    """Positions, rotations and velocities of bodies by `mj_forward`, float64."""
    model, data, velocity = task.robot.model, mujoco.MjData(task.robot.model), np.zeros(6)
    data.qpos[:], data.qvel[:] = qpos, qvel
    mujoco.mj_forward(model, data)
    pos, rot, lin, ang = [], [], [], []
    for name in names:
        body = model.body(name).id
        mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_XBODY, body, velocity, 0)
        pos.append(data.xpos[body].copy())
        rot.append(data.xmat[body].reshape(3, 3).copy())
        ang.append(velocity[:3].copy())
        lin.append(velocity[3:].copy())
    return map(np.array, (pos, rot, lin, ang))


@pytest.mark.parametrize("name", ["humanoid-track", "quadruped-track"])
def test_reference_is_forward_kinematics_of_the_clip(name):
    task = build(2, name)
    reference = task.reference
    bodies = (*reference.body_names, reference.anchor)
    rows = torch.tensor([0, 7, int(reference.last_row[-1])])
    found = reference.bodies(rows)
    qpos, qvel = reference.start(rows)
    qpos = reference.qpos[rows]
    for place_, row in enumerate(rows):
        pos, rot, lin, ang = mujoco_bodies(task, qpos[place_].double(), qvel[place_].double(), bodies)
        np.testing.assert_allclose(found.pos[place_], pos, atol=2e-6)
        np.testing.assert_allclose(found.rot[place_], rot, atol=2e-6)
        np.testing.assert_allclose(found.lin_vel[place_], lin, atol=1e-5)
        np.testing.assert_allclose(found.ang_vel[place_], ang, atol=1e-5)
        frame = int(row - reference.first_row[reference.clip_of_row[row]])
        clip = reference.clips[int(reference.clip_of_row[row])]
        np.testing.assert_allclose(qpos[place_, 7:], clip.joint_pos[frame], atol=1e-6)
    assert [clip.fps for clip in reference.clips] == [pytest.approx(1 / task.step_dt)] * len(reference.clips)
    assert len(reference.clip_of_row) == sum(reference.num_frames) == len(reference.qpos)


def test_robot_on_the_reference_has_no_error_and_the_largest_reward():
    task = build(16, motions=("kick", "wave"))
    place(task, task.reference.qpos[task.row], task.reference.start(task.row)[1])
    for error in (task.body_pos_error, task.joint_pos_error, task.anchor_pos_error, task.anchor_rot_error):
        assert error.max() < 1e-5
    for name in ("anchor_pos", "anchor_rot", "body_pos", "body_rot", "body_lin_vel", "body_ang_vel"):
        torch.testing.assert_close(task.REWARDS[name].function(task), torch.ones(16), atol=1e-5, rtol=0)
    assert not any(reason(task).any() for reason in task.TERMINATIONS.values())


def yaw_of(matrix):
    return np.arctan2(matrix[1, 0], matrix[0, 0])


def test_errors_and_rewards_equal_their_formulas():
    task = build(6, **{"scales.body_pos": 0.2, "anchor_body": "torso"})
    qpos, qvel = disturbed_states(task)
    place(task, qpos, qvel)
    scales, names = task.cfg.scales, [*task.reference.body_names, "torso"]
    for robot in range(6):
        row = int(task.row[robot])
        own = [*mujoco_bodies(task, qpos[robot], qvel[robot], names)]
        wanted = [*mujoco_bodies(task, task.reference.qpos[row], task.reference.start(task.row)[1][robot], names)]
        pos, rot, lin, ang = own
        wanted_pos, wanted_rot, wanted_lin, wanted_ang = wanted
        angle = yaw_of(rot[-1] @ wanted_rot[-1].T)
        turn = np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]])
        origin = np.array([*pos[-1, :2], wanted_pos[-1, 2]])
        target = origin + (wanted_pos[:-1] - wanted_pos[-1]) @ turn.T
        distance = np.linalg.norm(target - pos[:-1], axis=1)
        relative = [turn @ w @ r.T for w, r in zip(wanted_rot[:-1], rot[:-1])]
        angles = np.array([np.arccos(np.clip((np.trace(m) - 1) / 2, -1, 1)) for m in relative])
        anchor_angle = np.arccos(np.clip((np.trace(wanted_rot[-1] @ rot[-1].T) - 1) / 2, -1, 1))
        anchor_distance = np.linalg.norm(wanted_pos[-1] - pos[-1])
        expected = {
            "anchor_pos": np.exp(-((anchor_distance / 0.3) ** 2)),
            "anchor_rot": np.exp(-((anchor_angle / 0.4) ** 2)),
            "body_pos": np.exp(-np.mean(distance**2) / scales.body_pos**2),
            "body_rot": np.exp(-np.mean(angles**2) / 0.4**2),
            "body_lin_vel": np.exp(-np.mean(((wanted_lin - lin)[:-1] ** 2).sum(1))),
            "body_ang_vel": np.exp(-np.mean(((wanted_ang - ang)[:-1] ** 2).sum(1)) / 3.14**2),
        }
        assert task.body_pos_error[robot] == pytest.approx(distance.mean(), abs=1e-5)
        for name, value in expected.items():
            assert task.REWARDS[name].function(task)[robot] == pytest.approx(value, abs=1e-4), name
        assert task.anchor_tilt_error[robot] == pytest.approx(abs(wanted_rot[-1, 2, 2] - rot[-1, 2, 2]), abs=1e-5)


def test_body_error_ignores_place_and_heading_but_not_height():
    task = build(4)
    qpos, qvel = task.reference.qpos[task.row].clone(), task.reference.start(task.row)[1]
    yaw = torch.tensor([0.3, -0.8, 1.5, 3.0])
    quat = torch.stack([(yaw / 2).cos(), 0 * yaw, 0 * yaw, (yaw / 2).sin()], dim=1)
    qpos[:, 3:7] = torch.from_numpy(rotations.multiply(quat.numpy(), qpos[:, 3:7].numpy()))
    qpos[:, :2] += torch.tensor([0.4, -0.3])
    place(task, qpos, qvel)
    assert task.body_pos_error.max() < 1e-5
    assert task.body_rot_angle.max() < 1e-5
    torch.testing.assert_close(task.anchor_pos_error, torch.full((4,), 0.5), atol=1e-5, rtol=0)
    torch.testing.assert_close(task.anchor_rot_error, yaw.abs(), atol=1e-5, rtol=0)
    qpos[:, 2] += 0.1
    place(task, qpos, qvel)
    torch.testing.assert_close(task.body_pos_error, torch.full((4,), 0.1), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("change", "reason"), [("height", "anchor_height"), ("tilt", "anchor_tilt"), ("hand", "end_effectors")]
)
def test_terminations(change, reason):
    task = build(2)
    qpos, qvel = task.reference.qpos[task.row].clone(), task.reference.start(task.row)[1]
    if change == "height":
        qpos[1, 2] += 0.26
    elif change == "tilt":
        # Lies on its back with the pelvis at the right height.
        qpos[1, 3:7] = torch.tensor([0.5**0.5, 0.0, -(0.5**0.5), 0.0])
    else:
        qpos[1, task.robot.qpos_indices[task.robot.joint_names.index("left_shoulder_pitch_joint")]] -= 2.8
    place(task, qpos, qvel)
    assert task.TERMINATIONS[reason](task).tolist() == [False, True]


def test_end_effectors_are_the_outermost_tracked_bodies():
    task = build(1)
    names = [task.reference.body_names[i] for i in task._end_effectors]
    assert names == ["left_foot", "right_foot", "left_forearm", "right_forearm"]
    legs = build(1, tracked_bodies=(".*_(thigh|shin)", "torso"), anchor_body="torso")
    assert legs.reference.body_names == ("left_thigh", "left_shin", "right_thigh", "right_shin", "torso")
    assert [legs.reference.body_names[i] for i in legs._end_effectors] == ["left_shin", "right_shin", "torso"]


def test_observation_is_the_next_frame_from_the_robot():
    task = build(3, future_steps=(2, 5), anchor_body="torso")
    qpos, qvel = disturbed_states(task, size=0.05)
    place(task, qpos, qvel)
    obs = dict(zip((c.name for c in task.observation_table.columns), columns_of(task)))
    following = task.reference.qpos[task.row + 1]
    joints = list(task.robot.qpos_indices)
    default = torch.tensor(task.robot.default_joint_pos, dtype=torch.float32)
    torch.testing.assert_close(obs["reference_joint_pos"], following[:, joints] - default)
    later = torch.cat([task.reference.qpos[task.row + 1 + k][:, joints] - default for k in (2, 5)], dim=1)
    torch.testing.assert_close(obs["future_joint_pos"], later)
    for robot in range(3):
        (pos,), (rot,), _, _ = mujoco_bodies(task, qpos[robot], qvel[robot], ["torso"])
        states = [task.reference.qpos[task.row[robot] + 1 + k] for k in (0, 2, 5)]
        (next_pos, *future_pos), (next_rot, *future_rot) = zip(
            *[[part[0] for part in [*mujoco_bodies(task, state, np.zeros(task.robot.model.nv), ["torso"])][:2]]
              for state in states]
        )  # fmt: skip
        np.testing.assert_allclose(obs["anchor_pos"][robot], rot.T @ (next_pos - pos), atol=1e-5)
        np.testing.assert_allclose(obs["anchor_rot"][robot], (rot.T @ next_rot)[:, :2].ravel(), atol=1e-5)
        expected = [
            np.concatenate([next_rot.T @ (p - next_pos), (next_rot.T @ r)[:, :2].ravel()])
            for p, r in zip(future_pos, future_rot)
        ]
        np.testing.assert_allclose(obs["future_anchor"][robot], np.concatenate(expected), atol=1e-5)


def columns_of(task):
    """The columns of each observation term, without their scales."""
    return [column.term.function(task) for column in task.observation_table.columns]


def test_deployable_actor_sees_no_position_and_velocity_of_the_base():
    plain, deployable = build(2), build(2, deployable=True)
    hidden = {"anchor_pos", "base_lin_vel"}
    assert set(plain.obs_segments) - set(deployable.obs_segments) == hidden
    assert hidden < set(deployable.critic_obs_segments)
    assert tuple(deployable.cfg.control.latency_s) == (0.0, 0.03)


def test_episode_passes_to_a_clip_that_begins_where_the_last_ended():
    task = build(8, motions=("squat",), start="first", episode_length_s=20.0)
    assert bool(task._has_follower.all())
    task.row.copy_(task.reference.last_row[task.clip] - 1)
    qpos, qvel = disturbed_states(task, size=0.03)
    # As if the robot had walked away from its clip.
    qpos[:, 0] += 0.5
    task.backend.reset(torch.ones(8, dtype=torch.bool), qpos, qvel)
    task.row.copy_(task.reference.last_row[task.clip] - 1)
    _, _, dones, _ = task.step(torch.zeros(8, task.num_actions))
    assert not dones.any()
    assert task.clip_ended.all()
    assert torch.equal(task.row, task.reference.first_row[task.clip])
    # The first frame of the clip is placed at the anchor of the robot, with its heading.
    placed, base = task.reference_qpos(), task.backend.qpos
    torch.testing.assert_close(placed[:, :2], base[:, :2], atol=1e-5, rtol=0)
    task._update_errors()
    assert (task.anchor_pos_error - task.anchor_height_error).abs().max() < 1e-5
    forward = [rotations.rotate(q[:, 3:7].double().numpy(), np.array([1.0, 0.0, 0.0])) for q in (placed, base)]
    # Equal heading in the sense of the relative rotation; tilts differ a little.
    np.testing.assert_allclose(forward[0][:, :2], forward[1][:, :2], atol=0.02)
    assert not task.step(torch.zeros(8, task.num_actions))[3]["time_outs"].any()
    assert not task.clip_ended.any()


def test_episode_ends_by_time_out_where_no_clip_follows():
    task = build(4, motions=("squat",), start="first", continue_to_next_clip=False)
    task.row.copy_(task.reference.last_row[task.clip] - 1)
    task.backend.reset(torch.ones(4, dtype=torch.bool), *task.reference.start(task.row))
    _, _, dones, infos = task.step(torch.zeros(4, task.num_actions))
    assert dones.all()
    assert infos["time_outs"].all()
    assert task.clip_ended.all()
    assert torch.equal(task.row, task.reference.first_row[task.clip])


def test_followers_begin_in_the_pose_in_which_a_clip_ends(tmp_path):
    # Half a squat ends low, so that only clips that begin low may follow; there is none.
    from st_rl.datasets.formats import write_motion
    from st_rl.datasets.library import load_clips
    from st_rl.datasets.processing import cut

    (squat,) = load_clips("squat")
    write_motion(tmp_path / "half.npz", cut(squat, 0.0, 1.3))
    task = build(2, motions=("wave", "squat", str(tmp_path / "half.npz")))
    probability = task.reference.followers(0.15)
    torch.testing.assert_close(probability[:2], torch.full((2, 3), 1 / 3, dtype=torch.float64))
    assert probability[2].tolist() == [0.0, 0.0, 0.0]


def test_bins_where_robots_fail_are_sampled_more_often():
    task = build(512, motions=("turn",), **{"sampling.uniform_fraction": 0.1})
    bins = len(task.sampler.failures)
    assert bins == 7
    target = task.sampler.bin_of_row == 4
    for _ in range(40):
        task.row.copy_(torch.randint(0, task.reference.num_frames[0] - 1, (512,)))
        fails = target[task.row]
        task._record_terminations(fails)
    task._sample_random()
    task._sample_initial_states()
    fraction = target[task._start_row].float().mean()
    assert fraction > 0.6
    assert {"sampling_failures", "sampling_visits"} < set(task.state_dict()["buffers"])
    uniform = build(512, motions=("turn",), **{"sampling.adaptive": False})
    uniform.sampler.failures.copy_(task.sampler.failures)
    uniform._sample_random()
    uniform._sample_initial_states()
    assert target[uniform._start_row].float().mean() == pytest.approx(1 / 7, abs=0.06)


def test_a_termination_in_a_step_counts_as_failure_of_its_bin():
    task = build(8, motions=("turn",))
    lying = task.backend.qpos.clone()
    lying[:, 2] = 0.1
    task.backend.reset(torch.ones(8, dtype=torch.bool), lying, 0.0 * task.backend.qvel)
    bins = task.sampler.bin_of_row[task.row + 1]
    _, _, dones, _ = task.step(torch.zeros(8, task.num_actions))
    assert dones.all()
    expected = torch.zeros_like(task.sampler.failures).index_add_(0, bins, torch.ones(8, dtype=torch.float64))
    torch.testing.assert_close(task.sampler.failures, expected)


def test_held_clips_start_at_their_first_frames():
    task = build(4, motions=("squat", "kick"))
    task.hold_clips(torch.tensor([0, 1, 1, 0]))
    assert task.clip.tolist() == [0, 1, 1, 0]
    assert torch.equal(task.row, task.reference.first_row[task.clip])
    with pytest.raises(ValueError, match="one of the clips 0 to 1"):
        task.hold_clips(torch.tensor([0, 1, 2, 0]))


def test_start_is_raised_out_of_the_ground(tmp_path):
    from dataclasses import replace

    from st_rl.datasets.formats import write_motion
    from st_rl.datasets.library import load_clips
    from st_rl.sim.motions.ground import lowest_heights

    (squat,) = load_clips("squat")
    sunk = squat.root_pos - np.array([0.0, 0.0, 0.04])
    write_motion(tmp_path / "sunk.npz", replace(squat, root_pos=sunk, feet=None, bodies=None))
    task = build(8, motions=(str(tmp_path / "sunk.npz"),))
    lowest = lowest_heights(task.robot, task.backend.qpos.double().numpy())
    np.testing.assert_allclose(lowest, 0.0, atol=1e-5)
    # The reference itself stays as it is.
    sinks = task.reference_qpos()[:, 2] - task.backend.qpos[:, 2]
    torch.testing.assert_close(sinks, torch.full((8,), -0.04), atol=2e-3, rtol=0)


def test_joint_limits_are_penalized_from_the_soft_range_on():
    task = build(2)
    qpos, qvel = task.reference.qpos[task.row].clone(), task.reference.start(task.row)[1]
    place(task, qpos, qvel)
    free = task.REWARDS["joint_limits"].function(task)
    low, high = task.robot.joint_range[0]
    first = task.robot.qpos_indices[0]
    qpos[1, first] = float(high)
    place(task, qpos, qvel)
    found = task.REWARDS["joint_limits"].function(task)
    before = max(0.0, float(task.reference.qpos[task.row[1], first]) - (high - 0.05 * (high - low)))
    assert found[0] == free[0]
    assert found[1] - free[1] + before == pytest.approx(0.05 * (high - low), abs=1e-5)


def test_without_sensors_the_motion_is_the_same():
    with_sensors = build(4, **{"rewards.unwanted_contacts": 0.0})
    without = build(4, **{"rewards.unwanted_contacts": 0.0}, contact_sensors=False)
    for _ in range(10):
        expected, got = (task.step(torch.zeros(4, 21)) for task in (with_sensors, without))
        assert torch.equal(got[0], expected[0])
        assert torch.equal(got[1], expected[1])
    assert with_sensors.backend.sensordata.any()
    assert not without.backend.sensordata.any()
    assert can_read(with_sensors.backend.model)
    assert not can_read(without.backend.model)
    with pytest.raises(ValueError, match="unwanted_contacts needs contact_sensors"):
        build(4, contact_sensors=False)


def test_mirror_of_the_observation_is_its_own_inverse_without_the_critics_bodies():
    task = build(2, future_steps=(3,))
    with pytest.raises(ValueError, match="observation term 'body_pos' has no mirror"):
        _ = task.mirror
    segments = task._mirror_segments([c for c in task.observation_table.columns if c.start < task.num_obs])
    assert set(segments) == set(task.obs_segments)
    # A rotation mirrored at y = 0 is M R M with M = diag(1, -1, 1).
    matrix = rotations.from_rotation_vector(np.array([0.3, -0.4, 0.5]))
    columns = np.stack([rotations.rotate(matrix, axis) for axis in np.eye(3)], axis=1)
    mirror = np.diag([1.0, -1.0, 1.0])
    expected = (mirror @ columns @ mirror)[:, :2].ravel()
    np.testing.assert_allclose(columns[:, :2].ravel() * segments["anchor_rot"]["signs"], expected, atol=1e-12)


def test_traced_step_equals_eager_step(monkeypatch):
    from st_rl.sim.envs import task as task_module

    monkeypatch.setattr(task_module, "make_backend", DriftingBackend)
    entry = find_task("humanoid-track")
    cfg = entry.cfg(episode_length_s=0.2, motions=("squat", "kick"), future_steps=(2,))
    cfg.randomization = type(cfg.randomization)(None, None, None)
    eager, traced = (entry.task(cfg, 6, "cpu", seed=3) for _ in range(2))

    def backend(graph, example_inputs):
        return graph

    traced.compile_with(lambda function: torch.compile(function, dynamic=False, backend=backend, fullgraph=True))
    with torch.inference_mode():
        for step in range(15):
            actions = 0.1 * torch.sin(torch.arange(126.0).view(6, 21) + step)
            expected, got = (flat(each.step(actions)) for each in (eager, traced))
            for name, value in expected.items():
                torch.testing.assert_close(got[name], value, rtol=1e-5, atol=1e-5, msg=name)
            for name, value in eager.buffers.items():
                torch.testing.assert_close(traced.buffers[name], value, rtol=1e-5, atol=1e-5, msg=name)


def test_actions_around_the_reference_and_around_the_default_pose():
    for center in ("default_pose", "reference"):
        task = build(3, action_center=center)
        actions = 0.2 * torch.randn(3, 21, generator=torch.Generator().manual_seed(0))
        following = task.reference.qpos[task.row + 1][:, list(task.robot.qpos_indices)]
        default = torch.tensor(task.robot.default_joint_pos, dtype=torch.float32).expand(3, -1)
        task.step(actions)
        wanted = (default if center == "default_pose" else following) + 0.3 * actions
        low, high = task.joint_control.lower, task.joint_control.upper
        torch.testing.assert_close(task.joint_control.targets, wanted.clamp(low, high), atol=1e-6, rtol=0)
        assert ("default_joint_pos +" in task.describe_io()["action_formula"]) == (center == "default_pose")


def test_estimator_policy_trains():
    task = build(8, deployable=True)
    config = find_task("humanoid-track").training_config() | {"engine": "eager", "num_steps_per_env": 4}
    config["policy"] = {
        "class_name": "StateAc",
        "estimator_target_components": ["base_lin_vel"],
        "actor_hidden_dims": [16],
        "critic_hidden_dims": [16],
    }
    config["algorithm"]["class_name"] = "EstimatorPPO"
    runner = build_runner("OnPolicyRunner", task, config, log_dir=None)
    weights = {name: value for name, value in runner.alg.actor_critic.state_dict().items() if "estimator" in name}
    before = {name: value.clone() for name, value in weights.items()}
    runner.learn(1)
    assert before
    assert any(not torch.equal(before[name], value) for name, value in weights.items())


def test_teacher_sees_all_that_the_critic_sees():
    teacher = build(2, privileged_actor=True)
    assert teacher.num_privileged_obs is None
    assert teacher.num_obs == build(2).num_privileged_obs


@pytest.mark.gpu
def test_on_a_gpu_a_whole_rollout_is_captured_and_trains(tmp_path):
    task = make_task("humanoid-track", 256, "cuda", motions=("squat", "kick"))
    config = find_task("humanoid-track").training_config() | {"engine": "graph"}
    runner = build_runner("OnPolicyRunner", task, config, log_dir=tmp_path, device="cuda")
    runner.learn(10)
    assert runner.tot_timesteps == 10 * 24 * 256
    assert all(torch.isfinite(p).all() for p in runner.alg.actor_critic.parameters())
    assert torch.unique(task.row).numel() > 64
    assert task.sampler.visits.sum() > 0


@pytest.mark.gpu
def test_gpu_errors_equal_cpu_errors():
    cpu, gpu = (make_task("humanoid-track", 24, device, **QUIET) for device in ("cpu", "cuda"))
    torch.set_float32_matmul_precision("high")
    qpos, qvel = disturbed_states(cpu)
    gpu.row.copy_(cpu.row)
    gpu.clip.copy_(cpu.clip)
    # The generators of a CPU and of a GPU draw other numbers.
    gpu.properties.copy_(cpu.properties)
    for task in (cpu, gpu):
        everyone = torch.ones(24, dtype=torch.bool, device=task.device)
        task.backend.reset(everyone, qpos.to(task.device), qvel.to(task.device))
        task._read_state()
        task._update_errors()
    torch.testing.assert_close(gpu.compute_observation().cpu(), cpu.compute_observation(), rtol=1e-4, atol=1e-4)
    for name in ("body_pos_distance", "body_rot_angle", "body_lin_vel_distance", "body_ang_vel_distance"):
        torch.testing.assert_close(getattr(gpu, name).cpu(), getattr(cpu, name), rtol=1e-4, atol=1e-4, msg=name)
