r"""Exchanges between ranks on one GPU: `python -m benchmarks.ranks_gpu --output FILE` in the root of the repository.

    cost    a whole training iteration of quadruped-walk with CUDA graphs: without torch.distributed, in a world of one
            with NCCL and the exchange captured in the graphs, and with the exchange between two graphs; in turn. At the
            end the time of rollouts and updates of each
    agree   every algorithm and policy family: two ranks on the card through gloo against each other and against one
            process with all the data (SGD, eager), with graphs against eager (Adam); the same for a world of one with
            NCCL, whose graphs contain the exchange
    walk    quadruped-walk on two ranks of one card through gloo: equal weights, and the time of an iteration

Everything that is not timed runs at once. Ends after `--seconds`, with what it has measured until then: the results
file is written after every round. `--device cpu` tries the script without a GPU. The cost of captured exchanges alone,
in 70 s:

    python -m benchmarks.ranks_gpu --parts cost --kinds alone nccl --seconds 70 \
        --output benchmarks/results/ranks_gpu_cost.json
"""

import argparse
import hashlib
import logging
import multiprocessing
import os
import shutil
import socket
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import describe_machine, write_results
from benchmarks.ranks import EQUAL_ITERATIONS, largest_difference
from st_rl.engine import graph
from st_rl.runners import OnPolicyRunner
from st_rl.utils import distributed
from tests.runners.rank_trainings import families, make_training, save_teacher, shared_state
from tests.runners.training import differences

PARTS = ("agree", "cost", "walk")
KINDS = ("alone", "nccl", "between")
WARM_UP = 5
ITERATIONS_PER_TURN = 20
ITERATIONS_OF_PARTS = 10
"""Iterations in which rollout and update are timed each, with a sync between them."""
WALK_SECONDS = 22.0
"""Time that is left for `walk` at the end, and for `cost` before it."""


class Worker:
    """A function `work(pipe, *arguments)` in a process of its own, as a rank of a process group or without one."""

    def __init__(self, work: Callable[..., None], *arguments: Any, group: tuple[int, int, int] | None = None):
        """`group` is the number of this rank, the number of ranks and the port of their store."""
        context = multiprocessing.get_context("spawn")
        self._pipe, far_end = context.Pipe()
        self._process = context.Process(target=_run, args=(work, arguments, group, far_end), daemon=True)
        self._process.start()
        far_end.close()

    def send(self, value: Any) -> None:
        """Send a request."""
        self._pipe.send(value)

    def receive(self, end: float) -> Any:
        """The next report; TimeoutError after the time `end`, RuntimeError with the error of the process."""
        if not self._pipe.poll(max(0.0, end - time.monotonic())):
            raise TimeoutError("no time left")
        try:
            report = self._pipe.recv()
        except EOFError as error:
            raise RuntimeError("the process has ended") from error
        if isinstance(report, _Failure):
            raise RuntimeError(report.text)
        return report

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()


class _Failure:
    def __init__(self, text: str):
        self.text = text


def _run(
    work: Callable[..., None], arguments: tuple[Any, ...], group: tuple[int, int, int] | None, pipe: Connection
) -> None:
    logging.getLogger("st_rl").setLevel(logging.WARNING)
    torch.set_num_threads(1)
    if group is not None:
        number, count, port = group
        # As torchrun sets them.
        places = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
        places |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        places |= {"TORCHELASTIC_RUN_ID": "ranks_gpu", "TORCHELASTIC_RESTART_COUNT": 0}
        os.environ.update({name: str(value) for name, value in places.items()})
        distributed.EXCHANGE_ALONE = True
    try:
        work(pipe, *arguments)
    except BaseException:
        pipe.send(_Failure(traceback.format_exc()))


