import csv
import dataclasses
import importlib
import sys
import time
import types

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from st_rl.loggers.writers import CsvWriter, MultiWriter, make_writer


def rows(folder):
    with open(folder / "progress.csv", newline="") as file:
        return [{tag: value for tag, value in row.items() if tag != "wall_time"} for row in csv.DictReader(file)]


def events(folder):
    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    tags = accumulator.Tags()["scalars"]
    return {tag: [(event.step, event.value) for event in accumulator.Scalars(tag)] for tag in tags}


def log_two_steps(writer):
    for step in range(2):
        writer.add_scalar("Loss/value_loss", torch.tensor(0.5 + step), step)
        writer.add_scalar("Train/mean_reward", 2.0 * step, step)
    writer.add_scalar("Train/mean_reward/time", 2.0, 17)


@pytest.mark.parametrize("name", ["tensorboard", "TensorBoard"])
def test_tensorboard_and_csv_hold_what_was_logged(tmp_path, name):
    writer = make_writer(name, str(tmp_path), {})
    log_two_steps(writer)
    writer.save_model("model_1.pt", 1)  # no effect and no error
    writer.save_file("a.diff")
    writer.log_config({}, {}, {}, {})
    writer.add_text("note", "a method that only SummaryWriter has")
    with pytest.raises(AttributeError, match="add_nonsense"):
        writer.add_nonsense()
    writer.close()
    assert events(tmp_path) == {
        "Loss/value_loss": [(0, 0.5), (1, 1.5)],
        "Train/mean_reward": [(0, 0.0), (1, 2.0)],
        "Train/mean_reward/time": [(17, 2.0)],
    }
    assert rows(tmp_path) == [
        {"step": "0", "Loss/value_loss": "0.5", "Train/mean_reward": "0.0"},
        {"step": "1", "Loss/value_loss": "1.5", "Train/mean_reward": "2.0"},
    ]


def test_run_writers_forward_to_logger(tmp_path):
    writer = make_writer("tensorboard", str(tmp_path), {})
    logger = writer.writers["tensorboard"]
    assert writer.get_logdir() == str(tmp_path)
    assert writer.file_writer is logger.file_writer
    assert writer.flush() is None
    writer.close()


def test_uses_tensorboardx_without_tensorboard(monkeypatch):
    class Other:
        pass

    importlib.import_module("st_rl.loggers.summary_writer")  # so that monkeypatch puts the real one back
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    monkeypatch.setitem(sys.modules, "tensorboardX", types.SimpleNamespace(SummaryWriter=Other))
    monkeypatch.delitem(sys.modules, "st_rl.loggers.summary_writer", raising=False)
    assert importlib.import_module("st_rl.loggers.summary_writer").SummaryWriter is Other
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.delitem(sys.modules, "st_rl.loggers.summary_writer")
    with pytest.raises(ImportError, match="pip install tensorboard"):
        importlib.import_module("st_rl.loggers.summary_writer")


def test_unknown_logger_lists_known_ones(tmp_path):
    with pytest.raises(ValueError, match=r"'tensorbord'; known loggers: tensorboard, wandb, neptune"):
        make_writer("tensorbord", tmp_path, {})
    assert list(tmp_path.iterdir()) == []


class Broken:
    """A writer that raises in every call while `broken`."""

    def __init__(self):
        self.calls = 0
        self.is_broken = True

    def add_scalar(self, *args):
        self.calls += 1
        if self.is_broken:
            raise ConnectionError("no route")

    def close(self):
        raise OSError("gone")


def test_failing_writer_is_reported_and_disabled(tmp_path, caplog):
    broken, good = Broken(), CsvWriter(tmp_path)
    writer = MultiWriter({"broken": broken, "csv": good}, tmp_path)
    for step in range(10):
        writer.add_scalar("a", step, step)
    writer.close()
    assert broken.calls == 3
    assert len(rows(tmp_path)) == 10
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 3  # the first failure, disabling, and close
    assert "no route" in messages[0]
    assert "switched off" in messages[1]


def test_writer_continues_after_recovery(tmp_path):
    broken = Broken()
    writer = MultiWriter({"broken": broken}, tmp_path)
    for step in range(12):
        broken.is_broken = step % 3 != 2
        writer.add_scalar("a", step, step)
    assert broken.calls == 12


