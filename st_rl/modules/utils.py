"""Small helpers shared by the network blocks."""

import inspect
from collections.abc import Callable, Iterable

from torch import nn

from st_rl.utils.config import unknown_name_message
from st_rl.utils.log import logger

ModuleMaker = Callable[..., nn.Module]

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "elu": nn.ELU,
    "selu": nn.SELU,
    "relu": nn.ReLU,
    "crelu": nn.ReLU,
    "lrelu": nn.LeakyReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "softplus": nn.Softplus,
    "gelu": nn.GELU,
    "swish": nn.SiLU,
    "mish": nn.Mish,
}
_KNOWN_NAMES = f"{', '.join(ACTIVATIONS)}, or a class name of torch.nn"


def _find_module_class(name: str) -> type[nn.Module] | None:
    """Return the `torch.nn` module class of exactly this name, or of a short activation name."""
    found = vars(nn).get(name)
    if isinstance(found, type) and issubclass(found, nn.Module):
        return found
    return ACTIVATIONS.get(name)


def get_activation_Cls(activation_name: str) -> type[nn.Module] | None:
    """Return an activation class by `torch.nn` class name or short name; None with a warning if it is unknown."""
    found = _find_module_class(activation_name)
    if found is None:
        logger.warning(f"unknown activation '{activation_name}'; known: {_KNOWN_NAMES}")
    return found


def resolve_module(module: str | ModuleMaker, role: str) -> ModuleMaker:
    """Return `module`, or the layer class of that name; ValueError, naming `role`, for an unknown name."""
    found = _find_module_class(module) if isinstance(module, str) else module
    if not callable(found):
        raise ValueError(f"{role}={module!r} is not a layer; use a class or one of these names: {_KNOWN_NAMES}")
    return found


def int_pair(value: int | tuple[int, int] | list[int]) -> tuple[int, int]:
    """Return `(h, w)` of a setting given once for both axes or for each."""
    if isinstance(value, (tuple, list)):
        height, width = value
        return int(height), int(width)
    return int(value), int(value)


def conv2d_output_shape(
    h: int,
    w: int,
    kernel_size: int | tuple[int, int] = 1,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
) -> tuple[int, int]:
    """Return height and width of the output of a convolution or pooling layer for an `(h, w)` image."""
    settings = zip((int(h), int(w)), int_pair(kernel_size), int_pair(stride), int_pair(padding), int_pair(dilation))
    height, width = ((size + 2 * pad - dil * (kernel - 1) - 1) // step + 1 for size, kernel, step, pad, dil in settings)
    return height, width


def check_settings(setting: str, keys: Iterable[str], make: ModuleMaker, decided: Iterable[str]) -> None:
    """ValueError, with the nearest key, for a key that `make` does not take or that is in `decided`."""
    known = [name for name in inspect.signature(make).parameters if name not in decided]
    for key in keys:
        if key not in known:
            raise ValueError(unknown_name_message(f"key in {setting}", key, known))
