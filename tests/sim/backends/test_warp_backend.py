"""`WarpBackend` equals `MujocoBackend`, and a rollout can be captured as one CUDA graph."""

import pytest
import torch

from st_rl.runners import OnPolicyRunner
from st_rl.sim.backends import MujocoBackend, PhysicsCfg, fine_physics
from st_rl.sim.tasks import find_task, make_task

pytestmark = pytest.mark.gpu

NUM_ENVS = 16
# With few solver iterations the two engines stop at different approximations of the same solution.
FINE = fine_physics(PhysicsCfg())


@pytest.fixture
def pair(request):
    """The same task on both devices, without randomness, in the same state after some steps on the CPU."""
    name = getattr(request, "param", "quadruped-walk")
    cfg = find_task(name).cfg().for_evaluation()
    tasks = [make_task(name, NUM_ENVS, device, cfg=cfg) for device in ("cpu", "cuda")]
    generator = torch.Generator().manual_seed(0)
    commands = torch.rand(NUM_ENVS, 3, generator=generator) - 0.5
    for task in tasks:
        task.hold_commands(commands.to(task.device))
    return *tasks, generator


def copy_state(source, target) -> None:
    """Copy the robot states of one task to another."""
    everyone = torch.ones(NUM_ENVS, dtype=torch.bool, device=target.device)
    target.backend.reset(everyone, source.backend.qpos.to(target.device), source.backend.qvel.to(target.device))
    for name in ("actions", "last_actions", "phase", "episode_length", "commands"):
        target.buffers[name].copy_(source.buffers[name])
    target._read_state()


@pytest.mark.parametrize("pair", ["quadruped-walk", "humanoid-walk"], indirect=True)
def test_one_step_agrees_with_the_cpu(pair):
    on_cpu, on_gpu, generator = pair
    for _ in range(12):
        copy_state(on_cpu, on_gpu)
        actions = 0.5 * torch.randn(NUM_ENVS, on_cpu.num_actions, generator=generator)
        obs, rewards, dones, infos = on_cpu.step(actions)
        gpu_obs, gpu_rewards, gpu_dones, gpu_infos = on_gpu.step(actions.cuda())
        # Robots that were reset start in random states.
        going_on = ~(dones | gpu_dones.cpu())
        assert torch.equal(dones, gpu_dones.cpu())
        torch.testing.assert_close(gpu_obs.cpu()[going_on], obs[going_on], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(gpu_rewards.cpu(), rewards, rtol=1e-4, atol=1e-4)
        final, gpu_final = (i["final_observations"]["critic"].cpu() for i in (infos, gpu_infos))
        torch.testing.assert_close(gpu_final, final, rtol=1e-4, atol=1e-4)


def test_reset_keeps_other_robots(pair):
    _, task, _ = pair
    task.step(torch.zeros(NUM_ENVS, 12, device="cuda"))
    before = {name: value.clone() for name, value in task.backend.state_dict()["arrays"].items()}
    mask = torch.zeros(NUM_ENVS, dtype=torch.bool, device="cuda")
    mask[3] = True
    task.backend.reset(mask, torch.zeros_like(task.backend.qpos), torch.zeros_like(task.backend.qvel))
    for name, value in task.backend.state_dict()["arrays"].items():
        assert torch.equal(value[~mask], before[name][~mask])
        assert not value[mask].any()


def test_masses_and_friction_differ_between_robots(pair):
    from st_rl.sim.backends.warp_backend import WarpBackend

    model = pair[0].robot.model
    backends = [MujocoBackend(model, NUM_ENVS, FINE), WarpBackend(model, NUM_ENVS, FINE, "cuda")]
    factor = torch.linspace(0.5, 1.5, NUM_ENVS)
    for backend in backends:
        for field in ("body_mass", "body_inertia"):
            values = backend.expand(field)
            shape = [NUM_ENVS] + [1] * (values.dim() - 2)
            values[:, 1] *= factor.view(shape).to(values)
        backend.refresh_constants()
        friction = backend.expand("geom_friction")
        friction[:, :, 0] = factor[:, None].to(friction)
    home = torch.tensor(model.key_qpos[0], dtype=torch.float32).repeat(NUM_ENVS, 1)
    control = torch.tensor(model.key_ctrl[0], dtype=torch.float32).repeat(NUM_ENVS, 1)
    everyone = torch.ones(NUM_ENVS, dtype=torch.bool)
    for backend in backends:
        device = backend.device
        velocity = torch.zeros(NUM_ENVS, model.nv, device=device)
        velocity[:, 0] = 1.0
        backend.reset(everyone.to(device), home.to(device), velocity)
        backend.set_control(control.to(device))
        backend.step(20)
    assert backends[0].qpos[:, 0].std() > 1e-4
    torch.testing.assert_close(backends[1].qpos.cpu(), backends[0].qpos, rtol=1e-3, atol=1e-3)


def test_captured_rollout_trains(tmp_path):
    """A few iterations with the whole rollout as one graph: finite values, counted steps, higher rewards."""
    task = make_task("quadruped-walk", 512, "cuda")
    config = find_task("quadruped-walk").training_config()
    runner = OnPolicyRunner(task, {**config, "engine": "graph"}, log_dir=tmp_path, device="cuda")
    torch.cuda.set_sync_debug_mode("default")
    runner.learn(30, init_at_random_ep_len=True)
    assert runner.tot_timesteps == 30 * 24 * 512
    assert all(torch.isfinite(p).all() for p in runner.alg.actor_critic.parameters())
    assert (tmp_path / "model_30.pt").exists()
    lengths = runner._episodes.lenbuffer
    assert sum(lengths) / len(lengths) > 30


def test_detects_divergence(pair):
    _, task, _ = pair
    task.backend.qvel[5, 3] = float("nan")
    task.step(torch.zeros(NUM_ENVS, 12, device="cuda"))
    assert int(task.diverged_count) == 1
    assert torch.isfinite(task.obs_buf).all()


def test_compiled_step_equals_eager_step():
    """The real compiler on the real backend, with noise, pushes and resets: every buffer of the task agrees."""
    plain, compiled = (make_task("quadruped-walk", NUM_ENVS, "cuda", episode_length_s=0.2) for _ in range(2))
    compiled.compile_with(lambda function: torch.compile(function, dynamic=False, fullgraph=True))
    generator = torch.Generator().manual_seed(0)
    num_done = 0
    with torch.inference_mode():
        for step in range(12):
            compiled.load_state_dict(plain.state_dict())
            actions = torch.randn(NUM_ENVS, 12, generator=generator).cuda()
            outcomes = []
            for task in (plain, compiled):
                torch.manual_seed(step)
                outcomes.append(task.step(actions))
            for mine, other in zip(outcomes[0][:3], outcomes[1][:3]):
                torch.testing.assert_close(other, mine, rtol=1e-3, atol=1e-3)
            for name, value in plain.buffers.items():
                torch.testing.assert_close(compiled.buffers[name], value, rtol=1e-3, atol=1e-3, msg=name)
            num_done += int(outcomes[0][2].sum())
    assert 0 < num_done < 12 * NUM_ENVS
