"""Left-right symmetry of a robot: mirror maps from names and signs, augmentation and mirror loss."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from st_rl.modules.normalizer import EmpiricalNormalization

# Words for "left" and their counterparts for "right". A word is a run of letters of one kind: `FL_hip`,
# `left_hip_pitch`, `hip_l`, `leftHip` and `LHipPitch` all carry one. Case does not matter.
SIDE_WORDS: tuple[tuple[str, str], ...] = (
    ("left", "right"),
    ("l", "r"),
    ("fl", "fr"),
    ("rl", "rr"),
    ("hl", "hr"),
    ("bl", "br"),
    ("ml", "mr"),
    ("lf", "rf"),
    ("lh", "rh"),
    ("lm", "rm"),
)

# Signs of joint angles under a mirror in the robot's forward-up plane, for joint axes that point the same way on both
# sides: rotation about the sideways axis (pitch) is kept, about the other two (roll, yaw) it changes sign. The first
# pattern found in a joint's name applies; a bare `hip` is the abduction joint of a quadruped.
JOINT_SIGNS: tuple[tuple[str, int], ...] = (
    ("pitch|flexion|hfe|kfe", 1),
    ("roll|yaw|abduct|abad|haa|twist", -1),
    ("thigh|calf|shank|knee|elbow", 1),
    (r"ankle(_joint)?$", 1),
    (r"(hip|torso|waist)(_joint)?$", -1),
)

# How the parts of a mirrored block change sign.
BLOCK_SIGNS: dict[str, tuple[int, ...]] = {
    "scalar": (1,),
    "vector": (1, -1, 1),  # linear velocity, gravity, force
    "pseudovector": (-1, 1, -1),  # angular velocity, torque
    "command": (1, -1, -1),  # forward and sideways velocity, yaw rate
}

_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")


class MirrorMap(nn.Module):
    """The mirror of a vector: `mirrored[i] = signs[i] * x[permutation[i]]`; mirroring twice gives the vector back."""

    permutation: Tensor
    signs: Tensor

    def __init__(self, permutation: Sequence[int], signs: Sequence[float], names: Sequence[str] | None = None):
        super().__init__()
        _check_involution(permutation, signs, names)
        self.register_buffer("permutation", torch.tensor(list(permutation), dtype=torch.int64), persistent=False)
        self.register_buffer("signs", torch.tensor(list(signs), dtype=torch.float32), persistent=False)

    def __len__(self) -> int:
        """Width of the vectors it mirrors."""
        return self.signs.shape[0]

    def forward(self, x: Tensor) -> Tensor:
        """`x (..., D) -> (..., D)`."""
        if x.shape[-1] != len(self):
            raise ValueError(f"this mirror map is {len(self)} wide, the tensor's last axis {x.shape[-1]}")
        return x.index_select(-1, self.permutation) * self.signs.to(x.dtype)

    def through(self, normalizer: nn.Module) -> "MirrorMap | NormalizedMirror":
        """The mirror map for vectors that `normalizer` has normalized."""
        return NormalizedMirror(self, normalizer) if isinstance(normalizer, EmpiricalNormalization) else self


class NormalizedMirror:
    """Mirrors normalized vectors in raw space, which is exact also if the statistics of the two sides differ.

    It reads the normalizer's current statistics on every call.
    """

    def __init__(self, mirror: MirrorMap, normalizer: EmpiricalNormalization):
        self.mirror = mirror
        self.normalizer = normalizer

    def __call__(self, x: Tensor) -> Tensor:
        """`x (..., D) -> (..., D)`, both normalized."""
        mean, scale = self.normalizer.mean, self.normalizer.std + self.normalizer.eps
        return mirror_normalized(x, self.mirror, mean, scale)


Kind = str | Sequence[float] | Mapping[str, Any] | MirrorMap
"""How a block of an observation is mirrored; see `observation_mirror`."""


def mirror_normalized(x: Tensor, mirror: MirrorMap, mean: Tensor, scale: Tensor) -> Tensor:
    """`(mirror(x * scale + mean) - mean) / scale` for `x (..., D)` and `mean, scale (D,)`."""
    # One gather and one multiply-add on the batch, the rest on single vectors.
    gain = mirror(scale) / scale
    shift = (mirror(mean) - mean) / scale
    return torch.addcmul(shift, x.index_select(-1, mirror.permutation), gain)


def joint_mirror(
    joint_names: Sequence[str],
    signs: Mapping[str, int] | None = None,
    side_words: Sequence[tuple[str, str]] = SIDE_WORDS,
    unpaired: Collection[str] = (),
) -> MirrorMap:
    """The mirror map of joint positions, velocities, torques or actions, in the order of `joint_names`.

    Joints pair up by the words for left and right in their names; a joint without such a word, or listed in
    `unpaired`, maps to itself. `signs` maps regular expressions to 1 or -1 and precedes `JOINT_SIGNS`; the first one
    found in a name applies. ValueError for a joint without a match.
    """
    rules = [*(signs or {}).items(), *JOINT_SIGNS]
    joint_signs = [_joint_sign(name, rules) for name in joint_names]
    return MirrorMap(_pair_sides(joint_names, side_words, unpaired), joint_signs, joint_names)


def observation_mirror(
    obs_segments: Mapping[str, int | Sequence[int]],
    kinds: Mapping[str, "Kind"],
    joints: MirrorMap | None = None,
) -> MirrorMap:
    """The mirror map of an observation, segment by segment.

    A kind says how one block is mirrored; a segment may hold several blocks one after the other (a history):

    - `"joints"`: as the map `joints`,
    - `"scalar"`, `"vector"`, `"pseudovector"`, `"command"`: a name of `BLOCK_SIGNS`, x forward, y left, z up,
    - a sequence of signs,
    - `{"names": [...]}`: one entry per name, left and right exchanged; `"signs"` gives one sign per name, `"each"` a
      name of `BLOCK_SIGNS` or a sequence of signs when an entry is more than one number (forces of the feet),
    - a `MirrorMap`.
    """
    missing = [name for name in obs_segments if name not in kinds]
    unknown = [name for name in kinds if name not in obs_segments]
    if missing or unknown:
        raise ValueError(
            f"every observation segment needs one kind; without one: {missing or 'none'}, "
            f"kinds for segments that do not exist: {unknown or 'none'}; segments: {list(obs_segments)}"
        )
    permutation: list[int] = []
    signs: list[float] = []
    names: list[str] = []
    for name, shape in obs_segments.items():
        width = prod(int(size) for size in shape) if isinstance(shape, Iterable) else int(shape)
        block = _block_mirror(name, kinds[name], joints)
        if width % len(block) != 0:
            raise ValueError(
                f"segment '{name}' is {width} wide, which is not a multiple of the {len(block)} that its kind mirrors"
            )
        for start in range(len(permutation), len(permutation) + width, len(block)):
            permutation += [start + index for index in block.permutation.tolist()]
            signs += block.signs.tolist()
        names += [f"{name}[{index}]" for index in range(width)]
    return MirrorMap(permutation, signs, names)


class Symmetry:
    """The mirror maps of a task: actor observation, critic observation and action."""

    def __init__(
        self,
        obs: MirrorMap | NormalizedMirror,
        actions: MirrorMap,
        critic_obs: MirrorMap | NormalizedMirror | None = None,
    ):
        self.obs = obs
        self.actions = actions
        self.critic_obs = obs if critic_obs is None else critic_obs

    def to(self, device: torch.device | str) -> "Symmetry":
        """Move the maps to a device."""
        for mirror in (self.obs, self.critic_obs, self.actions):
            _raw_mirror(mirror).to(device)
        return self

    def through(self, obs_normalizer: nn.Module, critic_obs_normalizer: nn.Module) -> "Symmetry":
        """The same symmetry for observations that these normalizers have normalized."""
        obs, critic_obs = _raw_mirror(self.obs), _raw_mirror(self.critic_obs)
        return Symmetry(obs.through(obs_normalizer), self.actions, critic_obs.through(critic_obs_normalizer))

    def augment(self, obs: Tensor, critic_obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Each `(M, D)` or `(T, K, D)` and its mirror image behind it on the batch axis: `(2M, D)` or `(T, 2K, D)`."""
        return (
            torch.cat([obs, self.obs(obs)], dim=-2),
            torch.cat([critic_obs, self.critic_obs(critic_obs)], dim=-2),
            torch.cat([actions, self.actions(actions)], dim=-2),
        )

    @staticmethod
    def duplicate(x: Tensor, dim: int = -2) -> Tensor:
        """`x` twice along its batch axis: for what a mirror does not change (log-probabilities, returns, masks)."""
        return torch.cat([x, x], dim=dim)

    def mirror_loss(self, policy_mean: Callable[[Tensor], Tensor], obs: Tensor) -> Tensor:
        """Mean squared difference, 0-d, of the action for mirrored `obs (..., D)` and the mirrored action for `obs`.

        The latter is the target: no gradient flows into it.
        """
        with torch.no_grad():
            target = self.actions(policy_mean(obs))
        return (policy_mean(self.obs(obs)) - target).square().mean()


