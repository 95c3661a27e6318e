"""Several workers on one sweep: every trial ends once, a lost worker's trial is tried again, passwords stay hidden."""

import json
import os
import re
import shlex
import signal
import sys
import threading
import time
from importlib.util import find_spec

import pytest

from st_rl.cli import main
from st_rl.cli.commands import sweep
from st_rl.cli.commands.sweep import trials as trials_module
from st_rl.cli.commands.sweep.shared_trials import Heartbeat, SharedTrials
from st_rl.cli.commands.sweep.storage import StudyAddress, open_study
from st_rl.cli.support.command_line import UsageError
from tests.ray_cluster import ray_cluster

pytest.importorskip("mujoco")
optuna = pytest.importorskip("optuna")
SMALL = ["--num-envs", "8", "--runner.num-steps-per-env", "4", "--runner.engine", "eager", "--iterations", "4"]
SEARCH = ["--search", "algorithm.learning-rate", "1e-4", "1e-2"]
SETTINGS = {"x": optuna.distributions.FloatDistribution(0.0, 1.0)}
PASSWORD = "corner/horse battery"


def results(folder):
    return json.loads((folder / "sweep.json").read_text())


@pytest.fixture
def worker(tmp_path):
    """A function that opens one study again and again, as workers do."""
    address = StudyAddress(str(tmp_path), "sweep")
    return lambda num_trials, timeout_s=60.0: SharedTrials(open_study(address, num_trials, 8), num_trials, timeout_s)


def finish(shared, trial, value=1.0):
    shared.study.tell(trial, value)


def test_workers_together_start_exactly_the_number_of_trials(worker):
    started, shared = [], [worker(7) for _ in range(4)]

    def work(trials):
        while (trial := trials.start(SETTINGS)) is not None:
            started.append(trial.number)
            finish(trials, trial)

    threads = [threading.Thread(target=work, args=(trials,)) for trials in shared]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(started) == len(set(started)) == 7
    assert sorted(trial.number for trial in shared[0].finished()) == sorted(started)


def test_default_settings_run_once_if_all_workers_enqueue_them(worker):
    first, second = worker(3), worker(3)
    for shared in (first, second):
        # As if both had seen an empty study.
        shared.study.enqueue_trial({"x": 0.5}, user_attrs={"purpose": "default settings"})
    values = []
    for shared in (first, second, first):
        trial = shared.start(SETTINGS)
        values.append(trial.params["x"])
        finish(shared, trial)
    assert values.count(0.5) == 1
    assert first.start(SETTINGS) is None
    assert len(first.finished()) == 3


def test_trial_of_a_silent_worker_is_tried_again_with_its_settings(worker):
    lost, other = worker(1), worker(1, timeout_s=0.05)
    trial = lost.start(SETTINGS)
    assert other.start(SETTINGS) is None
    time.sleep(0.1)
    retry = other.start(SETTINGS)
    assert retry.params == trial.params
    assert retry.number != trial.number
    finish(other, retry, 3.0)
    assert [found.number for found in other.finished()] == [retry.number]
    # The worker was only suspended: its result comes too late.
    with pytest.raises(optuna.exceptions.UpdateFinishedTrialError):
        trial.report(1.0, 1)
    assert other.start(SETTINGS) is None


def test_beating_worker_keeps_its_trial(worker):
    alive, other = worker(1), worker(1, timeout_s=0.4)
    with Heartbeat(alive.start(SETTINGS), timeout_s=0.2):
        for _ in range(4):
            time.sleep(0.2)
            assert other.start(SETTINGS) is None
    assert other.study.trials[0].user_attrs["heartbeat"] > 5


def test_heartbeat_tells_a_worker_that_it_was_declared_lost(worker):
    alive, is_lost = worker(1), threading.Event()
    trial = alive.start(SETTINGS)
    heartbeat = Heartbeat(trial, timeout_s=0.2)
    heartbeat.on_lost = is_lost.set
    with heartbeat:
        time.sleep(0.1)
        worker(1).study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
        assert is_lost.wait(5.0)


def test_retries_enqueued_by_two_workers_run_once(worker):
    first, second = worker(2), worker(2)
    trial = first.start(SETTINGS)
    # Both have seen the lost trial without a retry.
    attributes = {"retry_of": trial.number, "purpose": f"retry of {trial.number}"}
    for shared in (first, second):
        shared.study.enqueue_trial(trial.params, user_attrs=attributes)
    trial.set_user_attr("interrupted", True)
    first.study.tell(trial, state=optuna.trial.TrialState.FAIL)
    numbers = []
    while (started := second.start(SETTINGS)) is not None:
        numbers.append(started.number)
        finish(second, started)
    assert len(numbers) == len(second.finished()) == 2
    assert [t.params for t in second.finished()].count(trial.params) == 1


