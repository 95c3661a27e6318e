"""`OnPolicyRunner`: hooks, errors, interruptions and results of the training loop."""

import csv
import logging
import math
import signal
from functools import partial
from typing import ClassVar

import pytest
import torch

import st_rl.algorithms
from st_rl.algorithms import PPO
from st_rl.engine import Engine
from st_rl.runners import OnPolicyRunner, on_policy_runner
from st_rl.utils.files import load_checkpoint
from tests.fakes import ClientEnv, EchoEnv
from tests.runners.training import differences, make_runner, progress, recurrent, small_config, weights


def test_attributes_before_learning(tmp_path):
    runner = make_runner(log_dir=tmp_path / "run")
    assert (runner.tot_timesteps, runner.tot_time, runner.current_learning_iteration) == (0, 0, 0)
    assert runner.writer is None
    assert runner.logger_type is None
    assert runner.metrics_velrmsd.shape == runner.metrics_CoT.shape == ()
    assert runner.metrics_velrmsd.isnan()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("num_privileged_obs", [None, 7])
def test_normalizers_count_every_observation_once(num_privileged_obs):
    observed, critic_observed = [], []

    class Recorded(EchoEnv):
        def step(self, actions):
            if not observed:
                self.record(*self.get_observations())
            outcome = super().step(actions)
            self.record(outcome[0], outcome[-1])
            return outcome

        def record(self, obs, infos):
            observed.append(obs.clone())
            critic_observed.append(infos["observations"].get("critic", obs).clone())

    env = Recorded(num_privileged_obs=num_privileged_obs)
    runner = make_runner(env, small_config(empirical_normalization=True))
    runner.learn(2)
    normalizers = [(runner.alg.obs_normalizer, observed)]
    if num_privileged_obs is not None:
        normalizers.append((runner.alg.critic_obs_normalizer, critic_observed))
    for normalizer, raw in normalizers:
        samples = torch.cat(raw)
        assert int(normalizer.count) == len(samples) == 8 * (1 + 2 * 6)
        torch.testing.assert_close(normalizer.mean.flatten(), samples.mean(dim=0))
        torch.testing.assert_close(normalizer.std.flatten(), samples.std(dim=0, correction=0))


def test_both_spellings_call_overridden_init_writter():
    class Custom(OnPolicyRunner):
        calls = 0

        def init_writter(self, init_at_random_ep_len):
            self.calls += 1
            super().init_writter(init_at_random_ep_len)

    runner = Custom(EchoEnv(), small_config())
    runner.init_writer(False)
    runner.learn(1)
    assert runner.calls == 2


def test_log_gets_the_documented_locals(tmp_path):
    seen = []

    class Custom(OnPolicyRunner):
        def log(self, locs, width=80, pad=35):
            seen.append(dict(locs, infos=dict(locs["infos"])))
            super().log(locs, width, pad)

    runner = Custom(EchoEnv(episode_length=3), small_config(), log_dir=tmp_path)
    runner.current_learning_iteration = 4
    runner.learn(2)
    assert set(seen[0]) == set(
        "it start_iter tot_iter num_learning_iterations collection_time learn_time losses stats ep_infos rframebuffer "
        "rewbuffer lenbuffer infos".split()
    )
    assert [(locs["it"], locs["start_iter"], locs["tot_iter"], locs["num_learning_iterations"]) for locs in seen] == [
        (4, 4, 6, 2),
        (5, 4, 6, 2),
    ]
    assert "total_loss" in seen[0]["losses"]
    assert len(seen[0]["ep_infos"]) == 6
    assert "time_outs" in seen[0]["infos"]


def test_logged_entropy_equals_policy_entropy(tmp_path):
    runner = make_runner(log_dir=tmp_path)
    runner.learn(1)
    with (tmp_path / "progress.csv").open() as file:
        logged = float(next(csv.DictReader(file))["Loss/entropy"])
    # Two actions of a Gaussian with a standard deviation near its initial value of 1.
    assert logged == pytest.approx(2 * 0.5 * math.log(2 * math.pi * math.e), abs=0.2)


