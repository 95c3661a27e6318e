"""Files of a run folder: curves, checkpoints, `best.pt`, configuration and code state."""

import json
import math
import re
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from st_rl.runners import OnPolicyRunner, checkpoints, on_policy_runner
from st_rl.runners.checkpoints import CheckpointKeeper
from st_rl.utils.files import load_checkpoint, newest_checkpoint
from tests.fakes import ClientEnv, EchoEnv
from tests.runners.training import RND, NoveltyEnv, make_runner, progress, small_config

TAGS = {
    "Loss/surrogate_loss",
    "Loss/value_loss",
    "Loss/entropy",
    "Loss/total_loss",
    "Loss/learning_rate",
    "Policy/mean_noise_std",
    "Perf/total_fps",
    "Perf/collection time",
    "Perf/learning_time",
    "Perf/process_memory",
    "Train/mean_reward_each_timestep",
    "Metrics/velrmsd",
    "Metrics/CoT",
}
EPISODE_TAGS = {"Train/mean_reward", "Train/ratio_above_mean_reward", "Train/mean_episode_length"}
TIME_TAGS = {"Train/mean_reward/time", "Train/mean_episode_length/time"}


def events(folder):
    """Tag -> [(step, value)] of all event files of a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return {tag: [(e.step, e.value) for e in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}


def checkpoint_files(folder):
    return sorted(path.name for path in folder.iterdir() if path.suffix == ".pt")


# ---- curves ----------------------------------------------------------------------------------------------------------


def test_tensorboard_and_csv_hold_every_tag(tmp_path):
    env = ClientEnv(episode_length=8, termination_prob=0.0)
    runner = make_runner(env, small_config(), log_dir=tmp_path)
    runner.learn(2)  # episodes of 8 steps end in the second rollout of 6
    own = {"Episode_Reward/echo", "Metrics/velocity_error"}
    rows = progress(tmp_path)
    assert set(rows[0]) == TAGS | own | {"step", "wall_time"}
    assert set(rows[1]) == set(rows[0]) | EPISODE_TAGS
    runner.close()
    curves = events(tmp_path)
    assert set(curves) == TAGS | own | EPISODE_TAGS | TIME_TAGS
    for tag in TAGS | own | EPISODE_TAGS:
        from_csv = [(int(row["step"]), float(row[tag])) for row in rows if tag in row]
        assert curves[tag] == [(step, pytest.approx(value, rel=1e-6)) for step, value in from_csv]
    assert [step for step, _ in curves["Train/mean_reward/time"]] == [int(runner.tot_time)]


def test_logged_values_equal_training(tmp_path):
    runner = make_runner(NoveltyEnv(episode_length=5), small_config(algorithm={"rnd_cfg": RND}), log_dir=tmp_path)
    runner.learn(1)
    row = {tag: float(value) for tag, value in progress(tmp_path)[0].items()}
    returns, lengths = list(runner._episodes.rewbuffer), list(runner._episodes.lenbuffer)
    assert len(returns) == 8
    average = sum(returns) / 8
    assert row["Train/mean_reward"] == pytest.approx(average)
    assert row["Train/ratio_above_mean_reward"] == sum(value > average for value in returns) / 8
    assert row["Train/mean_episode_length"] == sum(lengths) / 8 == 5.0
    assert row["Train/mean_reward_each_timestep"] == pytest.approx(float(np.mean(runner._episodes.rframebuffer)))
    assert row["Policy/mean_noise_std"] == pytest.approx(float(runner.alg.actor_critic.std.detach().mean()))
    assert row["Loss/learning_rate"] == 1e-3
    assert row["Perf/total_fps"] == pytest.approx(48 / (row["Perf/collection time"] + row["Perf/learning_time"]))
    assert row["Rnd/weight"] == pytest.approx(0.1 * (1 - 6 / 40))
    assert row["Rnd/mean_extrinsic_reward"] == row["Train/mean_reward_each_timestep"]
    assert row["Rnd/mean_intrinsic_reward"] == pytest.approx(float(runner.alg.intrinsic_rewards.mean()))
    assert row["Loss/rnd"] > 0
    assert math.isnan(row["Metrics/velrmsd"])


def test_log_interval_skips_rows_but_counts_all_episodes(tmp_path):
    runner = make_runner(config=small_config(log_interval=3), log_dir=tmp_path)
    runner.learn(7)
    assert [row["step"] for row in progress(tmp_path)] == ["0", "3", "6"]
    assert runner.tot_timesteps == 7 * 6 * 8


def test_curves_are_complete_after_learn(tmp_path):
    runner = make_runner(log_dir=tmp_path)
    runner.learn(2)
    assert len(progress(tmp_path)) == 2
    assert [step for step, _ in events(tmp_path)["Loss/value_loss"]] == [0, 1]
    runner.learn(1)
    assert [row["step"] for row in progress(tmp_path)] == ["0", "1", "2"]


@pytest.mark.parametrize("in_background", [False, True])
def test_row_is_in_csv_before_its_checkpoint(tmp_path, monkeypatch, in_background):
    monkeypatch.setattr(OnPolicyRunner, "_writes_in_background", in_background)
    write, rows = checkpoints.write_checkpoint, {}

    def write_and_count(payload, path):
        rows[path.name] = len(progress(tmp_path))
        write(payload, path)

    monkeypatch.setattr(on_policy_runner, "write_checkpoint", write_and_count)
    make_runner(config=small_config(save_interval=1, keep_best=False), log_dir=tmp_path).learn(3)
    assert rows == {"model_1.pt": 1, "model_2.pt": 2, "model_3.pt": 3}


def test_failing_logger_does_not_stop_training(tmp_path, caplog, monkeypatch):
    runner = make_runner(config=small_config(save_interval=1, keep_best=False), log_dir=tmp_path)
    runner.init_writter(False)

    def fail(*args, **kwargs):
        raise ConnectionError("the service has closed")

    for method in ("add_scalar", "flush", "close"):
        monkeypatch.setattr(runner.writer.writers["tensorboard"], method, fail)
    runner.learn(2)
    runner.close()
    assert checkpoint_files(tmp_path) == ["model_1.pt", "model_2.pt"]
    assert len(progress(tmp_path)) == 2
    assert caplog.text.count("ConnectionError: the service has closed") == 3


class Recorder:
    """A user's writer with `add_scalar` only."""

    def __init__(self):
        self.steps = {}

    def add_scalar(self, tag, value, step):
        self.steps.setdefault(tag, []).append(step)


