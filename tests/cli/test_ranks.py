"""Trainings over several processes from the command line."""

import json
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

from st_rl.cli import main
from st_rl.cli.commands import resume
from st_rl.cli.support.command_line import UsageError
from st_rl.cli.support.report_page.sections import heading
from st_rl.cli.support.task_source import find_source
from st_rl.cli.support.training import ranks
from st_rl.cli.support.training.ranks import check_gpus, divide_envs
from st_rl.utils import distributed
from st_rl.utils.files import load_checkpoint
from tests.ranks import run_ranks
from tests.runners.training import progress

pytest.importorskip("mujoco")
REPOSITORY = Path(__file__).parents[2]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def processes_of(parent):
    """Pids of the children of a process."""
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def wait_for(path, seconds=200.0):
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"{path} does not appear"
        time.sleep(0.05)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_killed_rank_is_restarted_and_the_run_is_completed(tmp_path):
    run = tmp_path / "run"
    command = [*TORCHRUN, "--max-restarts", "2", "-m", "st_rl", "train", "balance", "--num-envs", "8"]
    command += ["--steps", "7680", "--runner.save-interval", "1", "--log-dir", str(run), "--seed", "4"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    with open(tmp_path / "log", "w") as log:
        started = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=subprocess.STDOUT)
        wait_for(run / "model_3.pt")
        os.kill(processes_of(started.pid)[1], signal.SIGKILL)
        assert started.wait(timeout=200) == 0, (tmp_path / "log").read_text()
    text = (tmp_path / "log").read_text()
    assert "16 robots on 2 ranks, 8 each" in text
    assert "failed (exitcode: -9) local_rank: 1" in text
    assert "Resuming balance after iteration" in text
    # 7,680 steps of 16 robots in rollouts of 24 steps.
    assert [int(row["step"]) for row in progress(run)] == list(range(20))
    assert len(load_checkpoint(run / "model_20.pt")["rank_state_dicts"]) == 1
    assert json.loads((run / "run.json").read_text())["num_ranks"] == 2
    assert (run / "rank_1.log").is_file()


@pytest.mark.parametrize(
    ("gpus", "device", "message"),
    [
        ("2", "cpu", "needs --device cuda"),
        ("0", "cuda", "give a number of GPUs, or all"),
        ("many", "cuda", "give a number of GPUs, or all"),
        ("99", "cuda", "torch finds"),
    ],
)
def test_rejects_invalid_gpus(gpus, device, message):
    with pytest.raises(UsageError, match=message):
        check_gpus(gpus, device)


def test_steps_must_be_positive(capsys, tmp_path):
    assert main(["train", "balance", "--steps", "0", "--log-dir", str(tmp_path / "run")]) == 2
    assert "--steps must be at least 1, got 0" in capsys.readouterr().err


def read_settings(run):
    return json.loads((run / "run.json").read_text())


def test_environments_are_divided_again_on_another_number_of_ranks(tmp_path, caplog):
    run = tmp_path / "run"
    options = ["--num-envs", "4", "--runner.num-steps-per-env", "8", "--runner.save-interval", "1"]
    assert main(["train", "balance", *options, "--iterations", "3", "--steps", "640", "--log-dir", str(run)]) == 0
    # As if these three iterations had been one half of a training over two ranks.
    settings = read_settings(run)
    assert settings["steps"] is None
    (run / "run.json").write_text(json.dumps(settings | {"num_ranks": 2, "steps": 640, "iterations": 10}))
    with caplog.at_level("WARNING", logger="st_rl"):
        assert main(["resume", str(run)]) == 0
    assert "8 environments are divided again: 2 x 4 before, 1 x 8 now" in caplog.text
    # 3 x 32 steps are done, and 544 are left: 9 iterations of 64, instead of the 7 of 10 that were planned.
    assert load_checkpoint(run / "model_12.pt")["runner_state_dict"]["tot_timesteps"] == 96 + 9 * 64
    assert [int(row["step"]) for row in progress(run)] == list(range(12))
    settings = read_settings(run)
    assert (settings["num_envs"], settings["num_ranks"], settings["iterations"]) == (8, 1, 12)


@pytest.mark.parametrize(("total", "num_ranks", "divided"), [(256, 4, 64), (100, 3, 33), (2, 4, 1)])
def test_ranks_share_all_environments_as_evenly_as_possible(total, num_ranks, divided, monkeypatch):
    monkeypatch.setattr(distributed, "world_size", lambda: num_ranks)
    assert divide_envs(total, 1) == divided


def distill_on_ranks(folder):
    """A distillation that both ranks start, with the default run folder; returns the exit code."""
    os.chdir(folder)
    options = ["--num-envs", "4", "--runner.num-steps-per-env", "4", "--iterations", "2"]
    return main(["distill", str(folder / "teacher"), "balance", *options])


