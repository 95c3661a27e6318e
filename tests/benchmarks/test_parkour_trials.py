"""Parkour trainings that continue an earlier run."""

import csv
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from st_rl.utils.files import load_checkpoint, newest_checkpoint

pytest.importorskip("mujoco")
BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")


@pytest.fixture
def trials(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import parkour_trials

    yield parkour_trials
    for name in ("parkour_trials", "machine", "plots", "run_files", "seeds"):
        sys.modules.pop(name, None)


def _train(trials, runs, earlier=None, iterations=1, seed=1):
    cfg = trials.task_config(observe=("proprioception",))
    config = trials.TASKS[trials.TASK].training_config() | {"max_iterations": iterations, "num_steps_per_env": 4}
    config["policy"] = {"class_name": "ActorCritic", "actor_hidden_dims": [8], "critic_hidden_dims": [8]}
    # No learning, so that the loaded weights stay unchanged.
    config["algorithm"] |= {"learning_rate": 0.0, "schedule": "fixed"}
    options = Namespace(robots=2, device="cpu", seconds=None, earlier=earlier)
    trials.train(cfg, config, runs / "own_1", options, seed)
    return cfg


def _weights(folder):
    return load_checkpoint(newest_checkpoint(folder), map_location="cpu")["model_state_dict"]


class TestContinue:
    def test_continues_an_earlier_run(self, trials, tmp_path):
        _train(trials, tmp_path / "first")
        before = trials.read_training(tmp_path / "first/own_1")
        path = tmp_path / "first/own_1/progress.csv"
        rows = list(csv.DictReader(path.read_text().splitlines()))
        rows[-1]["Parkour/level"] = "2.7"
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        # Another seed, so that the weights would differ if they were not loaded.
        cfg = _train(trials, tmp_path / "second", tmp_path / "first", iterations=2, seed=2)
        after = trials.read_training(tmp_path / "second/own_1")
        assert (before["iterations"], after["iterations"]) == (1, 3)
        assert (before["steps"], after["steps"]) == (8, 24)
        assert after["seconds"] > before["seconds"] == after["earlier"]["seconds"]
        assert len(after["curves"]["Parkour/level"]) == 3
        assert cfg.curriculum.start_levels == (0, 3)
        old, new = (_weights(tmp_path / name / "own_1") for name in ("first", "second"))
        assert all(torch.equal(new[name], value) for name, value in old.items())

    def test_trains_from_scratch_without_a_checkpoint(self, trials, tmp_path, capsys):
        cfg = _train(trials, tmp_path / "second", tmp_path / "nothing")
        assert "own_1 trains from scratch" in capsys.readouterr().out
        assert trials.read_training(tmp_path / "second/own_1")["earlier"] is None
        assert cfg.curriculum.start_levels == (0, 0)
