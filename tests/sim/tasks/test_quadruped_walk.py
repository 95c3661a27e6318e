"""The task `quadruped-walk`, compared with quantities of MuJoCo and with equivalent runs."""

import math

import mujoco
import numpy as np
import pytest
import torch

from st_rl.sim.tasks import make_task
from tests.sim.robots.foreign_robots import FIXED_ARM, torque_quadruped

N = 4
QUIET = {
    "noise.level": 0.0,
    "push.max_speed": 0.0,
    "randomization.friction": None,
    "randomization.base_mass": None,
    "randomization.motor_strength": None,
    "physics.num_threads": 1,
}


def walk(num_envs=N, seed=0, **overrides):
    return make_task("quadruped-walk", num_envs, seed=seed, **(QUIET | overrides))


def actions_for(steps, num_envs=N, width=12, seed=1):
    return 0.5 * torch.randn(steps, num_envs, width, generator=torch.Generator().manual_seed(seed))


def part(task, observation, name):
    """The columns of one segment."""
    start = 0
    for segment, width in task.critic_obs_segments.items():
        if segment == name:
            return observation[:, start : start + width]
        start += width
    raise KeyError(name)


def engine_data(task, index):
    """MuJoCo's own data for the present state of one robot."""
    data = task.backend.batch.get_data(index)
    mujoco.mj_forward(task.backend.model, data)
    return data


def test_observation_matches_the_engine():
    task = walk()
    actions = actions_for(10)
    for row in actions:
        _, _, dones, infos = task.step(row)
    assert not dones.any()
    critic = infos["observations"]["critic"]
    model, scales = task.backend.model, task.cfg.normalization.obs_scales
    for i in range(N):
        data = engine_data(task, i)
        velocity = np.zeros(6)
        mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_XBODY, model.body("trunk").id, velocity, 1)
        joints = [data.joint(name) for name in task.robot.joint_names]
        home = model.key("home").qpos
        offset = [j.qpos[0] - home[model.joint(name).qposadr[0]] for j, name in zip(joints, task.robot.joint_names)]
        expected = {
            "base_lin_vel": scales["lin_vel"] * velocity[3:],
            "base_ang_vel": scales["ang_vel"] * velocity[:3],
            "projected_gravity": data.body("trunk").xmat.reshape(3, 3).T @ [0, 0, -1],
            "joint_pos": offset,
            "joint_vel": scales["joint_vel"] * np.array([j.qvel[0] for j in joints]),
            "commands": scales["commands"] * task.commands[i].numpy(),
            "actions": actions[-1, i].numpy(),
            "base_height": [data.body("trunk").xpos[2]],
        }
        for name, value in expected.items():
            np.testing.assert_allclose(part(task, critic, name)[i].numpy(), value, atol=2e-6, err_msg=name)


def test_feet_and_torques_match_the_engine():
    task = walk()
    data = task.backend.batch.get_data(2)
    actions = actions_for(8)
    home = task.robot.default_joint_pos
    for row in actions:
        task.step(row)
        low, high = task.robot.control_range.T
        target = torch.add(torch.tensor(home).float(), row[2], alpha=0.3).clamp(torch.tensor(low), torch.tensor(high))
        data.ctrl[:] = target.float().numpy()
        mujoco.mj_step(task.backend.model, data, nstep=2)
        # MuJoCo's derived quantities lag one substep behind its state, and so do ours.
        for f, foot in enumerate(task.robot.feet):
            geom = task.backend.model.geom(foot.name).id
            assert task.foot_height[2, f] == pytest.approx(data.geom_xpos[geom, 2] - 0.023, abs=1e-5)
            touching = any(geom in (c.geom1, c.geom2) for c in data.contact)
            assert bool(task.foot_contact[2, f]) == touching
        np.testing.assert_allclose(task.torques[2].numpy(), data.qfrc_actuator[6:], atol=1e-4)
        np.testing.assert_allclose(task.joint_pos[2].numpy(), data.qpos[7:], atol=1e-6)
    contact = part(task, task.get_privileged_observations(), "foot_contact")
    assert torch.equal(contact, task.foot_contact.float())


