"""Physics alone on a GPU, compared with MuJoCo Warp's own step: `python benchmarks/physics_gpu.py`.

A rollout of 24 control periods is captured as one CUDA graph and replayed with fixed controls, on both sides in turn.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from machine import describe_machine, write_results

from st_rl.sim.backends import PhysicsCfg, WarpBackend
from st_rl.sim.require import MjModel
from st_rl.sim.robots import Robot, robot_path

FOLDER = Path(__file__).resolve().parent
NUM_STEPS = 24
COMPARED_ROBOTS = 256


class PlainBackend(WarpBackend):
    """MuJoCo Warp's own step: sensors in every substep, contact sensors and all of its default options."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        with self._warp.ScopedDevice(str(self.device)):
            self._model = self._mjwarp.put_model(self.model)
        self._model.opt.contact_sensor_maxmatch = self._contacts
        self._model.opt.warn_overflow = 0  # it prints inside the graph, which doubles the time

    def step(self, num_substeps: int = 1, read_sensors: bool = True) -> None:
        """Advance all robots, with sensors in every substep."""
        with self._warp.ScopedDevice(str(self.device)), self._on_torch_stream():
            for _ in range(num_substeps):
                self._mjwarp.step(self._model, self._data)


SIDES: dict[str, type[WarpBackend]] = {"st_rl": WarpBackend, "MuJoCo Warp": PlainBackend}


def put_home(backend: WarpBackend) -> None:
    """All robots in the pose of the first keyframe, or the initial one, with different controls."""
    model = backend.model
    qpos = torch.tensor(model.key_qpos[0] if model.nkey else model.qpos0).float()
    control = torch.tensor(model.key_ctrl[0]).float() if model.nkey else torch.zeros(model.nu)
    noise = torch.randn(backend.num_envs, model.nu, generator=torch.Generator().manual_seed(0))
    everyone = torch.ones(backend.num_envs, dtype=torch.bool, device=backend.device)
    backend.reset(everyone, qpos.to(backend.device).repeat(backend.num_envs, 1), torch.zeros_like(backend.qvel))
    backend.set_control((control + 0.1 * noise).to(backend.device))


def make_rollout(backend: WarpBackend) -> Callable[[], None]:
    """A function that runs a rollout; a replay of a graph on a GPU."""

    def rollout() -> None:
        for _ in range(NUM_STEPS):
            backend.step(backend.physics.substeps)

    put_home(backend)
    if backend.device.type != "cuda":
        return rollout
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        backend.step(backend.physics.substeps)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream), backend.during_capture(stream):
        rollout()
    return graph.replay


def seconds_of(backend: WarpBackend, rollout: Callable[[], None]) -> float:
    """Seconds of one rollout from the home pose."""
    put_home(backend)
    synchronize(backend.device)
    start = time.perf_counter()
    rollout()
    synchronize(backend.device)
    return time.perf_counter() - start


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def difference(model: MjModel, physics: PhysicsCfg, device: str, periods: int) -> float:
    """Median over robots of the largest difference of position between both sides after some control periods."""
    positions = []
    for kind in SIDES.values():
        backend = kind(model, COMPARED_ROBOTS, physics, device)
        put_home(backend)
        for _ in range(periods):
            backend.step(physics.substeps)
        positions.append(backend.qpos)
    return float((positions[0] - positions[1]).abs().amax(dim=1).median())


def measure(name: str, options: argparse.Namespace, physics: PhysicsCfg) -> dict[str, Any]:
    """One row."""
    model = Robot.from_file(robot_path(name)).model
    backends = {side: kind(model, options.robots, physics, options.device) for side, kind in SIDES.items()}
    rollouts = {side: make_rollout(backend) for side, backend in backends.items()}
    times: dict[str, list[float]] = {side: [] for side in SIDES}
    for _ in range(options.repeats + 1):  # the first of each is not counted
        for side, backend in backends.items():
            times[side].append(seconds_of(backend, rollouts[side]))
    medians = {side: 1e3 * statistics.median(values[1:]) for side, values in times.items()}
    return {
        "model": Path(name).stem,
        "rollout_ms": medians,
        "steps_per_second": {side: 1e3 * options.robots * NUM_STEPS / value for side, value in medians.items()},
        "ratio": medians["MuJoCo Warp"] / medians["st_rl"],
        "difference": {periods: difference(model, physics, options.device, periods) for periods in (1, 50)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    files = "built-in robots, MJCF files or descriptions"
    parser.add_argument("--models", nargs="+", default=["quadruped", "humanoid"], help=files)
    parser.add_argument("--robots", type=int, default=4096)
    parser.add_argument("--timestep", type=float, default=0.005)
    parser.add_argument("--substeps", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--output", type=Path, default=FOLDER / "results" / "physics_gpu.json", help="results file")
    options = parser.parse_args()
    physics = PhysicsCfg(timestep=options.timestep, substeps=options.substeps)
    results: dict[str, Any] = {"benchmark": "physics_gpu", **describe_machine(), "rows": []}
    results |= {"robots": options.robots, "timestep": options.timestep, "substeps": options.substeps}
    print(f"{'model':>12} {'st_rl':>10} {'MuJoCo Warp':>12} {'ratio':>6}  difference after 1 and 50 control periods")
    for name in options.models:
        row = measure(name, options, physics)
        results["rows"].append(row)
        write_results(options.output, results)
        own, plain = row["rollout_ms"].values()
        apart = ", ".join(f"{value:.1e}" for value in row["difference"].values())
        print(f"{row['model']:>12} {own:>7.1f} ms {plain:>9.1f} ms {row['ratio']:>6.2f}  {apart}", flush=True)
    print(f"results: {options.output}")


if __name__ == "__main__":
    main()
