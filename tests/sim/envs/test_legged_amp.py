"""The task `quadruped-amp`: motion features of robots and references, and initial states."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from st_rl.datasets.formats import write_motion
from st_rl.datasets.library import load_clips
from st_rl.datasets.processing import resample
from st_rl.runners import build_runner
from st_rl.sim.envs import task
from st_rl.sim.motions.ground import lowest_heights
from st_rl.sim.robots import robot_path
from st_rl.sim.tasks import find_task, make_task
from tests.modules.graph_safety import NoHostSync
from tests.sim.envs.test_compiled_step import DriftingBackend, flat

QUIET = {"noise.level": 0.0, "style.noise": {}, "style.start_fraction": 1.0, "physics.num_threads": 1}
FIELDS = ("joint_pos", "joint_vel", "base_height", "projected_gravity", "base_lin_vel", "base_ang_vel")


def build(num_envs=8, seed=0, **overrides):
    return make_task("quadruped-amp", num_envs, seed=seed, **(QUIET | overrides))


def test_styles_are_delivered_as_the_contract_says():
    amp = build()
    width = 12 + 12 + 1
    for infos in (amp.get_observations()[1], amp.step(torch.zeros(8, 12))[3]):
        assert infos["observations"]["ref_obs"].shape == (8, 2, width)
        assert infos["ref_motion"].shape == (8, 2 * width)


@pytest.mark.parametrize("fields", [("joint_pos", "joint_vel", "base_height"), ("joint_pos",)])
def test_discriminator_takes_the_styles_of_the_task(fields, tmp_path):
    amp = build(**{"style.fields": fields})
    runner = build_runner("AmpPolicyRunner", amp, find_task("quadruped-amp").training_config(), log_dir=None)
    assert runner.alg.actor_critic.discriminator.input_dim == 2 * amp.reference.width
    assert runner.policy_cfg["amp_discriminator"]["input_dim"] == 2 * amp.reference.width


def test_csv_of_a_users_robot(tmp_path):
    # A robot with other names of bodies and joints, and a table without a header, on the ground and in it.
    text = robot_path("humanoid").read_text()
    for old, new in (("left_", "L-"), ("right_", "R-"), ("_joint", "_dof"), ("pelvis", "root_link")):
        text = text.replace(old, new)
    (tmp_path / "mine.xml").write_text(text)
    (clip,) = load_clips("walk_0.4")
    sunk = replace(clip, root_pos=clip.root_pos - np.array([0.0, 0.0, 0.03]))
    write_motion(tmp_path / "walk.csv", resample(sunk, 30.0))
    settings = {"robot": str(tmp_path / "mine.xml"), "motions": (str(tmp_path / "walk.csv"),)}
    amp = make_task("humanoid-amp", 16, **(QUIET | settings | {"reset.joint_pos": 0.0}))
    assert [foot.name for foot in amp.robot.feet] == ["L-foot", "R-foot"]
    assert amp.robot.joint_names[0] == "L-hip_pitch_dof"
    lowest = lowest_heights(amp.robot, amp.backend.qpos.double().numpy())
    np.testing.assert_allclose(lowest, 0.0, atol=2e-3)
    assert amp.reference.clips[0].joint_pos.std(axis=0).max() > 0.1
    assert not amp.step(torch.zeros(16, 21))[2].any()


def test_robots_start_from_states_of_the_reference():
    amp = build(32, motions=("pace",), **{"style.fields": FIELDS})
    # A robot that starts at its reference has the reference's features, without a transition from another state.
    own, reference = amp.style_transition, amp.reference_transition.view(32, 2, -1)
    torch.testing.assert_close(own[:, 0], own[:, 1])
    # Rotating an interpolated vector is not exactly interpolating rotated vectors.
    torch.testing.assert_close(own[:, 1], reference[:, 0], atol=3e-3, rtol=1e-4)
    torch.testing.assert_close(own[:, 1, :25], reference[:, 0, :25], atol=2e-5, rtol=1e-4)
    assert torch.unique(amp.clip).numel() == 4
    # The gait clock has the frequency of the clip.
    torch.testing.assert_close(amp.phase, (amp.clip_time / 0.32).frac())


def test_start_fraction_of_reference_states():
    amp = build(400, **{"style.start_fraction": 0.25})
    reference = amp.reference_transition.view(400, 2, -1)[:, 0, :12]
    same = ((amp.joint_pos - reference).abs() < 1e-4).all(dim=1)
    assert same.float().mean() == pytest.approx(0.25, abs=0.07)
    none = build(50, **{"style.start_fraction": 0.0})
    assert (none.joint_offset.abs() <= 0.15 + 1e-6).all()


@pytest.mark.parametrize("name", ["quadruped-amp", "humanoid-amp"])
def test_default_initial_states_are_independent_of_earlier_references(name):
    # Without randomization the initial state is the default pose.
    still = {"reset.joint_pos": 0.0, "reset.velocity": 0.0, "reset.yaw": 0.0}
    amp = make_task(name, 64, **(QUIET | still | {"style.start_fraction": 0.5}))
    default = torch.tensor(amp.robot.default_qpos, dtype=torch.float32)
    num_default = 0
    for _ in range(4):
        amp.reset()
        rows = ~amp._starts_from_reference
        num_default += int(rows.sum())
        assert torch.equal(amp.backend.qpos[rows], default.expand(int(rows.sum()), -1))
        assert not amp.backend.qvel[rows].any()
        assert amp.joint_vel[~rows].any(dim=1).all()
    assert num_default > 64


@pytest.mark.parametrize("name", ["quadruped-amp", "humanoid-amp"])
def test_starts_after_a_resume_are_the_same(name):
    first, second = (
        make_task(name, 64, seed=seed, episode_length_s=0.1, **(QUIET | {"style.start_fraction": 0.5}))
        for seed in (0, 1)
    )
    actions = torch.zeros(64, first.num_actions)
    for _ in range(7):
        first.step(actions)
    second.load_state_dict(first.state_dict())
    for _ in range(7):
        obs, *_ = first.step(actions)
        again, *_ = second.step(actions)
        assert torch.equal(obs, again)


def test_references_advance_with_robots():
    amp = build(16)
    clips = load_clips(["trot"])
    seen = []
    for _ in range(60):
        clip, time = amp.clip.clone(), amp.clip_time.double().clone()
        _, _, _, infos = amp.step(torch.zeros(16, 12))
        pair = infos["ref_motion"].view(16, 2, 25).double()
        for robot in range(16):
            motion = clips[int(clip[robot])]
            grid = np.arange(motion.num_frames) / motion.fps
            for moment, frame in ((time[robot], pair[robot, 0]), (time[robot] + 0.02, pair[robot, 1])):
                expected = [np.interp(moment, grid, column) for column in motion.joint_pos.T]
                np.testing.assert_allclose(frame[:12], expected, atol=1e-4)
        seen.append((amp.clip_time - time).mean())
        assert (amp.clip_time <= 0.96 - 0.02 + 1e-5).all()
    assert min(seen) < 0 < max(seen)


def test_transitions_chain_and_never_cross_a_reset():
    amp = build(8, episode_length_s=0.1)
    before = amp.style_transition[:, 1].clone()
    generator = torch.Generator().manual_seed(0)
    ended = 0
    for _ in range(12):
        actions = 0.3 * torch.randn(8, 12, generator=generator)
        _, _, dones, infos = amp.step(actions)
        own = infos["observations"]["ref_obs"]
        torch.testing.assert_close(own[:, 0], before)
        # Joint positions are continuous within 20 ms, except across a reset.
        assert ((own[:, 1, :12] - own[:, 0, :12]).abs() < 0.6).all()
        start = torch.cat([amp.joint_pos, amp.joint_vel, amp.base_height], dim=1)
        before = torch.where(dones[:, None], start, own[:, 1])
        ended += int(dones.sum())
    assert ended >= 16


def test_features_have_configured_fields():
    amp = build(4, **{"style.fields": ("base_ang_vel", "projected_gravity")})
    amp.step(torch.zeros(4, 12))
    own = amp.style_transition[:, 1]
    torch.testing.assert_close(own, torch.cat([amp.base_ang_vel, amp.projected_gravity], dim=1))
    assert amp.reference.width == 6
    with pytest.raises(ValueError, match="unknown style field 'joint_position'; did you mean 'joint_pos'"):
        build(**{"style.fields": ("joint_position",)})
    with pytest.raises(ValueError, match="a style needs fields"):
        build(**{"style.fields": ()})
    with pytest.raises(ValueError, match=r"unknown style field in style\.noise 'base_velocity'"):
        build(**{"style.noise": {"base_velocity": 1.0}})
    with pytest.raises(ValueError, match="start_fraction is a fraction"):
        build(**{"style.start_fraction": 1.5})


def test_other_fields_need_no_other_noise():
    amp = make_task("quadruped-amp", 4, **{"style.fields": ("joint_pos",), "physics.num_threads": 1})
    assert amp.cfg.style.noise["joint_vel"] > 0
    assert amp.random["style_noise"].shape == (4, 4 * 12)


def test_noise_is_added_to_robots_and_references():
    plain, noisy = build(200), build(200, **{"style.noise": {"joint_pos": 0.5}})
    noisy.load_state_dict(plain.state_dict() | {"buffers": plain.state_dict()["buffers"]})
    for amp in (plain, noisy):
        amp._update_errors()
    for name in ("style_transition", "reference_transition"):
        difference = (getattr(noisy, name) - getattr(plain, name)).view(200, 2, 25)
        assert difference[..., :12].abs().max() <= 0.5
        assert difference[..., :12].std() == pytest.approx(0.5 / 3**0.5, rel=0.05)
        assert (difference[..., 12:] == 0).all()


def test_rewards_have_no_gait_shaping():
    amp = build()
    assert set(amp._reward_functions) == {"track_lin_vel_xy", "track_ang_vel_z", "alive", "action_rate"}


def test_evaluation_starts_at_default_pose_without_noise():
    cfg = find_task("quadruped-amp").cfg().for_evaluation()
    assert cfg.style.start_fraction == 0.0
    assert cfg.style.noise == {}
    assert cfg.noise.level == 0.0


def test_rejects_short_clip_and_unknown_joints(tmp_path):
    from dataclasses import replace

    from st_rl.datasets.formats import write_motion
    from st_rl.datasets.processing import cut

    (clip,) = load_clips(["trot_0.5"])
    write_motion(tmp_path / "short.npz", cut(clip, 0.0, 0.02))
    with pytest.raises(ValueError, match=r"short\.npz: the clip lasts only 0.02 s"):
        build(motions=(str(tmp_path / "short.npz"),))
    write_motion(tmp_path / "other.npz", replace(clip, joint_names=tuple(f"j{i}" for i in range(12))))
    with pytest.raises(ValueError, match=r"other\.npz: joint_names lack FR_hip_joint"):
        build(motions=(str(tmp_path / "other.npz"),))


def test_amp_step_has_no_host_sync():
    amp = build(**{"style.noise": {"joint_vel": 1.0}})
    with NoHostSync():
        amp.step(torch.zeros(8, 12))


def test_traced_step_returns_same_styles(monkeypatch):
    monkeypatch.setattr(task, "make_backend", DriftingBackend)
    entry = find_task("quadruped-amp")
    cfg = entry.cfg(episode_length_s=0.2)
    cfg.randomization = type(cfg.randomization)(None, None, None)
    eager, traced = (entry.task(cfg, 6, "cpu", seed=3) for _ in range(2))

    def backend(graph, example_inputs):
        return graph

    traced.compile_with(lambda function: torch.compile(function, dynamic=False, backend=backend, fullgraph=True))
    with torch.inference_mode():
        for step in range(15):
            actions = torch.sin(torch.arange(72.0).view(6, 12) + step)
            outcomes = [each.step(actions) for each in (eager, traced)]
            expected, got = (flat(outcome) | {"ref_motion": outcome[3]["ref_motion"]} for outcome in outcomes)
            for name, value in expected.items():
                torch.testing.assert_close(
                    got[name], value, rtol=1e-5, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}"
                )
            for name, value in eager.buffers.items():
                torch.testing.assert_close(traced.buffers[name], value, rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
def test_on_a_gpu_a_whole_rollout_is_captured_and_trains(tmp_path):
    amp = make_task("quadruped-amp", 256, "cuda")
    config = find_task("quadruped-amp").training_config() | {"engine": "graph"}
    runner = build_runner(config["runner_class_name"], amp, config, log_dir=tmp_path, device="cuda")
    runner.learn(10, init_at_random_ep_len=True)
    assert runner.tot_timesteps == 10 * 24 * 256
    assert all(torch.isfinite(p).all() for p in runner.alg.actor_critic.parameters())
    assert amp.reference_transition.isfinite().all()
    # References differ between robots and advance.
    assert torch.unique(amp.clip_time).numel() > 128


@pytest.mark.gpu
def test_compiled_gpu_step_equals_eager_step():
    plain, compiled = (make_task("quadruped-amp", 64, "cuda", episode_length_s=0.2) for _ in range(2))
    compiled.compile_with(lambda function: torch.compile(function, dynamic=False, fullgraph=True))
    with torch.inference_mode():
        for step in range(12):
            compiled.load_state_dict(plain.state_dict())
            for each in (plain, compiled):
                torch.manual_seed(step)
                each.step(torch.sin(torch.arange(768.0, device="cuda").view(64, 12) + step))
            for name, value in plain.buffers.items():
                torch.testing.assert_close(compiled.buffers[name], value, rtol=1e-3, atol=1e-3, msg=name)
