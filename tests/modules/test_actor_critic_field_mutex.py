"""`ActorCriticFieldMutex` and `ActorCriticClimbMutex`: selection, sub-policy observations, action smoothing."""

import copy
import inspect
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from st_rl.algorithms import TPPO
from st_rl.modules import ActorCritic, ActorCriticClimbMutex, ActorCriticFieldMutex, ActorCriticRecurrent
from st_rl.runners import OnPolicyRunner
from tests.fakes import EchoEnv
from tests.modules.graph_safety import NoHostSync
from tests.modules.mutex_runs import CMD, LAST_ACTION, OBS, SEGMENTS, A, engaged, write_run

SCALES = (0.5, 0.25, 1.0, 0.2, 0.4)
LIN_VEL = (2.0, 1.0, 0.5, 4.0, 3.0)


@pytest.fixture
def folders(tmp_path):
    """Five run folders, the second with normalized observations."""
    return [
        write_run(
            tmp_path / str(i), i, scale=SCALES[i], obs_scales={"lin_vel": LIN_VEL[i], "dof_pos": 9.0}, normalized=i == 1
        )
        for i in range(5)
    ]


def make(folders, cls=ActorCriticFieldMutex, class_name="ActorCritic", **kwargs):
    kwargs = {"env_action_scale": 0.4, "obs_segments": SEGMENTS, **kwargs}
    if cls is ActorCriticClimbMutex:
        return cls(OBS, OBS, A, class_name, sub_policy_paths=folders, **kwargs)
    return cls(OBS, OBS, A, class_name, folders, **kwargs)


def mlp(network, x):
    """A head in float64 NumPy: Linear layers with ELU between them."""
    linears = [layer for layer in network if isinstance(layer, nn.Linear)]
    for number, layer in enumerate(linears):
        x = layer.weight.double().numpy() @ x + layer.bias.double().numpy()
        if number < len(linears) - 1:
            x = np.where(x > 0, x, np.exp(x) - 1)
    return x


def expected_action(policy, row, chosen, velocities, weights, env_scale=0.4):
    """Action of one robot in float64, from the formula."""
    row = row.double().numpy().copy()
    row[LAST_ACTION] *= env_scale / np.float64(np.float32(SCALES[chosen]))
    if chosen in velocities:
        row[CMD] = velocities[chosen] * LIN_VEL[chosen]
    total = np.zeros(A)
    for i, sub_policy in enumerate(policy.submodules):
        seen = row
        if i == 1:
            statistics = policy.sub_normalizers[1]
            seen = (row - statistics.mean.double().numpy()) / (statistics.std.double().numpy() + 1e-2)
        total += mlp(sub_policy.actor, seen) * SCALES[i] / env_scale * weights[i]
    return total


def test_signatures_and_constants():
    field = inspect.signature(ActorCriticFieldMutex).parameters
    assert {name: field[name].default for name in list(field)[1:-1]} == {
        "cmd_vel_mapping": {},
        "reset_non_selected": "all",
        "action_smoothing_buffer_len": 1,
    }
    climb = inspect.signature(ActorCriticClimbMutex).parameters
    assert list(climb)[1:-1] == ["sub_policy_paths", "jump_down_policy_path", "jump_down_vel"]
    assert ActorCriticFieldMutex.CMD_VEL_INDEX == 9
    assert slice(1, 6) == ActorCriticFieldMutex.OBSTACLE_ONEHOT_SLICE
    assert ActorCriticClimbMutex.JUMP_OBSTACLE_ID == 3


