"""`mjlab:TASK_ID` on the command line, with a stand-in for mjlab, which needs an environment of its own."""

import json
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from st_rl.cli import main
from st_rl.cli.support.task_source import find_source
from st_rl.cli.support.training.session import make_evaluator
from st_rl.modules import load_policy
from st_rl.sim.evaluation.command_grid import EvaluationCfg
from tests.cli.mjlab_configs import GAUSSIAN, AlgorithmCfg, ModelCfg, RunnerCfg, depth_cfg
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
}


def make_settings():
    return RunnerCfg(
        num_steps_per_env=8,
        max_iterations=70,
        save_interval=35,
        clip_actions=1.5,
        actor=ModelCfg((24, 12), obs_normalization=True, distribution_cfg={**GAUSSIAN, "init_std": 0.6}),
        critic=ModelCfg((16,), obs_normalization=True),
        algorithm=AlgorithmCfg(**ALGORITHM, optimizer="adamw"),
    )


@pytest.fixture
def mjlab(monkeypatch):
    """A package with a walking task, one with a camera and one that tracks a motion; returns how they were made."""
    made = []

    def make_env(cfg, device, **kwargs):
        made.append((cfg, device, kwargs))
        return Managed("actor", num_envs=cfg.scene.num_envs, camera=(2, 16, 12) if cfg.has_camera else None)

    def load_env_cfg(task_id):
        commands = {"motion": SimpleNamespace(motion_file="")} if task_id == "Mjlab-Track" else {}
        scene = SimpleNamespace(num_envs=99)
        return SimpleNamespace(scene=scene, seed=None, commands=commands, has_camera=task_id == "Mjlab-Depth")

    modules = {name: ModuleType(name) for name in ("mjlab", "mjlab.tasks", "mjlab.tasks.registry", "mjlab.envs")}
    registry = modules["mjlab.tasks.registry"]
    registry.list_tasks = lambda: ["Mjlab-Depth", "Mjlab-Track", "Mjlab-Walk"]
    registry.load_env_cfg = load_env_cfg
    registry.load_rl_cfg = lambda task_id: depth_cfg() if task_id == "Mjlab-Depth" else make_settings()
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
    assert training["policy"] == {
        "class_name": "ActorCritic",
        "actor_hidden_dims": [24, 12],
        "critic_hidden_dims": [16],
        "activation": "elu",
        "init_noise_std": 0.6,
        "noise_std_type": "scalar",
        "actor_obs_normalization": True,
        "critic_obs_normalization": True,
    }
    same_as_rsl_rl = {"normalize_advantage_per_mini_batch": False, "clip_gradients_separately": True, "exact_kl": True}
    expected = {**ALGORITHM, **same_as_rsl_rl, "class_name": "PPO", "optimizer_class_name": "AdamW"}
    assert training["algorithm"] == expected


def test_camera_task_is_trained_with_its_images(mjlab, tmp_path):
    run = tmp_path / "run"
    arguments = ["train", "mjlab:Mjlab-Depth", "--num-envs", "4", "--iterations", "1", "--log-dir", str(run)]
    assert main(arguments) == 0
    loaded = load_policy(run)
    policy = loaded.actor_critic
    assert (policy.num_actor_obs, policy.num_critic_obs) == (6 + 384, 12 + 384)
    # 32 channels, each an image point, beside 6 and 12 flat values; the critic has an encoder of its own.
    assert (policy.actor[0].in_features, policy.critic[0].in_features) == (6 + 64, 12 + 64)
    assert len(policy.encoders) == len(policy.critic_encoders) == 1
    # Images are not normalized, flat values are.
    obs = torch.rand(3, 6 + 384)
    normalized = loaded.obs_normalizer(obs)
    assert torch.equal(normalized[:, 6:], obs[:, 6:])
    assert not torch.equal(normalized[:, :6], obs[:, :6])