def test_metrics_equal_robot_states():
    task = walk()
    task.hold_commands(torch.tensor([[0.5, 0, 0], [1.0, 0, 0], [0, 0, 0], [-0.5, 0.1, 0]]))
    for row in actions_for(6):
        task.step(row)
    speed, cost, mass = [], [], task.backend.model.body_mass.sum()
    for i in range(N):
        velocity = np.zeros(6)
        trunk = task.backend.model.body("trunk").id
        data = engine_data(task, i)
        mujoco.mj_objectVelocity(task.backend.model, data, mujoco.mjtObj.mjOBJ_XBODY, trunk, velocity, 1)
        speed.append(velocity[3])
        power = np.abs(task.torques[i].numpy() * data.qvel[6:]).sum()
        cost.append(power / (mass * 9.8 * np.hypot(velocity[3], velocity[4])))
    error = np.abs(np.array(speed) - task.commands[:, 0].numpy())
    np.testing.assert_allclose(task.lin_vel_rmsd.numpy(), error, atol=1e-5)
    assert float(task.tracking_error) == pytest.approx(np.sqrt(np.mean(error**2)), abs=1e-5)
    assert float(task.CoT) == pytest.approx(np.mean([cost[i] for i in (0, 1, 3)]), rel=1e-4)  # robot 2 stands
    task.hold_commands(torch.zeros(N, 3))
    assert torch.isnan(task.CoT)


def test_clock_counts_strides_and_stops_for_a_standing_robot():
    task = walk()
    task.hold_commands(torch.tensor([[0.5, 0, 0], [0, 0, 0.5], [0, 0, 0], [0.05, 0, 0.05]]))
    phase = task.phase.clone()
    for _ in range(7):
        _, _, _, infos = task.step(torch.zeros(N, 12))
    expected = (phase + 7 * 0.02 / 0.5) % 1
    torch.testing.assert_close(task.phase, expected)
    clock = part(task, infos["observations"]["critic"], "clock")
    for i in range(2):
        angle = 2 * math.pi * float(expected[i])
        np.testing.assert_allclose(clock[i].numpy(), [math.sin(angle), math.cos(angle)], atol=1e-5)
    assert not clock[2:].any()
    assert task.moving.tolist() == [True, True, False, False]
    assert task.foot_stance[2:].all()


def test_gait_clock_pairs_diagonal_feet():
    task = walk(**{"reset.joint_pos": 0.0, "reset.velocity": 0.0})  # it stands still, so that no reset moves the clock
    task.hold_commands(torch.tensor([[0.5, 0.0, 0.0]]).repeat(N, 1))
    heights, stances = [], []
    for _ in range(25):  # one stride of 0.5 s
        task.step(torch.zeros(N, 12))
        stances.append(task.foot_stance.clone())
        heights.append(task.swing_height.clone())
    stance, height = torch.stack(stances), torch.stack(heights)
    assert torch.equal(stance[:, :, 0], stance[:, :, 3])
    assert torch.equal(stance[:, :, 1], stance[:, :, 2])
    share = stance.float().mean(dim=0)
    assert ((share - 0.55).abs() <= 0.04 + 1e-6).all()
    assert (height[stance] < 1e-6).all()
    assert height.amax(dim=0).allclose(torch.tensor(0.06), atol=0.003)


def test_noise_is_bounded_and_for_the_actor_only():
    task = walk(num_envs=64, **{"noise.level": 1.0})
    obs, extras = task.get_observations()
    noise = obs - extras["observations"]["critic"][:, : task.num_obs]
    bounds = {"base_lin_vel": 0.1, "base_ang_vel": 0.2 * 0.25, "projected_gravity": 0.05, "joint_pos": 0.01}
    bounds |= {"joint_vel": 1.5 * 0.05, "commands": 0.0, "actions": 0.0, "clock": 0.0}
    for name, bound in bounds.items():
        largest = float(part(task, noise, name).abs().max())
        assert largest <= bound + 1e-6
        assert largest >= 0.9 * bound - 1e-6


def test_linear_velocity_can_be_privileged():
    task = walk(observe_linear_velocity=False)
    assert "base_lin_vel" not in task.obs_segments
    _, _, _, infos = task.step(torch.zeros(N, 12))
    torch.testing.assert_close(part(task, infos["observations"]["critic"], "base_lin_vel"), task.base_lin_vel)
    noisy = walk(observe_linear_velocity=False, **{"noise.level": 1.0})
    obs, extras = noisy.get_observations()
    noise = obs - extras["observations"]["critic"][:, : noisy.num_obs]
    assert part(task, noise, "joint_pos").abs().max() <= 0.01 + 1e-6
    assert not part(task, noise, "commands").any()


