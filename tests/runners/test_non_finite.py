"""NaN and Inf from the environment change neither weights nor normalizers, and are reported with their origin."""

import math

import pytest
import torch

from st_rl.runners.non_finite import report_non_finite
from st_rl.utils.files import load_checkpoint, newest_checkpoint
from tests.fakes import EchoEnv
from tests.runners.training import RND, NoveltyEnv, differences, make_runner, recurrent, small_config, weights


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def is_finite(value):
    """Whether all values in nested containers are finite."""
    if isinstance(value, torch.Tensor):
        return bool(torch.isfinite(value).all())
    if isinstance(value, dict):
        return all(is_finite(item) for item in value.values())
    if isinstance(value, list | tuple):
        return all(is_finite(item) for item in value)
    return not isinstance(value, float) or math.isfinite(value)


@pytest.mark.parametrize("policy", [{}, recurrent("lstm")])
@pytest.mark.parametrize("kind", ["nan_at_step", "inf_at_step"])
@pytest.mark.parametrize(
    ("where", "name"), [("obs", "observations"), ("critic", "critic observations"), ("rewards", "rewards")]
)
def test_non_finite_value_of_environment_is_reported_and_replaced(policy, kind, where, name, caplog):
    env = EchoEnv(num_privileged_obs=6, inject_into=where, inject_row=3)
    setattr(env, kind, 8)
    runner = make_runner(env, small_config(policy, {"schedule": "adaptive"}, empirical_normalization=True))
    runner.learn(1)
    before = weights(runner)
    runner.learn(2)
    # Step 8 of the environment is step 2 of the second rollout of 6.
    assert warnings(caplog) == [
        f"iteration 1: the environment delivered NaN or Inf in 1 of 48 rows of {name} (first at step 2 of the "
        "rollout); replaced with 0 before the update. Check that the simulation is stable"
    ]
    assert is_finite(runner.alg.state_dict())
    assert is_finite(list(runner._episodes.rewbuffer))
    assert differences(before, weights(runner))
    assert runner.alg.obs_normalizer.count == (1 + 3 * 6) * 8
    assert math.isfinite(runner.alg.learning_rate)


def test_non_finite_rnd_state_is_reported_and_replaced(caplog):
    class Env(NoveltyEnv):
        def step(self, actions):
            obs, rewards, dones, infos = super().step(actions)
            if self.num_steps_done == 3:
                state = infos["observations"]["rnd_state"].clone()
                state[1] = torch.nan
                infos["observations"]["rnd_state"] = state
            return obs, rewards, dones, infos

    runner = make_runner(Env(), small_config(algorithm={"rnd_cfg": RND}))
    runner.learn(1)
    assert len(warnings(caplog)) == 1
    assert "1 of 48 rows of rnd_state (first at step 2 " in warnings(caplog)[0]
    assert is_finite(runner.alg.state_dict())
    assert torch.isfinite(runner.alg.storage.returns).all()


@pytest.mark.parametrize("name", ["dones", "time_outs"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_dones_and_time_outs_are_reported_and_replaced(name, bad, caplog):
    class Env(EchoEnv):
        def step(self, actions):
            obs, rewards, dones, infos = super().step(actions)
            ends = {"dones": dones.float(), "time_outs": infos["time_outs"].float()}
            if self.num_steps_done == 9:
                ends[name][5] = bad
            return obs, rewards, ends["dones"], infos | {"time_outs": ends["time_outs"]}

    runner = make_runner(Env(episode_length=50), small_config(empirical_normalization=True))
    runner.learn(2)
    assert warnings(caplog) == [
        f"iteration 1: the environment delivered NaN or Inf in 1 of 48 rows of {name} (first at step 2 of the "
        "rollout); replaced with 0 before the update. Check that the simulation is stable"
    ]
    assert is_finite(runner.alg.state_dict())
    assert not runner.alg.storage.dones.any()


class BrokenFrom(EchoEnv):
    """The echo task, non-finite from a step on."""

    def __init__(self, step: int, what: str, **kwargs):
        super().__init__(**kwargs)
        self.broken_from, self.what = step, what

    def step(self, actions):
        obs, rewards, dones, infos = super().step(actions)
        if self.num_steps_done > self.broken_from:
            if self.what == "rewards":
                rewards = torch.full_like(rewards, torch.nan)
            else:
                obs = torch.full_like(obs, torch.nan)
        return obs, rewards, dones, infos


@pytest.mark.parametrize("what", ["observations", "rewards"])
def test_training_stops_if_environment_is_never_finite(what, tmp_path):
    runner = make_runner(BrokenFrom(12, what), small_config(save_interval=1), log_dir=tmp_path)
    with pytest.raises(
        RuntimeError, match=rf"iteration 2: {what} of the environment were NaN or Inf in every environment"
    ):
        runner.learn(5)
    assert newest_checkpoint(tmp_path) == tmp_path / "model_2.pt"
    saved = load_checkpoint(tmp_path / "model_2.pt")
    assert is_finite(saved["model_state_dict"])
    assert runner.writer is None
    assert is_finite(weights(runner))


def test_training_continues_if_some_rows_are_finite(caplog):
    make_runner(BrokenFrom(1, "rewards")).learn(1)
    assert "40 of 48 rows of rewards (first at step 1 of the rollout)" in warnings(caplog)[0]


def test_non_finite_update_is_one_warning_that_names_first_tensor(caplog):
    runner = make_runner()
    original = runner.alg.compute_losses

    def compute_losses(minibatch):
        losses, inter_vars, stats = original(minibatch)
        return {**losses, "value_loss": losses["value_loss"] * torch.nan}, inter_vars, stats

    runner.alg.compute_losses = compute_losses
    before = weights(runner)
    runner.learn(1)
    assert differences(before, weights(runner)) == []
    messages = warnings(caplog)
    assert len(messages) == 1
    assert messages[0].startswith(
        "iteration 0: value_loss (followed by total_loss, gradient_norm) was NaN or Inf in 4 mini-batches; their "
        "steps were skipped"
    )


def test_finite_iteration_logs_nothing(caplog):
    report_non_finite(3, {}, {}, 10)
    assert caplog.records == []
