"""What the viewer costs a training, whether browsers disturb it, and whether a browser steers a policy.

    python benchmarks/viewer.py cost            # time of a training with and without a connected browser
    python benchmarks/viewer.py cost --device cuda --num-envs 4096 --client client      # on a GPU, without a browser
    python benchmarks/viewer.py disturb         # ten connects, a killed browser: are the weights those of a quiet run?
    python benchmarks/viewer.py steer RUN       # slider, push and checkpoint in a real browser

Every part writes benchmarks/results/viewer_PART.json, or --out. Needs Chromium, except with `--client client`, which
reads the page in a process of its own and draws nothing.
"""

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import torch
from machine import describe_machine, write_results

sys.path.insert(0, str(Path(__file__).parent.parent))

from st_rl.cli.commands.train import prepare_training, read_training
from st_rl.cli.commands.view import checkpoint_names
from st_rl.cli.support.run_folders.loaded_run import LoadedRun
from st_rl.cli.support.run_folders.run_folder import RunFolder
from st_rl.cli.support.task_source import find_source
from st_rl.engine.graph import GraphedLoop
from st_rl.sim.viewer.session import ViewSession
from st_rl.sim.viewer.show import show_session
from st_rl.sim.viewer.training import TrainingView
from tests.browser import Browser, wait_for

RESULTS = Path(__file__).parent / "results"
DEMO = "--env.commands.lin-vel-x 0.3 1.0 --env.commands.lin-vel-y 0 0 --env.commands.ang-vel-yaw 0 0".split()
DEMO += "--env.commands.standing-fraction 0 --runner.save-interval 1000".split()


def make_runner(folder: Path, iterations: int, *more: str, seed: int = 1):
    """The runner of the demo, with one thread for updates so that processor times are comparable."""
    source = find_source("quadruped-walk")
    arguments = f"--iterations {iterations} --log-dir {folder} --seed {seed} --threads 1".split()
    options, training = read_training(source, [*arguments, *DEMO, *more])
    return prepare_training(source, options, training, "benchmarks/viewer.py")[0]


class Client:
    """A process that reads the page like a browser and draws nothing."""

    def __init__(self, address: str):
        command = [sys.executable, str(Path(__file__).parent / "worker_viewer.py"), address]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == "connected"

    def close(self) -> dict[str, int]:
        """Disconnect; returns the number of messages and bytes."""
        return json.loads(self._process.communicate("", timeout=30)[0])


def open_client(kind: str, address: str):
    """A browser, or the client without drawing, on the page."""
    if kind == "client":
        return Client(address)
    browser = Browser(320, 240)
    browser.open(address)
    return browser


def show_steps(runner, observers: list) -> None:
    """Set what the task calls after a step; a captured rollout is captured again."""
    runner.env.step_observers[:] = observers
    if isinstance(runner._engine_rollout, GraphedLoop):
        runner._engine_rollout.discard_graph()


