"""Robot descriptions of foreign MJCF files: elements found by name, and errors for missing ones."""

import importlib.util
import os
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch

from st_rl.cli import main
from st_rl.modules.symmetry import joint_mirror
from st_rl.sim.robots import Robot
from st_rl.sim.robots.description import RobotDescription
from st_rl.sim.robots.name_patterns import check_patterns
from st_rl.sim.tasks import make_task
from tests.sim.terms.test_mirror import ALIKE, QUIET, symmetry_of, write_mirrored_pairs

# Legs in the order RL, FR, FL, RR, no actuators, the hip axes of the left legs turned round, several shapes in a foot.
FOREIGN = """
<mujoco model="foreign">
  <compiler angle="radian" autolimits="true" meshdir="shapes"/>
  <asset><mesh name="shell" file="shell.obj"/></asset>
  <worldbody>
    <body name="trunk" pos="0 0 1">
      <freejoint/>
      <geom name="trunk" type="box" size="0.2 0.14 0.05" mass="6"/>
      <geom name="shell" type="mesh" mesh="shell" contype="0" conaffinity="0" mass="0"/>
      {legs}
    </body>
  </worldbody>
  <keyframe><key name="other" qpos="{other}"/></keyframe>
</mujoco>
"""
LEG = """
<body name="{n}_hip" pos="{x} {y} 0">
  <joint name="{n}_roll" axis="{axis} 0 0" range="-0.8 0.8"/>
  <geom name="{n}_hip" type="sphere" size="0.04" mass="0.5"/>
  <body name="{n}_thigh" pos="0 {out} 0">
    <joint name="{n}_thigh" axis="0 1 0" range="-1 3"/>
    <geom name="{n}_thigh" type="capsule" fromto="0 0 0 0 0 -0.2" size="0.02" mass="0.7"/>
    <body name="{n}_calf" pos="0 0 -0.2">
      <joint name="{n}_knee" axis="0 1 0" range="-2.7 -0.5"/>
      <geom name="{n}_shank" type="capsule" fromto="0 0 0 0 0 -0.2" size="0.015" mass="0.2"/>
      <body name="{n}_end" pos="0 0 -0.2">
        <geom name="{n}_ball" type="sphere" size="0.02" mass="0.02"/>
        <geom name="{n}_pad" type="sphere" size="0.02" pos="0.01 0 0" mass="0.02"/>
        <site name="{n}_tip"/>
      </body>
    </body>
  </body>
</body>
"""
DESCRIPTION = """
mjcf: model/robot.xml
actuators:
  ".*": {stiffness: 20, damping: 1.0, effort_limit: 24}
  ".*_knee": {stiffness: 4e1, armature: 0.01}
default_pose: {".*_thigh": 0.8, ".*_knee": -1.6}
feet: [".*_end"]
falls: [trunk, ".*_thigh"]
"""
ORDER = ("RL", "FR", "FL", "RR")


def write_robot(folder: Path) -> None:
    places = {"FL": (0.2, 0.1), "FR": (0.2, -0.1), "RL": (-0.2, 0.1), "RR": (-0.2, -0.1)}
    legs = [
        LEG.format(n=n, x=places[n][0], y=places[n][1], out=0.5 * places[n][1], axis=-1 if n[1] == "L" else 1)
        for n in ORDER
    ]
    (folder / "model" / "shapes").mkdir(parents=True)
    shell = "v 0 0 0\nv 0.1 0 0\nv 0 0.1 0\nv 0 0 0.1\nf 1 2 3\nf 1 2 4\nf 1 3 4\nf 2 3 4\n"
    (folder / "model" / "shapes" / "shell.obj").write_text(shell)
    other = " ".join(["0 0 1 1 0 0 0", *["0"] * 12])
    (folder / "model" / "robot.xml").write_text(FOREIGN.format(legs="".join(legs), other=other))