def test_csv_columns_grow_and_absent_values_are_empty(tmp_path):
    writer = CsvWriter(tmp_path)
    writer.add_scalar("a", 1.0, 0)
    writer.add_scalar("a", 2.0, 10)
    writer.add_scalar("b, with a comma", float("nan"), 10)
    writer.add_scalar("c", 3.0, 20)
    writer.close()
    writer.close()
    assert rows(tmp_path) == [
        {"step": "0", "a": "1.0", "b, with a comma": "", "c": ""},
        {"step": "10", "a": "2.0", "b, with a comma": "nan", "c": ""},
        {"step": "20", "a": "", "b, with a comma": "", "c": "3.0"},
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["progress.csv"]


def test_csv_rows_are_on_disk_when_the_next_step_begins(tmp_path):
    writer = CsvWriter(tmp_path)
    for step in range(3):
        writer.add_scalar("a", 1.0, step)
    assert len(rows(tmp_path)) == 2


def test_csv_has_one_row_per_step_even_for_values_that_come_late(tmp_path):
    writer = CsvWriter(tmp_path)
    for step in range(3):
        writer.add_scalar("a", step, step)
    writer.flush()
    writer.add_scalar("b", 5.0, 1)
    writer.add_scalar("a", 3.0, 3)
    writer.add_scalar("b", 6.0)  # without a step: that of the last call
    writer.close()
    assert [(row["step"], row["a"], row["b"]) for row in rows(tmp_path)] == [
        ("0", "0.0", ""),
        ("1", "1.0", "5.0"),
        ("2", "2.0", ""),
        ("3", "3.0", "6.0"),
    ]


def test_csv_of_resumed_run_continues_and_replaces_later_rows(tmp_path):
    first = CsvWriter(tmp_path)
    for step in range(5):
        first.add_scalar("a", step, step)
    first.close()
    with open(tmp_path / "progress.csv", "a") as file:
        file.write("5,12")  # the process died while writing
    resumed = CsvWriter(tmp_path)
    for step in (3, 4):
        resumed.add_scalar("a", 100 + step, step)
        resumed.add_scalar("b", 0, step)
    resumed.close()
    assert [(row["step"], row["a"], row["b"]) for row in rows(tmp_path)] == [
        ("0", "0.0", ""),
        ("1", "1.0", ""),
        ("2", "2.0", ""),
        ("3", "103.0", "0.0"),
        ("4", "104.0", "0.0"),
    ]


@dataclasses.dataclass
class Config:
    decimation: int = 4


class WithToDict:
    def to_dict(self):
        return {"scale": 0.25, "device": torch.device("cpu")}


@pytest.fixture
def offline_wandb(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for variable in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / "wandb_home"))
    wandb = pytest.importorskip("wandb")
    yield wandb
    wandb.teardown()  # ends wandb's own process here, not at the exit of the test run


def wait_for_text(path, text):
    """Wait for `text` in the file and return its content: wandb's process may write after the run is finished."""
    deadline = time.monotonic() + 30
    while text not in (content := path.read_bytes()):
        assert time.monotonic() < deadline, content
        time.sleep(0.05)
    return content


def test_wandb_writes_offline(tmp_path, offline_wandb, caplog):
    folder = tmp_path / "2026_run"
    folder.mkdir()
    model = folder / "model_1.pt"
    model.write_bytes(b"weights")
    writer = make_writer("wandb", folder, {"wandb_project": "walking"})
    run = writer.writers["wandb"].run
    assert (run.project, run.name) == ("walking", "2026_run")
    log_two_steps(writer)
    writer.log_config(WithToDict(), {"seed": 1, "logger": None}, {"gamma": 0.99}, {"class_name": "ActorCritic"})
    writer.save_model(model, 1)
    film = folder / "film_1.mp4"
    for path in (film, film.with_suffix(".gif")):
        path.write_bytes(b"GIF89a\x04\x00\x02\x00film")
    # Of an iteration that is over: wandb must not drop it.
    writer.add_film("Film/policy", film, film.with_suffix(".gif"), 0)
    writer.add_scalar("Train/mean_reward", 3.0, 2)
    assert run.config["env_cfg"] == {"scale": 0.25, "device": "cpu"}
    assert run.config["alg_cfg"] == {"gamma": 0.99}
    writer.close()
    records = list(folder.glob("wandb/offline-run-*/*.wandb"))
    assert len(records) == 1
    content = wait_for_text(records[0], b"Train/mean_reward_time")
    assert b"Train/mean_reward/time" not in content
    assert events(folder)["Train/mean_reward"] == [(0, 0.0), (1, 2.0), (2, 3.0)]
    assert list(folder.glob("wandb/offline-run-*/files/model_1.pt"))
    uploaded = list(folder.glob("wandb/offline-run-*/files/media/videos/Film/policy*.mp4"))
    assert [path.read_bytes() for path in uploaded] == [film.read_bytes()]
    assert "failed" not in caplog.text


def test_rejects_wandb_without_project_before_writing(tmp_path):
    with pytest.raises(KeyError, match="wandb_project"):
        make_writer("wandb", tmp_path, {"wandb_project": None})
    assert list(tmp_path.iterdir()) == []


def test_local_files_are_kept_if_service_does_not_start(tmp_path, monkeypatch, caplog):
    def refuse(**kwargs):
        raise ConnectionError("api key not configured")

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=refuse))
    writer = make_writer("wandb", tmp_path, {"wandb_project": "walking"})
    log_two_steps(writer)
    writer.log_config({}, {}, {}, {})
    writer.save_model("model_1.pt", 1)
    writer.close()
    assert "api key not configured" in caplog.text
    assert len(rows(tmp_path)) == 2
    assert events(tmp_path)["Loss/value_loss"] == [(0, 0.5), (1, 1.5)]


