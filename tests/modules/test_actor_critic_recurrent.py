"""`ActorCriticRecurrent`: single steps, sequences, resets and hidden states."""

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn

from st_rl.modules import ActorCriticHiddenState, ActorCriticRecurrent, LstmHiddenState, Memory
from st_rl.utils import split_and_pad_trajectories

OBS, OC, A, H = 3, 4, 2, 6
NETWORKS = [("gru", 1), ("gru", 2), ("lstm", 1), ("lstm", 2)]


def make(rnn_type="lstm", num_layers=1, **kwargs):
    sizes = {"actor_hidden_dims": [8], "critic_hidden_dims": [8], "rnn_hidden_size": H, "rnn_num_layers": num_layers}
    return ActorCriticRecurrent(OBS, OC, A, rnn_type=rnn_type, **{**sizes, **kwargs})


def leaves(state):
    return list(state) if isinstance(state, tuple) else [state]


def manual_cell(rnn, layer, x, state):
    """One step of one RNN layer for one environment in float64 NumPy; state is [h] or [h, c]."""
    weights = {k: getattr(rnn, f"{k}_l{layer}").double() for k in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
    a = weights["weight_ih"] @ x + weights["bias_ih"]
    b = weights["weight_hh"] @ state[0] + weights["bias_hh"]
    sigmoid = torch.sigmoid
    if isinstance(rnn, nn.LSTM):
        i, f, g, o = (a + b).chunk(4)
        c = sigmoid(f) * state[1] + sigmoid(i) * torch.tanh(g)
        return [sigmoid(o) * torch.tanh(c), c]
    (ar, az, an), (br, bz, bn) = a.chunk(3), b.chunk(3)
    z = sigmoid(az + bz)
    return [(1 - z) * torch.tanh(an + sigmoid(ar + br) * bn) + z * state[0]]


def manual_rollout(rnn, xs, dones):
    """Outputs `(T, N, H)` with hidden states cleared after each done."""
    num_steps, num_envs, _ = xs.shape
    num_leaves = 2 if isinstance(rnn, nn.LSTM) else 1
    outputs = torch.zeros(num_steps, num_envs, rnn.hidden_size).double()
    for env in range(num_envs):
        states = None
        for step in range(num_steps):
            if states is None:
                states = [[torch.zeros(rnn.hidden_size).double()] * num_leaves for _ in range(rnn.num_layers)]
            x = xs[step, env].double()
            for layer in range(rnn.num_layers):
                states[layer] = manual_cell(rnn, layer, x, states[layer])
                x = states[layer][0]
            outputs[step, env] = x
            if dones[step, env]:
                states = None
    return outputs


# --- RNN -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rnn_type", "num_layers"), NETWORKS)
def test_steps_equal_numpy_cell(rnn_type, num_layers):
    memory = Memory(OBS, rnn_type, num_layers, H)
    xs, dones = torch.randn(7, 4, OBS), torch.rand(7, 4) < 0.3
    assert dones[:-1].any()
    outputs = []
    for x, done in zip(xs, dones):
        outputs.append(memory(x))
        memory.reset(done)
    expected = manual_rollout(memory.rnn, xs, dones)
    torch.testing.assert_close(torch.stack(outputs).double(), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("rnn_type", "num_layers"), NETWORKS)
def test_steps_equal_sequence(rnn_type, num_layers):
    """With dones inside the rollout and a non-zero initial state, for actor and critic."""
    policy = make(rnn_type, num_layers)
    num_steps, num_envs = 8, 5
    obs, critic_obs = torch.randn(num_steps, num_envs, OBS), torch.randn(num_steps, num_envs, OC)
    dones = torch.rand(num_steps, num_envs) < 0.3
    dones[2, 0], dones[-1, 1] = True, True
    assert 0 < dones[:-1].sum() < dones[:-1].numel()
    for _ in range(3):
        policy.act(torch.randn(num_envs, OBS))
        policy.evaluate(torch.randn(num_envs, OC))

    means, values, states = [], [], []
    with torch.no_grad():
        for step in range(num_steps):
            states.append(policy.get_hidden_states())
            policy.act(obs[step])
            means.append(policy.action_mean)
            values.append(policy.evaluate(critic_obs[step]))
            policy.reset(dones[step])

    after = policy.get_hidden_states()
    padded, masks = split_and_pad_trajectories(obs, dones)
    padded_critic, _ = split_and_pad_trajectories(critic_obs, dones)
    starts = [(n, t) for n in range(num_envs) for t in range(num_steps) if t == 0 or dones[t - 1, n]]

    def first_states(part):
        columns = [[leaf[:, n] for leaf in leaves(getattr(states[t], part))] for n, t in starts]
        stacked = [torch.stack(rows, dim=1) for rows in zip(*columns)]
        return LstmHiddenState(*stacked) if rnn_type == "lstm" else stacked[0]

    policy.act(padded, masks=masks, hidden_states=first_states("actor"))
    torch.testing.assert_close(policy.action_mean, torch.stack(means), atol=1e-6, rtol=1e-5)
    assert policy.action_mean.shape == (num_steps, num_envs, A)
    sequence_values = policy.evaluate(padded_critic, masks=masks, hidden_states=first_states("critic"))
    torch.testing.assert_close(sequence_values, torch.stack(values), atol=1e-6, rtol=1e-5)
    now = policy.get_hidden_states()
    for before, later in zip(leaves(after.actor) + leaves(after.critic), leaves(now.actor) + leaves(now.critic)):
        assert before is later  # a sequence pass leaves the hidden states unchanged


@pytest.mark.parametrize("rnn_type", ["gru", "lstm"])
def test_axes_select_step_or_sequence_and_default_state_is_zero(rnn_type):
    memory = Memory(OBS, rnn_type, 2, H)
    xs = torch.randn(5, 4, OBS)
    sequence = memory(xs)
    assert sequence.shape == (5, 4, H)
    assert memory.hidden_states is None
    zeros = torch.zeros(2, 4, H)
    given = LstmHiddenState(zeros, zeros) if rnn_type == "lstm" else zeros
    torch.testing.assert_close(memory(xs, hidden_states=given), sequence)
    torch.testing.assert_close(memory(xs, masks=torch.ones(5, 4, dtype=torch.bool)), sequence)
    assert memory(xs[0]).shape == (4, H)
    assert isinstance(memory.hidden_states, LstmHiddenState) == (rnn_type == "lstm")
    assert all(leaf.shape == (2, 4, H) for leaf in leaves(memory.hidden_states))


@pytest.mark.parametrize("rnn_type", ["gru", "lstm"])
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32])
@pytest.mark.parametrize("trailing_axis", [False, True])
def test_reset_clears_done_envs_for_any_dones_dtype(rnn_type, dtype, trailing_axis):
    memory = Memory(OBS, rnn_type, 2, H)
    memory.reset(torch.ones(4))  # no hidden states yet
    assert memory.hidden_states is None
    memory(torch.randn(4, OBS))
    before = [leaf.clone() for leaf in leaves(memory.hidden_states)]
    kept = leaves(memory.hidden_states)
    dones = torch.tensor([0, 0, 1, 1]).to(dtype)
    memory.reset(dones.unsqueeze(-1) if trailing_axis else dones)
    for old, original, new in zip(before, kept, leaves(memory.hidden_states)):
        assert torch.equal(new[:, 2:], torch.zeros(2, 2, H))
        assert torch.equal(new[:, :2], old[:, :2])
        assert torch.equal(original, old)  # replaced, not written in place: the storage may still refer to it
    assert type(memory.hidden_states) is (LstmHiddenState if rnn_type == "lstm" else torch.Tensor)
    memory.reset()
    assert all(torch.count_nonzero(leaf) == 0 for leaf in leaves(memory.hidden_states))