@pytest.fixture
def describe(tmp_path):
    """Write a description beside a foreign MJCF: more lines are added to it or, by key, replace its own."""
    write_robot(tmp_path)

    def write(more="", without=(), text=DESCRIPTION):
        lines = [line for line in text.splitlines() if line.split(":")[0] not in without]
        path = tmp_path / "robot.yaml"
        path.write_text("\n".join([*lines, more]))
        return path

    return write


def test_foreign_robot_is_found_by_name(describe):
    robot = Robot.from_file(describe())
    names = [f"{leg}_{joint}" for leg in ORDER for joint in ("roll", "thigh", "knee")]
    assert list(robot.joint_names) == names
    assert robot.actuation == "position"
    np.testing.assert_allclose(robot.default_joint_pos, [0, 0.8, -1.6] * 4)
    np.testing.assert_allclose(robot.stiffness, [20, 20, 40] * 4)
    np.testing.assert_allclose(robot.damping, 1.0)
    np.testing.assert_allclose(robot.effort_limit, 24)
    np.testing.assert_allclose(robot.model.dof_armature[list(robot.qvel_indices)], [0, 0, 0.01] * 4)
    assert [foot.name for foot in robot.feet] == [f"{leg}_ball" for leg in ORDER]
    assert {foot.radius for foot in robot.feet} == {0.02}
    assert [robot.feet[foot].name[:2] for foot in robot.feet_by_place] == ["FR", "FL", "RR", "RL"]
    assert len(robot.fall_sensors) == 5
    # Standing height: two links of 20 cm, each at 0.8 rad from the vertical.
    assert robot.default_qpos[2] == pytest.approx(2 * 0.2 * np.cos(0.8) + 0.02)


SOLES = {
    '<geom name="a_foot" type="box" size="0.1 0.05 0.02" euler="0 0.2 0"/>': 0.02,
    '<geom name="a_foot" type="box" size="0.1 0.05 0.02" euler="0 0.8 0"/>': 0.1 * np.sin(0.8) + 0.02 * np.cos(0.8),
    '<geom name="a_foot" type="capsule" size="0.03 0.1" euler="0 1.5 0"/>': 0.03,
    '<geom name="a_foot" type="capsule" size="0.03 0.1" euler="0 0.6 0"/>': 0.03 + 0.1 * np.cos(0.6),
    '<geom name="a_foot" type="cylinder" size="0.05 0.01"/>': 0.01,
    '<geom name="a_foot" type="ellipsoid" size="0.1 0.05 0.03"/>': 0.03,
    '<geom name="a_foot" type="mesh" mesh="block"/>': 0.04,
}


@pytest.mark.parametrize("geom", SOLES)
def test_sole_is_as_far_below_the_centre_as_the_shape_reaches(tmp_path, geom):
    path = tmp_path / "robot.xml"
    corners = " ".join(f"{x} {y} {z}" for x in (-0.1, 0.1) for y in (-0.05, 0.05) for z in (-0.04, 0.04))
    path.write_text(f"""<mujoco><compiler angle="radian"/><asset><mesh name="block" vertex="{corners}"/></asset>
    <worldbody><body pos="0 0 1"><freejoint/><geom size="0.1"/>
    <body pos="0 0 -0.5"><joint name="j"/>{geom}</body></body></worldbody>
    <actuator><position joint="j" kp="1"/></actuator></mujoco>""")
    foot = Robot.from_file(path).feet[0]
    assert foot.radius == pytest.approx(SOLES[geom], abs=1e-6)


def test_foot_of_several_shapes_touches_with_each_of_them(describe):
    robot = Robot.from_file(describe())
    data = mujoco.MjData(robot.model)
    foot = robot.feet[0]
    for pitch in (0.6, -0.6):  # on the ball, on the pad
        data.qpos[:] = robot.default_qpos
        data.qpos[2] = 0.4
        data.qpos[3:7] = [np.cos(pitch / 2), 0, np.sin(pitch / 2), 0]
        mujoco.mj_kinematics(robot.model, data)
        ends = [data.geom(f"RL_{shape}").xpos[2] for shape in ("ball", "pad")]
        data.qpos[2] -= min(ends) - 0.0195
        data.ctrl[:] = robot.default_joint_pos
        mujoco.mj_forward(robot.model, data)
        assert data.sensordata[foot.contact] == 1