def test_new_episode_starts_near_the_default_pose():
    task = walk(num_envs=256)
    qpos, qvel = task.backend.qpos, task.backend.qvel
    home = torch.tensor(task.robot.default_qpos, dtype=torch.float32)
    assert torch.equal(qpos[:, :3], home[:3].expand(256, 3))
    spread = (qpos[:, 7:] - home[7:]).abs()
    assert 0.14 < spread.max() <= 0.15 + 1e-6
    torch.testing.assert_close(qpos[:, 3:7].norm(dim=1), torch.ones(256))
    yaw = 2 * torch.atan2(qpos[:, 6], qpos[:, 3])
    assert 0.18 < yaw.abs().max() <= 0.2 + 1e-6
    assert 0.19 < qvel[:, :6].abs().max() <= 0.2
    assert not qvel[:, 6:].any()


def test_start_turns_any_default_orientation_about_the_vertical(tmp_path):
    text = torque_quadruped().replace(
        '<body name="base" pos="0 0 0.45">', '<body name="base" pos="0 0 0.45" euler="0.1 0.05 0.3">'
    )
    (tmp_path / "tilted.xml").write_text(text)
    task = walk(robot=str(tmp_path / "tilted.xml"), **TORQUE, **{"reset.yaw": 1.0})
    default = task.robot.default_qpos[3:7]
    for i in range(N):
        half = float(task.random["half_yaw"][i])
        expected = np.zeros(4)
        mujoco.mju_mulQuat(expected, np.array([math.cos(half), 0, 0, math.sin(half)]), default)
        np.testing.assert_allclose(task.backend.qpos[i, 3:7].numpy(), expected, atol=1e-6)


def test_reset_touches_only_finished_robots():
    task = walk()
    twin = walk()
    for row in actions_for(5):
        task.step(row)
        twin.step(row)
    task.episode_length_buf = torch.tensor([0, task.max_episode_length, 0, 0])
    row = actions_for(1, seed=9)[0]
    _, _, dones, _ = task.step(row)
    twin.step(row)
    assert dones.tolist() == [False, True, False, False]
    others = [0, 2, 3]
    assert np.array_equal(task.backend.batch.state[others], twin.backend.batch.state[others])
    assert not np.array_equal(task.backend.batch.state[1], twin.backend.batch.state[1])
    assert not task.actions[1].any()


def test_robot_on_its_back_is_a_fall_and_not_a_time_out():
    task = walk()
    state = task.backend.state_dict()
    state["state"][1, 3:8] = torch.tensor([0.06, 0.0, 1.0, 0.0, 0.0])  # height and quaternion
    task.backend.load_state_dict(state)
    _, _, dones, infos = task.step(torch.zeros(N, 12))
    assert dones.tolist() == [False, True, False, False]
    assert not infos["time_outs"].any()
    assert infos["log"]["Termination/tilt"] == pytest.approx(1 / N)
    assert infos["log"]["Termination/fall"] == pytest.approx(1 / N)


def test_small_command_becomes_zero():
    small = {"commands.lin_vel_x": (-0.2, 0.2), "commands.lin_vel_y": (0.0, 0.0), "commands.ang_vel_yaw": (0.0, 0.0)}
    task = walk(num_envs=64, **small, **{"commands.standing_fraction": 0.0})
    speed = task.commands[:, 0].abs()
    assert ((speed == 0) | (speed > 0.1)).all()
    assert 0.3 < (speed == 0).float().mean() < 0.7
    given = torch.tensor([[0.06, 0.0, 0.07], [0.08, 0.0, 0.07]]).repeat(32, 1)
    task.hold_commands(given)
    observed = part(task, task.get_observations()[0], "commands")
    assert not observed[::2].any()  # a norm of 0.092
    torch.testing.assert_close(task.commands[1::2], given[1::2])  # and one of 0.106


