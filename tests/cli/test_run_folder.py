"""Runs are found by name, folder or checkpoint file."""

import json
import shlex
from pathlib import Path

import pytest

from st_rl.algorithms import PPO
from st_rl.cli import main
from st_rl.cli.support.command_line import CommandError, UsageError
from st_rl.cli.support.run_folders.run_folder import (
    RunFolder,
    find_policy,
    find_run,
    list_runs,
    make_run_folder,
    make_writable,
    new_run_folder,
)
from tests.runners.training import progress


def make_run(root, name, started, checkpoints=(1,)):
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"task": name.split("/")[0], "started": started}))
    for number in checkpoints:
        (folder / f"model_{number}.pt").write_bytes(b"x")
    return folder


@pytest.fixture
def runs(tmp_path):
    root = tmp_path / "runs"
    make_run(root, "walk/2026-01-01_10-00-00", "2026-01-01 10:00:00")
    make_run(root, "walk/2026-01-03_10-00-00", "2026-01-03 10:00:00")
    make_run(root, "balance/2026-01-02_10-00-00", "2026-01-02 10:00:00")
    make_run(root, "gym-Pendulum-v1/2026-01-02_09-00-00", "2026-01-02 09:00:00")
    return root


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("latest", "walk/2026-01-03_10-00-00"),
        ("walk", "walk/2026-01-03_10-00-00"),
        ("balance", "balance/2026-01-02_10-00-00"),
        ("2026-01-01", "walk/2026-01-01_10-00-00"),
        ("walk/2026-01-01", "walk/2026-01-01_10-00-00"),
        ("bal", "balance/2026-01-02_10-00-00"),
        ("gym:Pendulum-v1", "gym-Pendulum-v1/2026-01-02_09-00-00"),
    ],
)
def test_run_is_found_by_name(runs, name, found):
    assert find_run(name, runs).path == runs / found


def test_run_is_found_by_any_folder(tmp_path, runs):
    elsewhere = make_run(tmp_path, "mine", "2020-01-01 00:00:00")
    assert find_run(str(elsewhere), runs).path == elsewhere
    assert find_run(str(runs / "walk"), runs).path == runs / "walk/2026-01-03_10-00-00"
    assert find_run(str(runs), runs).path == runs / "walk/2026-01-03_10-00-00"


@pytest.mark.parametrize("name", ["", "walk"])
def test_folder_of_runs_prints_the_selected_run(runs, name, capsys):
    find_run(str(runs / name), runs)
    assert capsys.readouterr().out == f"Run: {runs / 'walk/2026-01-03_10-00-00'}\n"


def test_eval_of_folder_of_runs_prints_the_selected_run(runs, capsys):
    assert main(["eval", str(runs)]) != 0
    assert f"Run: {runs / 'walk/2026-01-03_10-00-00'}\n" in capsys.readouterr().out


def test_folder_of_run_is_printed_once(runs, capsys):
    find_run(str(runs / "walk/2026-01-01_10-00-00"), runs)
    assert capsys.readouterr().out == ""


def test_ambiguous_or_unknown_name_lists_runs(runs):
    with pytest.raises(UsageError, match=r"2 runs begin with.*2026-01-01.*2026-01-03"):
        find_run("wa", runs)
    with pytest.raises(UsageError, match=r"no run 'nothing'.*balance"):
        find_run("nothing", runs)


def test_without_runs_error_names_the_train_command(tmp_path):
    with pytest.raises(UsageError, match="st-rl train"):
        find_run("latest", tmp_path / "runs")


def test_checkpoint_file_instead_of_run(runs):
    with pytest.raises(UsageError, match=r"--checkpoint model_1\.pt"):
        find_run(str(runs / "walk/2026-01-01_10-00-00/model_1.pt"), runs)


def test_runs_are_ordered_by_their_start(runs):
    days = [run.path.name[:13] for run in list_runs(runs)]
    assert days == ["2026-01-01_10", "2026-01-02_09", "2026-01-02_10", "2026-01-03_10"]


def test_checkpoints_are_selected_by_name_number_or_file(tmp_path):
    run = RunFolder(make_run(tmp_path, "run", "", checkpoints=(9, 10, 100)))
    assert run.checkpoint("best").name == "model_100.pt"
    assert run.checkpoint("last").name == "model_100.pt"
    assert run.checkpoint("9").name == "model_9.pt"
    assert run.checkpoint("model_10.pt").name == "model_10.pt"
    (run.path / "best.pt").write_bytes(b"x")
    assert run.checkpoint("best").name == "best.pt"
    assert run.checkpoint("last").name == "model_100.pt"
    with pytest.raises(CommandError, match="best, 9, 10, 100"):
        run.checkpoint("11")


