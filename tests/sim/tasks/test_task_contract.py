"""The contract between built-in tasks and the runner."""

import pytest
import torch

from st_rl.env import check_env
from st_rl.sim.envs.legged_walk import LeggedWalk
from st_rl.sim.envs.motion_tracking import MotionTracking
from st_rl.sim.tasks import TASKS, make_task
from st_rl.utils.tensors.segments import segment_width
from tests.modules.graph_safety import NoHostSync, OutsideReads

NUM_ENVS = 8
DISTURBED = {"control.latency_s": (0.0, 0.03)}


def build(name, seed=0, **overrides):
    if name != "balance":
        overrides = DISTURBED | overrides
    return make_task(name, NUM_ENVS, seed=seed, **{"physics.num_threads": 1}, **overrides)


def calm(name):
    """Settings with which no robot that does nothing ends its episode within a few steps."""
    return {"start": "first", "reset.velocity": 0.0} if name.endswith("-track") else {}


def actions_of(task, steps, seed=5):
    generator = torch.Generator().manual_seed(seed)
    return 0.5 * torch.randn(steps, NUM_ENVS, task.num_actions, generator=generator)


def run(task, actions):
    """Every tensor that the steps deliver."""
    delivered = []
    for row in actions:
        obs, rewards, dones, infos = task.step(row)
        groups = [*infos["observations"].values(), *infos["final_observations"].values()]
        delivered.append([obs, rewards, dones, infos["time_outs"], *groups, *infos["log"].values()])
    return delivered


def same(first, second):
    return all(torch.equal(a, b) for x, y in zip(first, second, strict=True) for a, b in zip(x, y, strict=True))


@pytest.fixture(params=sorted(TASKS))
def name(request):
    return request.param


def test_contract_is_kept(name):
    assert check_env(build(name), num_steps=40) == []


def test_same_seed_same_run_and_another_seed_another_run(name):
    actions = actions_of(build(name), 20)
    first = run(build(name, seed=3), actions)
    assert same(first, run(build(name, seed=3), actions))
    assert not torch.equal(first[0][0], run(build(name, seed=4), actions)[0][0])


def test_global_random_numbers_are_neither_used_nor_changed(name):
    torch.manual_seed(0)
    state = torch.get_rng_state()
    task = build(name)
    run(task, actions_of(task, 3))
    assert torch.equal(torch.get_rng_state(), state)


def test_resumed_run_continues_exactly(name, tmp_path):
    task = build(name)
    task.episode_length_buf = torch.arange(NUM_ENVS) * 7 + task.max_episode_length - 20
    actions = actions_of(task, 30)
    run(task, actions[:10])
    torch.save(task.state_dict(), tmp_path / "state.pt")
    obs, extras = task.get_observations()
    expected = run(task, actions[10:])

    resumed = build(name, seed=99)
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    again, extras_again = resumed.get_observations()
    assert torch.equal(obs, again)
    assert all(torch.equal(v, extras_again["observations"][k]) for k, v in extras["observations"].items())
    assert same(expected, run(resumed, actions[10:]))


def test_rejects_state_of_other_task(name):
    state = make_task(name, NUM_ENVS + 1).state_dict()
    with pytest.raises(ValueError, match=r"num_envs: .*actions \(9, \d+\) here \(8, \d+\)"):
        build(name).load_state_dict(state)


def test_step_has_no_host_sync_and_writes_in_place(name):
    task = build(name)
    addresses = {key: value.data_ptr() for key, value in task.buffers.items()}
    actions = actions_of(task, 3)
    with NoHostSync():
        run(task, actions)
    assert {key: value.data_ptr() for key, value in task.buffers.items()} == addresses


def hold(task):
    """Choose what an evaluation does: commands, or clips."""
    if isinstance(task, LeggedWalk):
        task.hold_commands(torch.rand(NUM_ENVS, 3))
    if isinstance(task, MotionTracking):
        task.hold_clips(torch.randint(len(task.reference.clips), (NUM_ENVS,)))


def test_all_steps_read_the_same_memory(name):
    task, reads = build(name), []
    actions = torch.zeros(NUM_ENVS, task.num_actions)
    for _ in range(2):
        task.reset()
        hold(task)
        task.step(actions)
        with OutsideReads() as step:
            task.step(actions)
        reads.append(step)
    assert reads[0].addresses == reads[1].addresses


def test_roll_outs_in_inference_mode_and_outside_may_alternate(name):
    actions = actions_of(build(name), 6)
    plain, mixed = build(name), build(name)
    expected = run(plain, actions)
    with torch.inference_mode():
        got = run(mixed, actions[:3])
    got += run(mixed, actions[3:])
    assert same(expected, got)


