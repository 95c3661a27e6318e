"""Checks that the environments of all ranks belong to one training."""

import hashlib

import torch
from torch import Tensor

from st_rl.utils.distributed import gather_to_all, rank_seed, world_size
from st_rl.utils.log import logger


def check_ranks(num_envs: int, num_steps: int, observations: Tensor) -> None:
    """ValueError on all ranks unless they have equal sizes; gives each rank random numbers of its own.

    Ranks that were started with one seed would explore alike: torch is seeded again. Environments that deliver the same
    different observations `(N, O)` on two ranks were built with one seed, which only the caller can change: a warning.
    """
    if world_size() == 1:
        return
    is_varied = bool((observations != observations[:1]).any())
    digest = hashlib.sha256(observations.detach().float().cpu().contiguous().numpy().tobytes()).hexdigest()
    state = hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest()
    sizes, states, digests = zip(*gather_to_all(((num_envs, num_steps), state, digest if is_varied else None)))
    if len(set(sizes)) > 1:
        described = ", ".join(f"rank {number}: {envs} x {steps}" for number, (envs, steps) in enumerate(sizes))
        raise ValueError(
            f"all ranks must have as many environments and steps per rollout; environments x steps are {described}"
        )
    if len(set(states)) < len(states):
        torch.manual_seed(rank_seed(torch.initial_seed()))
        logger.info(f"ranks started with the same random numbers: this one uses the seed {torch.initial_seed()}")
    known = [item for item in digests if item is not None]
    if len(set(known)) < len(known):
        logger.warning(
            "environments of different ranks deliver the same observations, so they add no new experience: build them "
            "with st_rl.utils.distributed.rank_seed(seed)"
        )
