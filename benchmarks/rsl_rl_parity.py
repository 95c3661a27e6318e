"""Networks, actions, values and one update compared with rsl_rl 5.5.1, for each kind of configuration.

    python benchmarks/rsl_rl_parity.py --peer-python VENV/bin/python

The peer builds each configuration, collects a rollout and updates once (worker_rsl_rl_parity.py). This side builds the
same dictionary, loads the peer's checkpoint, takes the same steps and updates; the largest differences are written,
in float32 and in float64.
`--freeze FOLDER` writes the small files that the tests compare with.
"""

import argparse
import logging
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from machine import describe_machine, write_results

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent))

from tests.runners.setup.rsl_rl_peer import compare, pack, unpack  # noqa: E402

FROZEN = {
    "float32": ("mlp", "mlp_log", "hetero_log", "lstm", "gru", "cnn", "rnd", "symmetry", "distillation"),
    "float64": ("mlp",),
}


PRECISIONS = {"float32": torch.float32, "float64": torch.float64}
NOTES = {
    "parameters": "difference of the numbers of parameters",
    "update": "largest difference of a weight after one update; both sides take the samples in the same order",
    "moved": "largest change of a weight in that update",
    "loss": "of the logged loss, which this library averages in float32",
    "float64": "separates differences in rounding, which vanish here, from those in the algorithm, which stay",
    "mlp_defaults": "three layers of 256 and five epochs: Adam divides gradients near 0 by their own size, which "
    "amplifies the rounding of float32; another order of the samples alone changes a weight by as much",
    "cnn_shared": "rsl_rl's optimizer holds shared encoders twice, clips and steps them twice",
    "cnn_shared_once": "the same with each parameter once in rsl_rl's optimizer",
}


def compare_cases(peer_python: str, precision: str, freeze: Path | None) -> tuple[dict[str, dict[str, float]], str]:
    """Run the peer and this side in one precision; returns the differences of each case and the peer's version."""
    cases, version = {}, ""
    torch.set_default_dtype(PRECISIONS[precision])
    with tempfile.TemporaryDirectory() as folder:
        command = [peer_python, str(FOLDER / "worker_rsl_rl_parity.py"), folder, precision]
        subprocess.run(command, check=True, cwd=FOLDER, stdout=subprocess.DEVNULL)
        for path in sorted(Path(folder).glob("*.npz")):
            arrays = unpack(path)
            version = str(arrays["version"])
            cases[path.stem] = compare(arrays, Path(folder))
            numbers = "  ".join(f"{name} {value:.1e}" for name, value in cases[path.stem].items())
            print(f"{precision} {path.stem:<18} {numbers}")
            if freeze is not None and path.stem in FROZEN[precision]:
                freeze.mkdir(parents=True, exist_ok=True)
                pack(arrays, freeze / path.name, np.dtype(precision).type)
    return cases, version


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", required=True, help="Python of a virtual environment with rsl-rl-lib")
    parser.add_argument("--freeze", type=Path, help="folder for the files of the tests")
    parser.add_argument("--output", type=Path, default=FOLDER / "results" / "rsl_rl_parity.json")
    options = parser.parse_args()
    logging.getLogger("st_rl").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    differences: dict[str, dict[str, dict[str, float]]] = {}
    version = ""
    for precision in PRECISIONS:
        freeze = None if options.freeze is None else options.freeze / ("" if precision == "float32" else precision)
        differences[precision], version = compare_cases(options.peer_python, precision, freeze)
    header = {"benchmark": "rsl_rl_parity", **describe_machine(), "peer": f"rsl-rl-lib {version}", "notes": NOTES}
    write_results(options.output, {**header, "largest_differences": differences})


if __name__ == "__main__":
    main()