def free_port() -> int:
    """A port that no program uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def synchronize() -> None:
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


# ---- cost and walk ---------------------------------------------------------------------------------------------------


def make_walk(robots: int, device: str) -> OnPolicyRunner:
    """A training of quadruped-walk with CUDA graphs, of this rank."""
    from st_rl.cli.support.task_source import find_source
    from st_rl.cli.support.torch_setup import seed_everything
    from st_rl.sim.tasks import make_task

    seed = distributed.rank_seed(1)
    seed_everything(seed)
    source = find_source("quadruped-walk")
    env = make_task(source.name, robots, device, seed, cfg=source.default_config)
    config = source.training | {"engine": "graph" if device.startswith("cuda") else "eager"}
    return OnPolicyRunner(env, config, None, device)


def walk(pipe: Connection, kind: str, robots: int, device: str) -> None:
    """Train when asked; reports the seconds of each request."""
    if kind == "between":
        graph._try_to_capture_exchange = lambda device: False
    # As `st-rl train` does.
    torch.set_float32_matmul_precision("high")
    if kind != "alone":
        device = str(distributed.join_process_group(device))
    pipe.send("ready")
    pipe.recv()
    began = time.perf_counter()
    runner = make_walk(robots, device)
    runner.learn(WARM_UP)
    synchronize()
    described = {"engine": runner.alg.engine.describe(), "first_iterations_s": time.perf_counter() - began}
    pipe.send({**described, "backend": torch.distributed.get_backend() if kind != "alone" else None})
    while request := pipe.recv():
        if request == "parts":
            pipe.send(time_parts(runner))
            continue
        synchronize()
        began = time.perf_counter()
        runner.learn(request)
        synchronize()
        pipe.send(((time.perf_counter() - began) / request, [float(value) for value in runner._durations]))
    digest = hashlib.sha256()
    for _, tensor in sorted(shared_state(runner).items()):
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    pipe.send(digest.hexdigest())


def time_parts(runner: OnPolicyRunner) -> dict[str, float]:
    """Median seconds of rollout, update and everything else in an iteration of some."""
    seconds: dict[str, list[float]] = {"rollout": [], "update": []}

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            synchronize()
            began = time.perf_counter()
            result = function(*arguments)
            synchronize()
            seconds[name].append(time.perf_counter() - began)
            return result

        return run

    runner._collect_rollout = timed("rollout", runner._collect_rollout)
    runner.alg.update = timed("update", runner.alg.update)
    runner.learn(ITERATIONS_OF_PARTS)
    del runner._collect_rollout, runner.alg.update
    iterations = [float(value) for value in runner._durations]
    rest = [whole - first - second for whole, first, second in zip(iterations, seconds["rollout"], seconds["update"])]
    return {name: statistics.median(values) for name, values in {**seconds, "rest": rest}.items()}


def cost(workers: dict[str, Worker], end: float, save: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Let the trainings take turns until the time `end`; `save` receives the figures after every round."""
    rounds: dict[str, list[float]] = {kind: [] for kind in workers}
    iterations: dict[str, list[float]] = {kind: [] for kind in workers}
    figures: dict[str, Any] = {}
    longest = 0.0
    # One more turn of each is for its parts.
    while not figures or time.monotonic() + 2 * longest < end:
        began = time.monotonic()
        order = list(workers)
        for kind in order if len(rounds["alone"]) % 2 else reversed(order):
            workers[kind].send(ITERATIONS_PER_TURN)
            seconds, durations = workers[kind].receive(end)
            rounds[kind].append(seconds)
            iterations[kind] += durations
        longest = max(longest, time.monotonic() - began)
        figures = compare_rounds(rounds, iterations)
        save(figures)
    figures["median_s_of_parts"] = {}
    for kind, worker in workers.items():
        if time.monotonic() + longest / len(workers) > end:
            break
        worker.send("parts")
        figures["median_s_of_parts"][kind] = worker.receive(end)
    return figures


def compare_rounds(rounds: dict[str, list[float]], iterations: dict[str, list[float]]) -> dict[str, Any]:
    """Medians and their ratios to a training without torch.distributed."""
    medians = {kind: statistics.median(values) for kind, values in rounds.items()}
    of_iterations = {kind: statistics.median(values) for kind, values in iterations.items()}
    in_turn = {
        kind: statistics.median(mine / alone for mine, alone in zip(values, rounds["alone"]))
        for kind, values in rounds.items()
    }
    return {
        "iterations_per_turn": ITERATIONS_PER_TURN, "seconds_per_iteration_of_each_turn": rounds,
        "median_s": medians, "ratio_of_medians": {kind: value / medians["alone"] for kind, value in medians.items()},
        "median_of_ratios_within_a_round": in_turn, "median_of_single_iterations_s": of_iterations,
    }  # fmt: skip


# ---- agree -----------------------------------------------------------------------------------------------------------


