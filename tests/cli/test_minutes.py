"""`--minutes`: a time limit for training; with iterations, the first limit reached ends it."""

import csv
import json
import re

import pytest
import torch

from st_rl.cli import main
from st_rl.cli.commands.train import drop_default_iterations, read_training
from st_rl.cli.support.task_source import find_source
from st_rl.engine import Engine
from st_rl.engine.engine import make_plan
from st_rl.runners import build_runner
from st_rl.sim.tasks import TASKS
from tests.fakes import EchoEnv

pytest.importorskip("mujoco")
SMALL = ["--num-envs", "4", "--runner.num-steps-per-env", "2", "--env.physics.num-threads", "1", "--threads", "1"]
TINY = {
    "num_steps_per_env": 2,
    "engine": "eager",
    "policy": {"class_name": "ActorCritic", "actor_hidden_dims": [4], "critic_hidden_dims": [4]},
    "algorithm": {"class_name": "PPO", "num_learning_epochs": 1, "num_mini_batches": 1},
}


def train(folder, *options):
    assert main(["train", "balance", *SMALL, "--log-dir", str(folder), *options]) == 0
    with (folder / "progress.csv").open() as file:
        iterations = len(list(csv.DictReader(file)))
    return iterations, json.loads((folder / "run.json").read_text())


def test_minutes_alone_ignore_iterations_of_task(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(TASKS["balance"].training, "max_iterations", 1)
    iterations, settings = train(tmp_path / "run", "--minutes", "0.02")
    assert iterations > 1
    assert (settings["iterations"], settings["minutes"]) == (None, 0.02)
    shown = capsys.readouterr().out
    assert "Learning iteration 1\n" in shown
    seconds = int(re.search(r"(\d+) s in this session", shown).group(1))
    assert 1 <= seconds < 60


def test_first_limit_ends_the_training(tmp_path, capsys):
    assert train(tmp_path / "few", "--minutes", "5", "--iterations", "3")[0] == 3
    assert train(tmp_path / "other", "--minutes", "5", "--runner.max-iterations", "40")[0] == 40
    assert train(tmp_path / "short", "--minutes", "0.01", "--iterations", "100000")[0] < 5000
    capsys.readouterr()


def test_remaining_time_is_that_of_the_first_limit(tmp_path, capsys):
    shown = []
    for number, options in enumerate((["--minutes", "50"], [])):
        train(tmp_path / str(number), "--iterations", "3", *options)
        shown.append(re.findall(r"ETA: (\S+)", capsys.readouterr().out))
    assert all(eta.startswith("0:00:") for etas in shown for eta in etas)
    runner = build_runner("OnPolicyRunner", EchoEnv(2), TINY, log_dir=tmp_path / "python")
    runner.time_limit_s = 1.8
    runner.learn(10**9)
    etas = re.findall(r"ETA: (\S+)", capsys.readouterr().out)
    assert etas[0] == "0:00:01"
    assert etas[-1] == "0:00:00"


def test_resume_trains_the_rest_of_either_limit(tmp_path, capsys):
    folder = tmp_path / "run"
    train(folder, "--minutes", "0.01")
    settings = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**settings, "minutes": 1e-6}))
    assert main(["resume", str(folder)]) == 1
    assert "trained for its 1e-06 minutes; add more with --minutes M or --iterations N" in capsys.readouterr().err
    assert main(["resume", str(folder), "--iterations", "2"]) == 0
    assert main(["resume", str(folder), "--minutes", "0.005"]) == 0
    settings = json.loads((folder / "run.json").read_text())
    assert settings["iterations"] is None
    # Interrupted long before its time limit.
    settings["minutes"] = 0.04
    (folder / "run.json").write_text(json.dumps(settings))
    before = len((folder / "progress.csv").read_text().splitlines())
    assert main(["resume", str(folder)]) == 0
    assert len((folder / "progress.csv").read_text().splitlines()) > before
    capsys.readouterr()


def test_resume_for_minutes_ignores_the_iterations_of_the_run(tmp_path, capsys):
    folder = tmp_path / "run"
    train(folder, "--iterations", "1")
    assert main(["resume", str(folder), "--minutes", "0.01"]) == 0
    assert "Learning iteration 2\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("iterations", "seconds", "compiles"),
    [(None, None, False), (None, 60.0, False), (None, 3600.0, True), (5000, 60.0, False), (100, 3600.0, False)],
)
def test_time_limit_chooses_the_engine(iterations, seconds, compiles, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: name)
    plan = make_plan("auto", torch.device("cpu"), iterations, seconds)
    assert plan.compiles is compiles
    assert Engine("auto", "cpu", iterations, seconds).matches("auto", iterations, seconds)


def test_learn_without_a_number_needs_a_time_limit():
    runner = build_runner("OnPolicyRunner", EchoEnv(2), TINY)
    with pytest.raises(ValueError, match=r"learn\(None\) needs time_limit_s"):
        runner.learn(None)
    runner.time_limit_s = 0.2
    runner.learn(None)
    assert runner.current_learning_iteration > 1


def test_nothing_is_annealed_without_a_last_iteration(capsys):
    pytest.importorskip("gymnasium")
    source = find_source("gym:Pendulum-v1")
    for arguments, anneals in (
        (["--minutes", "1"], False),
        (["--minutes", "1", "--iterations", "9"], True),
        ([], True),
    ):
        options, training = read_training(source, arguments)
        drop_default_iterations(options, training, arguments)
        assert training.algorithm.anneal_learning_rate == training.algorithm.anneal_clip_param == anneals
        assert ("Nothing is annealed" in capsys.readouterr().out) != anneals
