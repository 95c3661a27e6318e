"""Trainings over several processes from the command line."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from st_rl.cli import main
from st_rl.cli.support.command_line import UsageError
from st_rl.cli.support.ranks import check_gpus
from st_rl.utils.files import load_checkpoint
from tests.runners.training import progress

pytest.importorskip("mujoco")
REPOSITORY = Path(__file__).parents[2]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def processes_of(parent):
    """Pids of the children of a process."""
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def wait_for(path, seconds=90.0):
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
        assert started.wait(timeout=120) == 0, (tmp_path / "log").read_text()
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
def test_impossible_gpus_are_refused(gpus, device, message):
    with pytest.raises(UsageError, match=message):
        check_gpus(gpus, device)


def test_steps_must_be_positive(capsys, tmp_path):
    assert main(["train", "balance", "--steps", "0", "--log-dir", str(tmp_path / "run")]) == 2
    assert "--steps must be at least 1, got 0" in capsys.readouterr().err
