"""An exported file equals the policy, or is not written."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from st_rl.export import DeployedPolicy, ExportError, export_onnx, onnx_policy
from st_rl.modules import ActorCritic, ActorCriticRecurrent, EmpiricalNormalization

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


def make_policy(num_obs: int = 7, num_actions: int = 3):
    torch.manual_seed(3)
    policy = ActorCritic(num_obs, num_obs, num_actions, actor_hidden_dims=[16, 8], critic_hidden_dims=[8])
    normalizer = EmpiricalNormalization([num_obs], until=1e8)
    normalizer(torch.randn(200, num_obs) * 3.0 + 1.5)
    return policy, normalizer


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    policy, normalizer = make_policy()
    path = tmp_path_factory.mktemp("export") / "policy.onnx"
    metadata = {"joint_names": ["a", "b"], "action_scale": 0.3, "obs_segments": {"gravity": 3, "joints": 4}}
    report = export_onnx(policy, normalizer, path, metadata, recorded=torch.randn(50, 7) * 4.0)
    return policy, normalizer, path, report


def test_file_equals_a_hand_computed_network_with_the_normaliser_inside(exported):
    policy, normalizer, path, _ = exported
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(11, 7)).astype(np.float32) * 2.0
    x = (obs.astype(np.float64) - normalizer._mean.numpy()) / (normalizer._std.numpy() + normalizer.eps)
    linears = [module for module in policy.actor if isinstance(module, torch.nn.Linear)]
    for index, linear in enumerate(linears):
        x = x @ linear.weight.detach().numpy().astype(np.float64).T + linear.bias.detach().numpy()
        if index + 1 < len(linears):
            x = np.where(x > 0, x, np.exp(np.minimum(x, 0)) - 1)
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for rows in (1, 5, 11):
        result = session.run(["actions"], {"obs": obs[:rows]})[0]
        np.testing.assert_allclose(result, x[:rows], atol=1e-5)


def test_report_states_opset_and_agreement(exported):
    _, _, path, report = exported
    model = onnx.load(str(path))
    assert {entry.domain: entry.version for entry in model.opset_import}[""] == report.opset
    assert report.largest_difference <= 1e-5
    assert report.observations_compared == 256 + 50
    assert report.file == "policy.onnx"


def test_metadata_travels_inside_the_file(exported):
    path = exported[2]
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    found = {key: json.loads(value) for key, value in session.get_modelmeta().custom_metadata_map.items()}
    given = {"joint_names": ["a", "b"], "action_scale": 0.3, "obs_segments": {"gravity": 3, "joints": 4}}
    assert {key: found[key] for key in given} == given
    assert found["inputs"] == {"obs": ["batch", 7]}
    assert found["obs_formula"] == "obs as the environment returns it"


def test_file_names_no_path_of_the_machine_that_wrote_it(exported):
    text = exported[2].read_bytes()
    for word in (b".py", b"site-packages", b"/st_rl/"):
        assert word not in text


def test_export_leaves_the_policy_in_training_mode_and_on_its_statistics(tmp_path):
    policy, normalizer = make_policy()
    policy.train()
    normalizer.train()
    before = normalizer._mean.clone()
    export_onnx(policy, normalizer, tmp_path / "policy.onnx")
    assert policy.training
    assert normalizer.training
    assert torch.equal(normalizer._mean, before)


def test_rejects_and_removes_file_that_differs(tmp_path):
    policy, normalizer = make_policy()
    path = tmp_path / "policy.onnx"
    with pytest.raises(ExportError, match="differs from torch by"):
        export_onnx(policy, normalizer, path, tolerance=-1.0)
    assert list(tmp_path.iterdir()) == []


def test_rejects_non_finite_actions(tmp_path):
    policy, normalizer = make_policy()
    with torch.no_grad():
        next(policy.actor.parameters())[0, 0] = float("nan")
    with pytest.raises(ExportError):
        export_onnx(policy, normalizer, tmp_path / "policy.onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("recorded", [None, torch.randn(50, 7) * 3.0 + 1.5])
def test_rejects_file_without_normalizer(tmp_path, monkeypatch, recorded):
    def write_without_normalizer(policy, example, path, metadata):
        write_graph(DeployedPolicy(policy.actor_critic, torch.nn.Identity()), example, path, metadata)

    write_graph = onnx_policy._write_graph
    monkeypatch.setattr(onnx_policy, "_write_graph", write_without_normalizer)
    with pytest.raises(ExportError, match="differs from torch by"):
        export_onnx(*make_policy(), tmp_path / "policy.onnx", recorded=recorded)
    assert list(tmp_path.iterdir()) == []


def test_rejects_recurrent_file_that_returns_its_input_states(tmp_path, monkeypatch):
    class Forgetful(DeployedPolicy):
        def forward(self, obs, state=()):
            return (super().forward(obs, state)[0], *(leaf * 1.0 for leaf in state))

    def write_forgetful(policy, example, path, metadata):
        write_graph(Forgetful(policy.actor_critic, policy.obs_normalizer), example, path, metadata)

    write_graph = onnx_policy._write_graph
    monkeypatch.setattr(onnx_policy, "_write_graph", write_forgetful)
    policy = ActorCriticRecurrent(7, 9, 3, actor_hidden_dims=[8], critic_hidden_dims=[8], rnn_hidden_size=5)
    with pytest.raises(ExportError, match="differs from torch by"):
        export_onnx(policy, make_policy()[1], tmp_path / "policy.onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_recurrent", [False, True])
@pytest.mark.parametrize("is_single", [False, True], ids=["in a batch", "alone"])
def test_rejects_file_that_differs_for_some_batch_sizes(monkeypatch, is_recurrent, is_single):
    class WrongSession:
        """Equals torch except for a batch of one or for larger batches."""

        def __init__(self, path, providers):
            pass

        def run(self, names, inputs):
            obs, *states = (torch.from_numpy(value) for value in inputs.values())
            result = deployed(obs, tuple(states)) if states else (deployed(obs),)
            actions, *following = (value.detach().numpy() for value in result)
            return [actions + (0.5 if (len(obs) == 1) == is_single else 0.0), *following]

    policy = ActorCriticRecurrent(7, 9, 3, actor_hidden_dims=[8], critic_hidden_dims=[8], rnn_hidden_size=5)
    deployed = DeployedPolicy(policy if is_recurrent else make_policy()[0], torch.nn.Identity())
    monkeypatch.setattr(runtime, "InferenceSession", WrongSession)
    difference = onnx_policy._largest_difference(Path("policy.onnx"), deployed, torch.randn(64, 7))
    assert difference == pytest.approx(0.5, abs=1e-3)


@pytest.mark.parametrize("rnn_type", ["gru", "lstm"])
def test_hidden_states_are_inputs_and_outputs_of_recurrent_file(tmp_path, rnn_type):
    torch.manual_seed(1)
    sizes = {"actor_hidden_dims": [8], "critic_hidden_dims": [8], "rnn_hidden_size": 5, "rnn_num_layers": 2}
    policy = ActorCriticRecurrent(7, 9, 3, rnn_type=rnn_type, **sizes)
    before = policy.hidden_state_dict()
    _, normalizer = make_policy()
    export_onnx(policy, normalizer, tmp_path / "policy.onnx", recorded=torch.randn(30, 7))
    assert policy.hidden_state_dict() == before == {}
    session = runtime.InferenceSession(str(tmp_path / "policy.onnx"), providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]
    assert names == ["obs", "memory_a_hidden", *(["memory_a_cell"] if rnn_type == "lstm" else [])]
    facts = json.loads(session.get_modelmeta().custom_metadata_map["memory"])
    assert facts["inputs"] == {name: [2, "batch", 5] for name in names[1:]}
    # One robot and three, with an episode end: hidden states restart at zero.
    for robots in (1, 3):
        state = {name: np.zeros((2, robots, 5), dtype=np.float32) for name in names[1:]}
        policy.clear_hidden_states()
        for step in range(12):
            obs = torch.randn(robots, 7)
            expected = policy.act_inference(normalizer.eval()(obs)).detach().numpy()
            actions, *following = session.run(["actions", *facts["outputs"]], {"obs": obs.numpy(), **state})
            np.testing.assert_allclose(actions, expected, atol=1e-5)
            state = dict(zip(state, following))
            if step == 6:
                policy.reset(torch.tensor([True] + [False] * (robots - 1)))
                for leaf in state.values():
                    leaf[:, 0] = 0.0


def test_path_may_be_a_string(tmp_path):
    report = export_onnx(*make_policy(), str(tmp_path / "policy.onnx"))
    assert report.file == "policy.onnx"
    assert (tmp_path / "policy.onnx").is_file()
