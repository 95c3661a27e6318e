"""`load_misaligned_state_dict`: a trained policy continues with a different observation layout."""

import pytest
import torch

from st_rl.modules import EmpiricalNormalization, EncoderStateAc, EncoderStateAcRecurrent, StateAc
from st_rl.modules.policy.misaligned import load_misaligned_normalizer

OLD = {"pose": 4, "velocity": 2, "contact": 3}
OLD_CRITIC = {"velocity": 2, "pose": 4, "mass": 1}
# Another order, a new first component, and one component of another width.
NEW = {"scan": 5, "contact": 3, "pose": 4, "velocity": 2}
NEW_CRITIC = {"mass": 2, "pose": 4, "scan": 5, "velocity": 2}
SETTINGS = {
    "actor_hidden_dims": [6],
    "critic_hidden_dims": [6],
    "encoder_kwargs": {"hidden_sizes": [5]},
    "encoder_output_size": 3,
    "estimator_obs_components": ["pose", "contact"],
    "estimator_target_components": ["velocity", "pose"],
    "replace_state_prob": 1.0,
}


def make(policy_class, segments, critic_segments, seed=0, **settings):
    torch.manual_seed(seed)
    if policy_class is EncoderStateAcRecurrent:
        settings = {"rnn_hidden_size": 7, **settings}
    return policy_class(
        sum(segments.values()),
        sum(critic_segments.values()),
        2,
        obs_segments=segments,
        critic_obs_segments=critic_segments,
        **{**SETTINGS, "encoder_component_names": ["contact"], **settings},
    )


def moved(obs: torch.Tensor, segments, new_segments) -> torch.Tensor:
    """Rearrange observations to the new layout; components that are new or of another width are random."""
    parts = dict(zip(segments, obs.split(list(segments.values()), dim=-1)))
    random = {name: torch.randn(*obs.shape[:-1], size) for name, size in new_segments.items()}
    same = {name: parts[name] for name in parts if new_segments.get(name) == segments[name]}
    return torch.cat([{**random, **same}[name] for name in new_segments], dim=-1)


@pytest.mark.parametrize("policy_class", [EncoderStateAc, EncoderStateAcRecurrent])
def test_new_policy_acts_as_old_one(policy_class):
    old = make(policy_class, OLD, OLD_CRITIC)
    new = make(policy_class, NEW, {"pose": 4, "scan": 5, "velocity": 2, "mass": 1}, seed=1)
    _, skipped = new.load_misaligned_state_dict(old, OLD, OLD_CRITIC)
    matrices = {"actor": "actor.0.weight", "critic": "critic.0.weight"}
    if policy_class is EncoderStateAcRecurrent:
        matrices = {"actor": "memory_a.rnn.weight_ih_l0", "critic": "memory_c.rnn.weight_ih_l0"}
    assert skipped == [f"{matrices['actor']}[scan]", f"{matrices['critic']}[scan]"]
    for _ in range(3):
        obs, critic_obs = torch.randn(5, 9), torch.randn(5, 7)
        torch.testing.assert_close(new.act_inference(moved(obs, OLD, NEW)), old.act_inference(obs))
        torch.testing.assert_close(
            new.get_estimated_state(), moved(old.get_estimated_state(), OLD_CRITIC_TARGETS, NEW_CRITIC_TARGETS)
        )
        moved_critic_obs = moved(critic_obs, OLD_CRITIC, {"pose": 4, "scan": 5, "velocity": 2, "mass": 1})
        torch.testing.assert_close(new.evaluate(moved_critic_obs), old.evaluate(critic_obs))


OLD_CRITIC_TARGETS = {"velocity": 2, "pose": 4}
NEW_CRITIC_TARGETS = {"pose": 4, "velocity": 2}


def test_components_of_other_width_are_skipped_and_zero():
    old = make(EncoderStateAcRecurrent, OLD, OLD_CRITIC)
    new = make(EncoderStateAcRecurrent, NEW, NEW_CRITIC, seed=1)
    copied, skipped = new.load_misaligned_state_dict(old, OLD, OLD_CRITIC)
    matrix = "memory_c.rnn.weight_ih_l0"
    assert matrix in copied
    assert [f"{matrix}[mass]", f"{matrix}[scan]"] == [name for name in skipped if name.startswith(matrix)]
    columns = new.memory_c.rnn.weight_ih_l0
    assert bool((columns[:, :2] == 0).all())
    assert bool((columns[:, 6:11] == 0).all())
    assert torch.equal(columns[:, 2:6], old.memory_c.rnn.weight_ih_l0[:, 2:6]), "pose"
    assert torch.equal(columns[:, 11:], old.memory_c.rnn.weight_ih_l0[:, :2]), "velocity"