def test_commands_are_within_range_and_change_when_due():
    task = walk(num_envs=512, **{"commands.standing_fraction": 0.25, "commands.resample_s": 0.1})
    standing = (task.commands == 0).all(dim=1).float().mean()
    assert 0.18 < standing < 0.32
    low, high = torch.tensor([-0.5, -0.4, -0.8]), torch.tensor([1.0, 0.4, 0.8])
    assert (task.commands >= low).all()
    assert (task.commands <= high).all()
    assert (task.commands.amax(dim=0) > 0.9 * high).all()
    task.episode_length_buf = torch.arange(512) % 5
    before = task.commands.clone()
    task.step(torch.zeros(512, 12))
    changed = (task.commands != before).any(dim=1)
    due = torch.arange(512) % 5 == 4
    assert not changed[~due].any()
    assert changed[due].float().mean() > 0.5  # a standing robot may get a standing command again


def test_held_commands_stay_over_episodes():
    task = walk()
    commands = torch.tensor([[0.3, 0.0, 0.0]]).repeat(N, 1)
    task.hold_commands(commands)
    assert torch.equal(part(task, task.get_observations()[0], "commands"), 2 * commands)
    task.episode_length_buf = torch.full((N,), task.max_episode_length)
    _, _, dones, _ = task.step(torch.zeros(N, 12))
    assert dones.all()
    assert torch.equal(task.commands, commands)


def test_pushes_at_random_intervals_change_only_velocity():
    every_step, never = (
        walk(num_envs=64, **{"push.max_speed": speed, "push.interval_s": 0.02}) for speed in (0.5, 0.0)
    )
    for task in (every_step, never):
        task.step(torch.zeros(64, 12))
    difference = every_step.backend.qvel - never.backend.qvel
    assert (difference[:, :2].abs() > 0).any(dim=1).all()
    assert 0.4 < difference[:, :2].abs().max() <= 0.5 + 1e-6
    assert not difference[:, 2:].any()
    assert torch.equal(every_step.backend.qpos, never.backend.qpos)
    rare = walk(num_envs=64, **{"push.max_speed": 0.5, "push.interval_s": 2.0})
    plain = walk(num_envs=64)
    rare.step(torch.zeros(64, 12))
    plain.step(torch.zeros(64, 12))
    assert (rare.backend.qvel != plain.backend.qvel).any(dim=1).float().mean() < 0.2


def test_push_updates_observation():
    task = walk()
    before = task.get_observations()[0]
    mask = torch.tensor([True, False, False, False])
    task.push(torch.tensor([[0.0, 0.5, 0.0]]).repeat(N, 1), mask)
    after = task.get_observations()[0]
    assert torch.equal(after[1:], before[1:])
    assert part(task, after - before, "base_lin_vel")[0].norm() == pytest.approx(0.5, abs=1e-5)


def test_randomisation_changes_the_model_of_each_robot():
    ranges = {"friction": (0.3, 1.5), "base_mass": (0.7, 1.4), "motor_strength": (0.8, 1.2)}
    task = walk(num_envs=32, **{f"randomization.{name}": value for name, value in ranges.items()})
    nominal = task.backend.model
    for i in range(0, 32, 7):
        friction, mass, strength, latency = task.properties[i].tolist()
        model = task.backend.batch.get_model(i)
        np.testing.assert_allclose(model.geom_friction[:, 0], friction, rtol=1e-6)
        np.testing.assert_allclose(model.geom_friction[:, 1:], nominal.geom_friction[:, 1:])
        np.testing.assert_allclose(model.body_mass[1], nominal.body_mass[1] * mass, rtol=1e-6)
        np.testing.assert_allclose(model.body_inertia[1], nominal.body_inertia[1] * mass, rtol=1e-6)
        np.testing.assert_allclose(model.body_mass[2:], nominal.body_mass[2:])
        np.testing.assert_allclose(model.actuator_gainprm[:, 0], 35 * strength, rtol=1e-6)
        np.testing.assert_allclose(model.actuator_biasprm[:, 1:3], [[-35 * strength, -0.5 * strength]] * 12, rtol=1e-6)
        expected_total = nominal.body_subtreemass[1] + nominal.body_mass[1] * (mass - 1)
        np.testing.assert_allclose(model.body_subtreemass[1], expected_total, rtol=1e-6)
        assert latency == 0
    for column, (low, high) in enumerate(ranges.values()):
        values = task.properties[:, column]
        assert values.min() >= low
        assert values.max() <= high
        assert values.max() - values.min() > 0.5 * (high - low)
    _, extras = task.get_observations()
    torch.testing.assert_close(part(task, extras["observations"]["critic"], "properties"), task.properties)


