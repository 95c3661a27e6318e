"""Robots: MJCF files, descriptions, and what a task reads from them."""

from st_rl.sim.robots.mirror import Mirror
from st_rl.sim.robots.robot import Foot, FreeJoint, Robot, robot_path

__all__ = ["Foot", "FreeJoint", "Mirror", "Robot", "robot_path"]
