"""Terms that a user adds from a file of their own, with decorators or table entries."""

import csv
import json
import runpy
import sys
from pathlib import Path

import pytest
import torch

from st_rl.modules.symmetry import joint_mirror, observation_mirror
from st_rl.sim.envs import ObsTerm
from st_rl.sim.tasks import TASKS, make_task, obs_term, reward_term, termination
from st_rl.utils.tensors.segments import get_obs_slice
from tests.test_docs import python_blocks

REPOSITORY = Path(__file__).resolve().parents[3]
QUIET = {"physics.num_threads": 1}


def copy_tables(monkeypatch):
    """Give the class of quadruped-walk copies of its tables, and return it."""
    task = TASKS["quadruped-walk"].task
    for table in ("OBSERVATIONS", "REWARDS", "TERMINATIONS"):
        monkeypatch.setattr(task, table, dict(getattr(task, table)))
    return task


@pytest.fixture
def walk(monkeypatch):
    """The class of quadruped-walk with tables that a test may change."""
    return copy_tables(monkeypatch)


def columns(task, obs, name, segments=None):
    return obs[:, get_obs_slice(segments or task.obs_segments, name)[0]]


def test_observation_with_scale_noise_and_mirror(walk):
    @obs_term("quadruped-walk", width=4, scale=10.0, noise=0.02, mirror="feet")
    def sole_height(task):
        return task.foot_height

    task = make_task("quadruped-walk", 64, **QUIET)
    assert list(task.obs_segments)[-1] == "sole_height"
    obs, extras = task.get_observations()
    critic = extras["observations"]["critic"]
    clean = columns(task, critic, "sole_height", task.critic_obs_segments)
    torch.testing.assert_close(clean, task.foot_height * 10.0)
    noise = (columns(task, obs, "sole_height") - clean).abs()
    assert 0.15 < noise.max() <= 0.2 + 1e-6
    # The terms between the noisy ones have none.
    between = [columns(task, obs - critic[:, : task.num_obs], name) for name in ("commands", "actions", "clock")]
    assert not torch.cat(between, dim=1).any()
    kinds = task.mirror
    joints = joint_mirror(kinds["joint_names"], kinds["joint_signs"])
    mirrored = observation_mirror(task.obs_segments, kinds["obs"], joints)(obs)
    feet = list(task.robot.mirror().feet)
    assert torch.equal(columns(task, mirrored, "sole_height"), columns(task, obs, "sole_height")[:, feet])
    assert task.cfg.normalization.obs_scales["sole_height"] == 10.0
    last = task.observation_table.describe()[-1]
    place = [task.num_obs - 4, 4, 10.0]
    assert [last[key] for key in ("name", "segment", "start", "shape", "scale")] == ["sole_height"] * 2 + place
    assert "sole_height" not in make_task("quadruped-amp", 2, **QUIET).obs_segments


def test_privileged_observation_is_for_the_critic_only(walk):
    walk.OBSERVATIONS["torques"] = ObsTerm(lambda task: task.torques, 12, scale=0.1, noise=5.0, privileged=True)
    task = make_task("quadruped-walk", 2, **QUIET)
    assert "torques" not in task.obs_segments
    assert list(task.critic_obs_segments)[-1] == "torques"
    _, _, _, infos = task.step(torch.zeros(2, 12))
    torch.testing.assert_close(infos["observations"]["critic"][:, -12:], task.torques * 0.1)
    with pytest.raises(ValueError, match="observation term 'torques' has no mirror: give its ObsTerm one"):
        _ = task.mirror


def test_scale_and_noise_can_come_from_the_configuration(walk):
    walk.OBSERVATIONS["again"] = ObsTerm(lambda task: task.base_lin_vel, 3, scale="lin_vel", noise="joint_vel")
    walk.OBSERVATIONS["height"] = ObsTerm(lambda task: task.base_height, 1, scale=5.0)
    scales = {"lin_vel": 3.0, "ang_vel": 1.0, "commands": 1.0, "joint_pos": 1.0, "joint_vel": 1.0, "height": 7.0}
    task = make_task("quadruped-walk", 64, **QUIET, **{"normalization.obs_scales": scales, "noise.joint_vel": 0.2})
    assert [c.scale for c in task.observation_table.columns if c.name in ("again", "height")] == [3.0, 7.0]
    noise = task.get_observations()[0] - task.privileged_obs_buf[:, : task.num_obs]
    assert 0.55 < columns(task, noise, "again").abs().max() <= 0.6 + 1e-5


