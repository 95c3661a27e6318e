import copy
import pickle
from collections import namedtuple
from typing import NamedTuple

import numpy as np
import pytest
import torch

from st_rl.utils.collections import (
    AttrDict,
    is_namedarraytuple,
    is_namedarraytuple_class,
    is_namedtuple,
    is_namedtuple_class,
    namedarraytuple,
    namedarraytuple_like,
)

Sample = namedarraytuple("Sample", ["obs", "action"])
Outer = namedarraytuple("Outer", "inner extra")
Plain = namedtuple("Plain", "obs action")


class Typed(NamedTuple):
    obs: int


def sample():
    return Sample(obs=torch.arange(12.0).view(4, 3), action=np.arange(8).reshape(4, 2))


def test_indexing_takes_every_field_and_keeps_none():
    row = sample()[1:3]
    assert type(row) is Sample
    assert torch.equal(row.obs, torch.arange(3.0, 9.0).view(2, 3))
    assert row.action.tolist() == [[2, 3], [4, 5]]
    assert Sample(torch.zeros(3), None)[0].action is None
    nested = Outer(sample(), None)[2]
    assert type(nested.inner) is Sample
    assert nested.inner.action.tolist() == [4, 5]
    assert nested.extra is None


def test_assignment_by_field_or_broadcast():
    x = sample()
    x[0] = Sample(torch.full((3,), -1.0), np.array([-2, -2]))
    assert x.obs[0].tolist() == [-1.0] * 3
    assert x.action[0].tolist() == [-2, -2]
    x[1] = Plain(torch.full((3,), 7.0), np.array([8, 9]))  # any tuple with these fields
    assert x.action[1].tolist() == [8, 9]
    x[2:] = 0
    assert not x.obs[2:].any()
    assert not x.action[2:].any()
    partial = Sample(torch.zeros(2), None)
    partial[0] = 5
    assert partial.obs.tolist() == [5.0, 0.0]
    nested = Outer(sample(), None)
    nested[3] = nested[0]
    assert nested.inner.action[3].tolist() == [0, 1]


def test_rejects_value_for_none_field():
    with pytest.raises(TypeError, match="'action'"):
        Sample(torch.zeros(2), None)[0] = Sample(1.0, 2.0)


def test_behaves_like_a_tuple():
    x = sample()
    obs, action = x
    assert obs is x.obs
    assert x.get(1) is action
    assert x.get(-1) is action
    assert len(x) == 2
    assert [name for name, _ in x.items()] == ["obs", "action"]
    assert "obs" in x
    assert "reward" not in x
    assert x._replace(obs=None).obs is None
    assert list(x._asdict()) == ["obs", "action"]
    assert Sample._fields == ("obs", "action")


def test_index_error_names_the_field_and_keeps_its_cause():
    x = Sample(torch.zeros(5), torch.zeros(2))
    with pytest.raises(IndexError, match="'action'") as caught:
        x[3]
    assert isinstance(caught.value.__cause__, IndexError)
    with pytest.raises(IndexError, match="'action'") as caught:
        x[3] = 1.0
    assert isinstance(caught.value.__cause__, IndexError)


def test_leading_dims_are_the_common_ones():
    assert sample().get_leading_dims() == (4,)
    assert Sample(torch.zeros(5, 3, 2), torch.zeros(5, 3)).get_leading_dims() == (5, 3)
    assert Sample(torch.zeros(5), torch.zeros(4)).get_leading_dims() == ()
    assert Outer(sample(), torch.zeros(4, 3)).get_leading_dims() == (4,)
    with pytest.raises(AttributeError, match="None"):
        Sample(torch.zeros(5), None).get_leading_dims()


@pytest.mark.parametrize("name", ["get", "items"])
def test_rejects_reserved_field_names(name):
    with pytest.raises(ValueError, match=name):
        namedarraytuple("Bad", ["obs", name])


def test_pickle_and_copy_work_at_module_level():
    for twin in (pickle.loads(pickle.dumps(Outer(Sample(1, 2), None))), copy.deepcopy(Outer(Sample(1, 2), None))):
        assert type(twin) is Outer
        assert twin.inner == Sample(1, 2)


def test_both_classes_and_suffixes():
    array_class, plain_class = namedarraytuple("Pair", "a b", return_namedtuple_cls=True, classname_suffix=True)
    assert (array_class.__name__, plain_class.__name__) == ("Pair_nat", "Pair_nt")
    assert issubclass(array_class, plain_class)
    assert is_namedarraytuple_class(array_class)
    assert is_namedtuple_class(plain_class)


def test_kinds_of_named_tuples_are_distinguished():
    for obj, array, plain in [
        (sample(), True, False),
        (Plain(1, 2), False, True),
        (Typed(1), False, True),
        ((1, 2), False, False),
        ([1], False, False),
        (None, False, False),
        (torch.Size([1]), False, False),
    ]:
        assert is_namedarraytuple(obj) == is_namedarraytuple_class(type(obj)) == array
        assert is_namedtuple(obj) == is_namedtuple_class(type(obj)) == plain
    assert not is_namedtuple_class(Plain(1, 2))
    assert not is_namedarraytuple_class(sample())


def test_like_gives_the_array_class_of_any_named_tuple():
    for example in (Plain(1, 2), Plain):
        cls = namedarraytuple_like(example)
        assert is_namedarraytuple_class(cls)
        assert cls.__name__ == "Plain"
        assert cls._fields == Plain._fields
    assert namedarraytuple_like(sample()) is Sample
    assert namedarraytuple_like(Sample) is Sample
    with pytest.raises(TypeError, match="dict"):
        namedarraytuple_like({"a": 1})


def test_attr_dict_reads_and_writes_both_ways():
    x = AttrDict(a=1, inner=AttrDict(b=[2]))
    x.c = 3
    x["d"] = 4
    assert (x.a, x["c"], x.d, x.inner.b) == (1, 3, 4, [2])
    del x.c
    assert "c" not in x
    with pytest.raises(AttributeError, match="missing"):
        x.missing
    twin = x.copy()
    twin.inner.b2 = 5
    assert "b2" not in x.inner
    assert twin.inner.b is x.inner.b
    assert copy.deepcopy(x) == x
    assert type(pickle.loads(pickle.dumps(x))) is AttrDict
