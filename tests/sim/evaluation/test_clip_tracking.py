"""Evaluation by clip, compared with a loop over the robots."""

import numpy as np
import pytest
import torch

from st_rl.sim.envs.cfg import with_overrides
from st_rl.sim.evaluation.clip_tracking import ClipRollout, clip_score, evaluate_clips
from st_rl.sim.evaluation.evaluator import CheckpointEvaluator, EvaluationCfg, make_eval_task
from st_rl.sim.tasks import find_task
from st_rl.sim.terms import observations
from tests.modules.graph_safety import watch_reads

CLIPS = ("trot_0.3", "bound_0.9")


def make_task(num_envs):
    cfg = with_overrides(
        find_task("quadruped-track").cfg(motions=CLIPS, action_center="default_pose"), {"physics.num_threads": 1}
    )
    return make_eval_task("quadruped-track", cfg, num_envs, 1.0, 3, fine=False)


def servo_policy(task):
    """Send the joints of the reference to the servos."""
    return lambda obs: observations.reference_joint_pos(task) / torch.as_tensor(task.cfg.control.action_scale)


@torch.inference_mode()
def track_robot_by_robot(task, clips):
    """Distances of the bodies, joint errors and joint velocities of each robot until its first reset."""
    task.hold_clips(torch.tensor(clips))
    policy, count = servo_policy(task), len(clips)
    rows = [([], [], [task.joint_vel[robot].numpy().copy()]) for robot in range(count)]
    outcome = [None] * count
    while any(how is None for how in outcome):
        _, _, dones, infos = task.step(policy(None))
        for robot in range(count):
            if outcome[robot] is None:
                distances, joints, velocities = rows[robot]
                distances.append(task.body_pos_distance[robot].numpy().copy())
                joints.append(float(task.joint_pos_error[robot]))
                if dones[robot]:
                    outcome[robot] = bool(infos["time_outs"][robot])
                else:
                    velocities.append(task.joint_vel[robot].numpy().copy())
    return rows, outcome


def test_metrics_are_those_of_each_robot_until_its_first_failure():
    # The random numbers of both tasks are the same.
    task = make_task(9)
    metrics, clips = evaluate_clips(task, servo_policy(task))
    rows, reached = track_robot_by_robot(make_task(9), [robot % 2 for robot in range(9)])
    assert 0 < sum(reached) < 9
    assert [(clip["clip"], clip["num_envs"]) for clip in clips] == [(CLIPS[0], 5), (CLIPS[1], 4)]
    for number, clip in enumerate(clips):
        robots = range(number, 9, 2)
        assert clip["reached_end"] == pytest.approx(np.mean([reached[robot] for robot in robots]))
        distances = [np.array(rows[robot][0]) for robot in robots]
        assert clip["body_pos_error"] == pytest.approx(np.concatenate(distances).mean(), rel=1e-4)
        joints = np.concatenate([rows[robot][1] for robot in robots])
        assert clip["joint_pos_error"] == pytest.approx(joints.mean(), rel=1e-4)
        steps = task.reference.num_frames[number] - 1
        assert clip["completed"] == pytest.approx(np.mean([len(part) / steps for part in distances]))
        longest = max(map(len, distances))
        assert len(clip["tracking"]) == longest
        mean = np.stack([np.mean([part[t] for part in distances if len(part) > t], axis=0) for t in range(longest)])
        step, body = np.unravel_index(mean.argmax(), mean.shape)
        assert clip["worst_s"] == pytest.approx((step + 1) * task.step_dt)
        assert clip["worst_body"] == task.reference.body_names[body]
        assert clip["worst_error"] == pytest.approx(mean.max(), rel=1e-4)
        np.testing.assert_allclose(clip["body_pos_error_by_step"], mean.mean(axis=1), rtol=1e-3)
        accelerations = np.concatenate([np.diff(rows[robot][2], axis=0) / task.step_dt for robot in robots])
        total = np.square(accelerations).mean(axis=1).sum() / sum(map(len, distances))
        wanted = np.square(np.diff(task.reference.clips[number].joint_vel, axis=0) / task.step_dt).mean()
        assert clip["acceleration_ratio"] == pytest.approx(np.sqrt(total / wanted), rel=1e-3)
    every = np.concatenate([np.array(distances) for distances, _, _ in rows])
    assert metrics["body_pos_error"] == pytest.approx(every.mean(), rel=1e-4)
    assert metrics["reached_end"] == pytest.approx(sum(reached) / 9)


def test_one_robot_tracks_all_clips_one_after_the_other():
    task = make_task(1)
    _, clips = evaluate_clips(task, servo_policy(task))
    assert [(clip["clip"], clip["num_envs"]) for clip in clips] == [(name, 1) for name in CLIPS]
    assert all(clip["body_pos_error"] > 0 for clip in clips)


def test_checkpoint_that_tracks_longer_scores_higher():
    task = make_task(8)
    evaluator = CheckpointEvaluator(task, EvaluationCfg(num_envs=8, seconds=1.0))
    tracking = evaluator(servo_policy(task))
    assert set(evaluator.metrics) == {"reached_end", "completed", "body_pos_error", "joint_pos_error"}
    completed = evaluator.metrics["completed"]
    assert evaluator(lambda obs: torch.full((8, task.num_actions), 3.0)) < tracking
    assert evaluator.metrics["completed"] < completed
    worse = {"body_pos_error": 0.05, "joint_pos_error": 0.1, "completed": 0.4}
    assert clip_score({**worse, "completed": 1.0, "body_pos_error": 0.2}) > clip_score(worse)


def test_all_steps_of_two_rollouts_read_the_same_memory():
    # One robot tracks the clips in turn.
    task, reads = make_task(1), []
    rollout = ClipRollout(task, lambda obs: torch.zeros(1, task.num_actions), 0.2, watch_reads(reads))
    rollout.run()
    rollout.run()
    assert len(reads) == 2 * 2 * 10
    assert all(addresses == reads[0] for addresses in reads)
