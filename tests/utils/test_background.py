"""Calls in a thread of their own keep their order, and their errors are not lost."""

import threading

import pytest

from st_rl.utils.background import BackgroundCalls


def test_calls_are_made_in_order_beside_the_caller():
    seen, gate = [], threading.Event()
    calls = BackgroundCalls()
    calls.call(lambda: (gate.wait(10), seen.append(threading.current_thread().name)))
    assert seen == []
    gate.set()
    calls.call(seen.append, "second")
    calls.wait()
    assert seen[0].startswith("st_rl log")
    assert seen[1:] == ["second"]
    calls.close()
    calls.call(seen.append, "third")
    calls.close()
    assert seen[-1] == "third"


def test_an_error_comes_out_once_at_the_next_chance():
    calls = BackgroundCalls()
    calls.call(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        calls.wait()
    calls.wait()
    calls.close()


def test_nothing_runs_before_the_first_call():
    calls = BackgroundCalls()
    calls.wait()
    calls.close()
    assert calls._executor is None
