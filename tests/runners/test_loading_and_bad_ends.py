"""Unreadable and unwritable files give one clear message; saved checkpoints are kept."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from st_rl.utils import ckpt_manipulator
from st_rl.utils.files import CheckpointError, load_checkpoint, newest_checkpoint, save_checkpoint
from tests.fakes import EchoEnv
from tests.runners.training import differences, make_runner, progress, small_config, weights

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def saved(tmp_path):
    """Checkpoint of a short training."""
    runner = make_runner(config=small_config(empirical_normalization=True))
    runner.learn(1)
    runner.save(tmp_path / "model_1.pt")
    return tmp_path / "model_1.pt"


# ---- loading ---------------------------------------------------------------------------------------------------------


STRUCTURES = [
    ("model_state_dict", None),
    ("model_state_dict", [1]),
    ("model_state_dict", {"std": 1}),
    ("optimizer_state_dict", {}),
    ("optimizer_state_dict", {"state": 1, "param_groups": [{}]}),
    ("iter", "x"),
    ("iter", [1]),
    ("obs_norm_state_dict", {"_mean": torch.zeros(1)}),
    ("obs_norm_state_dict", 5),
    ("runner_state_dict", {}),
    ("runner_state_dict", None),
    ("rng_state_dict", {"torch": torch.zeros(3)}),
    ("rng_state_dict", {}),
]


@pytest.mark.parametrize(("key", "value"), STRUCTURES)
def test_rejects_checkpoint_of_other_structure(saved, tmp_path, key, value):
    damaged = tmp_path / "model_2.pt"
    save_checkpoint({**load_checkpoint(saved), key: value}, damaged)
    runner = make_runner(config=small_config(empirical_normalization=True))
    with pytest.raises(CheckpointError, match=r"cannot read .*model_2\.pt: .*--checkpoint ITERATION"):
        runner.load(damaged)


def test_rejects_truncated_checkpoint_and_changes_nothing(saved, tmp_path):
    content = saved.read_bytes()
    runner = make_runner(config=small_config(empirical_normalization=True))
    before = weights(runner)
    damaged = tmp_path / "model_2.pt"
    for length in [0, 1, 2, 100, *range(200, len(content), len(content) // 25), len(content) - 1]:
        damaged.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match=r"cannot load checkpoint .*model_2\.pt"):
            runner.load(damaged)
    assert differences(before, weights(runner)) == []
    assert runner.current_learning_iteration == 0


def test_load_discards_captured_graphs(saved, monkeypatch):
    runner = make_runner(config=small_config(empirical_normalization=True))
    forgotten = []
    monkeypatch.setattr(runner.alg.engine, "discard_graphs", lambda: forgotten.append(1))
    runner.load(saved)
    assert len(forgotten) == 1
    runner.get_inference_policy(device="cpu")  # the current device: nothing moves
    assert len(forgotten) == 1
    runner.get_inference_policy(device="meta")
    assert len(forgotten) == 2


class Malicious:
    """Runs code when it is unpickled."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (str(self.trace),)


@pytest.mark.parametrize("writer", ["torch", "pickle"])
def test_rejects_malicious_checkpoint_without_running_it(tmp_path, writer):
    payload = {"model_state_dict": {}, "iter": 1, "infos": Malicious(tmp_path / "trace")}
    path = tmp_path / "model_1.pt"
    if writer == "torch":
        torch.save(payload, path)
    else:
        path.write_bytes(pickle.dumps(payload))
    with pytest.raises(CheckpointError, match=r"model_1\.pt"):
        make_runner().load(path)
    assert not (tmp_path / "trace").exists()


def test_pickle_loads_only_with_trust_pickle(saved, tmp_path, caplog):
    path = tmp_path / "model_2.pt"
    torch.save({**torch.load(saved), "infos": Malicious(tmp_path / "trace")}, path)
    runner = make_runner(config=small_config(empirical_normalization=True))
    runner.load(path, trust_pickle=True)
    assert (tmp_path / "trace").exists()
    assert "trust_pickle=True" in caplog.text


def test_missing_checkpoint_lists_existing_ones(saved):
    with pytest.raises(FileNotFoundError, match=r"no checkpoint .*model_7\.pt; the folder .* holds model_1\.pt"):
        make_runner().load(saved.with_name("model_7.pt"))


def test_rejects_checkpoint_without_model(tmp_path):
    save_checkpoint({"weights": {}, "iter": 3}, tmp_path / "x.pt")
    with pytest.raises(CheckpointError, match=r"has no model_state_dict; its keys are: weights, iter\. Name a model"):
        make_runner().load(tmp_path / "x.pt")


def test_rejects_other_network_with_layer_names(saved):
    runner = make_runner(config=small_config({"actor_hidden_dims": [4]}, empirical_normalization=True))
    with pytest.raises(RuntimeError, match=r"size mismatch for actor\.0\.weight"):
        runner.load(saved)


def test_rejects_normalized_policy_without_normalization(saved):
    runner = make_runner()
    before = weights(runner)
    with pytest.raises(ValueError, match="set empirical_normalization=True"):
        runner.load(saved)
    assert differences(before, weights(runner)) == []


def test_loads_checkpoints_of_older_versions(saved, tmp_path):
    loaded = load_checkpoint(saved)
    old = {
        key: loaded[key] for key in ("model_state_dict", "optimizer_state_dict", "iter", "infos", "obs_norm_state_dict")
    }
    old["privileged_obs_norm_state_dict"] = loaded["critic_obs_norm_state_dict"]
    old["iter"] = 40
    torch.save(old, tmp_path / "model_40.pt")
    runner = make_runner(config=small_config(empirical_normalization=True))
    runner.load(tmp_path / "model_40.pt")
    assert runner.current_learning_iteration == 40
    assert differences(runner.alg.obs_normalizer.state_dict(), loaded["obs_norm_state_dict"]) == []
    runner.learn(1)