class TestSelection:
    def test_selection_is_one_hot_and_first_without_obstacle(self, folders):
        obs = engaged([None, 0, 1, 2, 3, 4])
        selection = make(folders).get_policy_selection(obs)
        assert selection.dtype == torch.bool
        assert selection.int().tolist() == np.eye(5, dtype=int)[[0, 0, 1, 2, 3, 4]].tolist()
        assert torch.equal(obs, engaged([None, 0, 1, 2, 3, 4]))

    def test_selection_keeps_leading_axes(self, folders):
        obs = torch.stack([engaged([2, None]), engaged([1, 4]), engaged([0, 3])], dim=1)
        assert make(folders).get_policy_selection(obs).int().argmax(-1).tolist() == [[2, 1, 0], [0, 4, 3]]

    def test_rejects_obstacle_without_policy(self, folders):
        policy = make(folders[:2])
        assert policy.get_policy_selection(engaged([None, 0, 1])).shape == (3, 2)
        with pytest.raises(ValueError, match=r"obstacle \[3\] is engaged, but there are only 2 sub-policies"):
            policy.get_policy_selection(engaged([0, 3]))

    def test_climb_separates_jump_up_and_down(self, folders):
        policy = make(folders, ActorCriticClimbMutex, jump_down_policy_path=folders[0])
        obs = engaged([None, 3, 3, 3, 4, 1], up=[1.0, 1.0, -1.0, 0.0, -1.0, -1.0])
        assert len(policy.submodules) == 6
        assert policy.get_policy_selection(obs).int().argmax(-1).tolist() == [0, 3, 5, 5, 4, 1]
        assert policy.get_policy_selection(obs).sum(-1).tolist() == [1] * 6

    def test_climb_jump_down_is_last_with_few_obstacles(self, folders):
        policy = make(folders[:4], ActorCriticClimbMutex, jump_down_policy_path=folders[4])
        selection = policy.get_policy_selection(engaged([0, 3, 3], up=[0.0, 1.0, -1.0]))
        assert selection.int().tolist() == [[1, 0, 0, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1]]
        with pytest.raises(ValueError, match=r"obstacle \[4\]"):
            policy.get_policy_selection(engaged([4]))

    def test_climb_without_jump_down_policy_rejects_only_jumps_down(self, folders):
        policy = make(folders, ActorCriticClimbMutex)
        assert policy.get_policy_selection(engaged([3], up=[1.0])).shape == (1, 5)
        with pytest.raises(ValueError, match=r"obstacle \[5\]"):
            policy.get_policy_selection(engaged([3], up=[-1.0]))

    def test_climb_without_paths_has_jump_down_policy_only(self, folders):
        policy = make(None, ActorCriticClimbMutex, jump_down_policy_path=folders[4])
        assert len(policy.submodules) == 1


class TestVelocities:
    MAPPING: ClassVar[dict] = {0: 0.8, "2": [0.5, 1.5], 4: (1.0, 2.0)}

    def test_velocity_is_a_number_or_a_range(self, folders):
        policy = make(folders, cmd_vel_mapping=self.MAPPING)
        assert set(policy.cmd_vel_current) == {0, 2, 4}
        draws = []
        for _ in range(200):
            policy.resample_cmd_vel_current()
            draws.append([policy.cmd_vel_current[i] for i in (0, 2, 4)])
        assert all(isinstance(value, float) for value in draws[0])
        low, high = np.min(draws, axis=0), np.max(draws, axis=0)
        assert low[0] == high[0] == 0.8
        assert 0.5 <= low[1] < 0.6
        assert 1.4 < high[1] <= 1.5
        assert 1.0 <= low[2] < 1.1
        assert 1.9 < high[2] <= 2.0

    @pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
    def test_reset_resamples_velocity_of_done_envs_only(self, folders, dtype):
        policy = make(folders, cmd_vel_mapping=self.MAPPING)
        first = policy.cmd_vel_current[2]
        policy.reset(torch.zeros(6, dtype=dtype))
        assert policy.cmd_vel_current[2].tolist() == pytest.approx([first] * 6)
        policy.reset(torch.tensor([1, 1, 0, 1, 0, 0]).to(dtype))
        drawn = policy.cmd_vel_current[2]
        assert drawn[[2, 4, 5]].tolist() == pytest.approx([first] * 3)
        assert len(set(drawn[[0, 1, 3]].tolist()) | {first}) == 4
        assert drawn.min() >= 0.5
        assert drawn.max() <= 1.5
        assert policy.cmd_vel_current[0].tolist() == pytest.approx([0.8] * 6)

    def test_command_is_overwritten_with_scaled_velocity_of_selected_policy(self, folders):
        policy = make(folders, cmd_vel_mapping={1: 0.7, 3: 1.1})
        policy.reset(torch.ones(4))
        obs = engaged([1, 0, 3, 2])
        before = obs.clone()
        seen = policy.override_cmd_vel(obs, policy.get_policy_selection(obs))
        assert torch.equal(obs, before)
        expected = before.clone()
        expected[0, CMD], expected[2, CMD] = 0.7 * LIN_VEL[1], 1.1 * LIN_VEL[3]
        torch.testing.assert_close(seen, expected)

    def test_climb_jump_down_velocity_defaults_to_jump_up(self, folders):
        def velocities(**kwargs):
            policy = make(folders[:4], ActorCriticClimbMutex, jump_down_policy_path=folders[4], **kwargs)
            policy.reset(torch.tensor([True, False, True]))
            return policy.cmd_vel_current

        same = velocities(cmd_vel_mapping={"3": [0.5, 1.5]})
        assert torch.equal(same[4], same[3])
        assert same[4][0] != same[4][2]
        assert velocities(cmd_vel_mapping={3: 1.0}, jump_down_vel=0.6)[4].tolist() == pytest.approx([0.6] * 3)
        drawn = velocities(jump_down_vel=[0.2, 0.3])[4]
        assert ((drawn >= 0.2) & (drawn <= 0.3)).all()
        assert 4 not in velocities(cmd_vel_mapping={0: 1.0})

    def test_climb_jump_down_is_found_after_all_obstacles(self, folders):
        policy = make([*folders, folders[4]], ActorCriticClimbMutex, cmd_vel_mapping={3: 1.0}, jump_down_vel=0.6)
        assert policy.get_policy_selection(engaged([3], up=[-1.0])).nonzero().tolist() == [[0, 5]]
        assert policy.cmd_vel_current == {3: 1.0, 5: pytest.approx(0.6)}

    def test_no_velocity_mapping_is_empty(self, folders):
        policy = make(folders, cmd_vel_mapping=None)
        obs = engaged([0, 4])
        torch.testing.assert_close(policy.act_inference(obs), make(folders).act_inference(obs))