def test_reset_clears_non_finite_state():
    memory = Memory(OBS, "gru", 1, H)
    memory(torch.full((2, OBS), float("nan")))
    memory.reset(torch.tensor([1, 0]))
    assert torch.isfinite(memory.hidden_states).all(dim=-1).tolist() == [[True, False]]


@pytest.mark.parametrize("rnn_type", ["rnn", "transformer", None, 3])
def test_rejects_unknown_rnn_types(rnn_type):
    with pytest.raises(ValueError, match=f"{rnn_type}.*gru, lstm"):
        Memory(OBS, rnn_type)
    with pytest.raises(ValueError, match=f"{rnn_type}.*gru, lstm"):
        make(rnn_type)


def test_hidden_states_are_detached():
    """Stepping with gradients enabled must not extend the autograd graph over steps."""
    policy = make("lstm")
    for _ in range(3):
        policy.act(torch.randn(2, OBS))
        policy.evaluate(torch.randn(2, OC))
    for leaf in leaves(policy.memory_a.hidden_states) + leaves(policy.memory_c.hidden_states):
        assert leaf.grad_fn is None
        assert not leaf.requires_grad


def test_rejects_another_number_of_environments_with_hint():
    policy = make("gru")
    policy.act(torch.randn(4, OBS))
    with pytest.raises(ValueError, match=r"4 environments.*of 3.*clear_hidden_states\(\)"):
        policy.act_inference(torch.randn(3, OBS))
    policy.clear_hidden_states()
    assert policy.act_inference(torch.randn(3, OBS)).shape == (3, A)


