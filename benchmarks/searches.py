"""Searches of settings that several workers share, on a journal folder, a PostgreSQL server and a Ray cluster.

Run it as `python -m benchmarks.searches` in the root of the repository; writes `benchmarks/results/searches.json`.

    journal     four workers of `st-rl sweep balance` on one folder
    postgresql  four workers on a PostgreSQL server, which is started on loopback in a temporary folder as the user
                `postgres` (Debian's package `postgresql`), with a password
    ray         the same search on a Ray cluster of two local nodes with one core each

In the first two, ten workers each are killed with SIGKILL at random moments and replaced by new ones with `--join`.
At the end every trial has ended once, none is counted twice, the best trial equals a training of its settings alone,
bit for bit, and no file and no output contains the password.
"""

import argparse
import json
import os
import random
import shlex
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna

from benchmarks.machine import describe_machine, write_results
from st_rl.cli.commands.sweep.shared_trials import RETRY_OF, WORKER
from st_rl.cli.commands.sweep.storage import STORAGE_VARIABLE, StudyAddress
from st_rl.utils.files import load_checkpoint
from tests.ray_cluster import ray_cluster
from tests.runners.training import differences

RESULTS = Path(__file__).parent / "results" / "searches.json"
NUM_WORKERS = 4
WORKER_TIMEOUT_S = 10.0
PASSWORD = "long-and-secret-4711"
TASK = ["balance", "--num-envs", "8", "--iterations", "40", "--threads", "1"]
SEARCH = ["--search", "algorithm.learning-rate", "1e-4", "1e-2", "--search", "policy.init-noise-std", "0.3", "1.5"]


class Workers:
    """Processes of `st-rl sweep` on one study, with their output in files."""

    def __init__(self, storage: str, folder: Path, num_trials: int):
        self.folder = folder
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1", STORAGE_VARIABLE: storage}
        self.options = ["--trials", str(num_trials), "--worker-timeout-s", str(WORKER_TIMEOUT_S)]
        self.running: list[subprocess.Popen[bytes]] = []
        self.logs: dict[int, Path] = {}
        self.num_started = 0

    def start(self) -> None:
        """Start a worker; all but the first know the storage only."""
        self.num_started += 1
        search = [] if self.num_started > 1 else [*TASK[1:], *SEARCH]
        join = ["--join"] if self.num_started > 1 else []
        command = [sys.executable, "-m", "st_rl", "sweep", TASK[0], *search, *join, *self.options]
        command += ["--log-dir", str(self.folder)]
        path = self.folder.parent / f"{self.folder.name}_worker_{self.num_started}.log"
        with open(path, "wb") as log:
            worker = subprocess.Popen(command, env=self.environment, stdout=log, stderr=subprocess.STDOUT)
        self.running.append(worker)
        self.logs[worker.pid] = path

    def failures(self) -> list[str]:
        """Remove the workers that have ended; returns the output of those that failed."""
        ended = [worker for worker in self.running if worker.poll() is not None]
        self.running = [worker for worker in self.running if worker not in ended]
        failed = [worker for worker in ended if worker.returncode != 0]
        return [f"a worker ended with {w.returncode}: {self.logs[w.pid].read_text()[-500:]}" for w in failed]

    def close(self) -> None:
        """Kill what is left."""
        for worker in self.running:
            worker.kill()
            worker.wait()


def load_trials(address: StudyAddress) -> list[optuna.trial.FrozenTrial]:
    """All trials of a study; empty if it does not exist yet."""
    try:
        return optuna.load_study(study_name=address.name, storage=address.open()).get_trials(deepcopy=False)
    except KeyError:
        return []


def search_with_kills(storage: str, folder: Path, num_trials: int, num_kills: int, seed: int) -> dict[str, Any]:
    """Run a search with four workers of which some are killed at random moments; returns what was seen."""
    generator, address = random.Random(seed), StudyAddress(storage, "sweep")
    workers, kills, failures = Workers(storage, folder, num_trials), [], []
    begin = time.monotonic()
    try:
        for _ in range(NUM_WORKERS):
            workers.start()
        while workers.running:
            time.sleep(0.5)
            failures += workers.failures()
            trials = load_trials(address)
            at_work = {t.user_attrs.get(WORKER) for t in trials if t.state.name == "RUNNING"}
            training = [w for w in workers.running if f"{socket.gethostname()}:{w.pid}" in at_work]
            if len(kills) < num_kills and len(training) > 1 and generator.random() < 0.15:
                # The others start, wait, or are between trials.
                worker = generator.choice(training if generator.random() < 0.8 else workers.running)
                was_training = worker in training
                worker.send_signal(signal.SIGKILL)
                worker.wait()
                workers.running.remove(worker)
                kills.append(was_training)
                print(f"kill {len(kills)}, {'in a trial' if was_training else 'between trials'}", flush=True)
                workers.start()
            if time.monotonic() - begin > 1800:
                raise RuntimeError("the search does not end")
    finally:
        workers.close()
    seconds = time.monotonic() - begin
    found = {"workers_started": workers.num_started, "kills": len(kills), "kills_in_a_trial": sum(kills)}
    return {**found, "seconds": seconds, **check_search(address, folder, num_trials, failures)}


