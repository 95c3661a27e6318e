"""`--config FILE` and `st-rl config RUN`: the settings of a training as a file."""

import dataclasses
import json
import re
import subprocess
import sys

import pytest
import torch

from st_rl.cli import main
from st_rl.cli.commands.train import read_training
from st_rl.cli.support.command_line import CommandError
from st_rl.cli.support.run_folders.run_folder import RunFolder
from st_rl.cli.support.task_source import find_source
from st_rl.cli.support.training.settings_file import describe_settings, format_settings
from st_rl.cli.support.training.training_config import with_settings
from st_rl.sim.tasks import TASKS

pytest.importorskip("mujoco")
SMALL = [*("--num-envs", "8", "--iterations", "2", "--runner.num-steps-per-env", "6", "--runner.engine", "eager")]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A training with settings of every kind."""
    folder = tmp_path_factory.mktemp("settings") / "run"
    options = ["--env.rewards.effort", "-0.5", "--env.control.latency-s", "0", "0.01", "--algorithm.desired-kl", "None"]
    options += ["--algorithm.learning-rate", "3e-4", "--policy.actor-hidden-dims", "8", "--runner.keep-last", "1"]
    options += ["--set", "policy.min_noise_std=0.1", "--seed", "7", "--env.no-only-positive-rewards"]
    assert main(["train", "balance", *SMALL, *options, "--log-dir", str(folder)]) == 0
    return folder


def as_file(tmp_path, text):
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    return str(path)


def read(task, *arguments):
    """The options and the runner's dictionary of a command line."""
    return read_training(find_source(task), list(arguments))


def error_of(capsys, *arguments) -> str:
    assert main([*map(str, arguments)]) != 0
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line


def test_file_of_a_run_makes_the_same_training(run, tmp_path):
    file = tmp_path / "settings.yaml"
    assert main(["config", str(run), "--output", str(file)]) == 0
    assert main(["train", "--config", str(file), "--log-dir", str(tmp_path / "again")]) == 0
    configs = [json.loads((folder / "config.json").read_text()) for folder in (run, tmp_path / "again")]
    assert configs[0] == configs[1]
    settings = [json.loads((folder / "run.json").read_text()) for folder in (run, tmp_path / "again")]
    for key in ("task", "task_config", "num_envs", "seed", "iterations", "minutes", "changed_settings"):
        assert settings[0][key] == settings[1][key], key
    first, second = (
        torch.load(folder / "model_2.pt", weights_only=True)["model_state_dict"] for folder in (run, tmp_path / "again")
    )
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("task", TASKS)
def test_file_of_every_task_reads_back(task, tmp_path):
    options, training = read(task, "--algorithm.gamma", "0.5", "--env.episode-length-s", "3", "--num-envs", "4")
    config = training.to_dict()
    settings = {"task": task, "task_config": dataclasses.asdict(options.env), "num_envs": 4, "seed": 3, "iterations": 9}
    (tmp_path / "run.json").write_text(json.dumps(settings))
    (tmp_path / "config.json").write_text(json.dumps(config))
    file = as_file(tmp_path, format_settings(*describe_settings(RunFolder(tmp_path))))
    again, training_again = read(task, "--config", file)
    assert again.env == options.env
    assert (again.num_envs, again.seed, again.iterations) == (4, 3, 9)
    expected = {**config, "max_iterations": 9}
    assert json.loads(json.dumps(with_settings(training_again.to_dict(), again.set))) == json.loads(
        json.dumps(expected)
    )


def test_changed_settings_alone_make_the_same_configuration(run, tmp_path, capsys):
    assert main(["config", str(run), "--changed"]) == 0
    text = capsys.readouterr().out
    assert "effort: -0.5" in text
    assert "max_angle" not in text
    options, training = read("balance", "--config", as_file(tmp_path, text))
    full = describe_settings(RunFolder(run))[0]
    assert options.env.rewards["effort"] == -0.5
    assert (training.algorithm.learning_rate, training.algorithm.desired_kl) == (3e-4, None)
    assert "policy.min_noise_std=0.1" in options.set
    assert full["policy"]["actor_hidden_dims"] == list(training.policy.actor_hidden_dims)