def test_self_contact_is_no_fall(describe):
    robot = Robot.from_file(describe("base_height: 2", without=["base_height"]))
    data = mujoco.MjData(robot.model)
    data.qpos[:] = robot.default_qpos
    mujoco.mj_forward(robot.model, data)
    assert data.ncon > 0
    assert all(data.sensordata[s] == 0 for s in robot.fall_sensors)
    apart = Robot.from_file(describe("base_height: 2\nself_collisions: false"))
    data = mujoco.MjData(apart.model)
    data.qpos[:] = apart.default_qpos
    mujoco.mj_forward(apart.model, data)
    assert data.ncon == 0


def test_only_named_shapes_collide(describe):
    robot = Robot.from_file(describe('collisions: [trunk, ".*_thigh", ".*_ball"]'))
    model = robot.model
    touching = {model.geom(g).name for g in range(model.ngeom) if model.geom_contype[g] or model.geom_conaffinity[g]}
    expected = {"trunk", "st_rl/floor"} | {f"{leg}_{part}" for leg in ORDER for part in ("thigh", "ball")}
    assert touching == expected


def test_joints_come_in_the_order_of_the_description(describe):
    robot = Robot.from_file(describe('joints: [".*_knee", "F.*", ".*"]\naction_scale: {".*": 0.3, ".*_knee": 0.1}'))
    names = list(robot.joint_names)
    assert names[:4] == [f"{leg}_knee" for leg in ORDER]
    assert names[4:8] == ["FR_roll", "FR_thigh", "FL_roll", "FL_thigh"]
    np.testing.assert_allclose(robot.action_scale, [0.1] * 4 + [0.3] * 8)
    np.testing.assert_allclose(robot.default_joint_pos[:4], -1.6)
    data = mujoco.MjData(robot.model)
    data.qpos[:], data.ctrl[:] = robot.default_qpos, robot.default_joint_pos
    data.qpos[robot.qpos_indices[0]] += 0.1
    mujoco.mj_forward(robot.model, data)
    assert data.actuator_force[0] == pytest.approx(-4.0)


@pytest.mark.parametrize("feet", ['".*_end"', '".*_(ball|pad)"', '".*_tip"'])
def test_feet_are_geoms_bodies_or_sites(describe, feet):
    robot = Robot.from_file(describe(f"feet: [{feet}]", without=["feet"]))
    assert [foot.name[:2] for foot in robot.feet] == list(ORDER)
    assert all(foot.name[2:] in ("_ball", "_pad") for foot in robot.feet)


def test_mirror_signs_follow_joint_axes(describe):
    robot = Robot.from_file(describe())
    mirror = robot.mirror()
    assert list(mirror.joints) == joint_mirror(robot.joint_names).permutation.tolist()
    # The left roll axes are inverted: a mirrored pose has equal angles, unlike the joint names suggest.
    assert mirror.signs == (1,) * 12
    assert joint_mirror(robot.joint_names).signs.tolist() == [-1, 1, 1] * 4


def test_mirrored_robots_under_mirrored_actions_stay_mirror_images(describe):
    path = describe("self_collisions: false\naction_scale: {'.*': 0.2, '.*_knee': 0.3}")
    env = make_task("quadruped-walk", 8, seed=3, robot=str(path), **QUIET, **ALIKE)
    symmetry = symmetry_of(env)
    write_mirrored_pairs(env, symmetry.actions)
    generator = torch.Generator().manual_seed(1)
    for _ in range(8):
        actions = torch.randn(8, 12, generator=generator)
        actions[1::2] = symmetry.actions(actions[::2])
        obs, rewards, _, infos = env.step(actions)
        torch.testing.assert_close(obs[1::2], symmetry.obs(obs[::2]), atol=2e-3, rtol=1e-3)
        seen = infos["observations"]["critic"]
        torch.testing.assert_close(seen[1::2], symmetry.critic_obs(seen[::2]), atol=2e-3, rtol=1e-3)
        torch.testing.assert_close(rewards[1::2], rewards[::2], atol=1e-3, rtol=1e-3)


