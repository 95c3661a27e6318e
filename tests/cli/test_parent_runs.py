"""`st-rl train TASK --from RUN[:CHECKPOINT]`: weights and normalizers of a run, with other settings."""

import json
import sys

import pytest
import torch

from st_rl.cli import main
from st_rl.cli.commands.train import prepare_training, read_training
from st_rl.cli.support.task_source import find_source

pytest.importorskip("mujoco")
SMALL = ["--num-envs", "8", "--iterations", "2", "--runner.num-steps-per-env", "6", "--runner.engine", "eager"]
SIZES = ["--policy.actor-hidden-dims", "16", "--policy.critic-hidden-dims", "16"]
POLICIES = {
    "mlp": [],
    "recurrent": ["--policy.class-name", "ActorCriticRecurrent", "--policy.rnn-hidden-size", "8"],
    "encoder": [
        *("--policy.class-name", "EncoderActorCritic", "--policy.encoder-component-names", "joint_pos"),
        *("--policy.encoder-output-size", "4"),
    ],
}


def train(task, folder, *options):
    assert main(["train", task, *SMALL, *map(str, options), "--log-dir", str(folder)]) == 0
    return folder


def start(task, folder, *options):
    """A runner before its training."""
    source = find_source(task)
    settings, training = read_training(source, [*SMALL, "--log-dir", str(folder), *map(str, options)])
    return prepare_training(source, settings, training, "st-rl train")[0]


def error_of(capsys, *arguments) -> str:
    capsys.readouterr()
    assert main([*map(str, arguments)]) != 0
    return capsys.readouterr().err.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def parent(tmp_path_factory):
    options = ["--env.rewards.effort", "-0.3", "--algorithm.gamma", "0.9", "--policy.actor-hidden-dims", "8"]
    return train("balance", tmp_path_factory.mktemp("from") / "parent", *options)


def test_starts_with_weights_and_normalizers_and_nothing_else(parent, tmp_path):
    runner = start("balance", tmp_path / "child", "--from", f"{parent}:2", "--num-envs", "3")
    saved = torch.load(parent / "model_2.pt", weights_only=True)
    state = runner.alg.state_dict()
    for key in ("model_state_dict", "obs_norm_state_dict", "critic_obs_norm_state_dict"):
        assert all(torch.equal(saved[key][name], value) for name, value in state[key].items()), key
    assert runner.env.num_envs == 3
    assert (runner.current_learning_iteration, runner.tot_timesteps) == (0, 0)
    assert saved["optimizer_state_dict"]["state"]
    assert not state["optimizer_state_dict"]["state"]


def test_settings_default_to_parent(parent, tmp_path):
    source = find_source("balance")
    options, training = read_training(source, ["--from", str(parent), "--algorithm.gamma", "0.8"])
    assert options.env.rewards["effort"] == -0.3
    assert (training.algorithm.gamma, training.policy.actor_hidden_dims) == (0.8, (8,))
    default = find_source("balance").training
    assert training.runner.max_iterations == default["max_iterations"]
    assert options.num_envs is None
    other, walk = read_training(find_source("quadruped-walk"), ["--from", str(parent)])
    assert (walk.policy.actor_hidden_dims, walk.algorithm.gamma) == ((8,), 0.99)
    assert other.env == find_source("quadruped-walk").default_config


def test_run_folder_records_the_chain_of_parents(parent, tmp_path, monkeypatch):
    child = train("balance", tmp_path / "child", "--from", parent)
    monkeypatch.chdir(tmp_path)
    grandchild = train("balance", tmp_path / "grandchild", "--from", "child:2", "--env.rewards.effort", "-0.1")
    settings = json.loads((grandchild / "run.json").read_text())
    assert [(entry["run"], entry["checkpoint"]) for entry in settings["parents"]] == [
        (str(child), "model_2.pt"),
        (str(parent), "best.pt"),
    ]
    assert settings["parents"][0]["iteration"] == 2
    assert settings["changed_settings"]["env.rewards.effort"] == [-0.01, -0.1]


