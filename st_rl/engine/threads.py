"""How many threads torch uses on a CPU, and for what."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

# More threads must be faster by this factor: they cost the other programs of the machine a core each.
WORTHWHILE = 1.1


@contextmanager
def torch_threads(number: int | None) -> Iterator[None]:
    """Torch uses so many threads inside; None leaves their number as it is."""
    before = torch.get_num_threads()
    if number is None or number == before:
        yield
        return
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def fastest_thread_count(work: Callable[[], object], candidates: Sequence[int], rounds: int = 7) -> int:
    """The number of threads on which `work` runs fastest, the first candidate unless another is clearly faster.

    The candidates take turns, and the best round of each counts, so that a moment's disturbance hits nobody.
    """
    best = dict.fromkeys(candidates, float("inf"))
    for round_number in range(rounds + 1):
        for number in best:
            with torch_threads(number):
                began = time.perf_counter()
                work()
                seconds = time.perf_counter() - began
            # The first round only warms up.
            if round_number > 0:
                best[number] = min(best[number], seconds)
    chosen = candidates[0]
    for number, seconds in best.items():
        if seconds * WORTHWHILE < best[chosen]:
            chosen = number
    return chosen
