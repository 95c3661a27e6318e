"""The simulation of a kit."""

import numpy as np
import pytest

pytest.importorskip("mujoco")
pytest.importorskip("onnxruntime")

from st_rl.export.deploy.files.simulate import Steering

SETTINGS = {"gain": 1.5, "max_rate": 0.8, "turn_back_m": 3.0}


def pose(x: float, y: float, yaw: float) -> np.ndarray:
    return np.array([x, y, 0.3, np.cos(yaw / 2), 0.0, 0.0, np.sin(yaw / 2)])


def test_steering_keeps_the_initial_heading_the_shorter_way_round():
    steering = Steering(SETTINGS, pose(1.0, 2.0, 3.0))
    assert steering.yaw_rate(pose(1.5, 2.0, 2.8)) == pytest.approx(1.5 * 0.2)
    assert steering.yaw_rate(pose(1.5, 2.0, -3.0)) == pytest.approx(1.5 * (6.0 - 2 * np.pi))
    assert steering.yaw_rate(pose(1.5, 2.0, 1.0)) == 0.8


def test_steering_turns_back_to_the_start_once():
    steering = Steering(SETTINGS, pose(0.0, 0.0, 0.0))
    assert steering.yaw_rate(pose(2.9, 0.5, 0.0)) == 0.0
    # To the start, that is by half a turn to the left and a little more.
    assert steering.yaw_rate(pose(3.1, 0.5, 0.0)) == -0.8
    assert steering.yaw_rate(pose(3.0, 0.5, np.arctan2(-0.5, -3.1))) == pytest.approx(0.0)
    assert steering.yaw_rate(pose(3.2, 0.5, np.arctan2(-0.5, -3.1))) == pytest.approx(0.0)
