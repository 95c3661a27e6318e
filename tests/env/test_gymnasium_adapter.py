import logging
import subprocess
import sys
from collections import OrderedDict

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import TimeLimit

from st_rl.env import GymnasiumVecEnv, VecEnv, check_env, make_gymnasium

SAME, NEXT, DISABLED = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED


class CountingEnv(gymnasium.Env):
    """Observation (episode, step); reward 100 * episode + step."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Box(-2.0, 3.0, (1,), np.float32)

    def __init__(self, terminate_at=1000):
        self.terminate_at = terminate_at
        self.episode, self.steps = -1, 0
        self.actions = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.steps = self.episode + 1, 0
        return self.observe(), {}

    def step(self, action):
        self.actions.append(np.array(action))
        self.steps += 1
        return self.observe(), 100.0 * self.episode + self.steps, self.steps >= self.terminate_at, False, {}

    def observe(self):
        return np.array([self.episode, self.steps], dtype=np.float64)


def counting(terminate_at, time_limit):
    return lambda: TimeLimit(CountingEnv(terminate_at), time_limit)


LIMITS = [(2, 100), (100, 3), (4, 4), (100, 5)]
"""Per environment (termination step, truncation step); the third has both at once, which is not a time-out."""
LENGTHS = [min(limits) for limits in LIMITS]
TIMES_OUT = [truncate < terminate for terminate, truncate in LIMITS]
FACTORIES = [counting(*limits) for limits in LIMITS]

VECTOR_ENVS = {
    "same step": lambda: SyncVectorEnv(FACTORIES, autoreset_mode=SAME),
    "same step, not copied": lambda: SyncVectorEnv(FACTORIES, autoreset_mode=SAME, copy=False),
    "next step": lambda: SyncVectorEnv(FACTORIES, autoreset_mode=NEXT),
    "next step, not copied": lambda: SyncVectorEnv(FACTORIES, autoreset_mode=NEXT, copy=False),
    "next step, wrapped": lambda: gymnasium.wrappers.vector.RecordEpisodeStatistics(SyncVectorEnv(FACTORIES)),
    "async same step": lambda: AsyncVectorEnv(FACTORIES, autoreset_mode=SAME),
    "async next step": lambda: AsyncVectorEnv(FACTORIES, autoreset_mode=NEXT),
}


def expected_episodes(num_steps):
    """Expected rows of (observation, reward, done, time-out, final observation) per environment."""
    # The adapter and the test reset once each, so the first episode has number 1.
    episode, steps = [1] * 4, [0] * 4
    for _ in range(num_steps):
        rows = []
        for env in range(4):
            steps[env] += 1
            last, reward = [episode[env], steps[env]], 100.0 * episode[env] + steps[env]
            done = steps[env] == LENGTHS[env]
            if done:
                episode[env], steps[env] = episode[env] + 1, 0
            rows.append(([episode[env], steps[env]], reward, done, done and TIMES_OUT[env], last))
        yield rows


@pytest.mark.parametrize("name", VECTOR_ENVS)
def test_every_autoreset_mode_gives_expected_episodes(name):
    env = GymnasiumVecEnv(VECTOR_ENVS[name]())
    obs, _ = env.reset()
    assert obs.tolist() == [[1.0, 0.0]] * 4
    length = [0] * 4
    kept = []
    for rows in expected_episodes(30):
        obs, rewards, dones, infos = env.step(torch.zeros(4, 1))
        expected_obs, expected_rewards, expected_dones, expected_time_outs, last = map(list, zip(*rows))
        assert obs.tolist() == expected_obs
        assert rewards.tolist() == expected_rewards
        assert dones.tolist() == expected_dones
        assert infos["time_outs"].tolist() == expected_time_outs
        assert infos["observations"]["policy"] is obs
        final = infos["final_observations"]["policy"]
        assert final.isfinite().all()
        for row, done in enumerate(expected_dones):
            length[row] = 0 if done else length[row] + 1
            assert not done or final[row].tolist() == last[row]
        assert env.episode_length_buf.tolist() == length
        assert torch.equal(env.get_observations()[0], obs)
        kept.append((obs, obs.clone()))
    assert all(torch.equal(obs, copy) for obs, copy in kept), "an observation was overwritten by a later step"
    env.close()


def test_statistics_of_finished_episodes():
    env = GymnasiumVecEnv(VECTOR_ENVS["same step"]())
    logs = [env.step(torch.zeros(4, 1))[3]["log"] for _ in range(4)]
    assert logs[0] == {}
    assert {key: value.tolist() for key, value in logs[1].items()} == {
        "return": [1.0 + 2.0],
        "length": [2.0],
        "time_out": [0.0],
    }
    assert {key: value.tolist() for key, value in logs[2].items()} == {
        "return": [1.0 + 2.0 + 3.0],
        "length": [3.0],
        "time_out": [1.0],
    }
    # Environment 0 is in its second episode, environment 2 in its first.
    assert logs[3]["return"].tolist() == [101.0 + 102.0, 1.0 + 2.0 + 3.0 + 4.0]
    assert logs[3]["time_out"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("wrapped", [False, True])
def test_without_partial_resets_an_episode_ends_one_step_later(wrapped, caplog):
    vector_env = SyncVectorEnv(FACTORIES)
    with caplog.at_level(logging.WARNING, logger="st_rl"):
        if wrapped:
            # This wrapper rejects partial resets; without updates it changes no values.
            vector_env = gymnasium.wrappers.vector.NormalizeObservation(vector_env)
            vector_env.update_running_mean = False
            env = GymnasiumVecEnv(vector_env)
        else:
            env = GymnasiumVecEnv(vector_env, partial_reset=False)
    assert "one more step" in caplog.text
    episode, steps = [1] * 4, [0] * 4
    env.reset()
    for _ in range(30):
        obs, rewards, dones, infos = env.step(torch.zeros(4, 1))
        for row in range(4):
            steps[row] += 1
            done = steps[row] > LENGTHS[row]
            assert rewards[row] == (0.0 if done else 100.0 * episode[row] + steps[row])
            assert bool(dones[row]) == done
            assert bool(infos["time_outs"][row]) == (done and TIMES_OUT[row])
            if done:
                assert infos["final_observations"]["policy"][row].tolist() == [episode[row], LENGTHS[row]]
                episode[row], steps[row] = episode[row] + 1, 0
            assert obs[row].tolist() == [episode[row], steps[row]]


def test_wrong_partial_reset_argument_raises():
    class ResetsAll(SyncVectorEnv):
        def reset(self, *, seed=None, options=None):
            return super().reset(seed=seed)

    env = GymnasiumVecEnv(ResetsAll(FACTORIES))
    env.step(torch.zeros(4, 1))
    with pytest.raises(RuntimeError, match="partial_reset=False"):
        env.step(torch.zeros(4, 1))


def test_async_without_shared_memory_is_not_reset_twice():
    vector_env = AsyncVectorEnv(FACTORIES[:1], shared_memory=False)
    env = GymnasiumVecEnv(vector_env)
    episodes = [env.step(torch.zeros(1, 1))[0][0, 0].item() for _ in range(6)]
    env.close()
    assert episodes == [0.0, 0.0, 1.0, 1.0, 1.0, 2.0]


def test_rejects_disabled_autoreset_with_hint():
    with pytest.raises(ValueError, match=r"autoreset_mode=AutoresetMode\.SAME_STEP"):
        GymnasiumVecEnv(SyncVectorEnv(FACTORIES, autoreset_mode=DISABLED))


def test_accepts_single_environment():
    inner = TimeLimit(CountingEnv(), 3)
    env = make_gymnasium(inner)
    assert (env.num_envs, env.num_obs, env.num_actions, env.max_episode_length) == (1, 2, 1, 3)
    assert env.unwrapped.envs[0] is inner
    finals = []
    for _ in range(6):
        _, _, dones, infos = env.step(torch.zeros(1, 1))
        finals += infos["final_observations"]["policy"][dones].tolist()
        assert torch.equal(infos["time_outs"], dones)
    assert finals == [[0.0, 3.0], [1.0, 3.0]]


def test_factory_makes_num_envs_environments():
    env = make_gymnasium(counting(5, 9), num_envs=3)
    assert len({id(inner) for inner in env.unwrapped.envs}) == 3
    assert env.max_episode_length == 9


def test_environment_with_spec_is_created_again():
    env = make_gymnasium(gymnasium.make("Pendulum-v1", g=5.0), num_envs=3)
    assert [inner.unwrapped.g for inner in env.unwrapped.envs] == [5.0] * 3


def test_async_from_an_id():
    env = make_gymnasium("Pendulum-v1", num_envs=2, seed=3, vectorization="async")
    other = make_gymnasium("Pendulum-v1", num_envs=2, seed=3)
    for _ in range(3):
        left, right = env.step(torch.ones(2, 1)), other.step(torch.ones(2, 1))
        assert torch.equal(left[0], right[0])
        assert torch.equal(left[1], right[1])
    env.episode_length_buf = torch.tensor([199, 0])
    assert env.step(torch.zeros(2, 1))[3]["time_outs"].tolist() == [True, False]
    env.close()


@pytest.mark.parametrize(("env_id", "num_obs", "length"), [("Pendulum-v1", 3, 200), ("InvertedPendulum-v5", 4, 1000)])
def test_real_tasks_pass_check_env_and_are_seeded(env_id, num_obs, length):
    def run(seed, mode):
        vector_env = gymnasium.make_vec(
            env_id, num_envs=3, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode}
        )
        env = GymnasiumVecEnv(vector_env, seed=seed)
        env.reset()
        generator = torch.Generator().manual_seed(0)
        env.episode_length_buf = torch.tensor([0, 3, length - 3])
        rows = []
        for _ in range(40):
            obs, rewards, dones, infos = env.step(0.3 * torch.randn(3, 1, generator=generator))
            final = torch.where(dones[:, None], infos["final_observations"]["policy"], 0.0)
            rows.append(torch.cat([obs, rewards[:, None], dones[:, None], infos["time_outs"][:, None], final], dim=-1))
        env.close()
        return torch.stack(rows)

    env = make_gymnasium(env_id, num_envs=3, seed=1)
    assert isinstance(env, VecEnv)
    assert (env.num_obs, env.num_privileged_obs, env.num_actions, env.max_episode_length) == (num_obs, None, 1, length)
    assert check_env(env, num_steps=60) == []
    env.close()
    first = run(1, SAME)
    assert first[:5, 2, num_obs + 2].any(), "the set episode length did not bring a time-out"
    assert torch.equal(first, run(1, SAME))
    assert torch.equal(first, run(1, NEXT))
    assert not torch.equal(first, run(2, SAME))


def test_actions_are_clipped_rescaled_or_unchanged():
    given = torch.tensor([[-9.0], [-1.0], [0.5], [9.0]])
    for options, expected in [
        ({}, [-2.0, -1.0, 0.5, 3.0]),
        ({"clip_actions": False}, [-9.0, -1.0, 0.5, 9.0]),
        ({"rescale_actions": True}, [-2.0, -2.0, 1.75, 3.0]),
    ]:
        env = GymnasiumVecEnv(SyncVectorEnv(FACTORIES, autoreset_mode=SAME), **options)
        env.step(given)
        received = [inner.unwrapped.actions[0] for inner in env.unwrapped.envs]
        assert [action.item() for action in received] == expected
        assert all(action.shape == (1,) and action.dtype == np.float32 for action in received)
        assert given.flatten().tolist() == [-9.0, -1.0, 0.5, 9.0]


@pytest.mark.parametrize("shape", [(4, 2), (4,)])
def test_rejects_actions_of_wrong_shape(shape):
    env = GymnasiumVecEnv(SyncVectorEnv(FACTORIES, autoreset_mode=SAME))
    with pytest.raises(ValueError, match=r"expected \(num_envs, 1\)"):
        env.step(torch.zeros(shape))


class ShapedEnv(gymnasium.Env):
    """Nested observations and a float64 matrix as action."""

    observation_space = spaces.Dict(
        OrderedDict(
            image=spaces.Box(0, 255, (2, 3), np.uint8),
            arm=spaces.Dict(
                OrderedDict(height=spaces.Box(-1, 1, (), np.float32), angle=spaces.Box(-9, 9, (2,), np.float64))
            ),
            pair=spaces.Tuple((spaces.Box(-1, 1, (1,), np.float32), spaces.Box(-1, 1, (2,), np.float32))),
        )
    )
    action_space = spaces.Box(np.float64(-0.1), np.float64(0.1), (2, 2), np.float64)

    def __init__(self):
        self.count = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count += 100
        return self.observe(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.count += 1
        return self.observe(), 0.0, False, self.count % 100 == 2, {}

    def observe(self):
        count = self.count
        return {
            "image": np.full((2, 3), count % 256, dtype=np.uint8),
            "arm": {"height": np.float32(count + 0.5), "angle": np.array([count, -count], dtype=np.float64)},
            "pair": (np.array([7.0], np.float32), np.array([8.0, 9.0], np.float32)),
        }

    @staticmethod
    def flat(count):
        return [count % 256.0] * 6 + [count + 0.5, count, -count, 7.0, 8.0, 9.0]


@pytest.mark.parametrize("mode", [SAME, NEXT])
def test_nested_observations_become_ordered_segments(mode):
    env = GymnasiumVecEnv(SyncVectorEnv([ShapedEnv, ShapedEnv], autoreset_mode=mode))
    assert env.obs_segments == OrderedDict(
        {"image": (2, 3), "arm/height": (1,), "arm/angle": (2,), "pair/0": (1,), "pair/1": (2,)}
    )
    assert (env.num_obs, env.num_actions) == (12, 4)
    obs, extras = env.reset()
    assert obs.dtype == torch.float32
    assert "critic" not in extras["observations"]
    assert obs.tolist() == [ShapedEnv.flat(200)] * 2
    env.step(torch.full((2, 4), 5.0))
    obs, _, dones, infos = env.step(torch.zeros(2, 4))
    assert dones.all()
    assert obs.tolist() == [ShapedEnv.flat(302)] * 2
    assert infos["final_observations"]["policy"].tolist() == [ShapedEnv.flat(202)] * 2


class TensorVectorEnv(VectorEnv):
    """A vector environment of torch tensors with final observations as one batch."""

    def __init__(self, delivers_final=True):
        self.metadata = {"autoreset_mode": SAME}
        self.num_envs = 3
        self.single_observation_space = spaces.Box(-9, 9, (2,), np.float32)
        self.single_action_space = spaces.Box(-1, 1, (2,), np.float32)
        self.delivers_final = delivers_final
        self.actions = None

    def reset(self, *, seed=None, options=None):
        return torch.zeros(3, 2), {}

    def step(self, actions):
        self.actions = actions
        infos = {"final_obs": torch.arange(6.0).reshape(3, 2)} if self.delivers_final else {}
        no, yes = torch.zeros(3, dtype=torch.bool), torch.tensor([True, False, True])
        return torch.zeros(3, 2), torch.ones(3, dtype=torch.float64), no, yes, infos


def test_accepts_vector_environment_of_tensors(caplog):
    vector_env = TensorVectorEnv()
    with caplog.at_level(logging.INFO, logger="st_rl"):
        env = GymnasiumVecEnv(vector_env)
    assert env.max_episode_length == 1000
    assert "max_episode_length is 1000" in caplog.text
    assert GymnasiumVecEnv(vector_env, max_episode_length=7).max_episode_length == 7
    _, rewards, dones, infos = env.step(torch.full((3, 2), 4.0))
    assert isinstance(vector_env.actions, torch.Tensor)
    assert vector_env.actions.tolist() == [[1.0, 1.0]] * 3
    assert rewards.dtype == torch.float32
    assert dones.tolist() == infos["time_outs"].tolist() == [True, False, True]
    assert infos["final_observations"]["policy"].tolist() == [[0.0, 1.0], [0.0, 0.0], [4.0, 5.0]]
    assert check_env(env) == []


def test_missing_final_observations_warn_once(caplog):
    env = GymnasiumVecEnv(TensorVectorEnv(delivers_final=False))
    with caplog.at_level(logging.WARNING, logger="st_rl"):
        for _ in range(3):
            assert "final_observations" not in env.step(torch.zeros(3, 2))[3]
    assert caplog.text.count("final_obs") == 1


def test_stepping_in_and_out_of_inference_mode():
    env = make_gymnasium("Pendulum-v1", num_envs=2, seed=0)
    with torch.inference_mode():
        env.step(torch.zeros(2, 1))
    env.episode_length_buf = torch.randint_like(env.episode_length_buf, high=env.max_episode_length)
    env.step(torch.zeros(2, 1, requires_grad=True))


def test_render_and_close_reach_environment():
    closed = []

    class Rendered(CountingEnv):
        render_mode = "rgb_array"

        def render(self):
            return np.zeros((4, 5, 3), dtype=np.uint8)

        def close(self):
            closed.append(True)

    env = make_gymnasium(Rendered, num_envs=2)
    assert env.render_mode == "rgb_array"
    assert [frame.shape for frame in env.render()] == [(4, 5, 3)] * 2
    env.close()
    assert closed == [True, True]


def box(*shape, **kwargs):
    return spaces.Box(-1, 1, shape, **kwargs)


@pytest.mark.parametrize(
    ("observation_space", "action_space", "options", "message"),
    [
        (box(2), spaces.Discrete(3), {}, r"action space Discrete\(3\) is not a Box"),
        (box(2), spaces.MultiDiscrete([2, 2]), {}, r"action space MultiDiscrete.* is not a Box"),
        (box(2), box(1, dtype=np.int64), {}, "holds integers"),
        (box(2), spaces.Box(-np.inf, 1, (1,)), {"rescale_actions": True}, "finite bounds"),
        (spaces.Discrete(4), box(1), {}, r"observation space Discrete\(4\) is not made of Boxes.*FlattenObservation"),
        (spaces.Dict(a=box(2), b=spaces.Text(3)), box(1), {}, r"component b.*FlattenObservation"),
    ],
)
def test_rejects_unsupported_spaces(observation_space, action_space, options, message):
    vector_env = TensorVectorEnv()
    vector_env.single_observation_space, vector_env.single_action_space = observation_space, action_space
    with pytest.raises(ValueError, match=message):
        GymnasiumVecEnv(vector_env, **options)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: make_gymnasium("Pendulum-v1", vectorization="threads"), ValueError, "'threads' is unknown"),
        (lambda: make_gymnasium(VECTOR_ENVS["same step"](), num_envs=3), ValueError, "has 4; leave num_envs out"),
        (lambda: make_gymnasium(VECTOR_ENVS["same step"](), g=3), TypeError, r"\['g'\] cannot be applied"),
        (lambda: make_gymnasium(CountingEnv(), g=3), TypeError, r"\['g'\] cannot be applied"),
        (lambda: make_gymnasium(CountingEnv(), num_envs=2), ValueError, "pass a function"),
        (lambda: make_gymnasium(CountingEnv(), vectorization="async"), ValueError, "pass its id or a function"),
        (lambda: make_gymnasium(3), TypeError, "cannot make an environment of 3"),
        (lambda: GymnasiumVecEnv(CountingEnv()), TypeError, r"call make_gymnasium\(env\)"),
    ],
)
def test_wrong_calls_raise_with_hint(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_error_without_gymnasium_names_the_extra():
    code = (
        "import sys; sys.modules['gymnasium'] = None\n"
        "from st_rl.env import make_gymnasium\n"
        "try:\n    make_gymnasium('Pendulum-v1')\n"
        "except ImportError as error:\n    sys.exit(0 if 'st_rl[gym]' in str(error) else 1)\n"
        "sys.exit(2)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
