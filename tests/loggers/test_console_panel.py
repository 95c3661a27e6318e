"""The console panel: updated in place on a terminal, plain lines elsewhere."""

import io
import math
import os
import pty
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from st_rl.loggers.console_panel import ConsolePanel, console_rows, fit_rows, format_duration, make_panel
from tests.runners.training import make_runner

ROWS = [("Mean reward", "12.3"), ("ETA", "0:01:00")]
REPOSITORY = Path(__file__).parents[2]


def test_prints_plain_lines_without_terminal(capsys):
    console = ConsolePanel()
    console.show("Learning iteration 1/2", ROWS, width=40, pad=20)
    console.close()
    written = capsys.readouterr().out
    assert "\x1b" not in written
    assert written.splitlines() == [
        "#" * 40,
        "         Learning iteration 1/2",
        "",
        "        Mean reward: 12.3",
        "                ETA: 0:01:00",
        "",
    ]


def test_training_prints_plain_lines_without_terminal(tmp_path, capsys):
    make_runner(log_dir=tmp_path).learn(2)
    written = capsys.readouterr().out
    assert written.count("Learning iteration") == 2
    assert re.search(r"^ +Computation: [\d,]+ steps/s$", written, re.MULTILINE)
    assert re.search(r"^ +Mean action noise std: \d\.\d{3}$", written, re.MULTILINE)
    assert all(len(line) <= 80 for line in written.splitlines())


def test_shows_nothing_without_run_folder(capsys):
    make_runner().learn(1)
    assert capsys.readouterr().out == ""


def rendered(panel, width=100):
    from rich.console import Console as RichConsole

    output = io.StringIO()
    RichConsole(file=output, width=width, color_system=None).print(panel)
    return output.getvalue().splitlines()


def test_panel_aligns_labels_and_has_given_width():
    lines = rendered(make_panel("Learning iteration 1/2", ROWS, width=50, pad=20, height=40))
    assert {len(line) for line in lines} == {50}
    assert "Learning iteration 1/2" in lines[0]
    assert lines[1].index("Mean reward") + len("Mean reward") == lines[2].index("ETA") + len("ETA")


def test_long_labels_are_complete_if_they_fit():
    long = "Episode_Termination/illegal_contact_of_base"
    lines = rendered(make_panel("title", [*ROWS, (long, "0.125")], width=80, pad=35, height=40))
    assert any(f"{long} 0.125" in line for line in lines)
    assert {len(line) for line in lines} == {80}


