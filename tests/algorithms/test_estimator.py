"""`EstimatorAlgoMixin`: losses of the estimator and the adaptor."""

import copy

import pytest
import torch
from torch.nn import functional

from st_rl.algorithms import PPO, TPPO, EstimatorPPO, EstimatorTPPO
from st_rl.algorithms.estimator import EstimatorAlgoMixin
from st_rl.modules import ActorCritic, PrivilegeEstimatorMixin, StateAc
from tests.modules.policy_matrix import NUM_ACTIONS, NUM_CRITIC_OBS, NUM_OBS, make_policy, observations

ROBOTS, STEPS = 6, 5
# Critic segments: mass 2, velocity 2, pose 5, friction 1, depth 24, contact 4
MASS, VELOCITY, FRICTION, CONTACT = slice(0, 2), slice(2, 4), slice(9, 10), slice(34, 38)
POLICIES = [
    ("StateAc", "estimates"),
    ("StateAcRecurrent", "estimates"),
    ("StateAcRecurrent", "estimates by the actor's memory"),
    ("PrivilegeStateAc", "adapts; estimates"),
    ("PrivilegeStateAcRecurrent", "adapts; estimates"),
    ("EncoderStateAc", "cnn and mlp, shared; estimates"),
    ("EncoderStateAcRecurrent", "mlp; estimates by the actor's memory"),
]
policies = pytest.mark.parametrize(("name", "options"), POLICIES)


def make_learner(name, options, algorithm=EstimatorPPO, **settings):
    """Build an algorithm, collect a rollout, and return it with the estimates recorded while acting."""
    learner = algorithm(make_policy(name, options), num_mini_batches=1, **settings)
    learner.init_storage(ROBOTS, STEPS, [NUM_OBS], [NUM_CRITIC_OBS], [NUM_ACTIONS])
    obs, critic_obs = observations(STEPS, ROBOTS)
    dones = torch.rand(STEPS, ROBOTS, generator=torch.Generator().manual_seed(3)) < 0.3
    estimates, adaptations = [], []
    with torch.inference_mode():
        for step in range(STEPS):
            learner.act(obs[step], critic_obs[step])
            estimates.append(learner.actor_critic.get_estimated_state())
            if isinstance(learner.actor_critic, PrivilegeEstimatorMixin):
                adaptations.append(learner.actor_critic.get_adapted_state())
            learner.process_env_step(torch.randn(ROBOTS), dones[step], {})
        learner.compute_returns(critic_obs[-1])
    return learner, torch.stack(estimates), torch.stack(adaptations) if adaptations else None, critic_obs


def minibatch_of(learner):
    recurrent = learner.actor_critic.is_recurrent
    storage = learner.storage
    generator = storage.recurrent_mini_batch_generator if recurrent else storage.mini_batch_generator
    (minibatch,) = generator(1, 1)
    return minibatch


@policies
@pytest.mark.parametrize(
    ("function", "kwargs", "distance"),
    [
        ("mse_loss", {}, lambda error: error.square()),
        ("l1_loss", {}, lambda error: error.abs()),
        ("huber_loss", {"delta": 0.5}, lambda e: torch.where(e.abs() < 0.5, 0.5 * e.square(), 0.5 * (e.abs() - 0.25))),
    ],
)
def test_loss_is_distance_of_recorded_estimates(name, options, function, kwargs, distance):
    learner, estimates, adaptations, critic_obs = make_learner(
        name, options, estimator_loss_func=function, estimator_loss_kwargs=kwargs
    )
    losses, _, _ = learner.compute_losses(minibatch_of(learner))
    expected = distance(estimates - critic_obs[..., VELOCITY]).sum(-1).mean()
    torch.testing.assert_close(losses["estimator_loss"], expected, rtol=1e-4, atol=1e-5)
    if adaptations is None:
        assert "adaptor_loss" not in losses
    else:
        truth = torch.cat([critic_obs[..., MASS], critic_obs[..., FRICTION]], dim=-1)
        torch.testing.assert_close(
            losses["adaptor_loss"], distance(adaptations - truth).sum(-1).mean(), rtol=1e-4, atol=1e-5
        )