def test_distillation_on_ranks_has_one_run_folder(tmp_path):
    options = ["--num-envs", "4", "--runner.num-steps-per-env", "4", "--iterations", "1"]
    assert main(["train", "balance", *options, "--log-dir", str(tmp_path / "teacher")]) == 0
    assert run_ranks(distill_on_ranks, tmp_path, 2) == [0, 0]
    (run,) = (tmp_path / "runs" / "balance").iterdir()
    assert {"teacher.pt", "model_2.pt", "rank_1.log"} <= {path.name for path in run.iterdir()}


@pytest.fixture
def restarted(monkeypatch, tmp_path):
    """A process that torchrun has started again, with the run of its first attempt; returns the resumed runs."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text(json.dumps({"torchrun_id": "job", "task": "balance"}))
    (tmp_path / "run" / "model_1.pt").write_bytes(b"")
    resumed = []
    monkeypatch.setattr(resume, "main", lambda arguments: resumed.append(arguments) or 0)
    return resumed


@pytest.mark.parametrize("command", ["train", "distill"])
def test_restarted_command_resumes_its_run(command, restarted, tmp_path, monkeypatch):
    from st_rl.cli.commands import distill

    monkeypatch.setattr(distill, "_load_teacher", lambda run, task: types.SimpleNamespace(source=find_source(task)))
    monkeypatch.setattr(distill, "_student_task", lambda source, teacher: source.default_config)
    words = [command, *([str(tmp_path / "run")] if command == "distill" else []), "balance"]
    assert main([*words, "--log-dir", str(tmp_path / "run")]) == 0
    assert restarted == [[str(tmp_path / "run"), "--task", "balance"]]


def test_restart_of_a_complete_training_is_a_success(restarted, tmp_path, monkeypatch, capsys):
    def nothing_left(arguments):
        raise resume.NothingLeftError("finished")

    monkeypatch.setattr(resume, "main", nothing_left)
    assert main(["train", "balance", "--log-dir", str(tmp_path / "run")]) == 0
    assert "The training is complete" in capsys.readouterr().out


def test_all_ranks_agree_that_the_minutes_are_over(tmp_path, monkeypatch):
    """A rank that continues alone would wait for the others."""
    run = tmp_path / "run"
    options = ["--num-envs", "4", "--runner.num-steps-per-env", "8", "--iterations", "1", "--minutes", "2"]
    assert main(["train", "balance", *options, "--log-dir", str(run)]) == 0
    monkeypatch.setattr(distributed, "value_of_main", lambda value: 120.1 if isinstance(value, float) else value)
    (run / "run.json").write_text(json.dumps(read_settings(run) | {"iterations": 9}))
    with pytest.raises(resume.NothingLeftError, match="2 minutes"):
        resume.main([str(run)])


@pytest.mark.parametrize("command", ["train", "distill"])
def test_gpus_start_the_command_once_per_gpu(command, monkeypatch):
    started = []
    monkeypatch.setattr(ranks, "check_gpus", lambda gpus, device: 3)
    monkeypatch.setattr(ranks, "start_torchrun", lambda count, arguments: started.append((count, arguments)))
    assert ranks.launch_ranks("3", "cpu", command, ["balance", "--gpus", "3"]) == "cuda"
    assert started == [(3, [command, "balance", "--gpus", "3"])]


def test_report_shows_the_robots_of_all_ranks():
    settings = {"seed": 1, "num_envs": 128, "num_ranks": 4}
    assert "1 · 512 robots on 4 ranks, 128 each" in heading("balance", settings, {})


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs SIGTERM")
def test_rank_that_waits_for_a_dead_one_ends_by_itself(tmp_path):
    code = "import time, st_rl.cli.support.graceful_shutdown as g; g.RANK_EXIT_S = 0.2\n"
    # Python calls no handler while the main thread is in the C library.
    code += "import ctypes\nwith g.exit_on_signals():\n    print('ready', flush=True)\n"
    code += "    libc = ctypes.CDLL(None)\n    while True: libc.sleep(30)\n"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TORCHELASTIC_RUN_ID": "job"}
    process = subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 143


@pytest.mark.parametrize(("is_rank", "printed"), [(True, "cleaned up\n"), (False, "cleaned up\ndeleted\n")])
def test_rank_ends_without_deleting_its_modules(is_rank, printed):
    """It takes longer than to save, and torchrun waits for it."""
    code = "import atexit, st_rl.cli\natexit.register(print, 'cleaned up')\n"
    code += "class Kept:\n    def __del__(self, print=print): print('deleted')\n"
    code += "kept = Kept()\nst_rl.cli.exit_process(3)"
    environment = {key: value for key, value in os.environ.items() if key != "TORCHELASTIC_RUN_ID"}
    environment |= {"PYTHONPATH": str(REPOSITORY)} | ({"TORCHELASTIC_RUN_ID": "job"} if is_rank else {})
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, printed, "")