def check_search(address: StudyAddress, folder: Path, num_trials: int, failures: list[str]) -> dict[str, Any]:
    """Compare the trials with what was asked for, and the best with a training alone."""
    study = optuna.load_study(study_name=address.name, storage=address.open())
    trials = study.get_trials(deepcopy=False)
    content = json.loads((folder / "sweep.json").read_text())
    states = Counter(trial["state"] for trial in content["trials"])
    ended = [t for t in content["trials"] if t["state"] in ("complete", "pruned", "failed")]
    origins = Counter(_origin(trials, trial["number"]) for trial in ended)
    if any(not trial.state.is_finished() for trial in trials):
        failures.append("a trial is still running or waiting")
    if len(origins) != num_trials or set(origins.values()) != {1}:
        failures.append(f"the trials of {num_trials} starts ended {sorted(origins.values())} times")
    if len({json.dumps(trial["settings"]) for trial in ended}) != num_trials:
        failures.append("two trials have the same settings")
    best = repeat_best(folder, content)
    if not (best["same_score"] and best["same_weights"]):
        failures.append(f"the best trial is not that of a training alone: {best}")
    durations = [trial["seconds"] for trial in ended if trial["seconds"]]
    return {
        "trials": num_trials,
        "states": dict(states),
        "workers_with_trials": len({trial["worker"] for trial in content["trials"] if WORKER in trial}),
        "median_trial_s": statistics.median(durations),
        "best": best,
        "failures": failures,
    }


def _origin(trials: list[optuna.trial.FrozenTrial], number: int) -> int:
    """The trial of which a trial is a retry, or the retry of a retry."""
    while RETRY_OF in trials[number].user_attrs:
        number = trials[number].user_attrs[RETRY_OF]
    return number


def repeat_best(folder: Path, content: dict[str, Any]) -> dict[str, Any]:
    """Train the settings of the best trial alone and compare."""
    best = content["trials"][[trial["number"] for trial in content["trials"]].index(content["best_trial"])]
    run, alone = folder / best["folder"], folder / "alone"
    words = shlex.split(json.loads((run / "run.json").read_text())["command_line"])
    arguments = words[words.index("train") :]
    arguments[arguments.index("--log-dir") + 1] = str(alone)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "st_rl", *arguments]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    ours, theirs = (load_checkpoint(path / "best.pt") for path in (alone, run))
    return {
        "trial": best["number"],
        "score": best["score"],
        "same_score": ours["score"] == theirs["score"] == best["score"],
        "same_weights": differences(ours["model_state_dict"], theirs["model_state_dict"]) == [],
    }


def find_password(folders: list[Path]) -> list[str]:
    """Files that contain the password."""
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return [path.name for path in files if PASSWORD.encode() in path.read_bytes()]


@contextmanager
def postgresql() -> Iterator[str]:
    """Start a PostgreSQL server on loopback; yields the address of a database."""
    binaries = max(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    folder = Path(tempfile.mkdtemp(prefix="postgresql_"))
    secret = folder / "password"
    secret.write_text(PASSWORD)
    shutil.chown(folder, "postgres")
    shutil.chown(secret, "postgres")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def run(program: str, *options: str) -> None:
        command = ["runuser", "-u", "postgres", "--", str(binaries / program), *options]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/")

    data = str(folder / "data")
    run("initdb", "-D", data, "--auth=scram-sha-256", f"--pwfile={secret}", "--username=trainer")
    server = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1"
    run("pg_ctl", "-D", data, "-w", "-l", str(folder / "log"), "-o", server, "start")
    try:
        yield f"postgresql://trainer:{PASSWORD}@127.0.0.1:{port}/postgres"
    finally:
        run("pg_ctl", "-D", data, "-m", "immediate", "stop")
        shutil.rmtree(folder)


def search_on_ray(folder: Path, num_trials: int) -> dict[str, Any]:
    """Run the search on a cluster of two local nodes."""
    with ray_cluster(2) as address:
        begin = time.monotonic()
        options = ["--trials", str(num_trials), "--log-dir", str(folder), "--ray", address]
        with open(folder.parent / "ray.log", "wb") as log:
            command = [sys.executable, "-m", "st_rl", "sweep", *TASK, *SEARCH, *options]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            subprocess.run(command, check=True, stdout=log, stderr=subprocess.STDOUT, env=environment)
        seconds = time.monotonic() - begin
    study = StudyAddress(str(folder), "sweep")
    return {"nodes": 2, "seconds": seconds, **check_search(study, folder, num_trials, [])}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=14, help="trials of each search with kills")
    parser.add_argument("--kills", type=int, default=10, help="workers killed in each of them")
    parser.add_argument("--seed", type=int, default=18, help="random seed of the kills")
    parser.add_argument("--only", choices=("journal", "postgresql", "ray"), help="one part; keeps the others")
    parser.add_argument("--out", type=Path, default=RESULTS, help="results file")
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # One part replaces its own figures.
    results: dict[str, Any] = json.loads(options.out.read_text()) if options.only and options.out.exists() else {}
    results |= {**describe_machine(), "workers": NUM_WORKERS, "worker_timeout_s": WORKER_TIMEOUT_S}
    failures: list[str] = []
    with tempfile.TemporaryDirectory(prefix="searches_") as name:
        work = Path(name)
        if options.only in (None, "journal"):
            folder = work / "journal"
            results["journal"] = search_with_kills(str(folder), folder, options.trials, options.kills, options.seed)
        if options.only in (None, "postgresql"):
            with postgresql() as address:
                folder = work / "postgresql"
                found = search_with_kills(address, folder, options.trials, options.kills, options.seed + 1)
            shown = find_password([work])
            found["files_with_the_password"] = len(shown)
            found["failures"] += [f"the password is in {shown}"] if shown else []
            results["postgresql"] = found
        if options.only in (None, "ray"):
            results["ray"] = search_on_ray(work / "ray", 8)
    for part in ("journal", "postgresql", "ray"):
        failures += [f"{part}: {failure}" for failure in results.get(part, {}).get("failures", [])]
    results["holds"] = not failures
    write_results(options.out, results)
    print(json.dumps(results, indent=1))
    return 0 if results["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
