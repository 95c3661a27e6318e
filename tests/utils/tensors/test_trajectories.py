import pytest
import torch

from st_rl.utils.tensors.trajectories import (
    index_trajectories,
    pad,
    split_and_pad_trajectories,
    unpad_trajectories,
)

CASES = [(1, 1, 0.5), (1, 5, 0.5), (6, 1, 0.3), (7, 4, 0.0), (7, 4, 1.0), (9, 5, 0.3), (24, 8, 0.1)]


def rollout(num_steps, num_envs, done_prob, features=(3,)):
    generator = torch.Generator().manual_seed(num_steps * 100 + num_envs)
    data = torch.randn(num_steps, num_envs, *features, generator=generator)
    dones = torch.rand(num_steps, num_envs, generator=generator) < done_prob
    return data, dones


def pieces_of(dones):
    """All pieces as (env, first step, end step), by a loop over environments and steps."""
    pieces = []
    num_steps, num_envs = dones.shape
    for env in range(num_envs):
        first = 0
        for step in range(num_steps):
            if bool(dones[step, env]) or step == num_steps - 1:
                pieces.append((env, first, step + 1))
                first = step + 1
    return pieces


@pytest.mark.parametrize(("num_steps", "num_envs", "done_prob"), CASES)
def test_split_equals_a_loop_over_environments(num_steps, num_envs, done_prob):
    data, dones = rollout(num_steps, num_envs, done_prob)
    padded, masks = split_and_pad_trajectories(data, dones)
    pieces = pieces_of(dones)
    assert padded.shape == (num_steps, len(pieces), 3)
    assert masks.shape == (num_steps, len(pieces))
    assert masks.dtype == torch.bool
    for k, (env, first, end) in enumerate(pieces):
        length = end - first
        assert torch.equal(padded[:length, k], data[first:end, env])
        assert masks[:length, k].all()
        assert not masks[length:, k].any()
        assert torch.equal(padded[length:, k], torch.zeros(num_steps - length, 3))


@pytest.mark.parametrize(("num_steps", "num_envs", "done_prob"), CASES)
def test_index_fields(num_steps, num_envs, done_prob):
    _, dones = rollout(num_steps, num_envs, done_prob)
    pieces = pieces_of(dones)
    for surplus in (None, 0, 3):
        num_trajectories = None if surplus is None else len(pieces) + surplus
        index = index_trajectories(dones, num_trajectories)
        total = len(pieces) + (surplus or 0)
        assert index.masks.shape == index.padded_source.shape == (num_steps, total)
        assert index.first_step.tolist() == [first for _, first, _ in pieces] + [0] * (surplus or 0)
        assert index.env.tolist() == [env for env, _, _ in pieces] + [0] * (surplus or 0)
        assert not index.masks[:, len(pieces) :].any()
        assert (index.padded_source[~index.masks] == 0).all()
        for k, (env, first, end) in enumerate(pieces):
            for step in range(first, end):
                assert index.position[step, env] == (step - first) * total + k
                assert index.padded_source[step - first, k] == step * num_envs + env


@pytest.mark.parametrize(("num_steps", "num_envs", "done_prob"), CASES)
@pytest.mark.parametrize("features", [(), (3,), (2, 4, 4)])
def test_unpad_restores_the_rollout_by_mask_and_by_position(num_steps, num_envs, done_prob, features):
    data, dones = rollout(num_steps, num_envs, done_prob, features)
    padded, masks = split_and_pad_trajectories(data, dones)
    assert torch.equal(unpad_trajectories(padded, masks), data)
    index = index_trajectories(dones, int(masks.shape[1]) + 2)
    assert torch.equal(unpad_trajectories(pad(data, index), index.position), data)
    assert torch.equal(unpad_trajectories(pad(data, index), index.masks), data)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32])
def test_dones_of_any_dtype_and_shape_split_equally_and_are_not_modified(dtype):
    data, dones = rollout(9, 5, 0.3)
    expected, expected_masks = split_and_pad_trajectories(data, dones)
    given = dones.to(dtype).unsqueeze(-1)
    before = given.clone(), data.clone()
    padded, masks = split_and_pad_trajectories(data, given)
    assert torch.equal(padded, expected)
    assert torch.equal(masks, expected_masks)
    assert torch.equal(given, before[0])
    assert torch.equal(data, before[1])


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float16, torch.float64])
def test_data_dtype_is_kept(dtype):
    data, dones = rollout(9, 5, 0.3)
    data = (data * 3).to(dtype)
    padded, masks = split_and_pad_trajectories(data, dones)
    assert padded.dtype == dtype
    assert torch.equal(unpad_trajectories(padded, masks), data)


def test_padding_is_zero_and_gradient_free_even_when_step_zero_is_nan():
    data, dones = rollout(9, 5, 0.3)
    data[0, 0] = float("nan")  # the step that every padded cell refers to
    data.requires_grad_()
    padded, masks = split_and_pad_trajectories(data, dones)
    assert torch.equal(padded[~masks], torch.zeros_like(padded[~masks]))
    (padded[~masks] * 7).sum().backward()
    assert data.grad is not None
    assert torch.equal(data.grad, torch.zeros_like(data.grad))


def test_gradients_flow_through_padding_and_unpadding():
    data, dones = rollout(9, 5, 0.3)
    weight = torch.randn(9, 5, 3, generator=torch.Generator().manual_seed(1))
    index = index_trajectories(dones)
    for way_back in (index.masks, index.position):
        leaf = data.clone().requires_grad_()
        (unpad_trajectories(pad(leaf, index), way_back) * weight).sum().backward()
        assert torch.equal(leaf.grad, weight)


def test_non_contiguous_rollout_is_read_correctly():
    data, dones = rollout(9, 8, 0.3)
    padded, masks = split_and_pad_trajectories(data[:, 2:6], dones[:, 2:6])
    assert torch.equal(unpad_trajectories(padded, masks), data[:, 2:6])


def test_rejects_wrong_shapes():
    data, dones = rollout(9, 5, 0.3)
    with pytest.raises(ValueError, match=r"\(9, 4\)"):
        split_and_pad_trajectories(data, dones[:, :4])
    with pytest.raises(ValueError, match=r"shape \(T, N\)"):
        index_trajectories(dones[0])
    with pytest.raises(ValueError, match="num_trajectories=2 is less"):
        index_trajectories(dones, 2)
    padded, masks = split_and_pad_trajectories(data, torch.ones(9, 5))
    with pytest.raises(ValueError, match="complete environments"):
        unpad_trajectories(padded[:, :10], masks[:, :10])


def test_given_number_of_trajectories_needs_no_host_sync():
    """Meta tensors hold no data: operations with a host sync fail on them."""
    dones = torch.empty(9, 5, 1, dtype=torch.int64, device="meta")
    data = torch.empty(9, 5, 3, device="meta")
    index = index_trajectories(dones, num_trajectories=20)
    assert unpad_trajectories(pad(data, index), index.position).shape == (9, 5, 3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_gpu_equals_cpu_without_host_sync():
    data, dones = rollout(24, 8, 0.1)
    expected = pad(data, index_trajectories(dones, 60))
    cuda_data, cuda_dones = data.cuda(), dones.cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        index = index_trajectories(cuda_dones, 60)
        padded = pad(cuda_data, index)
        restored = unpad_trajectories(padded, index.position)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(padded.cpu(), expected)
    assert torch.equal(restored, cuda_data)
