"""Undamaged files of every kind that st_rl reads, from which the mutants are made."""

import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import torch

from st_rl.cli import main
from st_rl.datasets.clip import make_clip
from st_rl.datasets.formats import write_motion
from st_rl.storage.rollout_files.frames import write_frames
from st_rl.utils.files import write_json
from st_rl.utils.files.folder_lock import FolderLock
from st_rl.utils.files.heartbeat import Heartbeat

TASK = "quadruped-walk"
NUM_ENVS = 8
DESCRIPTION = """mjcf: robot.xml
actuators:
  .*_hip_joint: &gains {stiffness: 20.0, damping: 0.5, effort_limit: 20.0}
  .*_(thigh|calf)_joint: *gains
default_pose: {.*_hip_joint: 0.0, .*_thigh_joint: 0.8, .*_calf_joint: -1.5}
feet: [FL_foot, FR_foot, RL_foot, RR_foot]
action_scale: 0.25
"""


def make_originals(folder: Path) -> dict[str, Path]:
    """Write the originals of all kinds into a folder; returns one file for each kind."""
    torch.manual_seed(0)
    run = folder / "runs" / TASK / "run"
    train = ["train", TASK, "--iterations", "2", "--num-envs", str(NUM_ENVS), "--runner.empirical-normalization"]
    commands = [
        [*train, "--policy.actor-hidden-dims", "16", "16", "--policy.critic-hidden-dims", "16", "--log-dir", str(run)],
        ["eval", str(run), "--num-envs", "4", "--seconds", "2", "--push-speed", "0"],
        ["export", str(run)],
    ]
    for command in commands:
        if main(command) != 0:
            raise RuntimeError(f"st-rl {' '.join(command)} failed")
    write_json(run / "play.json", _traces())
    shutil.copytree(run, folder / "runs" / TASK / "other")
    files = {name: run / name for name in ("run.json", "config.json", "eval.json", "play.json", "policy.json")}
    files |= {"progress.csv": run / "progress.csv", "checkpoint": run / "model_2.pt"}
    return (
        files | _write_dataset(folder / "data") | _write_motions(folder) | _write_robot(folder) | _write_small(folder)
    )


def _traces() -> dict[str, object]:
    """A `play.json` of one robot, without rendering the video."""
    time = np.arange(200) * 0.02
    wave = np.sin(2 * np.pi * time)
    return {
        "period": 0.02,
        "command": [[0.5] * 200, [0.0] * 200, [0.0] * 200],
        "velocity": [wave, wave, wave],
        "contact": [wave > 0, wave < 0, wave < 0, wave > 0],
        "feet": ["FL_foot", "FR_foot", "RL_foot", "RR_foot"],
        "joints": ["FL_hip_joint", "FR_hip_joint"],
        "position": [wave, wave],
        "torque": [wave, wave],
        "command_line": "st-rl play run",
    }


def _write_dataset(folder: Path) -> dict[str, Path]:
    """A dataset of two trajectories, one as pickle and one as npz."""
    generator = np.random.default_rng(0)
    frames = {
        "observations": generator.normal(size=(20, 12)).astype(np.float32),
        "actions": generator.normal(size=(20, 4)).astype(np.float32),
        "rewards": np.ones((20, 1), np.float32),
        "dones": np.eye(20, 1, -19, dtype=np.uint8),
        "values": np.zeros((20, 1), np.float32),
    }
    files = {}
    for index, suffix in enumerate(("pickle", "npz")):
        trajectory = folder / f"trajectory_{index}"
        trajectory.mkdir(parents=True)
        files[f"trajectory {suffix}"] = trajectory / f"traj_000000_000020.{suffix}"
        write_frames(files[f"trajectory {suffix}"], frames)
        (trajectory / "done").touch()
    files["metadata.json"] = folder / "metadata.json"
    write_json(files["metadata.json"], {"env": "e", "policy": "p", "total_timesteps": 40, "total_trajectories": 2})
    return files


def _write_motions(folder: Path) -> dict[str, Path]:
    """A short clip in every motion format."""
    names = [f"{leg}_{joint}_joint" for leg in ("FR", "FL", "RR", "RL") for joint in ("hip", "thigh", "calf")]
    time = np.arange(30)[:, None] / 30.0
    clip = make_clip(
        "walk",
        30.0,
        names,
        0.3 * np.sin(time + np.arange(12)),
        np.concatenate([time, 0 * time, 0.3 + 0 * time], axis=1),
        np.tile([1.0, 0.0, 0.0, 0.0], (30, 1)),
    )
    kinds = {"amp": ".json", "amp pickle": ".pkl", "isaaclab": ".npz", "mjlab": ".npz", "gmr": ".pkl", "csv": ".csv"}
    files = {}
    for kind, suffix in kinds.items():
        path = folder / "motions" / kind.replace(" ", "_") / f"walk{suffix}"
        path.parent.mkdir(parents=True)
        write_motion(path, clip, kind.split()[0])
        files[f"motion {kind}"] = path
    compressed = folder / "motions" / "joblib" / "walk.joblib"
    compressed.parent.mkdir()
    import zlib

    compressed.write_bytes(zlib.compress(pickle.dumps(pickle.loads(files["motion gmr"].read_bytes()), protocol=3)))
    return files | {"motion compressed": compressed}


def _write_robot(folder: Path) -> dict[str, Path]:
    """An MJCF file and a description of it."""
    import st_rl.sim.robots

    robot = folder / "robot"
    robot.mkdir()
    shutil.copy(Path(st_rl.sim.robots.__file__).parent / "quadruped.xml", robot / "robot.xml")
    (robot / "robot.yaml").write_text(DESCRIPTION)
    return {"robot yaml": robot / "robot.yaml", "robot mjcf": robot / "robot.xml"}


def _write_small(folder: Path) -> dict[str, Path]:
    """A heartbeat, a lock and the files of a sweep."""
    small, sweep = folder / "small", folder / "sweep"
    small.mkdir()
    sweep.mkdir()
    heartbeat, lock = Heartbeat(small, "collector", "x"), FolderLock(small)
    texts = {"heartbeat": heartbeat.path.read_text(), "lock": (small / ".lock").read_text()}
    heartbeat.stop()
    lock.release()
    files = {"heartbeat": small / heartbeat.path.name, "lock": small / ".lock"}
    for kind, path in files.items():
        path.write_text(texts[kind])
    _write_study(sweep)
    (sweep / "sweep.json").write_text(json.dumps({"task": TASK, "best_trial": 1, "trials": [{"number": 1}]}))
    return files | {"sweep.json": sweep / "sweep.json", "study.log": sweep / "study.log"}


def _write_study(folder: Path) -> None:
    from st_rl.cli.commands.sweep.storage import StudyAddress, open_study

    study = open_study(StudyAddress(str(folder), "sweep"), 4, 10)
    for value in (0.5, 1.5):
        trial = study.ask()
        trial.suggest_float("learning-rate", 1e-4, 1e-2)
        trial.report(value, 1)
        study.tell(trial, value)