@pytest.mark.parametrize("policy", POLICIES)
def test_other_observations_start_with_the_behavior_of_the_parent(policy, tmp_path, capsys):
    arguments = [*SIZES, *POLICIES[policy]]
    old = start("quadruped-walk", tmp_path / "old", *arguments, "--env.no-observe-linear-velocity")
    with torch.no_grad():
        for normalizer, width in (
            (old.alg.obs_normalizer, old.num_obs),
            (old.alg.critic_obs_normalizer, old.num_critic_obs),
        ):
            normalizer.train()(torch.randn(512, width) * 3.0 + 1.0)
    old.init_writter(False)
    old.save(tmp_path / "old/model_1.pt")
    (tmp_path / "old/run.json").write_text(json.dumps({"task": "quadruped-walk", "task_config": {}}))
    new = start("quadruped-walk", tmp_path / "new", "--from", tmp_path / "old", "--env.observe-linear-velocity")
    assert "the actor observes base_lin_vel, which the parent does not" in capsys.readouterr().out
    segments, place, parts = new.alg.actor_critic.obs_segments or {}, 0, []
    obs = torch.randn(8, new.num_obs)
    for name, width in segments.items():
        parts += [] if name == "base_lin_vel" else [obs[:, place : place + width]]
        place += width
    assert next(iter(segments)) == "base_lin_vel"
    policies = [runner.get_inference_policy() for runner in (new, old)]
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(policies[0](obs), policies[1](torch.cat(parts, dim=1)))
    assert new.alg.state_dict()["obs_norm_state_dict"]["count"] <= 10 * 6 * 8


def test_typed_noise_replaces_the_learned_one(parent, tmp_path):
    runner = start("balance", tmp_path / "child", "--from", parent, "--policy.init-noise-std", "0.9")
    assert runner.alg.actor_critic.state_dict()["std"].tolist() == [pytest.approx(0.9)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--policy.actor-hidden-dims", "9"], "the layers of its actor are 8 ELU 1, of this training 9 ELU 1"),
        (["--policy.activation", "tanh"], "the layers of its actor are 8 ELU 1, of this training 8 Tanh 1"),
        (["--policy.class-name", "ActorCriticRecurrent"], "its policy class is ActorCritic, the one of this training"),
        (["--runner.no-empirical-normalization"], "the checkpoint was trained with normalized observations"),
    ],
)
def test_parent_that_does_not_fit_gets_one_clear_line(options, words, parent, tmp_path, capsys):
    error = error_of(capsys, "train", "balance", *SMALL, "--from", parent, *options, "--log-dir", tmp_path / "child")
    assert error.startswith(f"st-rl: cannot start from {parent}:best.pt: {words}")


def test_parent_with_other_actions_or_that_is_gone(parent, tmp_path, capsys):
    arguments = ["train", "quadruped-walk", *SMALL, "--log-dir", tmp_path / "child"]
    assert "it has 1 actions, this training 12" in error_of(capsys, *arguments, "--from", parent)
    assert f"--from {tmp_path}/gone: no run '{tmp_path}/gone'" in error_of(
        capsys, *arguments, "--from", f"{tmp_path}/gone"
    )
    assert "no checkpoint '9'" in error_of(capsys, *arguments, "--from", f"{parent}:9")


def test_files_of_a_parent_cannot_import_a_module(parent, tmp_path, monkeypatch, capsys):
    (tmp_path / "planted_parent.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "best.pt").write_bytes((parent / "best.pt").read_bytes())
    (folder / "run.json").write_text((parent / "run.json").read_text())
    config = json.loads((parent / "config.json").read_text())
    config["policy"]["class_name"] = "planted_parent:Policy"
    (folder / "config.json").write_text(json.dumps(config))
    error = error_of(capsys, "train", "balance", *SMALL, "--from", folder, "--log-dir", tmp_path / "child")
    assert "a file must not import code" in error
    assert "planted_parent" not in sys.modules


def test_trials_of_a_sweep_start_from_one_parent(parent, monkeypatch):
    """Not from the latest run of the moment, which may be an earlier trial."""
    from st_rl.cli.commands import sweep as command

    seen = []
    monkeypatch.setattr(command, "sweep", lambda source, options, arguments: seen.append(list(arguments)) or 0)
    monkeypatch.chdir(parent.parent)
    assert command.main(["balance", "--from", "parent:2", "--search", "algorithm.gamma", "0.9", "0.99"]) == 0
    assert seen[0][-2:] == ["--from", "parent:model_2.pt"]
    assert seen[0].count("--from") == 1
