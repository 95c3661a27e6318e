"""Common behaviour of policies with encoders, an estimator, an adaptor or an image, in every valid combination."""

import copy

import pytest
import torch

from st_rl.modules import ActorCritic, Memory, policy_classes
from st_rl.modules.actor_critic import build_head
from st_rl.storage import RolloutStorage
from tests.modules.graph_safety import NoHostSync
from tests.modules.policy_matrix import (
    CASES,
    NUM_ACTIONS,
    NUM_CRITIC_OBS,
    NUM_OBS,
    OPTIONS,
    RECURRENT_CASES,
    make_policy,
    observations,
    reordered,
    segments,
)

# Documented members of each mixin, with the arguments of every method.
COMMON = {
    "reset": "dones",
    "act": "observations masks hidden_states",
    "act_inference": "observations",
    "evaluate": "critic_observations masks hidden_states",
    "get_hidden_states": "",
    "get_actions_log_prob": "actions",
    "clip_std": "min max",
    "forward": "obs",
    "evaluate_actions": "obs actions critic_obs",
    "update_distribution": "observations",
}
ENCODER_MEMBERS = {
    "prepare_obs_slices": "",
    "build_encoders": "component_names class_name obs_slices kwargs encoder_output_size",
    "embed_encoders_latent": "observations obs_slices encoders latents_order",
    "get_encoder_latent": "observations obs_component critic",
}
ESTIMATOR_MEMBERS = {
    "build_estimator": "kwargs",
    "get_estimated_state": "",
    "act": "observations masks hidden_states inference",
}
ADAPTOR_MEMBERS = {"build_adaptor": "kwargs", "get_adapted_state": "", "get_estimated_state": ""}
VISUAL_MEMBERS = {"embed_visual_latent": "observations", "act_with_embedded_latent": "observations kwargs"}
MEMBERS = {
    "EncoderActorCritic": ENCODER_MEMBERS,
    "EncoderActorCriticRecurrent": ENCODER_MEMBERS,
    "EncoderAmpActorCriticRecurrent": ENCODER_MEMBERS,
    "StateAc": ESTIMATOR_MEMBERS,
    "StateAcRecurrent": ESTIMATOR_MEMBERS,
    "PrivilegeStateAc": ESTIMATOR_MEMBERS | ADAPTOR_MEMBERS,
    "PrivilegeStateAcRecurrent": ESTIMATOR_MEMBERS | ADAPTOR_MEMBERS,
    "EncoderStateAc": ENCODER_MEMBERS | ESTIMATOR_MEMBERS,
    "EncoderStateAcRecurrent": ENCODER_MEMBERS
    | ESTIMATOR_MEMBERS
    | {"load_misaligned_state_dict": "module obs_segments critic_obs_segments"},
    "VisualDeterministicAC": VISUAL_MEMBERS,
    "VisualDeterministicRecurrent": VISUAL_MEMBERS,
}
BASES = {
    "EncoderActorCritic": "EncoderActorCriticMixin ActorCritic",
    "EncoderActorCriticRecurrent": "EncoderActorCriticMixin ActorCriticRecurrent",
    "EncoderAmpActorCriticRecurrent": "EncoderActorCriticMixin AmpActorCriticRecurrent",
    "StateAc": "EstimatorMixin ActorCritic",
    "StateAcRecurrent": "EstimatorMixin ActorCriticRecurrent",
    "PrivilegeStateAc": "PrivilegeEstimatorMixin EstimatorMixin ActorCritic",
    "PrivilegeStateAcRecurrent": "PrivilegeEstimatorMixin EstimatorMixin ActorCriticRecurrent",
    "EncoderStateAc": "EstimatorMixin EncoderActorCriticMixin ActorCritic",
    "EncoderStateAcRecurrent": "EstimatorMixin EncoderActorCriticMixin ActorCriticRecurrent",
    "VisualDeterministicAC": "DeterministicPolicyMixin VisualActorCriticMixin ActorCritic",
    "VisualDeterministicRecurrent": "DeterministicPolicyMixin VisualActorCriticMixin ActorCriticRecurrent",
}
cases = pytest.mark.parametrize(("name", "options"), CASES)
recurrent_cases = pytest.mark.parametrize(("name", "options"), RECURRENT_CASES)