def train_families(
    pipe: Connection, folder: Path, names: list[str], device: str, runs: tuple[tuple[str, str], ...]
) -> None:
    """Train families with some (optimizer, engine); reports the state and the number of captured graphs."""
    if distributed.is_torchrun():
        device = str(distributed.join_process_group(device))
    results: dict[tuple[str, str, str], Any] = {}
    for optimizer, engine in runs:
        for name in names:
            runner = make_training(name, folder, optimizer=optimizer, engine=engine, device=device)
            runner.learn(EQUAL_ITERATIONS)
            steps = runner.alg.engine._steps.values()
            captures = [capture for step in steps for capture in step._captures.values()]
            plan, num_graphs = runner.alg.engine.plan, sum(len(capture.graphs) for capture in captures)
            results[name, optimizer, engine] = (shared_state(runner), plan.captures_exchanges, num_graphs)
    file = folder / f"{os.getpid()}.pt"
    torch.save(results, file)
    pipe.send(str(file))


def agree(reports: dict[str, Any]) -> list[dict[str, Any]]:
    """Compare the families of two ranks, of one process with all the data and of a world of one with NCCL."""
    first, second = reports["gloo 0"], reports["gloo 1"]
    rows = []
    for (name, optimizer, engine), (state, captures, num_graphs) in first.items():
        row = {"ranks": 2, "family": name, "optimizer": optimizer, "engine": engine}
        row |= {"captures_exchange": captures, "graphs": num_graphs}
        row["same_bits_on_both_ranks"] = not differences(state, second[name, optimizer, engine][0])
        if (name, optimizer, engine) in reports["alone"]:
            alone = reports["alone"][name, optimizer, engine][0]
            row["largest_difference_from_one_process"] = largest_difference(state, alone)
        if engine != "eager":
            row["largest_difference_from_eager"] = largest_difference(state, first[name, optimizer, "eager"][0])
        rows.append(row)
    for (name, optimizer, engine), (state, captures, num_graphs) in reports["nccl"].items():
        if engine != "eager":
            eager = reports["nccl"][name, optimizer, "eager"][0]
            row = {"ranks": 1, "family": name, "optimizer": optimizer, "engine": engine}
            row |= {"captures_exchange": captures, "graphs": num_graphs}
            rows.append(row | {"largest_difference_from_eager": largest_difference(state, eager)})
    return rows


# ---- all -------------------------------------------------------------------------------------------------------------


