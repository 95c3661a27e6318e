"""`ReadAhead`: calls that run before their result is needed."""

import threading

import pytest

from st_rl.storage.rollout_files.read_ahead import ReadAhead


@pytest.mark.parametrize("enabled", [False, True])
def test_every_result_is_taken_once(enabled):
    ahead = ReadAhead(enabled)
    for number in range(20):
        ahead.expect(str(number), lambda x: x * x, number)
    ahead.expect("3", lambda: "expected already")
    assert "7" in ahead
    assert [ahead.take(str(number)) for number in range(20)] == [number**2 for number in range(20)]
    assert "7" not in ahead
    with pytest.raises(KeyError):
        ahead.take("7")
    ahead.close()


def test_calls_run_ahead_in_a_thread():
    ahead, names, finished = ReadAhead(), [], threading.Semaphore(0)

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


def test_take_raises_the_error_of_the_call():
    ahead = ReadAhead()

    def fail():
        raise OSError("lost")

    ahead.expect("x", fail)
    with pytest.raises(OSError, match="lost"):
        ahead.take("x")
    ahead.close()
