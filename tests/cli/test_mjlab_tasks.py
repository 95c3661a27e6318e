"""`mjlab:TASK_ID` on the command line, with a stand-in for mjlab, which needs an environment of its own."""

import json
import sys
from types import ModuleType, SimpleNamespace

import pytest

from st_rl.cli import main
from st_rl.cli.support.task_source import find_source
from st_rl.cli.support.training import make_evaluator
from tests.env.managed import Managed

ALGORITHM = {
    "num_learning_epochs": 3,
    "num_mini_batches": 2,
    "learning_rate": 2e-3,
    "schedule": "adaptive",
    "gamma": 0.98,
    "lam": 0.9,
    "entropy_coef": 0.004,
    "desired_kl": 0.015,
    "max_grad_norm": 0.7,
    "value_loss_coef": 0.5,
    "use_clipped_value_loss": True,
    "clip_param": 0.1,
    # Of rsl_rl alone.
    "share_cnn_encoders": False,
    "class_name": "PPO",
}


def make_settings():
    return SimpleNamespace(
        num_steps_per_env=8,
        max_iterations=70,
        save_interval=35,
        clip_actions=1.5,
        actor=SimpleNamespace(
            hidden_dims=(24, 12), activation="elu", obs_normalization=True, distribution_cfg={"init_std": 0.6}
        ),
        critic=SimpleNamespace(hidden_dims=(16,), activation="elu", obs_normalization=True, distribution_cfg=None),
        algorithm=SimpleNamespace(**ALGORITHM),
    )


@pytest.fixture
def mjlab(monkeypatch):
    """A package with one task; returns what its environments were made with."""
    made = []

    def make_env(cfg, device, **kwargs):
        made.append((cfg, device, kwargs))
        return Managed("actor", num_envs=cfg.scene.num_envs)

    modules = {name: ModuleType(name) for name in ("mjlab", "mjlab.tasks", "mjlab.tasks.registry", "mjlab.envs")}
    registry = modules["mjlab.tasks.registry"]
    registry.list_tasks = lambda: ["Mjlab-Walk"]
    registry.load_env_cfg = lambda task_id: SimpleNamespace(scene=SimpleNamespace(num_envs=99), seed=None)
    registry.load_rl_cfg = lambda task_id: make_settings()
    modules["mjlab.tasks"].registry = registry
    modules["mjlab"].tasks = modules["mjlab.tasks"]
    modules["mjlab.envs"].ManagerBasedRlEnv = make_env
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return made


def test_training_config_is_that_of_mjlab(mjlab):
    source = find_source("mjlab:Mjlab-Walk")
    training = source.training
    assert (training["num_steps_per_env"], training["max_iterations"], training["save_interval"]) == (8, 70, 35)
    assert training["empirical_normalization"] is True
    assert training["policy"] == {
        "actor_hidden_dims": [24, 12],
        "critic_hidden_dims": [16],
        "activation": "elu",
        "init_noise_std": 0.6,
    }
    assert training["algorithm"].items() <= ALGORITHM.items()
    assert len(training["algorithm"]) == len(ALGORITHM) - 2
    # Its episodes are too slow to be judged by.
    assert make_evaluator(source, source.default_config, "cpu") is None


def test_train_runs_an_mjlab_task(mjlab, tmp_path, capsys):
    run = tmp_path / "run"
    arguments = ["train", "mjlab:Mjlab-Walk", "--num-envs", "5", "--iterations", "2", "--seed", "7"]
    assert main([*arguments, "--log-dir", str(run)]) == 0
    assert "Training mjlab:Mjlab-Walk with 5 robots" in capsys.readouterr().out
    ((cfg, device, keywords),) = mjlab
    assert (cfg.scene.num_envs, cfg.seed, device, keywords) == (5, 7, "cpu", {})
    assert (run / "best.pt").is_file()
    assert json.loads((run / "run.json").read_text())["task"] == "mjlab:Mjlab-Walk"
    assert main(["resume", str(run), "--iterations", "1", "--task", "mjlab:Mjlab-Walk"]) == 0


def test_unknown_mjlab_task_lists_the_known_ones(mjlab, capsys):
    assert main(["train", "mjlab:Mjlab-Wlak"]) == 2
    assert "unknown task of mjlab 'Mjlab-Wlak'; did you mean 'Mjlab-Walk'?" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["train", "eval"])
def test_without_mjlab_the_message_names_the_extra(command, mjlab, monkeypatch, tmp_path, capsys):
    run = str(tmp_path / "run")
    assert main(["train", "mjlab:Mjlab-Walk", "--num-envs", "2", "--iterations", "1", "--log-dir", run]) == 0
    monkeypatch.setitem(sys.modules, "mjlab", None)
    capsys.readouterr()
    arguments = {"train": ["mjlab:Mjlab-Walk"], "eval": [run, "--task", "mjlab:Mjlab-Walk"]}[command]
    assert main([command, *arguments]) == 2
    assert 'pip install "st_rl[mjlab]"' in capsys.readouterr().err