def measure_cost(options: argparse.Namespace) -> dict:
    """Train in blocks of iterations, in turns without a page, with a page, and with a page that is open."""
    on_gpu = options.device.startswith("cuda")
    more = ["--device", options.device, *(["--num-envs", str(options.num_envs)] if options.num_envs else [])]
    block, end = options.block, time.perf_counter() + options.seconds
    with tempfile.TemporaryDirectory() as folder:
        runner = make_runner(Path(folder) / "run", 10**6, *more)
        view = TrainingView(runner.env, runner.num_steps_per_env, "127.0.0.1", 0)
        runner.iteration_observers.append(view.after_iteration)
        page, observers = psutil.Process(view._process.pid), list(runner.env.step_observers)
        runner.learn(5)
        rows = {"no page": [], "no browser": [], "browser": []}
        pages, received = {kind: [] for kind in rows}, []
        try:
            for _ in range(options.blocks):
                for kind in rows:
                    client = open_client(options.client, view.address) if kind == "browser" else None
                    wait_for(lambda kind=kind: view._frames.is_watched == (kind == "browser"), 120, "the browser")
                    show_steps(runner, [] if kind == "no page" else observers)
                    # With graphs: one eager rollout and one that is captured.
                    runner.learn(2 if on_gpu else 0)
                    begin = (time.perf_counter(), time.process_time(), time.thread_time(), sum(page.cpu_times()[:2]))
                    runner.learn(block)
                    if on_gpu:
                        torch.cuda.synchronize()
                    after = (time.perf_counter(), time.process_time(), time.thread_time(), sum(page.cpu_times()[:2]))
                    assert view._frames.is_watched == (kind == "browser")
                    used = [b - a for a, b in zip(begin, after)]
                    rows[kind].append([used[0] / block, used[1] / block, used[2] / block])
                    pages[kind].append(used[3] / used[0])
                    if client is not None:
                        received.append(client.close())
                if time.perf_counter() > end:
                    break
        finally:
            view.close()
            runner.close()
    names = ("wall_s", "process_cpu_s", "thread_cpu_s")
    median = {k: dict(zip(names, (statistics.median(column) for column in zip(*v)))) for k, v in rows.items()}
    # Of each block beside the one without a page of the same turn: slow changes of the machine cancel.
    ratios = {
        kind: {
            name: [with_page[i] / without[i] - 1 for with_page, without in zip(rows[kind], rows["no page"])]
            for i, name in enumerate(names)
        }
        for kind in ("no browser", "browser")
    }
    steps = runner.env.num_envs * runner.num_steps_per_env
    return {
        "num_envs": runner.env.num_envs,
        "engine": runner.alg.engine.describe(),
        "iterations_per_block": block,
        "blocks": len(rows["browser"]),
        "median_per_iteration": median,
        "steps_per_s": {kind: steps / values["wall_s"] for kind, values in median.items()},
        "more_than_without": {k: {n: statistics.median(v) for n, v in of.items()} for k, of in ratios.items()},
        "more_than_without_range": {k: {n: [min(v), max(v)] for n, v in of.items()} for k, of in ratios.items()},
        "page_process_cores": {kind: statistics.median(values) for kind, values in pages.items()},
        "received": received,
        "rows": rows,
    }


def weights_hash(runner) -> str:
    """Hash of all parameters of the policy."""
    state = runner.alg.actor_critic.state_dict()
    return hashlib.sha256(b"".join(value.cpu().numpy().tobytes() for value in state.values())).hexdigest()


def measure_disturbance(iterations: int) -> dict:
    """Train twice with one seed: in quiet, and while ten browsers come and go and one is killed."""
    hashes, events = {}, []
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("quiet", "watched"):
            runner = make_runner(Path(folder) / kind, iterations)
            if kind == "watched":
                view = TrainingView(runner.env, runner.num_steps_per_env, "127.0.0.1", 0)
                runner.iteration_observers.append(view.after_iteration)
                visits = threading.Thread(target=visit, args=(view, events))
                visits.start()
            runner.learn(iterations)
            if kind == "watched":
                while visits.is_alive():
                    visits.join(1.0)
                view.close()
            hashes[kind] = weights_hash(runner)
            runner.close()
    return {"iterations": iterations, "visits": events, "hashes": hashes, "equal": len(set(hashes.values())) == 1}


def visit(view: TrainingView, events: list) -> None:
    """Connect ten times; the last browser is killed."""
    for number in range(10):
        browser = Browser(200, 150)
        browser.open(view.address)
        wait_for(lambda: view._frames.is_watched, 120, "the browser")
        time.sleep(0.5)
        if number == 9:
            browser.kill()
        else:
            browser.close()
        wait_for(lambda: not view._frames.is_watched, 120, "the browser to leave")
        events.append("killed" if number == 9 else "closed")


