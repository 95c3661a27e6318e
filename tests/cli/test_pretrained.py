"""`pretrained:NAME` names policies of the package."""

import json

import pytest

from st_rl.cli import main
from st_rl.cli.support.report_page import run_page
from st_rl.cli.support.run_folders import pretrained
from st_rl.cli.support.run_folders.pretrained import FOLDER, pretrained_names
from st_rl.cli.support.run_folders.run_folder import RunFolder, find_policy

LIMIT = 3_000_000


@pytest.fixture
def packaged(tmp_path, monkeypatch):
    """A package with one policy, and an empty working folder."""
    folder = tmp_path / "package" / "tiny-walk"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text('{"task": "quadruped-walk", "started": "2026-01-01 00:00:00"}')
    (folder / "best.pt").write_bytes(b"weights")
    monkeypatch.setattr(pretrained, "FOLDER", folder.parent)
    monkeypatch.chdir(tmp_path)
    return folder


def test_policy_of_the_package_is_copied_beside_the_runs_of_the_user(packaged, tmp_path):
    run, checkpoint = find_policy("pretrained:tiny-walk", root=tmp_path / "runs")
    assert run.path == tmp_path / "runs" / "pretrained" / "tiny-walk"
    assert checkpoint.read_bytes() == b"weights"
    assert run.task == "quadruped-walk"


def test_evaluation_of_the_user_survives_the_next_command(packaged, tmp_path):
    (packaged / "eval.json").write_text("{}")
    run, _ = find_policy("pretrained:tiny-walk", root=tmp_path / "runs")
    run.file("eval.json").write_text('{"mine": 1}')
    find_policy("pretrained:tiny-walk", root=tmp_path / "runs")
    assert run.file("eval.json").read_text() == '{"mine": 1}'


def test_new_version_replaces_its_files_and_keeps_user_files(packaged, tmp_path):
    run, _ = find_policy("pretrained:tiny-walk", root=tmp_path / "runs")
    run.file("play.mp4").write_bytes(b"film")
    (packaged / "best.pt").write_bytes(b"better weights")
    run, checkpoint = find_policy("pretrained:tiny-walk:best", root=tmp_path / "runs")
    assert checkpoint.read_bytes() == b"better weights"
    assert run.file("play.mp4").read_bytes() == b"film"


def test_unknown_policy_lists_the_known_ones(packaged, capsys):
    assert main(["play", "pretrained:tiny-wlak"]) == 2
    error = capsys.readouterr().err
    assert "unknown pretrained policy 'pretrained:tiny-wlak'; did you mean 'pretrained:tiny-walk'?" in error


def test_folder_that_cannot_be_written_is_named(packaged, tmp_path, capsys):
    (tmp_path / "runs").write_text("a file")
    assert main(["eval", "pretrained:tiny-walk"]) == 1
    assert "cannot copy pretrained:tiny-walk to runs/pretrained/tiny-walk" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "robot", "compared_with"),
    [
        ("mine", "go1", "pretrained:go1-walk"),
        ("mine", "quadruped", "pretrained:quadruped-walk"),
        ("mine", "other.xml", "pretrained:quadruped-walk"),
        ("quadruped-walk", "quadruped", None),
    ],
)
def test_report_compares_with_the_policy_of_the_same_robot(tmp_path, monkeypatch, name, robot, compared_with):
    def write(folder, robot):
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps({"task": "quadruped-walk", "task_config": {"robot": robot}}))
        (folder / "eval.json").write_text(json.dumps({"columns": {}}))
        return RunFolder(folder)

    monkeypatch.setattr(run_page, "FOLDER", tmp_path / "package")
    monkeypatch.setattr(pretrained, "FOLDER", tmp_path / "package")
    write(tmp_path / "package" / "go1-walk", "go1")
    write(tmp_path / "package" / "quadruped-walk", "quadruped")
    found = run_page._pretrained_evaluation(write(tmp_path / "runs" / name, robot))
    assert (found and found[0]) == compared_with


def test_policies_of_the_package_are_small_and_say_how_they_were_made_and_walk():
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) <= LIMIT
    for name in pretrained_names():
        settings = json.loads((FOLDER / name / "run.json").read_text())
        evaluation = json.loads((FOLDER / name / "eval.json").read_text())
        assert settings["command_line"].startswith("st-rl ")
        assert evaluation["task"] == settings["task"]
        assert evaluation["columns"]