@policies
def test_other_losses_equal_base_class(name, options):
    learner = make_learner(name, options)[0]
    plain = make_learner(name, options, algorithm=PPO)[0]
    torch.manual_seed(0)
    losses = learner.compute_losses(minibatch_of(learner))[0]
    torch.manual_seed(0)
    for key, value in plain.compute_losses(minibatch_of(plain))[0].items():
        torch.testing.assert_close(losses[key], value)


def test_loss_coefficients():
    learner = make_learner("PrivilegeStateAc", "adapts; estimates", estimator_loss_coef=0.3, adaptor_loss_coef=0.7)[0]
    means, _ = learner.update(0)
    weights = {"surrogate_loss": 1.0, "value_loss": 1.0, "entropy": 0.0, "estimator_loss": 0.3, "adaptor_loss": 0.7}
    expected = sum(weights[key] * value for key, value in means.items() if key != "total_loss")
    torch.testing.assert_close(means["total_loss"], expected)


@policies
def test_loss_trains_estimator_and_shared_rnn_only(name, options):
    learner = make_learner(name, options)[0]
    losses = learner.compute_losses(minibatch_of(learner))[0]
    losses["estimator_loss"].backward()
    trained = {key.split(".")[0] for key, p in learner.actor_critic.named_parameters() if p.grad is not None}
    expected = {"state_estimator"}
    if learner.actor_critic.use_actor_rnn:
        expected |= {"memory_a"} | ({"encoders"} if name.startswith("Encoder") else set())
    elif learner.actor_critic.is_recurrent:
        expected |= {"memory_s"}
    assert trained == expected


def test_attributes():
    learner = make_learner("StateAc", "estimates", estimator_loss_func="l1_loss")[0]
    assert learner.estimator_obs_components == learner.actor_critic.estimator_obs_components == ["contact", "pose"]
    assert learner.estimator_target_obs_components == ["velocity"]
    assert learner.estimator_loss_func == "l1_loss"
    assert learner.estimator_loss_kwargs == {}
    assert EstimatorPPO.__bases__ == (EstimatorAlgoMixin, PPO)
    assert EstimatorTPPO.__bases__ == (EstimatorAlgoMixin, TPPO)


def test_loss_with_symmetry_uses_recorded_samples_only():
    """Mirrored samples are evaluated as well; the targets belong to the recorded ones."""
    segments = {"joints": 4, "velocity": 3}
    names = ("FL_hip", "FR_hip", "FL_thigh", "FR_thigh")
    kinds = {"joints": "joints", "velocity": "vector"}
    torch.manual_seed(0)
    policy = StateAc(7, 7, 4, [8], [8], obs_segments=segments, estimator_target_components=["velocity"])
    symmetry = {"joint_names": names, "obs": kinds, "mirror_loss_coef": 0.5}
    learner = EstimatorPPO(copy.deepcopy(policy), symmetry_cfg=symmetry)
    learner.init_storage(4, 3, [7], [None], [4])
    obs = torch.randn(3, 4, 7)
    for row in obs:
        learner.act(row, row)
        learner.process_env_step(torch.randn(4), torch.zeros(4), {})
    learner.compute_returns(obs[-1])
    (minibatch,) = learner.storage.mini_batch_generator(1, 1)
    losses = learner.compute_losses(minibatch)[0]
    expected = functional.mse_loss(policy.state_estimator(obs[..., :4]), obs[..., 4:], reduction="none").sum(-1).mean()
    torch.testing.assert_close(losses["estimator_loss"], expected)


