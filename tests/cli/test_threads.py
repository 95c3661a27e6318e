"""How st-rl train chooses the threads of updates, and that a run keeps them."""

import json
from types import SimpleNamespace

import pytest
import torch

from st_rl import system_info
from st_rl.cli import main
from st_rl.cli.support import torch_setup
from st_rl.cli.support.torch_setup import choose_update_threads

ENV = SimpleNamespace(num_envs=256, num_obs=8)


def config(width=128, **settings):
    policy = {"actor_hidden_dims": [width], "critic_hidden_dims": [width]}
    return {"num_steps_per_env": 24, "policy": policy, "algorithm": {"num_mini_batches": 4}, **settings}


@pytest.fixture(autouse=True)
def four_cores(monkeypatch):
    monkeypatch.setattr(system_info, "num_cores", lambda: 4)


def test_threads_of_large_updates_are_measured():
    chosen = choose_update_threads(None, config(), ENV, "cpu")
    assert (chosen.number, chosen.candidates) == (1, (1, 4))


@pytest.mark.parametrize(
    ("threads", "settings", "device", "chosen"),
    [
        (2, {}, "cpu", 2),
        (None, {"update_threads": 3}, "cpu", 3),
        (None, {"width": 16}, "cpu", 1),
        (None, {}, "cuda", None),
    ],
    ids=["all threads given", "those of updates given", "too small", "on a GPU"],
)
def test_threads_are_not_measured_if_known(threads, settings, device, chosen):
    fixed = choose_update_threads(threads, config(**settings), ENV, device)
    assert (fixed.number, fixed.candidates) == (chosen, ())


def test_run_keeps_its_threads_on_resume(tmp_path, monkeypatch):
    seen = []
    folder = tmp_path / "run"
    arguments = ["--iterations", "1", "--num-envs", "4", "--runner.update-threads", "2", "--log-dir", str(folder)]
    assert main(["train", "balance", *arguments]) == 0
    assert json.loads((folder / "config.json").read_text())["runner"]["update_threads"] == 2

    from st_rl.algorithms import PPO

    update = PPO.update
    monkeypatch.setattr(PPO, "update", lambda self, it: (seen.append(torch.get_num_threads()), update(self, it))[1])
    assert main(["resume", str(folder), "--iterations", "1"]) == 0
    assert main(["resume", str(folder), "--iterations", "1", "--threads", "1"]) == 0
    assert seen == [2, 1]


def test_measured_threads_are_measured_again_after_a_resume(tmp_path, monkeypatch):
    from st_rl.runners import OnPolicyRunner

    monkeypatch.setattr(torch_setup, "SMALL_MINI_BATCH", 1)
    used = []
    learn = OnPolicyRunner.learn

    def watched(self, *args, **kwargs):
        used.append((self.update_threads.number, self.update_threads.candidates))
        return learn(self, *args, **kwargs)

    monkeypatch.setattr(OnPolicyRunner, "learn", watched)
    folder = tmp_path / "run"
    assert main(["train", "balance", "--iterations", "1", "--num-envs", "4", "--log-dir", str(folder)]) == 0
    assert main(["resume", str(folder), "--iterations", "1"]) == 0
    assert main(["resume", str(folder), "--iterations", "1", "--threads", "1"]) == 0
    assert used == [(1, (1, 4)), (1, (1, 4)), (1, ())]
