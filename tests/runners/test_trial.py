"""Hyper-parameter trials: reports and pruning, with and without Optuna."""

import math
import sys
from typing import ClassVar

import optuna
import pytest
import torch

from st_rl.runners import TrialPruned
from tests.fakes import EchoEnv
from tests.runners.training import make_runner, small_config

optuna.logging.set_verbosity(optuna.logging.WARNING)


class ScriptedEnv(EchoEnv):
    """The echo task with a tracking error of 10, 11, 12, ... after each rollout of 6."""

    @property
    def tracking_error(self):
        return torch.tensor([9.0 + self.num_steps_done / 6, 9.0 + self.num_steps_done / 6])

    CoT = 1.25


def test_optuna_gets_every_metric_as_float():
    study = optuna.create_study(pruner=optuna.pruners.NopPruner())

    def objective(trial):
        velrmsd, _ = make_runner(ScriptedEnv()).learn(3, trial=trial)
        return float(velrmsd.mean())

    study.optimize(objective, n_trials=1)
    assert study.trials[0].intermediate_values == {0: 10.0, 1: 11.0, 2: 12.0}
    assert study.trials[0].user_attrs == {"CoT": 1.25}
    assert study.best_value == 12.0


def test_optuna_prunes_and_checkpoint_is_saved(tmp_path):
    study = optuna.create_study(pruner=optuna.pruners.ThresholdPruner(upper=10.5))
    runners = []

    def objective(trial):
        runners.append(make_runner(ScriptedEnv(), small_config(save_interval=100), log_dir=tmp_path))
        runners[0].learn(5, trial=trial)
        raise AssertionError("was not pruned")

    study.optimize(objective, n_trials=1)
    assert study.trials[0].state == optuna.trial.TrialState.PRUNED
    assert [path.name for path in tmp_path.glob("model_*.pt")] == ["model_2.pt"]
    assert runners[0].writer is None
    assert runners[0].tot_timesteps == 2 * 6 * 8


def test_study_with_two_objectives_is_not_pruned():
    study = optuna.create_study(directions=["minimize", "minimize"])

    def objective(trial):
        velrmsd, cot = make_runner(ScriptedEnv()).learn(2, trial=trial)
        return [float(velrmsd.mean()), float(cot)]

    study.optimize(objective, n_trials=1)
    assert study.trials[0].values == [11.0, 1.25]
    assert study.trials[0].user_attrs == {"CoT": 1.25}


class DuckTrial:
    """An object with the interface of a trial."""

    def __init__(self, prune_at: int):
        self.prune_at = prune_at
        self.reports: list[tuple[float, int]] = []

    def report(self, value, step):
        assert type(value) is float
        self.reports.append((value, step))

    def should_prune(self):
        return len(self.reports) > self.prune_at


def test_pruning_without_optuna_raises_own_exception(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "optuna", None)
    trial = DuckTrial(prune_at=1)
    runner = make_runner(ScriptedEnv(), log_dir=tmp_path)
    with pytest.raises(TrialPruned, match="pruned at iteration 1"):
        runner.learn(9, trial=trial)
    assert issubclass(TrialPruned, RuntimeError)
    assert trial.reports == [(10.0, 0), (11.0, 1)]
    assert (tmp_path / "model_2.pt").exists()


def test_duck_typed_trial_raises_optuna_exception():
    with pytest.raises(optuna.TrialPruned):
        make_runner(ScriptedEnv()).learn(9, trial=DuckTrial(prune_at=0))


def test_trial_without_should_prune():
    class Listener:
        reports: ClassVar[list[float]] = []

        def report(self, value, step):
            self.reports.append(value)

    make_runner(EchoEnv()).learn(2, trial=Listener())
    assert [math.isnan(value) for value in Listener.reports] == [True, True]
