"""Configuration dictionaries: None values, foreign keys, misspelled keys."""

import copy
import sys
from collections import OrderedDict

import pytest

from st_rl.utils.config import (
    Configurable,
    accepted_keys,
    drop_none,
    nearest_name,
    own_settings_from,
    reject_unsafe_settings,
    report_unused_keys,
    resolve_class,
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


CLASSES = {"OrderedDict": OrderedDict, "dict": dict}


def test_finds_registered_classes_and_paths():
    assert resolve_class("dict", CLASSES, "mapping") is dict
    assert resolve_class("collections:OrderedDict", {}, "mapping", base=dict) is OrderedDict
    assert resolve_class("tests.utils.test_config:Outer.Inner", {}, "mapping") is Outer.Inner


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("OrderdDict", r"unknown mapping 'OrderdDict'; did you mean 'OrderedDict'\? known: OrderedDict, dict"),
        ("no.such.module:Thing", r"mapping 'no.such.module:Thing' cannot be imported \(No module named 'no'\)"),
        ("collections:OrderdDict", "cannot be imported .*OrderdDict.*write it as package.module:name"),
        (":Thing", "cannot be imported"),
        ("collections:", "cannot be imported"),
        ("math:pi", "'math:pi' is not a class but 3.14"),
        ("collections:Counter2", "cannot be imported"),
        ("collections:UserList", "'collections:UserList' must be a subclass of dict; UserList is not"),
    ],
)
def test_rejects_names_with_hint(name, message):
    with pytest.raises(ValueError, match=message):
        resolve_class(name, CLASSES, "mapping", base=dict)


def test_disallowed_path_imports_nothing(tmp_path, monkeypatch):
    (tmp_path / "never_imported.py").write_text("class Thing: ...")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=r"must not import code.*registered name: OrderedDict, dict"):
        resolve_class("never_imported:Thing", CLASSES, "mapping", allow_path=False)
    assert "never_imported" not in sys.modules


@pytest.mark.parametrize(
    "config",
    [
        {"policy": {"class_name": "a.b:C"}},
        {"policy": {"encoder_class_name": ["MlpModel", "a.b:C"]}},
        {"algorithm": [{"teacher_policy": {"class_name": "a.b:C"}}]},
        {"runner_class_name": "a.b:C"},
    ],
)
def test_rejects_paths_in_a_file_at_any_depth(config):
    with pytest.raises(ValueError, match=r"config.json names the \w*class_name 'a.b:C' by path.*st_rl.modules.C = "):
        reject_unsafe_settings(config, "config.json")


def test_rejects_trust_pickle_in_a_file_at_any_depth():
    for value in (True, 1, "yes"):
        with pytest.raises(ValueError, match=r"config.json sets trust_pickle.*from Python"):
            reject_unsafe_settings({"algorithm": {"teacher_policy": [{"trust_pickle": value}]}}, "config.json")


def test_accepts_other_values_in_a_file():
    reject_unsafe_settings({"policy": {"trust_pickle": False}, "algorithm": {"trust_pickle": None}}, "f")
    reject_unsafe_settings(
        {"task": "gym:Pendulum-v1", "policy": {"class_name": "ActorCritic"}, "sizes": [1, None]}, "f"
    )


class Outer:
    class Inner: ...
