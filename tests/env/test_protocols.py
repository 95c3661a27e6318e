import types
from contextlib import nullcontext

import pytest

from st_rl.env.protocols import (
    CommandedEnv,
    CompilableEnv,
    GraphSafeEnv,
    MirroredEnv,
    SegmentedEnv,
    StatefulEnv,
)
from tests.fakes import EchoEnv


class FullEnv(EchoEnv):
    is_graph_safe = False
    mirror = types.MappingProxyType({})

    def during_capture(self, stream):
        return nullcontext()

    def compile_with(self, compiled):
        pass

    def hold_commands(self, commands):
        pass


class Forwarding:
    def __init__(self, env):
        self.env = env

    def __getattr__(self, name):
        return getattr(self.env, name)


PROTOCOLS = [CommandedEnv, CompilableEnv, GraphSafeEnv, MirroredEnv]


@pytest.mark.parametrize("protocol", [*PROTOCOLS, SegmentedEnv, StatefulEnv])
def test_recognizes_capabilities_of_an_environment_and_through_forwarding_wrappers(protocol):
    assert isinstance(FullEnv(), protocol)
    assert isinstance(Forwarding(FullEnv()), protocol)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_missing_attributes_are_not_a_capability(protocol):
    assert not isinstance(EchoEnv(), protocol)
    assert not isinstance(Forwarding(EchoEnv()), protocol)


def test_attributes_that_are_none_are_not_a_capability():
    env = EchoEnv()
    assert isinstance(env, SegmentedEnv)
    env.obs_segments = None
    assert not isinstance(env, SegmentedEnv)


def test_class_derived_from_a_protocol_is_an_ordinary_class():
    class Commanded(CommandedEnv):
        def hold_commands(self, commands):
            pass

    assert isinstance(Commanded(), Commanded)
    assert not isinstance(FullEnv(), Commanded)
