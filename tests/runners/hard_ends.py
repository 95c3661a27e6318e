"""Trainings that crash, each in its own process: `python -m tests.runners.hard_ends HOW FOLDER`."""

import os
import resource
import sys

import torch

from tests.runners.training import make_runner, small_config


def full_disk(runner) -> None:
    """From the second checkpoint on, files are limited to half a kilobyte, like on a full disk."""

    def fill():
        resource.setrlimit(resource.RLIMIT_FSIZE, (512, resource.RLIM_INFINITY))
        return runner.env

    after_iterations(runner, 3, fill)


def killed_while_saving(runner) -> None:
    """Kill the process when half of the second checkpoint is written."""
    whole = torch.save

    def half(payload, file):
        if payload.get("iter", 0) > 2:
            file.write(b"half a snapshot")
            file.flush()
            os._exit(9)
        whole(payload, file)

    torch.save = half


def after_iterations(runner, iterations: int, action) -> None:
    evaluation = runner.evaluation

    def evaluate():
        if runner.current_learning_iteration == iterations:
            action()
        evaluation()

    runner.evaluation = evaluate


def main(how: str, folder: str) -> None:
    """Train for 6 iterations with a checkpoint every second one; the named crash happens after the first checkpoint."""
    runner = make_runner(config=small_config(save_interval=2, keep_best=False), log_dir=folder)
    {"full_disk": full_disk, "killed_while_saving": killed_while_saving}[how](runner)
    try:
        runner.learn(6)
    except OSError as error:
        print(f"OSError: {error}", file=sys.stderr)
        sys.exit(3)


if __name__ == "__main__":
    main(*sys.argv[1:])
