"""Processes that exchange tensors in a process group."""

import multiprocessing
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessException

from st_rl.utils.distributed import leave_process_group

GRACE_S = 5.0
"""Time that the other ranks have to end by themselves after one has failed."""
# The server imports these once; each process that it forks would need over two seconds for them.
multiprocessing.set_forkserver_preload(["torch._dynamo", "pytest", "tests.runners.rank_trainings", "st_rl.sim.tasks"])
# CUDA cannot be used in a process forked after the imports have looked for GPUs.
START_METHOD = "spawn" if torch.cuda.is_available() else "forkserver"


def run_ranks(work: Callable[[Path], Any], folder: Path, num_ranks: int, backend: str = "gloo") -> list[Any]:
    """Call `work(folder)` on every rank of a new process group; returns the results by rank.

    An error of a rank comes with the logs of all ranks in the folder. No rank outlives the call.
    """
    rendezvous = f"file://{tempfile.mkdtemp(dir=folder)}/rendezvous"
    arguments = (work, str(folder), num_ranks, rendezvous, backend)
    ranks: Any = torch.multiprocessing.start_processes(
        _on_rank, args=arguments, nprocs=num_ranks, join=False, start_method=START_METHOD
    )
    try:
        # A rank that has lost another one gets the time to say so before torch sends it SIGTERM.
        while not ranks.join(grace_period=GRACE_S):
            pass
    except ProcessException as error:
        logs = [f"{path}:\n{path.read_text(errors='replace')[-2000:]}" for path in folder.rglob("rank_*.log")]
        raise RuntimeError("\n".join([str(error), *logs])) from error
    finally:
        for process in ranks.processes:
            process.kill()
            process.join()
    return [torch.load(folder / f"result_{number}.pt", weights_only=True) for number in range(num_ranks)]


def _on_rank(
    this_rank: int, work: Callable[[Path], Any], folder: str, num_ranks: int, rendezvous: str, backend: str
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(backend, init_method=rendezvous, rank=this_rank, world_size=num_ranks)
    torch.save(work(Path(folder)), f"{folder}/result_{this_rank}.pt")
    leave_process_group()
