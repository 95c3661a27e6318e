"""A fake of manager-based environments of Isaac Lab and mjlab."""

from types import SimpleNamespace

import torch

NUM_ENVS, LIMIT = 6, 9
TERMS = {"joint_pos": (4,), "command": (2,)}
PRIVILEGED = {**TERMS, "scan": (2, 3)}


class Managed:
    """Command-tracking task with the interface of Isaac Lab and mjlab."""

    def __init__(self, actor="policy", critic="critic", joined=True, finite=False, num_envs=NUM_ENVS, camera=None):
        self.unwrapped = self
        self.cfg = SimpleNamespace(is_finite_horizon=finite)
        self.num_envs, self.device, self.max_episode_length = num_envs, "cpu", LIMIT
        self.action_manager = SimpleNamespace(total_action_dim=2)
        self.terms = {actor: TERMS, **({critic: PRIVILEGED} if critic else {})}
        self.camera = camera
        self.observation_manager = SimpleNamespace(
            active_terms={group: list(terms) for group, terms in self.terms.items()},
            group_obs_term_dim={group: list(terms.values()) for group, terms in self.terms.items()},
        )
        if camera:
            # Two terms, concatenated along the channels.
            channel = (camera[0] // 2, *camera[1:])
            self.observation_manager.active_terms["camera"] = ["depth", "mask"]
            self.observation_manager.group_obs_term_dim["camera"] = [channel, channel]
        self.joined = joined
        self.generator = torch.Generator().manual_seed(0)
        self.episode_length_buf = torch.zeros(num_envs, dtype=torch.long)
        self.received = []

    def observe(self):
        self.command = torch.rand(self.num_envs, 2, generator=self.generator) - 0.5
        values = {
            name: torch.randn(self.num_envs, *shape, generator=self.generator) for name, shape in PRIVILEGED.items()
        }
        values["command"] = self.command
        groups = {group: {name: values[name] for name in terms} for group, terms in self.terms.items()}
        if self.joined:
            groups = {group: torch.cat([v.flatten(1) for v in terms.values()], 1) for group, terms in groups.items()}
        if self.camera:
            groups["camera"] = torch.rand(self.num_envs, *self.camera, generator=self.generator)
        return groups

    def reset(self, seed=None):
        self.episode_length_buf.zero_()
        return self.observe(), {"log": {}}

    def step(self, actions):
        self.received.append(actions)
        rewards = -(actions - self.command).square().sum(dim=1)
        self.episode_length_buf += 1
        truncated = self.episode_length_buf >= LIMIT
        # The first environment terminates at the time-out as well.
        terminated = truncated & (torch.arange(self.num_envs) == 0)
        self.episode_length_buf[truncated] = 0
        return self.observe(), rewards, terminated, truncated, {"log": {"Episode/falls": terminated.float().mean()}}
