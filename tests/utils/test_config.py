"""Configuration dictionaries: None values, foreign keys, misspelled keys."""

import copy

import pytest

from st_rl.utils.config import (
    Configurable,
    accepted_keys,
    drop_none,
    nearest_name,
    own_settings_from,
    report_unused_keys,
    unknown_name_message,
)


class Base:
    def __init__(self, first, second=2, *args, third=3, **kwargs):
        pass


class Derived(Base):
    def __init__(self, *args, fourth=4, **kwargs):
        super().__init__(*args, **kwargs)


class Untouched(Derived):
    pass


def test_accepted_keys_include_base_classes():
    assert accepted_keys(Base) == {"first", "second", "third"}
    assert accepted_keys(Untouched) == {"first", "second", "third", "fourth"}


def test_drop_none_drops_only_none():
    given = {"a": None, "b": 0, "c": False, "d": {}, "e": [], "f": {"g": None}}
    before = copy.deepcopy(given)
    assert drop_none(given) == {"b": 0, "c": False, "d": {}, "e": [], "f": {"g": None}}
    assert given == before


def test_nearest_name():
    names = ["gamma", "lam", "learning_rate"]
    assert nearest_name("gama", names) == "gamma"
    assert nearest_name("learning_rates", names) == "learning_rate"
    assert nearest_name("xyz", names) is None


def test_unknown_name_message_lists_nearest_and_all():
    message = unknown_name_message("logger", "tensorbord", ["wandb", "tensorboard"])
    assert "'tensorbord'" in message
    assert "did you mean 'tensorboard'?" in message
    assert "known: tensorboard, wandb" in message
    assert "did you mean" not in unknown_name_message("logger", "xyz", ["wandb"])


def test_keys_of_other_classes_are_one_warning(caplog):
    class Other(Configurable):
        def __init__(self, another_parts_key=None):
            self.value = another_parts_key

    report_unused_keys({"another_parts_key": 1, "rnn_type": "gru", "amp_data": None}, "PPO", {"gamma"})
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert all(key in record.getMessage() for key in ("PPO", "another_parts_key", "rnn_type", "amp_data"))


def test_tolerated_keys_are_not_reported(caplog):
    report_unused_keys({"class_name": "PPO", "teacher_ac_path": None}, "PPO", {"gamma"}, strict=True)
    assert not caplog.records


def test_unknown_key_warns_with_nearest_name(caplog):
    report_unused_keys({"gama": 1, "qqqqqq": 2, "rnn_type": "gru"}, "PPO", {"gamma", "lam"})
    first, second, third = (record.getMessage() for record in caplog.records)
    assert "'gama'" in first
    assert "did you mean 'gamma'?" in first
    assert "'qqqqqq'" in second
    assert "did you mean" not in second
    assert "rnn_type" in third


def test_strict_raises_with_accepted_keys():
    with pytest.raises(ValueError, match=r"'gama' for PPO; did you mean 'gamma'\?.*gamma, lam"):
        report_unused_keys({"gama": 1}, "PPO", {"gamma", "lam"}, strict=True)
    report_unused_keys({"rnn_type": "gru"}, "PPO", {"gamma"}, strict=True)


def test_hint_prefers_keys_of_the_owner(caplog):
    class Other(Configurable):
        config_keys = frozenset({"depth_scales"})

    report_unused_keys({"depth_scalez": 1}, "PPO", {"depth_scale"})
    assert "did you mean 'depth_scale'?" in caplog.text


def test_no_unused_keys_no_warning(caplog):
    report_unused_keys({}, "PPO", {"gamma"}, strict=True)
    assert not caplog.records


class TestOwnSettings:
    class Inner:
        def __init__(self, *args, part=None, **kwargs):
            self.part, self.rest = part, kwargs

    class Mixin(Inner):
        @own_settings_from("part")
        def __init__(self, *args, weight=1.0, width=None, **kwargs):
            super().__init__(*args, **kwargs)
            self.weight, self.width = weight, width

    def test_own_settings_are_taken_out_of_the_dictionary(self):
        part = {"weight": 2.0, "width": 3, "rate": 4}
        before = copy.deepcopy(part)
        made = self.Mixin(part=part)
        assert (made.weight, made.width, made.part) == (2.0, 3, {"rate": 4})
        assert part == before

    def test_direct_arguments_take_precedence(self):
        made = self.Mixin(part={"weight": 2.0, "width": 3}, weight=1.0)
        assert (made.weight, made.width, made.part) == (1.0, 3, {})

    def test_none_means_default(self):
        assert self.Mixin(part={"weight": None}).weight == 1.0
        assert self.Mixin(part={"weight": 2.0}, weight=None).weight == 2.0
        assert self.Mixin(weight=None).weight == 1.0

    def test_dictionary_is_optional(self):
        assert self.Mixin(weight=5.0, other=1).rest == {"other": 1}
        assert self.Mixin(part=None).part is None

    def test_constructor_keeps_its_signature(self):
        assert {"weight", "width"} <= accepted_keys(self.Mixin)
