"""Device and number of robots that a training takes unless options name them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from st_rl.cli.support.command_line import option_value
from st_rl.cli.support.task_source import EnvConfig, TaskSource
from st_rl.cli.support.training.settings_file import SettingsFile

AUTO = "auto"
# GPU memory: what a training takes whatever its size, and the estimate per robot. quadruped-walk was measured at
# 0.17 MiB per robot (256 to 32,768 robots); terrain, images, more joints and recurrent policies take more.
BASE_MEMORY = 2 * 2**30
MEMORY_PER_ROBOT = 2**20
# Below this a GPU is no faster with fewer robots.
FEWEST_ROBOTS = 256


class Gpu(NamedTuple):
    """A GPU that torch can use."""

    name: str
    free_bytes: int


def find_gpu(device: str = "cuda") -> Gpu | None:
    """Return the GPU of a device with its free memory; None if torch finds none."""
    import torch

    if not torch.cuda.is_available():
        return None
    try:
        return Gpu(torch.cuda.get_device_name(device), torch.cuda.mem_get_info(device)[0])
    except (RuntimeError, AssertionError, ValueError):  # no such number, or not a GPU; the training says which
        return None


def choose_device(source: TaskSource[Any], device: str) -> str:
    """Return the device of a training: for `auto`, a GPU if torch finds one and the task uses it, else the CPU."""
    if device != AUTO:
        return device
    return "cuda" if source.uses_gpu and find_gpu() is not None else "cpu"


def choose_num_envs(wanted: int, device: str) -> int:
    """Return the number of robots on a GPU: `wanted`, halved until the estimate fits into the free memory.

    Ranks must agree without asking each other, so a training over several ranks always takes `wanted`.
    """
    gpu = find_gpu(device)
    if gpu is None or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return wanted
    number = wanted
    while number > FEWEST_ROBOTS and BASE_MEMORY + number * MEMORY_PER_ROBOT > gpu.free_bytes:
        number //= 2
    return number


def fit_to_device(source: TaskSource[EnvConfig], arguments: Sequence[str]) -> TaskSource[EnvConfig]:
    """Return the task with the defaults for the device and the number of robots that arguments or `--config` name."""
    device = choose_device(source, _typed(arguments, "device") or AUTO)
    if _typed(arguments, "gpus") is not None:
        device = "cuda"
    if not device.startswith("cuda"):
        return source
    typed = _typed(arguments, "num-envs") or _typed(arguments, "env.num-envs")
    if typed is not None:
        # The parser reports anything but a number.
        return source.for_gpu(int(typed)) if typed.isdecimal() and int(typed) > 0 else source
    fitted = source.for_gpu()
    wanted = getattr(fitted.default_config, "num_envs", None)
    number = wanted if wanted is None else choose_num_envs(wanted, device)
    return fitted if number == wanted else source.for_gpu(number)


def describe_choice(source: TaskSource[Any], options: Any, num_envs: int, iterations: int | None) -> str:
    """Return one line: device, number of robots and length of a training, and the options that change them."""
    length = f"{options.minutes:g} minutes" if iterations is None else f"{iterations} iterations"
    few = source.for_gpu() if options.device.startswith("cuda") else source
    wanted = getattr(few.default_config, "num_envs", num_envs)
    is_short = options.device.startswith("cuda") and options.num_envs is None and num_envs < wanted
    memory = f" (GPU memory is short for {wanted})" if is_short else ""
    return (
        f"Chosen: {options.device}, {num_envs} robots{memory}, {length}; --device, --num-envs, --iterations change it"
    )


def _typed(arguments: Sequence[str], name: str) -> str | None:
    """Return the value of an option in the arguments, or else in the file of `--config`; None without either."""
    value = option_value(arguments, f"--{name}")
    file = option_value(arguments, "--config")
    if value is not None or file is None:
        return value
    values: Any = SettingsFile.read(Path(file)).values
    for key in name.replace("-", "_").split("."):
        values = values.get(key, values.get(key.replace("_", "-"))) if isinstance(values, dict) else None
    return None if values is None else str(values)
