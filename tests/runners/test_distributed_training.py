"""A training over several ranks equals one with all environments."""

import logging
from pathlib import Path

import pytest
import torch

from st_rl.engine.graph import WARM_UP_CALLS
from st_rl.runners import OnPolicyRunner, on_policy_runner
from st_rl.utils import distributed
from st_rl.utils.distributed import rank
from st_rl.utils.files import load_checkpoint
from st_rl.utils.log import logger
from tests.engine.recorded_graph import plan_recorded_graphs
from tests.fakes import EchoEnv
from tests.ranks import run_ranks
from tests.runners.rank_trainings import NUM_ENVS, families, make_training, save_teacher, shared_state
from tests.runners.training import differences, progress, small_config

ITERATIONS = 5
NAMES = list(families(Path()))


def train_all(folder):
    """Five iterations of every family; returns the state that must be equal on all ranks."""
    results = {}
    for name in NAMES:
        runner = make_training(name, folder)
        runner.learn(ITERATIONS)
        results[name] = shared_state(runner)
    return results


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    save_teacher(folder / "teacher.pt")
    return folder


@pytest.fixture(scope="module")
def trained(folder):
    return run_ranks(train_all, folder, 2)


@pytest.mark.parametrize("name", NAMES)
def test_ranks_are_bit_exact(trained, name):
    first, second = (result[name] for result in trained)
    assert differences(first, second) == []
    assert any("obs_norm" in key for key in first)


@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_equal_one_with_all_the_data(trained, folder, name):
    alone = make_training(name, folder)
    start = shared_state(alone)
    alone.learn(ITERATIONS)
    state = shared_state(alone)
    assert differences(start, state)
    for key, value in state.items():
        torch.testing.assert_close(
            trained[0][name][key], value, atol=1e-6, rtol=1e-5, msg=lambda text, key=key: f"{key}: {text}"
        )


# ---- exchanges and CUDA graphs -----------------------------------------------------------------------------------


def make_captured_training(name, folder):
    """A training on the CPU with its learning rate in a tensor, as on a GPU."""
    runner = make_training(name, folder, optimizer="Adam")
    optimizer = runner.alg._optimizer
    optimizer._rate_tensor = optimizer._learning_rate = torch.tensor(optimizer.learning_rate)
    runner.alg.learning_rate = optimizer._rate_tensor
    return runner


def train_between_graphs(folder):
    """Train on two ranks eagerly, and with exchanges between the graphs of a step; the states, and what replays ran."""
    results = {}
    for name in NAMES:
        # The workspace of mkldnn's LSTM exists only where gradients are recorded, not in a replay.
        with pytest.MonkeyPatch.context() as patch, torch.backends.mkldnn.flags(enabled=False):
            runner = make_captured_training(name, folder)
            runner.learn(ITERATIONS)
            results[f"{name} eager"] = shared_state(runner)
            plan_recorded_graphs(patch, captures_exchanges=False)
            runner = make_captured_training(name, folder)
            runner.learn(ITERATIONS)
            results[f"{name} graphs"] = shared_state(runner)
            (step,) = runner.alg.engine._steps.values()
            results[f"{name} replays"] = [graph.num_replays for c in step._captures.values() for graph in c.graphs]
    return results


def test_exchange_between_graphs_equals_eager(folder):
    for result in run_ranks(train_between_graphs, folder, 2):
        for name in NAMES:
            # The valid transitions of a discriminator are counted before its losses.
            num_graphs = 3 if name == "APPO-mask" else 2
            # Two epochs of one mini-batch.
            assert result[f"{name} replays"] == [2 * ITERATIONS - WARM_UP_CALLS] * num_graphs, name
            for key, value in result[f"{name} eager"].items():
                message = f"{name} {key}"
                # Graphs pad trajectories to a larger size, which changes the order of sums.
                torch.testing.assert_close(
                    result[f"{name} graphs"][key], value, atol=1e-5, rtol=1e-4,
                    msg=lambda text, message=message: f"{message}: {text}",
                )  # fmt: skip


def train_on_gpu(folder):
    """Every family on the GPU, eager and with graphs: the states, and whether graphs contain the exchange."""
    distributed.EXCHANGE_ALONE = True
    results = {}
    for name in NAMES:
        for setting in ("eager", "graph"):
            runner = make_training(name, folder, optimizer="Adam", engine=setting, device="cuda")
            runner.learn(ITERATIONS)
            results[f"{name} {setting}"] = shared_state(runner)
            steps = runner.alg.engine._steps
            results[f"{name} {setting} captures"] = runner.alg.engine.plan.captures_exchanges
            captures = [capture for step in steps.values() for capture in step._captures.values()]
            results[f"{name} {setting} graphs"] = sum(len(capture.graphs) for capture in captures)
    return results


@pytest.mark.gpu
@pytest.mark.parametrize(("num_ranks", "backend"), [(1, "nccl"), (2, "gloo")])
def test_exchange_with_cuda_graphs_equals_eager(folder, num_ranks, backend):
    """Within the graph with NCCL, between two graphs with ranks that share a GPU."""
    results = run_ranks(train_on_gpu, folder, num_ranks, backend)
    assert results[0]["PPO graph graphs"] == (1 if backend == "nccl" else 2)
    for name in NAMES:
        assert results[0][f"{name} graph captures"] == (backend == "nccl")
        eager, state = results[0][f"{name} eager"], results[0][f"{name} graph"]
        for result in results:
            assert differences(state, result[f"{name} graph"]) == []
        for key, value in eager.items():
            message = f"{name} {key}"
            torch.testing.assert_close(
                state[key], value, atol=1e-5, rtol=1e-4, msg=lambda text, message=message: f"{message}: {text}"
            )


