"""Conversion between gymnasium spaces and flat tensors."""

import math
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from gymnasium.spaces import Space


class ObservationFlattener:
    """Concatenates the parts of a gymnasium observation (Box, or Dict and Tuple of Boxes) into one tensor.

    `segments` maps the name of each Box to its shape, in the order of the space; parts of nested spaces are joined by
    `/`, and a lone Box is called `obs`.
    """

    def __init__(self, space: "Space[Any]") -> None:
        leaves = _leaves(space, ())
        self.segments = OrderedDict(("/".join(map(str, path)) or "obs", shape or (1,)) for path, shape in leaves)
        self.width = sum(math.prod(shape) for shape in self.segments.values())
        self._paths = [path for path, _ in leaves]

    def batch(self, observation: Any, num_envs: int, device: torch.device | str) -> torch.Tensor:
        """Return a batch of observations as a new tensor `(N, O)`."""
        flat = torch.empty(num_envs, self.width, device=device)
        self.write(flat, observation)
        return flat

    def write(self, target: torch.Tensor, observation: Any) -> None:
        """Write one observation into `target (O,)`, or a batch of them into `target (N, O)`."""
        start = 0
        for path, shape in zip(self._paths, self.segments.values()):
            leaf = observation
            for key in path:
                leaf = leaf[key]
            part = target[..., start : start + math.prod(shape)]
            part.copy_(torch.as_tensor(leaf).reshape(part.shape))
            start += math.prod(shape)


class ActionMapper:
    """Maps actions `(N, A)` into a Box: by clipping, or linearly from [-1, 1] to its bounds."""

    def __init__(self, space: "Space[Any]", clip: bool, rescale: bool) -> None:
        from gymnasium import spaces

        if not isinstance(space, spaces.Box):
            raise ValueError(
                f"the action space {space} is not a Box; st_rl's policies are Gaussian and give continuous actions. "
                "Use a task with a Box action space, or map continuous actions onto this one in a wrapper"
            )
        self.low, self.high = torch.as_tensor(space.low).flatten(), torch.as_tensor(space.high).flatten()
        if not self.low.is_floating_point():
            raise ValueError(f"the action space {space} holds integers; st_rl's policies give real numbers")
        if rescale and not bool((self.low.isfinite() & self.high.isfinite()).all()):
            raise ValueError(
                f"rescale_actions=True needs an action space with finite bounds, not {space}; leave it False"
            )
        self.shape = tuple(space.shape)
        self.width = self.low.numel()
        self._clip, self._rescale = clip, rescale

    def __call__(self, actions: torch.Tensor, device: torch.device | str) -> torch.Tensor:
        """Return new actions `(N, *shape)` on a device, in the dtype of the space."""
        if actions.ndim != 2 or actions.shape[1] != self.width:
            raise ValueError(f"actions have shape {tuple(actions.shape)}, expected (num_envs, {self.width})")
        low, high = self.low.to(device), self.high.to(device)
        actions = actions.detach().to(device=device, dtype=low.dtype, copy=True)
        if self._rescale:
            actions = low + (actions.clamp(-1.0, 1.0) + 1.0) * (0.5 * (high - low))
        if self._clip or self._rescale:
            # Rounding may carry a rescaled action past its bound, so it is clipped too.
            actions = torch.clamp(actions, low, high)
        return actions.reshape(-1, *self.shape)


def _leaves(space: "Space[Any]", path: tuple[str | int, ...]) -> list[tuple[tuple[str | int, ...], tuple[int, ...]]]:
    """Path and shape of every Box of a space, in its order."""
    from gymnasium import spaces

    if isinstance(space, spaces.Box):
        return [(path, tuple(int(size) for size in space.shape))]
    if isinstance(space, spaces.Dict):
        parts = space.spaces.items()
    elif isinstance(space, spaces.Tuple):
        parts = enumerate(space.spaces)
    else:
        where = f" (component {'/'.join(map(str, path))})" if path else ""
        raise ValueError(
            f"the observation space {space}{where} is not made of Boxes; wrap each environment in "
            "gymnasium.wrappers.FlattenObservation first"
        )
    return [leaf for key, part in parts for leaf in _leaves(part, (*path, key))]
