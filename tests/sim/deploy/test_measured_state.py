"""What a robot measures, and tasks of which the actor sees nothing else."""

import pytest

from st_rl.sim.deploy.measured_state import find_sensors
from st_rl.sim.deploy.tracking_interface import make_interface
from st_rl.sim.envs.legged_task_cfg import DEPLOYABLE_LATENCY_S
from st_rl.sim.evaluation.evaluator import make_eval_task
from st_rl.sim.tasks import TASKS, make_task

pytest.importorskip("mujoco")
WALKING = [name for name in TASKS if name != "balance"]


@pytest.mark.parametrize("name", WALKING)
def test_actor_of_deployable_task_observes_measurable_quantities_only(name):
    task = make_task(name, 2, deployable=True)
    actor = {c.name: c.term for c in task.observation_table.columns if c.start < task.num_obs}
    assert make_interface(task).unmeasured == {}
    assert {"joint_pos", "joint_vel", "projected_gravity"} <= actor.keys()
    # The critic still sees it.
    names = {c.name for c in task.observation_table.columns}
    assert names == {c.name for c in make_task(name, 2).observation_table.columns}


def test_deployable_task_learns_with_delays_unless_evaluated():
    task = make_task("quadruped-walk", 64, deployable=True)
    assert task.cfg.control.latency_s == DEPLOYABLE_LATENCY_S
    assert task.properties[:, 3].unique().tolist() == pytest.approx([0.0, 0.01, 0.02, 0.03])
    evaluated = make_eval_task("quadruped-walk", task.cfg, 2, 5.0, 0, fine=True)
    assert evaluated.cfg.control.latency_s == (0.0, 0.0)
    assert evaluated.num_obs == task.num_obs


def test_own_latency_of_deployable_task_is_kept():
    task = make_task("quadruped-walk", 2, deployable=True, **{"control.latency_s": (0.0, 0.01)})
    assert task.cfg.control.latency_s == (0.0, 0.01)


def test_error_inside_term_is_not_taken_for_a_missing_sensor():
    task = make_task("quadruped-walk", 1)
    broken = {"broken": task.OBSERVATIONS["joint_pos"].__class__(lambda t: t.joint_pos.no_such_attribute, 12)}
    with pytest.raises(AttributeError, match="no_such_attribute"):
        find_sensors(broken, task.robot, task.cfg)
