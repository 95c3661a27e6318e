"""Typed training options convert to the runner's dictionary and back."""

import copy

import pytest

from st_rl.algorithms import PPO
from st_rl.cli.support.command_line import UsageError
from st_rl.cli.support.training.training_config import (
    AlgorithmConfig,
    PolicyConfig,
    RunnerConfig,
    TrainingConfig,
    with_settings,
)
from st_rl.modules import ActorCritic, ActorCriticRecurrent, EncoderActorCritic
from st_rl.runners.setup.train_config import RUNNER_KEYS, read_train_config
from st_rl.utils.config import accepted_keys


@pytest.mark.parametrize("task", ["balance", "quadruped-walk"])
def test_task_configuration_round_trip(task):
    from st_rl.sim.tasks import TASKS

    given = TASKS[task].training_config()
    before = copy.deepcopy(given)
    result = TrainingConfig.from_dict(given).to_dict()
    assert given == before
    assert result["strict"] is True
    for key, value in given.items():
        if key in ("policy", "algorithm"):
            for name, setting in value.items():
                assert result[key][name] == setting, name
        else:
            assert result[key] == value, key
    again = TrainingConfig.from_dict(result).to_dict()
    assert again == result


def test_strict_runner_accepts_the_dictionary():
    read_train_config(TrainingConfig().to_dict())


def test_every_option_is_read():
    import dataclasses

    names = {f.name for f in dataclasses.fields(RunnerConfig)}
    assert names - {"max_iterations"} <= RUNNER_KEYS
    assert {f.name for f in dataclasses.fields(AlgorithmConfig)} - {"class_name"} <= accepted_keys(PPO)
    others = accepted_keys(ActorCriticRecurrent) | accepted_keys(EncoderActorCritic)
    assert {f.name for f in dataclasses.fields(PolicyConfig)} - {"class_name"} <= accepted_keys(ActorCritic) | others


def test_reads_nested_layout_of_config_json():
    config = {
        "runner": {
            "num_steps_per_env": 7,
            "policy_class_name": "ActorCritic",
            "algorithm_class_name": "PPO",
            "strict": True,
        },
        "policy": {"actor_hidden_dims": [5, 6]},
        "algorithm": {"gamma": 0.5, "desired_kl": None, "my_own": {"a": 1}},
    }
    training = TrainingConfig.from_dict(config)
    assert training.runner.num_steps_per_env == 7
    assert training.policy.actor_hidden_dims == (5, 6)
    assert training.algorithm.class_name == "PPO"
    assert training.algorithm.desired_kl is None
    result = training.to_dict()
    assert result["algorithm"]["my_own"] == {"a": 1}
    assert result["algorithm"]["desired_kl"] is None
    assert "rnn_type" not in result["policy"]


def test_unset_settings_are_omitted():
    result = TrainingConfig(RunnerConfig(keep_last=None)).to_dict()
    assert "keep_last" not in result
    assert "mu_activation" not in result["policy"]


class TestSettings:
    def test_are_set_by_dotted_name(self):
        config = {"algorithm": {"gamma": 0.9, "discriminator_cfg": None}, "policy": {"inner": {"a": 1, "b": 2}}}
        before = copy.deepcopy(config)
        assignments = (
            "algorithm.discriminator_cfg.learning_rate=3e-4",
            'algorithm.discriminator_cfg.schedules={"task_reward_lerp": [[0, 0.1], [9, 0.5]]}',
            "policy.inner.a=true",
            "policy.class_name=AmpActorCritic",
            "new.part.key=[1, 2]",
        )
        result = with_settings(config, assignments)
        assert config == before
        assert result["algorithm"]["gamma"] == 0.9
        assert result["algorithm"]["discriminator_cfg"] == {
            "learning_rate": 3e-4,
            "schedules": {"task_reward_lerp": [[0, 0.1], [9, 0.5]]},
        }
        assert result["policy"] == {"inner": {"a": True, "b": 2}, "class_name": "AmpActorCritic"}
        assert result["new"] == {"part": {"key": [1, 2]}}

    @pytest.mark.parametrize("wrong", ["gamma", "=3", "algorithm.=3"])
    def test_rejects_arguments_that_are_not_assignments(self, wrong):
        with pytest.raises(UsageError, match=r"--set takes dotted\.name=value"):
            with_settings({}, [wrong])
