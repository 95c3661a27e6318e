"""`move_to`: devices of modules."""

import pytest
import torch
from torch import nn

from st_rl.engine.engine import move_to


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu")])
def test_module_on_device_is_not_modified(monkeypatch, device):
    monkeypatch.setattr(nn.Module, "to", lambda *_: pytest.fail("moved although it was there"))
    assert not move_to(nn.GRU(3, 4), device)


def test_module_on_other_device_moves_with_buffers():
    module = nn.BatchNorm1d(3)
    assert move_to(module, "meta")
    assert {tensor.device.type for tensor in (*module.parameters(), *module.buffers())} == {"meta"}
    assert not move_to(module, "meta")


def test_one_buffer_on_other_device_moves_module():
    module = nn.BatchNorm1d(3, affine=False)
    module.running_mean = module.running_mean.to("meta")
    assert move_to(module, "meta")
    assert module.running_var.device.type == "meta"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_rnn_weights_keep_their_address_on_gpu():
    memory = nn.GRU(3, 4).to("cuda")
    places = [parameter.data_ptr() for parameter in memory.parameters()]
    assert not move_to(memory, "cuda")
    assert not move_to(memory, "cuda:0")
    assert [parameter.data_ptr() for parameter in memory.parameters()] == places
