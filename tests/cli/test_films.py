"""Films in the log of a training: `--runner.video-interval N`."""

import sys
from types import SimpleNamespace

import pytest

from st_rl.cli import main
from st_rl.cli.support.run_folders.run_folder import RunFolder
from st_rl.cli.support.training import films
from st_rl.cli.support.training.films import FilmRecorder
from st_rl.loggers.writers import make_writer
from tests.browser import wait_for
from tests.cli.test_workflow import needs_rendering

GIF = b"GIF89a" + (3).to_bytes(2, "little") + (2).to_bytes(2, "little") + b"rest"


@pytest.fixture
def recorder(tmp_path):
    """A recorder of a training without networks, every second iteration."""
    (tmp_path / "run.json").write_text('{"task": "balance"}')
    logged = []
    runner = SimpleNamespace(alg=SimpleNamespace(state_dict=dict), log_film=lambda *film: logged.append(film))
    return SimpleNamespace(films=FilmRecorder(runner, RunFolder(tmp_path), 2), logged=logged, folder=tmp_path / "films")


def use_script(monkeypatch, code):
    monkeypatch.setattr(films, "_own_command", lambda: [sys.executable, "-c", code])


def finish(recorder, iteration):
    wait_for(lambda: recorder.films._process.poll() is not None, 30, "the film")
    recorder.films.after_iteration(iteration)


def test_film_is_rendered_beside_the_training_and_logged_under_its_iteration(recorder, monkeypatch):
    code = "import sys, pathlib; pathlib.Path(sys.argv[sys.argv.index('--output') + 1]).write_bytes(b'film')"
    use_script(monkeypatch, code)
    recorder.films.after_iteration(1)
    assert recorder.films._process is None
    recorder.films.after_iteration(2)
    assert recorder.logged == []
    finish(recorder, 3)
    video = recorder.folder / "film_2.mp4"
    assert recorder.logged == [(video, video.with_suffix(".gif"), 2)]
    assert [path.name for path in recorder.folder.iterdir()] == ["film_2.mp4"]


def test_film_that_fails_is_reported_and_given_up_after_two(recorder, monkeypatch, caplog):
    use_script(monkeypatch, "import sys; sys.exit('no library to render with')")
    for iteration in (2, 4):
        recorder.films.after_iteration(iteration)
        finish(recorder, iteration + 1)
    assert "no film of iteration 2: no library to render with" in caplog.text
    assert "no more films in this training" in caplog.text
    recorder.films.after_iteration(6)
    assert recorder.films._process is None
    assert recorder.logged == []


def test_networks_that_cannot_be_saved_do_not_stop_the_training(recorder, caplog):
    recorder.films._runner.alg.state_dict = lambda: {"model_state_dict": object()}
    recorder.films.after_iteration(2)
    assert "no film" in caplog.text


def test_film_at_the_end_is_waited_for(recorder, monkeypatch):
    use_script(monkeypatch, "import time; time.sleep(0.5)")
    recorder.films.after_iteration(2)
    recorder.films.close()
    assert [film[2] for film in recorder.logged] == [2]


def test_gif_appears_in_tensorboard_and_mp4_at_remote_services(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    gif, sent = tmp_path / "film.gif", []
    gif.write_bytes(GIF)
    writer = make_writer("tensorboard", tmp_path, {})
    writer.writers["remote"] = SimpleNamespace(send_film=lambda *film: sent.append(film))
    writer._guards["remote"] = writer._guards["csv"]
    writer.add_film("Film/policy", tmp_path / "film.mp4", gif, 5)
    writer.writers.pop("remote")
    writer.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    image = events.Images("Film/policy")[0]
    assert (image.step, image.width, image.height, image.encoded_image_string) == (5, 3, 2, GIF)
    assert sent == [("Film/policy", tmp_path / "film.mp4", 5)]


def test_training_puts_a_film_into_its_log(tmp_path, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    needs_rendering()
    for name, value in {"SECONDS": 0.2, "_NICENESS": 0, "_LAST_FILM_S": 120.0}.items():
        monkeypatch.setattr(films, name, value)
    options = ["--iterations", "1", "--num-envs", "8", "--runner.video-interval", "1", "--runner.engine", "eager"]
    assert main(["train", "balance", *options, "--log-dir", str(tmp_path)]) == 0
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert events.Images("Film/policy")[0].encoded_image_string.startswith(b"GIF8")


@pytest.mark.parametrize("interval", ["0", "-3"])
def test_interval_must_be_a_whole_number_above_zero(interval, tmp_path, capsys):
    assert main(["train", "balance", "--runner.video-interval", interval, "--log-dir", str(tmp_path / "run")]) != 0
    assert "'video_interval' is" in capsys.readouterr().err