class OwnWriter(OnPolicyRunner):
    """Overrides `init_writter` to set a writer."""

    def init_writter(self, init_at_random_ep_len):
        if self.writer is None:
            self.writer = Recorder()


def writer_of_an_override(folder):
    runner = OwnWriter(EchoEnv(), small_config(save_interval=2, keep_best=False), log_dir=folder)
    runner.init_writter(False)
    return runner


def writer_set_from_outside(folder):
    runner = make_runner(config=small_config(save_interval=2, keep_best=False), log_dir=folder)
    runner.writer = Recorder()
    return runner


@pytest.mark.parametrize("make", [writer_of_an_override, writer_set_from_outside])
def test_own_writer_replaces_default(tmp_path, make):
    runner = make(tmp_path)
    writer = runner.writer
    runner.learn(3)
    runner.close()
    assert set(writer.steps) >= TAGS
    assert writer.steps["Loss/value_loss"] == [0, 1, 2]
    assert checkpoint_files(tmp_path) == ["model_2.pt", "model_3.pt"]


class FailingWriter(Recorder):
    """A user's writer that raises in every method."""

    def add_scalar(self, tag, value, step):
        raise ConnectionError("the service has closed")

    flush = save_model = close = add_scalar


def test_failing_writer_of_the_user_does_not_stop_training(tmp_path, caplog):
    runner = make_runner(config=small_config(save_interval=2, keep_best=False), log_dir=tmp_path)
    runner.writer = FailingWriter()
    runner.learn(3)
    runner.close()
    assert checkpoint_files(tmp_path) == ["model_2.pt", "model_3.pt"]
    assert "runner.writer: add_scalar failed: ConnectionError: the service has closed" in caplog.text


@pytest.fixture
def offline_wandb(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for variable in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / "home"))
    yield
    wandb.teardown()  # ends wandb's own process here, not at the exit of the test run


def test_wandb_offline(tmp_path, offline_wandb, caplog):
    folder = tmp_path / "run"
    config = small_config(logger="WandB", wandb_project="walking")
    runner = make_runner(EchoEnv(episode_length=3), config, log_dir=folder)
    runner.learn(1)
    run = runner.writer.writers["wandb"].run
    assert run.config["policy_cfg"]["actor_hidden_dims"] == [8]
    runner.close()
    assert list(folder.glob("wandb/offline-run-*/files/model_1.pt"))
    assert list(folder.glob("wandb/offline-run-*/files/*.diff"))
    assert not (set(events(folder)) & TIME_TAGS)  # wandb has one step axis only
    assert "Train/mean_reward" in events(folder)
    assert "failed" not in caplog.text


