"""Random network distillation in PPO."""

import copy
import io

import pytest
import torch

from st_rl.algorithms import PPO
from st_rl.modules import RandomNetworkDistillation
from tests.algorithms.rollouts import (
    CRITIC_DIM,
    NUM_ACTIONS,
    OBS_DIM,
    assert_same_parameters,
    make_policy,
    parameters_of,
)

RND = {
    "num_states": 3, "num_outputs": 4, "predictor_hidden_dims": [-1], "target_hidden_dims": [8], "weight": 0.5
}  # fmt: skip
NAN = float("nan")


def make(kind="mlp", rnd_cfg=RND, **kwargs):
    alg = PPO(make_policy(kind), rnd_cfg=rnd_cfg, gamma=0.9, **kwargs)
    alg.init_obs_norm(OBS_DIM, CRITIC_DIM)
    alg.init_storage(6, 5, [OBS_DIM], [CRITIC_DIM], [NUM_ACTIONS])
    alg.train_mode()
    return alg


def collect(alg, seed=0):
    generator = torch.Generator().manual_seed(seed)
    with torch.inference_mode():
        for _ in range(5):
            obs, critic_obs, state = (torch.randn(6, n, generator=generator) for n in (OBS_DIM, CRITIC_DIM, 3))
            alg.act(obs, critic_obs)
            infos = {"observations": {"rnd_state": state}}
            alg.process_env_step(torch.randn(6, generator=generator), torch.zeros(6), infos)
        alg.compute_returns(critic_obs)


def test_rnd_is_off_without_configuration():
    for empty in (None, {}):
        alg = make(rnd_cfg=empty)
        assert alg.rnd is None
        assert alg.rnd_optimizer is None
        assert alg.intrinsic_rewards is None
        assert alg.storage.rnd_state is None
        assert "rnd" not in "".join(alg.state_dict())


def test_builds_rnd_and_optimizer():
    alg = make(rnd_cfg={**RND, "learning_rate": 3e-4})
    assert isinstance(alg.rnd, RandomNetworkDistillation)
    assert isinstance(alg.rnd_optimizer, torch.optim.Adam)
    assert alg.rnd_optimizer.param_groups[0]["lr"] == 3e-4
    assert make().rnd_optimizer.param_groups[0]["lr"] == 1e-3
    in_optimizer = {id(p) for p in alg.rnd_optimizer.param_groups[0]["params"]}
    assert in_optimizer == {id(p) for p in alg.rnd.predictor.parameters()}
    assert alg.storage.rnd_state.shape == (5, 6, 3)
    alg.eval_mode()
    assert not alg.rnd.training
    alg.train_mode()
    assert alg.rnd.training


def test_none_means_default_and_configuration_is_not_modified():
    cfg = {**RND, "learning_rate": None, "weight_schedule": None, "activation": None, "state_normalization": None}
    before = copy.deepcopy(cfg)
    assert make(rnd_cfg=cfg).rnd_optimizer.param_groups[0]["lr"] == 1e-3
    assert cfg == before


def test_error_names_misspelled_key(caplog):
    make(rnd_cfg={**RND, "num_output": 2})
    assert "'num_output'" in caplog.text
    assert "did you mean 'num_outputs'" in caplog.text
    with pytest.raises(ValueError, match="num_output"):
        make(rnd_cfg={**RND, "num_output": 2, "strict": True})
    with pytest.raises(ValueError, match="num_output"):
        make(rnd_cfg={**RND, "num_output": 2}, strict=True)


def test_intrinsic_reward_is_added_before_bootstrap_and_state_is_stored():
    alg = make()
    obs, critic_obs, state, final = (torch.randn(6, n) for n in (OBS_DIM, CRITIC_DIM, 3, CRITIC_DIM))
    rewards, time_outs = torch.randn(6), torch.tensor([1, 0, 0, 1, 0, 0])
    with torch.no_grad():
        bonus = 0.5 * (alg.rnd.target(state) - alg.rnd.predictor(state)).norm(dim=-1)
        values = alg.actor_critic.evaluate(final)[:, 0]
    given = rewards.clone()
    alg.act(obs, critic_obs)
    infos = {"observations": {"rnd_state": state}, "time_outs": time_outs, "final_observations": {"critic": final}}
    alg.process_env_step(rewards, time_outs, infos)
    torch.testing.assert_close(alg.storage.rewards[0, :, 0], rewards + bonus + 0.9 * values * time_outs)
    torch.testing.assert_close(alg.intrinsic_rewards, bonus)
    assert torch.equal(alg.storage.rnd_state[0], state)
    assert torch.equal(rewards, given)


