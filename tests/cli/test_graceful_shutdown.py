"""The first signal requests a stop, the second one exits."""

import os
import signal

import pytest

from st_rl.cli.support.graceful_shutdown import GracefulShutdown, exit_on_signals


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


def test_second_signal_under_torchrun_changes_nothing(monkeypatch):
    """torchrun forwards the Ctrl-C that its processes have received already."""
    ended, asked = [], []
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    with GracefulShutdown(lambda: asked.append(True)) as shutdown:
        for name in (signal.SIGINT, signal.SIGINT, signal.SIGTERM):
            signal.raise_signal(name)
    assert (asked, ended, shutdown.exit_code) == ([True], [], 130)


def test_sighup_stays_ignored_under_nohup():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with GracefulShutdown(lambda: None) as shutdown:
            signal.raise_signal(signal.SIGHUP)
        assert shutdown.exit_code is None
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(("name", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signal_in_a_command_raises_system_exit_once(name, code):
    before = signal.signal(name, signal.SIG_DFL)
    try:
        with exit_on_signals():
            with pytest.raises(SystemExit) as stop:
                signal.raise_signal(name)
            assert stop.value.code == code
            assert signal.getsignal(name) == signal.SIG_DFL, "a second signal must end the process"
    finally:
        signal.signal(name, before)


def test_command_leaves_ignored_signals_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with exit_on_signals():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
