"""Cost of saving trajectories, and speed of reading them.

Run it as `python benchmarks/dataset_speed.py`.

Saving: fraction of the time spent on file output while a policy collects with 256 robots of quadruped-walk. The robots
stand, so that episodes are as long as those of a trained policy. Reading: transitions per second of 256 streams of
trajectories with 48 observations and 12 actions, from files in the page cache. Writes one JSON file.
"""

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import describe_machine, write_results

from st_rl.runners import DemonstrationSaver, OnPolicyRunner
from st_rl.sim.tasks import TASKS, make_task
from st_rl.storage.rollout_files.frames import write_frames
from st_rl.storage.rollout_files.rollout_dataset import RolloutDataset

RESULTS = Path(__file__).parent / "results"
NUM_OBS, NUM_ACTIONS = 48, 12


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--robots", type=int, default=256)
    parser.add_argument("--rollouts", type=int, default=12, help="of 64 steps, measured after two more")
    parser.add_argument("--trajectories", type=int, default=512, help="of 512 frames, to read")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="folder for temporary files")
    parser.add_argument("--output", type=Path, default=RESULTS / "dataset_speed.json")
    return parser.parse_args()


class StandingPolicy:
    """Evaluates a policy but returns zero actions, so that episodes are as long as those of a trained policy."""

    def __init__(self, policy: Any):
        self.policy = policy

    def act_inference(self, obs: torch.Tensor) -> torch.Tensor:
        """Zero actions, `(N, A)`."""
        return 0.0 * self.policy.act_inference(obs)

    def reset(self, dones: torch.Tensor) -> None:
        """Reset the hidden states of finished robots."""
        self.policy.reset(dones)


class TimedSaver(DemonstrationSaver):
    """Measures the time of file output."""

    saving_seconds = 0.0

    def save_steps(self) -> None:
        """Save, and add the elapsed time."""
        begin = time.perf_counter()
        super().save_steps()
        self.saving_seconds += time.perf_counter() - begin


def measure_saving(options: argparse.Namespace, folder: Path, file_format: str) -> dict[str, float]:
    """Steps per second with saving, and the fraction of the time that saving takes."""
    env = make_task("quadruped-walk", options.robots, options.device, 0)
    policy = OnPolicyRunner(env, TASKS["quadruped-walk"].training_config(), device=options.device).alg.actor_critic
    saver = TimedSaver(env, StandingPolicy(policy), folder, min_timesteps=1e12, file_format=file_format)
    saver.init_traj_handlers()
    with torch.inference_mode():
        for rollout in range(options.rollouts + 2):
            if rollout == 2:
                saver.saving_seconds, begin, steps = 0.0, time.perf_counter(), saver.total_timesteps
            for step_i in range(saver.rollout_storage_length):
                saver.collect_step(step_i)
    seconds = time.perf_counter() - begin
    files = sum(1 for _ in folder.rglob("traj_*"))
    saver.close()
    return {
        "steps_per_second": (saver.total_timesteps - steps) / seconds,
        "saving_fraction": saver.saving_seconds / seconds,
        "files_written": files,
        "microseconds_per_file": 1e6 * saver.saving_seconds / max(1, files) * (options.rollouts + 2) / options.rollouts,
    }


def seconds_to_create(folder: Path, count: int = 256) -> float:
    """Time to write a small file into a new folder: the lower bound of saving a trajectory."""
    folders = [folder / str(i) for i in range(count)]
    for each in folders:
        each.mkdir(parents=True)
    begin = time.perf_counter()
    for each in folders:
        (each / "file").write_bytes(bytes(10))
    return (time.perf_counter() - begin) / count


def write_data(options: argparse.Namespace, folder: Path, critic: int, frames_per_file: int = 64) -> None:
    """Trajectories of 512 frames."""
    generator = np.random.default_rng(0)
    for index in range(options.trajectories):
        trajectory = folder / f"trajectory_{index}"
        trajectory.mkdir(parents=True)
        for start in range(0, 512, frames_per_file):
            n = frames_per_file
            frames = {
                "observations": generator.normal(size=(n, NUM_OBS)).astype(np.float32),
                "actions": generator.normal(size=(n, NUM_ACTIONS)).astype(np.float32),
                "rewards": np.zeros((n, 1), np.float32),
                "dones": np.zeros((n, 1), np.uint8),
                "values": np.zeros((n, 1), np.float32),
                "timeouts": np.zeros(n, bool),
            }
            if critic:
                frames["privileged_observations"] = generator.normal(size=(n, critic)).astype(np.float32)
            write_frames(trajectory / f"traj_{start:06d}_{start + n:06d}.pickle", frames)


def measure_reading(options: argparse.Namespace, folder: Path, read_ahead: bool) -> list[float]:
    """Transitions per second of every repetition, starting with the first reset."""
    rates = []
    for _ in range(options.repeats):
        data = RolloutDataset(folder, options.robots, device=options.device, read_ahead=read_ahead)
        begin = time.perf_counter()
        count = 0
        try:
            while True:
                count += len(data.get_batch().done)
        except StopIteration:
            pass
        if options.device.startswith("cuda"):
            torch.cuda.synchronize()
        rates.append(count / (time.perf_counter() - begin))
    return rates


def main() -> None:
    options = parse_options()
    torch.set_num_threads(1)
    root = Path(tempfile.mkdtemp(prefix="dataset_speed_", dir=options.folder))
    results: dict[str, Any] = {"benchmark": "dataset_speed", **describe_machine(), "robots": options.robots}
    results["device"] = options.device
    try:
        results["microseconds_to_create_a_file"] = 1e6 * seconds_to_create(root / "empty")
        results["saving"] = {}
        for file_format in ("pickle", "npz"):
            row = results["saving"][file_format] = measure_saving(options, root / file_format, file_format)
            print(
                f"saving {file_format}: {row['saving_fraction']:.1%} of the time, "
                f"{row['steps_per_second']:,.0f} steps/s",
                flush=True,
            )
        results["reading"] = {}
        for name, critic in (("without critic observations", 0), ("with 60 critic values", 60)):
            folder = root / f"critic_{critic}"
            write_data(options, folder, critic)
            for read_ahead in (True, False):
                rates = measure_reading(options, folder, read_ahead)
                key = f"{name}, {'in a thread' if read_ahead else 'when needed'}"
                results["reading"][key] = {"median": float(np.median(rates)), "all": rates}
                print(f"reading {key}: {np.median(rates):,.0f} transitions/s", flush=True)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    write_results(options.output, results)
    print(f"results: {options.output}")


if __name__ == "__main__":
    main()