@pytest.mark.parametrize("name", OPTIONS)
class TestDeclaration:
    def test_base_classes_are_in_processing_order(self, name):
        assert " ".join(base.__name__ for base in policy_classes()[name].__bases__) == BASES[name]

    def test_documented_members_exist(self, name):
        import inspect

        for member, arguments in (COMMON | MEMBERS[name]).items():
            signature = inspect.signature(getattr(policy_classes()[name], member))
            known = set(signature.parameters)
            takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
            missing = set(arguments.split()) - known
            assert not missing or takes_any, f"{name}.{member} lacks {missing}"

    def test_mixins_do_not_override_act_or_evaluate(self, name):
        for base in policy_classes()[name].__mro__:
            if base.__name__.endswith("Mixin") and base.__name__ != "DeterministicPolicyMixin":
                repeated = {"act", "act_inference", "evaluate", "forward", "evaluate_actions"} & set(vars(base))
                assert not repeated, f"{base.__name__} repeats {repeated}"


@cases
class TestEveryPolicy:
    def test_shapes_and_raw_sizes(self, name, options):
        policy = make_policy(name, options)
        obs, critic_obs = observations(6)
        assert (policy.num_actor_obs, policy.num_critic_obs, policy.num_actions) == (
            NUM_OBS,
            NUM_CRITIC_OBS,
            NUM_ACTIONS,
        )
        assert all(type(layer.in_features) is int for layer in policy.actor if isinstance(layer, torch.nn.Linear))
        assert policy.act(obs).shape == (6, NUM_ACTIONS)
        assert policy.act_inference(obs).shape == (6, NUM_ACTIONS)
        assert policy.evaluate(critic_obs).shape == (6, 1)
        assert policy.get_actions_log_prob(torch.zeros(6, NUM_ACTIONS)).shape == (6,)
        assert policy.entropy.shape == (6,)
        assert policy.is_recurrent == name.endswith("Recurrent")
        assert policy.rnn_type == ("gru" if policy.is_recurrent else None)
        assert policy.privileged_obs_segments is policy.critic_obs_segments

    def test_observations_are_not_modified(self, name, options):
        policy = make_policy(name, options)
        obs, critic_obs = observations(6)
        before, critic_before = obs.clone(), critic_obs.clone()
        policy.act(obs)
        policy.act_inference(obs)
        policy.evaluate(critic_obs)
        policy.evaluate_actions(obs, torch.zeros(6, NUM_ACTIONS), critic_obs)
        assert torch.equal(obs, before)
        assert torch.equal(critic_obs, critic_before)

    def test_inference_is_deterministic_and_keeps_distribution(self, name, options):
        policy = make_policy(name, options)
        obs, _ = observations(6)
        policy.act(obs)
        distribution = policy.distribution
        policy.clear_hidden_states()
        first = policy.act_inference(obs)
        policy.clear_hidden_states()
        assert torch.equal(first, policy.act(obs, inference=True))
        assert policy.distribution is distribution
        with pytest.raises(AssertionError, match="no masks"):
            policy.act(obs, masks=torch.ones(6), inference=True)

    def test_feed_forward_ignores_masks_and_hidden_states(self, name, options):
        policy = make_policy(name, options)
        if policy.is_recurrent:
            pytest.skip("has a memory")
        obs, critic_obs = observations(4, 3)
        masks = torch.tensor([[1, 1, 1], [0, 1, 1], [0, 1, 0], [0, 1, 0]]).bool()
        torch.manual_seed(3)
        expected = policy.act(obs)
        torch.manual_seed(3)
        assert torch.equal(policy.act(obs, masks=masks, hidden_states="anything"), expected)
        assert policy.evaluate(critic_obs, masks=masks, hidden_states="anything").shape == (4, 3, 1)

    def test_state_dict_round_trip_keeps_outputs(self, name, options, tmp_path):
        policy, other = make_policy(name, options), make_policy(name, options, seed=1)
        obs, critic_obs = observations(6)
        torch.save(policy.state_dict(), tmp_path / "policy.pt")
        other.load_state_dict(torch.load(tmp_path / "policy.pt", weights_only=True))
        assert torch.equal(policy.act_inference(obs), other.act_inference(obs))
        assert torch.equal(policy.evaluate(critic_obs), other.evaluate(critic_obs))

    def test_policy_after_act_can_be_copied(self, name, options):
        policy = make_policy(name, options)
        obs, critic_obs = observations(6)
        # With an autograd graph attached, as during an update.
        policy.act(obs).sum()
        policy.evaluate(critic_obs)
        twin = copy.deepcopy(policy).to("cpu")
        assert torch.equal(policy.act_inference(obs), twin.act_inference(obs))
        with torch.no_grad():
            twin.std.add_(1.0)
        assert not torch.equal(policy.std, twin.std)

    def test_segment_order_does_not_change_actions(self, name, options):
        """Outputs depend on the components, not on their positions."""
        policy, other = make_policy(name, options), make_policy(name, options, order="backward")
        obs, critic_obs = observations(6)
        moved = reordered(obs, segments(), segments("backward"))
        _copy_by_component(policy, other)
        torch.testing.assert_close(policy.act_inference(obs), other.act_inference(moved), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(policy.evaluate(critic_obs), other.evaluate(critic_obs))

    def test_act_has_no_host_sync(self, name, options):
        policy = make_policy(name, options)
        obs, critic_obs = observations(6)
        with torch.inference_mode(), NoHostSync():
            policy.act(obs)
            policy.evaluate(critic_obs)
            policy.reset(torch.tensor([1, 0, 0, 1, 0, 0]))
            policy.act(obs)

    def test_forward_and_evaluate_actions_use_the_same_hooks(self, name, options):
        policy = make_policy(name, options)
        obs, critic_obs = observations(6)
        policy.act(obs)
        mean, value = policy.action_mean, policy.evaluate(critic_obs)
        states = policy.get_hidden_states()
        policy.clear_hidden_states()
        actions = torch.zeros(6, NUM_ACTIONS)
        log_prob, entropy, values = policy.evaluate_actions(obs, actions, critic_obs)
        expected = torch.distributions.Normal(mean, policy.std.expand_as(mean))
        torch.testing.assert_close(log_prob, expected.log_prob(actions).sum(-1))
        torch.testing.assert_close(entropy, expected.entropy().sum(-1))
        torch.testing.assert_close(values, value)
        assert states is None or policy.get_hidden_states().critic is None, "the memory stays as it was"


def _copy_by_component(source, target) -> None:
    """Copy the weights of `source` to `target`, which has the components in another order."""
    from st_rl.modules.policy.misaligned import load_misaligned_state_dict

    _, skipped = load_misaligned_state_dict(target, source, source.obs_segments, source.critic_obs_segments)
    assert skipped == []


@recurrent_cases
class TestRecurrent:
    STEPS, ROBOTS = 7, 5

    def rollout(self, policy):
        """Step with resets inside the rollout; returns a storage of the same steps."""
        obs, critic_obs = observations(self.STEPS, self.ROBOTS)
        dones = torch.zeros(self.STEPS, self.ROBOTS)
        dones[2, 1] = dones[4, 1] = dones[3, 3] = dones[6, 0] = 1
        storage = RolloutStorage(self.ROBOTS, self.STEPS, [NUM_OBS], [NUM_CRITIC_OBS], [NUM_ACTIONS])
        # Non-zero hidden states of earlier steps, as during a training.
        policy.act(obs[0] + 1.0)
        policy.evaluate(critic_obs[0] + 1.0)
        means, values = [], []
        for step in range(self.STEPS):
            transition = storage.Transition()
            transition.hidden_states = policy.get_hidden_states()
            policy.act(obs[step])
            means.append(policy.action_mean)
            values.append(policy.evaluate(critic_obs[step]))
            zeros = torch.zeros(self.ROBOTS, 1)
            transition.observations, transition.critic_observations = obs[step], critic_obs[step]
            transition.actions = transition.action_mean = transition.action_sigma = means[-1].detach()
            transition.rewards = transition.values = transition.actions_log_prob = zeros
            transition.dones = dones[step]
            storage.add_transitions(transition)
            policy.reset(dones[step])
        return storage, torch.stack(means), torch.stack(values)

    @pytest.mark.parametrize("capacity", [None, 20])
    @pytest.mark.parametrize("rnn_type", ["gru", "lstm"])
    def test_steps_equal_sequence_with_dones(self, name, options, rnn_type, capacity):
        policy = make_policy(name, options, rnn_type=rnn_type)
        storage, means, values = self.rollout(policy)
        storage.trajectory_capacity = capacity
        (batch,) = storage.recurrent_mini_batch_generator(1, 1)
        policy.act(batch.obs, masks=batch.masks, hidden_states=batch.hidden_states.actor)
        torch.testing.assert_close(policy.action_mean, means, rtol=1e-4, atol=1e-5)
        sequence = policy.evaluate(batch.critic_obs, masks=batch.masks, hidden_states=batch.hidden_states.critic)
        torch.testing.assert_close(sequence, values, rtol=1e-4, atol=1e-5)

    def test_sequence_without_state_starts_at_zero_and_keeps_hidden_states(self, name, options):
        policy = make_policy(name, options)
        obs, _ = observations(self.STEPS, self.ROBOTS)
        stepped = []
        for row in obs:
            policy.act(row)
            stepped.append(policy.action_mean)
        before = policy.hidden_state_dict()
        policy.act(obs, masks=torch.ones(self.STEPS, self.ROBOTS, dtype=torch.bool))
        torch.testing.assert_close(policy.action_mean, torch.stack(stepped), rtol=1e-4, atol=1e-5)
        assert all(torch.equal(a, b) for key in before for a, b in zip(before[key], policy.hidden_state_dict()[key]))

    def test_hidden_states_have_documented_layout(self, name, options):
        for rnn_type in ("gru", "lstm"):
            policy = make_policy(name, options, rnn_type=rnn_type)
            obs, critic_obs = observations(self.ROBOTS)
            policy.act(obs)
            policy.evaluate(critic_obs)
            states = policy.get_hidden_states()
            assert states._fields == ("actor", "critic")
            actor = states.actor
            if name.startswith("Privilege"):
                assert type(actor).__name__ == "AdaptorActorHiddenState"
                _assert_rnn_state(actor.adaptor, rnn_type, self.ROBOTS)
                actor = actor.actor
            if "StateAc" in name and not policy.use_actor_rnn:
                assert type(actor).__name__ == "EstimatorActorHiddenState"
                _assert_rnn_state(actor.estimator, rnn_type, self.ROBOTS)
                actor = actor.actor
            _assert_rnn_state(actor, rnn_type, self.ROBOTS)
            _assert_rnn_state(states.critic, rnn_type, self.ROBOTS)

    @pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32])
    def test_reset_clears_done_envs_in_every_rnn(self, name, options, dtype):
        policy = make_policy(name, options)
        obs, critic_obs = observations(self.ROBOTS)
        policy.act(obs)
        policy.evaluate(critic_obs)
        before = policy.hidden_state_dict()
        policy.reset(torch.tensor([0, 0, 1, 0, 1]).to(dtype))
        memories = {key for key, module in policy.named_modules() if isinstance(module, Memory)}
        assert set(before) == memories
        for key, leaves in policy.hidden_state_dict().items():
            for leaf, old in zip(leaves, before[key]):
                assert bool((leaf[:, [2, 4]] == 0).all()), key
                assert torch.equal(leaf[:, [0, 1, 3]], old[:, [0, 1, 3]]), key


def _assert_rnn_state(state, rnn_type: str, num_robots: int) -> None:
    if rnn_type == "gru":
        assert state.shape == (1, num_robots, 8)
    else:
        assert state._fields == ("hidden", "cell")
        assert state.hidden.shape == state.cell.shape == (1, num_robots, 8)


def test_base_class_has_documented_state_keys_only():
    """The hooks of the mixins add no state to the base class."""
    policy = ActorCritic(4, 4, 2, actor_hidden_dims=[8], critic_hidden_dims=[8])
    assert set(policy.state_dict()) == {"std"} | {
        f"{head}.{layer}.{kind}" for head in ("actor", "critic") for layer in (0, 2) for kind in ("weight", "bias")
    }
    assert build_head(4, [], 2, "elu")[0].in_features == 4