@pytest.mark.parametrize("rnn_type", ["gru", "lstm"])
def test_pin_hidden_states_keeps_values_at_fixed_address(rnn_type):
    policy, xs = make(rnn_type), torch.randn(6, 4, OBS)
    with torch.no_grad():
        expected = torch.stack([policy.act_inference(x) for x in xs])
    policy.clear_hidden_states()
    policy.pin_hidden_states()
    outputs, places = [], set()
    for number, x in enumerate(xs):
        with torch.inference_mode():
            outputs.append(policy.act_inference(x))
            if number % 2:
                policy.pin_hidden_states()
                places.add(leaves(policy.memory_a.hidden_states)[0].data_ptr())
    torch.testing.assert_close(torch.stack(outputs), expected)
    assert len(places) == 1
    assert not leaves(policy.memory_a.hidden_states)[0].is_inference()


@pytest.mark.parametrize("rnn_type", ["gru", "lstm"])
def test_rejects_masks_or_states_with_single_step(rnn_type):
    policy, obs = make(rnn_type), torch.randn(4, OBS)
    policy.act(obs)
    states = policy.get_hidden_states()
    for settings in ({"hidden_states": states.actor}, {"masks": torch.ones(4, 1, dtype=torch.bool)}):
        with pytest.raises(ValueError, match="time axis"):
            policy.act(obs, **settings)
    with pytest.raises(TypeError, match="`actor`"):
        policy.act(obs.unsqueeze(0), hidden_states=states)


# --- policy ----------------------------------------------------------------------------------------------------------


def test_module_structure_read_by_exporters():
    policy = make("GRU", 2)
    assert ActorCriticRecurrent.is_recurrent is True
    assert policy.rnn_type == "gru"
    assert isinstance(policy.memory_a.rnn, nn.GRU)
    rnn = policy.memory_a.rnn
    assert (rnn.input_size, rnn.hidden_size, rnn.num_layers, rnn.batch_first) == (OBS, H, 2, False)
    assert policy.memory_c.rnn.input_size == OC
    assert policy.actor[0].in_features == H
    assert policy.critic[0].in_features == H
    assert (policy.num_actor_obs, policy.num_critic_obs, policy.num_actions) == (OBS, OC, A)
    keys = set(make("lstm", 1).state_dict())
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    assert {f"{memory}.rnn.{name}" for memory in ("memory_a", "memory_c") for name in names} <= keys
    assert {k for k in keys if not k.startswith(("memory_", "actor.", "critic."))} == {"std"}


def test_defaults():
    policy = ActorCriticRecurrent(OBS, OC, A)
    assert isinstance(policy.memory_a.rnn, nn.LSTM)
    assert (policy.memory_a.rnn.hidden_size, policy.memory_a.rnn.num_layers) == (256, 1)
    assert policy.rnn_type == "lstm"