@pytest.mark.parametrize("name", ["wandb", "neptune"])
def test_missing_package_names_the_extra(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=rf'pip install "st_rl\[{name}\]"'):
        make_writer(name, tmp_path, {"wandb_project": "a", "neptune_project": "a/b"})
    assert list(tmp_path.iterdir()) == []


class FakeRun(dict):
    """The part of Neptune's `Run` that the writer uses: fields, series and uploads."""

    def __missing__(self, key):
        self[key] = FakeField()
        return self[key]

    def stop(self):
        self.is_stopped = True


class FakeField:
    def __init__(self):
        self.values = []
        self.uploads = []

    def append(self, value, step=None):
        self.values.append((step, value))

    def upload(self, path):
        self.uploads.append(path)


@pytest.fixture
def fake_neptune(monkeypatch):
    for variable in ("NEPTUNE_USERNAME", "NEPTUNE_API_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    started = []

    def init_run(**options):
        started.append(options)
        return FakeRun()

    monkeypatch.setitem(sys.modules, "neptune", types.SimpleNamespace(init_run=init_run))
    return started


def test_neptune_without_token_works_offline_with_message(tmp_path, fake_neptune, caplog):
    writer = make_writer("neptune", tmp_path, {"neptune_project": "walking"})
    assert fake_neptune == [{"project": "walking", "name": tmp_path.name, "mode": "offline"}]
    assert sum("offline" in record.getMessage() for record in caplog.records) == 1
    run = writer.writers["neptune"].run
    log_two_steps(writer)
    writer.log_config(Config(), {"seed": 1}, {"gamma": 0.99}, {})
    writer.save_model("runs/model_7.pt", 7)
    writer.save_file("runs/git/st_rl.diff")
    writer.close()
    assert run["Loss/value_loss"].values == [(0, 0.5), (1, 1.5)]
    assert run["Train/mean_reward_time"].values == [(17, 2.0)]
    assert "Train/mean_reward/time" not in run
    assert run["env_cfg"] == {"decimation": 4}
    assert run["model/saved_model_7"].uploads == ["runs/model_7.pt"]
    assert run["git_diff/st_rl"].uploads == ["runs/git/st_rl.diff"]
    assert run.is_stopped
    assert events(tmp_path)["Train/mean_reward"] == [(0, 0.0), (1, 2.0)]


@pytest.mark.parametrize(
    ("username", "project", "expected"), [("me", "walking", "me/walking"), (None, "team/walking", "team/walking")]
)
def test_neptune_project_and_token(tmp_path, fake_neptune, monkeypatch, username, project, expected):
    monkeypatch.setenv("NEPTUNE_API_TOKEN", "token")
    if username:
        monkeypatch.setenv("NEPTUNE_USERNAME", username)
    make_writer("neptune", tmp_path, {"neptune_project": project}).close()
    assert fake_neptune[0]["project"] == expected
    assert fake_neptune[0]["api_token"] == "token"
    assert "mode" not in fake_neptune[0]


def test_rejects_neptune_without_project_or_workspace(tmp_path, fake_neptune, monkeypatch):
    with pytest.raises(KeyError, match="neptune_project"):
        make_writer("neptune", tmp_path, {})
    monkeypatch.setenv("NEPTUNE_API_TOKEN", "token")
    with pytest.raises(KeyError, match="NEPTUNE_USERNAME"):
        make_writer("neptune", tmp_path, {"neptune_project": "walking"})


def test_neptune_writes_offline(tmp_path, monkeypatch, caplog):
    pytest.importorskip("neptune")
    monkeypatch.delenv("NEPTUNE_API_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)  # neptune keeps offline runs in the working folder
    diff = tmp_path / "st_rl.diff"
    diff.write_text("diff")
    writer = make_writer("neptune", tmp_path / "run", {"neptune_project": "walking"})
    log_two_steps(writer)
    writer.log_config(WithToDict(), {"seed": 1, "logger": None, "dims": [1, 2], "empty": {}}, {}, {"a": {"b": 2}})
    writer.save_file(diff)
    writer.close()
    content = b"".join(path.read_bytes() for path in tmp_path.glob(".neptune/offline/*/data-*.log"))
    for name in (b"Loss", b"value_loss", b"mean_reward_time", b"runner_cfg", b"git_diff"):
        assert name in content
    assert "failed" not in caplog.text


def test_configuration_that_cannot_be_converted_is_reported_only(tmp_path, fake_neptune, caplog):
    class Bad:
        def to_dict(self):
            raise RuntimeError("no configuration today")

    writer = make_writer("neptune", tmp_path, {"neptune_project": "walking"})
    writer.log_config(Bad(), {"seed": 1}, {}, {})
    assert "no configuration today" in caplog.text
    assert writer.writers["neptune"].run["runner_cfg"] == {"seed": 1}
    writer.close()