def test_log_needs_no_run_folder():
    runner = make_runner()
    empty: dict = {name: [] for name in ("ep_infos", "rframebuffer", "rewbuffer", "lenbuffer")}
    runner.log({"it": 0, "tot_iter": 1, "collection_time": 1.0, "learn_time": 1.0, "losses": {}, "stats": {}, **empty})


def test_rollout_step_returns_normalized_observations():
    env = EchoEnv(num_privileged_obs=6)
    runner = make_runner(env, small_config(empirical_normalization=True))
    runner.learn(1)
    obs, critic_obs = (tensor.clone() for tensor in runner._last_observations or ())
    mean, std = runner.alg.obs_normalizer.mean, runner.alg.obs_normalizer.std
    torch.testing.assert_close(obs, (env.obs - mean) / (std + 1e-2))
    runner.eval_mode()
    with torch.inference_mode():
        next_obs, next_critic_obs, rewards, dones, infos = runner.rollout_step(obs, critic_obs)
    torch.testing.assert_close(next_obs, (env.obs - mean) / (std + 1e-2))
    assert next_critic_obs.shape == (8, 6)
    assert torch.equal(runner.alg.storage.observations[0], obs)
    assert (rewards.shape, dones.shape) == ((8,), (8,))
    assert "log" in infos


def test_stored_actions_are_not_changed_by_in_place_clipping():
    class Clipping(EchoEnv):
        def step(self, actions):
            return super().step(actions.clamp_(-0.01, 0.01))

    runner = make_runner(Clipping())
    runner.learn(1)
    assert runner.alg.storage.actions.abs().max() > 0.1


def test_inference_mode_rollout_setting():
    class Checking(EchoEnv):
        modes: ClassVar[set[bool]] = set()

        def step(self, actions):
            self.modes.add(torch.is_inference_mode_enabled())
            return super().step(actions)

    for setting, expected in ((False, {False}), (True, {True}), (None, {True})):
        Checking.modes = set()
        config = small_config(recurrent("gru"), inference_mode_rollout=setting, empirical_normalization=True)
        make_runner(Checking(), config).learn(2)
        assert Checking.modes == expected


class CompiledEnv(EchoEnv):
    """Has code that an engine may compile, like built-in tasks."""

    def compile_with(self, compiled):
        self.echo = compiled(torch.clone)

    def step(self, actions):
        return super().step(self.echo(actions))


@pytest.mark.parametrize("num_privileged_obs", [None, 6])
def test_functions_are_compiled_once_and_training_equals_eager(monkeypatch, num_privileged_obs):
    """Also across rollouts, which start from a stored observation, and across calls of `learn`."""
    graphs = []

    def backend(graph, example_inputs):
        graphs.append(graph)
        return graph

    monkeypatch.setattr(on_policy_runner, "Engine", partial(Engine, compile_backend=backend))
    runners = []
    for engine in ("eager", "compile"):
        torch.manual_seed(0)
        config = small_config(engine=engine, empirical_normalization=True)
        runners.append(make_runner(CompiledEnv(num_privileged_obs=num_privileged_obs), config))
        for iterations in (3, 2):
            runners[-1].learn(iterations)
    # Acting, normalization, losses, and the environment's functions.
    assert len(graphs) == 4
    for name, value in weights(runners[0]).items():
        torch.testing.assert_close(weights(runners[1])[name], value, rtol=1e-4, atol=1e-5)


# ---- metrics ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attributes", "velrmsd", "cot"),
    [
        ({}, float("nan"), float("nan")),
        ({"tracking_error": 0.5, "CoT": 2}, 0.5, 2.0),
        ({"tracking_error": torch.tensor([0.25])}, [0.25], float("nan")),
        ({"tracking_error": torch.tensor([1, 2])}, [1.0, 2.0], float("nan")),
        ({"lin_vel_rmsd": torch.tensor([1.0, 3.0]), "CoT": torch.tensor(7.0)}, 2.0, 7.0),
        ({"tracking_error": 0.5, "lin_vel_rmsd": torch.ones(4)}, 0.5, float("nan")),
        ({"tracking_error": None, "lin_vel_rmsd": 3.0, "CoT": None}, 3.0, float("nan")),
    ],
)
def test_metrics_are_read_from_the_environment(attributes, velrmsd, cot):
    env = EchoEnv()
    vars(env).update(attributes)
    results = make_runner(env).learn(1)
    for result, expected in zip(results, (velrmsd, cot)):
        assert result.dtype == torch.float32
        assert result.tolist() == pytest.approx(expected, nan_ok=True)