def test_worker_that_died_before_the_retry_was_enqueued_loses_nothing(worker):
    died = worker(1)
    trial = died.start(SETTINGS)
    trial.set_user_attr("interrupted", True)
    died.study.tell(trial, state=optuna.trial.TrialState.FAIL)
    assert worker(1).start(SETTINGS).params == trial.params


def test_trial_that_ends_every_worker_fails_in_the_end(worker):
    shared = worker(1, timeout_s=0.02)
    for _ in range(4):
        assert shared.start(SETTINGS) is not None
        shared.fail_lost_trials()
        time.sleep(0.04)
    assert shared.start(SETTINGS) is None
    (failed,) = shared.finished()
    assert failed.state.name == "FAIL"
    assert "in attempt 4" in failed.user_attrs["error"]


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_trial_of_a_killed_process_is_tried_again_by_the_other(tmp_path, capfd, caplog):
    killed = []

    def kill_one():
        while not list(tmp_path.glob("trial_*/progress.csv")):
            time.sleep(0.02)
        study = open_study(StudyAddress(str(tmp_path), "sweep"), 3, 24)
        running = [t for t in study.trials if t.state.name == "RUNNING" and "worker" in t.user_attrs]
        killed.append(int(running[0].user_attrs["worker"].rpartition(":")[2]))
        os.kill(killed[0], signal.SIGKILL)

    thread = threading.Thread(target=kill_one)
    thread.start()
    options = ["--iterations", "24", "--trials", "3", "--workers", "2", "--worker-timeout-s", "2"]
    assert main(["sweep", "balance", *SMALL, *SEARCH, *options, "--log-dir", str(tmp_path)]) == 0
    thread.join()
    found = results(tmp_path)["trials"]
    states = [trial["state"] for trial in found]
    assert len({trial["worker"] for trial in found}) == 2
    lost = found[states.index("interrupted")]
    assert lost["worker"].endswith(f":{killed[0]}")
    (retry,) = [trial for trial in found if trial.get("retry_of") == lost["number"]]
    assert retry["settings"] == lost["settings"]
    assert states.count("complete") + states.count("pruned") == 3
    shown = capfd.readouterr()
    assert len(re.findall(r"^trial \d", shown.out, re.MULTILINE)) == 3
    assert shown.out.count("Best trials") == 1
    assert f"worker {killed[0]} was killed by signal 9" in caplog.text


@pytest.mark.parametrize(
    ("workers", "devices"), [([], ["cuda:0", "cuda:1"]), (["--workers", "3"], ["cuda:0", "cuda:1", "cuda:0"])]
)
def test_gpus_get_one_trial_each(workers, devices, tmp_path, monkeypatch, capsys):
    started = []
    monkeypatch.setattr("st_rl.cli.support.training.ranks.check_gpus", lambda gpus, device: 2)
    monkeypatch.setattr("st_rl.cli.commands.sweep.workers.run_local_workers", started.extend)
    # No worker runs, so no trial ends.
    command = ["sweep", "balance", *SMALL, *SEARCH, "--gpus", "all", *workers, "--log-dir", str(tmp_path)]
    assert main(command) == 1
    assert "the workers ended before all trials; continue with st-rl sweep balance" in capsys.readouterr().err
    assert [plan.device for plan in started] == devices
    assert {plan.folder for plan in started} == {str(tmp_path)}


def test_pruning_compares_with_trials_of_other_workers(tmp_path, monkeypatch):
    def prepare_training(source, options, *arguments):
        runner, run = original(source, options, *arguments)
        runner.evaluator = lambda policy: -1.0 if "other" in str(options.log_dir) else 1.0
        return runner, run

    original = trials_module.prepare_training
    monkeypatch.setattr(trials_module, "prepare_training", prepare_training)
    shared = ["--storage", str(tmp_path / "study")]
    command = ["sweep", "balance", *SMALL, *SEARCH, "--iterations", "8", *shared]
    assert main([*command, "--trials", "3"]) == 0
    # A worker on another machine, with a folder of its own.
    assert main(["sweep", "balance", "--join", *shared, "--trials", "4", "--log-dir", str(tmp_path / "other")]) == 0
    last = results(tmp_path / "other")["trials"][3]
    assert (last["state"], last["iterations"]) == ("pruned", 3)
    assert last["path"] == str(tmp_path / "other" / "trial_3")