class TestLastAction:
    def test_is_rescaled_for_selected_policy(self, folders):
        policy = make(folders, env_action_scale=[0.4, 0.2, 0.1])
        obs = engaged([0, 1, 4])
        before = obs.clone()
        seen = policy.recover_last_action(obs, policy.get_policy_selection(obs))
        assert torch.equal(obs, before)
        expected = before.clone()
        for robot, i in enumerate((0, 1, 4)):
            expected[robot, LAST_ACTION] *= torch.tensor([0.4, 0.2, 0.1]) / SCALES[i]
        torch.testing.assert_close(seen, expected)

    def test_is_unchanged_without_selection(self, folders):
        policy, obs = make(folders, env_action_scale=0.9), engaged([0, 1, 4])
        selection = policy.get_policy_selection(obs)
        selection[1] = False
        seen = policy.recover_last_action(obs, selection)
        assert torch.equal(seen[1], obs[1])
        assert not torch.equal(seen[2], obs[2])

    def test_is_unchanged_without_proprioception(self, folders):
        policy = make(folders, obs_segments={"engaging_block": 9, "rest": 18})
        obs = engaged([0, 3])
        assert policy.recover_last_action(obs, policy.get_policy_selection(obs)) is obs


class TestActing:
    def test_actions_equal_selected_policy_rescaled_to_env(self, folders):
        velocities = {0: 0.9, 3: 1.2}
        policy = make(folders, cmd_vel_mapping=velocities)
        chosen = [0, 1, 2, 3, 4, 1]
        obs = engaged(chosen)
        before = obs.clone()
        actions = policy.act_inference(obs)
        assert torch.equal(obs, before)
        assert not actions.requires_grad
        for robot, i in enumerate(chosen):
            expected = expected_action(policy, obs[robot], i, velocities, np.eye(5)[i])
            np.testing.assert_allclose(actions[robot].numpy(), expected, rtol=1e-4, atol=1e-5)
        assert torch.equal(policy.act(obs), actions)

    def test_smoothing_averages_last_selections(self, folders):
        policy = make(folders, action_smoothing_buffer_len=4)
        assert policy.action_smoothing_buffer is None
        path = [[0, 2], [0, 2], [3, 2], [1, 2], [3, 2], [3, 2], [3, 0]]
        history: list[list[int]] = []
        for chosen in path:
            history = [chosen] * 4 if not history else [chosen, *history[:3]]
            obs = engaged(chosen)
            actions = policy.act_inference(obs)
            assert policy.action_smoothing_buffer is not None
            assert policy.action_smoothing_buffer.shape == (4, 2, 5)
            for robot in range(2):
                weights = np.mean([np.eye(5)[step[robot]] for step in history], axis=0)
                expected = expected_action(policy, obs[robot], chosen[robot], {}, weights)
                np.testing.assert_allclose(actions[robot].numpy(), expected, rtol=1e-4, atol=1e-5)

    def test_reset_restarts_smoothing(self, folders):
        policy = make(folders, action_smoothing_buffer_len=3)
        policy.act_inference(engaged([0, 2]))
        policy.reset(torch.tensor([1, 0]))
        policy.act_inference(engaged([3, 3]))
        selections = policy.action_smoothing_buffer.int().argmax(dim=-1)
        assert selections.T.tolist() == [[3, 3, 3], [3, 2, 2]]

    def test_rejects_sequences(self, folders):
        policy = make(folders)
        for kwargs in ({"masks": torch.ones(1)}, {"hidden_states": (1,)}):
            with pytest.raises(NotImplementedError, match="step by step"):
                policy.act(engaged([0]), **kwargs)

    def test_accepts_other_num_envs_after_clear_hidden_states(self, folders):
        policy = make(folders, cmd_vel_mapping={0: [0.5, 1.5]}, action_smoothing_buffer_len=3)
        policy.act_inference(engaged([0, 1]))
        policy.reset(torch.tensor([1, 0]))
        policy.clear_hidden_states()
        assert policy.action_smoothing_buffer is None
        assert isinstance(policy.cmd_vel_current[0], float)
        assert policy.act_inference(engaged([0, 1, 2])).shape == (3, A)


