"""`EmpiricalNormalization`, `Normalize`, `RunningMeanStd` and `Normalizer`."""

import io
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from st_rl.datasets.library import CLIPS
from st_rl.datasets.motion_loader import AMPLoader
from st_rl.modules import normalizer as normalizers
from st_rl.modules.normalizer import EmpiricalNormalization, Normalize, Normalizer, RunningMeanStd
from st_rl.storage import AmpRolloutStorage, ReplayBuffer
from st_rl.utils.distributed import rank
from tests.modules.graph_safety import NoHostSync
from tests.ranks import run_ranks


def batches(num_batches=40, width=5, seed=0):
    """Float32 batches of different sizes with drifting statistics."""
    generator = np.random.default_rng(seed)
    offset, scale = generator.normal(0, 20, width), generator.uniform(0.01, 5, width)
    return [
        (offset + 0.1 * index + scale * generator.normal(size=(generator.integers(1, 50), width))).astype(np.float32)
        for index in range(num_batches)
    ]


def moments(samples):
    """Mean and biased standard deviation in float64."""
    samples = np.concatenate(samples).astype(np.float64)
    return samples.mean(axis=0), samples.std(axis=0)


# --- EmpiricalNormalization ------------------------------------------------------------------------------------------


def test_moments_equal_numpy_over_all_samples():
    normalizer = EmpiricalNormalization(5)
    seen = []
    for batch in batches():
        output = normalizer(torch.from_numpy(batch))
        seen.append(batch)
        mean, std = moments(seen)
        np.testing.assert_allclose(normalizer.mean.numpy(), mean, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(normalizer.std.numpy(), std, rtol=1e-4)
        np.testing.assert_allclose(output.numpy(), (batch - mean) / (std + 1e-2), rtol=1e-3, atol=2e-3)
    assert int(normalizer.count) == sum(len(batch) for batch in seen)
    np.testing.assert_allclose(normalizer._var.numpy()[0], normalizer.std.numpy() ** 2, rtol=1e-5)


def test_small_variance_survives_large_offset():
    samples = 1000.0 + 0.05 * torch.randn(2000, 1, generator=torch.Generator().manual_seed(0))
    normalizer = EmpiricalNormalization(1)
    for batch in samples.split(100):
        normalizer(batch)
    assert float(normalizer.std) == pytest.approx(samples.double().std(correction=0).item(), rel=1e-2)


@pytest.mark.parametrize("shape", [4, [4], (2, 3), ()])
def test_leading_axes_are_flattened(shape):
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    torch.manual_seed(0)
    x = 3 + 2 * torch.randn(7, 6, *sizes)
    normalizer, flat = EmpiricalNormalization(shape, eps=0.1), EmpiricalNormalization(shape, eps=0.1)
    output = normalizer(x)
    assert output.shape == x.shape
    torch.testing.assert_close(output.reshape(42, *sizes), flat(x.reshape(42, *sizes)))
    assert normalizer.mean.shape == normalizer.std.shape == sizes
    assert normalizer._mean.shape == (1, *sizes)
    np.testing.assert_allclose(normalizer.mean.numpy(), x.double().numpy().mean(axis=(0, 1)), rtol=1e-5)
    expected = (x.double() - x.double().mean((0, 1))) / (x.double().std((0, 1), correction=0) + 0.1)
    torch.testing.assert_close(output.double(), expected, rtol=1e-4, atol=1e-4)


def test_constant_elements_are_unchanged():
    torch.manual_seed(0)
    unchanged = torch.tensor([False, True, False, True])
    normalizer, plain = EmpiricalNormalization(4, unchanged=unchanged), EmpiricalNormalization(4)
    for _ in range(40):
        x = 5 + 3 * torch.randn(30, 4)
        x[0, 1] = 1000.0
        output, expected = normalizer(x), plain(x)
        assert torch.equal(output[:, unchanged], x[:, unchanged])
        assert torch.equal(output[:, ~unchanged], expected[:, ~unchanged])
    assert normalizer.num_clipped.tolist() == [0] * 4
    # The same for a normalizer restored from statistics only, as in a loaded policy.
    loaded = EmpiricalNormalization(4).eval()
    loaded.load_state_dict(normalizer.state_dict())
    assert torch.equal(loaded(x), normalizer.normalize(x))
    assert torch.equal(loaded.inverse(x)[:, unchanged], x[:, unchanged])


def test_rejects_wrong_shape():
    # 3 * 4 values could be reshaped to rows of 6
    with pytest.raises(ValueError, match=r"\(6,\).*\(3, 4\)"):
        EmpiricalNormalization(6)(torch.zeros(3, 4))


def test_until_stops_updates():
    normalizer = EmpiricalNormalization(2, until=100)
    torch.manual_seed(0)
    data = torch.randn(10, 30, 2)
    for batch in data:
        normalizer(batch)
    # updates continue while the count is below 100: four batches
    mean, std = moments(list(data[:4].numpy()))
    assert int(normalizer.count) == 120
    np.testing.assert_allclose(normalizer.mean.numpy(), mean, atol=1e-6)
    np.testing.assert_allclose(normalizer.std.numpy(), std, rtol=1e-5)
    before = {key: value.clone() for key, value in normalizer.state_dict().items()}
    normalizer(torch.full((3, 2), torch.nan))
    for key, value in normalizer.state_dict().items():
        assert torch.equal(value, before[key])


def test_eval_mode_does_not_update():
    normalizer = EmpiricalNormalization(2)
    normalizer(torch.randn(9, 2))
    before = {key: value.clone() for key, value in normalizer.state_dict().items()}
    normalizer.eval()
    normalizer(torch.randn(9, 2))
    normalizer.update(torch.randn(9, 2))
    normalizer.train()
    normalizer.normalize(torch.randn(9, 2))
    assert all(torch.equal(value, before[key]) for key, value in normalizer.state_dict().items())
    assert list(before) == ["_mean", "_var", "_std", "count"]
    assert before["count"].dtype == torch.int64


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("at_start", [True, False])
def test_non_finite_values_do_not_update(bad, at_start):
    torch.manual_seed(0)
    good, poisoned = torch.randn(8, 3), torch.randn(8, 3)
    poisoned[2, 1] = bad
    clean, normalizer = EmpiricalNormalization(3), EmpiricalNormalization(3)
    for batch in [poisoned, good] if at_start else [good, poisoned]:
        normalizer(batch)
    clean(good)
    assert all(torch.equal(value, normalizer.state_dict()[key]) for key, value in clean.state_dict().items())


def test_inference_mode_before_training():
    normalizer = EmpiricalNormalization(3)
    pointers = {key: value.data_ptr() for key, value in normalizer.named_buffers()}
    with torch.inference_mode():
        normalizer(torch.randn(8, 3))
    x = torch.randn(8, 3, requires_grad=True)
    normalizer(x).square().sum().backward()
    normalizer.load_state_dict(EmpiricalNormalization(3).state_dict())
    assert x.grad is not None
    assert {key: value.data_ptr() for key, value in normalizer.named_buffers()} == pointers
    assert not any(value.is_inference() or value.requires_grad for value in normalizer.buffers())


def test_has_no_host_sync():
    normalizer = EmpiricalNormalization(3, until=100)
    with NoHostSync():
        for _ in range(3):
            normalizer(torch.randn(60, 3))
    assert int(normalizer.count) == 120
    with NoHostSync():
        batch = fill(robust := EmpiricalNormalization(3))
        batch[0, 0] = 1e6
        robust(batch)
    assert robust.num_clipped.tolist() == [1, 0, 0]
    with pytest.raises(AssertionError, match="waits"), NoHostSync():
        bool(normalizer.count > 3)


def fill(normalizer, num_batches=40, size=64):
    """Add batches of standard normal samples; returns a further batch."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(num_batches):
        normalizer.update(torch.randn(size, *normalizer.shape, generator=generator))
    return torch.randn(size, *normalizer.shape, generator=generator)


@pytest.mark.parametrize("value", [1e6, -1e6, 1e30])
def test_outlier_is_clipped_in_statistics(value):
    normalizer, clean = EmpiricalNormalization(3), EmpiricalNormalization(3)
    batch = fill(normalizer)
    clean.update(fill(clean))
    batch[5, 1] = value
    output = normalizer(batch)
    # Clipped to 50 standard deviations, one of 2,624 samples.
    assert float(normalizer.std[1]) == pytest.approx((1 + 50**2 / 2624) ** 0.5, rel=0.05)
    assert abs(float(normalizer.mean[1])) < 0.06
    assert int(normalizer.count) == int(clean.count)
    for column in (0, 2):
        assert torch.equal(normalizer.mean[column], clean.mean[column])
        assert torch.equal(normalizer.std[column], clean.std[column])
    assert normalizer.num_clipped.tolist() == [0, 1, 0]
    # Only the statistics are clipped, not the output.
    torch.testing.assert_close(output, (batch - normalizer.mean) / (normalizer.std + 1e-2))


def test_outlier_threshold_is_50_std():
    for factor, num_clipped in ((49.0, 0), (51.0, 1)):
        normalizer = EmpiricalNormalization(1)
        batch = fill(normalizer)
        batch[0] = normalizer.mean + factor * normalizer.std
        normalizer.update(batch)
        assert normalizer.num_clipped.tolist() == [num_clipped]


def test_first_batches_are_not_clipped():
    normalizer = EmpiricalNormalization(1)
    fill(normalizer, num_batches=31)
    normalizer.update(torch.full((64, 1), 1e4))
    assert normalizer.num_clipped.tolist() == [0]
    assert float(normalizer.std) > 1e3


def test_clipping_is_bit_exact_on_ordinary_data(monkeypatch):
    generator = torch.Generator().manual_seed(1)
    # Rare events, a component that starts to move, different scales.
    data = torch.randn(80, 64, 4, generator=generator) * torch.tensor([1.0, 1e-3, 300.0, 0.0])
    data[..., 3] += (torch.rand(80, 64, generator=generator) < 1e-3).float()
    data[:40, :, 3] = 0.0
    states = []
    for warm_up in (32, 10**6):
        monkeypatch.setattr(normalizers, "OUTLIER_WARM_UP", warm_up)
        normalizer = EmpiricalNormalization(4)
        for batch in data:
            normalizer(batch)
        assert normalizer.num_clipped.sum() == 0
        states.append(normalizer.state_dict())
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())


def test_statistics_adapt_to_component_that_starts_to_vary():
    normalizer = EmpiricalNormalization(1)
    for _ in range(100):
        normalizer.update(torch.full((64, 1), 2.0))
    generator = torch.Generator().manual_seed(0)
    moving = 500.0 + 100.0 * torch.randn(300, 64, 1, generator=generator)
    for batch in moving:
        normalizer.update(batch)
    # 100 batches of constant 2 and 300 of 500 +- 100; only the first few are clipped.
    assert float(normalizer.mean) == pytest.approx(0.25 * 2 + 0.75 * 500, rel=0.1)
    assert float(normalizer.std) == pytest.approx((0.75 * 100**2 + 0.25 * 0.75 * 498**2) ** 0.5, rel=0.1)
    assert int(normalizer.num_clipped) < 30 * 64


def normalize_rank_batches(sizes, folder):
    """Normalize the batches of this rank; returns the state."""
    normalizer = EmpiricalNormalization(5, until=400)
    for batch in rank_batches(rank(), sizes):
        normalizer(batch)
        normalizer.merge_updates()
    return normalizer.state_dict()


def rank_batches(rank, sizes):
    """Batches of a rank with its own offset; rank 1 has one non-finite batch and one outlier."""
    generator = torch.Generator().manual_seed(rank)
    data = [100 + 10 * rank + torch.randn(size, 5, generator=generator) for size in sizes]
    if rank == 1:
        data[2][0, 0] = torch.nan
        if len(data) > 35:
            data[35][1, 1] = 1e6
    return data


def states_of_two_ranks(tmp_path, sizes):
    """State of two ranks, which must be equal, after batches of the given sizes."""
    states = run_ranks(partial(normalize_rank_batches, sizes), tmp_path, 2)
    for key, value in states[0].items():
        assert torch.equal(value, states[1][key])
    return states


@pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")
def test_outlier_on_one_rank_is_clipped_on_all(tmp_path):
    state = states_of_two_ranks(tmp_path, [4] * 40)[0]
    # Rank 1 skips its part of the non-finite batch.
    assert int(state["count"]) == 39 * 2 * 4 + 4
    # The means of the ranks are 10 apart, so the standard deviation is about 5; the outlier is one of 312 samples.
    assert 10 < state["_std"][0, 1] < 20
    assert (state["_std"][0, [0, 2, 3, 4]] < 6).all()


@pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")
def test_ranks_have_statistics_of_all_samples(tmp_path):
    # The third batch is non-finite on rank 1, which skips it; the last one comes after `until`.
    sizes = [50, 40, 30, 90, 70, 10]
    states = states_of_two_ranks(tmp_path, sizes)
    used = [rank_batches(rank, sizes)[step].numpy() for step in (0, 1, 3, 4) for rank in range(2)]
    used.append(rank_batches(0, sizes)[2].numpy())
    mean, std = moments(used)
    assert int(states[0]["count"]) == sum(map(len, used))
    np.testing.assert_allclose(states[0]["_mean"][0].numpy(), mean, rtol=1e-6)
    np.testing.assert_allclose(states[0]["_std"][0].numpy(), std, rtol=1e-4)


def test_input_is_not_modified_and_other_dtypes_work():
    x = torch.randn(6, 3)
    copy = x.clone()
    EmpiricalNormalization(3)(x)
    assert torch.equal(x, copy)
    normalizer = EmpiricalNormalization(3)
    normalizer(x.double())
    assert normalizer._mean.dtype == torch.float32
    torch.testing.assert_close(normalizer.mean, x.mean(0))


def test_inverse_and_properties_are_copies():
    normalizer = EmpiricalNormalization(3)
    x = 5 + 3 * torch.randn(20, 3)
    torch.testing.assert_close(normalizer.inverse(normalizer(x)), x)
    normalizer.mean.zero_()
    normalizer.std.zero_()
    assert normalizer.mean.abs().min() > 0
    assert normalizer.std.min() > 0


def test_state_round_trip():
    normalizer, other = EmpiricalNormalization(3, until=100), EmpiricalNormalization(3, until=100)
    normalizer(torch.randn(20, 3))
    buffer = io.BytesIO()
    torch.save(normalizer.state_dict(), buffer)
    buffer.seek(0)
    other.load_state_dict(torch.load(buffer, weights_only=True))
    batch = torch.randn(7, 3)
    assert torch.equal(normalizer(batch), other(batch))
    assert all(torch.equal(value, other.state_dict()[key]) for key, value in normalizer.state_dict().items())


def trained_normalizer():
    torch.manual_seed(0)
    normalizer = EmpiricalNormalization([4], until=1.0e8)
    normalizer(2 + 3 * torch.randn(50, 4))
    return normalizer.eval()


def test_script_in_evaluation_mode():
    normalizer = trained_normalizer()
    x = torch.randn(6, 4)
    torch.testing.assert_close(torch.jit.script(normalizer)(x), normalizer(x), rtol=0, atol=0)


@pytest.mark.parametrize(
    "options", [{"dynamo": True}, {"dynamo": False, "opset_version": 11}], ids=["dynamo", "opset11"]
)
@pytest.mark.filterwarnings("ignore")
def test_onnx_in_evaluation_mode(options, tmp_path):
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    normalizer = trained_normalizer()
    path = tmp_path / "normalizer.onnx"
    torch.onnx.export(normalizer, (torch.randn(1, 4),), str(path), input_names=["obs"], output_names=["out"], **options)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    x = torch.randn(1, 4)
    np.testing.assert_allclose(session.run(["out"], {"obs": x.numpy()})[0], normalizer(x).numpy(), rtol=1e-6, atol=1e-6)


# --- Normalize, RunningMeanStd, Normalizer ---------------------------------------------------------------------------


def test_normalize_gives_unit_length():
    x = torch.randn(3, 4, 5)
    torch.testing.assert_close(Normalize()(x), x / x.square().sum(-1, keepdim=True).sqrt())
    assert torch.equal(Normalize()(torch.zeros(2, 3)), torch.zeros(2, 3))
    torch.testing.assert_close(Normalize()(x), F.normalize(x, dim=-1))


def test_running_mean_std_equals_numpy_over_all_samples():
    running = RunningMeanStd(epsilon=1e-12, shape=(5,))
    seen = batches()
    for batch in seen:
        running.update(batch)
    mean, std = moments(seen)
    np.testing.assert_allclose(running.mean, mean, rtol=1e-9)
    np.testing.assert_allclose(running.var, std**2, rtol=1e-9)
    assert running.count == pytest.approx(sum(map(len, seen)))
    assert running.mean.dtype == np.float64


def test_running_mean_std_starts_with_epsilon_standard_normal_samples():
    running = RunningMeanStd(epsilon=2.0)
    assert (running.mean, running.var, running.count) == (0.0, 1.0, 2.0)
    running.update_from_moments(np.array(3.0), np.array(0.5), 4)
    # two samples of mean 0 and variance 1, four of mean 3 and variance 0.5
    second_moment = (2 * (1.0 + 0.0) + 4 * (0.5 + 9.0)) / 6
    assert running.mean == pytest.approx(2.0)
    assert running.var == pytest.approx(second_moment - 2.0**2)
    assert running.count == 6.0


def test_normalizer_scales_and_clips():
    normalizer = Normalizer(5, epsilon=1e-3, clip_obs=1.5)
    assert normalizer.count == 1e-4
    seen = batches()
    for batch in seen:
        normalizer.update(batch)
    x = seen[0]
    expected = np.clip((x - normalizer.mean) / np.sqrt(normalizer.var + 1e-3), -1.5, 1.5)
    np.testing.assert_allclose(normalizer.normalize(x), expected)
    assert (np.abs(expected) == 1.5).any()
    before = normalizer.mean.copy(), normalizer.var.copy(), normalizer.count
    output = normalizer.normalize_torch(torch.from_numpy(x), "cpu", update=False)
    assert output.dtype == torch.float32
    np.testing.assert_allclose(output.numpy(), expected, rtol=1e-4, atol=1e-4)
    assert normalizer.count == before[2]
    np.testing.assert_array_equal(normalizer.mean, before[0])
    np.testing.assert_array_equal(normalizer.var, before[1])


def test_normalize_torch_updates_first():
    normalizer, expected = Normalizer(3), Normalizer(3)
    x = 4 + torch.randn(50, 3, dtype=torch.float64)
    output = normalizer.normalize_torch(x, "cpu")
    expected.update(x.numpy())
    np.testing.assert_allclose(normalizer.mean, expected.mean)
    np.testing.assert_allclose(output.numpy(), expected.normalize(x.numpy()), rtol=1e-4, atol=1e-5)


def test_outlier_is_clipped_in_amp_normalizer(caplog):
    normalizer, clean = Normalizer(3), Normalizer(3)
    generator = np.random.default_rng(0)
    for batch in generator.normal(size=(40, 64, 3)):
        normalizer.update(batch)
        clean.update(batch)
    batch = generator.normal(size=(64, 3))
    clean.update(batch)
    batch[5, 1] = 1e6
    normalizer.update(batch)
    assert normalizer.var[1] == pytest.approx(1 + 50**2 / 2624, rel=0.1)
    assert normalizer.num_clipped.tolist() == [0, 1, 0]
    assert normalizer.count == clean.count
    np.testing.assert_array_equal(normalizer.var[[0, 2]], clean.var[[0, 2]])
    assert [record.getMessage() for record in caplog.records] == [
        "outliers in Normalizer: 1 in column 1; values beyond 50 standard deviations are clipped in the statistics of "
        "the normalizer. Check that the simulation is stable"
    ]


def test_amp_normalizer_equals_running_mean_std_on_ordinary_data():
    normalizer, plain = Normalizer(5), RunningMeanStd(shape=5)
    for batch in batches(num_batches=80):
        normalizer.update(batch)
        plain.update(batch)
    np.testing.assert_array_equal(normalizer.mean, plain.mean)
    np.testing.assert_array_equal(normalizer.var, plain.var)
    assert normalizer.count == plain.count


class AmpSource:
    """Has both generators of AMP storages and records its calls."""

    def __init__(self, pairs):
        self.pairs = pairs
        self.calls = []

    def feed_forward_generator_amp(self, *args, **kwargs):
        self.calls.append((args, kwargs))
        yield from self.pairs


class PlainSource:
    """Has `feed_forward_generator` only, like the replay buffer and the motion loader."""

    def __init__(self, value, num_samples):
        self.value, self.num_samples = value, num_samples

    def feed_forward_generator(self, num_mini_batch, mini_batch_size):
        for _ in range(num_mini_batch):
            yield torch.full((mini_batch_size, 2), self.value), torch.full((mini_batch_size, 2), self.value + 1)


def test_update_normalizer_stacks_policy_and_expert_batches():
    torch.manual_seed(0)
    policy = AmpSource([(torch.randn(4, 2), torch.randn(4, 2)) for _ in range(3)])
    expert = AmpSource([(3 + torch.randn(4, 2), torch.randn(4, 2)) for _ in range(2)])
    normalizer, expected = Normalizer(2), Normalizer(2)
    normalizer.update_normalizer(policy, SimpleNamespace(batch_size=4, dataset=expert))
    for pair in range(2):
        expected.update(torch.cat([*policy.pairs[pair], *expert.pairs[pair]]).numpy())
    np.testing.assert_allclose(normalizer.mean, expected.mean)
    np.testing.assert_allclose(normalizer.var, expected.var)
    assert policy.calls == [((None,), {"mini_batch_size": 4})]
    assert expert.calls == [((4,), {})]


def test_update_normalizer_accepts_replay_buffer_and_motion_loader():
    replay = ReplayBuffer(42, 30, "cpu")
    replay.insert(torch.full((20, 42), 100.0), torch.full((20, 42), 100.0))
    expert = AMPLoader("cpu", 0.02, motion_files=[CLIPS / "trot_0.5.npz"])
    normalizer = Normalizer(42)
    normalizer.update_normalizer(replay, expert)
    # Half of all rows come from the policy.
    assert normalizer.count == pytest.approx(80 + 1e-4)
    assert (np.abs(normalizer.mean - 50.0) < 5.0).all()


@pytest.mark.parametrize("width", [42, 84], ids=["state", "state pair"])
def test_update_normalizer_accepts_amp_rollout_storage(width):
    rollouts = AmpRolloutStorage(4, 5, [3], [None], [2], amp_obs_shape=[84])
    with pytest.raises(ValueError, match="the storage is empty"):
        next(rollouts.feed_forward_generator(1, 8))
    rollouts.ref_obs.fill_(100.0)
    rollouts.step = 5
    expert = AMPLoader("cpu", 0.02, motion_files=[CLIPS / "trot_0.5.npz"])
    normalizer = Normalizer(width)
    normalizer.update_normalizer(rollouts, expert)
    # 20 transitions of the policy and 20 of the expert.
    assert normalizer.count == pytest.approx(40 * 84 / width + 1e-4)
    assert (np.abs(normalizer.mean - 50.0) < 5.0).all()


def test_update_normalizer_rejects_other_width():
    with pytest.raises(ValueError, match="4 values, which is no multiple of the 3"):
        Normalizer(3).update_normalizer(PlainSource(0.0, num_samples=8), PlainSource(1.0, num_samples=8))


@pytest.mark.parametrize("source", ["dataset", "loader"])
def test_update_normalizer_with_plain_generators(source):
    normalizer = Normalizer(2)
    source = PlainSource(4.0, 0)
    loader = SimpleNamespace(batch_size=8, dataset=source)
    if source == "loader":
        loader = SimpleNamespace(batch_size=8, dataset=[1], feed_forward_generator=source.feed_forward_generator)
    normalizer.update_normalizer(PlainSource(0.0, num_samples=24), loader)
    # three batches, each with 8 rows of 0, 1, 4 and 5
    assert normalizer.count == pytest.approx(3 * 32 + 1e-4)
    np.testing.assert_allclose(normalizer.mean, 2.5, rtol=1e-5)
    np.testing.assert_allclose(normalizer.var, np.var([0, 1, 4, 5]), rtol=1e-4)


def test_deferred_updates_begin_after_first_rollout():
    batches = torch.randn(6, 16, 3, generator=torch.Generator().manual_seed(0))
    every_step, deferred = EmpiricalNormalization(3), EmpiricalNormalization(3)
    deferred.defers_updates = True
    for batch in batches[:3]:
        torch.testing.assert_close(deferred(batch), every_step(batch))
    deferred.merge_updates()
    after_first_rollout = deferred.mean
    for batch in batches[3:]:
        deferred.update(batch)
        assert torch.equal(deferred.mean, after_first_rollout)
    deferred.merge_updates()
    torch.testing.assert_close(deferred.mean, batches.flatten(0, 1).mean(dim=0))
    torch.testing.assert_close(deferred.std, batches.flatten(0, 1).std(dim=0, correction=0))