def _raw_mirror(mirror: MirrorMap | NormalizedMirror) -> MirrorMap:
    return mirror.mirror if isinstance(mirror, NormalizedMirror) else mirror


def _check_involution(permutation: Sequence[int], signs: Sequence[float], names: Sequence[str] | None) -> None:
    size = len(permutation)
    if len(signs) != size or (names is not None and len(names) != size):
        raise ValueError(f"a mirror map needs one sign and name per entry; got {size} entries and {len(signs)} signs")
    label = (
        (lambda index: f"'{names[index]}' (index {index})") if names is not None else (lambda index: f"index {index}")
    )
    for index, (partner, sign) in enumerate(zip(permutation, signs)):
        if not 0 <= partner < size:
            raise ValueError(f"not a mirror: {label(index)} takes its value from index {partner} of {size}")
        if sign not in (1, -1):
            raise ValueError(f"not a mirror: the sign of {label(index)} is {sign}; it must be 1 or -1")
        if permutation[partner] != index:
            raise ValueError(
                f"not a mirror: {label(index)} takes its value from {label(partner)}, which takes its own from index "
                f"{permutation[partner]}; mirroring twice must give everything back, so pairs must exchange"
            )
        if signs[partner] != sign:
            raise ValueError(
                f"not a mirror: {label(index)} has sign {sign} and its partner {label(partner)} has "
                f"{signs[partner]}; mirroring twice must give everything back, so both need the same sign"
            )


