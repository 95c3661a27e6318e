"""Launches the kernels of MuJoCo Warp's step without those that change nothing, in small blocks."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np

from st_rl.sim.require import MjModel, mujoco

BLOCK_DIM = 64
"""Threads per block of kernels without a choice of their own; with Warp's 256 many of them fill half of a large GPU."""
MAX_UNROLLED = 8
"""Largest number of solver iterations launched without a loop condition, the last one without unread results."""
_SOLVER_BEGIN, _LINE_SEARCH = "_solve_init_efc", "_linesearch_iterative_kernel"
# After the last line search: forces of constraints, which only sensors read, and the next search direction.
_CONSTRAINT_FORCES = frozenset({"_zero_change_counters", "_update_constraint_efc"})
_NEXT_DIRECTION = frozenset(
    {
        "_zero_qfrc_constraint_sparse",
        "_update_constraint_init_qfrc_constraint_sparse",
        "_update_constraint_init_qfrc_constraint_dense",
        "_update_gradient_zero_grad_dot",
        "_update_gradient_grad",
        "_update_gradient_h_incremental",
        "_update_gradient_h_incremental_sparse",
        "_update_gradient_cholesky",
        "_update_gradient_cholesky_blocked_skip_unchanged",
        "_solve_done",
    }
)


def find_idle_kernels(model: MjModel, changed_fields: Collection[str], read_sensors: bool) -> frozenset[str]:
    """Names of kernels of a step that change nothing that the backend reads.

    `changed_fields` are fields of the model that may differ from those of `model`.
    """

    def is_zero(*fields: str) -> bool:
        return not any(field in changed_fields or getattr(model, field).any() for field in fields)

    kinds = mujoco.mjtTrn
    drives_joints = np.isin(model.actuator_trntype, (kinds.mjTRN_JOINT, kinds.mjTRN_JOINTINPARENT)).all()
    has_springs = model.ntendon or model.nflex or not is_zero("jnt_stiffness", "jnt_stiffnesspoly")
    has_dampers = not is_zero("dof_damping", "dof_dampingpoly", "actuator_damping", "actuator_dampingpoly")
    has_fluid = model.opt.wind.any() or model.opt.density or model.opt.viscosity
    has_forces_of_bodies = has_fluid or not is_zero("body_gravcomp", "geom_adhesion")
    needed = {
        # External forces on bodies are never set, and constraint forces of joints never read.
        "_apply_ft": model.nflex,
        "_qfrc_constraint_from_grad": False,
        # The world does not move.
        "_comvel_root": False,
        "_gravity_force": not is_zero("body_gravcomp"),
        "_spring_damper_dof_passive": has_springs or has_dampers,
        "_qfrc_passive_kernel": has_springs or has_dampers or has_forces_of_bodies,
        "_qfrc_actuator_gravcomp_limits": not is_zero("jnt_actfrclimited", "jnt_actgravcomp"),
        "_friction_dof": not is_zero("dof_frictionloss"),
        "_qderiv_tendon_damping": model.ntendon,
        "_next_activation": model.na,
        "_site_local_to_global": read_sensors or model.ntendon or model.neq or not drives_joints,
        "_subtree_com_world": read_sensors,
        "_cfrc_world": read_sensors,
    }
    return frozenset(name for name, is_needed in needed.items() if not is_needed)


@contextmanager
def lean_launches(
    warp: ModuleType, idle: Collection[str], iterations: int | None, read_sensors: bool, block_dim: int | None
) -> Iterator[None]:
    """Leave out the kernels of `idle`, and what the solver computes after its last line search if nothing reads it.

    `iterations` is the number of unrolled iterations of the solver, None for a loop; `block_dim` replaces the default
    of Warp.
    """
    launch, launch_tiled = warp.launch, warp.launch_tiled
    unread = _NEXT_DIRECTION if read_sensors else _NEXT_DIRECTION | _CONSTRAINT_FORCES
    num_searches = 0

    def is_needed(kernel: Any) -> bool:
        nonlocal num_searches
        name = kernel.key.partition("__locals__")[0]
        if name == _SOLVER_BEGIN:
            num_searches = 0
        is_unread = num_searches == iterations and name in unread
        num_searches += name == _LINE_SEARCH
        return not is_unread and name not in idle

    def launch_needed(kernel: Any, *args: Any, **kwargs: Any) -> None:
        if is_needed(kernel):
            launch(kernel, *args, **{"block_dim": block_dim, **kwargs})

    def launch_tiled_needed(kernel: Any, *args: Any, **kwargs: Any) -> None:
        if is_needed(kernel):
            launch_tiled(kernel, *args, **kwargs)

    replaced: dict[str, Callable[..., None]] = {"launch": launch_needed, "launch_tiled": launch_tiled_needed}
    for name, replacement in replaced.items():
        setattr(warp, name, replacement)
    try:
        yield
    finally:
        warp.launch, warp.launch_tiled = launch, launch_tiled  # pyright: ignore[reportAttributeAccessIssue]
