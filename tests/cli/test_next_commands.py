"""Printed commands can be copied: the started program, quoted, without control characters."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from st_rl.cli import main
from st_rl.cli.support import command_line
from st_rl.cli.support.command_line import count_of, escape_control, quote

pytest.importorskip("mujoco")
REPOSITORY = Path(__file__).resolve().parents[2]
SMALL = ["--iterations", "1", "--num-envs", "4", "--runner.num-steps-per-env", "2", "--env.physics.num-threads", "1"]


@pytest.fixture
def program(monkeypatch):
    """Set how the process was started; restores the default."""
    monkeypatch.setattr(command_line, "_program", "st-rl")
    return command_line.detect_program


def test_program_is_the_started_one(program, tmp_path, monkeypatch):
    script = tmp_path / "bin" / "st-rl"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(script.parent))
    program(str(script))
    assert command_line.program() == "st-rl"
    monkeypatch.setenv("PATH", "/nowhere")
    program(str(script))
    assert command_line.program() == str(script)
    program(str(REPOSITORY / "st_rl" / "__main__.py"))
    assert command_line.program() == f"{shlex.quote(sys.executable)} -m st_rl"
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    program("my terms.py")
    assert command_line.program() == "python 'my terms.py'"


def test_next_commands_use_own_script(tmp_path, monkeypatch, capsys):
    script = REPOSITORY / "examples/own_terms.py"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PATH": str(Path(sys.executable).parent)}
    command = [sys.executable, str(script), "train", "quadruped-walk", *SMALL, "--log-dir", "my run"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    shown = re.findall(r"^  (python .*?)   #", done.stdout, re.MULTILINE)
    assert [shlex.split(line)[1:] for line in shown] == [
        [str(script), command, "my run"] for command in ("eval", "play", "report", "export")
    ]
    settings = json.loads((tmp_path / "my run" / "run.json").read_text())
    assert shlex.split(settings["command_line"])[:3] == ["python", str(script), "train"]
    monkeypatch.chdir(tmp_path)
    assert main(["eval", "my run"]) != 0
    assert f"the run was trained with python {script}: use it instead of st-rl" in capsys.readouterr().err
    report = subprocess.run(
        shlex.split(shown[2]), cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240
    )
    assert f"python {script} eval 'my run'" in report.stdout


def test_control_characters_are_escaped(capsys):
    assert escape_control("a\x1b[31m\nb\x00ü") == r"a\x1b[31m\nb\x00ü"
    assert main(["train", "bal\x1b[31mance"]) == 2
    shown = capsys.readouterr().err
    assert r"unknown task 'bal\x1b[31mance'" in shown
    assert "\x1b" not in shown


def test_task_of_a_run_is_escaped(tmp_path, capsys):
    (tmp_path / "run.json").write_text(json.dumps({"task": "gym:\x1b]0;title\x07", "task_config": {}}))
    (tmp_path / "model_1.pt").write_bytes(b"")
    for command in ("eval", "play", "resume", "export", "report", "collect"):
        main([command, str(tmp_path)])
        shown = capsys.readouterr()
        assert not re.search(r"[\x00-\x08\x0b-\x1f]", shown.out + shown.err), command


@pytest.mark.parametrize("word", ["plain", "two words", "it's", "a\x1bb", "back\\slash\n'quote'"])
def test_quoted_words_are_read_back_by_a_shell(word):
    command = ["bash", "-c", f"printf %s {quote(word)}"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == word
    assert quote(word).isprintable()


def test_counts_have_a_singular():
    assert [count_of(number, "iteration") for number in (0, 1, 2)] == ["0 iterations", "1 iteration", "2 iterations"]
