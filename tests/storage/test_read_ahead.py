"""`ReadAhead`: calls that run before their result is needed."""

import threading
import time

import pytest

from st_rl.storage.rollout_files.read_ahead import ReadAhead


@pytest.mark.parametrize("enabled", [False, True])
def test_every_result_is_taken_once(enabled):
    ahead = ReadAhead(enabled, slow_s=0.0)
    for number in range(20):
        ahead.expect(str(number), lambda x: x * x, number)
    ahead.expect("3", lambda: "expected already")
    assert "7" in ahead
    assert [ahead.take(str(number)) for number in range(20)] == [number**2 for number in range(20)]
    assert "7" not in ahead
    with pytest.raises(KeyError):
        ahead.take("7")
    ahead.close()


def test_slow_calls_run_ahead_in_a_thread():
    ahead, names, finished = ReadAhead(slow_s=0.0), [], threading.Semaphore(0)

    def work():
        names.append(threading.current_thread().name)
        finished.release()

    ahead.expect("a", work)
    ahead.expect("b", work)
    assert all([finished.acquire(timeout=10), finished.acquire(timeout=10)]), "they wait for take()"
    ahead.take("a")
    ahead.take("b")
    assert len(names) == 2
    assert all("dataset" in name for name in names)
    ahead.close()


def test_fast_calls_run_in_take_until_they_become_slow():
    ahead, threads = ReadAhead(slow_s=0.002), []

    def work(seconds):
        threads.append(threading.current_thread() is not threading.main_thread())
        time.sleep(seconds)

    for seconds in (0.0, 0.0, 0.05, 0.05, 0.05):
        ahead.expect("x", work, seconds)
        ahead.take("x")
    assert threads[:3] == [False, False, False]
    # Announced now and taken later, so that the thread can begin.
    ahead.expect("x", work, 0.0)
    time.sleep(0.05)
    ahead.take("x")
    assert threads[-1] is True
    ahead.close()


def test_fast_calls_run_ahead_for_a_busy_caller():
    ahead, threads = ReadAhead(slow_s=10.0), []

    def work():
        threads.append(threading.current_thread() is not threading.main_thread())
        time.sleep(0.002)

    for _ in range(40):
        ahead.expect("x", work)
        time.sleep(0.01)
        ahead.take("x")
    assert threads[0] is False
    assert threads[-1] is True
    ahead.close()


def test_take_raises_the_error_of_the_call():
    ahead = ReadAhead(slow_s=0.0)

    def fail():
        raise OSError("lost")

    ahead.expect("x", fail)
    with pytest.raises(OSError, match="lost"):
        ahead.take("x")
    ahead.close()
