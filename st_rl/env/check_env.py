"""Checks an environment against the contract of `VecEnv`, before a training depends on it."""

import copy
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from st_rl.env.contract_checks import (
    Violations,
    check_device,
    check_flags,
    check_log,
    check_segments,
    check_size,
    check_tensor,
    equal_with_nan,
)
from st_rl.env.utils import Observations, StepResult, split_observations, split_step
from st_rl.env.vec_env import VecEnv


def check_env(env: VecEnv, num_steps: int = 16, seed: int = 0, raise_on_error: bool = False) -> list[str]:
    """Reset and step an environment and return every violation of the contract of `VecEnv`, one line each.

    Actions are small and random, from a separate generator. Half of the episodes are set close to their end through
    `episode_length_buf`, so that time-outs occur. A `StatefulEnv` must also repeat a few steps exactly. With
    `raise_on_error` the violations are raised as one ValueError. The environment is left in the middle of an episode.
    """
    checker = _EnvChecker(env, num_steps, seed)
    with torch.no_grad():
        checker.run()
    violations = list(checker.violations.values())
    if violations and raise_on_error:
        lines = "\n".join(f"- {violation}" for violation in violations)
        raise ValueError(f"{type(env).__name__} breaks the contract of st_rl.env.VecEnv:\n{lines}")
    return violations


REF_OBS = "observations['ref_obs']"


class _CannotContinueError(Exception):
    """Further checks are impossible; the violation is already recorded."""


