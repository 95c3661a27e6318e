"""Put a trained policy into the package: python benchmarks/pretrained.py RUN NAME.

Keeps what playing, evaluating, exporting and training further need: weights and normalizers of the best checkpoint,
the settings, the evaluation (st-rl eval RUN comes first) and the command. Weights of the critic, which only further
training reads, are stored in half precision. Optimizer, environment states and all names of the machine are left out.
Prints the size of all policies, which must stay below 3 MB.
"""

import argparse
import json
import re
import sys
from pathlib import Path

import torch

from st_rl.cli.support.run_folders.pretrained import FOLDER
from st_rl.cli.support.run_folders.run_folder import RunFolder
from st_rl.utils.files import load_checkpoint, write_checkpoint, write_json

# All commands of a policy that was trained in several stages, one per line; run.json has the last.
COMMANDS_FILE = "command.txt"
LIMIT = 3_000_000
CHECKPOINT_KEYS = ("model_state_dict", "obs_norm_state_dict", "critic_obs_norm_state_dict", "iter", "infos", "score")
CRITIC = ("critic.", "memory_c.")
RUN_KEYS = (
    *("task", "task_config", "environment", "num_envs", "num_ranks", "seed", "device", "iterations", "minutes"),
    *("started", "command_line", "policy_metadata", "parent", "ended"),
)


def with_half_critic(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights of a policy with those of the critic in half precision; loading converts them back."""
    return {name: value.half() if name.startswith(CRITIC) else value for name, value in state.items()}


def clean_command(command: str) -> str:
    """The command as a user would type it: no paths of a machine, and no folder of the run."""
    command = re.sub(r"^\S*python\S*( -m st_rl)", r"python\1", command)
    command = re.sub(r"/\S*/runs/", "runs/", command)
    command = re.sub(r"^(python -m st_rl|\S*/st-rl)\b", "st-rl", command)
    return re.sub(r" --log-dir \S+", "", command)


def package(run: RunFolder, name: str) -> Path:
    """Write the folder of a policy in the package and return it."""
    target = FOLDER / name
    target.mkdir(parents=True, exist_ok=True)
    checkpoint = load_checkpoint(run.checkpoint("best"), map_location="cpu")
    kept = {key: checkpoint[key] for key in CHECKPOINT_KEYS if key in checkpoint}
    write_checkpoint({**kept, "model_state_dict": with_half_critic(kept["model_state_dict"])}, target / "best.pt")
    settings = {key: value for key, value in run.settings.items() if key in RUN_KEYS}
    settings["command_line"] = clean_command(str(settings.get("command_line", "")))
    evaluation = run.read_json("eval.json")
    evaluation["checkpoint"] = "best.pt"
    evaluation["command_line"] = f"st-rl eval pretrained:{name}"
    write_json(target / "run.json", settings)
    write_json(target / "config.json", run.read_json("config.json"))
    write_json(target / "eval.json", evaluation)
    if run.file(COMMANDS_FILE).is_file():
        (target / COMMANDS_FILE).write_text(run.file(COMMANDS_FILE).read_text())
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("name")
    options = parser.parse_args()
    folder = package(RunFolder(options.run), options.name)
    names_machine = re.compile(r'[" ]/(home|root|tmp|work)')
    machine_paths = [path.name for path in folder.glob("*.json") if names_machine.search(path.read_text())]
    size = sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file())
    print(json.dumps({"folder": str(folder), "bytes_of_all": size, "files_with_paths": machine_paths}))
    sys.exit(size > LIMIT or bool(machine_paths))


if __name__ == "__main__":
    main()