class TestHiddenStatesOfUnselectedPolicies:
    @pytest.fixture
    def recurrent(self, tmp_path):
        return [
            write_run(tmp_path / str(i), i, "ActorCriticRecurrent", rnn_type="gru", rnn_hidden_size=6) for i in range(3)
        ]

    def nonzero_hidden_states(self, folders, path, **kwargs):
        """Which sub-policies have non-zero hidden states after one robot met the obstacles of `path`."""
        policy = make(folders, class_name="ActorCriticRecurrent", **kwargs)
        assert policy.is_recurrent
        for obstacle in path:
            policy.act_inference(engaged([obstacle]))
        return [bool(sub_policy.memory_a.hidden_states.abs().sum() > 0) for sub_policy in policy.submodules]

    @pytest.mark.parametrize("mode", ["all", True])
    def test_all_resets_every_unselected_policy(self, recurrent, mode):
        assert self.nonzero_hidden_states(recurrent, [0, 0], reset_non_selected=mode) == [True, False, False]
        assert self.nonzero_hidden_states(recurrent, [0, 2], reset_non_selected=mode) == [False, False, True]

    def test_all_resets_after_policy_left_smoothing_buffer(self, recurrent):
        kwargs = {"reset_non_selected": "all", "action_smoothing_buffer_len": 3}
        assert self.nonzero_hidden_states(recurrent, [0, 2], **kwargs) == [True, False, True]
        assert self.nonzero_hidden_states(recurrent, [0, 2, 2], **kwargs) == [True, False, True]
        assert self.nonzero_hidden_states(recurrent, [0, 2, 2, 2], **kwargs) == [False, False, True]

    def test_when_skill_keeps_skill_states_while_walking(self, recurrent):
        assert self.nonzero_hidden_states(recurrent, [0, 0], reset_non_selected="when_skill") == [True, True, True]
        assert self.nonzero_hidden_states(recurrent, [0, 1], reset_non_selected="when_skill") == [True, True, False]
        assert self.nonzero_hidden_states(recurrent, [0, 2], reset_non_selected="when_skill") == [True, False, True]

    @pytest.mark.parametrize("mode", [False, "none", None])
    def test_other_modes_reset_nothing(self, recurrent, mode):
        assert self.nonzero_hidden_states(recurrent, [0, 1], reset_non_selected=mode) == [True, True, True]

    def test_selected_policy_equals_policy_alone(self, recurrent):
        policy = make(recurrent, class_name="ActorCriticRecurrent", env_action_scale=0.5)
        alone = copy.deepcopy(policy.submodules[1])
        alone.clear_hidden_states()
        for step in range(4):
            obs = engaged([1, 1]) + 0.1 * step
            obs[:, 1:6] = torch.eye(5)[1]
            torch.testing.assert_close(policy.act_inference(obs), alone.act_inference(obs))


