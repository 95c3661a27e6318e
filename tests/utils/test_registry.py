"""Class names accepted from configurations and rejected in files."""

import sys
from collections import OrderedDict

import pytest

from st_rl.utils.registry import reject_unsafe_settings, resolve_class

CLASSES = {"OrderedDict": OrderedDict, "dict": dict}


def test_finds_registered_classes_and_paths():
    assert resolve_class("dict", CLASSES, "mapping") is dict
    assert resolve_class("collections:OrderedDict", {}, "mapping", base=dict) is OrderedDict
    assert resolve_class("tests.utils.test_registry:Outer.Inner", {}, "mapping") is Outer.Inner


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("OrderdDict", r"unknown mapping 'OrderdDict'; did you mean 'OrderedDict'\? known: OrderedDict, dict"),
        ("no.such.module:Thing", r"mapping 'no.such.module:Thing' cannot be imported \(No module named 'no'\)"),
        ("collections:OrderdDict", "cannot be imported .*OrderdDict.*write it as package.module:Class"),
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