def test_skipped_parameters_are_listed():
    old = make(EncoderStateAcRecurrent, OLD, OLD_CRITIC)
    new = make(EncoderStateAcRecurrent, NEW, NEW_CRITIC, seed=1, rnn_hidden_size=8)
    before = {name: tensor.clone() for name, tensor in new.state_dict().items()}
    copied, skipped = new.load_misaligned_state_dict(old, OLD, OLD_CRITIC)
    assert {"memory_a.rnn.weight_ih_l0", "memory_a.rnn.weight_hh_l0", "actor.0.weight"} <= set(skipped)
    assert {"std", "actor.2.weight", "encoders.0.model.0.weight"} <= set(copied)
    assert torch.equal(new.memory_a.rnn.weight_ih_l0, before["memory_a.rnn.weight_ih_l0"]), "what is skipped stays"


def test_loads_from_policy_without_encoders():
    settings = {name: value for name, value in SETTINGS.items() if not name.startswith("encoder")}
    torch.manual_seed(0)
    old = StateAc(9, 7, 2, obs_segments=OLD, critic_obs_segments=OLD_CRITIC, **settings)
    new = make(EncoderStateAc, OLD, OLD_CRITIC, seed=1)
    copied, skipped = new.load_misaligned_state_dict(old, OLD, OLD_CRITIC)
    assert set(skipped) == {"actor.0.weight[contact]", *(f"encoders.0.{name}" for name in new.encoders[0].state_dict())}
    assert set(copied) == set(old.state_dict())
    assert torch.equal(new.actor[0].weight[:, :6], old.actor[0].weight[:, :6])
    assert not new.actor[0].weight[:, 6:].any()


def test_encoders_are_matched_by_component():
    names = ["contact", "pose"]
    old = make(EncoderStateAc, {"pose": 4, "velocity": 2, "contact": 4}, OLD_CRITIC, encoder_component_names=names)
    new = make(
        EncoderStateAc,
        {"contact": 4, "pose": 4, "velocity": 2},
        OLD_CRITIC,
        encoder_component_names=names[::-1],
        seed=1,
    )
    copied, skipped = new.load_misaligned_state_dict(old, old.obs_segments, OLD_CRITIC)
    assert skipped == []
    assert torch.equal(new.encoders[0].model[0].weight, old.encoders[1].model[0].weight)
    obs = torch.randn(5, 10)
    torch.testing.assert_close(
        new.act_inference(moved(obs, old.obs_segments, new.obs_segments)), old.act_inference(obs)
    )
    assert "encoders.1.model.0.weight" in copied


def test_critic_encoders_are_copied_separately():
    settings = {"encoder_component_names": ["contact", "pose"], "critic_encoder_component_names": ["pose", "mass"]}
    old = make(EncoderStateAc, OLD, OLD_CRITIC, **settings)
    new = make(
        EncoderStateAc, OLD, OLD_CRITIC, seed=1, **settings | {"critic_encoder_component_names": ["mass", "pose"]}
    )
    assert new.load_misaligned_state_dict(old, OLD, OLD_CRITIC)[1] == []
    critic_obs = torch.randn(5, 7)
    torch.testing.assert_close(new.evaluate(critic_obs), old.evaluate(critic_obs))


def test_latent_is_not_matched_with_component_of_same_width():
    """`pose` is 4 wide, raw in one policy and a latent of width 4 in the other."""
    old = make(EncoderStateAc, OLD, OLD_CRITIC, encoder_component_names=["contact"], encoder_output_size=4)
    new = make(EncoderStateAc, OLD, OLD_CRITIC, encoder_component_names=["pose"], encoder_output_size=4, seed=1)
    _, skipped = new.load_misaligned_state_dict(old, OLD, OLD_CRITIC)
    assert {"actor.0.weight[pose]", "actor.0.weight[contact]"} <= set(skipped)
    assert bool((new.actor[0].weight[:, :4] == 0).all())


def test_source_policy_and_segments_are_not_modified():
    old = make(EncoderStateAcRecurrent, OLD, OLD_CRITIC)
    before = {name: tensor.clone() for name, tensor in old.state_dict().items()}
    new = make(EncoderStateAcRecurrent, NEW, NEW_CRITIC, seed=1)
    new.load_misaligned_state_dict(old, OLD, OLD_CRITIC)
    with torch.no_grad():
        for parameter in new.parameters():
            parameter.add_(1.0)
    assert all(torch.equal(before[name], tensor) for name, tensor in old.state_dict().items())


def test_normalizer_statistics_are_matched_by_component():
    old, new = EmpiricalNormalization([9]), EmpiricalNormalization([14])
    old(torch.randn(50, 9) * 3.0 + torch.arange(9.0))
    load_misaligned_normalizer(new, old, NEW, OLD)
    obs = torch.randn(5, 9)
    seen = new.normalize(moved(obs, OLD, NEW)).split(list(NEW.values()), dim=-1)
    expected = dict(zip(OLD, old.normalize(obs).split(list(OLD.values()), dim=-1)))
    for name, part in zip(NEW, seen):
        if name in expected:
            torch.testing.assert_close(part, expected[name])
    assert int(new.count) == 50
    assert torch.equal(new.mean[:5], torch.zeros(5)), "new components keep their own"