def _pair_sides(names: Sequence[str], side_words: Sequence[tuple[str, str]], unpaired: Collection[str]) -> list[int]:
    """The index of the left-right partner of every name; its own index without a partner."""
    swap = {left.lower(): right.lower() for left, right in side_words}
    swap.update({right: left for left, right in swap.items()})
    index_of = {name.lower(): index for index, name in enumerate(names)}
    if len(index_of) != len(names):
        raise ValueError(f"names must differ by more than case, got {list(names)}")
    unknown = [name for name in unpaired if name not in names]
    if unknown:
        raise ValueError(f"unpaired names {unknown} are not among {list(names)}")
    permutation = []
    for index, name in enumerate(names):
        candidates = [] if name in unpaired else _partner_names(name, swap)
        partners = {index_of[candidate] for candidate in candidates if candidate in index_of}
        if len(partners) > 1 or (candidates and not partners):
            raise ValueError(
                f"'{name}' looks like one side of a pair, but {len(partners)} of {candidates} are among the names; "
                "name it in `unpaired` when it sits in the middle, or give your own `side_words`"
            )
        permutation.append(partners.pop() if partners else index)
    return permutation


def _partner_names(name: str, swap: Mapping[str, str]) -> list[str]:
    """The lower-case names that differ from `name` in one word for a side, then with all of them exchanged."""
    words = [match for match in _WORD.finditer(name) if match.group().lower() in swap]
    choices = [[word] for word in words] + ([words] if len(words) > 1 else [])
    candidates = []
    for choice in choices:
        candidate = name.lower()
        for word in reversed(choice):
            candidate = candidate[: word.start()] + swap[word.group().lower()] + candidate[word.end() :]
        candidates.append(candidate)
    return candidates


def _joint_sign(name: str, rules: Sequence[tuple[str, int]]) -> int:
    for pattern, sign in rules:
        if re.search(pattern, name, re.IGNORECASE):
            return sign
    raise ValueError(
        f"no rule says whether joint '{name}' changes sign in the mirror; add one to `signs`, "
        f"e.g. {{'{name}': -1}} for a roll or yaw axis and 1 for a pitch axis"
    )


def _block_mirror(segment: str, kind: Kind, joints: MirrorMap | None) -> MirrorMap:
    """The mirror map of one block of a segment."""
    if isinstance(kind, MirrorMap):
        return kind
    if isinstance(kind, Mapping):
        return _named_mirror(segment, kind)
    if kind == "joints":
        if joints is None:
            raise ValueError(f"segment '{segment}' is of kind 'joints': give the joints' mirror map as `joints`")
        return joints
    signs = _block_signs(segment, kind)
    return MirrorMap(range(len(signs)), signs)


def _block_signs(segment: str, kind: Kind) -> Sequence[float]:
    signs = BLOCK_SIGNS.get(kind, ()) if isinstance(kind, str) else kind
    if not isinstance(signs, Sequence) or len(signs) == 0:
        raise ValueError(
            f"kind {kind!r} of segment '{segment}' is unknown; use 'joints', {', '.join(map(repr, BLOCK_SIGNS))}, "
            "a list of signs, {'names': [...]} or a MirrorMap"
        )
    return signs


def _named_mirror(segment: str, kind: Mapping[str, Any]) -> MirrorMap:
    """One entry per name, exchanged left with right; every entry is a block of `each`."""
    if "names" not in kind or not set(kind) <= {"names", "signs", "each"}:
        raise ValueError(f"segment '{segment}' needs a 'names' list, optional 'signs' and 'each'; got {sorted(kind)}")
    names = list(kind["names"])
    each = _block_signs(segment, kind.get("each", "scalar"))
    outer = MirrorMap(_pair_sides(names, SIDE_WORDS, ()), kind.get("signs") or [1] * len(names), names)
    permutation = [partner * len(each) + part for partner in outer.permutation.tolist() for part in range(len(each))]
    return MirrorMap(permutation, [sign * part for sign in outer.signs.tolist() for part in each])