def test_described_robot_trots_in_walking_task(describe):
    env = make_task("quadruped-walk", 2, robot=str(describe("action_scale: {'.*': 0.2, '.*_knee': 0.4}")))
    assert env.cfg.control.action_scale == pytest.approx((0.2, 0.2, 0.4) * 4)
    np.testing.assert_allclose(env.joint_targets(torch.ones(2, 12)), [[0.2, 1.0, -1.2] * 4] * 2, rtol=1e-6)
    env.hold_commands(torch.tensor([[0.5, 0.0, 0.0]]).repeat(2, 1))
    stances = []
    for _ in range(20):
        _, _, dones, _ = env.step(torch.zeros(2, 12))
        assert not dones.any()
        stances.append(env.foot_stance[0])
    rl, fr, fl, rr = torch.stack(stances).T
    assert torch.equal(rl, fr)
    assert torch.equal(fl, rr)
    assert (rl != fl).float().mean() > 0.8


@pytest.mark.parametrize(
    ("more", "without", "message"),
    [
        ("fall: [a]", (), r"robot\.yaml: unknown key 'fall'; did you mean 'falls'"),
        ("", ["mjcf"], r"names no MJCF file: add 'mjcf: robot\.xml'"),
        ("mjcf: model/other.xml", ["mjcf"], r"mjcf: no file .*other\.xml"),
        ("mjcf: package:no_such_package/a.xml", ["mjcf"], r"no package 'no_such_package'.*pip install --no-deps"),
        ('default_pose: {".*_kne": 0.3}', ["default_pose"], r"default_pose: '\.\*_kne' matches no joint; did you mean"),
        (
            "default_pose: {FR_knee: 0.3}",
            ["default_pose"],
            r"FR_knee is 0\.3, outside its range from -2\.7 to -0\.5",
        ),
        ("default_pose: {FR_knee: bent}", ["default_pose"], r"default_pose: FR_knee: 'bent' is not a number"),
        ('feet: [".*_hoof"]', ["feet"], r"feet: '\.\*_hoof' matches no geom, body or site"),
        ("feet: [shell]", ["feet"], r"feet: what 'shell' names can touch nothing"),
        ('feet: [".*_("]', ["feet"], r"'\.\*_\(' is not a regular expression"),
        ("joints: [FR_knee]", (), r"joints lacks RL_roll, RL_thigh.*list all joints"),
        ("action_scale: {FR_knee: 0.1}", (), r"action_scale says nothing of RL_roll"),
        ("action_scale: [1, 2]", (), r"action_scale: \[1, 2\] is not a number"),
        ("self_collisions: maybe", (), r"self_collisions: 'maybe' is neither true nor false"),
        ("collisions: [tail]", (), r"collisions: 'tail' matches no geom of the robot"),
        ("base_height: .nan", (), r"base_height: nan is not finite: give a finite number"),
        ("action_scale: 0", (), r"action_scale is 0: give a positive number"),
        ("action_scale: {FR_knee: -0.1}", (), r"action_scale: FR_knee is -0\.1: give a positive number"),
    ],
)
def test_rejects_invalid_description_with_remedy(describe, more, without, message):
    with pytest.raises(ValueError, match=message):
        Robot.from_file(describe(more, without))


