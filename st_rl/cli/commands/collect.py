"""Record the trajectories of a policy as demonstrations: st-rl collect RUN."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from st_rl.cli.support.command_line import parse_options, program, quote
from st_rl.cli.support.run_folders.loaded_run import open_run
from st_rl.cli.support.run_folders.run_folder import TIMESTAMP, RunOptions

if TYPE_CHECKING:
    from st_rl.runners import DemonstrationSaver

DATASETS = Path("datasets")


@dataclass
class CollectOptions(RunOptions):
    """Options of `st-rl collect`."""

    output: Path | None = None
    """Folder of the dataset, new or to extend; None uses datasets/TASK/TIME."""
    steps: int = 100_000
    """Minimum number of steps in the dataset, existing ones included."""
    episodes: int = 0
    """Minimum number of finished episodes in the dataset."""
    num_envs: int | None = None
    """Number of robots simulated in parallel; None uses the number of the training."""
    sample: bool = False
    """Whether to sample actions with the exploration noise of the training; otherwise they are the mean."""
    success_only: bool = False
    """Whether to delete failed trajectories."""
    success_rule: Literal["timeout", "termination"] = "timeout"
    """Which episodes succeed: those that end by time-out, or those that terminate before."""
    format: Literal["pickle", "npz"] = "pickle"
    """File format; both are read without running code."""
    done_files: bool = True
    """Whether to mark finished episodes by an empty file `done`; readers of other libraries may fail on it."""
    rollout_length: int = 64
    """Steps between two writes to disk."""
    seed: int = 1
    """Random seed."""
    device: str = "cpu"
    """Device: cpu, cuda:0, ..."""


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    options = parse_options(CollectOptions, arguments, "collect", __doc__)
    run, checkpoint = open_run(options)
    from st_rl.cli.support.torch_setup import check_device, seed_everything
    from st_rl.runners import DemonstrationSaver

    check_device(options.device)
    seed_everything(options.seed)
    env = run.make_env(options.num_envs, options.device, options.seed)
    policy = run.load_policy(env, checkpoint, options.device)
    folder = options.output or DATASETS / run.run.path.parent.name / time.strftime(TIMESTAMP)
    saver = DemonstrationSaver(
        env,
        policy.actor_critic,
        folder,
        rollout_storage_length=options.rollout_length,
        min_timesteps=options.steps,
        min_episodes=options.episodes,
        success_traj_only=options.success_only,
        demo_by_sample=options.sample,
        obs_normalizer=policy.obs_normalizer,
        success_rule=options.success_rule,
        file_format=options.format,
        done_files=options.done_files,
    )
    saver.policy_iteration = policy.iteration
    print(f"Collecting with {checkpoint} and {env.num_envs} robots into {folder}")
    config = {"run": str(run.run.path), "checkpoint": checkpoint.name, "task": run.source.name, "seed": options.seed}
    return collect(saver, config)


def collect(saver: DemonstrationSaver, config: Mapping[str, Any]) -> int:
    """Run a saver with a progress bar until done or interrupted; returns the exit code."""
    from st_rl.cli.support.graceful_shutdown import GracefulShutdown
    from st_rl.cli.support.progress import progress_bar

    start = time.perf_counter()
    with progress_bar("collecting", show_remaining=False) as update, GracefulShutdown(saver.request_stop) as shutdown:
        saver.on_progress = update
        saver.collect_and_save(config)
    contents = f"{saver.total_timesteps:,} steps and {saver.total_traj_completed:,} finished trajectories"
    new_steps = saver.total_timesteps - saver.timesteps_before
    if new_steps == 0 and saver.total_timesteps >= saver.min_timesteps:
        print(f"Nothing to collect: {saver.save_dir} already has {contents}; ask for more with --steps or --episodes")
        return 0
    rate = new_steps / max(time.perf_counter() - start, 1e-9)
    print(f"{contents} in {saver.save_dir} ({rate:,.0f} steps/s).")
    print(f"Next:\n  {program()} dataset info {quote(saver.save_dir)}   # summarize the dataset")
    return 0 if shutdown.exit_code is None else shutdown.exit_code
