"""The first signal asks, the second one ends."""

import os
import signal

import pytest

from st_rl.cli.support.graceful_shutdown import GracefulShutdown


@pytest.mark.parametrize(("name", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_first_signal_stops_gracefully_second_exits(monkeypatch, capsys, name, code):
    ended = []
    monkeypatch.setattr(os, "_exit", ended.append)
    asked = []
    before = signal.getsignal(name)
    with GracefulShutdown(lambda: asked.append(True)) as interruption:
        assert interruption.exit_code is None
        signal.raise_signal(name)
        assert (asked, ended, interruption.exit_code) == ([True], [], code)
        signal.raise_signal(name)
        assert ended == [code]
    assert signal.getsignal(name) is before
    assert "finishing this iteration" in capsys.readouterr().err


def test_sighup_stays_ignored_under_nohup():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with GracefulShutdown(lambda: None) as shutdown:
            signal.raise_signal(signal.SIGHUP)
        assert shutdown.exit_code is None
    finally:
        signal.signal(signal.SIGHUP, before)
