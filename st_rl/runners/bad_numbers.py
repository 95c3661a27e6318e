"""What to say, and when to stop, when NaN or Inf turned up in a training."""

from collections.abc import Mapping

from st_rl.utils.log import logger


def report_bad_numbers(
    iteration: int, from_env: Mapping[str, tuple[int, int]], in_update: Mapping[str, int], num_rows: int
) -> None:
    """Warn of the bad numbers of one iteration; RuntimeError when the environment delivered nothing else.

    Args:
        iteration: number of the iteration.
        from_env: what the environment delivered -> number of bad rows, first bad step of the rollout.
        in_update: what the update computed -> number of bad mini-batches, the first in the order of computation first.
        num_rows: rows of one rollout.
    """
    if from_env:
        found = "; ".join(
            f"{count} of {num_rows} rows of {name} (first at step {step} of the rollout)"
            for name, (count, step) in from_env.items()
        )
        logger.warning(
            f"iteration {iteration}: the environment delivered NaN or Inf in {found}. They were set to 0 before "
            "anything learned from them. Check that the simulation is stable"
        )
    if in_update:
        first, *others = in_update
        also = f" (and then {', '.join(others)})" if others else ""
        logger.warning(
            f"iteration {iteration}: {first}{also} was NaN or Inf in {max(in_update.values())} mini-batches, which "
            "left the weights unchanged. Lower the learning rate or look at the rewards"
        )
    hopeless = [name for name, (count, _) in from_env.items() if count >= num_rows]
    if hopeless:
        raise RuntimeError(
            f"iteration {iteration}: {' and '.join(hopeless)} from the environment were NaN or Inf for every robot at "
            "every step of a rollout; training stopped. Check the simulation; what was saved before is untouched"
        )
