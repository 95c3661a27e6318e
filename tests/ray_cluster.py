"""A Ray cluster of local nodes, for tests and benchmarks."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

START_S = 200
"""Time that a node and its processes have to start."""
# Ray reads them when it is imported. Its own limit of 30 s is too short on two busy cores: a node has several
# processes, and each of them imports Ray.
_LIMITS = {
    "RAY_raylet_start_wait_time_s": START_S,
    "RAY_agent_register_timeout_ms": 1000 * START_S,
    "RAY_worker_register_timeout_seconds": START_S,
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": START_S,
}


@contextmanager
def ray_cluster(num_nodes: int) -> Iterator[str]:
    """Start a cluster of local nodes with one core each; yields its address."""
    os.environ.update({name: str(value) for name, value in _LIMITS.items()})
    from ray.cluster_utils import Cluster  # pyright: ignore[reportMissingImports]

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        for _ in range(num_nodes - 1):
            cluster.add_node(num_cpus=1)
        yield cluster.address
    finally:
        cluster.shutdown()
        for name in _LIMITS:
            del os.environ[name]