@pytest.mark.parametrize(
    ("actuators", "message"),
    [
        (
            '{".*_knee": {stiffness: 40, damping: 1}}',
            r"actuators says nothing of RL_roll, RL_thigh, .*or list it in passive",
        ),
        ('{".*": {stiffness: 40}}', r"actuators: RL_roll has no damping"),
        ('{".*": {stiffnes: 40}}', r"actuators: \.\*: unknown name 'stiffnes'; did you mean 'stiffness'"),
        ('{".*": {stiffness: -1, damping: 1}}', r"stiffness is -1: give a positive number"),
        ('{".*": 40}', r"actuators: \.\*: 40 is not a table"),
        ("{}", r"has no actuators: .*robot description"),
    ],
)
def test_every_joint_needs_gains(describe, actuators, message):
    text = f"mjcf: model/robot.xml\nactuators: {actuators}\n"
    with pytest.raises(ValueError, match=message):
        Robot.from_file(describe(text=text))


def test_passive_joints_have_no_actuator(describe):
    robot = Robot.from_file(describe('passive: [".*_roll"]'))
    assert robot.num_joints == 8
    assert not any(name.endswith("roll") for name in robot.joint_names)


def test_description_replaces_the_actuators_of_the_file(describe, tmp_path):
    mjcf = tmp_path / "model" / "robot.xml"
    motors = '<actuator><motor name="m" joint="FR_knee"/></actuator></mujoco>'
    key = '<key name="home" ctrl="0" qpos="0 0 1 1 0 0 0 0.1 0.2 -0.7 0.1 0 -0.7 0.1 0 -0.7 0.1 0 -0.7"/></keyframe>'
    mjcf.write_text(mjcf.read_text().replace("</mujoco>", motors).replace("</keyframe>", key))
    robot = Robot.from_file(describe('default_pose: {".*_knee": -1.6}', without=["default_pose"]))
    assert robot.num_joints == 12
    np.testing.assert_allclose(robot.default_joint_pos[:3], [0.1, 0.2, -1.6])  # the rest comes from the file


