"""Metrics of walking."""

from torch import Tensor


def lin_vel_rmsd(actual: Tensor, command: Tensor, reduce: bool = True) -> Tensor:
    """Error of the forward velocity, in m/s.

    `actual (N, ...)` and `command (N, ...)` have the forward velocity first on the last axis. The result is the root
    mean square over all environments, 0-d, or with `reduce=False` the absolute error of each, `(N,)`.
    """
    error = actual[..., 0] - command[..., 0]
    return error.square().mean().sqrt() if reduce else error.abs()


def cost_of_transport(
    torque: Tensor, joint_vel: Tensor, mass: Tensor | float, base_lin_vel: Tensor, g: float = 9.8
) -> Tensor:
    """Joint power over weight times horizontal speed, `(N,)`, without unit; a speed of exactly 0 counts as 1 m/s.

    `torque (N, J)` in Nm, `joint_vel (N, J)` in rad/s, `mass` in kg as a number or `(N,)`, `base_lin_vel (N, 2 or 3)`
    in m/s.
    """
    power = (torque.abs() * joint_vel.abs()).sum(dim=-1)
    speed = base_lin_vel[..., :2].norm(dim=-1)
    return power / (mass * g * speed.masked_fill(speed == 0, 1.0))
