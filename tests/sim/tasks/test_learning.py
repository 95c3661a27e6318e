"""`balance` is learned within seconds with its training configuration."""

import pytest
import torch

from st_rl.runners import OnPolicyRunner
from st_rl.sim.tasks import find_task, make_task


def balanced_fraction(policy):
    """Fraction of cart-poles balanced for a whole episode, from held-out initial states."""
    task = make_task("balance", 32, seed=1234)
    obs, _ = task.get_observations()
    fell = torch.zeros(32, dtype=torch.bool)
    with torch.inference_mode():
        for _ in range(task.max_episode_length):
            obs, _, dones, infos = task.step(policy(obs))
            fell |= dones & ~infos["time_outs"]
    return 1 - float(fell.float().mean())


@pytest.mark.slow
def test_balance_is_learned():
    torch.manual_seed(0)
    runner = OnPolicyRunner(make_task("balance"), find_task("balance").training_config(), log_dir=None, device="cpu")
    before = balanced_fraction(runner.get_inference_policy("cpu"))
    runner.learn(30, init_at_random_ep_len=True)
    assert before < 0.5
    assert balanced_fraction(runner.get_inference_policy("cpu")) > 0.9
