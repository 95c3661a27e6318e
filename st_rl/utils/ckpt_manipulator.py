"""Functions that change a loaded checkpoint before an algorithm takes it over.

Each has the form `f(source_state_dict, algo_state_dict) -> new_state_dict`: the loaded checkpoint and the algorithm's
present state give what is loaded instead. The configuration names one as `ckpt_manipulator`.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from st_rl.utils.log import logger


def replace_encoder0(source_state_dict: Mapping[str, Any], algo_state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """Take the checkpoint but keep the algorithm's own, untrained first actor encoder; no optimiser state."""
    source = source_state_dict["model_state_dict"]
    model = OrderedDict()
    missing = []
    for key, value in algo_state_dict["model_state_dict"].items():
        if "encoders.0" in key and "critic_encoders.0" not in key:
            logger.info("replace_encoder0: %s stays as initialised", key)
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