def test_terms_can_share_a_segment(walk):
    for name in ("first", "second"):
        walk.OBSERVATIONS[name] = ObsTerm(lambda task: task.base_height, 1, segment="heights")
    task = make_task("quadruped-walk", 2, **QUIET)
    assert task.obs_segments["heights"] == 2
    walk.OBSERVATIONS["third"] = ObsTerm(lambda task: task.foot_height, 4)
    walk.OBSERVATIONS["fourth"] = ObsTerm(lambda task: task.base_height, 1, segment="heights")
    with pytest.raises(ValueError, match="terms of the segment 'heights' must follow each other"):
        make_task("quadruped-walk", 2, **QUIET)


def test_reward_and_termination(walk):
    @reward_term("quadruped-walk", weight=-3.0)
    def speed(task):
        return task.base_lin_vel.square().sum(dim=1)

    @termination("quadruped-walk")
    def always(task):
        return torch.ones(task.num_envs, dtype=torch.bool)

    assert TASKS["quadruped-walk"].cfg().rewards["speed"] == -3.0
    task = make_task("quadruped-walk", 2, **QUIET, **{"rewards.speed": -1.0})
    _, _, dones, infos = task.step(torch.zeros(2, 12))
    assert dones.all()
    assert infos["log"]["Termination/always"] == 1
    assert infos["log"]["Reward/speed"] < 0


def test_rejects_wrong_widths_taken_names_and_unknown_tasks(walk):
    with pytest.raises(ValueError, match="unknown task 'quadruped-wlak'; did you mean 'quadruped-walk'"):
        reward_term("quadruped-wlak", 1.0)(lambda task: task.phase)

    with pytest.raises(ValueError, match="'quadruped-walk' already has a term 'clock': give your function another"):

        @obs_term("quadruped-walk", width=2)
        def clock(task):
            return task.clock()

    walk.OBSERVATIONS["feet"] = ObsTerm(lambda task: task.foot_height, 3)
    with pytest.raises(
        ValueError, match=r"term 'feet' has width 3, so its function must return \(2, 3\); got \(2, 4\)"
    ):
        make_task("quadruped-walk", 2, **QUIET)


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run a script like `python SCRIPT ...` in an empty folder, without the start of a process; undo its terms."""
    monkeypatch.chdir(tmp_path)

    def run_script(script, *arguments):
        with monkeypatch.context() as undo:
            copy_tables(undo)
            undo.setitem(TASKS, "my-walk", TASKS["quadruped-walk"])
            undo.setattr(sys, "argv", [str(script), *arguments])
            with pytest.raises(SystemExit) as end:
                runpy.run_path(str(script), run_name="__main__")
        assert end.value.code == 0

    return run_script


def test_example_trains_and_exports_its_terms(run, tmp_path):
    example = REPOSITORY / "examples/own_terms.py"
    small = ("--iterations", "2", "--num-envs", "16", "--env.rewards.lateral-lean", "-2")
    run(example, "train", "quadruped-walk", *small, "--log-dir", "run")
    with (tmp_path / "run" / "progress.csv").open() as file:
        assert any("lateral_lean" in column for column in next(csv.reader(file)))
    run(example, "export", "run")
    metadata = json.loads((tmp_path / "run" / "policy.json").read_text())["metadata"]
    assert metadata["obs_terms"][-1]["scale"] == 10.0


def test_task_of_the_guide_is_built(run, tmp_path):
    block = next(block for block in python_blocks("docs/own-terms.md") if "class MyWalk" in block)
    (tmp_path / "my_walk.py").write_text(block)
    run(tmp_path / "my_walk.py", "train", "my-walk", "--iterations", "1", "--num-envs", "8", "--log-dir", "run")
    assert (tmp_path / "run" / "model_1.pt").exists()
