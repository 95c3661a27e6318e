"""mjlab with rsl_rl and st_rl on the same robots, in turn on one GPU: `st-rl bench peers --peer-python PYTHON`.

Both train whole iterations on flat ground with mjlab's MJCF, hidden layers 512-256-128 and 4 substeps of 5 ms: mjlab
its own velocity task, st_rl `quadruped-walk` or `humanoid-walk` with that robot. With `--motion CLIP`, a clip of the
G1, mjlab's tracking task and `humanoid-track` too. mjlab runs in a virtual environment of its own, which needs
rsl-rl-lib 5.5.1 too; st_rl reads the robots from there.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from machine import describe_machine, write_results
from tracking import SETTINGS

FOLDER = Path(__file__).resolve().parent
RSL_RL = "5.5.1"
"""The version of rsl_rl that is compared; mjlab 1.6 pins an older one and runs with this one."""


class Comparison(NamedTuple):
    """The same robot in both libraries."""

    mjlab_task: str
    task: str
    description: Path


ROBOTS = FOLDER.parent / "st_rl" / "sim" / "robots"
EXAMPLES = FOLDER.parent / "examples" / "robots"
TRACKING = "g1-tracking"
COMPARISONS = {
    "go1": Comparison("Mjlab-Velocity-Flat-Unitree-Go1", "quadruped-walk", ROBOTS / "go1.yaml"),
    "g1": Comparison("Mjlab-Velocity-Flat-Unitree-G1", "humanoid-walk", EXAMPLES / "g1.yaml"),
    TRACKING: Comparison("Mjlab-Tracking-Flat-Unitree-G1", "humanoid-track", FOLDER / "g1_tracking.yaml"),
}


def check_peer(python: str) -> Path:
    """The folder of mjlab's packages; exits if a package is missing or rsl_rl has another version."""
    code = "from importlib import metadata as m, util as u"
    code += "; print(m.version('rsl-rl-lib'), u.find_spec('mjlab').origin)"
    answer = subprocess.run([python, "-c", code], capture_output=True, text=True)
    if answer.returncode:
        sys.exit(f"'{python}' lacks mjlab or rsl_rl: pip install mjlab, then rsl-rl-lib=={RSL_RL} with --no-deps")
    version, origin = answer.stdout.split(maxsplit=1)
    if version != RSL_RL:
        sys.exit(f"'{python}' has rsl-rl-lib {version}: pip install --no-deps rsl-rl-lib=={RSL_RL}")
    return Path(origin.strip()).parent.parent


def robot_description(name: str, packages: Path, folder: Path) -> Path:
    """A copy of a description that names the MJCF by its path in the peers' environment."""
    text = COMPARISONS[name].description.read_text()
    path = folder / f"{name}.yaml"
    path.write_text(text.replace("mjcf: package:", f"mjcf: {packages}/"))
    return path


def run(command: list[str], output: Path) -> dict[str, Any]:
    """Run a benchmark in a process of its own and read its results."""
    environment = os.environ | {"MUJOCO_GL": "disable"}
    subprocess.run([*command, "--output", str(output)], check=True, stdout=sys.stderr, env=environment)
    return json.loads(output.read_text())


def measure_mjlab(name: str, options: argparse.Namespace, packages: Path, folder: Path) -> dict[str, Any]:
    """One training with mjlab and rsl_rl."""
    command = [options.peer_python, str(FOLDER / "mjlab_gpu.py"), "--task", COMPARISONS[name].mjlab_task]
    command += ["--robots", str(options.robots), "--iterations", str(options.peer_iterations)]
    if name == TRACKING:
        robot, converted = robot_description(name, packages, folder), folder / "clip.npz"
        convert = [sys.executable, "-m", "st_rl", "motion", "convert", str(options.motion), str(converted)]
        convert += ["--format", "mjlab", "--robot", str(robot)]
        subprocess.run(convert, check=True, stdout=sys.stderr, cwd=FOLDER.parent)
        command += ["--motion-file", str(converted)]
    result = run(command, folder / "mjlab.json")
    keys = ("iteration_ms", "steps_per_second", "environment_ms", "update_ms", "versions")
    return {key: result[key] for key in keys}