@pytest.mark.parametrize("infos", [{}, {"observations": None}, {"observations": {}}])
def test_error_names_missing_rnd_state(infos):
    alg = make()
    alg.act(torch.randn(6, OBS_DIM), torch.randn(6, CRITIC_DIM))
    with pytest.raises(KeyError, match=r"'rnd_state'.* is missing"):
        alg.process_env_step(torch.zeros(6), torch.zeros(6), infos)


@pytest.mark.parametrize("kind", ["mlp", "lstm"])
def test_update_trains_predictor(kind):
    alg = make(kind, num_learning_epochs=20, num_mini_batches=2, learning_rate=1e-4)
    collect(alg)
    target = copy.deepcopy(alg.rnd.target.state_dict())
    states = alg.storage.rnd_state.clone()
    before = alg.rnd.predictor_loss(states).item()
    losses, _ = alg.update(0)
    assert set(losses) == {"surrogate_loss", "value_loss", "entropy", "rnd", "total_loss"}
    assert losses["rnd"].item() == pytest.approx(before, rel=0.5)
    assert alg.rnd.predictor_loss(states).item() < 0.9 * before
    for name, value in alg.rnd.target.state_dict().items():
        assert torch.equal(value, target[name])
    expected = losses["surrogate_loss"] + losses["value_loss"]
    torch.testing.assert_close(losses["total_loss"], expected)


def test_predictor_step_equals_adam_on_mse():
    alg = make()
    predictor, target = copy.deepcopy(alg.rnd.predictor), alg.rnd.target
    optimizer = torch.optim.Adam(predictor.parameters(), lr=1e-3, fused=False, foreach=False)
    collect(alg)
    states = alg.storage.rnd_state.reshape(-1, 3)
    loss = ((predictor(states) - target(states)) ** 2).mean()
    loss.backward()
    optimizer.step()
    losses, _ = alg.update(0)
    assert losses["rnd"].item() == pytest.approx(loss.item(), rel=1e-4)
    ours = dict(alg.rnd.predictor.state_dict())
    assert_same_parameters(ours, dict(predictor.state_dict()), atol=1e-6, rtol=1e-4)


def test_non_finite_rnd_state_is_skipped_and_counted():
    alg = make()
    collect(alg)
    alg.storage.rnd_state[0, 0, 0] = NAN
    before = {name: value.clone() for name, value in alg.rnd.predictor.state_dict().items()}
    weights = parameters_of(alg)
    alg.update(0)
    assert alg.non_finite_counts() == {"rnd": 1}
    assert_same_parameters(before, dict(alg.rnd.predictor.state_dict()))
    assert any(not torch.equal(value, weights[name]) for name, value in parameters_of(alg).items())


def test_state_dict_round_trip(caplog):
    cfg = {**RND, "state_normalization": True, "reward_normalization": True}
    alg = make(rnd_cfg=cfg)
    collect(alg)
    alg.update(0)
    file = io.BytesIO()
    torch.save(alg.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    assert {"rnd_state_dict", "rnd_optimizer_state_dict"} <= set(state)
    twin = make(rnd_cfg=cfg)
    twin.load_state_dict(state)
    for one in (alg, twin):
        torch.manual_seed(1)
        collect(one, seed=1)
        one.update(1)
    assert_same_parameters(dict(alg.rnd.state_dict()), dict(twin.rnd.state_dict()))
    assert_same_parameters(parameters_of(alg), parameters_of(twin))

    fresh = make(rnd_cfg=cfg)
    kept = {name: value.clone() for name, value in fresh.rnd.state_dict().items()}
    fresh.load_state_dict({key: value for key, value in state.items() if not key.startswith("rnd")})
    assert_same_parameters(kept, dict(fresh.rnd.state_dict()))
