"""Mirror maps, augmentation and mirror loss."""

import numpy as np
import pytest
import torch
from torch import nn

from st_rl.modules.normalizer import EmpiricalNormalization
from st_rl.modules.symmetry import MirrorMap, Symmetry, joint_mirror, mirror_normalized, observation_mirror
from tests.modules.graph_safety import NoHostSync

QUADRUPED = [f"{leg}_{joint}_joint" for leg in ("FL", "FR", "RL", "RR") for joint in ("hip", "thigh", "calf")]
HUMANOID = [
    "waist_yaw_joint",
    *[
        f"{side}_{joint}_joint"
        for side in ("left", "right")
        for joint in ("hip_pitch", "hip_roll", "hip_yaw", "knee", "ankle_pitch", "ankle_roll", "shoulder_roll", "elbow")
    ],
]


def by_name(mirror, names, x):
    """Result of the map on a vector, as a dictionary."""
    return dict(zip(names, mirror(torch.tensor(x)).tolist()))


# --- MirrorMap -------------------------------------------------------------------------------------------------------


def test_map_permutes_and_flips_signs():
    mirror = MirrorMap([1, 0, 2], [1, 1, -1])
    x = torch.tensor([[1.0, 2.0, 3.0]])
    assert mirror(x).tolist() == [[2.0, 1.0, -3.0]]
    assert x.tolist() == [[1.0, 2.0, 3.0]]
    assert mirror(x.double()).dtype == torch.float64
    assert mirror(torch.randn(4, 5, 3)).shape == (4, 5, 3)
    assert not mirror.state_dict()


@pytest.mark.parametrize(
    ("permutation", "signs", "message"),
    [
        ([1, 2, 0], [1, 1, 1], r"'a' \(index 0\).*'b' \(index 1\)"),
        ([0, 0, 2], [1, 1, 1], r"'b' \(index 1\)"),
        ([1, 0, 2], [1, -1, 1], r"'a' \(index 0\) has sign 1 .*'b' \(index 1\) has -1"),
        ([0, 1, 3], [1, 1, 1], r"'c' \(index 2\).*index 3 of 3"),
        ([0, 1, 2], [1, 0.5, 1], r"'b' \(index 1\) is 0\.5"),
        ([0, 1, 2], [1, 1], "2 signs"),
    ],
)
def test_rejects_map_that_is_not_an_involution(permutation, signs, message):
    with pytest.raises(ValueError, match=message):
        MirrorMap(permutation, signs, ["a", "b", "c"])


def test_rejects_wrong_width():
    with pytest.raises(ValueError, match="3 wide, the tensor's last axis 1"):
        MirrorMap([0, 1, 2], [1, 1, 1])(torch.zeros(5, 1))


# --- joints ----------------------------------------------------------------------------------------------------------


def test_quadruped_joints():
    values = np.arange(1.0, 13.0)
    mirrored = by_name(joint_mirror(QUADRUPED), QUADRUPED, values)
    given = dict(zip(QUADRUPED, values))
    for mine, other in (("FL", "FR"), ("FR", "FL"), ("RL", "RR"), ("RR", "RL")):
        assert mirrored[f"{mine}_hip_joint"] == -given[f"{other}_hip_joint"]
        assert mirrored[f"{mine}_thigh_joint"] == given[f"{other}_thigh_joint"]
        assert mirrored[f"{mine}_calf_joint"] == given[f"{other}_calf_joint"]