@pytest.mark.parametrize("rnn_type", ["gru", "lstm"])
def test_get_hidden_states_of_actor_and_critic(rnn_type):
    policy = make(rnn_type)
    assert policy.get_hidden_states() == ActorCriticHiddenState(None, None)
    policy.act(torch.randn(5, OBS))
    policy.evaluate(torch.randn(5, OC))
    state = policy.get_hidden_states()
    assert isinstance(state, ActorCriticHiddenState)
    assert all(leaf.shape == (1, 5, H) for leaf in leaves(state.actor) + leaves(state.critic))
    policy.reset(torch.tensor([1, 0, 0, 0, 0]))
    assert all(torch.count_nonzero(leaf[:, 0]) == 0 for leaf in leaves(policy.get_hidden_states().critic))
    assert all(torch.count_nonzero(leaf[:, 0]) > 0 for leaf in leaves(state.critic))


@pytest.mark.parametrize("rnn_type", ["gru", "lstm"])
def test_forward_and_evaluate_actions_read_but_keep_hidden_states(rnn_type):
    policy = ActorCriticRecurrent(
        OBS, OBS, A, actor_hidden_dims=[8], critic_hidden_dims=[8], rnn_type=rnn_type, rnn_hidden_size=H
    )
    obs, actions = torch.randn(5, OBS), torch.randn(5, A)
    fresh = policy(obs)[1]
    assert policy.get_hidden_states() == ActorCriticHiddenState(None, None)
    policy.act(obs)
    policy.evaluate(obs)
    before = policy.get_hidden_states()
    distribution, value = policy(obs)
    log_probs, _, values = policy.evaluate_actions(obs, actions)
    after = policy.get_hidden_states()
    for old, new in zip(leaves(before.actor) + leaves(before.critic), leaves(after.actor) + leaves(after.critic)):
        assert old is new
    assert not torch.allclose(value, fresh)
    torch.testing.assert_close(values, value)
    torch.testing.assert_close(log_probs, distribution.log_prob(actions).sum(-1))
    policy.act(obs)
    torch.testing.assert_close(policy.action_mean, distribution.mean)
    torch.testing.assert_close(policy.evaluate(obs), value)


def test_samples_padded_trajectories_as_torch_normal_with_same_seed():
    policy, dones = make(), torch.zeros(5, 4)
    dones[1, 0] = dones[3, 2] = 1
    padded, masks = split_and_pad_trajectories(torch.randn(5, 4, OBS), dones)
    torch.manual_seed(3)
    actions = policy.act(padded, masks=masks)
    torch.manual_seed(3)
    torch.testing.assert_close(actions, torch.distributions.Normal(policy.action_mean, policy.action_std).sample())


def test_act_inference_advances_actor_hidden_states():
    policy = make("gru")
    obs = torch.randn(4, 5, OBS)
    with torch.no_grad():
        stepped = torch.stack([policy.act_inference(x) for x in obs])
        torch.testing.assert_close(stepped, policy.actor(policy.memory_a(obs)), atol=1e-6, rtol=1e-5)


def test_hidden_states_of_inference_mode_are_usable_in_autograd():
    policy = make("lstm")
    obs, critic_obs, actions = torch.randn(5, OBS), torch.randn(5, OC), torch.randn(5, A)
    with torch.inference_mode():
        policy.act(obs.clone())
        policy.evaluate(critic_obs.clone())
    log_probs, _, values = policy.evaluate_actions(obs, actions, critic_obs)
    (log_probs.sum() + values.sum()).backward()
    assert torch.isfinite(policy.memory_a.rnn.weight_hh_l0.grad).all()
    policy.reset(torch.tensor([1, 0, 0, 0, 1]))
    policy.act(obs)
    policy.act(obs).sum()


