"""Background calls run in order, and their errors are raised."""

import threading

import pytest

from st_rl.runners.background import MAX_WAITING, BackgroundCalls


def test_background_calls_run_in_order():
    seen, gate = [], threading.Event()
    calls = BackgroundCalls()
    calls.call(lambda: (gate.wait(10), seen.append(threading.current_thread().name)))
    assert seen == []
    calls.call(seen.append, "second")
    assert seen == [], "a second call does not wait for the first"
    gate.set()
    calls.close()
    assert seen[0].startswith("st_rl log")
    assert seen[1:] == ["second"]


def test_background_error_is_raised_once_by_the_next_call():
    calls = BackgroundCalls()
    calls.call(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        calls.close()
    calls.close()


def test_queue_is_bounded():
    seen, gate = [], threading.Event()
    calls = BackgroundCalls()
    calls.call(gate.wait, 10)
    timer = threading.Timer(0.05, gate.set)
    timer.start()
    for number in range(3 * MAX_WAITING):
        calls.call(seen.append, number)
        assert len(calls._pending) <= MAX_WAITING
    assert gate.is_set(), "the caller waited once the queue was full"
    calls.close()
    assert seen == list(range(3 * MAX_WAITING))