def test_humanoid_joints():
    values = np.arange(1.0, len(HUMANOID) + 1.0)
    mirrored = by_name(joint_mirror(HUMANOID), HUMANOID, values)
    given = dict(zip(HUMANOID, values))
    assert mirrored["waist_yaw_joint"] == -given["waist_yaw_joint"]
    flips = {"hip_roll", "hip_yaw", "ankle_roll", "shoulder_roll"}
    for joint in ("hip_pitch", "hip_roll", "hip_yaw", "knee", "ankle_pitch", "ankle_roll", "shoulder_roll", "elbow"):
        sign = -1 if joint in flips else 1
        assert mirrored[f"left_{joint}_joint"] == sign * given[f"right_{joint}_joint"]
        assert mirrored[f"right_{joint}_joint"] == sign * given[f"left_{joint}_joint"]


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("LF_HAA", "RF_HAA"),
        ("lh_kfe", "rh_kfe"),
        ("l_knee", "r_knee"),
        ("knee_l", "knee_r"),
        ("knee_left", "knee_right"),
        ("leftKnee", "rightKnee"),
        ("LHipPitch", "RHipPitch"),
        ("robot/left_knee", "robot/right_knee"),
        # the second `r` stands for roll: only a swap that gives a known name counts
        ("left_elbow_r", "right_elbow_r"),
    ],
)
def test_naming_conventions(left, right):
    assert joint_mirror([left, "torso_roll", right]).permutation.tolist() == [2, 1, 0]


def test_given_signs_take_precedence_and_side_words_replace_defaults():
    names = ["port_flap", "starboard_flap", "rudder"]
    mirror = joint_mirror(names, signs={"flap$": 1, "r.dder": -1}, side_words=[("port", "starboard")])
    assert mirror.permutation.tolist() == [1, 0, 2]
    assert mirror.signs.tolist() == [1.0, 1.0, -1.0]
    assert joint_mirror(["left_knee", "right_knee"], signs={"knee": -1}).signs.tolist() == [-1.0, -1.0]


def test_error_names_ambiguous_joints():
    with pytest.raises(ValueError, match=r"'FL_calf_joint'.*fr_calf_joint.*unpaired"):
        joint_mirror(["FL_calf_joint", "torso_roll"])
    with pytest.raises(ValueError, match=r"joint 'left_gripper'.*signs"):
        joint_mirror(["left_gripper", "right_gripper"])
    with pytest.raises(ValueError, match=r"'left_knee' .*'right_knee' .* -1"):
        joint_mirror(["left_knee", "right_knee"], signs={"right": -1})
    assert joint_mirror(["torso_r"], signs={"_r$": -1}, unpaired=["torso_r"]).permutation.tolist() == [0]
    with pytest.raises(ValueError, match="nobody"):
        joint_mirror(["torso_roll"], unpaired=["nobody"])


# --- observations ----------------------------------------------------------------------------------------------------

SEGMENTS = {
    "lin_vel": 3,
    "ang_vel": (3,),
    "gravity": [3],
    "command": 3,
    "joint_history": (2, 12),
    "phase": 2,
    "contacts": 4,
    "foot_forces": (4, 3),
    "custom": 2,
}
KINDS = {
    "lin_vel": "vector",
    "ang_vel": "pseudovector",
    "gravity": [1, -1, 1],
    "command": "command",
    "joint_history": "joints",
    "phase": "scalar",
    "contacts": {"names": ["FL", "FR", "RL", "RR"]},
    "foot_forces": {"names": ["FL_foot", "FR_foot", "RL_foot", "RR_foot"], "each": "vector"},
    "custom": MirrorMap([1, 0], [-1, -1]),
}


def mirror_by_hand(x):
    """Mirror of an observation with the segments above, in NumPy."""
    legs = [1, 0, 3, 2]
    parts = np.split(x, np.cumsum([3, 3, 3, 3, 24, 2, 4, 12, 2])[:-1], axis=-1)
    lead = x.shape[:-1]
    joints = parts[4].reshape(*lead, 2, 4, 3)[..., legs, :] * np.array([-1, 1, 1])
    forces = parts[7].reshape(*lead, 4, 3)[..., legs, :] * np.array([1, -1, 1])
    return np.concatenate(
        [
            parts[0] * [1, -1, 1],
            parts[1] * [-1, 1, -1],
            parts[2] * [1, -1, 1],
            parts[3] * [1, -1, -1],
            joints.reshape(*lead, 24),
            parts[5],
            parts[6][..., legs],
            forces.reshape(*lead, 12),
            -parts[8][..., ::-1],
        ],
        axis=-1,
    )