def test_rejects_logger_without_project_before_training(tmp_path):
    runner = make_runner(config=small_config(logger="wandb"), log_dir=tmp_path)
    with pytest.raises(KeyError, match="wandb_project"):
        runner.learn(1)
    assert runner.current_learning_iteration == 0
    assert runner.writer is None


# ---- checkpoints -----------------------------------------------------------------------------------------------------


def test_checkpoints_are_named_after_completed_iterations(tmp_path):
    runner = make_runner(config=small_config(save_interval=2, keep_best=False), log_dir=tmp_path)
    runner.learn(5)
    assert checkpoint_files(tmp_path) == ["model_2.pt", "model_4.pt", "model_5.pt"]
    for number in (2, 4, 5):
        assert load_checkpoint(tmp_path / f"model_{number}.pt")["iter"] == number
    assert runner.current_learning_iteration == 5
    runner.learn(1)
    assert newest_checkpoint(tmp_path) == tmp_path / "model_6.pt"


@pytest.mark.parametrize("in_background", [False, True])
def test_training_calls_overridden_save(tmp_path, monkeypatch, in_background):
    class Exporting(OnPolicyRunner):
        """Exports its policy with every checkpoint, as clients do."""

        def save(self, path, infos=None):
            super().save(path, infos={"exported": True})
            torch.save(load_checkpoint(path)["model_state_dict"], path.replace("model_", "policy_"))

    monkeypatch.setattr(Exporting, "_writes_in_background", in_background)
    Exporting(EchoEnv(), small_config(save_interval=2, keep_best=False), log_dir=tmp_path).learn(3)
    assert checkpoint_files(tmp_path) == ["model_2.pt", "model_3.pt", "policy_2.pt", "policy_3.pt"]
    assert load_checkpoint(tmp_path / "model_3.pt")["infos"] == {"exported": True}


def test_last_checkpoint_replaces_existing_file(tmp_path):
    (tmp_path / "model_2.pt").write_bytes(b"of another training")
    make_runner(log_dir=tmp_path).learn(2)
    assert load_checkpoint(tmp_path / "model_2.pt")["iter"] == 2


def test_training_from_older_checkpoint_replaces_last_one(tmp_path):
    runner = make_runner(config=small_config(save_interval=1), log_dir=tmp_path)
    runner.learn(3)
    runner.load(tmp_path / "model_1.pt", load_optimizer=False)
    runner.save_interval = 100
    runner.learn(2)
    saved = load_checkpoint(tmp_path / "model_3.pt")["model_state_dict"]
    assert torch.equal(saved["actor.0.weight"], runner.alg.actor_critic.actor[0].weight)


def test_checkpoint_reads_environment_state_once(tmp_path):
    asked = []

    class Counting(EchoEnv):
        def state_dict(self):
            asked.append(1)
            return super().state_dict()

    make_runner(Counting(), small_config(save_interval=1), log_dir=tmp_path).learn(2)
    assert len(asked) == len(list(tmp_path.glob("model_*.pt")))


def test_keys_of_a_checkpoint(tmp_path):
    runner = make_runner(NoveltyEnv(), small_config(algorithm={"rnd_cfg": RND}, empirical_normalization=True))
    runner.learn(1)
    runner.save(tmp_path / "deep" / "er" / "model_1.pt", infos={"score": 1.5})
    loaded = load_checkpoint(tmp_path / "deep" / "er" / "model_1.pt")
    assert set(loaded) == {
        "model_state_dict", "optimizer_state_dict", "iter", "infos", "obs_norm_state_dict",
        "critic_obs_norm_state_dict", "rnd_state_dict", "rnd_optimizer_state_dict", "rng_state_dict",
        "runner_state_dict", "env_state_dict",
    }  # fmt: skip
    assert set(loaded["rng_state_dict"]) == {"torch", "numpy", "python"}
    assert (loaded["iter"], loaded["infos"]) == (1, {"score": 1.5})


def test_keep_last_removes_older_checkpoints(tmp_path):
    make_runner(config=small_config(save_interval=1, keep_last=2, keep_best=False), log_dir=tmp_path).learn(5)
    assert checkpoint_files(tmp_path) == ["model_4.pt", "model_5.pt"]


