"""Run folders of the version before the renames still load."""

import json

import pytest

from st_rl.cli import main
from st_rl.cli.support.report_page.curves import read_curves
from st_rl.cli.support.run_folders.loaded_run import LoadedRun
from st_rl.cli.support.run_folders.run_folder import RunFolder

pytest.importorskip("mujoco")
TASK_CONFIG = {
    "commands": {"forward": [0.3, 1.0], "sideways": [0.0, 0.0], "turning": [-0.5, 0.5], "standing_share": 0.2},
    "gait": {"stance_share": 0.6},
    "rewards": {"track_linear_velocity": 1.5, "track_turning": 0.7, "vertical_velocity": -1.0},
}
CONFIG = {
    "runner": {"num_steps_per_env": 4, "policy_class_name": "ActorCritic", "algorithm_class_name": "PPO"},
    "policy": {"actor_hidden_dims": [8], "critic_hidden_dims": [8]},
    "algorithm": {"num_learning_epochs": 1},
}


@pytest.fixture
def old_run(tmp_path):
    settings = {"task": "quadruped-walk", "task_config": TASK_CONFIG, "num_envs": 2, "seed": 1, "device": "cpu"}
    (tmp_path / "run.json").write_text(json.dumps(settings))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "progress.csv").write_text("step,Tracking/forward_error,Train/mean_reward\n0,0.5,1.0\n1,0.4,2.0\n")
    column = {"robots": 2, "falls": 0, "forward_error": 0.123, "stance_share": [0.5]}
    rows = {"falls": "Falls", "forward_error": "Forward error", "stance_share": "Stance share"}
    evaluation = {"rows": rows, "columns": {"fine physics": column}, "description": ""}
    (tmp_path / "eval.json").write_text(json.dumps(evaluation))
    return tmp_path


def test_task_options_have_their_new_names(old_run):
    loaded = LoadedRun(RunFolder(old_run))
    commands, rewards = loaded.env_config.commands, loaded.env_config.rewards
    assert (commands.lin_vel_x, commands.ang_vel_yaw) == ((0.3, 1.0), (-0.5, 0.5))
    assert (commands.standing_fraction, loaded.env_config.gait.stance_fraction) == (0.2, 0.6)
    assert (rewards["track_lin_vel_xy"], rewards["track_ang_vel_z"], rewards["lin_vel_z"]) == (1.5, 0.7, -1.0)
    assert loaded.training.policy.actor_hidden_dims == (8,)


def test_curves_have_their_new_names(old_run):
    assert read_curves(old_run / "progress.csv")["Tracking/lin_vel_x_error"] == ([0.0, 1.0], [0.5, 0.4])


def test_report_shows_an_old_evaluation(old_run, capsys):
    assert main(["report", str(old_run)]) == 0
    page = (old_run / "report.html").read_text()
    assert "0.123" in page
    assert "of 2 robots fall" in page


@pytest.mark.parametrize("part", ["policy", "algorithm"])
def test_class_paths_in_a_run_folder_are_rejected(old_run, capsys, part):
    config = json.loads((old_run / "config.json").read_text())
    config[part]["class_name"] = "os.path:join"
    (old_run / "config.json").write_text(json.dumps(config))
    (old_run / "model_1.pt").write_bytes(b"x")
    assert main(["eval", str(old_run)]) == 1
    assert "os.path:join" in capsys.readouterr().err
