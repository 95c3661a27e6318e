"""Networks, actions, values and one update compared with rsl_rl 5.5.1, for each kind of configuration.

    python benchmarks/rsl_rl_parity.py --peer-python VENV/bin/python

The peer builds each configuration, collects a rollout and updates once (worker_rsl_rl_parity.py). This side builds the
same dictionary, loads the peer's checkpoint, takes the same steps and updates; the largest differences are written.
`--freeze FOLDER` writes the small files that the tests compare with.
"""

import argparse
import logging
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from machine import describe_machine, write_results

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent))

from tests.runners.setup.rsl_rl_peer import compare, pack, unpack  # noqa: E402

FROZEN = ("mlp", "mlp_log", "hetero_log", "lstm", "gru", "cnn", "rnd", "symmetry", "distillation")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", required=True, help="Python of a virtual environment with rsl-rl-lib")
    parser.add_argument("--freeze", type=Path, help="folder for the files of the tests")
    parser.add_argument("--output", type=Path, default=FOLDER / "results" / "rsl_rl_parity.json")
    options = parser.parse_args()
    logging.getLogger("st_rl").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    cases, version = {}, ""
    with tempfile.TemporaryDirectory() as folder:
        command = [options.peer_python, str(FOLDER / "worker_rsl_rl_parity.py"), folder]
        subprocess.run(command, check=True, cwd=FOLDER, stdout=subprocess.DEVNULL)
        for path in sorted(Path(folder).glob("*.npz")):
            arrays = unpack(path)
            version = str(arrays["version"])
            cases[path.stem] = compare(arrays, Path(folder))
            print(f"{path.stem:<18}", "  ".join(f"{name} {value:.1e}" for name, value in cases[path.stem].items()))
            if options.freeze is not None and path.stem in FROZEN:
                options.freeze.mkdir(parents=True, exist_ok=True)
                pack(arrays, options.freeze / path.name)
    notes = {
        "parameters": "difference of the numbers of parameters",
        "update": "largest difference of a weight after one update",
        "moved": "largest change of a weight in that update",
        "cnn_shared": "rsl_rl's optimizer holds shared encoders twice and steps them twice",
        "mlp_defaults": "five epochs of Adam on 147,000 weights: gradients near 0 amplify rounding",
    }
    header = {"benchmark": "rsl_rl_parity", **describe_machine(), "peer": f"rsl-rl-lib {version}", "notes": notes}
    write_results(options.output, {**header, "largest_differences": cases})


if __name__ == "__main__":
    main()
