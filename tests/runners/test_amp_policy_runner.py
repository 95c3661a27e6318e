"""`AmpPolicyRunner`, and the archived AMP configuration of a client from end to end."""

import copy
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from st_rl.algorithms import APPO
from st_rl.runners import AmpPolicyRunner, OnPolicyRunner, build_runner
from tests.fakes import ClientEnv, EchoEnv
from tests.runners.amp_trainings import OPTIONS, archived_config, make_training
from tests.runners.test_client import MetricWrapper
from tests.runners.test_host_sync import CpuShortcutsOnly
from tests.runners.test_resume import checkpoint
from tests.runners.training import differences, progress, small_config

REPOSITORY = Path(__file__).parents[2]
AMP = {"input_dim": 42, "style_reward_coef": 0.5, "hidden_dims": [16, 8]}


@pytest.fixture(scope="module")
def trainings(tmp_path_factory):
    """Folder `whole` with 6 iterations, `parts` with 3 and, from a new process, 3 more."""
    folder = tmp_path_factory.mktemp("amp")
    for name in OPTIONS:
        for part, iterations in (("whole", 6), ("parts", 3)):
            runner = make_training(name, folder / part / name, seed=1)
            runner.learn(iterations)
            runner.close()
    command = [sys.executable, "-m", "tests.runners.amp_trainings", str(folder / "parts")]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return folder


class TestClient:
    def test_archived_configuration_trains_and_is_not_modified(self, caplog):
        config = archived_config()
        untouched, dump = copy.deepcopy(config), pickle.dumps(config)
        runner = build_runner(config["runner_class_name"], ClientEnv(), config, log_dir=None, device="cpu")
        velrmsd, cot = runner.learn(num_learning_iterations=2, init_at_random_ep_len=True)
        assert isinstance(runner, AmpPolicyRunner)
        assert isinstance(runner.alg, APPO)
        assert runner.alg.amp_obs_dim == 42
        assert config == untouched
        assert pickle.dumps(config) == dump
        assert len(velrmsd.cpu().numpy().tolist()) == len(cot.cpu().numpy().tolist()) == 1
        warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert not [message for message in warnings if "unknown key" in message]
        assert len(warnings) == 1, "one line for the keys of other parts"
        assert "bc_loss_coef" in warnings[0]

    @pytest.mark.parametrize("name", OPTIONS)
    def test_resume_in_new_process_is_bit_exact(self, trainings, name):
        whole, parts = (checkpoint(trainings / part / name / "model_6.pt") for part in ("whole", "parts"))
        assert differences(whole, parts) == []
        keys = {key for key in whole if key.startswith(("ref_", "discriminator_"))}
        own = {"discriminator_optimizer_state_dict", "discriminator_replay_state_dict"}
        assert keys == {"ref_obs_norm_state_dict"} | (own if name == "options" else set())
        start = checkpoint(trainings / "parts" / name / "model_3.pt")
        assert differences(start["ref_obs_norm_state_dict"], whole["ref_obs_norm_state_dict"])
        assert any(key.startswith("discriminator.trunk") for key in whole["model_state_dict"])

    @pytest.mark.parametrize("name", OPTIONS)
    def test_discriminator_statistics_are_logged_every_iteration(self, trainings, name):
        rows = progress(trainings / "whole" / name)
        assert len(rows) == 6
        tags = {
            "Train/amp_policy_pred", "Train/amp_expert_pred", "Train/amp_policy_accuracy", "Train/amp_expert_accuracy",
            "Train/amp_gradient_norm", "Episode_Reward/style_reward", "Episode_Reward/task_reward",
            "Loss/discriminator_expert_loss", "Loss/discriminator_policy_loss", "Loss/discriminator_grad_len_loss",
            "Loss/mimic_loss",
        }  # fmt: skip
        for row in rows:
            assert tags <= set(row)
        # Episode rewards are those of the task.
        assert float(rows[-1]["Train/mean_reward_each_timestep"]) < 1.0
        parts = progress(trainings / "parts" / name)
        for tag in tags:
            assert [row[tag] for row in parts] == [row[tag] for row in rows]

    def test_on_policy_runner_plays_without_reference(self, trainings):
        inner = ClientEnv(num_envs=3, seed=5)
        env = MetricWrapper(inner)
        inner.extras.pop("ref_motion")
        inner.extras["observations"].pop("ref_obs")
        runner = OnPolicyRunner(env, archived_config(), log_dir=None, device="cpu")
        runner.load(str(trainings / "whole" / "archived" / "model_6.pt"))
        policy = runner.get_inference_policy(device="cpu")
        obs, _ = env.get_observations()
        with torch.inference_mode():
            for _ in range(12):
                actions = policy(obs)
                assert actions.shape == (3, 3)
                obs, _, dones, _ = env.step(actions)
                policy.reset(dones)

    def test_on_policy_runner_trains_identically(self):
        ends = []
        for name in ("OnPolicyRunner", "AmpPolicyRunner"):
            torch.manual_seed(0)
            runner = build_runner(name, ClientEnv(), archived_config(), log_dir=None)
            runner.learn(2)
            ends.append(runner.alg.state_dict())
        assert differences(*ends) == []