class _EnvChecker:
    """Exercises the interface of one environment and collects violations."""

    def __init__(self, env: VecEnv, num_steps: int, seed: int) -> None:
        self.env = env
        self.num_steps = num_steps
        self.generator = torch.Generator().manual_seed(seed)
        self.violations: dict[str, str] = {}
        self.where = ""
        self.num_envs = 0
        self.num_actions = 0
        self.device: torch.device | None = None
        # Declared widths until the first observation, then the widths of that one: a wrong declaration is one
        # violation and does not cause others.
        self.obs_width: int | None = None
        self.critic_width: int | None = None
        self.ref_widths: dict[str, int] = {}
        # The tensors that were returned last, each with a copy.
        self.delivered: list[tuple[torch.Tensor, torch.Tensor]] = []

    def run(self) -> None:
        """Run all checks, or those before the first that makes others impossible."""
        try:
            self._check_sizes()
            self._check_observations("reset()", self.env.reset)
            self._check_observations("get_observations()", self.env.get_observations)
            self._check_segments()
            self._check_episode_length()
            for step in range(self.num_steps):
                self._check_step(f"step {step}", self._actions())
            self._check_state_dict()
        except _CannotContinueError:
            return

    def _note(self, violations: Violations) -> bool:
        """Record violations of a new kind with the step they occurred in; return whether there were any."""
        return bool([self._note_one(*violation) for violation in violations])

    def _note_one(self, kind: str, text: str) -> None:
        """Record one violation, unless one of this kind is recorded."""
        self.violations.setdefault(kind, f"{self.where}: {text}" if self.where else text)

    def _call(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        """Call the environment; an exception is a violation that ends the checks."""
        try:
            return function(*args)
        except Exception as error:  # a client environment may raise anything
            self.where = ""
            self._note_one(f"{name}.raised", f"{name} raised {type(error).__name__}: {error}")
            raise _CannotContinueError from error

    def _read(self, name: str) -> Any:
        """Return an attribute of the environment, None if it is missing."""
        return self._call(name, getattr, self.env, name, None)

    def _actions(self) -> torch.Tensor:
        """Sample actions `(N, A)` on the environment's device."""
        actions = 0.5 * torch.randn(self.num_envs, self.num_actions, generator=self.generator)
        return actions.to(self.device) if self.device is not None else actions

    def _check_sizes(self) -> None:
        for name in ("reset", "get_observations", "step"):
            if not callable(self._read(name)):
                self._note_one(name, f"the method {name}() is missing; derive the class from st_rl.env.VecEnv")
        num_envs, num_actions = self._read("num_envs"), self._read("num_actions")
        self._note(check_size("num_envs", num_envs, "set the number of environments stepped together"))
        self._note(check_size("num_actions", num_actions, "set the width of an action"))
        if self.violations:
            raise _CannotContinueError
        self.num_envs, self.num_actions = num_envs, num_actions
        device = self._read("device")
        try:
            self.device = torch.device(device)
        except (TypeError, RuntimeError):
            self._note_one("device", f"device is {device!r}; set the torch device that holds the environment's tensors")
        num_obs = self._read("num_obs")
        if num_obs is not None and not self._note(check_size("num_obs", num_obs, "set the width of an observation")):
            self.obs_width = num_obs
        num_critic = self._read("num_privileged_obs")
        remedy = "set the width of the critic observation, None or 0 without one"
        if num_critic and not self._note(check_size("num_privileged_obs", num_critic, remedy)):
            self.critic_width = num_critic

    def _check_observations(self, name: str, function: Callable[[], Any]) -> None:
        """Check what `reset()` or `get_observations()` returns."""
        ret = self._call(name, function)
        self.where = name
        result: Observations = self._split(split_observations, ret)
        critic_obs = result.critic_obs
        get_privileged = self._read("get_privileged_observations")
        if critic_obs is None and callable(get_privileged):
            critic_obs = self._call("get_privileged_observations()", get_privileged)
        self._check_groups(result.obs, critic_obs, result.extras)
        if name == "reset()":
            self.obs_width = _width(result.obs, self.obs_width)
            self.critic_width = _width(critic_obs, self.critic_width)

    def _split(self, split: Callable[[Any], Any], ret: object) -> Any:
        """Split what the environment returned; an unknown form is a violation."""
        try:
            return split(ret)
        except (TypeError, ValueError) as error:
            self._note_one("form", str(error))
            raise _CannotContinueError from error

    def _check_groups(self, obs: object, critic_obs: object, extras: Mapping[str, Any]) -> None:
        """Check the observation, the critic observation and the other groups that algorithms read."""
        self.delivered = [(value, value.clone()) for value in (obs, critic_obs) if isinstance(value, torch.Tensor)]
        self._note(check_tensor("observation", obs, (self.num_envs, self.obs_width), self.device))
        if critic_obs is not None:
            self._check_critic(critic_obs)
        elif self.critic_width is not None:
            remedy = "deliver it, or set num_privileged_obs to None"
            announced = f"though one of {self.critic_width} numbers was announced or delivered before; {remedy}"
            self._note_one("critic.missing", f"observations['critic'] is missing, {announced}")
        groups = extras.get("observations")
        if groups is None:
            return
        if groups.get("rnd_state") is not None:
            name = "observations['rnd_state']"
            self._note(check_tensor(name, groups["rnd_state"], (self.num_envs, None), self.device))
        if groups.get("ref_obs") is not None:
            self._check_reference(REF_OBS, groups["ref_obs"])

    def _check_critic(self, critic_obs: object) -> None:
        """Check a critic observation against `num_privileged_obs`."""
        name = "observations['critic']"
        announced = self._read("num_privileged_obs")
        shape = (self.num_envs, self.critic_width)
        if self._note(check_tensor(name, critic_obs, shape, self.device)) or not isinstance(critic_obs, torch.Tensor):
            return
        if not announced and hasattr(self.env, "num_privileged_obs"):
            text = f"{name} has {critic_obs.shape[1]} numbers, but num_privileged_obs is {announced}; set it to that"
            self._note_one("critic.announced", text)

    def _check_reference(self, name: str, value: object) -> None:
        """Check motion features `(N, Da)` or `(N, frames, D)`: one width for all of them."""
        ndim = value.ndim if isinstance(value, torch.Tensor) and value.ndim > 1 else 2
        shape = (self.num_envs, *(None,) * (ndim - 1))
        if self._note(check_tensor(name, value, shape, self.device)) or not isinstance(value, torch.Tensor):
            return
        width = value[0].numel()
        self.ref_widths.setdefault(name, width)
        others = {other: size for other, size in self.ref_widths.items() if size != width}
        for other, size in others.items():
            text = f"{name} has {width} numbers for each environment, but {other} has {size}; both show one motion"
            self._note_one("reference.width", text)

    def _check_segments(self) -> None:
        """Check `obs_segments` and both names of the critic's segments."""
        self.where = ""
        critic_width = self.critic_width or self.obs_width
        widths = {
            "obs_segments": self.obs_width,
            "critic_obs_segments": critic_width,
            "privileged_obs_segments": critic_width,
        }
        found = {name: self._read(name) for name in widths}
        for name, segments in found.items():
            if segments is not None:
                self._note(check_segments(name, segments, widths[name]))
        first, second = found["critic_obs_segments"], found["privileged_obs_segments"]
        if isinstance(first, Mapping) and isinstance(second, Mapping) and list(first.items()) != list(second.items()):
            text = "critic_obs_segments and privileged_obs_segments differ; they are two names of one mapping"
            self._note_one("critic_obs_segments.twin", text)

    def _check_episode_length(self) -> None:
        """Check that episode lengths can be read and set, then move half of the episodes close to their end."""
        self.where = ""
        length = self._read("max_episode_length")
        try:
            max_length = int(length)
        except (TypeError, ValueError, OverflowError):
            max_length = 0
        if max_length < 1:
            text = f"max_episode_length is {length!r}; set the number of steps of the longest episode"
            self._note_one("max_episode_length", text)
        name = "episode_length_buf"
        buffer = self._read(name)
        if not isinstance(buffer, torch.Tensor) or tuple(buffer.shape) != (self.num_envs,):
            shown = f"has shape {tuple(buffer.shape)}" if isinstance(buffer, torch.Tensor) else f"is {buffer!r}"
            self._note_one(name, f"{name} {shown}; it holds the steps of each current episode, ({self.num_envs},)")
            return
        self._note(check_device(name, buffer, self.device))
        value = buffer.clone()
        value[::2] = max(max_length - 2, 0)
        try:
            self.env.episode_length_buf = value
        except AttributeError as error:
            self._note_one(name, f"{name} cannot be set ({error}); give the property a setter")
            return
        if not equal_with_nan(self.env.episode_length_buf.to(value.dtype), value):
            self._note_one(name, f"{name} does not keep the value it is set to")

    def _check_step(self, name: str, actions: torch.Tensor) -> None:
        given = actions.clone()
        ret = self._call("step()", self.env.step, given)
        self.where = name
        if not equal_with_nan(given, actions):
            self._note_one("actions", "step() changed the actions it was given; work on a copy of them")
        if not all(equal_with_nan(value, before) for value, before in self.delivered):
            text = "step() overwrote the observation tensor it returned before; return a new tensor every time"
            self._note_one("observation.overwritten", text)
        result: StepResult = self._split(split_step, ret)
        self._check_groups(result.obs, result.critic_obs, result.infos)
        self._note(check_tensor("rewards", result.rewards, (self.num_envs,), self.device))
        bad_dones = self._note(check_flags("dones", result.dones, self.num_envs, self.device))
        self._check_infos(result.infos, None if bad_dones else result.dones > 0)

    def _check_infos(self, infos: Mapping[str, Any], dones: torch.Tensor | None) -> None:
        time_outs = infos.get("time_outs")
        if time_outs is not None and not self._note(check_flags("time_outs", time_outs, self.num_envs, self.device)):
            alone = torch.zeros(0) if dones is None else ((time_outs > 0) & ~dones.to(time_outs.device)).nonzero()
            if alone.numel() > 0:
                text = f"time_outs is set where dones is not, first in environment {int(alone[0])}"
                self._note_one("time_outs.not_done", f"{text}; a time-out ends the episode")
        if infos.get("ref_motion") is not None:
            self._check_reference("ref_motion", infos["ref_motion"])
        elif REF_OBS in self.ref_widths:
            self._note_one("ref_motion", f"ref_motion is missing, though {REF_OBS} is delivered; both are compared")
        if infos.get("final_observations") is not None:
            self._check_final(infos["final_observations"], dones)
        for name in ("log", "episode"):
            if infos.get(name) is not None:
                self._note(check_log(name, infos[name]))

    def _check_final(self, groups: object, dones: torch.Tensor | None) -> None:
        """Check the last observations of finished episodes; only rows where done matter."""
        name = "final_observations"
        if not isinstance(groups, Mapping):
            self._note_one(name, f"{name} is a {type(groups).__name__}, not a dict of groups like observations")
            return
        needed = "policy" if self.critic_width is None else "critic"
        if groups.get("critic") is None and groups.get(needed) is None:
            text = f"{name} has the groups {sorted(map(str, groups))}, but not `{needed}`, which the critic reads"
            self._note_one(name, text)
        widths = {"policy": self.obs_width, "critic": self.critic_width or self.obs_width}
        for group, width in widths.items():
            if groups.get(group) is not None:
                shape = (self.num_envs, width)
                self._note(check_tensor(f"{name}['{group}']", groups[group], shape, self.device, dones))

    def _check_state_dict(self) -> None:
        """Check that a restored state reproduces the same steps."""
        self.where = ""
        save, load = self._read("state_dict"), self._read("load_state_dict")
        if not callable(save) and not callable(load):
            return
        if not callable(save) or not callable(load):
            missing = "load_state_dict(state)" if callable(save) else "state_dict()"
            self._note_one("state_dict.pair", f"{missing} is missing; an exact resume needs both methods")
            return
        state = self._plain_copy(self._call("state_dict()", save))
        actions = [self._actions() for _ in range(min(self.num_steps, 8))]
        first = list(self._replay(actions))
        self._call("load_state_dict()", load, state)
        for step, (before, after) in enumerate(zip(first, self._replay(actions))):
            if before.keys() == after.keys() and all(equal_with_nan(before[name], after[name]) for name in before):
                continue
            if step == 0:
                text = "after load_state_dict() get_observations() is not the observation of the time of state_dict()"
                self._note_one("state_dict.observation", text)
            else:
                text = f"the same actions give another result {step} steps after load_state_dict()"
                self._note_one("state_dict.replay", f"{text}; state_dict() must hold all that a step depends on")
            return

    def _replay(self, all_actions: Iterable[torch.Tensor]) -> Iterator[dict[str, torch.Tensor]]:
        """Yield copies of the tensors of the current observation, then of a step with each of the actions."""
        yield self._snapshot(split_observations, self._call("get_observations()", self.env.get_observations))
        for actions in all_actions:
            yield self._snapshot(split_step, self._call("step()", self.env.step, actions.clone()))

    def _snapshot(self, split: Callable[[Any], Any], ret: object) -> dict[str, torch.Tensor]:
        """Copy the returned tensors: observations, rewards, dones."""
        result = self._split(split, ret)._asdict()
        return {name: value.clone() for name, value in result.items() if isinstance(value, torch.Tensor)}

    def _plain_copy(self, state: object) -> Any:
        """Return a state after a round trip through a checkpoint; one that a checkpoint refuses is a violation."""
        buffer = io.BytesIO()
        try:
            torch.save(state, buffer)
            buffer.seek(0)
            return torch.load(buffer, weights_only=True)
        except Exception as error:  # torch raises many types here, all with this meaning
            reason = str(error).strip().splitlines()
            text = "state_dict() holds more than tensors, numbers, strings and plain containers; checkpoints refuse it"
            self._note_one("state_dict.content", f"{text} ({reason[0] if reason else type(error).__name__})")
            return copy.deepcopy(state)


def _width(value: object, default: int | None) -> int | None:
    """Return the width of an observation `(N, width)`, or the default for any other value."""
    return value.shape[1] if isinstance(value, torch.Tensor) and value.ndim == 2 else default
