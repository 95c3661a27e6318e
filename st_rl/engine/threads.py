"""The number of threads that torch uses on a CPU."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

# More threads must be faster by this factor, because each takes a core from other programs.
WORTHWHILE = 1.1
LEAST_ROUNDS = 4


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


def fastest_thread_count(work: Callable[[], object], candidates: Sequence[int], seconds: float = 1.0) -> int:
    """The number of threads on which `work` runs fastest, the first candidate unless another is clearly faster.

    The candidates alternate for `seconds`, and the best round of each counts, which makes the choice robust to noise.
    """
    best = dict.fromkeys(candidates, float("inf"))
    start, rounds = time.perf_counter(), 0
    while rounds < LEAST_ROUNDS or time.perf_counter() - start < seconds:
        for number in best:
            with torch_threads(number):
                began = time.perf_counter()
                work()
                duration = time.perf_counter() - began
            # The first round only warms up.
            if rounds > 0:
                best[number] = min(best[number], duration)
        rounds += 1
    chosen = candidates[0]
    for number, duration in best.items():
        if duration * WORTHWHILE < best[chosen]:
            chosen = number
    return chosen