def measure_steering(folder: Path) -> dict:
    """Drive a page of a policy: command, push, checkpoint; needs two checkpoints."""
    run = LoadedRun(RunFolder(folder))
    checkpoint = run.run.checkpoint("best")
    task = run.make_eval_env(1, 36_000.0, 20_002, fine=True)
    session = ViewSession(
        task, run.load_policy(task, checkpoint), lambda name: run.load_policy(task, run.run.file(name)), checkpoint.name
    )
    names = checkpoint_names(run.run, checkpoint)
    addresses: list[str] = []
    stop = threading.Event()
    arguments = (session, lambda: names, "127.0.0.1", 0, addresses.append, stop.is_set)
    thread = threading.Thread(target=show_session, args=arguments, daemon=True)
    thread.start()
    result: dict = {"run": folder.name, "speeds": {}}
    try:
        wait_for(lambda: addresses, 60, "the page")
        with Browser(500, 400) as browser:
            browser.open(addresses[0])
            browser.wait("[...document.querySelectorAll('button')].some(b => b.textContent === 'Push')", 120)
            for command in ("0.4", "0.9"):
                browser.fill("lin_vel_x (m/s)", command)
                wait_for(lambda c=command: abs(session.frame.commands[0, 0] - float(c)) < 1e-3, 60, "the command")
                result["speeds"][command] = mean_speed(session, 3.0)
            before = float(task.base_lin_vel[0, 1])
            feet = task.foot_contact[0].clone()
            browser.click("Push")
            peak = follow(session, lambda: float(task.base_lin_vel[0, 1]), 0.4)
            steps = count_steps(session, feet, 1.0)
            after = follow(session, lambda: abs(float(task.base_lin_vel[0, 1])), 1.0)
            result["push"] = {
                "lateral_before": before,
                "lateral_peak": peak,
                "steps_in_1_s": steps,
                "lateral_after": after,
            }
            result["push"]["fell"] = bool(task.has_fallen[0])
            other = next(name for name in names if name != session.checkpoint)
            browser.choose(session.checkpoint, other)
            wait_for(lambda: session.checkpoint == other, 60, "the other checkpoint")
            result["swapped_to"] = session.checkpoint
    finally:
        stop.set()
        thread.join(20)
    return result


def mean_speed(session: ViewSession, seconds: float) -> float:
    """Mean forward speed over some simulated seconds, after one second."""
    start = session.time + 1.0
    values, last = [], -1.0
    while session.time < start + seconds:
        if session.time > max(start, last):
            last = session.time
            values.append(float(session.task.base_lin_vel[0, 0]))
        time.sleep(0.002)
    return statistics.fmean(values)


def follow(session: ViewSession, read, seconds: float) -> float:
    """Largest value over some simulated seconds."""
    end, best = session.time + seconds, -1e9
    while session.time < end:
        best = max(best, read())
        time.sleep(0.002)
    return best


def count_steps(session: ViewSession, contact: torch.Tensor, seconds: float) -> int:
    """Feet that touch down within some simulated seconds."""
    end, count = session.time + seconds, 0
    while session.time < end:
        now = session.task.foot_contact[0].clone()
        count += int((now & ~contact).sum())
        contact = now
        time.sleep(0.002)
    return count


def print_result(part: str, result: dict) -> None:
    """Print the cost as a table, other parts as they are."""
    if part != "cost":
        print(result)
        return
    print(f"{result['num_envs']} robots, {result['engine']}, {result['blocks']} x {result['iterations_per_block']}")
    print(f"{'':12} {'steps/s':>12} {'time':>8} {'lowest':>8} {'highest':>8} {'cores of page':>14}")
    for kind, speed in result["steps_per_s"].items():
        more = result["more_than_without"].get(kind, {}).get("wall_s", 0.0)
        low, high = result["more_than_without_range"].get(kind, {}).get("wall_s", (0.0, 0.0))
        cores = result["page_process_cores"][kind]
        print(f"{kind:12} {speed:12,.0f} {more:+8.2%} {low:+8.2%} {high:+8.2%} {cores:14.3f}")
    print("received:", result["received"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("cost", "disturb", "steer"))
    parser.add_argument("run", nargs="?", type=Path)
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--block", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--num-envs", type=int)
    parser.add_argument("--client", choices=("browser", "client"), default="browser")
    parser.add_argument("--seconds", type=float, default=600.0, help="no further turn of the cost after this time")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.part == "cost":
        result = measure_cost(options)
    elif options.part == "disturb":
        result = measure_disturbance(options.iterations)
    else:
        result = measure_steering(options.run)
    write_results(options.out or RESULTS / f"viewer_{options.part}.json", {**describe_machine(), "result": result})
    print_result(options.part, result)


if __name__ == "__main__":
    main()