class TestEngine:
    def test_act_and_reset_have_no_host_sync(self, folders):
        policy = make(folders, cmd_vel_mapping={0: [0.5, 1.0], 2: 1.0}, action_smoothing_buffer_len=3)
        obs, dones = engaged([0, 1, 2, 3, 4]), torch.tensor([0, 1, 0, 1, 0])
        with torch.inference_mode():
            policy.act_inference(obs)
            policy.reset(dones)
            addresses = policy.action_smoothing_buffer.data_ptr(), policy.cmd_vel_current[0].data_ptr()
            with NoHostSync():
                policy.act_inference(obs)
                policy.reset(dones)
        assert addresses == (policy.action_smoothing_buffer.data_ptr(), policy.cmd_vel_current[0].data_ptr())
        # buffers created in inference mode are usable outside of it
        policy.act_inference(obs)
        policy.reset(dones)

    @pytest.mark.gpu
    def test_captured_step_equals_eager(self, folders):
        eager = make(folders, cmd_vel_mapping={0: 0.7}, action_smoothing_buffer_len=3).cuda()
        captured = copy.deepcopy(eager)
        obs, graph = engaged([0, 1, 2, 3, 4]).cuda(), torch.cuda.CUDAGraph()
        for policy in (eager, captured):
            policy.reset(torch.ones(5, device="cuda"))
        captured.act_inference(obs)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            actions = captured.act_inference(obs)
        eager.act_inference(obs)
        for chosen in ([0, 0, 2, 2, 4], [1, 0, 2, 3, 4]):
            obs.copy_(engaged(chosen))
            graph.replay()
            torch.testing.assert_close(actions, eager.act_inference(obs), rtol=1e-5, atol=1e-5)


class TestRunnerIntegration:
    def test_learn_rejects_mutex_before_first_step(self, folders, tmp_path, monkeypatch):
        env = EchoEnv(num_envs=4, num_obs=OBS, num_actions=A)
        env.obs_segments = dict(SEGMENTS)
        policy = {"class_name": "ActorCriticFieldMutex", "sub_policy_class_name": "ActorCritic"}
        config = {"num_steps_per_env": 4, "policy": policy | {"sub_policy_paths": folders}, "algorithm": {}}
        runner = OnPolicyRunner(env, config, log_dir=tmp_path / "run")
        monkeypatch.setattr(env, "step", lambda actions: pytest.fail("the environment was stepped"))
        with pytest.raises(ValueError, match=r"FieldMutex cannot be trained.*get_inference_policy.*DemonstrationSaver"):
            runner.learn(1)
        assert not (tmp_path / "run").exists()
        assert runner.get_inference_policy()(engaged([0, 1])).shape == (2, A)

    def test_mutex_loads_runs_of_the_runner(self, tmp_path):
        """Train three runs, one with normalized observations, and act with a mutex policy of them."""

        class Env(EchoEnv):
            def __init__(self, scale):
                super().__init__(num_envs=4, num_obs=OBS, num_actions=A)
                self.obs_segments = dict(SEGMENTS)
                self.cfg = SimpleNamespace(
                    control=SimpleNamespace(action_scale=scale), normalization={"obs_scales": {"lin_vel": 2.0}}
                )

        config = {
            "num_steps_per_env": 4,
            "policy": {"actor_hidden_dims": [8], "critic_hidden_dims": [8], "mu_activation": None},
            "algorithm": {"num_learning_epochs": 1, "num_mini_batches": 1},
        }
        runners = []
        for i, normalize in enumerate((False, True)):
            settings = {**config, "empirical_normalization": normalize}
            runner = OnPolicyRunner(Env(0.5 - 0.25 * i), settings, log_dir=tmp_path / str(i))
            runner.learn(2)
            runner.close()
            runners.append(runner)

        paths = [str(tmp_path / str(i)) for i in range(2)]
        policy = {"class_name": "ActorCriticFieldMutex", "sub_policy_class_name": "ActorCritic"}
        policy |= {"sub_policy_paths": paths, "cmd_vel_mapping": {"0": 0.8}, "env_action_scale": 0.5}
        player = OnPolicyRunner(Env(0.5), {**config, "policy": policy}).get_inference_policy()
        obs = engaged([0, 1])
        with torch.inference_mode():
            actions = player(obs)
            for robot, runner in enumerate(runners):
                seen = obs[robot : robot + 1].clone()
                seen[:, LAST_ACTION] *= 0.5 / (0.5 - 0.25 * robot)
                if robot == 0:
                    seen[:, CMD] = 0.8 * 2.0
                alone = runner.get_inference_policy()(seen) * (0.5 - 0.25 * robot) / 0.5
                torch.testing.assert_close(actions[robot : robot + 1], alone)


