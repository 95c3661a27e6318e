"""A sweep finds better settings, ends bad trials early, survives failures and Ctrl-C, and leaves ordinary runs."""

import json
import re
import shlex
import signal
import sys

import pytest
import torch

from st_rl.cli import main
from st_rl.cli.commands.sweep import trials
from st_rl.cli.commands.sweep.evaluated_trial import EvaluatedTrial
from st_rl.cli.commands.sweep.options import read_search
from st_rl.cli.commands.sweep.storage import StudyAddress, open_study
from st_rl.cli.commands.train import TrainOptions, read_training
from st_rl.cli.support.command_line import CommandError, UsageError
from st_rl.cli.support.run_folders.run_folder import find_run
from st_rl.cli.support.task_source import find_source

pytest.importorskip("mujoco")
pytest.importorskip("optuna")
SMALL = ["--num-envs", "8", "--runner.num-steps-per-env", "4", "--runner.engine", "eager", "--iterations", "4"]
SEARCH = ["--search", "algorithm.learning_rate", "1e-4", "1e-2", "--search", "policy.activation", "elu,tanh"]


def sweep(folder, trials, *arguments):
    return main(["sweep", "balance", *SMALL, *arguments, "--trials", str(trials), "--log-dir", str(folder)])


def results(folder):
    return json.loads((folder / "sweep.json").read_text())


