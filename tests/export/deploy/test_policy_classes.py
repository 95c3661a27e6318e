"""Every policy class that acts is the same in policy.onnx as in torch: 500 steps in closed loop, with resets."""

import numpy as np
import pytest
import torch

from st_rl.env import ObservationHistory
from st_rl.export import DeployedPolicy
from st_rl.export.deploy import OnnxStep, RawPolicy, record_golden, replay_golden
from st_rl.export.deploy.kit import describe_kit, write_policy
from st_rl.sim.deploy.history_interface import HistoryInterface
from st_rl.utils.files import save_checkpoint, write_json
from tests.export.deploy.kits import deploy, make_golden_task, make_policy

pytest.importorskip("mujoco")
pytest.importorskip("onnxscript")

from st_rl.export.deploy.files import controller

CAMERA = {"camera.height": 8, "camera.width": 10}
CONVOLUTION = {"channels": [3], "kernel_sizes": [3], "strides": [2], "hidden_sizes": [8]}
ENCODER = {"encoder_component_names": ["forward_depth"], "encoder_class_name": "Conv2dHeadModel"}
ENCODER |= {"encoder_kwargs": CONVOLUTION, "encoder_output_size": 6}
ESTIMATOR = {"estimator_target_components": ["base_lin_vel"], "estimator_kwargs": {"hidden_sizes": [9]}}
REPLACED = {**ESTIMATOR, "replace_state_prob": 1.0}
ADAPTOR = {"adaptor_target_components": ["properties"], "adaptor_kwargs": {"hidden_sizes": [9]}}
GRU, LSTM = ({"rnn_type": name, "rnn_hidden_size": 8} for name in ("gru", "lstm"))
VISUAL = {"visual_kwargs": CONVOLUTION, "visual_latent_size": 5}
# Policy class, settings, task, and whether the actor of a walking task sees the linear velocity.
CASES = {
    "mlp": ("ActorCritic", {}, "quadruped-walk", False),
    "bounded": ("ActorCritic", {"action_bound": [0.5, 1.0, 2.0] * 4}, "quadruped-walk", False),
    "gru": ("ActorCriticRecurrent", GRU, "quadruped-walk", False),
    "lstm, two layers": ("ActorCriticRecurrent", {**LSTM, "rnn_num_layers": 2}, "humanoid-walk", False),
    "amp": ("AmpActorCritic", {}, "quadruped-amp", False),
    "encoder": ("EncoderActorCritic", ENCODER, "quadruped-parkour", False),
    "recurrent encoder": ("EncoderActorCriticRecurrent", {**ENCODER, **GRU}, "quadruped-parkour", False),
    "estimator": ("StateAc", REPLACED, "quadruped-walk", True),
    "recurrent estimator": ("StateAcRecurrent", {**REPLACED, **LSTM}, "quadruped-walk", True),
    "estimator on the actor's memory": (
        "StateAcRecurrent",
        {**ESTIMATOR, **GRU, "use_actor_rnn": True},
        "quadruped-walk",
        False,
    ),
    "adaptor": ("PrivilegeStateAcRecurrent", {**ADAPTOR, **REPLACED, **GRU}, "quadruped-walk", True),
    "visual": ("VisualDeterministicAC", VISUAL, "quadruped-parkour", False),
    "recurrent visual": ("VisualDeterministicRecurrent", {**VISUAL, **LSTM}, "quadruped-parkour", False),
}


def make_task(name: str, sees_velocity: bool = False):
    """A task of two robots."""
    return make_golden_task(
        name, 2, observe_linear_velocity=sees_velocity, **(CAMERA if name == "quadruped-parkour" else {})
    )