def test_described_gains_override_actuators_of_file(describe, tmp_path):
    mjcf = tmp_path / "model" / "robot.xml"
    defaults = '<default><general gear="50" ctrlrange="-1 1" forcerange="-3 3"/></default><worldbody>'
    mjcf.write_text(mjcf.read_text().replace("<worldbody>", defaults))
    robot = Robot.from_file(describe())
    np.testing.assert_allclose(robot.stiffness, [20, 20, 40] * 4)
    np.testing.assert_allclose(robot.damping, 1.0)
    np.testing.assert_allclose(robot.effort_limit, 24)
    np.testing.assert_allclose(robot.control_range, [[-0.8, 0.8], [-1, 3], [-2.7, -0.5]] * 4)


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00", b"feet: [a"])
def test_rejects_unreadable_description(tmp_path, content):
    path = tmp_path / "robot.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=r"robot\.yaml"):
        Robot.from_file(path)


def test_robot_command_reports_model(describe, capsys, tmp_path):
    assert main(["robot", str(describe("self_collisions: false")), "--seconds", "1"]) == 0
    shown = capsys.readouterr().out
    assert "12 joints with position servos" in shown
    assert "foot 0: FR_ball" in shown
    assert "trunk, RL_thigh, FR_thigh" in shown
    assert "stands for 1 s" in shown
    assert main(["robot", str(describe("base_height: 0.6", without=["default_pose"])), "--seconds", "0"]) == 0
    assert "FR_knee is at 0 by default, outside its range" in capsys.readouterr().out
    assert main(["robot", str(tmp_path / "missing.yaml")]) == 1
    assert "missing.yaml" in capsys.readouterr().err


EXAMPLES = Path(__file__).parents[2] / "examples" / "robots"
pytest_mjlab = pytest.mark.skipif(
    "ST_RL_MJLAB" not in os.environ and importlib.util.find_spec("mjlab") is None,
    reason="mjlab is not installed, and ST_RL_MJLAB names no folder that holds it",
)


@pytest_mjlab
@pytest.mark.parametrize(
    ("name", "task", "joints", "feet"), [("go1", "quadruped-walk", 12, 4), ("g1", "humanoid-walk", 29, 2)]
)
def test_mjlab_robots_run_in_built_in_tasks(monkeypatch, name, task, joints, feet):
    if "ST_RL_MJLAB" in os.environ:
        monkeypatch.syspath_prepend(os.environ["ST_RL_MJLAB"])
    robot = Robot.from_file(EXAMPLES / f"{name}.yaml")
    assert (robot.num_joints, len(robot.feet)) == (joints, feet)
    by_name = joint_mirror(robot.joint_names)
    assert list(robot.mirror().joints) == by_name.permutation.tolist()
    assert list(robot.mirror().signs) == by_name.signs.int().tolist()
    env = make_task(task, 4, robot=str(EXAMPLES / f"{name}.yaml"), **{"push.max_speed": 0.0})
    for _ in range(10):
        _, rewards, dones, _ = env.step(torch.zeros(4, joints))
    assert not dones.any()
    assert rewards.isfinite().all()
    assert env.foot_contact.any(dim=0).all()
    assert env.diverged_count == 0


BOMBS = {
    "aliases": "mjcf: robot.xml\nfeet: &a [x, x, x]\n" + "falls: &b [*a, *a]\n" + "joints: [*b, *b, *c]\n",
    "deep": "mjcf: robot.xml\nfeet: " + "[" * 5000,
    "integer": "mjcf: robot.xml\nbase_height: " + "9" * 5000,
    "date": "mjcf: robot.xml\nbase_height: 2001-99-99",
    "large": "mjcf: robot.xml\n" + "# comment\n" * 10_000,
}


@pytest.mark.parametrize("name", BOMBS)
def test_rejects_yaml_beyond_limits_with_file(tmp_path, name):
    path = tmp_path / "robot.yaml"
    path.write_text(BOMBS[name])
    with pytest.raises(ValueError, match=r"robot\.yaml"):
        RobotDescription.from_file(path)


@pytest.mark.parametrize("pattern", ["(F|FF)+!", "(.*)*!", ".*.*.*.*.*.*.*.*!", "(a?){60}b", "F" * 600])
def test_rejects_pattern_that_may_take_long(pattern):
    names = ["F" * 60, "joint_1"]
    with pytest.raises(ValueError, match=r"robot\.yaml: '.*(too long|longer than)"):
        check_patterns([pattern], names, "robot.yaml")


def test_accepts_usual_patterns():
    names = [f"{leg}_{part}_joint" for leg in ("FL", "FR", "RL", "RR") for part in ("hip", "thigh", "calf")] * 20
    usual = [
        ".*",
        ".*_hip_.*",
        "(FL|FR|RL|RR)_(hip|thigh)_joint",
        "[FR][LR]_calf_joint",
        ".*_(hip|knee)(_.*)?",
        "F.*|R.*",
    ]
    check_patterns(usual * 4, names, "robot.yaml")


@pytest.mark.parametrize(
    "body",
    [
        "<worldbody>" + "<geom size='1'/>" * 6000 + "</worldbody>",
        "<worldbody><replicate count='999'><replicate count='99'><geom size='1'/></replicate></replicate></worldbody>",
        "<asset><hfield name='h' nrow='100000' ncol='100000' size='1 1 1 1'/></asset>",
        "<asset><texture name='t' builtin='flat' width='100000' height='100000'/></asset>",
        "<size memory='900G'/>",
        "<size nuserdata='2000000000'/>",
        "<custom><numeric name='n' size='2000000000'/></custom>",
    ],
)  # fmt: skip
def test_rejects_mjcf_beyond_limits(tmp_path, body):
    path = tmp_path / "robot.xml"
    path.write_text(f"<mujoco>{body}</mujoco>")
    with pytest.raises(ValueError, match=r"robot\.xml: its model (has|needs) more than"):
        Robot.from_file(path)


def test_rejects_mjcf_that_includes_itself(tmp_path):
    path = tmp_path / "robot.xml"
    path.write_text("<mujoco><include file='robot.xml'/></mujoco>")
    with pytest.raises(ValueError, match=r"robot\.xml"):
        Robot.from_file(path)