def test_dumb_terminal_gets_plain_lines(monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    ConsolePanel().show("title", ROWS, width=40, pad=20)
    assert "        Mean reward: 12.3" in capsys.readouterr().out


def test_panel_fits_terminal_height():
    rows = [(f"row {number}", str(number)) for number in range(50)]
    lines = rendered(make_panel("title", rows, width=80, pad=35, height=20))
    assert len(lines) < 20
    text = "\n".join(lines)
    assert "row 0" in text
    assert "row 49" in text
    assert "35 more" in text


def test_wide_terminal_has_two_columns():
    rows = [(f"Episode/term_number_{number}", f"{number}.0000") for number in range(35)]
    lines = rendered(make_panel("title", rows, width=140, pad=35, height=24), width=140)
    text = "\n".join(lines)
    assert len(lines) < 24
    assert all(f"{label} {value}" in text for label, value in rows)
    assert "more" not in text
    assert {len(line) for line in lines} == {140}
    # A narrow one has one column.
    assert "more" in "\n".join(rendered(make_panel("title", rows, width=80, pad=35, height=24), width=80))


@pytest.mark.parametrize("height", [-3, 0, 1, 2, 3, 4, 5, 6, 9, 10, 11])
def test_low_terminal_omits_middle_rows(height):
    rows = [(str(number), "") for number in range(10)]
    shown = fit_rows(rows, height)
    if height < 3 or height >= 10:
        assert shown == rows
    else:
        assert len(shown) == height
        assert shown[0] == rows[0]
        assert shown[-1] == rows[-1]


PROGRAM = """
import sys
from st_rl.loggers.console_panel import ConsolePanel
from st_rl.utils.log import logger
console = ConsolePanel()
for iteration in range(3):
    console.show(f"iteration {iteration}", [("reward", "1.0"), ("ETA", "0")], 40, 10)
    logger.warning(f"beware of {iteration}")
    print("printed", iteration)
console.close()
print("after")
"""


def on_terminal(command, **kwargs):
    """Output of a program on a pseudo-terminal."""
    master, slave = pty.openpty()
    output = bytearray()

    def read():
        while True:
            try:
                chunk = os.read(master, 4096)
            except OSError:  # the other end has closed
                return
            if not chunk:
                return
            output.extend(chunk)

    reader = threading.Thread(target=read)
    reader.start()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    done = subprocess.run(command, stdin=slave, stdout=slave, cwd=REPOSITORY, env=environment, timeout=60, **kwargs)
    os.close(slave)
    reader.join(timeout=30)
    os.close(master)
    assert done.returncode == 0, output
    return output.decode()


def test_panel_is_updated_in_place_below_messages(tmp_path):
    with open(tmp_path / "errors", "wb") as errors:
        written = on_terminal([sys.executable, "-c", PROGRAM], stderr=errors)
    # A redirected stderr stays redirected.
    assert (tmp_path / "errors").read_text().splitlines() == [f"[st_rl] beware of {i}" for i in range(3)]
    screen = Screen()
    screen.feed(written)
    text = [line.rstrip() for line in screen.lines if line.strip()]
    assert text[:3] == ["printed 0", "printed 1", "printed 2"]
    assert "iteration 2" in text[3]
    assert sum("reward" in line for line in text) == 1  # one panel, not one per iteration
    assert len(text[3]) == 100  # as wide as the terminal
    assert text[-1] == "after"


class Screen:
    """A minimal terminal emulator: lines, carriage returns, cursor up and erase."""

    def __init__(self):
        self.lines = [""]
        self.row = 0

    def feed(self, text):
        for token in re.findall(r"\x1b\[[?\d;]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", text):
            if token == "\n":
                self.row += 1
                if self.row == len(self.lines):
                    self.lines.append("")
            elif token.endswith("A") and token.startswith("\x1b"):
                self.row -= int(token[2:-1] or 1)
            elif token == "\x1b[2K":
                self.lines[self.row] = ""
            elif token[0] not in "\x1b\r":
                self.lines[self.row] += token


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00:00"), (59.9, "0:00:59"), (3661, "1:01:01"), (-5, "0:00:00"), (360000, "100:00:00")]
)
def test_format_duration(seconds, text):
    assert format_duration(seconds) == text


def rows_of(**scalars):
    base = {"Perf/total_fps": 123456.7, "Policy/mean_noise_std": 0.5, "Metrics/velrmsd": 0.25, "Metrics/CoT": 1.5}
    base["Perf/process_memory"] = 0.534
    locs = {"collection_time": 0.5, "learn_time": 0.25}
    return dict(console_rows({**base, **scalars}, {"Episode/echo": 0.125}, locs, 1_000_000, 3600.0, 61.0))


def test_rows_of_the_console():
    assert rows_of(
        **{"Loss/value_loss": 0.0123456, "Train/mean_reward": 12.345, "Train/mean_episode_length": 99.96}
    ) == {
        "Computation": "123,457 steps/s",
        "Collection + learning": "0.500 s + 0.250 s",
        "value_loss": "0.01235",
        "Mean action noise std": "0.500",
        "Mean reward": "12.35",
        "Mean episode length": "100.0",
        "Episode/echo": "0.1250",
        "Velocity error": "0.2500",
        "Cost of transport": "1.5000",
        "Total timesteps": "1,000,000",
        "Process memory": "0.53 GiB",
        "Iteration time": "0.750 s",
        "Total time": "1:00:00",
        "ETA": "0:01:01",
    }


def test_rows_show_memory_of_gpu():
    rows = rows_of(**{"Perf/gpu_allocated": 3.0, "Perf/gpu_global_free_mem": 67.5, "Perf/gpu_total": 79.25})
    assert rows["GPU memory"] == "11.75 of 79.25 GiB"


def test_rows_without_a_value_are_not_shown():
    rows = rows_of(**{"Metrics/velrmsd": math.nan, "Metrics/CoT": math.nan})
    assert not {"Mean reward", "Velocity error", "Cost of transport"} & set(rows)
