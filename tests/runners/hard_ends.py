"""Trainings that end badly, each in a process of its own: `python -m tests.runners.hard_ends HOW FOLDER`."""

import os
import resource
import sys

import torch

from tests.runners.training import make_runner, small_config


def full_disk(runner) -> None:
    """From the second snapshot on no file may grow beyond half a kilobyte, as on a disk that is full."""

    def fill():
        resource.setrlimit(resource.RLIMIT_FSIZE, (512, resource.RLIM_INFINITY))
        return runner.env

    after_iterations(runner, 3, fill)


def killed_while_saving(runner) -> None:
    """The process is gone when half of the second snapshot is written."""
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
    """Train for 6 iterations with a snapshot after every second one; the named bad end comes after the first."""
    runner = make_runner(config=small_config(save_interval=2, keep_best=False), log_dir=folder)
    {"full_disk": full_disk, "killed_while_saving": killed_while_saving}[how](runner)
    try:
        runner.learn(6)
    except OSError as error:
        print(f"OSError: {error}", file=sys.stderr)
        sys.exit(3)


if __name__ == "__main__":
    main(*sys.argv[1:])
