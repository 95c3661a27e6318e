"""A TorchScript file acts as the policy does, as scripts for rsl_rl expect it."""

import pytest
import torch

from st_rl.runners import OnPolicyRunner
from tests.fakes import EchoEnv


def make_runner(policy):
    config = {"num_steps_per_env": 8, "empirical_normalization": True, "policy": policy, "algorithm": {}}
    runner = OnPolicyRunner(EchoEnv(num_envs=4), config, None, "cpu")
    runner.learn(2)
    return runner


@pytest.mark.parametrize("rnn_type", [None, "gru", "lstm"])
def test_file_acts_as_the_inference_policy(rnn_type, tmp_path):
    recurrent = {"class_name": "ActorCriticRecurrent", "rnn_type": rnn_type, "rnn_hidden_size": 12}
    runner = make_runner(recurrent if rnn_type else {"class_name": "ActorCritic"})
    runner.export_policy_to_jit(tmp_path / "exported")
    loaded = torch.jit.load(tmp_path / "exported" / "policy.pt")
    policy = runner.get_inference_policy()
    observations = 3.0 * torch.randn(6, 1, runner.env.num_obs) + 1.0
    with torch.inference_mode():
        for _ in range(2):
            loaded.reset()
            policy.reset()
            for obs in observations:
                torch.testing.assert_close(loaded(obs), policy(obs), rtol=0, atol=1e-6)


def test_rejects_policy_that_is_more_than_actor_and_memory(tmp_path):
    runner = make_runner({"class_name": "ActorCritic", "action_bound": 1.0})
    with pytest.raises(ValueError, match="st-rl export RUN"):
        runner.export_policy_to_jit(tmp_path)
    assert not list(tmp_path.glob("*.pt"))


def test_onnx_file_has_the_name_of_rsl_rl(tmp_path):
    pytest.importorskip("onnxruntime")
    make_runner({"class_name": "ActorCritic"}).export_policy_to_onnx(tmp_path / "exported")
    assert (tmp_path / "exported" / "policy.onnx").is_file()
