"""Save what a policy does as demonstrations, trajectory by trajectory: st-rl collect RUN."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from st_rl.cli.support.command_line import parse_options
from st_rl.cli.support.run_folder import find_run

DATASETS = Path("datasets")


@dataclass
class CollectOptions:
    """Options of `st-rl collect`."""

    run: str
    """Folder of the run, the beginning of its name, a task (its newest run), or: latest."""
    output: Path | None = None
    """Folder of the data set, also one to add to; datasets/TASK/TIME when None."""
    steps: int = 100_000
    """Steps that the data set shall hold at least, with those that are there already."""
    episodes: int = 0
    """Finished episodes that it shall hold at least."""
    robots: int | None = None
    """Robots that act together; as many as in the training when None."""
    checkpoint: str = "best"
    """Which policy: best, last, an iteration number, or a file."""
    sample: bool = False
    """Whether actions are drawn with the exploration noise of the training; otherwise they are the mean."""
    success_only: bool = False
    """Whether trajectories that failed are deleted."""
    success_rule: Literal["timeout", "termination"] = "timeout"
    """What counts as success: to last until time runs out, or to end before."""
    format: Literal["pickle", "npz"] = "pickle"
    """Format of the files; both are read without running code."""
    rollout_length: int = 64
    """Steps between two visits to the disk."""
    seed: int = 1
    """Of all random numbers."""
    device: str = "cpu"
    """Where to simulate: cpu, cuda:0, ..."""


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    options = parse_options(CollectOptions, arguments, "collect", __doc__ or "")
    run = find_run(options.run)
    checkpoint = run.checkpoint(options.checkpoint)
    from st_rl.cli.support.loaded_run import LoadedRun
    from st_rl.cli.support.torch_setup import check_device, seed_everything
    from st_rl.runners import DemonstrationSaver

    check_device(options.device)
    seed_everything(options.seed)
    saved = LoadedRun(run)
    robots = options.robots or int(saved.settings["num_envs"])
    env = saved.source.make(saved.env_config, robots, options.device, options.seed)
    loaded = saved.load_policy(env, checkpoint, options.device)
    folder = options.output or DATASETS / run.path.parent.name / time.strftime("%Y-%m-%d_%H-%M-%S")
    saver = DemonstrationSaver(
        env,
        loaded.policy.actor_critic,
        folder,
        rollout_storage_length=options.rollout_length,
        min_timesteps=options.steps,
        min_episodes=options.episodes,
        success_traj_only=options.success_only,
        demo_by_sample=options.sample,
        obs_normalizer=loaded.policy.obs_normalizer,
        success_rule=options.success_rule,
        file_format=options.format,
    )
    saver.policy_iteration = loaded.iteration
    print(f"Collecting from {checkpoint} with {robots} robots into {folder}")
    config = {"run": str(run.path), "checkpoint": checkpoint.name, "task": saved.source.name, "seed": options.seed}
    return collect(saver, config)


def collect(saver: Any, config: Any) -> int:
    """Let a saver do its work with a bar, stop gently when asked to; returns the exit code."""
    from st_rl.cli.support.graceful_shutdown import GracefulShutdown
    from st_rl.cli.support.progress import ProgressBar

    begin = time.perf_counter()
    with ProgressBar("collecting", says_time_left=False) as bar, GracefulShutdown(saver.request_stop) as interruption:
        saver.on_progress = bar.update
        saver.collect_and_save(config)
    if saver.min_timesteps <= saver.total_timesteps == saver.timesteps_before:
        print(
            f"Nothing to collect: {saver.save_dir} already holds {saver.total_timesteps:,} steps and "
            f"{saver.total_traj_completed:,} finished trajectories; ask for more with --steps or --episodes"
        )
        return 0
    rate = (saver.total_timesteps - saver.timesteps_before) / max(time.perf_counter() - begin, 1e-9)
    print(
        f"{saver.total_timesteps:,} steps, {saver.total_traj_completed:,} finished trajectories in {saver.save_dir} "
        f"({rate:,.0f} steps/s). Next:\n  st-rl dataset info {saver.save_dir}"
    )
    return 0 if interruption.exit_code is None else interruption.exit_code
