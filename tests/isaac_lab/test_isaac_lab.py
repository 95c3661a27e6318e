"""Scripts of Isaac Lab for rsl_rl work with this library's runner, by the change of one import."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.isaac_lab.simulator import find_sources

NEEDED = ("gymnasium", "tensordict", "rsl_rl", "toml", "prettytable", "hydra", "flatdict", "trimesh", "einops")


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    if not find_sources():
        pytest.skip("Isaac Lab is not installed (pip install isaaclab --no-deps) and ISAACLAB_PATH names no checkout")
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        pytest.skip(f"packages of Isaac Lab are missing: {', '.join(missing)}")
    folder = tmp_path_factory.mktemp("isaac_lab")
    program = Path(__file__).with_name("train_and_play.py")
    variables = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, program, folder], capture_output=True, text=True, env=variables)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "result.json").read_text())


def test_training_script_balances_the_pole_for_longer(outcome):
    assert outcome["train"]["late_length"] > 2 * outcome["train"]["early_length"]


def test_play_script_acts_and_exports_the_trained_policy(outcome):
    assert outcome["play"]["difference"] < 1e-5
    assert outcome["play"]["alive"] > 0.95


def test_every_configuration_trains(outcome):
    assert len(outcome["errors"]) > 40
    assert not {name: error for name, error in outcome["errors"].items() if error}