@pytest.mark.parametrize("lead", [(7,), (4, 5)])
def test_observation_mirror(lead):
    mirror = observation_mirror(SEGMENTS, KINDS, joint_mirror(QUADRUPED))
    x = np.random.default_rng(0).normal(size=(*lead, 56)).astype(np.float32)
    np.testing.assert_array_equal(mirror(torch.from_numpy(x)).numpy(), mirror_by_hand(x))
    np.testing.assert_array_equal(mirror(mirror(torch.from_numpy(x))).numpy(), x)


def test_named_signs():
    mirror = observation_mirror({"tails": 3}, {"tails": {"names": ["l", "tail", "r"], "signs": [1, -1, 1]}})
    assert mirror(torch.tensor([1.0, 2.0, 3.0])).tolist() == [3.0, -2.0, 1.0]


@pytest.mark.parametrize(
    ("segments", "kinds", "message"),
    [
        ({"a": 3, "b": 3}, {"a": "vector"}, r"without one: \['b'\]"),
        ({"a": 3}, {"a": "vector", "c": "scalar"}, r"do not exist: \['c'\]"),
        ({"a": 4}, {"a": "vector"}, "'a' is 4 wide.*multiple of the 3"),
        ({"a": 13}, {"a": "joints"}, "'a' is 13 wide.*multiple of the 12"),
        ({"a": 3}, {"a": "tensor"}, "'tensor' of segment 'a' is unknown.*'pseudovector'"),
        ({"a": 3}, {"a": 1}, "kind 1 of segment 'a'"),
        ({"a": 3}, {"a": [1, 2, 1]}, "sign of index 1 is 2"),
        ({"a": 2}, {"a": {"feet": ["l", "r"]}}, "'a' needs a 'names' list"),
        ({"a": 2}, {"a": {"names": ["l", "x"]}}, "'l' looks like one side"),
    ],
)
def test_rejects_invalid_observation_maps(segments, kinds, message):
    with pytest.raises(ValueError, match=message):
        observation_mirror(segments, kinds, joint_mirror(QUADRUPED))


def test_joint_segments_need_joint_mirror():
    with pytest.raises(ValueError, match=r"segment 'a'.*`joints`"):
        observation_mirror({"a": 12}, {"a": "joints"})


# --- normalized observations -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("lead", [(9,), (4, 5)])
def test_mirror_of_normalized_equals_normalized_mirror(lead):
    torch.manual_seed(0)
    mirror = observation_mirror(SEGMENTS, KINDS, joint_mirror(QUADRUPED))
    normalizer = EmpiricalNormalization(56)
    # statistics that differ between left and right
    normalizer(torch.randn(500, 56) * torch.rand(56) * 4 + torch.randn(56))
    normalizer.eval()
    raw = torch.randn(*lead, 56)
    expected = normalizer(torch.from_numpy(mirror_by_hand(raw.numpy())).float())
    mirrored = mirror.through(normalizer)(normalizer(raw))
    torch.testing.assert_close(mirrored, expected, rtol=1e-4, atol=1e-4)
    assert (mirror(normalizer(raw)) - expected).abs().max() > 0.1
    torch.testing.assert_close(mirror_normalized(raw, mirror, torch.zeros(56), torch.ones(56)), mirror(raw))
    # it follows updates of the statistics
    normalizer.train()(torch.randn(500, 56))
    normalizer.eval()
    expected = normalizer(torch.from_numpy(mirror_by_hand(raw.numpy())).float())
    torch.testing.assert_close(mirror.through(normalizer)(normalizer(raw)), expected, rtol=1e-4, atol=1e-4)


def test_map_is_unchanged_without_normalizer():
    mirror = MirrorMap([1, 0], [1, 1])
    assert mirror.through(nn.Identity()) is mirror


# --- Symmetry --------------------------------------------------------------------------------------------------------


def make_symmetry():
    obs = MirrorMap([1, 0, 2], [1, 1, -1])
    return Symmetry(obs, actions=MirrorMap([1, 0], [-1, -1]), critic_obs=MirrorMap([0, 2, 1, 3], [-1, 1, 1, 1]))


