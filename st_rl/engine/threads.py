"""The number of threads that torch uses on a CPU."""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean, median

import torch

from st_rl.utils.log import logger

# More threads must be faster by this factor, because each takes a core from other programs.
WORTHWHILE = 1.1
# Number of updates in the median that is compared with the measured duration, and the factor that starts a trial.
WINDOW = 10
TOLERANCE = 1.3
# Updates of each candidate in a trial; the first only warms up.
TRIAL_ROUNDS = 3
# Updates until the next trial may start, while trials confirm the number.
LONGEST_WAIT = 80


@contextmanager
def torch_threads(number: int | None) -> Iterator[None]:
    """Set the number of torch threads in a context; None does not change it."""
    before = torch.get_num_threads()
    if number is None or number == before:
        yield
        return
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class UpdateThreads:
    """The number of torch threads for updates, measured on the updates themselves.

    In a trial, updates run on each of the `candidates` in turn, and the fastest number is used from then on. There is
    one at the start, and one after a window of updates that was slower or faster than measured. Without candidates
    the number is fixed; None leaves the number of torch unchanged.
    """

    def __init__(self, number: int | None, candidates: Sequence[int] = ()):
        self.number = number
        self.candidates = tuple(candidates)
        self._durations: deque[float] = deque(maxlen=WINDOW)
        # Duration that updates should take, s; set by a trial.
        self._expected = 0.0
        self._trial: list[tuple[int, float]] | None = [] if candidates else None
        self._wait = self._updates_to_wait = WINDOW

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Run one update in this context on the current number of threads."""
        number = self.number if self._trial is None else self.candidates[len(self._trial) % len(self.candidates)]
        start = time.perf_counter()
        with torch_threads(number):
            yield
        if self.candidates:
            self._record(number or 1, time.perf_counter() - start)

    def _record(self, number: int, duration: float) -> None:
        if self._trial is not None:
            self._trial.append((number, duration))
            if len(self._trial) == TRIAL_ROUNDS * len(self.candidates):
                self._finish_trial(self._trial)
            return
        self._durations.append(duration)
        self._updates_to_wait -= 1
        if self._updates_to_wait > 0:
            return
        if not 1.0 / TOLERANCE < median(self._durations) / self._expected < TOLERANCE:
            self._trial = []

    def _finish_trial(self, trial: list[tuple[int, float]]) -> None:
        """Use the number of threads that was fastest after the warm-up, the first candidate in doubt."""
        measured = trial[len(self.candidates) :]
        means = {number: fmean(d for n, d in measured if n == number) for number in self.candidates}
        fastest = self.candidates[0]
        for number, mean in means.items():
            if mean * WORTHWHILE < means[fastest]:
                fastest = number
        if fastest != self.number or not self._expected:
            shown = ", ".join(f"{number}: {1e3 * mean:.3g} ms" for number, mean in means.items())
            logger.info(f"updates use {fastest} of {max(self.candidates)} threads from now on ({shown})")
        self._wait = WINDOW if fastest != self.number else min(2 * self._wait, LONGEST_WAIT)
        self.number, self._expected, self._trial = fastest, means[fastest], None
        self._updates_to_wait = self._wait
        self._durations.clear()