def test_keep_last_keeps_newest_and_foreign_files(tmp_path):
    (tmp_path / "model_100.pt").write_bytes(b"of a longer training")
    (tmp_path / "model_1.pt.backup").write_bytes(b"mine")
    make_runner(config=small_config(save_interval=1, keep_last=1, keep_best=False), log_dir=tmp_path).learn(3)
    assert sorted(p.name for p in tmp_path.glob("model_*")) == ["model_1.pt.backup", "model_100.pt", "model_3.pt"]


def test_best_checkpoint_has_highest_evaluator_score(tmp_path):
    runner = make_runner(config=small_config(save_interval=1), log_dir=tmp_path)
    scores = iter([1.0, 3.0, 2.0, math.nan])
    modes = []

    def evaluator(policy):
        modes.append((runner.alg.actor_critic.training, torch.is_inference_mode_enabled()))
        assert policy(torch.zeros(5, 4)).shape == (5, 2)
        return next(scores)

    runner.evaluator = evaluator
    runner.learn(4)
    best = load_checkpoint(tmp_path / "best.pt")
    assert (best["iter"], best["score"]) == (2, 3.0)
    assert modes == [(False, True)] * 4
    assert runner.alg.actor_critic.training
    fresh = make_runner()
    fresh.load(tmp_path / "best.pt")
    assert fresh.current_learning_iteration == 2


def test_checkpoints_written_in_background_equal_synchronous_ones(tmp_path, monkeypatch):
    synchronous = make_runner(config=small_config(save_interval=2), log_dir=tmp_path / "synchronous")
    synchronous.learn(6)
    torch.manual_seed(0)
    background = make_runner(config=small_config(save_interval=2), log_dir=tmp_path / "background")
    monkeypatch.setattr(type(background), "_writes_in_background", True)
    may_write = threading.Event()
    update, updates = background.alg.update, []

    def counted_update(iteration):
        updates.append(iteration)
        # The first iteration waits for background writes; the second does not.
        if len(updates) == 2:
            background._run_in_background(may_write.wait, 30)
        if len(updates) == 4:
            assert not (tmp_path / "background" / "model_2.pt").exists()
            may_write.set()
        return update(iteration)

    background.alg.update = counted_update
    background.learn(6)
    assert checkpoint_files(tmp_path / "background") == ["best.pt", "model_2.pt", "model_4.pt", "model_6.pt"]
    for name in checkpoint_files(tmp_path / "background"):
        one, other = (load_checkpoint(tmp_path / folder / name) for folder in ("synchronous", "background"))
        one["runner_state_dict"]["tot_time"] = other["runner_state_dict"]["tot_time"]
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_no_background_thread_is_left_between_two_calls_of_learn(tmp_path, monkeypatch):
    """A forked child would wait forever for a thread that was not forked."""
    monkeypatch.setattr(OnPolicyRunner, "_writes_in_background", True)
    runner = make_runner(log_dir=tmp_path)
    for _ in range(2):
        runner.learn(1)
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("st_rl log")]


def test_best_checkpoint_has_highest_mean_return_without_evaluator(tmp_path):
    env = EchoEnv(episode_length=3)
    runner = make_runner(env, small_config(save_interval=1), log_dir=tmp_path)
    runner.learn(1)
    returns = runner._episodes.rewbuffer
    assert load_checkpoint(tmp_path / "best.pt")["score"] == pytest.approx(sum(returns) / len(returns))
    never = make_runner(EchoEnv(episode_length=100), log_dir=tmp_path / "no_episode_ended")
    never.learn(1)
    assert checkpoint_files(tmp_path / "no_episode_ended") == ["model_1.pt"]


def test_resumed_training_must_exceed_best_score_of_folder(tmp_path):
    first = make_runner(log_dir=tmp_path)
    first.evaluator = lambda policy: 5.0
    first.learn(1)
    for score, iteration in ((4.0, 1), (6.0, 2)):
        resumed = make_runner(log_dir=tmp_path)
        resumed.load(tmp_path / "model_1.pt")
        resumed.evaluator = lambda policy, score=score: score
        resumed.learn(1)
        assert load_checkpoint(tmp_path / "best.pt")["iter"] == iteration
    second = make_runner(log_dir=tmp_path)
    second.evaluator = lambda policy: 1.0
    second.learn(1)
    assert load_checkpoint(tmp_path / "best.pt")["score"] == 1.0