def error_of(capsys, *arguments) -> str:
    assert main([*map(str, arguments)]) != 0
    return capsys.readouterr().err.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A sweep of three trials."""
    folder = tmp_path_factory.mktemp("sweep") / "sweep"
    assert sweep(folder, 3, *SEARCH) == 0
    return folder


@pytest.fixture
def scored_by(monkeypatch):
    """Replace the score of a trial by a function of its number, which may raise."""

    def replace(score):
        def prepare_training(source, options, *arguments):
            number = int(options.log_dir.name.removeprefix("trial_"))
            score(number)
            runner, run = original(source, options, *arguments)
            runner.evaluator = lambda policy: score(number)
            return runner, run

        original = trials.prepare_training
        monkeypatch.setattr(trials, "prepare_training", prepare_training)

    return replace


def test_every_trial_is_a_run_of_its_own_with_its_settings(finished):
    content = results(finished)
    assert [trial["number"] for trial in content["trials"]] == [0, 1, 2]
    assert len({str(trial["settings"]) for trial in content["trials"]}) == 3
    for trial in content["trials"]:
        config = json.loads((finished / trial["folder"] / "config.json").read_text())
        assert config["algorithm"]["learning_rate"] == trial["settings"]["algorithm.learning-rate"]
        assert config["policy"]["activation"] == trial["settings"]["policy.activation"]
        command = shlex.split(json.loads((finished / trial["folder"] / "run.json").read_text())["command_line"])
        _, training = read_training(find_source("balance"), command[3:])
        assert training.algorithm.learning_rate == config["algorithm"]["learning_rate"]


def test_first_trial_uses_the_default_settings(finished):
    assert results(finished)["trials"][0]["settings"] == {"algorithm.learning-rate": 1e-3, "policy.activation": "elu"}


def test_score_of_a_trial_is_that_of_its_best_checkpoint(finished):
    content = results(finished)
    complete = [trial for trial in content["trials"] if trial["state"] == "complete"]
    for trial in complete:
        best = torch.load(finished / trial["folder"] / "best.pt", weights_only=True)
        assert trial["score"] == max(trial["scores"].values()) == pytest.approx(best["score"])
        assert list(trial["scores"]) == ["1", "2", "3", "4"]
    assert content["best_trial"] == max(complete, key=lambda trial: trial["score"])["number"]


def test_trial_is_evaluated_like_any_run(finished, capsys):
    assert main(["eval", str(finished / "trial_1"), "--num-envs", "4"]) == 0
    assert "training physics" in capsys.readouterr().out


def test_results_show_the_best_trials_and_a_command_to_train_longer(finished, capsys):
    assert sweep(finished, 3, *SEARCH) == 0
    shown = capsys.readouterr().out
    best = results(finished)["trials"][results(finished)["best_trial"]]
    assert "learning-rate" in shown
    assert f"st-rl eval {finished / best['folder']}" in shown
    command = next(line for line in shown.splitlines() if line.startswith("  st-rl train balance")).partition("  #")[0]
    options, training = read_training(find_source("balance"), shlex.split(command)[3:])
    assert training.algorithm.learning_rate == best["settings"]["algorithm.learning-rate"]
    assert training.policy.activation == best["settings"]["policy.activation"]
    assert (training.runner.max_iterations, training.runner.save_interval, options.num_envs) == (40, 50, 8)


def test_same_command_continues_the_sweep(tmp_path, scored_by, capsys):
    scored_by(float)
    assert sweep(tmp_path, 2, *SEARCH) == 0
    before = results(tmp_path)["trials"]
    assert sweep(tmp_path, 4, *SEARCH) == 0
    assert "4 trials of 4 iterations, 2 of them done" in capsys.readouterr().out
    after = results(tmp_path)["trials"]
    assert after[:2] == before
    assert [trial["number"] for trial in after] == [0, 1, 2, 3]
    assert len({str(trial["settings"]) for trial in after}) == 4
    message = error_of(capsys, "sweep", "balance", "--log-dir", tmp_path, "--search", "algorithm.gamma", "0.9", "0.99")
    assert (
        f"a sweep of another command: continue it with st-rl sweep balance {shlex.join([*SMALL, *SEARCH])} --log-dir"
        in message
    )


def test_bad_learning_rate_scores_lower(tmp_path):
    arguments = ["--num-envs", "32", "--runner.num-steps-per-env", "24", "--iterations", "12", "--seed", "2"]
    search = ["--algorithm.schedule", "fixed", "--search", "algorithm.learning-rate", "1e-9,3e-3"]
    assert sweep(tmp_path, 4, *arguments, *search, "--runner.save-interval", "12") == 0
    content = results(tmp_path)
    scores = {rate: [] for rate in ("1e-9", "3e-3")}
    for trial in content["trials"]:
        scores[trial["settings"]["algorithm.learning-rate"]].append(trial["score"])
    assert min(map(len, scores.values())) > 0
    assert min(scores["3e-3"]) > max(scores["1e-9"]) + 0.5
    assert "--algorithm.learning-rate 3e-3" in content["train_longer"]


def test_bad_trials_are_pruned_after_a_quarter_of_their_iterations(tmp_path, scored_by, capsys):
    scored_by(lambda number: -1.0 if number == 2 else 1.0)
    assert sweep(tmp_path, 4, *SEARCH, "--iterations", "8") == 0
    trials = results(tmp_path)["trials"]
    assert [trial["state"] for trial in trials] == ["complete", "complete", "pruned", "complete"]
    assert [trial["iterations"] for trial in trials] == [8, 8, 3, 8]
    assert trials[2]["scores"] == {"1": -1.0, "2": -1.0}
    assert (tmp_path / "trial_2" / "model_3.pt").is_file()
    assert "pruned after 3 iterations, score -1" in capsys.readouterr().out


def test_failed_trial_does_not_end_the_sweep(tmp_path, scored_by, capsys):
    def score(number):
        if number == 1:
            raise RuntimeError("the physics\nexploded")
        return float("nan") if number == 2 else 1.0

    scored_by(score)
    assert sweep(tmp_path, 4, *SEARCH) == 0
    trials = results(tmp_path)["trials"]
    assert [trial["state"] for trial in trials] == ["complete", "failed", "failed", "complete"]
    assert trials[1]["error"] == "RuntimeError: the physics exploded"
    assert "Traceback" in trials[1]["traceback"]
    assert "score is nan" in trials[2]["error"]
    assert "4 trials (2 complete, 2 failed)" in capsys.readouterr().out


def test_sweep_gives_up_if_the_first_trials_fail(tmp_path, capsys):
    assert sweep(tmp_path, 9, *SEARCH, "--policy.class-name", "ActorCrtic") == 1
    captured = capsys.readouterr()
    assert captured.out.count("unknown policy class 'ActorCrtic'") == 3
    assert "the first 3 trials failed" in captured.err


def test_ctrl_c_keeps_finished_trials_and_repeats_the_interrupted_one(tmp_path, monkeypatch, capsys):
    original = EvaluatedTrial.report

    def report(self, tracking_error, iteration):
        if self._trial.number == 1 and iteration == 1:
            signal.raise_signal(signal.SIGINT)
        original(self, tracking_error, iteration)

    monkeypatch.setattr(EvaluatedTrial, "report", report)
    assert sweep(tmp_path, 3, *SEARCH) == 130
    command = capsys.readouterr().out.splitlines()[-1].strip()
    assert [trial["state"] for trial in results(tmp_path)["trials"]] == ["complete", "interrupted", "waiting"]
    assert command.startswith("st-rl sweep balance")
    assert main(shlex.split(command)[1:]) == 0
    trials = results(tmp_path)["trials"]
    assert trials[2]["settings"] == trials[1]["settings"]
    assert len(trials) == 4
    assert trials[3]["state"] in ("complete", "pruned")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "which settings? --search NAME LOW HIGH"),
        ("--search algorithm.learnin-rate 1 2", "did you mean --algorithm.learning-rate?"),
        ("--search lr 1e-4 1e-2", "it is called --algorithm.learning-rate here"),
        ("--search algorithm.learning-rate 1e-2 1e-4", "LOW must be less than HIGH"),
        ("--search algorithm.learning-rate nan 1", "LOW must be less than HIGH"),
        ("--search algorithm.learning-rate low high", "LOW and HIGH must be numbers"),
        ("--search algorithm.learning-rate", "--search takes NAME LOW HIGH, or NAME A,B,C"),
        ("--search algorithm.num-mini-batches 1.5 3", "takes integers, such as 4"),
        ("--search policy.activation 1 2", "is not a number but 'elu'; give choices"),
        ("--search policy.activation elu", "two or more different choices"),
        ("--search algorithm.use-clipped-value-loss yes,no", "true,false"),
        ("--search runner.max-iterations 10 20", "must be the same in all trials"),
        ("--search algorithm.gamma 0.9 1 --search algorithm.gamma 0.8 1", "is given twice"),
        ("--search algorithm.gamma 0.9 1 --trials 0", "--trials must be at least 1, got 0"),
        ("--search algorithm.gamma 0.9 1 --iterations 0", "--iterations must be at least 1, got 0"),
        ("--search algorithm.gamma 0.9 1 --num-robots 4", "it is called --num-envs here"),
    ],
)
def test_rejects_invalid_searches_before_training(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert message in error_of(capsys, "sweep", "balance", *arguments.split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", ["algorithm.schedule fixed,adaptve", "policy.rnn-type 1 2"])
def test_rejects_a_value_of_the_wrong_type(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", "balance", "--search", *words.split()]) == 2
    assert f"--{words.split()[0]}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_rejects_the_folder_of_a_run(finished, capsys):
    message = error_of(capsys, "sweep", "balance", *SEARCH, "--log-dir", finished / "trial_0")
    assert "is a run, not a sweep" in message


@pytest.mark.parametrize("damage", ["{", "[1]\n", '{"op_code": 99}\n', "[" * 100_000 + "\n"])
def test_error_names_damaged_study(tmp_path, damage):
    address = StudyAddress(str(tmp_path), "sweep")
    open_study(address, 4, 10).set_user_attr("command", "command")
    whole = address.journal.read_text()
    address.journal.write_text(whole + damage)
    with pytest.raises(CommandError, match=r"study\.log: .*another --log-dir"):
        open_study(address, 4, 10)
    address.journal.write_text(whole)
    assert open_study(address, 4, 10).user_attrs["command"] == "command"


def test_missing_optuna_gives_install_command(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert error_of(capsys, "sweep", "balance", *SEARCH) == (
        'st-rl: st-rl sweep needs Optuna: pip install "st_rl[sweep]"'
    )


def test_help_shows_an_example(capsys):
    assert main(["sweep", "--help"]) == 0
    assert "--search NAME LOW HIGH" in capsys.readouterr().out
    assert main(["sweep"]) == 2
    assert "which task?" in error_of(capsys, "sweep", "--trials", "3")
    assert main(["sweep", "balance", "--help"]) == 0
    assert "--algorithm.learning-rate" in capsys.readouterr().out


def read(*words):
    source = find_source("balance")
    return read_search(words, TrainOptions(source.default_config), "sweep balance")


def test_ranges_are_integer_linear_or_logarithmic():
    whole = read("algorithm.num-learning-epochs", "3", "8").distribution
    assert (whole.low, whole.high, type(whole.low), whole.log) == (3, 8, int, False)
    assert read("algorithm.learning_rate", "1e-4", "1e-3").distribution.log
    assert not read("algorithm.learning-rate", "2e-4", "1e-3").distribution.log
    # A float setting stays one, even if its limits are integers.
    assert type(read("algorithm.entropy-coef", "0", "1").distribution.low) is float
    assert not read("algorithm.entropy-coef", "0", "1").distribution.log
    assert read("policy.rnn-hidden-size", "32", "256").distribution.high == 256
    assert read("env.rewards.effort", "-0.1", "-0.001").distribution.low == -0.1


def test_values_are_formatted_as_arguments():
    assert read("algorithm.gamma", "0.9", "0.99").arguments(0.95123456) == ["--algorithm.gamma", "0.9512"]
    layers = read("policy.actor-hidden-dims", "64  64,128 128")
    assert layers.arguments("64 64") == ["--policy.actor-hidden-dims", "64", "64"]
    assert layers.default_choice == "128 128"
    clipped = read("algorithm.use-clipped-value-loss", "true,false")
    assert clipped.default_choice == "true"
    assert clipped.arguments("true") == ["--algorithm.use-clipped-value-loss"]
    assert clipped.arguments("false") == ["--algorithm.no-use-clipped-value-loss"]
    assert read("algorithm.gamma", "0.5", "0.6").default_choice is None
    with pytest.raises(UsageError, match=r"unknown option --algorithm\.gama;"):
        read("algorithm.gama", "0.5", "0.6")


def test_folder_of_sweep_selects_its_best_trial(finished):
    assert find_run(str(finished)).path == finished / f"trial_{results(finished)['best_trial']}"


def test_num_envs_defaults_to_that_of_the_task():
    source = find_source("balance")
    for arguments, number in (([], source.default_config.num_envs), (["--num-envs", "40"], 40)):
        options, _ = read_training(source, arguments)
        assert read_search(["num-envs", "16", "128"], options, "sweep balance").default_choice == number


def test_settings_with_equal_last_names_are_shown_with_full_names(tmp_path, capsys):
    searched = [*("--search", "num-envs", "8", "80"), *("--search", "env.num-envs", "8", "80")]
    assert sweep(tmp_path / "alike", 1, *searched) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("trial 0"))
    assert line.startswith("trial 0: num-envs 8, env.num-envs 64: score")


def test_equal_settings_are_not_trained_twice(tmp_path, capsys):
    assert sweep(tmp_path, 5, "--search", "policy.activation", "elu,tanh") == 0
    trained = sorted(path.name for path in tmp_path.glob("trial_*"))
    assert len(trained) == 2
    trials = results(tmp_path)["trials"]
    assert sorted({trial["folder"] for trial in trials}) == trained
    assert len({(trial["settings"]["policy.activation"], trial["state"]) for trial in trials}) == 2
    assert re.search(
        r"trial 4: activation (elu|tanh): same settings as trial \d$", capsys.readouterr().out, re.MULTILINE
    )