def test_mutex_teacher_gets_raw_observations_and_counts_as_trained(folders, caplog):
    student = ActorCritic(OBS, OBS, A, obs_segments=SEGMENTS, actor_hidden_dims=[4], critic_hidden_dims=[4])
    settings = {"class_name": "ActorCriticFieldMutex", "sub_policy_class_name": "ActorCritic"}
    settings |= {"sub_policy_paths": folders, "env_action_scale": 0.4}
    learner = TPPO(student, teacher_policy=settings, using_ppo=False, empirical_normalization=True)
    learner.init_obs_norm(OBS, OBS)
    learner.init_storage(5, 2, [OBS], [None], [A])
    obs = engaged([0, 1, 2, 3, 4])
    seen = learner.obs_normalizer(obs)
    learner.act(seen, seen)
    torch.testing.assert_close(learner.transition.action_labels, make(folders).act_inference(obs))
    assert "untrained" not in caplog.text


class TestBadInput:
    @pytest.mark.parametrize("segments", [None, {"proprioception": 27}, {"engaging_block": 5, "proprioception": 22}])
    def test_rejects_observation_without_obstacle(self, folders, segments):
        with pytest.raises(ValueError, match=r"chooses by the observation component 'engaging_block', of at least 6"):
            make(folders, obs_segments=segments)

    def test_rejects_observation_without_command(self, folders):
        segments = {"engaging_block": 18, "proprioception": 9}
        with pytest.raises(ValueError, match=r"velocity commands at index 9 of .* 'proprioception'"):
            make(folders, obs_segments=segments, cmd_vel_mapping={0: 1.0})

    def test_rejects_missing_command_scale(self, tmp_path):
        folder = write_run(tmp_path / "a", 1)
        with pytest.raises(ValueError, match=r"sub-policy 0 lacks normalization\.obs_scales\.lin_vel"):
            make([folder], cmd_vel_mapping={0: 1.0})

    def test_rejects_invalid_smoothing_length(self, folders):
        with pytest.raises(ValueError, match="action_smoothing_buffer_len is 0; give at least 1"):
            make(folders, action_smoothing_buffer_len=0)

    @pytest.mark.parametrize("velocity", [[0.5], (0.1, 0.2, 0.3), "fast", ["slow", "fast"]])
    def test_rejects_invalid_velocity(self, folders, velocity):
        with pytest.raises(ValueError, match=r"cmd_vel_mapping\[1\] is .*: give a velocity in m/s, or the two ends"):
            make(folders, cmd_vel_mapping={"1": velocity})
        with pytest.raises(ValueError, match=r"jump_down_vel is .*: give a velocity in m/s"):
            make(folders, ActorCriticClimbMutex, jump_down_vel=velocity)

    def test_rejects_velocity_of_missing_policy(self, folders, caplog):
        make(folders[:2], cmd_vel_mapping={4: 1.0})
        assert "a velocity for sub-policy 4 has no effect: there are 2" in caplog.text


def test_sub_policies_are_ordinary_policies(folders):
    policy = make(folders)
    assert all(isinstance(sub_policy, ActorCritic) for sub_policy in policy.submodules)
    assert not any(isinstance(sub_policy, ActorCriticRecurrent) for sub_policy in policy.submodules)
    assert [scale["lin_vel"] for scale in policy.cmd_scales] == list(LIN_VEL)