def test_robots_are_identical_without_randomization():
    plain = walk()
    assert plain.properties[:, 0].tolist() == pytest.approx([0.8] * N)
    assert plain.properties[:, 1:3].eq(1).all()
    assert plain.backend.state_dict()["fields"] == {}


def test_whole_step_of_latency_is_the_last_action_again():
    late, prompt = walk(**{"control.latency_s": (0.02, 0.02)}), walk()
    actions = actions_for(8)
    shifted = torch.cat([torch.zeros(1, N, 12), actions[:-1]])
    for row, earlier in zip(actions, shifted):
        late.step(row)
        prompt.step(earlier)
        assert np.array_equal(late.backend.batch.bind("qpos"), prompt.backend.batch.bind("qpos"))
    assert late.properties[:, 3].tolist() == pytest.approx([0.02] * N)


def test_latency_of_substeps_differs_between_robots():
    task = walk(num_envs=16, **{"control.latency_s": (0.0, 0.03)})
    late = (task.properties[:, 3] / 0.01).round().long().tolist()
    assert set(late) == {0, 1, 2, 3}
    data = [task.backend.batch.get_data(i) for i in range(16)]
    actions = actions_for(6, num_envs=16)
    home = torch.tensor(task.robot.default_joint_pos, dtype=torch.float32)
    low, high = (torch.tensor(limit, dtype=torch.float32) for limit in task.robot.control_range.T)
    targets = [(home + 0.3 * row).clamp(low, high) for row in actions]
    for step in range(6):
        task.step(actions[step])
        for i in range(16):
            for substep in range(2):
                # The newest action that was sent at least `late` substeps ago.
                sent = (2 * step + substep - late[i]) // 2
                data[i].ctrl[:] = (targets[sent][i] if sent >= 0 else home).numpy()
                mujoco.mj_step(task.backend.model, data[i])
    expected = np.stack([d.qpos for d in data])
    np.testing.assert_allclose(task.backend.qpos.numpy(), expected, atol=1e-5)


def test_reset_clears_delayed_actions():
    task = walk(**{"control.latency_s": (0.02, 0.02)})
    task.step(torch.ones(N, 12))
    task.reset()
    fresh = walk(**{"control.latency_s": (0.02, 0.02)})
    fresh.backend.load_state_dict(task.backend.state_dict())
    task.step(torch.zeros(N, 12))
    fresh.step(torch.zeros(N, 12))
    assert torch.equal(task.backend.qpos, fresh.backend.qpos)


TORQUE = {"control.stiffness": 30.0, "control.damping": 1.0}


@pytest.fixture
def torque_robot(tmp_path):
    path = tmp_path / "foreign.xml"
    path.write_text(torque_quadruped())
    return str(path)


def test_foreign_robot_with_torque_motors_follows_a_pd_law(torque_robot):
    task = walk(robot=torque_robot, **TORQUE)
    assert task.num_actions == 8
    data = task.backend.batch.get_data(1)
    actions = 3 * actions_for(6, width=8)  # large enough to meet the effort limit of 20 Nm
    was_limited = False
    for row in actions:
        task.step(row)
        target = np.clip(0.3 * row[1].numpy(), *task.robot.joint_range.T)
        for _ in range(2):
            q = np.array([data.joint(name).qpos[0] for name in task.robot.joint_names])
            qd = np.array([data.joint(name).qvel[0] for name in task.robot.joint_names])
            torque = 30 * (target - q) - 1 * qd
            was_limited |= bool((np.abs(torque) > 20).any())
            data.ctrl[:] = np.clip(torque, -20, 20) / 2  # gear of 2
            mujoco.mj_step(task.backend.model, data)
    assert was_limited
    np.testing.assert_allclose(task.backend.qpos[1].numpy(), data.qpos, atol=1e-4)
    order = [task.robot.model.joint(name).dofadr[0] for name in task.robot.joint_names]
    np.testing.assert_allclose(task.torques[1].numpy(), data.qfrc_actuator[order], atol=1e-2)
    np.testing.assert_allclose(task.joint_pos[1].numpy(), q_of(data, task), atol=1e-4)