@pytest.mark.parametrize("lead", [(6,), (4, 5)])
def test_augment_appends_mirror_image_on_batch_axis(lead):
    symmetry = make_symmetry()
    obs, critic_obs, actions = torch.randn(*lead, 3), torch.randn(*lead, 4), torch.randn(*lead, 2)
    augmented = symmetry.augment(obs, critic_obs, actions)
    batch = lead[-1]
    mirrored = (
        torch.stack([obs[..., 1], obs[..., 0], -obs[..., 2]], dim=-1),
        torch.stack([-critic_obs[..., 0], critic_obs[..., 2], critic_obs[..., 1], critic_obs[..., 3]], dim=-1),
        torch.stack([-actions[..., 1], -actions[..., 0]], dim=-1),
    )
    for result, original, image in zip(augmented, (obs, critic_obs, actions), mirrored):
        assert result.shape == (*lead[:-1], 2 * batch, original.shape[-1])
        assert torch.equal(result[..., :batch, :], original)
        assert torch.equal(result[..., batch:, :], image)
    values = torch.randn(*lead, 1)
    assert torch.equal(symmetry.duplicate(values)[..., batch:, :], values)


def test_critic_map_defaults_to_actor_map():
    mirror = MirrorMap([1, 0], [1, 1])
    assert Symmetry(mirror, mirror).critic_obs is mirror


def test_mirrors_through_normalizers():
    torch.manual_seed(0)
    symmetry = make_symmetry()
    obs_normalizer, critic_normalizer = EmpiricalNormalization(3), EmpiricalNormalization(4)
    obs_normalizer(3 * torch.randn(50, 3) + torch.randn(3))
    critic_normalizer(3 * torch.randn(50, 4) + torch.randn(4))
    normalised = symmetry.through(obs_normalizer.eval(), critic_normalizer.eval())
    obs, critic_obs, actions = torch.randn(6, 3), torch.randn(6, 4), torch.randn(6, 2)
    expected = symmetry.augment(obs, critic_obs, actions)
    with NoHostSync():
        result = normalised.augment(obs_normalizer(obs), critic_normalizer(critic_obs), actions)
    torch.testing.assert_close(result[0], obs_normalizer(expected[0]), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(result[1], critic_normalizer(expected[1]), rtol=1e-4, atol=1e-5)
    assert torch.equal(result[2], expected[2])
    assert normalised.to("cpu") is normalised
    # a second call replaces the normalizers
    assert normalised.through(nn.Identity(), nn.Identity()).obs is symmetry.obs


@pytest.mark.parametrize("lead", [(6,), (4, 5)])
def test_mirror_loss(lead):
    torch.manual_seed(0)
    symmetry, policy = make_symmetry(), nn.Linear(3, 2)
    obs = torch.randn(*lead, 3)
    weight, bias = policy.weight.detach().double().numpy(), policy.bias.detach().double().numpy()
    x = obs.double().numpy().reshape(-1, 3)
    total, gradient = 0.0, np.zeros((2, 3))
    for row in x:
        action, image = weight @ row + bias, np.array([row[1], row[0], -row[2]])
        error = weight @ image + bias - np.array([-action[1], -action[0]])
        total += (error**2).sum()
        # the mirrored action is the target: only the policy on the mirror image gets gradients
        gradient += 2 * np.outer(error, image)
    loss = symmetry.mirror_loss(policy, obs)
    assert loss.shape == ()
    assert loss.item() == pytest.approx(total / (2 * len(x)), rel=1e-5)
    np.testing.assert_allclose(torch.autograd.grad(loss, policy.weight)[0].numpy(), gradient / (2 * len(x)), rtol=1e-4)


def test_mirror_loss_of_a_symmetric_policy_is_zero():
    symmetry = make_symmetry()

    def symmetric_policy(obs):
        return torch.stack([obs[..., 0] + obs[..., 2], -obs[..., 1] + obs[..., 2]], dim=-1)

    assert symmetry.mirror_loss(symmetric_policy, torch.randn(9, 3)) < 1e-12
