"""Functions that modify a loaded checkpoint before an algorithm loads it.

Each has the form `f(source_state_dict, algo_state_dict) -> new_state_dict`, with the checkpoint and the algorithm's
current state; the result is loaded instead of the checkpoint. The configuration key is `ckpt_manipulator`.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from st_rl.utils.log import logger


def replace_encoder0(source_state_dict: Mapping[str, Any], algo_state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checkpoint with the current, untrained first actor encoder and without optimizer state."""
    source = source_state_dict["model_state_dict"]
    model = OrderedDict()
    missing = []
    for key, value in algo_state_dict["model_state_dict"].items():
        if "encoders.0" in key and "critic_encoders.0" not in key:
            logger.info("replace_encoder0: %s is not loaded", key)
            model[key] = value
        elif key in source:
            model[key] = source[key]
        else:
            missing.append(key)
    if missing:
        raise KeyError(
            f"the checkpoint lacks {', '.join(missing)}; load it into a policy of the class it was saved from"
        )
    return {
        "model_state_dict": model,
        "iter": source_state_dict["iter"],
        "infos": source_state_dict.get("infos"),
    }