@pytest.mark.parametrize("rnn_type", ["gru", "lstm"])
def test_hidden_state_dict_round_trip(rnn_type, tmp_path):
    policy, twin = make(rnn_type), make(rnn_type)
    twin.load_state_dict(policy.state_dict())
    with torch.inference_mode():
        policy.act(torch.randn(5, OBS))
        policy.evaluate(torch.randn(5, OC))
    state = {name: [leaf.clone() for leaf in tensors] for name, tensors in policy.hidden_state_dict().items()}
    torch.save(state, tmp_path / "state.pt")
    twin.load_hidden_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    obs, critic_obs = torch.randn(5, OBS), torch.randn(5, OC)
    assert torch.equal(policy.act_inference(obs), twin.act_inference(obs))
    assert torch.equal(policy.evaluate(critic_obs), twin.evaluate(critic_obs))
    twin.load_hidden_state_dict({})
    assert twin.get_hidden_states() == ActorCriticHiddenState(None, None)
    policy.clear_hidden_states()
    assert policy.hidden_state_dict() == {}


def test_policy_after_act_can_be_copied_and_pickled():
    policy, obs = make("lstm"), torch.randn(5, OBS)
    policy.act(obs)
    policy.get_actions_log_prob(torch.randn(5, A)).sum().backward()
    twins = [copy.deepcopy(policy), pickle.loads(pickle.dumps(policy))]
    expected = policy.act_inference(obs)
    for twin in twins:
        torch.testing.assert_close(twin.act_inference(obs), expected)


def test_padding_has_no_effect_on_gradients():
    """Losses and gradients are bit-exact for any finite values in the padding."""
    policy = make("lstm", 2)
    obs, dones = torch.randn(6, 4, OBS), torch.zeros(6, 4)
    dones[1, 0], dones[3, 0], dones[4, 2] = 1, 1, 1
    padded, masks = split_and_pad_trajectories(obs, dones)
    assert torch.count_nonzero(padded[~masks]) == 0

    def gradients(sequences):
        policy.zero_grad()
        policy.act(sequences, masks=masks)
        policy.action_mean.square().sum().backward()
        return [p.grad.clone() for p in policy.memory_a.parameters()]

    clean = gradients(padded)
    soiled = padded.clone()
    soiled[~masks] = 1e3
    for ours, theirs in zip(clean, gradients(soiled)):
        assert torch.equal(ours, theirs)
        assert torch.count_nonzero(ours) > 0


@pytest.mark.parametrize("rnn_type", ["gru", "lstm"])
def test_exports_to_onnx_like_the_client(rnn_type, tmp_path):
    class Exporter(nn.Module):
        """Hidden states as inputs and outputs, as a controller needs them."""

        def __init__(self, policy):
            super().__init__()
            self.rnn = copy.deepcopy(policy.memory_a.rnn).cpu()
            self.actor = copy.deepcopy(policy.actor).cpu()

        def forward(self, obs, h, c):
            if isinstance(self.rnn, nn.LSTM):
                x, (h, c) = self.rnn(obs.unsqueeze(0), (h, c))
            else:
                x, h = self.rnn(obs.unsqueeze(0), h)
            return self.actor(x.squeeze(0)), h, c

    policy = make(rnn_type).eval()
    exporter = Exporter(policy)
    zeros = torch.zeros(exporter.rnn.num_layers, 1, exporter.rnn.hidden_size)
    path = tmp_path / "policy.onnx"
    onnxruntime = pytest.importorskip("onnxruntime")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            exporter, (torch.zeros(1, exporter.rnn.input_size), zeros, zeros), str(path), opset_version=11,
            input_names=["obs", "h", "c"], output_names=["actions", "h_out", "c_out"], dynamo=False,
        )  # fmt: skip
    session = onnxruntime.InferenceSession(str(path))
    h, c = zeros.numpy(), zeros.numpy()
    for obs in torch.randn(3, 1, OBS):
        feed = {"obs": obs.numpy(), "h": h, "c": c}
        actions, h, c = session.run(["actions", "h_out", "c_out"], feed)
        expected = policy.act_inference(obs)
        torch.testing.assert_close(torch.from_numpy(actions), expected, atol=1e-5, rtol=1e-4)
