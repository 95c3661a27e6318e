from collections import OrderedDict

import pytest
import torch

from st_rl.utils.ckpt_manipulator import replace_encoder0

KEYS = ["std", "encoders.0.model.0.weight", "critic_encoders.0.model.0.weight", "encoders.1.weight", "actor.0.weight"]


def state(value):
    return {
        "model_state_dict": OrderedDict((key, torch.full((2,), float(value))) for key in KEYS),
        "optimizer_state_dict": {"state": {}},
        "iter": 100 * value,
        "infos": {"from": value},
    }


def test_replace_encoder0_keeps_only_first_actor_encoder_untrained(caplog):
    source, current = state(1), state(2)
    result = replace_encoder0(source, current)
    assert {key: value[0].item() for key, value in result["model_state_dict"].items()} == {
        "std": 1,
        "encoders.0.model.0.weight": 2,
        "critic_encoders.0.model.0.weight": 1,
        "encoders.1.weight": 1,
        "actor.0.weight": 1,
    }
    assert set(result) == {"model_state_dict", "iter", "infos"}
    assert result["iter"] == 100
    assert result["infos"] == {"from": 1}
    assert "encoders.0.model.0.weight" in caplog.text
    assert "optimizer_state_dict" in source


def test_error_lists_missing_keys():
    source = state(1)
    del source["model_state_dict"]["actor.0.weight"]
    with pytest.raises(KeyError, match=r"actor\.0\.weight"):
        replace_encoder0(source, state(2))