def test_motor_controls_stay_within_the_effort_limit(torque_robot, monkeypatch):
    task = walk(robot=torque_robot, **TORQUE)
    controls, set_control = [], task.backend.set_control
    monkeypatch.setattr(task.backend, "set_control", lambda value: (controls.append(value.clone()), set_control(value)))
    for row in 3 * actions_for(6, width=8):
        task.step(row)
    assert torch.stack(controls).abs().max() == 10  # 20 Nm, gear of 2


def test_noise_of_a_step_reaches_only_the_actor():
    task = walk(**{"noise.level": 1.0})
    obs, _, _, infos = task.step(actions_for(1)[0])
    clean = task.compute_observation()
    assert torch.equal(infos["observations"]["critic"], clean)
    assert not torch.equal(obs, clean[:, : task.num_obs])
    assert torch.equal(infos["observations"]["policy"], obs)


def q_of(data, task):
    return [data.joint(name).qpos[0] for name in task.robot.joint_names]


def test_torque_motors_need_gains(torque_robot):
    with pytest.raises(ValueError, match=r"foreign\.xml has torque actuators.*control\.stiffness and control\.damping"):
        walk(robot=torque_robot)


def test_rejects_robot_without_free_joint(tmp_path):
    (tmp_path / "arm.xml").write_text(FIXED_ARM)
    with pytest.raises(ValueError, match=r"arm\.xml has no free joint.*for walking"):
        walk(robot=str(tmp_path / "arm.xml"))


def test_every_foot_needs_a_phase():
    with pytest.raises(ValueError, match=r"2 phases, but .* has 4 feet \(FR_foot.*--env.gait.offsets 0 0.5 0.5 0$"):
        walk(**{"gait.offsets": (0.0, 0.5)})


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("gait.stance_fraction", 1.0, r"gait.stance_fraction 1.0: .*less than 1"),
        ("gait.period_s", 0.0, r"gait.period_s is 0.0 .*positive time"),
        ("push.interval_s", 0.0, r"push.interval_s is 0.0: .*or set push.max_speed to 0"),
        ("commands.lin_vel_x", (1.0, 0.3), r"commands.lin_vel_x is \(1.0, 0.3\): give the smallest number first"),
        ("randomization.friction", (1.2, 0.4), r"randomization.friction is \(1.2, 0.4\)"),
        ("control.latency_s", (0.03, 0.0), r"latency_s is \(0.03, 0.0\): give the shortest and the longest"),
        ("control.latency_s", (-0.01, 0.0), r"latency_s is \(-0.01, 0.0\)"),
        ("control.stiffness", 300.0, r"servos of .* have gains of their own.*leave these out"),
        ("control.action_scale", (0.3, 0.2), r"action_scale has 2 numbers for 12 joints: .* order FR_hip_joint"),
    ],
)
def test_rejects_invalid_settings(option, value, message):
    with pytest.raises(ValueError, match=message):
        walk(**{"push.max_speed": 0.5, option: value})


def test_rejects_commands_of_wrong_shape():
    with pytest.raises(
        ValueError, match=rf"lin_vel_x, lin_vel_y and ang_vel_yaw of each robot, \({N}, 3\); got \(3,\)"
    ):
        walk().hold_commands(torch.zeros(3))


def test_scales_must_be_complete():
    with pytest.raises(ValueError, match=r"obs_scales lacks ang_vel"):
        walk(**{"normalization.obs_scales": {"lin_vel": 1.0, "commands": 1.0, "joint_pos": 1.0, "joint_vel": 1.0}})


def test_fine_physics_has_the_same_control_period_and_similar_motion():
    coarse, fine = (make_task("quadruped-walk", N, cfg=walk().cfg.for_evaluation(fine=f)) for f in (False, True))
    assert fine.step_dt == pytest.approx(coarse.step_dt)
    assert fine.max_episode_length == coarse.max_episode_length
    for _ in range(10):
        coarse.step(torch.zeros(N, 12))
        fine.step(torch.zeros(N, 12))
    torch.testing.assert_close(coarse.base_height, fine.base_height, atol=0.03, rtol=0)
    assert not torch.equal(coarse.base_height, fine.base_height)
