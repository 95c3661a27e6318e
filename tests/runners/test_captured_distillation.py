"""A distillation captured as CUDA graphs equals eager execution."""

import pytest
import torch

from st_rl.runners import OnPolicyRunner
from tests.runners.test_captured_rollout import FollowEnv

pytestmark = pytest.mark.gpu

VARIANTS = {
    "drivers": {},
    "rolling": {"buffer_dilation_ratio": 2.5, "using_ppo": False},
    "remembering teacher": {"teacher_policy": {"class_name": "ActorCriticRecurrent", "rnn_hidden_size": 8}},
}


def train(policy, variant, engine):
    torch.manual_seed(0)
    config = {
        "num_steps_per_env": 8,
        "engine": engine,
        "empirical_normalization": True,
        "policy": {
            "class_name": policy,
            "actor_hidden_dims": [32],
            "critic_hidden_dims": [32],
            "init_noise_std": 1e-3,
        },
        "algorithm": {
            "class_name": "TPPO",
            "num_learning_epochs": 2,
            "num_mini_batches": 2,
            # Whether the teacher acts depends on the iteration alone, not on random numbers.
            "teacher_act_prob": lambda iteration: 1.0 if iteration < 4 else 0.0,
            "distillation_loss_coef": "linear",
            "update_times_scale": 6,
            "lr_scheduler_class_name": "ExponentialLR",
            "lr_scheduler": {"gamma": 0.9},
            **VARIANTS[variant],
        },
    }
    runner = OnPolicyRunner(FollowEnv(), config, device="cuda")
    runner.learn(6)
    return runner


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("policy", ["ActorCritic", "ActorCriticRecurrent"])
def test_captured_distillation_equals_eager(policy, variant):
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    eager, graph = (train(policy, variant, engine) for engine in ("eager", "graph"))
    assert torch.equal(graph.alg.use_teacher_act_mask, eager.alg.use_teacher_act_mask)
    assert 0 < int(graph.alg.use_teacher_act_mask.sum()) < 64
    assert float(graph.alg.learning_rate) == pytest.approx(1e-3 * 0.9**6, rel=1e-5)
    assert float(graph.alg.distillation_loss_coef) == pytest.approx(1 / 6)
    first, second = graph.alg.storage, eager.alg.storage
    assert (first.step, first.num_transitions_per_env) == (second.step, second.num_transitions_per_env)
    for name in ("observations", "actions", "action_labels", "rewards"):
        torch.testing.assert_close(getattr(first, name), getattr(second, name), rtol=2e-2, atol=2e-2)
    for name, value in eager.alg.actor_critic.state_dict().items():
        torch.testing.assert_close(graph.alg.actor_critic.state_dict()[name], value, rtol=2e-2, atol=2e-2)
