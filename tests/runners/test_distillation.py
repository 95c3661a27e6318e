"""Students learn from a privileged teacher; resumed distillations are bit-exact."""

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from st_rl.algorithms import TPPO
from st_rl.modules import EmpiricalNormalization
from st_rl.runners import OnPolicyRunner, build_runner
from st_rl.utils.files import load_checkpoint
from tests.fakes import BLIND_REWARD, ClientEnv
from tests.runners.distillations import STUDENTS, TEACHER, echo_env, make_distillation, save_perfect_teacher
from tests.runners.test_client import client_config, policy_section
from tests.runners.test_host_sync import CpuShortcutsOnly
from tests.runners.training import RND, NoveltyEnv, differences, make_runner, small_config

REPOSITORY = Path(__file__).parents[2]
MEMORY = {"class_name": "ActorCriticRecurrent", "rnn_type": "gru", "rnn_hidden_size": 32}


def student_reward(runner):
    """Mean reward per step of the deterministic student on unseen targets."""
    unseen = echo_env(num_envs=64, seed=99, termination_prob=0.0)
    act = runner.get_inference_policy()
    rewards = []
    with torch.inference_mode():
        obs, _ = unseen.reset()
        for _ in range(40):
            obs, reward, dones, _ = unseen.step(act(obs))
            act.reset(dones)
            rewards.append(reward.mean())
    return torch.stack(rewards).mean().item()


def make_student(tmp_path, policy, **algorithm):
    torch.manual_seed(0)
    path = save_perfect_teacher(tmp_path / "teacher.pt")
    config = {
        "num_steps_per_env": 16,
        "policy": {"actor_hidden_dims": [32], "critic_hidden_dims": [32], "init_noise_std": 0.5, **policy},
        "algorithm": {
            "class_name": "TPPO", "num_learning_epochs": 4, "num_mini_batches": 4, "learning_rate": 3e-3, "gamma": 0.9,
            "lam": 0.9, "teacher_policy": {**TEACHER, "teacher_ac_path": path}, **algorithm,
        },
    }  # fmt: skip
    return OnPolicyRunner(echo_env(num_envs=32, stagger=True), config)


@pytest.mark.parametrize("algorithm", [
    {"using_ppo": False, "teacher_act_prob": "exp", "update_times_scale": 4},
    {"using_ppo": False, "teacher_act_prob": 0.0, "distill_target": "kl"},
    {"teacher_act_prob": "exp", "update_times_scale": 4, "distillation_loss_coef": 3.0},
], ids=["dagger", "kl", "ppo"])  # fmt: skip
def test_recurrent_student_learns_from_privileged_teacher(tmp_path, algorithm):
    runner = make_student(tmp_path, MEMORY, **algorithm)
    assert student_reward(runner) < BLIND_REWARD + 0.05
    runner.learn(10)
    assert student_reward(runner) > 0.9


def test_feed_forward_student_fails_memory_task(tmp_path):
    runner = make_student(tmp_path, {"class_name": "ActorCritic"}, using_ppo=False)
    runner.learn(10)
    assert student_reward(runner) < (19 * BLIND_REWARD + 1.0) / 20 + 0.03


# ---- resuming ----------------------------------------------------------------------------------------------------


def checkpoint(path):
    """A checkpoint without its times."""
    loaded = load_checkpoint(path)
    loaded["runner_state_dict"].pop("tot_time")
    return loaded


@pytest.fixture(scope="module")
def trainings(tmp_path_factory):
    """Folder `whole` with 6 iterations, `parts` with 3 and, from a new process, 3 more, for every kind of student."""
    folder = tmp_path_factory.mktemp("distillation")
    save_perfect_teacher(folder / "teacher.pt")
    for name in STUDENTS:
        for part, iterations in (("whole", 6), ("parts", 3)):
            runner = make_distillation(name, folder / part / name, seed=1)
            runner.learn(iterations)
            runner.close()
    command = [sys.executable, "-m", "tests.runners.distillations", str(folder / "parts")]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("name", STUDENTS)
