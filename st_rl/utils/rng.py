"""Saves and restores the random-number generators of torch, CUDA, numpy and Python as plain tensors and numbers."""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from st_rl.utils.log import logger


def rng_state_dict(device: torch.device | str | None = None) -> dict[str, Any]:
    """Return the state of every generator of this process; CUDA's only if `device` is a CUDA device."""
    _, keys, position, has_gauss, cached_gaussian = np.random.get_state(legacy=True)
    version, internal, gauss_next = random.getstate()
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "numpy": {
            "keys": torch.from_numpy(np.asarray(keys, dtype=np.int64)),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "cached_gaussian": float(cached_gaussian),
        },
        "python": {"version": version, "state": torch.tensor(internal, dtype=torch.int64), "gauss_next": gauss_next},
    }
    if device is not None and torch.device(device).type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def load_rng_state_dict(state: Mapping[str, Any], device: torch.device | str | None = None) -> None:
    """Restore a state of `rng_state_dict`; CUDA's on `device`, or on the current CUDA device.

    The tensors may be on any device (`map_location`).
    """
    torch.set_rng_state(state["torch"].cpu())
    saved = state["numpy"]
    keys = saved["keys"].cpu().numpy().astype(np.uint32)
    np.random.set_state(("MT19937", keys, saved["position"], saved["has_gauss"], saved["cached_gaussian"]))
    saved = state["python"]
    random.setstate((saved["version"], tuple(saved["state"].tolist()), saved["gauss_next"]))
    if "cuda" not in state:
        return
    if not torch.cuda.is_available():
        logger.warning("the CUDA random-number state of the checkpoint is ignored: there is no CUDA device")
        return
    torch.cuda.set_rng_state(state["cuda"].cpu(), "cuda" if device is None else device)