def test_tracking_task_takes_a_motion_file(mjlab, tmp_path, capsys):
    motion, run = tmp_path / "walk.npz", str(tmp_path / "run")
    motion.write_bytes(b"")
    arguments = ["train", "mjlab:Mjlab-Track", "--num-envs", "2", "--iterations", "1", "--log-dir", run]
    assert main(arguments) == 2
    assert "Mjlab-Track tracks a reference motion, but motion_file is not set" in capsys.readouterr().err
    assert main([*arguments, "--env.motion-file", str(tmp_path / "none.npz")]) == 2
    assert f"there is no file '{tmp_path / 'none.npz'}'" in capsys.readouterr().err
    assert main([*arguments, "--env.motion-file", str(motion)]) == 0
    assert mjlab[-1][0].commands["motion"].motion_file == str(motion)
    assert main(["resume", run, "--iterations", "1", "--task", "mjlab:Mjlab-Track"]) == 0
    assert mjlab[-1][0].commands["motion"].motion_file == str(motion)
    assert main(["train", "mjlab:Mjlab-Walk", "--env.motion-file", str(motion), "--log-dir", run + "2"]) == 2
    assert "Mjlab-Walk tracks no motion: leave motion_file=" in capsys.readouterr().err


def test_rejects_motion_without_the_bodies_of_the_robot(mjlab, monkeypatch, tmp_path, capsys):
    registry = sys.modules["mjlab.tasks.registry"]
    tracked = SimpleNamespace(motion_file="", body_names=("pelvis", "left_foot", "right_foot"))
    load = registry.load_env_cfg
    monkeypatch.setattr(
        registry, "load_env_cfg", lambda task: SimpleNamespace(**vars(load(task)) | {"commands": {"motion": tracked}})
    )
    arguments = [
        "train",
        "mjlab:Mjlab-Track",
        "--num-envs",
        "2",
        "--iterations",
        "1",
        "--log-dir",
        str(tmp_path / "run"),
    ]
    motion = tmp_path / "walk.npz"
    np.savez(motion, body_pos_w=np.zeros((5, 1, 3)))
    assert main([*arguments, "--env.motion-file", str(motion)]) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "Mjlab-Track tracks 3 bodies, but" in message
    assert "has 1: write it with `st-rl motion convert" in message
    np.savez(motion, body_pos_w=np.zeros((5, 4, 3)))
    assert main([*arguments, "--env.motion-file", str(motion)]) == 0


def test_error_names_setting_without_counterpart(mjlab, monkeypatch, capsys):
    settings = make_settings()
    settings.actor.distribution_cfg["class_name"] = "BetaDistribution"
    monkeypatch.setattr(sys.modules["mjlab.tasks.registry"], "load_rl_cfg", lambda task_id: settings)
    assert main(["train", "mjlab:Mjlab-Walk"]) == 2
    error = capsys.readouterr().err
    assert "cannot train mjlab:Mjlab-Walk as mjlab defines it: actor.distribution_cfg.class_name='BetaDist" in error


def test_train_runs_an_mjlab_task(mjlab, tmp_path, capsys):
    run = tmp_path / "run"
    arguments = ["train", "mjlab:Mjlab-Walk", "--num-envs", "5", "--iterations", "2", "--seed", "7"]
    assert main([*arguments, "--log-dir", str(run)]) == 0
    assert "Training mjlab:Mjlab-Walk with 5 robots" in capsys.readouterr().out
    # The second one scores checkpoints.
    (cfg, device, keywords), (eval_cfg, *_) = mjlab
    assert (eval_cfg.scene.num_envs, eval_cfg.seed) == (8, EvaluationCfg().seed)
    assert (cfg.scene.num_envs, cfg.seed, device, keywords) == (5, 7, "cpu", {})
    assert (run / "best.pt").is_file()
    assert json.loads((run / "run.json").read_text())["task"] == "mjlab:Mjlab-Walk"
    assert main(["resume", str(run), "--iterations", "1", "--task", "mjlab:Mjlab-Walk"]) == 0


def test_checkpoints_are_scored_by_the_first_steps_without_noise(mjlab):
    source = find_source("mjlab:Mjlab-Walk")
    evaluator = make_evaluator(source, source.default_config, "cpu")
    env = evaluator._env
    env.max_episode_length = 10_000
    step, rewards = env.step, []

    def recorded_step(actions):
        assert not actions.any()
        result = step(actions)
        rewards.append(result[1].clone())
        return (*result[:2], torch.zeros(8, dtype=torch.bool), *result[3:])

    env.step = recorded_step
    score = evaluator(lambda obs: torch.zeros(len(obs), env.num_actions))
    assert len(rewards) == source.evaluation_steps == 250
    assert score == pytest.approx(float(torch.stack(rewards).sum(0).mean()), rel=1e-5)


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