def test_password_of_a_database_is_in_no_file_and_no_output(tmp_path, monkeypatch, capfd):
    encoded = "corner%2Fhorse%20battery"
    address = f"postgresql://trainer:{encoded}@127.0.0.1:5432/searches?sslpassword=second-secret"
    # A journal in place of the server.
    journal = StudyAddress(str(tmp_path / "journal"), "sweep").open()
    monkeypatch.setattr(StudyAddress, "open", lambda self: journal)
    monkeypatch.setattr(sys, "argv", ["st-rl", "sweep", "balance", "--storage", address])
    original = trials_module.prepare_training

    def prepare_training(source, options, *arguments):
        if "trial_1" in str(options.log_dir):
            raise RuntimeError(f"lost connection to {address} with password {PASSWORD}")
        return original(source, options, *arguments)

    monkeypatch.setattr(trials_module, "prepare_training", prepare_training)
    folder = tmp_path / "sweep"
    command = ["sweep", "balance", *SMALL, *SEARCH, "--trials", "3", "--log-dir", str(folder), "--storage", address]
    assert main(command) == 0
    assert main(["report", str(folder / "trial_0")]) == 0
    assert "lost connection to *** with password ***" in results(folder)["trials"][1]["error"]
    output = capfd.readouterr()
    texts = {"output": output.out + output.err, "argv": shlex.join(sys.argv)}
    texts |= {str(path): path.read_bytes().decode(errors="ignore") for path in tmp_path.rglob("*") if path.is_file()}
    assert len(texts) > 10
    for name, text in texts.items():
        assert not [secret for secret in (PASSWORD, encoded, "second-secret") if secret in text], name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--workers 0", "--workers must be at least 1, got 0"),
        ("--worker-timeout-s 0", "--worker-timeout-s must be above 0, got 0"),
        ("--join", "--join needs the sweep to work on"),
        ("--storage=", "--storage is empty: give a folder"),
        ("--storage postgresql://a:secret@h:x/y", "is not the address of a database: type postgresql://USER:PASSWORD@"),
        ("--storage postgresql://a:secret@127.0.0.1:1/y", "cannot open postgresql://127.0.0.1:1/y: "),
        ("--storage nosql://a:secret@h/y", "cannot open nosql://h/y: "),
        ("--gpus all --ray auto", "with --ray give --device cuda"),
        ("--steps 100", "give --iterations"),
    ],
)
def test_rejects_impossible_workers_without_showing_the_password(arguments, message, tmp_path, monkeypatch, capsys):
    pytest.importorskip("psycopg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ST_RL_STORAGE", raising=False)
    search = [] if arguments == "--join" else SEARCH
    assert main(["sweep", "balance", *SMALL, *search, *arguments.split()]) != 0
    shown = capsys.readouterr()
    assert message in shown.err
    assert "secret" not in shown.out + shown.err
    assert list(tmp_path.iterdir()) == []


def test_sweep_is_not_started_by_torchrun(tmp_path, monkeypatch):
    """Its ranks would wait for each other, each in a trial of its own."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
    with pytest.raises(UsageError, match="--workers N"):
        sweep.main(["balance", *SMALL, *SEARCH, "--log-dir", str(tmp_path)])


@pytest.mark.parametrize("has_journal", [False, True])
def test_missing_sweep_is_reported_after_a_while(has_journal, tmp_path, monkeypatch, capsys):
    from st_rl.cli.commands.sweep import storage

    if has_journal:
        # As another worker creates it before the study.
        StudyAddress(str(tmp_path), "sweep").open()
    monkeypatch.setattr(storage.wait_for_study, "__defaults__", (0.0,))
    assert main(["sweep", "balance", "--join", "--storage", str(tmp_path)]) == 1
    assert "there is no study 'sweep'" in capsys.readouterr().err


def test_sweep_to_join_cannot_import_code(tmp_path, capsys):
    study = open_study(StudyAddress(str(tmp_path), "sweep"), 2, 4)
    study.set_user_attr("arguments", [*SMALL, *SEARCH, "--policy.class-name", "os:system"])
    assert main(["sweep", "balance", "--join", "--storage", str(tmp_path)]) == 1
    assert "a file must not import code" in capsys.readouterr().err


def test_missing_ray_gives_install_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    command = ["sweep", "balance", *SMALL, *SEARCH, "--ray", "auto", "--log-dir", str(tmp_path)]
    assert main(command) == 1
    assert 'st-rl sweep --ray needs Ray: pip install "st_rl[ray]"' in capsys.readouterr().err


@pytest.mark.skipif(find_spec("ray") is None, reason='needs Ray: pip install "st_rl[ray]"')
def test_ray_runs_the_workers_as_tasks(tmp_path, capfd):
    command = ["sweep", "balance", *SMALL, *SEARCH, "--trials", "1", "--log-dir", str(tmp_path)]
    with ray_cluster(1) as address:
        assert main([*command, "--ray", address]) == 0
    (trial,) = results(tmp_path)["trials"]
    assert trial["state"] == "complete"
    assert not trial["worker"].endswith(f":{os.getpid()}")
    assert "1 trial (1 complete)" in capfd.readouterr().out