def test_options_on_the_command_line_win(tmp_path):
    text = (
        "iterations: 5\nalgorithm: {gamma: 0.5, learning-rate: 1e-4}\nenv.max-angle: 0.3\nset: {algorithm.x: 1, a: 2}"
    )
    file = as_file(tmp_path, text)
    options, training = read("balance", "--config", file, "--algorithm.gamma", "0.7", "--set", "algorithm.x=3")
    assert (training.algorithm.gamma, training.algorithm.learning_rate) == (0.7, 1e-4)
    assert (training.runner.max_iterations, options.env.max_angle) == (5, 0.3)
    assert options.set == ("algorithm.x=1", "a=2", "algorithm.x=3")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("iterationz: 5", "unknown key 'iterationz'; did you mean 'iterations'?"),
        ("learning_rate: 5", "unknown key 'learning_rate'; did you mean 'algorithm.learning_rate'?"),
        ("env: {rewards: {effrt: 1}}", "unknown key 'env.rewards.effrt'; did you mean 'env.rewards.effort'?"),
        ("policy: {actor_hidden_dim: [8]}", "did you mean 'policy.actor_hidden_dims'?"),
        ("config: other.yaml", "unknown key 'config'"),
        ("env: 3", "'env' has settings of its own, 'name: value', got 3"),
        ("algorithm: {gamma: high}", "option 'algorithm.gamma' takes a number, such as 0.99; got 'high'"),
        ("env: {rewards: {effort: much}}", "option 'env.rewards.effort' takes a number, such as -0.01; got 'much'"),
        ("iterations: 2.5", "option 'iterations' takes a whole number or None"),
        ("task: quadruped-walk", "has the settings of quadruped-walk, not of balance: type st-rl train quadruped-walk"),
        ("seed: 1\nseed: 2", "the key 'seed' appears twice"),
        ("- 1", "it holds a list, not lines 'key: value'"),
        ("a: !!python/object/apply:os.system [true]", "could not determine a constructor"),
        ("policy: {class_name: 'os.path:join'}", "a file must not import code"),
        ("set: {policy.class_name: 'os.path:join'}", "a file must not import code"),
        ("x: &a [1]\n" + "".join(f"y{i}: &b{i} [*a, *a]\n" for i in range(9000)), "it has .* bytes, more than"),
    ],
)
def test_wrong_file_gets_one_clear_line(text, words, tmp_path, capsys):
    error = error_of(capsys, "train", "balance", "--config", as_file(tmp_path, text))
    assert "settings.yaml" in error
    assert re.search(words if "more than" in words else re.escape(words), error), error


def test_task_may_be_named_by_the_file_alone(tmp_path, capsys):
    missing = error_of(capsys, "train", "--config", tmp_path / "missing.yaml")
    assert missing.endswith("missing.yaml: no such file; st-rl config RUN prints one of a run")
    assert "names none: add 'task: TASK'" in error_of(capsys, "train", "--config", as_file(tmp_path, "seed: 2"))
    external = error_of(capsys, "train", "--config", as_file(tmp_path, "task: 'gym:planted:X-v0'"))
    assert "which imports code from outside st-rl; if you trust it, type st-rl train gym:planted:X-v0" in external
    file = as_file(tmp_path, "task: balance\nseed: 3\niterations: 1\nnum_envs: 2\nrunner: {num_steps_per_env: 4}")
    assert main(["train", "--config", file, "--log-dir", str(tmp_path / "run"), "--runner.engine", "eager"]) == 0
    assert json.loads((tmp_path / "run/run.json").read_text())["seed"] == 3


def test_minutes_of_a_file_need_no_iterations(tmp_path):
    from st_rl.cli.commands.train import drop_default_iterations

    for text, expected in (("minutes: 2", None), ("minutes: 2\nrunner: {max_iterations: 7}", 7)):
        arguments = ["--config", as_file(tmp_path, text)]
        options, training = read("balance", *arguments)
        drop_default_iterations(options, training, arguments)
        assert training.runner.max_iterations == expected


def test_distilled_run_names_its_own_command(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"task": "balance", "command_line": "st-rl distill a balance"}))
    (tmp_path / "config.json").write_text(json.dumps({"algorithm": {"teacher_policy": {}}}))
    with pytest.raises(CommandError, match="its command was: st-rl distill a balance"):
        describe_settings(RunFolder(tmp_path))


def test_config_does_not_import_torch(run):
    code = f"import sys; from st_rl.cli import main; main(['config', {str(run)!r}]); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL).returncode == 0
