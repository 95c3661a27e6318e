"""Skills trained on `quadruped-parkour`, combined in a mutex policy as in docs/parkour.md."""

import ast
import re
from pathlib import Path

import pytest
import torch

from st_rl.runners import OnPolicyRunner
from st_rl.sim.tasks import make_task
from st_rl.sim.tasks.training import ppo_config

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "parkour.md"
SKILLS = {"walk": (), "step_up": ("step_up",), "step_down": ("step_down",)}


def build(sequences, ids, num_envs=3):
    return make_task(
        "quadruped-parkour", num_envs, observe=("proprioception", "engaging_block"),
        **{"tracks.sequences": sequences, "blocks.ids": ids, "tracks.num_levels": 1, "physics.num_threads": 1},
        **{"noise.level": 0.0},
    )  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with one run for each skill, and the runners that made them."""
    folder, runners = tmp_path_factory.mktemp("skills"), {}
    for name, blocks in SKILLS.items():
        config = ppo_config("skills", 1, (8,), num_mini_batches=1, num_learning_epochs=1)
        config["policy"] |= {"class_name": "ActorCriticRecurrent", "rnn_type": "gru", "rnn_hidden_size": 8}
        env = build({name: blocks}, {"step_up": 1, "step_down": 2})
        runners[name] = OnPolicyRunner(env, config, log_dir=folder / "runs" / name)
        runners[name].learn(1)
        runners[name].close()
    return folder, runners


def shown_policy() -> dict:
    """The configuration of the guide."""
    (block,) = re.findall(r"^```python\n(\"policy\".*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    return ast.literal_eval("{" + block + "}")["policy"]


def play(env, policy, runs, monkeypatch):
    monkeypatch.chdir(runs)
    config = {"num_steps_per_env": 4, "policy": policy, "algorithm": {}}
    player = OnPolicyRunner(env, config).get_inference_policy()
    obs = env.get_observations()[0]
    with torch.inference_mode():
        for _ in range(3):
            obs, _, dones, _ = env.step(player(obs))
            player.reset(dones)
    return player, obs


def test_policy_of_guide_runs(runs, monkeypatch):
    env = build({"mixed": ("step_up", "step_down")}, {"step_up": 1, "step_down": 2})
    player, obs = play(env, shown_policy(), runs[0], monkeypatch)
    assert player(obs).shape == (3, 12)
    assert player.actor_critic.is_recurrent
    assert player.actor_critic.env_action_scale == env.cfg.control.action_scale


def test_policy_of_engaged_block_acts(runs, monkeypatch):
    env = build({"mixed": ("step_up", "step_down")}, {"step_up": 3, "step_down": 3})
    policy = shown_policy() | {"class_name": "ActorCriticClimbMutex", "action_smoothing_buffer_len": 1}
    walk, up, down = policy.pop("sub_policy_paths")
    policy |= {"sub_policy_paths": [walk, walk, walk, up], "jump_down_policy_path": down, "cmd_vel_mapping": {}}
    player, obs = play(env, policy, runs[0], monkeypatch)
    first, second = env._tracks.blocks[0]
    qpos = env.backend.qpos.clone()
    qpos[:, 0] = torch.tensor([0.0, first.start - 0.3, second.start - 0.3])
    env.backend.reset(torch.ones(3, dtype=torch.bool), qpos, torch.zeros_like(env.backend.qvel))
    env._read_state()
    obs = env.compute_observation()[:, : env.num_obs]
    player.actor_critic.clear_hidden_states()
    actions = player(obs)
    for robot, skill in enumerate(("walk", "step_up", "step_down")):
        alone = runs[1][skill].get_inference_policy()
        torch.testing.assert_close(actions[robot], alone(obs)[robot])