@pytest.mark.parametrize(
    ("address", "run", "file"),
    [
        ("walk:2", "walk/2026-01-03_10-00-00", "model_2.pt"),
        ("latest:last", "walk/2026-01-03_10-00-00", "model_2.pt"),
        ("walk/2026-01-03:best.pt", "walk/2026-01-03_10-00-00", "best.pt"),
        ("walk", "walk/2026-01-03_10-00-00", "best.pt"),
        ("gym:Pendulum-v1", "gym-Pendulum-v1/2026-01-02_09-00-00", "model_1.pt"),
        ("gym:Pendulum-v1:1", "gym-Pendulum-v1/2026-01-02_09-00-00", "model_1.pt"),
    ],
)
def test_address_selects_run_and_checkpoint(runs, address, run, file):
    for name in ("best.pt", "model_2.pt"):
        (runs / "walk/2026-01-03_10-00-00" / name).write_bytes(b"x")
    folder, checkpoint = find_policy(address, root=runs)
    assert (folder.path, checkpoint) == (runs / run, runs / run / file)


def test_folder_with_colon_in_its_name_is_a_run(tmp_path, runs):
    folder = make_run(tmp_path, "lr:3", "2020-01-01 00:00:00", (1, 3))
    assert find_policy(str(folder), root=runs)[1] == folder / "model_3.pt"
    assert find_policy(f"{folder}:1", root=runs)[1] == folder / "model_1.pt"


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("walk:", "'walk:' lacks a checkpoint: type RUN or RUN:CHECKPOINT"),
        (":2", "':2' lacks a run"),
        ("walk:7", "no checkpoint '7' in .*it has: 1"),
        ("gone:2", "no run 'gone'"),
    ],
)
def test_invalid_address_names_missing_part(runs, address, words):
    with pytest.raises(CommandError, match=words):
        find_policy(address, root=runs)


def test_rejects_run_without_checkpoints(tmp_path):
    run = RunFolder(make_run(tmp_path, "run", "", checkpoints=()))
    with pytest.raises(CommandError, match=r"has no checkpoints \(model_\*\.pt\)"):
        run.checkpoint()


def test_rejects_folder_that_is_not_a_run(tmp_path):
    with pytest.raises(CommandError, match=r"no run\.json"):
        _ = RunFolder(tmp_path).settings


def test_error_names_damaged_file(tmp_path):
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(CommandError, match=r"cannot read .*run\.json"):
        _ = RunFolder(tmp_path).settings


def test_folder_without_a_checkpoint_is_used_again(tmp_path):
    folder = make_run(tmp_path, "run", "", checkpoints=())
    assert make_run_folder(folder, "walk").path == folder
    (folder / "best.pt").write_bytes(b"x")
    with pytest.raises(UsageError, match=r"already contains a run: resume it with st-rl resume"):
        make_run_folder(folder, "walk")
    with pytest.raises(UsageError, match="already contains a run"):
        make_run_folder(make_run(tmp_path, "other", ""), "walk")


def test_training_that_failed_before_its_first_checkpoint_starts_again(tmp_path, monkeypatch, capsys):
    arguments = ["train", "balance", "--num-envs", "4", "--iterations", "3", "--runner.num-steps-per-env", "4"]
    arguments += ["--log-dir", str(tmp_path / "run")]
    update, calls = PPO.update, []

    def fail_in_second_iteration(self, iteration):
        calls.append(iteration)
        if len(calls) == 2:
            raise RuntimeError("killed")
        return update(self, iteration)

    monkeypatch.setattr(PPO, "update", fail_in_second_iteration)
    assert main(arguments) == 1
    assert (tmp_path / "run" / "run.json").is_file()
    assert main(arguments) == 0, capsys.readouterr().err
    assert (tmp_path / "run" / "model_3.pt").is_file()
    assert [row["step"] for row in progress(tmp_path / "run")] == ["0", "1", "2"]
    assert main(arguments) == 2
    assert "already contains a run" in capsys.readouterr().err


@pytest.mark.parametrize("logger", ["wandb", "neptune"])
def test_logger_without_a_project_says_which_option(logger, tmp_path, capsys):
    assert main(["train", "balance", "--logger", logger, "--log-dir", str(tmp_path / "run")]) == 2
    assert f"--logger {logger} needs a project: add --runner.{logger}-project NAME" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_new_folder_names_are_unique_and_portable(tmp_path):
    first = new_run_folder("gym:ALE/Pong-v5", "now", tmp_path)
    first.mkdir(parents=True)
    assert first.relative_to(tmp_path).as_posix() == "gym-ALE-Pong-v5/now"
    assert new_run_folder("gym:ALE/Pong-v5", "now", tmp_path).name == "now-2"


def test_rejects_unwritable_folder(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(CommandError, match=r"cannot create the folder .*; choose another with --log-dir"):
        make_writable(file / "run", "choose another with --log-dir")
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(CommandError, match=r"no permission to write to the folder .*; go elsewhere"):
        make_writable(tmp_path, "go elsewhere")


def test_next_commands_can_be_copied_for_a_folder_with_spaces(capsys):
    from st_rl.cli.support.training.session import _print_next

    _print_next(Path("my runs/first"), "balance")
    lines = capsys.readouterr().out.splitlines()[1:]
    commands = [shlex.split(line, comments=True) for line in lines]
    assert commands == [["st-rl", name, "my runs/first"] for name in ("eval", "play", "report", "export")]
