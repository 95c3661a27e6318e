"""Export of policies with encoders, estimators and images."""

import copy
import warnings

import pytest
import torch
from torch import nn

from st_rl.export import export_onnx
from st_rl.modules import EmpiricalNormalization, EncoderAmpActorCriticRecurrent
from st_rl.utils.utils import get_obs_slice
from tests.modules.policy_matrix import AMP, MLP, NUM_OBS, make_policy

runtime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


def normalizer() -> EmpiricalNormalization:
    statistics = EmpiricalNormalization([NUM_OBS], until=1e8)
    statistics(torch.randn(100, NUM_OBS) * 2.0 + 0.5)
    return statistics


@pytest.mark.parametrize(
    ("name", "options", "bound"),
    [
        ("EncoderStateAc", "cnn and mlp, shared; replaces", None),
        ("PrivilegeStateAcRecurrent", "adapts and replaces; replaces", [0.1, 0.2, 0.3]),
    ],
)
def test_policy_is_exported_to_one_file(name, options, bound, tmp_path):
    policy = make_policy(name, options, action_bound=bound)
    report = export_onnx(policy, normalizer(), tmp_path / "policy.onnx")
    assert report.largest_difference <= 1e-5


class ClientExporter(nn.Module):
    """The exporter of st_gym: normalizer, encoder of the last component, RNN and actor, with external states."""

    def __init__(self, policy, normalizer, component: str):
        super().__init__()
        self.normalizer = copy.deepcopy(normalizer)
        self.encoder = copy.deepcopy(policy.encoders[0])
        self.rnn = copy.deepcopy(policy.memory_a.rnn).cpu()
        self.actor = copy.deepcopy(policy.actor)
        where = get_obs_slice(policy.obs_segments, component)[0]
        self.start, self.stop = where.start, where.stop
        assert self.rnn.input_size == self.start + policy.encoders[0].output_size
        assert self.actor[0].in_features == self.rnn.hidden_size

    def forward(self, obs, h, c):
        obs = self.normalizer(obs)
        latent = self.encoder(obs[:, self.start : self.stop])
        x = torch.cat([obs[:, : self.start], latent], dim=-1).unsqueeze(0)
        if isinstance(self.rnn, nn.LSTM):
            x, (h, c) = self.rnn(x, (h, c))
        else:
            x, h = self.rnn(x, h)
        return self.actor(x.squeeze(0)), h, c


@pytest.mark.parametrize("rnn_type", ["gru", "lstm"])
def test_exports_like_the_client(rnn_type, tmp_path):
    torch.manual_seed(0)
    policy = EncoderAmpActorCriticRecurrent(
        12, 9, 3, obs_segments={"obs": 8, "privileged_obs": 4}, encoder_component_names=["privileged_obs"],
        encoder_kwargs=MLP, rnn_type=rnn_type, rnn_hidden_size=6, actor_hidden_dims=[8], critic_hidden_dims=[8],
        **AMP["with discriminator"],
    ).eval()  # fmt: skip
    statistics = EmpiricalNormalization([12])
    statistics(torch.randn(50, 12))
    statistics.eval()
    exporter = ClientExporter(policy, statistics, "privileged_obs")
    zeros = torch.zeros(1, 1, 6)
    path = tmp_path / "policy.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            exporter, (torch.zeros(1, 12), zeros, zeros), str(path), opset_version=11, dynamo=False,
            input_names=["obs", "h", "c"], output_names=["actions", "h_out", "c_out"],
        )  # fmt: skip
    session = runtime.InferenceSession(str(path))
    h = c = zeros.numpy()
    with torch.inference_mode():
        for obs in torch.randn(3, 1, 12):
            actions, h, c = session.run(None, {"obs": obs.numpy(), "h": h, "c": c})
            expected = policy.act_inference(statistics(obs))
            torch.testing.assert_close(torch.from_numpy(actions), expected, atol=1e-5, rtol=1e-4)
