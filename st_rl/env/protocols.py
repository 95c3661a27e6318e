"""Optional capabilities of an environment beyond `VecEnv`, one `Protocol` each.

Test for a capability with `isinstance(env, StatefulEnv)`. An attribute that is missing or None is not offered; one that
a wrapper forwards through `__getattr__` is.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

import torch

from st_rl.utils.capability import CapabilityMeta


@runtime_checkable
class GraphSafeEnv(Protocol, metaclass=CapabilityMeta):
    """Steps on fixed device buffers without host syncs while `is_graph_safe`, so that a CUDA graph can capture it."""

    is_graph_safe: bool

    def during_capture(self, stream: torch.cuda.Stream) -> AbstractContextManager[None]:
        """Return the context that a capture on `stream` runs in."""
        ...


@runtime_checkable
class CompilableEnv(Protocol, metaclass=CapabilityMeta):
    """Lets the engine compile the tensor part of its step."""

    def compile_with(self, compiled: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Replace the tensor part of the step by `compiled(part)`."""
        ...


@runtime_checkable
class StatefulEnv(Protocol, metaclass=CapabilityMeta):
    """Saves and restores its full state, for a bit-exact resume."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return copies of all that the next step depends on."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `state_dict`."""
        ...


@runtime_checkable
class ResettableEnv(Protocol, metaclass=CapabilityMeta):
    """Starts new episodes on request; environments of rsl_rl 5 do not."""

    def reset(self) -> Any:
        """Reset all environments and return their observations."""
        ...


@runtime_checkable
class CommandedEnv(Protocol, metaclass=CapabilityMeta):
    """Follows velocity commands that an evaluation can fix."""

    def hold_commands(self, commands: torch.Tensor) -> None:
        """Set the commands `(N, 3)` (m/s, m/s, rad/s) and keep them over all further episodes."""
        ...


@runtime_checkable
class MirroredEnv(Protocol, metaclass=CapabilityMeta):
    """Describes its left-right symmetry in the form of `symmetry_cfg`."""

    mirror: Mapping[str, Any]


@runtime_checkable
class SegmentedEnv(Protocol, metaclass=CapabilityMeta):
    """Names the components of its observation, in order: name -> shape."""

    obs_segments: Mapping[str, Any]


@runtime_checkable
class ConfiguredEnv(Protocol, metaclass=CapabilityMeta):
    """Carries the configuration it was built from."""

    cfg: Any


@runtime_checkable
class RenderableEnv(Protocol, metaclass=CapabilityMeta):
    """Renders frames."""

    def render(self) -> Any:
        """Return the current frame."""
        ...


@runtime_checkable
class NamedTaskEnv(Protocol, metaclass=CapabilityMeta):
    """Was built by the name of a task, so that the commands of `st-rl` can build it again from `run.json`."""

    task_id: str | None
    task_config: Mapping[str, Any] | None


@runtime_checkable
class DescribedEnv(Protocol, metaclass=CapabilityMeta):
    """Describes to a controller how its observations are computed and its actions applied."""

    def describe_io(self) -> Mapping[str, Any]:
        """Return the description, plain values by name."""
        ...
