"""The metadata that a controller needs to run a policy: `policy_metadata` in `run.json` and in the exported file."""

from typing import Any

from st_rl.env.observation_history import ObservationHistory
from st_rl.env.protocols import DescribedEnv, SegmentedEnv
from st_rl.env.vec_env import VecEnv

FORMAT = 2
"""Version of the metadata; a run with an older one is described again from its task."""


def describe_policy_io(env: VecEnv) -> dict[str, Any]:
    """Return how observations are computed and actions are applied; of a task that is not built in, its segments."""
    if isinstance(env, ObservationHistory):
        return _add_history(describe_policy_io(env.env), env)
    segments = dict(env.obs_segments) if isinstance(env, SegmentedEnv) else {}
    return {"format": FORMAT, "obs_segments": segments, **(env.describe_io() if isinstance(env, DescribedEnv) else {})}


def _add_history(metadata: dict[str, Any], env: ObservationHistory) -> dict[str, Any]:
    """Return the metadata of an environment with the component that `env` appends."""
    length, width = env.obs_segments["history"]
    term = {
        "name": "history",
        "segment": "history",
        "start": env.env.num_obs,
        "width": length * width,
        "shape": (length, width),
        "description": f"{', '.join(env.components)} of the last {length} observations, scaled and clipped, oldest "
        "first, the current one last; at the start the first one repeated",
        "history_length": length,
    }
    return {**metadata, "obs_segments": dict(env.obs_segments), "obs_terms": [*metadata.get("obs_terms", []), term]}