def test_first_of_equally_good_checkpoints_is_the_best(tmp_path):
    keeper = CheckpointKeeper(tmp_path, None, keep_best=True)
    for iteration, score in ((1, 0.5), (2, 0.5), (3, 0.4)):
        keeper.offer_best({"model_state_dict": {}, "iter": iteration}, score)
    assert load_checkpoint(tmp_path / "best.pt")["iter"] == 1


def test_damaged_best_checkpoint_is_ignored(tmp_path, caplog):
    (tmp_path / "best.pt").write_bytes(b"half")
    keeper = CheckpointKeeper(tmp_path, None, keep_best=True, resumed=True)
    assert keeper.best_score == -math.inf
    assert "best.pt" in caplog.text


def test_only_checkpoints_are_named_like_checkpoints(tmp_path):
    make_runner(EchoEnv(episode_length=3), small_config(save_interval=1), log_dir=tmp_path).learn(2)
    names = [path.name for path in tmp_path.rglob("*")]
    assert sorted(name for name in names if re.match(r"model_.*.pt", name)) == ["model_1.pt", "model_2.pt"]
    assert not [name for name in names if name.startswith(".")]


# ---- configuration and code ------------------------------------------------------------------------------------------


class LeggedConfig:
    """A configuration with values in class attributes."""

    class Scales:
        lin_vel = 2.0
        height = np.float32(5.0)

    class Control:
        action_scale = 0.25

    def __init__(self):
        self.control = self.Control()
        self.normalization = SimpleNamespace(obs_scales=self.Scales())


def test_config_json_rebuilds_the_run(tmp_path):
    env = EchoEnv()
    vars(env)["cfg"] = LeggedConfig()
    config = small_config(
        {"class_name": "ActorCritic", "init_noise_std": 0.5}, storage={"amp_obs_shape": (42,)}, seed=None
    )
    make_runner(env, config, log_dir=tmp_path).learn(0)
    written = json.loads((tmp_path / "config.json").read_text())
    assert written == {
        "runner": {
            "num_steps_per_env": 6,
            "storage": {"amp_obs_shape": [42]},
            "seed": None,
            "policy_class_name": "ActorCritic",
            "algorithm_class_name": "PPO",
        },
        "policy": config["policy"],
        "algorithm": config["algorithm"],
        "env": {
            "num_obs": 4,
            "num_privileged_obs": 4,
            "num_actions": 2,
            "obs_segments": {"target": 2, "noise": [2]},
            "critic_obs_segments": {"target": 2, "noise": [2]},
        },
        "control": {"action_scale": 0.25},
        "normalization": {"obs_scales": {"lin_vel": 2.0, "height": 5.0}},
    }


@pytest.mark.parametrize(
    ("cfg", "control"),
    [
        ({"control": {"action_scale": [0.5, 0.25]}}, {"action_scale": [0.5, 0.25]}),
        (SimpleNamespace(control=SimpleNamespace(action_scale=torch.tensor([1.0, 2.0]))), {"action_scale": [1.0, 2.0]}),
        (SimpleNamespace(control=None), None),
        (None, None),
    ],
)
@pytest.mark.parametrize("inside", [False, True])
def test_action_scales_are_found_in_dictionaries_objects_and_the_unwrapped_environment(cfg, control, inside, tmp_path):
    env = EchoEnv()
    inner = EchoEnv()
    vars(env)["unwrapped"] = inner
    vars(inner if inside else env)["cfg"] = cfg
    make_runner(env, log_dir=tmp_path).learn(0)
    assert json.loads((tmp_path / "config.json").read_text()).get("control") == control


def test_unsupported_json_values_become_text(tmp_path):
    config = small_config(run_name=tmp_path / "x", class_name=EchoEnv)
    make_runner(config=config, log_dir=tmp_path).learn(0)
    written = json.loads((tmp_path / "config.json").read_text())["runner"]
    assert written["run_name"] == str(tmp_path / "x")
    assert "EchoEnv" in written["class_name"]


def test_code_state_is_recorded_once(tmp_path):
    runner = make_runner(log_dir=tmp_path)
    runner.learn(1)
    diffs = list((tmp_path / "git").glob("*.diff"))
    assert len(diffs) <= 1  # none if the library is not in a repository
    stamps = [path.stat().st_mtime_ns for path in diffs]
    runner.learn(1)
    assert [path.stat().st_mtime_ns for path in diffs] == stamps
