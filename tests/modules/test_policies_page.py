"""Configurations and code of docs/policies.md work as shown."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml

import st_rl.modules
from st_rl.algorithms import algorithm_classes
from st_rl.modules import build_actor_critic, policy_classes
from st_rl.modules.networks import encoders

PAGE = (Path(__file__).parents[2] / "docs" / "policies.md").read_text()
SEGMENTS = {"base_lin_vel": 3, "forward_depth": (1, 24, 32), "joints": 12, "terrain_scan": 40}
ENV = SimpleNamespace(
    num_obs=3 + 24 * 32 + 12 + 40,
    num_actions=4,
    num_privileged_obs=3 + 24 * 32 + 12 + 40 + 4,
    obs_segments=SEGMENTS,
    critic_obs_segments={**SEGMENTS, "properties": 4},
)
# Keys that the page leaves out.
REST = {"adaptor_target_components": ["properties"], "estimator_target_components": ["base_lin_vel"]}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("number", range(len(blocks("yaml"))))
def test_configurations_shown_build_policies(number):
    shown = yaml.safe_load(blocks("yaml")[number])
    policy_cfg = {**(REST if "mixins" in shown["policy"] else {}), **shown["policy"], "strict": True}
    policy = build_actor_critic(ENV, policy_cfg["class_name"], policy_cfg)
    assert policy.act(torch.randn(2, ENV.num_obs)).shape == (2, 4)
    algorithm = shown.get("algorithm", {"class_name": "PPO"})["class_name"]
    assert algorithm_classes()[algorithm](policy)


def test_encoder_shown_is_used_by_name(monkeypatch):
    monkeypatch.setattr(encoders, "ENCODERS", dict(encoders.ENCODERS))
    exec(next(block for block in blocks("python") if "GatedEncoder" in block), {})
    cfg = {
        "encoder_component_names": ["joints", "forward_depth"],
        "encoder_class_name": "GatedEncoder",
        "encoder_output_size": 5,
    }
    policy = build_actor_critic(ENV, "EncoderActorCritic", cfg)
    obs = torch.randn(2, ENV.num_obs)
    assert policy.act(obs).shape == (2, 4)
    joints, gated = obs[:, 3 + 24 * 32 :][:, :12], policy.encoders_by_component()["joints"]
    expected = gated.value(joints) * torch.sigmoid(gated.gate(joints))
    assert torch.equal(policy.get_encoder_latent(obs, "joints"), expected)


def test_mixin_shown_changes_actor_input():
    namespace = {"EncoderActorCritic": st_rl.modules.EncoderActorCritic}
    exec(next(block for block in blocks("python") if "ScaledMixin" in block), namespace)
    torch.manual_seed(0)
    scaled = namespace["ScaledEncoderActorCritic"](6, 6, 2, actor_hidden_dims=[8], critic_hidden_dims=[8])
    plain = st_rl.modules.EncoderActorCritic(6, 6, 2, actor_hidden_dims=[8], critic_hidden_dims=[8])
    plain.load_state_dict(scaled.state_dict())
    obs = torch.randn(3, 6)
    assert torch.equal(scaled.act_inference(obs), plain.act_inference(0.5 * obs))


def test_every_policy_is_on_the_page():
    hidden = {"ActorCriticMutex", "ActorCriticClimbMutex"}  # documented in docs/parkour.md
    assert [name for name in policy_classes() if f"`{name}`" not in PAGE and name not in hidden] == []