# Parts with a state per rank: hidden states, replay, discounted intrinsic rewards, random numbers.
RESUMED = ("PPO-rnd", "PPO-lstm", "APPO", "TPPO-gru")


def train_in_two_ways(folder):
    """Six iterations at once, and three, a resume and three more, with random mini-batch order."""
    for name in RESUMED:
        settings = {"optimizer": "Adam", "num_mini_batches": 2}
        whole = make_training(name, folder, folder / "whole" / name, **settings)
        whole.learn(6)
        first = make_training(name, folder, folder / "parts" / name, **settings)
        first.learn(3)
        first.close()
        second = make_training(name, folder, folder / "parts" / name, **settings, seed=77)
        second.load(folder / "parts" / name / "model_3.pt")
        second.learn(3)
    return {}


@pytest.fixture(scope="module")
def resumed(folder):
    run_ranks(train_in_two_ways, folder, 2)
    return folder


@pytest.mark.parametrize("name", RESUMED)
def test_resume_on_as_many_ranks_is_bit_exact(resumed, name):
    whole, parts = (load_checkpoint(resumed / part / name / "model_6.pt") for part in ("whole", "parts"))
    for checkpoint in (whole, parts):
        assert len(checkpoint["rank_state_dicts"]) == 1
        for state in (checkpoint, *checkpoint["rank_state_dicts"]):
            state["runner_state_dict"].pop("tot_time")
    assert differences(whole, parts) == []
    assert differences(whole["rng_state_dict"], whole["rank_state_dicts"][0]["rng_state_dict"])


def test_steps_and_csv_rows_count_all_ranks(resumed):
    rows = progress(resumed / "whole" / "PPO-lstm")
    assert len(rows) == 6
    steps = load_checkpoint(resumed / "whole" / "PPO-lstm" / "model_6.pt")["runner_state_dict"]["tot_timesteps"]
    assert steps == 6 * 6 * NUM_ENVS


def test_other_number_of_ranks_continues_with_new_episodes(resumed, caplog):
    runner = make_training("PPO-lstm", resumed, optimizer="Adam", num_mini_batches=2)
    with caplog.at_level("WARNING", logger="st_rl"):
        runner.load(resumed / "whole" / "PPO-lstm" / "model_6.pt")
    assert "trained on 2 ranks and continues on 1" in caplog.text
    saved = load_checkpoint(resumed / "whole" / "PPO-lstm" / "model_6.pt")
    assert differences(dict(runner.alg.actor_critic.state_dict()), dict(saved["model_state_dict"])) == []
    runner.learn(1)
    assert runner.current_learning_iteration == 7


# ---- ranks that a script has started wrongly, and decisions of one rank that all follow ---------------------------


def error_of(call):
    """The text of the error that a call raises; empty without one."""
    try:
        call()
    except (RuntimeError, ValueError) as error:
        return str(error)
    return ""


class BrokenOnOneRank(EchoEnv):
    """Delivers only NaN on rank 1."""

    def step(self, actions):
        obs, rewards, dones, infos = super().step(actions)
        return obs * (float("nan") if rank() == 1 else 1.0), rewards, dones, infos


def start_wrongly(folder):
    """What both ranks of a careless script see."""
    seen = {}
    logger.setLevel("INFO")
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger.addHandler(handler)
    config = small_config(engine="eager")
    torch.manual_seed(7)
    # All with one seed, and the folder on rank 0 alone.
    runner = OnPolicyRunner(EchoEnv(num_envs=4, seed=3), config, log_dir=folder / "run" if rank() == 0 else None)
    seen["log"] = "\n".join(lines)
    seen["noise"] = torch.randn(3)
    runner.learn(2)
    seen["num_files"] = len(list((folder / "run").glob("model_*.pt")))
    seen["sizes"] = error_of(lambda: OnPolicyRunner(EchoEnv(num_envs=4 + rank(), seed=rank()), config))
    broken = OnPolicyRunner(BrokenOnOneRank(num_envs=4, seed=rank()), config)
    seen["never_finite"] = error_of(lambda: broken.learn(2))
    return seen


@pytest.fixture(scope="module")
def careless(tmp_path_factory):
    return run_ranks(start_wrongly, tmp_path_factory.mktemp("careless"), 2)


def test_folder_on_rank_0_alone_is_enough(careless):
    assert careless[0]["num_files"] == 1


def test_ranks_with_one_seed_get_different_random_numbers(careless):
    first, second = careless
    assert not torch.equal(first["noise"], second["noise"])
    assert "started with the same random numbers" in second["log"]
    assert all("deliver the same observations" in seen["log"] for seen in careless)


def test_all_ranks_reject_different_numbers_of_environments(careless):
    for seen in careless:
        assert "environments x steps are rank 0: 4 x 6, rank 1: 5 x 6" in seen["sizes"]


def test_all_ranks_stop_when_one_environment_is_never_finite(careless):
    assert careless[1]["never_finite"].startswith("iteration 0: observations of the environment of rank 1 were NaN")
    assert "of the environment of rank 1 were NaN" in careless[0]["never_finite"]


# ---- limits ----------------------------------------------------------------------------------------------------------


def test_time_limit_of_exchanges_begins_after_the_first_iteration(monkeypatch):
    """Until then rank 0 may load TensorBoard or evaluate while the others wait for it."""
    limits = []
    runner = OnPolicyRunner(EchoEnv(num_envs=4), small_config(engine="eager", rank_timeout_s=7.0))
    monkeypatch.setattr(
        on_policy_runner, "limit_exchanges", lambda seconds: limits.append((runner.current_learning_iteration, seconds))
    )
    runner.learn(2)
    runner.learn(2)
    assert limits == [(0, 600.0), (1, 7.0), (2, 600.0), (3, 7.0)]