# ---- manipulators ----------------------------------------------------------------------------------------------------


def doubled(source, algorithm):
    assert set(algorithm) >= {"model_state_dict", "optimizer_state_dict"}
    model = {name: 2 * value for name, value in source["model_state_dict"].items()}
    return {"model_state_dict": model, "iter": source["iter"], "infos": "doubled"}


@pytest.fixture
def manipulator(monkeypatch):
    monkeypatch.setattr(ckpt_manipulator, "doubled", doubled, raising=False)
    return small_config(ckpt_manipulator="doubled")


def test_manipulator_changes_loaded_state_and_result_is_saved(saved, tmp_path, manipulator, caplog):
    source = saved.read_bytes()
    folder = tmp_path / "new"
    runner = make_runner(config=manipulator, log_dir=folder)
    assert runner.load(saved) == "doubled"
    original = load_checkpoint(saved)["model_state_dict"]
    assert differences({k: 2 * v for k, v in original.items()}, weights(runner)) == []
    assert load_checkpoint(folder / "model_1.pt")["infos"] == "doubled"
    assert "*** checkpoint model_1.pt is modified by 'doubled' before it is loaded ***" in caplog.text
    assert saved.read_bytes() == source
    runner.learn(1)


def test_manipulator_keeps_source_file(saved, manipulator):
    source = saved.read_bytes()
    make_runner(config=manipulator, log_dir=saved.parent).load(saved)
    assert saved.read_bytes() == source


def test_unsavable_manipulator_result_is_loaded(saved, tmp_path, manipulator, caplog):
    (tmp_path / "file").write_text("not a folder")
    runner = make_runner(config=manipulator, log_dir=tmp_path / "file")
    assert runner.load(saved) == "doubled"
    assert "could not save the modified checkpoint" in caplog.text
    assert make_runner(config=manipulator).load(saved) == "doubled"  # without a run folder nothing is written


@pytest.mark.parametrize("name", ["double", "OrderedDict", "__doc__"])
def test_unknown_manipulator_lists_known_ones(saved, manipulator, name):
    with pytest.raises(ValueError, match=f"unknown ckpt_manipulator '{name}'.*known: doubled, replace_encoder0"):
        make_runner(config={**manipulator, "ckpt_manipulator": name}).load(saved)


# ---- writing ---------------------------------------------------------------------------------------------------------


def test_error_if_run_folder_cannot_be_created(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    for folder in (tmp_path / "file", tmp_path / "file" / "run"):
        runner = make_runner(log_dir=folder)
        with pytest.raises(
            OSError, match=rf"cannot create the run folder {folder}: .*Choose a folder you can write to"
        ):
            runner.learn(1)
        assert runner.current_learning_iteration == 0


def test_error_if_run_folder_is_read_only(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    runner = make_runner(log_dir=tmp_path)
    with pytest.raises(OSError, match=rf"the run folder {tmp_path} is read-only. Choose a folder you can write to"):
        runner.learn(1)
    assert list(tmp_path.iterdir()) == []


def test_error_if_configuration_cannot_be_written(tmp_path):
    (tmp_path / "config.json").mkdir()
    runner = make_runner(log_dir=tmp_path)
    with pytest.raises(OSError, match=rf"cannot write the run folder {tmp_path}"):
        runner.learn(1)
    assert runner.writer is None


def test_checkpoint_omits_unsupported_environment_state(tmp_path, caplog):
    class Odd(EchoEnv):
        def state_dict(self):
            return {"simulator": object()}

    class Abstract(EchoEnv):
        def state_dict(self):
            raise NotImplementedError("not yet")

    for env in (Odd(), Abstract()):
        make_runner(env).save(tmp_path / "model_0.pt")
        assert "env_state_dict" not in load_checkpoint(tmp_path / "model_0.pt")
    assert "env.state_dict()['simulator']" in caplog.text
    assert "not yet" in caplog.text


def test_crash_while_saving_keeps_previous_file(tmp_path, monkeypatch):
    runner = make_runner()
    path = tmp_path / "model_0.pt"
    runner.save(path)
    before = path.read_bytes()

    def half(payload, file):
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(KeyboardInterrupt):
        runner.save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def run_until_crash(how, folder):
    command = [sys.executable, "-m", "tests.runners.hard_ends", how, str(folder)]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)


def test_full_disk_gives_one_message_and_keeps_checkpoints(tmp_path):
    done = run_until_crash("full_disk", tmp_path)
    assert done.returncode == 3, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("OSError: [Errno 27] cannot write")]
    assert len(errors) == 1, done.stderr
    assert f"checkpoint {tmp_path / 'model_4.pt'}: File too large; make room" in errors[0]
    # The curves could not be written either, which alone does not stop a training.
    assert "logger csv: add_scalar failed" in done.stderr
    assert len(progress(tmp_path)) >= 2
    assert newest_checkpoint(tmp_path) == tmp_path / "model_2.pt"
    assert not list(tmp_path.glob(".tmp*"))
    make_runner().load(tmp_path / "model_2.pt")


def test_process_killed_while_saving_keeps_previous_checkpoint(tmp_path):
    done = run_until_crash("killed_while_saving", tmp_path)
    assert done.returncode == 9, done.stderr
    assert newest_checkpoint(tmp_path) == tmp_path / "model_2.pt"
    runner = make_runner(log_dir=tmp_path)
    runner.load(tmp_path / "model_2.pt")
    runner.learn(1)
    assert newest_checkpoint(tmp_path) == tmp_path / "model_3.pt"