def measure_st_rl(name: str, options: argparse.Namespace, packages: Path, folder: Path) -> dict[str, Any]:
    """One training with st_rl, of the same robot with the same networks and physics."""
    command = [sys.executable, str(FOLDER / "walk_gpu.py"), "--task", COMPARISONS[name].task, "--no-parts"]
    command += ["--robot", str(robot_description(name, packages, folder)), "--robots", str(options.robots)]
    command += ["--timestep", "0.005", "--substeps", "4", "--hidden", "512", "256", "128"]
    command += ["--iterations", str(options.iterations), "--save-interval", "1000000"]
    if name == TRACKING:
        settings = SETTINGS | {"motions": (str(options.motion.resolve()),)}
        command += ["--env", *(f"{key}={value!r}" for key, value in settings.items())]
    result = run(command, folder / "st_rl.json")
    row = result["rows"][0]
    return {
        "iteration_ms": row["median_iteration_ms"],
        "steps_per_second": row["steps_per_second_median"],
        "first_iterations_s": row["first_iterations_s"],
        "memory_gib": row["memory_gib"],
        "versions": result["versions"],
    }


def summarize(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the rounds of both libraries and their ratio."""
    medians = {
        side: {key: statistics.median(r[side][key] for r in rounds) for key in ("iteration_ms", "steps_per_second")}
        for side in ("mjlab", "st_rl")
    }
    ratio = medians["mjlab"]["iteration_ms"] / medians["st_rl"]["iteration_ms"]
    return {**medians, "ratio": ratio, "rounds": rounds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", required=True, help=f"Python with mjlab and rsl-rl-lib {RSL_RL}")
    parser.add_argument("--only", nargs="+", choices=list(COMPARISONS), metavar="ROBOT")
    parser.add_argument("--motion", type=Path, help=f"clip of the G1, for {TRACKING}")
    parser.add_argument("--robots", type=int, default=4096, help="environments on both sides")
    parser.add_argument("--iterations", type=int, default=60, help="timed iterations of st_rl")
    parser.add_argument("--peer-iterations", type=int, default=12, help="timed iterations of mjlab")
    parser.add_argument("--rounds", type=int, default=1, help="trainings of each library, in turn")
    parser.add_argument("--output", type=Path, default=FOLDER / "results" / "peers.json", help="results file")
    options = parser.parse_args()
    options.only = options.only or [name for name in COMPARISONS if name != TRACKING or options.motion]
    if TRACKING in options.only and options.motion is None:
        parser.error(f"{TRACKING} needs --motion, a clip of the G1")
    packages = check_peer(options.peer_python)
    results: dict[str, Any] = {"benchmark": "peers", **describe_machine(), "robots": options.robots, "rows": []}
    print(f"{'robot':>11} {'mjlab, rsl_rl ' + RSL_RL:>32} {'st_rl':>32} {'ratio':>6}")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only:
            rounds = [
                {
                    "mjlab": measure_mjlab(name, options, packages, Path(folder)),
                    "st_rl": measure_st_rl(name, options, packages, Path(folder)),
                }
                for _ in range(options.rounds)
            ]
            tasks = {"mjlab_task": COMPARISONS[name].mjlab_task, "task": COMPARISONS[name].task}
            row = {"robot": name, **tasks, **summarize(rounds)}
            results["rows"].append(row)
            write_results(options.output, results)
            sides = [
                f"{s['iteration_ms']:>10.1f} ms {s['steps_per_second']:>9,.0f} steps/s"
                for s in (row["mjlab"], row["st_rl"])
            ]
            print(f"{name:>11} {sides[0]:>32} {sides[1]:>32} {row['ratio']:>6.1f}", flush=True)
    print(f"results: {options.output}")


if __name__ == "__main__":
    main()
