"""Damaged files in run folders: every error names the file, and no bad run hides the others."""

import json
import os

import pytest

from st_rl.cli import main
from st_rl.cli.support.command_line import CommandError
from st_rl.cli.support.run_folders.loaded_run import LoadedRun
from st_rl.cli.support.run_folders.run_folder import RunFolder, find_run, list_runs

DAMAGED = ["", "{", "[1]", "null", "[" * 100_000, '{"started": {"z": 1}}', '{"started": "zzzz"}', "\udcff\udcfe"]


def make_run(folder, settings):
    folder.mkdir(parents=True)
    text = settings if isinstance(settings, str) else json.dumps(settings)
    (folder / "run.json").write_text(text, encoding="utf-8", errors="surrogateescape")
    return folder


@pytest.mark.parametrize("text", DAMAGED)
def test_damaged_run_is_never_the_latest(tmp_path, text):
    good = make_run(tmp_path / "balance" / "good", {"task": "balance", "started": "2026-01-01 00:00:00"})
    make_run(tmp_path / "balance" / "bad", text)
    os.mkfifo(make_run(tmp_path / "balance" / "pipe", "") / "other")
    (tmp_path / "balance" / "pipe" / "run.json").unlink()
    os.rename(tmp_path / "balance" / "pipe" / "other", tmp_path / "balance" / "pipe" / "run.json")
    assert find_run("latest", tmp_path).path == good
    assert len(list_runs(tmp_path)) == 3


@pytest.mark.parametrize("content", ["{", "[" * 100_000, "[1]", '{"best_trial": "../../x"}', '{"best_trial": [1]}'])
def test_damaged_sweep_file_names_no_trial(tmp_path, content):
    (tmp_path / "sweep.json").write_text(content)
    assert find_run(str(tmp_path), tmp_path).path == tmp_path


@pytest.mark.parametrize(
    ("settings", "config"),
    [
        ({"task": [1]}, {}),
        ({"task": "nothing"}, {}),
        ({"task": "balance", "task_config": [1]}, {}),
        ({"task": "balance", "task_config": {"nothing": 1}}, {}),
        ({"task": "balance"}, {"policy": [1]}),
        ({"task": "balance"}, {"runner": 3}),
        ({"task": "balance"}, [1]),
        ({"task": "balance"}, "{"),
    ],
)
def test_error_of_damaged_settings_names_the_file(tmp_path, settings, config):
    folder = make_run(tmp_path / "run", settings)
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    with pytest.raises(CommandError, match=r"run/(run|config)\.json"):
        LoadedRun(RunFolder(folder))


@pytest.mark.parametrize(
    ("name", "content", "command"),
    [
        ("eval.json", {"columns": [1]}, "st-rl eval"),
        ("eval.json", {"columns": {"fine": 3}, "rows": {"falls": "Falls"}}, "st-rl eval"),
        ("play.json", {"command": [[1.0]], "position": []}, "st-rl play"),
        ("play.json", {"contact": [[1]], "period": 0}, "st-rl play"),
        ("policy.json", [1], "st-rl export"),
        ("run.json", {"task": "balance", "git": 5}, "restore it"),
        ("progress.csv", b"step,\xff\n", "restore it"),
        ("progress.csv", b"step," + b"a," * 3_000_000, "restore it"),
        ("progress.csv", b"step,a\n1," + b"0" * 200_000 + b"\n", "restore it"),
    ],
)
def test_report_names_damaged_file_and_the_command_that_helps(tmp_path, capsys, name, content, command):
    folder = make_run(tmp_path / "run", {"task": "balance"})
    (folder / name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    assert main(["report", str(folder)]) == 1
    message = capsys.readouterr().err
    assert f"run/{name}" in message
    assert command in message
    assert "unexpected" not in message


def test_report_of_a_run_without_damage(tmp_path, capsys):
    folder = make_run(tmp_path / "run", {"task": "balance"})
    (folder / "progress.csv").write_text("step,Train/mean_reward\n0,1.5\n1,2.5\n")
    assert main(["report", str(folder)]) == 0
    assert (folder / "report.html").is_file()