class TestChecks:
    def config(self, **policy):
        return small_config(
            {"class_name": "AmpActorCritic", "amp_discriminator": AMP, **policy}, {"class_name": "APPO"}
        )

    def test_no_warning_for_valid_configuration(self, caplog):
        AmpPolicyRunner(ClientEnv(), self.config(), log_dir=None)
        assert not [record for record in caplog.records if record.levelname == "WARNING"]

    def test_warns_about_missing_features(self, caplog):
        AmpPolicyRunner(EchoEnv(), self.config(), log_dir=None)
        assert "delivers no observations['ref_obs']" in caplog.text

    def test_warns_about_features_of_other_width(self, caplog):
        config = self.config(amp_discriminator={**AMP, "input_dim": 40})
        AmpPolicyRunner(ClientEnv(), config, log_dir=None)
        assert "observations['ref_obs'] of shape (8, 2, 21), 42 values per environment" in caplog.text
        assert "expects 40" in caplog.text

    def test_warns_about_missing_discriminator(self, caplog):
        AmpPolicyRunner(EchoEnv(), small_config(), log_dir=None)
        assert "PPO has none; use APPO or ATPPO" in caplog.text


class BrokenReference(ClientEnv):
    """Has a NaN in the motion features of one step."""

    def step(self, actions):
        outcome = super().step(actions)
        if self.env.num_steps_done == 3:
            for holder, name in ((self.extras, "ref_motion"), (self.extras["observations"], "ref_obs")):
                broken = holder[name].clone()
                broken[2].fill_(float("nan"))
                holder[name] = broken
        return outcome


def test_non_finite_motion_features_are_replaced_and_reported(caplog):
    runner = build_runner("AmpPolicyRunner", BrokenReference(), archived_config(), log_dir=None)
    runner.learn(2)
    assert "1 of 64 rows of ref_obs (first at step 2 of the rollout)" in caplog.text
    assert "1 of 64 rows of ref_motion" in caplog.text
    assert all(torch.isfinite(value).all() for value in runner.alg.actor_critic.state_dict().values())
    assert all(torch.isfinite(value).all() for value in runner.alg.ref_obs_normalizer.state_dict().values())


@pytest.mark.parametrize("name", OPTIONS)
def test_rollout_and_update_have_no_host_sync(name):
    config = archived_config({**(OPTIONS[name] or {}), "saturation_patience": 10})
    runner = build_runner("AmpPolicyRunner", ClientEnv(), config, log_dir=None)
    runner.learn(1)
    runner.env.step = _without_item(runner.env.step)
    capacity = int(runner.alg.storage.max_trajectories(2)) + 64
    runner.alg.engine.static_size = lambda measure: capacity
    with CpuShortcutsOnly():
        runner._rollout_steps()
        losses, _ = runner.alg.update(1)
    assert all(torch.isfinite(value) for value in losses.values())


def _without_item(step):
    """Exclude the client's environment, which reads values on the host."""
    from torch.utils._python_dispatch import _disable_current_modes

    def unwatched(actions):
        with _disable_current_modes():
            return step(actions)

    return unwatched