def assert_same_in_onnx(task, trained, path):
    """Write policy.onnx and replay 500 golden steps with it, alone and in the controller."""
    policy = deploy(task, trained)
    golden = record_golden(policy, trained, task, num_steps=500)
    assert golden["reset"].sum() >= 5
    description = describe_kit(policy, golden, {})
    write_policy(policy, path, description)
    assert replay_golden(OnnxStep(path), golden, description)["joint_targets"] <= 1e-5
    runner = controller.Controller(controller.Policy(path))
    assert controller.replay_golden(runner, golden) <= 1e-5
    return golden


@pytest.mark.parametrize("case", CASES)
def test_policy_class_is_the_same_in_onnx(case, tmp_path):
    name, settings, task_name, sees_velocity = CASES[case]
    if "Amp" in name:
        settings = {"amp_discriminator": {"input_dim": 6, "style_reward_coef": 1.0, "hidden_dims": [4]}}
    task = make_task(task_name, sees_velocity)
    golden = assert_same_in_onnx(task, make_policy(task, name, **settings), tmp_path / "policy.onnx")
    assert np.ptp(golden["joint_targets"], axis=0).min() > 1e-4
    # What an estimator replaces is no input.
    assert "base_lin_vel" not in golden


def test_observation_history_is_the_same_in_onnx(tmp_path):
    env = ObservationHistory(make_task("quadruped-walk"), 4, ["joint_pos", "base_ang_vel"])
    trained = make_policy(env)
    policy = RawPolicy(HistoryInterface(env), DeployedPolicy(trained.actor_critic, trained.obs_normalizer))
    golden = record_golden(policy, trained, env, num_steps=500)
    description = describe_kit(policy, golden, {})
    write_policy(policy, tmp_path / "policy.onnx", description)
    assert replay_golden(OnnxStep(tmp_path / "policy.onnx"), golden, description)["joint_targets"] <= 1e-5
    assert golden["reset"].sum() >= 5
    assert golden["state_history"].shape == (500, 4, 15)


@pytest.fixture
def skills(tmp_path):
    """Run folders of five recurrent skills for the parkour task."""
    task = make_task("quadruped-parkour")
    folders = []
    for index in range(5):
        torch.manual_seed(index)
        trained = make_policy(task, "ActorCriticRecurrent", **GRU)
        folder = tmp_path / f"skill_{index}"
        snapshot = {"model_state_dict": trained.actor_critic.state_dict(), "iter": 1}
        save_checkpoint(snapshot | {"obs_norm_state_dict": trained.obs_normalizer.state_dict()}, folder / "model_1.pt")
        sizes = {"actor_hidden_dims": [16, 16], "critic_hidden_dims": [8], **GRU}
        config = {"runner": {"policy_class_name": "ActorCriticRecurrent"}, "policy": sizes}
        config |= {"control": {"action_scale": 0.2 + 0.1 * index}, "normalization": {"obs_scales": {"lin_vel": 2.0}}}
        write_json(folder / "config.json", config)
        folders.append(str(folder))
    return folders


@pytest.mark.parametrize("smoothing", [1, 4])
def test_skill_switching_is_the_same_in_onnx(skills, smoothing, tmp_path):
    task = make_task("quadruped-parkour")
    settings = {"sub_policy_class_name": "ActorCriticRecurrent", "sub_policy_paths": skills, "env_action_scale": 0.3}
    settings |= {"action_smoothing_buffer_len": smoothing, "cmd_vel_mapping": {1: 0.7}}
    trained = make_policy(task, "ActorCriticFieldMutex", normalized=False, **settings)
    assert_same_in_onnx(task, trained, tmp_path / "policy.onnx")


def test_rejects_sampled_velocities_of_skills(skills):
    from st_rl.export import ExportError

    task = make_task("quadruped-parkour")
    settings = {"sub_policy_class_name": "ActorCriticRecurrent", "sub_policy_paths": skills, "env_action_scale": 0.3}
    trained = make_policy(task, "ActorCriticFieldMutex", normalized=False, cmd_vel_mapping={1: [0.5, 1.0]}, **settings)
    with pytest.raises(ExportError, match="cmd_vel_mapping"):
        deploy(task, trained)