def test_errors_of_metrics_are_raised():
    class Broken(EchoEnv):
        @property
        def tracking_error(self):
            raise ZeroDivisionError("no robots left")

    with pytest.raises(ZeroDivisionError):
        make_runner(Broken()).learn(1)


# ---- interruptions ---------------------------------------------------------------------------------------------------


class Failing(EchoEnv):
    """The echo task that fails once, at a given step."""

    fail_at: int | None = None

    def step(self, actions):
        if self.num_steps_done == self.fail_at:
            self.fail_at = None
            raise ConnectionError("the simulator went away")
        return super().step(actions)


@pytest.mark.parametrize("policy", [{}, recurrent("lstm")])
@pytest.mark.parametrize("fail_at", [0, 3, 8, 11])
def test_environment_error_closes_writer_and_learn_can_continue(tmp_path, policy, fail_at):
    env = Failing()
    env.fail_at = fail_at
    runner = make_runner(env, small_config(policy, save_interval=1, keep_best=False), log_dir=tmp_path)
    with pytest.raises(ConnectionError):
        runner.learn(3)
    completed = fail_at // 6
    assert runner.writer is None
    assert runner.current_learning_iteration == completed
    assert [row["step"] for row in progress(tmp_path)] == [str(i) for i in range(completed)] if completed else True
    runner.learn(2)
    assert runner.current_learning_iteration == completed + 2
    assert [row["step"] for row in progress(tmp_path)] == [str(i) for i in range(completed + 2)]
    assert (tmp_path / f"model_{completed + 2}.pt").exists()


def test_update_error_leaves_usable_runner():
    runner = make_runner()
    update = runner.alg.update
    runner.alg.update = lambda iteration: (_ for _ in ()).throw(MemoryError("out of memory"))
    with pytest.raises(MemoryError):
        runner.learn(1)
    runner.alg.update = update
    runner.learn(2)
    assert runner.current_learning_iteration == 2


def test_keyboard_interrupt_closes_writer(tmp_path):
    runner = make_runner(log_dir=tmp_path)

    def interrupt():
        raise KeyboardInterrupt

    runner.evaluation = interrupt
    with pytest.raises(KeyboardInterrupt):
        runner.learn(1)
    assert runner.writer is None


def test_ctrl_c_finishes_the_iteration_saves_and_raises(tmp_path):
    runner = make_runner(log_dir=tmp_path)
    evaluation, handler = runner.evaluation, signal.getsignal(signal.SIGINT)

    def press_ctrl_c():
        evaluation()
        if runner.current_learning_iteration == 1:
            signal.raise_signal(signal.SIGINT)

    runner.evaluation = press_ctrl_c
    with pytest.raises(KeyboardInterrupt):
        runner.learn(10)
    assert runner.current_learning_iteration == 2
    assert load_checkpoint(tmp_path / "model_2.pt")["iter"] == 2
    assert [row["step"] for row in progress(tmp_path)] == ["0", "1"]
    assert signal.getsignal(signal.SIGINT) is handler
    runner.evaluation = evaluation
    runner.learn(1)
    assert runner.current_learning_iteration == 3


def test_second_ctrl_c_stops_inside_the_iteration_and_saves_the_last_one(tmp_path):
    runner = make_runner(log_dir=tmp_path)
    step, calls = runner.env.step, []

    def press_ctrl_c(actions):
        calls.append(None)
        if len(calls) in (8, 9):  # in the second rollout of 6 steps
            signal.raise_signal(signal.SIGINT)
        return step(actions)

    runner.env.step = press_ctrl_c
    with pytest.raises(KeyboardInterrupt):
        runner.learn(10)
    assert len(calls) == 9
    assert runner.current_learning_iteration == 1
    assert load_checkpoint(tmp_path / "model_1.pt")["iter"] == 1


