"""The factors of a step on a GPU do what clipping and asking do on a CPU."""

import pytest
import torch
from torch import nn

from st_rl.algorithms.optimizer import step_factors


@pytest.mark.parametrize("size", [0.01, 1.0, 50.0])
def test_gradients_divided_by_the_factor_are_clipped_gradients(size):
    parameters = [nn.Parameter(torch.zeros(4, 3)), nn.Parameter(torch.zeros(5))]
    for parameter in parameters:
        parameter.grad = size * torch.randn_like(parameter)
    norms = [parameter.grad.norm() for parameter in parameters if parameter.grad is not None]
    norm, scale, skip = step_factors(norms, 1.0, None)
    divided = [parameter.grad / scale for parameter in parameters if parameter.grad is not None]
    expected = nn.utils.clip_grad_norm_(parameters, 1.0)
    assert float(norm) == pytest.approx(float(expected), rel=1e-6)
    assert float(skip) == 0.0
    for parameter, gradient in zip(parameters, divided):
        torch.testing.assert_close(gradient, parameter.grad)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_step_is_skipped_for_bad_numbers_and_on_request(bad):
    assert float(step_factors([torch.tensor(1.0), torch.tensor(bad)], 1.0, None)[2]) == 1.0
    good = [torch.tensor(1.0), torch.tensor(2.0)]
    assert float(step_factors(good, 1.0, torch.tensor(True))[2]) == 1.0
    assert float(step_factors(good, 1.0, torch.tensor(False))[2]) == 0.0
