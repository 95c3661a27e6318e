"""`st-rl runs` and `st-rl compare`: many runs in a table, a few of them side by side."""

import json
import os
import subprocess
import sys
from statistics import fmean, pstdev

import pytest

from st_rl.cli import main
from st_rl.cli.support.run_folders.comparison import compare_runs, find_runs
from st_rl.cli.support.run_folders.run_folder import RunFolder
from st_rl.cli.support.run_folders.run_summary import read_progress_ends, summarize
from st_rl.utils.files.folder_lock import LOCK_FILE, FolderLock
from st_rl.utils.files.process_id import ProcessId


def make_run(folder, seed=1, evaluation=None, rows=4, config=None, **settings):
    """A run folder as a training leaves it, without checkpoints."""
    folder.mkdir(parents=True)
    content = {"task": "quadruped-walk", "task_config": {"robot": "quadruped"}, "seed": seed, "num_envs": 10}
    content |= {"iterations": 4, "started": f"2026-01-01 10:00:{seed:02d}", "num_ranks": 1, **settings}
    (folder / "run.json").write_text(json.dumps(content))
    config = {"runner": {"num_steps_per_env": 5}, "policy": {}, "algorithm": {"class_name": "PPO"}} | (config or {})
    (folder / "config.json").write_text(json.dumps(config))
    lines = ["step,wall_time,Train/mean_reward,Evaluation/score,Evaluation/falls,Evaluation/lin_vel_x_error"]
    for step in range(rows):
        measured = f"{-1.0 + step},0.5,{0.4 - 0.1 * step}" if step % 2 else ",,"
        lines.append(f"{step},{1000.0 + 2 * step},{seed + step},{measured}")
    (folder / "progress.csv").write_text("\n".join(lines) + "\n")
    if evaluation is not None:
        walk = {"num_envs": 64, **evaluation}
        rows_of_table = {"falls": "Falls", "lin_vel_x_error": "Error of mean lin_vel_x, m/s"}
        columns = {"training physics": {"num_envs": 64}, "fine physics": walk}
        (folder / "eval.json").write_text(json.dumps({"rows": rows_of_table, "columns": columns, "grid": {}}))
    return folder


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Three seeds of one setting, one run of another, and a fine-tuned one that was killed."""
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "runs"
    for seed, error in ((1, 0.1), (2, 0.2), (3, 0.6)):
        make_run(root / f"walk/a{seed}", seed, {"falls": seed - 1, "lin_vel_x_error": error})
    make_run(root / "walk/b", 4, config={"algorithm": {"class_name": "PPO", "learning_rate": 0.5}})
    parents = [{"run": "/somewhere/walk/a1", "checkpoint": "best.pt"}]
    make_run(root / "tuned", 5, rows=3, parents=parents, task_config={"robot": "robots/go1.yaml"})
    gone = ProcessId(2**22 + 1, "1", ProcessId.current().machine)
    (root / "tuned" / LOCK_FILE).write_text(json.dumps({"process": str(gone)}))
    return root


def listed(capsys, *arguments):
    """The lines of `st-rl runs`, by column."""
    assert main(["runs", *arguments]) == 0
    head, *lines = (line.split("\t") for line in capsys.readouterr().out.splitlines())
    return [dict(zip(head, line)) for line in lines]


def test_lists_results_state_and_parent(runs, capsys):
    rows = {row["run"]: row for row in listed(capsys)}
    assert list(rows) == ["walk/a1", "walk/a2", "walk/a3", "walk/b", "tuned"]
    expected = {"task": "quadruped-walk", "robot": "quadruped", "algorithm": "PPO", "state": "finished", "steps": "200"}
    expected |= {"time": "0:06", "error": "0.200", "falls": "2%", "parent": "-"}
    assert rows["walk/a2"] == {"run": "walk/a2", **expected}
    # Without eval.json, the best evaluation of the training.
    assert (rows["walk/b"]["error"], rows["walk/b"]["falls"]) == ("~0.100", "~50%")
    assert (rows["tuned"]["state"], rows["tuned"]["parent"], rows["tuned"]["robot"]) == ("failed", "walk/a1", "go1")


def test_sorts_and_filters(runs, capsys):
    assert [row["run"] for row in listed(capsys, "--sort=-error", "--filter", "run~walk/a")] == [
        "walk/a3",
        "walk/a2",
        "walk/a1",
    ]
    conditions = ["--filter", "error<0.3", "state=finished", "--filter", "run!=runs/walk/b"]
    assert [row["run"] for row in listed(capsys, *conditions)] == ["walk/a1", "walk/a2"]


def test_json_has_all_values(runs, capsys):
    assert main(["runs", str(runs), "--json", "--filter", "seed=3"]) == 0
    (run,) = json.loads(capsys.readouterr().out)
    assert (run["error"], run["falls"], run["steps"], run["evaluated"]) == (0.6, 2 / 64, 200, "eval")


def test_state_of_a_training(tmp_path):
    folder = make_run(tmp_path / "run", rows=2)
    assert summarize(RunFolder(folder)).state == "stopped"
    lock = FolderLock(folder)
    assert summarize(RunFolder(folder)).state == "running"
    lock.release()
    settings = json.loads((folder / "run.json").read_text())
    end = {"state": "failed", "iterations": 2, "steps": 77, "seconds": 9.5}
    (folder / "run.json").write_text(json.dumps({**settings, "ended": end}))
    summary = summarize(RunFolder(folder))
    assert (summary.state, summary.steps, summary.seconds) == ("failed", 77, 9.5)


def test_damaged_runs_are_listed(runs, capsys):
    (runs / "walk/a1/eval.json").write_text("{")
    (runs / "walk/a2/progress.csv").write_bytes(b"\xff\x00,\n1")
    (runs / "walk/a3/config.json").write_text("[]")
    (runs / "walk/b/progress.csv").unlink()
    os.mkfifo(runs / "walk/b/progress.csv")
    rows = {row["run"]: row for row in listed(capsys)}
    assert (rows["walk/a1"]["state"], rows["walk/a2"]["state"], rows["walk/a3"]["state"]) == (
        "damaged",
        "stopped",
        "damaged",
    )


def test_long_logs_are_read_at_their_ends_only(tmp_path, monkeypatch):
    path = tmp_path / "progress.csv"
    path.write_text("step,wall_time\n" + "".join(f"{step},{step * 0.5}\n" for step in range(50_000)) + "50000,")
    rows = read_progress_ends(path)
    assert (rows[0]["step"], rows[-1]["step"]) == ("0", "49999")
    assert len(rows) < 10_000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--sort", "eror"], "--sort: unknown column 'eror'; did you mean 'error'?"),  # codespell:ignore eror
        (["--filter", "falls"], "--filter takes COLUMN=VALUE"),
        (["--filter", "size=3"], "--filter: unknown column 'size'"),
        (["nowhere"], "no folder nowhere"),
    ],
)
def test_wrong_options_of_runs_get_one_line(arguments, words, runs, capsys):
    assert main(["runs", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_groups_by_seed_with_mean_and_spread(runs):
    comparison = compare_runs(find_runs(["runs/walk"]))
    seeds, other = comparison.groups
    assert (seeds.label, other.label) == ("a1, a2, a3", "b")
    error = seeds.metric("lin_vel_x_error")
    assert error is not None
    assert error[:2] == (pytest.approx(fmean([0.1, 0.2, 0.6])), pytest.approx(pstdev([0.1, 0.2, 0.6])))
    assert other.metric("lin_vel_x_error") is None
    band = seeds.curve("Train/mean_reward", over_steps=False)
    assert band is not None
    assert (band.x, band.mean) == ([0, 1, 2, 3], [2, 3, 4, 5])
    assert band.high[0] == pytest.approx(2 + pstdev([1, 2, 3]))
    assert list(comparison.different_settings()) == ["algorithm.learning_rate"]


def test_curves_of_different_sizes_are_over_steps(runs):
    make_run(runs / "large", 9, num_envs=20)
    comparison = compare_runs([RunFolder(runs / "walk/b"), RunFolder(runs / "large")])
    assert comparison.over_steps
    curves = [group.curve("Train/mean_reward", comparison.over_steps) for group in comparison.groups]
    assert [curve.x[-1] for curve in curves if curve is not None] == [4 * 5 * 10, 4 * 5 * 20]


def test_compare_prints_tables_and_writes_one_page(runs, capsys):
    assert main(["compare", "runs/walk", "--output", "page.html"]) == 0
    out = capsys.readouterr().out
    assert "algorithm.learning_rate\t0.001\t0.5" in out
    assert "Falls\t1.000 ± 0.816\t-" in out
    assert "Mean episode return\t5 ± 0.816\t7" in out
    assert "eval runs/walk/b" in out
    page = (runs.parent / "page.html").read_text()
    assert page.count('class="band') >= 1
    assert "a1, a2, a3" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "src=" not in page


def test_runs_of_different_tasks_get_one_line(runs, capsys):
    make_run(runs / "other", 1, task="balance")
    assert main(["compare", "runs/walk/a1", "runs/other"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line == ("st-rl: runs/walk/a1 is a run of quadruped-walk, runs/other of balance: compare runs of one task")
    assert main(["compare", "runs/other"]) == 2
    assert "at least two runs" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["runs"], ["compare", "runs/walk"]])
def test_reads_runs_without_torch(command, runs):
    code = f"import sys; from st_rl.cli import main; main({command}); sys.exit('torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, env=environment)
    assert result.returncode == 0


@pytest.mark.parametrize("content", [{"num_envs": "many"}, {"num_ranks": "two"}, {"parents": [3]}])
def test_damaged_settings_get_one_line(content, runs, capsys):
    settings = json.loads((runs / "walk/b/run.json").read_text())
    (runs / "walk/b/run.json").write_text(json.dumps({**settings, **content}))
    for command in (["compare", "runs/walk/a1", "runs/walk/b"], ["config", "runs/walk/b"], ["runs"]):
        status = main(command)
        error = capsys.readouterr().err
        assert (status, error) == (0, "") or "runs/walk/b/run.json" in error, (command, error)
        assert "unexpected" not in error