def test_resume_in_new_process_is_bit_exact(trainings, name):
    whole, parts = (checkpoint(trainings / part / name / "model_6.pt") for part in ("whole", "parts"))
    assert differences(whole, parts) == []
    start = checkpoint(trainings / "parts" / name / "model_3.pt")
    assert differences(start["model_state_dict"], whole["model_state_dict"])
    state = whole["runner_state_dict"]
    assert state["use_teacher_act_mask"].dtype == torch.bool
    assert bool(state["teacher_memory"]) == (name == "old_teacher")
    assert (state["storage"] is not None) == name.startswith("rolling")
    if name.startswith("rolling"):
        assert state["storage"]["num_steps"] == {"rolling_lstm": 12, "rolling_mlp": 10}[name]
        assert bool(state["storage"]["hidden_states"]) == (name == "rolling_lstm")


@pytest.mark.parametrize("name", STUDENTS)
def test_training_reloaded_from_its_start_repeats_exactly(tmp_path, name):
    save_perfect_teacher(tmp_path / "teacher.pt")
    runner = make_distillation(name, tmp_path / "parts" / name, seed=1)
    runner.learn(1)
    runner.save(tmp_path / "first.pt")
    ends = []
    for path in (tmp_path / "once.pt", tmp_path / "again.pt"):
        runner.learn(3)
        runner.save(path)
        ends.append(checkpoint(path))
        runner.load(tmp_path / "first.pt")
    runner.close()
    assert differences(*ends) == []


def test_student_checkpoint_has_no_teacher_weights(trainings):
    saved = checkpoint(trainings / "whole" / "gru" / "model_6.pt")
    teacher = load_checkpoint(trainings / "teacher.pt")
    assert not any(key.startswith("teacher") for key in saved["model_state_dict"])
    # The frozen statistics of the teacher's observations are part of the critic's input.
    assert differences(saved["critic_obs_norm_state_dict"], teacher["obs_norm_state_dict"]) == []


# ---- client configurations ---------------------------------------------------------------------------------------


def test_client_configuration_builds_teacher_and_is_not_modified(tmp_path):
    config = client_config("ActorCriticRecurrent")
    inner = config["algorithm"]
    teacher = {**policy_section("ActorCritic"), "num_actor_obs": 10}
    config["algorithm"] = {
        "class_name": "TPPO",
        "ppo": inner,
        "teacher_policy": teacher,
        "teacher_policy_class_name": "ActorCritic",
        "label_action_with_critic_obs": True,
        "teacher_act_prob": "linear",
        "update_times_scale": 5000,
        "using_ppo": True,
        "distillation_loss_coef": 0.5,
        "distill_latent_obs_component_mapping": None,
        "lr_scheduler_class_name": None,
        "lr_scheduler": None,
    }
    before = copy.deepcopy(config)
    runner = build_runner("OnPolicyRunner", ClientEnv(), config, log_dir=None, device="cpu")
    assert type(runner.alg) is TPPO
    assert isinstance(runner.alg.obs_normalizer, EmpiricalNormalization)
    assert runner.alg.teacher_actor_critic.num_actor_obs == 10
    assert (runner.alg.entropy_coef, runner.alg.schedule) == (inner["entropy_coef"], "adaptive")
    runner.learn(2, init_at_random_ep_len=True)
    assert config == before


@pytest.mark.parametrize("name", STUDENTS)
def test_rollout_and_update_have_no_host_sync(tmp_path, name):
    save_perfect_teacher(tmp_path / "teacher.pt")
    runner = make_distillation(name, tmp_path / "a" / name, seed=1)
    runner.learn(1)  # creates lazily allocated buffers
    if runner.alg.actor_critic.is_recurrent:
        # Static shapes as in a captured update; measuring them is the one host sync of an iteration.
        runner.alg.engine.static_size = lambda measure: 64
    with CpuShortcutsOnly():
        runner._rollout_steps()
        runner.alg.update(1)


def test_rnd_can_be_configured_in_inner_dictionary():
    algorithm = {"class_name": "TPPO", "ppo": {"rnd_cfg": {**RND, "num_states": None}}}
    runner = make_runner(NoveltyEnv(), small_config(algorithm=algorithm))
    runner.learn(1)
    assert runner.alg.rnd is not None
    assert runner.alg.rnd.num_states == runner.alg.storage.rnd_state.shape[-1]