def test_signal_handler_of_the_program_is_kept(tmp_path):
    runner, received = make_runner(log_dir=tmp_path), []
    before = signal.signal(signal.SIGINT, lambda number, frame: received.append(number))
    try:
        runner.evaluation = lambda: signal.raise_signal(signal.SIGINT)
        runner.learn(2)
    finally:
        signal.signal(signal.SIGINT, before)
    assert received == [signal.SIGINT] * 2


def test_requested_stop_ends_iteration_and_saves(tmp_path):
    runner = make_runner(log_dir=tmp_path)
    evaluation = runner.evaluation

    def evaluate_and_ask():
        evaluation()
        if runner.current_learning_iteration == 1:
            runner.request_stop()

    runner.evaluation = evaluate_and_ask
    runner.learn(10)
    assert runner.current_learning_iteration == 2
    assert (tmp_path / "model_2.pt").exists()
    runner.learn(2)
    assert runner.current_learning_iteration == 4


def test_close_is_idempotent(tmp_path):
    runner = make_runner(log_dir=tmp_path)
    runner.close()
    runner.learn(1)
    runner.close()
    runner.close()
    runner.learn(1)
    runner.close()
    assert len(progress(tmp_path)) == 2
    assert len(list(tmp_path.glob("events.out*"))) == 2


def test_learning_continues_after_policy_acted_elsewhere():
    runner = make_runner(EchoEnv(num_envs=8), small_config(recurrent("lstm")))
    runner.learn(1)
    policy = runner.get_inference_policy(device="cpu")
    with torch.inference_mode():
        policy(torch.zeros(1, 4))  # another number of environments, starting without hidden states
    runner.learn(1)
    assert runner.alg.actor_critic.training


def test_modes_reach_policy_and_normalizers():
    runner = make_runner(config=small_config(empirical_normalization=True))
    alg = runner.alg
    for switch, expected in ((runner.eval_mode, False), (runner.train_mode, True)):
        switch()
        assert [m.training for m in (alg.actor_critic, alg.obs_normalizer, alg.critic_obs_normalizer)] == [expected] * 3


def test_zero_iterations_keep_weights():
    runner = make_runner()
    before = weights(runner)
    velrmsd, cot = runner.learn(0)
    assert velrmsd.isnan()
    assert cot.isnan()
    assert differences(before, weights(runner)) == []


def test_engine_is_logged_once(caplog):
    caplog.set_level(logging.INFO, logger="st_rl")
    make_runner(ClientEnv(), small_config(engine="eager")).learn(2)
    assert [r.getMessage() for r in caplog.records if r.getMessage().startswith("engine:")] == [
        "engine: no CUDA graphs, eager losses, acting and task (as configured)"
    ]


def test_overridden_losses_run_eagerly_unless_declared_graph_safe(monkeypatch, caplog):
    class Fading(PPO):
        def compute_losses(self, minibatch):
            losses, inter_vars, stats = super().compute_losses(minibatch)
            losses["fading"] = 0.5**self.current_learning_iteration * minibatch.obs.square().mean()
            return losses, inter_vars, stats

    class Mixin:
        def compute_losses(self, minibatch):
            return super().compute_losses(minibatch)

    class Mixed(Mixin, PPO):
        graph_safe = True

    class Declared(PPO):
        graph_safe = True

        def compute_losses(self, minibatch):
            losses, inter_vars, stats = super().compute_losses(minibatch)
            losses["fading"] = 0.5**self.iteration * minibatch.obs.square().mean()
            return losses, inter_vars, stats

    class Counting(PPO):
        def update(self, current_learning_iteration):
            return super().update(self.current_learning_iteration + 1)

    monkeypatch.setattr(st_rl.algorithms, "Fading", Fading, raising=False)
    runner = make_runner(config=small_config(algorithm={"class_name": "Fading"}, engine="compile"))
    runner.learn(1)
    assert not runner.alg.engine.plan.compiles
    assert "Fading overrides methods that the engine compiles and does not declare graph_safe" in caplog.text
    policy = runner.alg.actor_critic
    classes = (PPO, Counting, Declared, Fading, Mixed)
    assert [cls(policy).capture_obstacle() is None for cls in classes] == [1, 1, 1, 0, 0]
