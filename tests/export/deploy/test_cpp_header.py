"""The C++ header does what the policy does."""

import shutil

import numpy as np
import pytest
import torch
from torch import nn

from st_rl.export.deploy.cpp_header import replay_header, write_header, write_replay_data
from st_rl.export.deploy.golden import record_golden
from st_rl.export.deploy.kit import write_policy
from st_rl.export.onnx_file import ExportError, write_onnx
from tests.export.deploy.kits import deploy, make_golden_task, make_policy

pytest.importorskip("mujoco")
pytest.importorskip("onnxscript")
COMPILERS = [name for name in ("g++", "clang++") if shutil.which(name)]
STRICT = ("-O1", "-Wall", "-Wextra", "-Werror", "-pedantic")
POLICIES = {
    "mlp": ("ActorCritic", {"activation": "selu"}),
    "bounded": ("ActorCritic", {"action_bound": 1.5, "activation": "tanh"}),
    "gru": ("ActorCriticRecurrent", {"rnn_type": "gru", "rnn_hidden_size": 8, "rnn_num_layers": 2}),
    "lstm": ("ActorCriticRecurrent", {"rnn_type": "lstm", "rnn_hidden_size": 8}),
}


@pytest.fixture(scope="module")
def task():
    return make_golden_task()


def make_kit_files(folder, task, name):
    """The files of a kit that the C++ example reads."""
    trained = make_policy(task, POLICIES[name][0], **POLICIES[name][1])
    policy = deploy(task, trained)
    description = {"inputs": policy.inputs, "states": policy.states, "outputs": policy.outputs}
    golden = record_golden(policy, trained, task, num_steps=120)
    write_policy(policy, folder / "policy.onnx", {"states": list(policy.states)})
    write_header(folder / "policy.onnx", folder / "policy.hpp")
    write_replay_data(golden, description, folder / "golden.bin")
    shutil.copy("st_rl/export/deploy/files/main.cpp", folder)
    return golden


@pytest.mark.skipif(not COMPILERS, reason="no C++ compiler")
@pytest.mark.parametrize("name", POLICIES)
def test_header_replays_golden_run(tmp_path, task, name):
    golden = make_kit_files(tmp_path, task, name)
    for compiler in COMPILERS:
        result = replay_header(tmp_path, compiler, STRICT)
        assert result["steps"] == 120
        assert result["largest_difference_rad"] <= 1e-5
    assert np.ptp(golden["joint_targets"], axis=0).max() > 0.02


class ManyOperators(nn.Module):
    """Operators that encoders, estimators and observation terms use, on an image `(2, 9, 10)` and a state `(4,)`."""

    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(
            nn.Conv2d(2, 3, 3, stride=2, padding=1), nn.LeakyReLU(), nn.MaxPool2d(2), nn.Flatten()
        )
        self.head = nn.Linear(3 * 2 * 2 + 4, 5)

    def forward(self, image, memory):
        latent = self.image(image.unsqueeze(0)).squeeze(0)
        x = torch.nn.functional.softplus(self.head(torch.cat([latent, memory])))
        x = torch.where(x > 0.6, x.exp().sqrt(), -x) + x[[4, 0, 1, 3, 2]] * x.flip(0).abs()
        table = torch.stack([x, x.sigmoid(), x.cos()]).transpose(0, 1)[::2]
        table = table.clamp(-1.0, 2.0) * table.mean(dim=0, keepdim=True) - table.amax(dim=1, keepdim=True)
        # The angle of a heading: torch's atan2 becomes arctangents and comparisons.
        table = table + torch.atan2(table, table.flip(1) - 0.3)
        # Columns that are replaced, as those of an estimator, become a ScatterND.
        table[:, 1] = x[:3] - table.prod(dim=1).tanh()
        targets = (table.sum(dim=1) / 3.0).expand(2, 3).reshape(-1)
        return targets, memory * 0.5 + x[:4].tanh()


@pytest.mark.skipif(not COMPILERS, reason="no C++ compiler")
def test_operators_equal_torch(tmp_path):
    torch.manual_seed(0)
    module, memory, rows = ManyOperators().eval(), torch.zeros(4), []
    example = (torch.zeros(2, 9, 10), memory)
    write_onnx(module, example, tmp_path / "policy.onnx", ["image", "m"], ["joint_targets", "next_m"], {})
    write_header(tmp_path / "policy.onnx", tmp_path / "policy.hpp")
    with torch.inference_mode():
        for step in range(20):
            image, reset = torch.randn(2, 9, 10), step % 8 == 0
            memory = torch.randn(4) if reset else memory
            targets, following = module(image, memory)
            parts = [torch.tensor([float(reset)]), image.reshape(-1), memory, targets]
            rows.append(torch.cat(parts).numpy())
            memory = following
    (tmp_path / "golden.bin").write_bytes(np.stack(rows).astype("<f4").tobytes())
    shutil.copy("st_rl/export/deploy/files/main.cpp", tmp_path)
    result = replay_header(tmp_path, COMPILERS[0], STRICT)
    assert result["steps"] == 20
    assert result["largest_difference_rad"] <= 1e-5
    assert np.std(np.stack(rows)[:, -6:]) > 0.05


def test_rejects_unknown_operator_by_name(tmp_path):
    class Sorts(nn.Module):
        def forward(self, x):
            return torch.sort(x).values

    write_onnx(Sorts(), (torch.zeros(4),), tmp_path / "policy.onnx", ["x"], ["joint_targets"], {})
    with pytest.raises(ExportError, match=r"policy.hpp has no code for the operator TopK; use policy.onnx"):
        write_header(tmp_path / "policy.onnx", tmp_path / "policy.hpp")
