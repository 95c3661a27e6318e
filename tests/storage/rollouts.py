"""Random rollouts for the storage tests."""

import torch

NUM_ENVS, NUM_STEPS, OBS_DIM, CRITIC_DIM, NUM_ACTIONS = 5, 7, 3, 4, 2


def random_transition(storage, generator, dones=None, hidden_states=None, **extra):
    """A complete random transition for `storage`; `extra` sets further fields."""
    num_envs = storage.num_envs

    def normal(*sizes):
        return torch.randn(num_envs, *sizes, generator=generator)

    transition = storage.Transition()
    transition.observations = normal(*storage.observations.shape[2:])
    if storage.privileged_observations is not None:
        transition.critic_observations = normal(*storage.privileged_observations.shape[2:])
    transition.actions = normal(*storage.actions.shape[2:])
    transition.rewards = normal()
    transition.dones = torch.rand(num_envs, generator=generator) < 0.3 if dones is None else dones
    transition.values = normal(1)
    transition.actions_log_prob = normal()
    transition.action_mean = normal(*storage.actions.shape[2:])
    transition.action_sigma = normal(*storage.actions.shape[2:])
    transition.hidden_states = hidden_states
    for name, value in extra.items():
        setattr(transition, name, value)
    return transition


def fill(storage, num_steps, seed=0, hidden_states=None, extra=None):
    """Add random steps and return the transitions; `hidden_states(step)` and `extra(step)` supply the rest."""
    generator = torch.Generator().manual_seed(seed)
    transitions = []
    for step in range(num_steps):
        transition = random_transition(
            storage,
            generator,
            hidden_states=hidden_states(step) if hidden_states else None,
            **(extra(step) if extra else {}),
        )
        storage.add_transitions(transition)
        transitions.append(transition)
    return transitions
