"""Adds an observation and a reward of your own to `quadruped-walk`, without a change to the library.

python examples/own_terms.py train quadruped-walk --minutes 2
python examples/own_terms.py eval latest
"""

import torch

from st_rl.cli import main
from st_rl.sim.envs import LeggedWalk
from st_rl.sim.tasks import obs_term, reward_term


@obs_term("quadruped-walk", width=4, scale=10.0, noise=0.005, mirror="feet", unit="m", frame="world")
def foot_clearance_height(task: LeggedWalk) -> torch.Tensor:
    """Height of each sole above the ground, in the order of foot_names, `(N, 4)`."""
    return task.foot_height


@reward_term("quadruped-walk", weight=-0.5)
def lateral_lean(task: LeggedWalk) -> torch.Tensor:
    """`(N,)` squared sine of the roll of the base."""
    return task.projected_gravity[:, 1].square()


if __name__ == "__main__":
    raise SystemExit(main())
