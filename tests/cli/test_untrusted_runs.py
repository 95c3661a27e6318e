"""A run folder cannot make Python import a module."""

import json
import sys
from pathlib import Path

import pytest
import torch

from st_rl.cli import main
from st_rl.env.policy_metadata import FORMAT

pytest.importorskip("mujoco")
pytest.importorskip("gymnasium")
TASK = "gym:planted_module:X-v0"
CONFIG = {"policy": {"actor_hidden_dims": [8], "critic_hidden_dims": [8]}, "algorithm": {}}


@pytest.fixture
def planted_run(tmp_path, monkeypatch):
    """The folder of a run with a task that imports `planted_module`, which can be imported."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules/planted_module.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path / "modules")
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "run"
    folder.mkdir()
    settings = {"task": TASK, "num_envs": 2, "seed": 1, "device": "cpu", "iterations": 5}
    (folder / "run.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    torch.save({"iter": 1, "model_state_dict": {}}, folder / "model_1.pt")
    return str(folder)


@pytest.fixture
def imports(monkeypatch):
    """The modules that gymnasium imports for an id."""
    import importlib

    names, real_import = [], importlib.import_module

    def record_import(name, package=None):
        names.append(name)
        return real_import(name, package)

    monkeypatch.setattr(importlib, "import_module", record_import)
    return names


@pytest.mark.parametrize("command", ["eval", "play", "resume", "collect", "dagger"])
def test_run_folder_cannot_import_a_module(command, planted_run, imports, capsys):
    arguments = [command, planted_run, *([planted_run] if command == "dagger" else [])]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert "planted_module" not in imports
    assert f"names the task {TASK}, which imports code from outside st-rl" in error
    assert error.rstrip().endswith(f"add --task {TASK}")


def test_export_builds_no_task(planted_run, imports):
    settings = json.loads(Path(planted_run, "run.json").read_text())
    metadata = {"format": FORMAT, "obs_segments": {}}
    for content in (settings, {**settings, "policy_metadata": metadata}):
        Path(planted_run, "run.json").write_text(json.dumps(content))
        assert main(["export", planted_run]) == 1
        assert "planted_module" not in imports


@pytest.mark.parametrize("command", ["distill", "motion make"])
def test_commands_without_the_option_reject_it(command, planted_run, imports, capsys):
    assert main([*command.split(), planted_run, *(["balance"] if command == "distill" else [])]) == 2
    assert "planted_module" not in imports
    assert f"is a run of {TASK}" in capsys.readouterr().err


@pytest.mark.parametrize("task", ["gym:Pendulum-v1", "mjlab:Mjlab-Walk"])
def test_every_prefix_needs_the_option(task, planted_run, capsys):
    settings = json.loads(Path(planted_run, "run.json").read_text())
    Path(planted_run, "run.json").write_text(json.dumps({**settings, "task": task}))
    assert main(["eval", planted_run]) == 2
    assert capsys.readouterr().err.rstrip().endswith(f"add --task {task}")


def test_option_must_equal_recorded_task(planted_run, imports, capsys):
    assert main(["eval", planted_run, "--task", "gym:Pendulum-v1"]) == 2
    assert f"is a run of {TASK}, not of gym:Pendulum-v1: type --task {TASK}" in capsys.readouterr().err
    assert "planted_module" not in imports


def test_repeated_task_is_imported(planted_run, imports, capsys):
    assert main(["eval", planted_run, "--task", TASK]) != 0
    assert "planted_module" in imports
    assert "planted_module" not in sys.modules


def test_next_commands_repeat_the_task_of_another_library(capsys, tmp_path):
    from st_rl.cli.support.training.session import _print_next

    _print_next(tmp_path, "gym:Pendulum-v1")
    lines = capsys.readouterr().out.splitlines()[1:]
    assert ["--task gym:Pendulum-v1" in line for line in lines] == [True, True, False, True]


@pytest.mark.parametrize("part", ["policy", "algorithm"])
def test_run_folder_cannot_name_a_class_by_path(planted_run, imports, capsys, part):
    folder = Path(planted_run)
    (folder / "run.json").write_text(json.dumps({"task": "balance", "num_envs": 2, "seed": 1, "device": "cpu"}))
    (folder / "config.json").write_text(json.dumps(CONFIG | {part: {**CONFIG[part], "class_name": "os.path:join"}}))
    assert main(["eval", planted_run]) == 1
    assert "os.path" not in imports
    assert "os.path:join" in capsys.readouterr().err