def test_actions_with_gradients_leave_no_graph_behind(name):
    task = build(name)
    actions = torch.zeros(NUM_ENVS, task.num_actions, requires_grad=True)
    obs, rewards, _, _ = task.step(actions)
    assert not obs.requires_grad
    assert not rewards.requires_grad
    assert not task.actions.requires_grad


def test_segments_add_up(name):
    task = build(name)
    assert sum(map(segment_width, task.obs_segments.values())) == task.num_obs == task.get_observations()[0].shape[1]
    critic = task.get_privileged_observations()
    assert task.privileged_obs_segments is task.critic_obs_segments
    if critic is None:
        assert task.critic_obs_segments == task.obs_segments
    else:
        widths = map(segment_width, task.critic_obs_segments.values())
        assert sum(widths) == task.num_privileged_obs == critic.shape[1]
        assert list(task.critic_obs_segments)[: len(task.obs_segments)] == list(task.obs_segments)


def test_episode_lengths_are_copied_and_count_to_the_time_out(name):
    task = build(name, **calm(name))
    given = torch.full((NUM_ENVS,), task.max_episode_length - 2)
    given[0] = 0
    task.episode_length_buf = given
    given.fill_(7)
    zeros = torch.zeros(NUM_ENVS, task.num_actions)
    _, _, dones, _ = task.step(zeros)
    assert not dones.any()
    _, _, dones, infos = task.step(zeros)
    assert dones.tolist() == [False] + [True] * (NUM_ENVS - 1)
    assert torch.equal(infos["time_outs"], dones)
    assert task.episode_length_buf.tolist() == [2] + [0] * (NUM_ENVS - 1)
    assert task.reset_buf.tolist() == dones.tolist()


def test_fall_in_the_last_step_is_a_termination_and_not_a_time_out(monkeypatch):
    env = make_task("balance", num_envs=4)
    has_fallen = torch.tensor([True, False, True, False])
    monkeypatch.setitem(type(env).TERMINATIONS, "pole_down", lambda task: has_fallen)
    env.episode_length_buf = torch.tensor([env.max_episode_length - 1] * 2 + [0] * 2)
    _, _, dones, infos = env.step(torch.zeros(4, env.num_actions))
    assert dones.tolist() == [True, True, True, False]
    assert infos["time_outs"].tolist() == [False, True, False, False]


def test_final_observation_precedes_reset(name):
    # The same robots with longer episodes give the expected final observations.
    actions = actions_of(build(name), 5)
    quiet = {} if name == "balance" else {"noise.level": 0.0, "push.max_speed": 0.0} | calm(name)
    short, long = (build(name, **quiet, episode_length_s=seconds) for seconds in (0.1, 10.0))
    for row in actions:
        obs, _, dones, infos = short.step(row)
        long_obs, _, long_dones, long_infos = long.step(row)
    assert dones.all()
    assert not long_dones.any()
    assert torch.equal(infos["final_observations"]["policy"], long_obs)
    for group, value in infos["final_observations"].items():
        assert torch.equal(value, long_infos["observations"][group])
    assert not torch.equal(obs, long_obs)


@pytest.mark.parametrize("cause", ["physics", "action"])
def test_diverged_simulation_is_reset_and_counted(name, cause):
    task = build(name, **calm(name))
    actions = torch.zeros(NUM_ENVS, task.num_actions)
    if cause == "physics":
        task.backend.batch.bind("qvel")[3, 0] = float("nan")
    else:
        actions[3, 0] = float("nan")
    obs, rewards, dones, infos = task.step(actions)
    assert dones.tolist() == [i == 3 for i in range(NUM_ENVS)]
    assert not infos["time_outs"].any()
    assert rewards[3] == 0
    assert infos["log"]["Simulation/diverged"] == 1
    assert task.diverged_count == 1
    groups = [obs, rewards, *infos["observations"].values(), *infos["final_observations"].values()]
    assert all(value.isfinite().all() for value in [*groups, *infos["log"].values()])
    _, _, dones, infos = task.step(torch.zeros_like(actions))
    assert not dones.any()
    assert infos["log"]["Simulation/diverged"] == 0
    assert task.diverged_count == 1


def test_log_adds_up_to_the_reward(name):
    task = build(name, **({"only_positive_rewards": False} if name != "balance" else {}))
    for row in actions_of(task, 3):
        _, rewards, _, infos = task.step(row)
        parts = [value for key, value in infos["log"].items() if key.startswith("Reward/")]
        torch.testing.assert_close(sum(parts) * task.step_dt, rewards.mean())
        assert all(value.dim() == 0 for value in infos["log"].values())


def test_log_of_earlier_step_is_not_modified(name):
    task = build(name)
    actions = actions_of(task, 2)
    log = task.step(actions[0])[3]["log"]
    before = {key: value.clone() for key, value in log.items()}
    task.step(actions[1])
    assert all(torch.equal(log[key], value) for key, value in before.items())
