"""Reference PPO: Python loops over environments and trajectory pieces, no padding, no fused optimizer.

It shares nothing with the library but the layers of the policy it was copied from.
"""

import copy

import torch
from torch import nn
from torch.distributions import Normal


class ReferencePPO:
    """Records a rollout step by step, then updates its own copy of the policy."""

    def __init__(self, policy, **settings):
        layers = copy.deepcopy(policy)
        self.actor, self.critic, self.std = layers.actor, layers.critic, layers.std
        self.rnns = [layers.memory_a.rnn, layers.memory_c.rnn] if policy.is_recurrent else None
        self.layers = layers
        self.settings = {
            "epochs": 1, "mini_batches": 1, "clip": 0.2, "gamma": 0.998, "lam": 0.95, "value_coef": 1.0,
            "entropy_coef": 0.0, "max_grad_norm": 1.0, "clipped_value": True, "schedule": "fixed", "desired_kl": 0.01,
            "min_std": 1e-15, **settings,
        }  # fmt: skip
        self.learning_rate = self.settings.pop("learning_rate", 1e-3)
        self.optimizer = torch.optim.Adam(layers.parameters(), lr=self.learning_rate, fused=False, foreach=False)
        self.states = [None, None]
        self.steps = []

    # ---- collecting ----

    def _rnn_step(self, which, x):
        """Step one RNN for all environments; returns its output and the state before the step."""
        rnn, state = self.rnns[which], self.states[which]
        if state is None:
            zeros = torch.zeros(rnn.num_layers, x.shape[0], rnn.hidden_size)
            state = (zeros, zeros.clone()) if isinstance(rnn, nn.LSTM) else (zeros,)
        output, after = rnn(x[None], state if isinstance(rnn, nn.LSTM) else state[0])
        self.states[which] = after if isinstance(after, tuple) else (after,)
        return output[0], state

    @torch.inference_mode(False)
    @torch.no_grad()
    def step(self, obs, critic_obs, actions, rewards, dones):
        """Record the policy's outputs for one step of all environments, outside of inference mode."""
        actions = actions.clone()
        before = [None, None]
        actor_in, critic_in = obs, critic_obs
        if self.rnns:
            actor_in, before[0] = self._rnn_step(0, obs)
            critic_in, before[1] = self._rnn_step(1, critic_obs)
        distribution = Normal(self.actor(actor_in), self.std)
        self.steps.append(
            {
                "obs": obs, "critic_obs": critic_obs, "actions": actions, "rewards": rewards, "dones": dones.bool(),
                "values": self.critic(critic_in)[:, 0], "log_probs": distribution.log_prob(actions).sum(-1),
                "mean": distribution.mean, "std": self.std.detach().clone(), "states": before,
            }
        )  # fmt: skip
        for which, state in enumerate(self.states):
            if state is not None:
                kept = [leaf.clone() for leaf in state]
                for leaf in kept:
                    for robot in range(leaf.shape[1]):
                        if dones[robot]:
                            leaf[:, robot] = 0
                self.states[which] = tuple(kept)

    @torch.no_grad()
    def finish(self, last_critic_obs):
        """Returns and normalized advantages, `(T, N)` each."""
        critic_in = last_critic_obs
        if self.rnns:
            kept = self.states[1]
            critic_in, _ = self._rnn_step(1, last_critic_obs)
            self.states[1] = kept
        following = self.critic(critic_in)[:, 0].double()
        gamma, lam = self.settings["gamma"], self.settings["lam"]
        num_steps, num_robots = len(self.steps), len(following)
        returns = torch.zeros(num_steps, num_robots).double()
        for robot in range(num_robots):
            advantage, value_after = 0.0, following[robot].item()
            for t in reversed(range(num_steps)):
                record = self.steps[t]
                goes_on = 0.0 if record["dones"][robot] else 1.0
                value = record["values"][robot].item()
                delta = record["rewards"][robot].item() + goes_on * gamma * value_after - value
                advantage = delta + goes_on * gamma * lam * advantage
                returns[t, robot] = advantage + value
                value_after = value
        values = torch.stack([record["values"] for record in self.steps]).double()
        advantages = returns - values
        std = advantages.std() if advantages.numel() > 1 else torch.tensor(0.0)
        self.returns = returns.float()
        self.advantages = ((advantages - advantages.mean()) / (std + 1e-8)).float()

    # ---- update ----

    def _samples(self, mini_batch, permutation):
        """The `(step, env)` pairs of a mini-batch."""
        num_steps, num_robots = self.returns.shape
        count = self.settings["mini_batches"]
        if self.rnns:
            size = num_robots // count
            robots = range(mini_batch * size, (mini_batch + 1) * size)
            return [(t, n) for n in robots for t in range(num_steps)]
        size = num_steps * num_robots // count
        chosen = permutation[mini_batch * size : (mini_batch + 1) * size].tolist()
        return [(i // num_robots, i % num_robots) for i in chosen]

    def _head_input(self, which, key, samples):
        """Input of a head for every sample; if recurrent, piece by piece from the recorded state."""
        if not self.rnns:
            return torch.stack([self.steps[t][key][n] for t, n in samples])
        outputs = {}
        rnn = self.rnns[which]
        for robot in sorted({n for _, n in samples}):
            begin = 0
            for t in range(len(self.steps)):
                if self.steps[t]["dones"][robot] or t == len(self.steps) - 1:
                    sequence = torch.stack([self.steps[s][key][robot] for s in range(begin, t + 1)])[:, None]
                    state = [leaf[:, robot : robot + 1].contiguous() for leaf in self.steps[begin]["states"][which]]
                    output, _ = rnn(sequence, tuple(state) if isinstance(rnn, nn.LSTM) else state[0])
                    for offset in range(t + 1 - begin):
                        outputs[begin + offset, robot] = output[offset, 0]
                    begin = t + 1
        return torch.stack([outputs[sample] for sample in samples])

    def update(self, permutation=None):
        """All epochs and mini-batches; returns one record per gradient step."""
        records = []
        for _ in range(self.settings["epochs"]):
            for mini_batch in range(self.settings["mini_batches"]):
                records.append(self._learn(self._samples(mini_batch, permutation)))
        self.steps = []
        return records

    def _learn(self, samples):
        s = self.settings

        def old(key):
            return torch.stack([self.steps[t][key][n] for t, n in samples])

        advantages = torch.stack([self.advantages[t, n] for t, n in samples])
        returns = torch.stack([self.returns[t, n] for t, n in samples])
        distribution = Normal(self.actor(self._head_input(0, "obs", samples)), self.std)
        values = self.critic(self._head_input(1, "critic_obs", samples))[:, 0]
        record = {}
        if s["schedule"] == "adaptive":
            old_std = torch.stack([self.steps[t]["std"] for t, _ in samples])
            mean, std = distribution.mean.detach(), distribution.stddev.detach()
            kl = torch.log(std / old_std + 1e-5) + (old_std**2 + (old("mean") - mean) ** 2) / (2 * std**2) - 0.5
            kl = kl.sum(-1).mean().item()
            if kl > 2 * s["desired_kl"]:
                self.learning_rate = max(1e-5, self.learning_rate / 1.5)
            elif 0 < kl < s["desired_kl"] / 2:
                self.learning_rate = min(1e-2, self.learning_rate * 1.5)
            record["kl"] = kl
        ratio = torch.exp(distribution.log_prob(old("actions")).sum(-1) - old("log_probs"))
        clipped = torch.clamp(ratio, 1 - s["clip"], 1 + s["clip"])
        surrogate = torch.maximum(-advantages * ratio, -advantages * clipped).mean()
        value_loss = (values - returns) ** 2
        if s["clipped_value"]:
            near = old("values") + torch.clamp(values - old("values"), -s["clip"], s["clip"])
            value_loss = torch.maximum(value_loss, (near - returns) ** 2)
        value_loss = value_loss.mean()
        entropy = distribution.entropy().sum(-1).mean()
        total = surrogate + s["value_coef"] * value_loss - s["entropy_coef"] * entropy

        self.optimizer.zero_grad()
        total.backward()
        parameters = list(self.layers.parameters())
        norm = torch.sqrt(sum((p.grad.double() ** 2).sum() for p in parameters)).item()
        for p in parameters:
            p.grad *= min(1.0, s["max_grad_norm"] / (norm + 1e-6))
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate
        self.optimizer.step()
        with torch.no_grad():
            self.std.clamp_(min=s["min_std"])
        record |= {"surrogate_loss": surrogate.item(), "value_loss": value_loss.item(), "entropy": -entropy.item()}
        return record | {"total_loss": total.item(), "learning_rate": self.learning_rate, "norm": norm}