class Session:
    """All processes of a measurement."""

    def __init__(self, options: argparse.Namespace, folder: Path):
        self.end = time.monotonic() + options.seconds
        self.robots, device = options.robots, options.device
        save_teacher(folder / "teacher.pt")
        port = free_port()
        groups = {kind: None if kind == "alone" else (0, 1, free_port()) for kind in options.kinds}
        self.walks = {kind: Worker(walk, kind, self.robots, device, group=group) for kind, group in groups.items()}
        self.parts = options.parts
        places = ((0, 2, port), (1, 2, port)) if "walk" in self.parts else ()
        self.pair = [Worker(walk, "ranks", self.robots // 2, device, group=place) for place in places]
        port, engine = free_port(), "graph" if device == "cuda" else "eager"
        adam = (("Adam", "eager"), *((("Adam", engine),) if engine != "eager" else ()))
        two_ranks = (("SGD", "eager"), *adam)
        work: dict[str, tuple[Any, tuple[tuple[str, str], ...]]] = {
            "gloo 0": ((0, 2, port), two_ranks),
            "gloo 1": ((1, 2, port), two_ranks),
            "alone": (None, (("SGD", "eager"),)),
            "nccl": ((0, 1, free_port()), adam),
        }
        self.families = {
            name: Worker(train_families, folder, options.families, device, runs, group=group)
            for name, (group, runs) in work.items()
            if "agree" in self.parts
        }
        self.started: dict[str, Any] = {}
        self.failure: Exception | None = None

    def _start(self, kind: str) -> None:
        self.walks[kind].receive(self.end)
        self.walks[kind].send("start")

    def start_walks(self) -> None:
        """Start the trainings of `cost`."""
        try:
            # Kernels are compiled once, by the first.
            self._start("alone")
            self.started["alone"] = self.walks["alone"].receive(self.end)
            for kind in list(self.walks)[1:]:
                self._start(kind)
        except (RuntimeError, TimeoutError) as error:
            self.failure = error

    def agree(self, save: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """Compare the families."""
        # What is late must not take the time of the other parts.
        end = self.end - 2 * WALK_SECONDS
        files = {name: worker.receive(end) for name, worker in self.families.items()}
        rows = agree({name: torch.load(file, weights_only=True) for name, file in files.items()})
        for row in rows:
            print({key: f"{value:.1e}" if isinstance(value, float) else value for key, value in row.items()})
        return {"rows": rows}

    def cost(self, save: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """Measure the cost of the exchange, when nothing else runs."""
        for worker in self.families.values():
            worker.close()
        if self.failure is not None:
            raise self.failure
        for kind in list(self.walks)[1:]:
            self.started[kind] = self.walks[kind].receive(self.end)
        for kind, report in self.started.items():
            print(f"{kind:8} first iterations {report['first_iterations_s']:.1f} s, {report['engine']}", flush=True)
        described = {"robots": self.robots, "started": self.started}

        def report(figures: dict[str, Any]) -> None:
            save({**described, **figures})
            print(f"after {len(figures['seconds_per_iteration_of_each_turn']['alone'])} rounds: {_describe(figures)}")

        end = self.end - (WALK_SECONDS if "walk" in self.parts else 0.0)
        figures = cost(self.walks, end, report)
        print(
            f"quadruped-walk, {self.robots} robots, seconds per iteration (ratio within a round): {_describe(figures)}"
        )
        for kind, parts in figures["median_s_of_parts"].items():
            print(f"  {kind:8} " + ", ".join(f"{name} {seconds:.5f}" for name, seconds in parts.items()))
        return {**described, **figures}

    def walk(self, save: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """Train quadruped-walk on two ranks of one card."""
        for worker in self.walks.values():
            worker.close()
        for worker in self.pair:
            worker.receive(self.end)
            worker.send("start")
        started = [worker.receive(self.end) for worker in self.pair]
        seconds = [seconds for seconds, _ in self._ask_pair(ITERATIONS_PER_TURN)]
        digests = self._ask_pair(0)
        figures = {"ranks": 2, "robots_per_rank": self.robots // 2, "started": started}
        figures |= {
            "seconds_per_iteration": seconds,
            "iterations": WARM_UP + ITERATIONS_PER_TURN,
            "same_bits_on_both_ranks": len(set(digests)) == 1,
        }
        print({key: value for key, value in figures.items() if key != "started"})
        print(started[0]["engine"])
        return figures

    def _ask_pair(self, iterations: int) -> list[Any]:
        for worker in self.pair:
            worker.send(iterations)
        return [worker.receive(self.end) for worker in self.pair]

    def close(self) -> None:
        """End all processes."""
        for worker in (*self.walks.values(), *self.pair, *self.families.values()):
            worker.close()


def _describe(figures: dict[str, Any]) -> str:
    ratios = figures["median_of_ratios_within_a_round"]
    return ", ".join(f"{kind} {value:.5f} ({ratios[kind]:.4f})" for kind, value in figures["median_s"].items())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--robots", type=int, default=4096, help="robots in all")
    parser.add_argument("--seconds", type=float, default=95.0, help="time limit of the script")
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS, help="trainings of `cost`, alone first")
    parser.add_argument("--families", nargs="+", default=list(families(Path())), help="families of `agree`")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    default = Path(__file__).parent / "results" / "ranks_gpu.json"
    parser.add_argument("--output", type=Path, default=default, help="results file")
    options = parser.parse_args()
    if options.kinds[0] != "alone":
        parser.error("--kinds must begin with alone, to which the others are compared")
    results: dict[str, Any] = {**describe_machine(), "robots": options.robots}
    folder, began = Path(tempfile.mkdtemp(prefix="ranks_gpu_")), time.monotonic()
    session: Session | None = None
    try:
        session = Session(options, folder)
        if "cost" in options.parts:
            session.start_walks()
        for part in options.parts:

            def save(figures: dict[str, Any], part: str = part) -> None:
                results[part] = figures
                write_results(options.output, results)

            try:
                results[part] = getattr(session, part)(save)
            except (RuntimeError, TimeoutError) as error:
                results[part] = {**results.get(part, {}), "failure": str(error)}
                print(f"{part} failed: {error}")
            print(f"-- {part} ended after {time.monotonic() - began:.0f} s", flush=True)
            write_results(options.output, results)
    finally:
        if session is not None:
            session.close()
        shutil.rmtree(folder, ignore_errors=True)
    return int(any("failure" in results[part] for part in options.parts))


if __name__ == "__main__":
    sys.exit(main())