@pytest.mark.parametrize("using_ppo", [True, False])
@pytest.mark.parametrize("name", ["StateAc", "StateAcRecurrent"])
def test_student_with_teacher_learns_estimate(name, using_ppo):
    teacher = {"class_name": "ActorCritic", "num_actor_obs": NUM_CRITIC_OBS, "num_critic_obs": NUM_CRITIC_OBS}
    learner, estimates, _, critic_obs = make_learner(
        name, "estimates", algorithm=EstimatorTPPO, using_ppo=using_ppo,
        teacher_policy={**teacher, "num_actions": NUM_ACTIONS, "actor_hidden_dims": [4], "critic_hidden_dims": [4]},
    )  # fmt: skip
    losses = learner.compute_losses(minibatch_of(learner))[0]
    expected = (estimates - critic_obs[..., VELOCITY]).square().sum(-1).mean()
    torch.testing.assert_close(losses["estimator_loss"], expected, rtol=1e-4, atol=1e-5)
    assert "distillation_loss" in losses
    assert ("surrogate_loss" in losses) == using_ppo


def test_inner_settings_are_read_and_top_level_takes_precedence():
    teacher = {"num_actor_obs": NUM_CRITIC_OBS, "num_critic_obs": NUM_CRITIC_OBS, "num_actions": NUM_ACTIONS}
    ppo = {"gamma": 0.9, "estimator_loss_coef": 0.25, "adaptor_loss_coef": 3.0}
    learner = make_learner(
        "StateAc", "estimates", algorithm=EstimatorTPPO, teacher_policy=teacher, ppo=ppo, adaptor_loss_coef=1.0
    )[0]
    assert (learner.gamma, learner.estimator_loss_coef, learner.adaptor_loss_coef) == (0.9, 0.25, 1.0)


def test_adaptor_without_estimator():
    policy_class = type("AdaptorAlone", (PrivilegeEstimatorMixin, ActorCritic), {})
    torch.manual_seed(0)
    policy = policy_class(
        3, 5, 2, [8], [8], obs_segments={"a": 3}, critic_obs_segments={"a": 3, "b": 2},
        adaptor_target_components=["b"],
    )  # fmt: skip
    learner = EstimatorPPO(policy)
    learner.init_storage(4, 3, [3], [5], [2])
    for _ in range(3):
        learner.act(torch.randn(4, 3), torch.randn(4, 5))
        learner.process_env_step(torch.randn(4), torch.zeros(4), {})
    learner.compute_returns(torch.randn(4, 5))
    means, _ = learner.update(0)
    assert "adaptor_loss" in means
    assert "estimator_loss" not in means
    assert learner.estimator_target_obs_components is None


@pytest.mark.parametrize("settings", [None, {"weight": None}])
def test_none_loss_arguments_are_ignored(settings):
    assert EstimatorPPO(make_policy("StateAc", "estimates"), estimator_loss_kwargs=settings).estimator_loss_kwargs == {}


def test_rejects_policy_without_estimator():
    with pytest.raises(TypeError, match="EstimatorPPO trains an estimator, ActorCritic has none; use a policy with on"):
        EstimatorPPO(ActorCritic(4, 4, 2, [8], [8]))


def test_rejects_unknown_torch_loss():
    with pytest.raises(ValueError, match="estimator_loss_func 'mse' is no function of"):
        EstimatorPPO(make_policy("StateAc", "estimates"), estimator_loss_func="mse")


@pytest.mark.parametrize(("algorithm", "warns"), [(PPO, True), (EstimatorPPO, False)])
def test_warns_about_untrained_estimator(algorithm, warns, monkeypatch):
    lines = []
    monkeypatch.setattr("st_rl.algorithms.ppo.logger.warning", lines.append)
    algorithm(make_policy("StateAc", "estimates"))
    reported = [line for line in lines if "state estimator of StateAc" in line and "EstimatorPPO" in line]
    assert bool(reported) == warns


@pytest.mark.parametrize("share", ["replace_state_prob", "privilege_replace_state_prob"])
def test_replacement_probability_is_part_of_capture_key(share):
    """A graph captured with the old probability must not be replayed."""
    learner = EstimatorPPO(make_policy("PrivilegeStateAc", "adapts and replaces; replaces"))
    before = learner._settings(), learner.rollout_settings()
    setattr(learner.actor_critic, share, 0.125)
    assert all((share, 0.125) in settings for settings in (learner._settings(), learner.rollout_settings()))
    assert (learner._settings(), learner.rollout_settings()) != before
