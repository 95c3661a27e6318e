"""`st-rl`: help, one-line errors, exit codes, and lazy imports."""

import os
import subprocess
import sys
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from st_rl.cli import COMMANDS, main
from st_rl.cli.commands import play, view
from st_rl.cli.support.command_line import UsageError, option_names, parse_options


def run(*arguments, **keywords):
    """Run `python -m st_rl` in a subprocess."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-m", "st_rl", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, **keywords)


def test_help_lists_every_command_with_its_purpose(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for command in COMMANDS:
        line = next(line for line in text.splitlines() if line.startswith(f"  {command} "))
        assert len(line.split(maxsplit=1)[1]) > 15
    assert main([]) == 0
    assert capsys.readouterr().out == text


def test_python_m_is_the_command_and_help_needs_no_torch(tmp_path):
    result = run("--help", cwd=tmp_path)
    assert result.returncode == 0
    assert result.stdout.startswith("usage: st-rl COMMAND")
    assert result.stderr == ""
    code = "import sys; from st_rl.cli import main; main(['--help']); sys.exit('torch' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], cwd=os.getcwd(), capture_output=True, check=False).returncode == 0
    )


def test_version(capsys):
    from st_rl import __version__

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"st_rl {__version__}\n"


def only_error_line(capsys) -> str:
    """The single line of stderr."""
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if not line.startswith("[st_rl]")]
    assert len(lines) == 1, captured.err
    assert "Traceback" not in captured.err + captured.out
    assert lines[0].startswith("st-rl: ")
    return lines[0]


def test_unknown_command_suggests_the_closest(capsys):
    assert main(["trainn"]) == 2
    line = only_error_line(capsys)
    assert "did you mean 'train'?" in line
    assert "doctor" in line


def test_unknown_task_lists_them(capsys):
    assert main(["train", "quadruped-wlk"]) == 2
    line = only_error_line(capsys)
    assert "did you mean 'quadruped-walk'?" in line
    assert "balance" in line
    assert "gym:ENV_ID" in line


def test_train_without_task_shows_usage(capsys):
    assert main(["train", "--help"]) == 0
    text = capsys.readouterr().out
    assert "quadruped-walk" in text
    assert "--minutes" in text
    assert main(["train"]) == 2
    capsys.readouterr()
    assert main(["train", "--seed", "1"]) == 2
    assert "which task?" in only_error_line(capsys)


@pytest.mark.parametrize(
    ("option", "nearest"),
    [
        ("--runner.max-iteration", "--runner.max-iterations"),
        ("--algorithm.learnin_rate", "--algorithm.learning-rate"),
        ("--env.physics.timestp", "--env.physics.timestep"),
        ("--env.rewards.uprigt", "--env.rewards.upright"),
        ("--itertions", "--iterations"),
    ],
)
def test_unknown_option_suggests_the_closest(capsys, option, nearest):
    assert main(["train", "balance", option, "3"]) == 2
    line = only_error_line(capsys)
    assert f"unknown option {option}; did you mean {nearest}?" in line


def test_option_name_of_another_command_is_translated(capsys):
    assert main(["collect", "latest", "--log-dir", "3"]) == 2
    assert "unknown option --log-dir; it is called --output here" in only_error_line(capsys)
    assert main(["train", "balance", "--robots", "3"]) == 2
    assert "unknown option --robots; it is called --num-envs here" in only_error_line(capsys)


@pytest.mark.parametrize(
    ("option", "advice"),
    [
        ("--num-robots", "it is called --num-envs here"),
        ("--run_name", "it is called --log-dir here"),
        ("--lr", "it is called --algorithm.learning-rate here"),
        ("--headless", "leave it out: training opens no window"),
        ("--resume", "st-rl resume RUN resumes a run"),
        ("--load_run", "st-rl resume RUN resumes a run"),
    ],
)
def test_options_of_other_libraries_are_translated(capsys, option, advice):
    assert main(["train", "balance", option, "3"]) == 2
    assert f"unknown option {option}; {advice}" in only_error_line(capsys)


@pytest.mark.parametrize(
    "command",
    [[], ["train"], *([name, "--help"] for name in ("motion", "dataset", "distill", "sweep", "bench"))],
    ids=lambda words: " ".join(words) or "alone",
)
def test_help_breaks_between_words_on_a_narrow_terminal(capsys, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    main(command)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_rejects_an_algorithm_that_cannot_train_the_policy(capsys, tmp_path):
    pytest.importorskip("mujoco")
    options = ["--num-envs", "2", "--log-dir", str(tmp_path / "run"), "--algorithm.class-name", "APPO"]
    assert main(["train", "balance", *options]) == 1
    assert only_error_line(capsys).startswith("st-rl: APPO needs a policy with a discriminator")


def test_error_names_unexpected_argument(capsys):
    assert main(["train", "balance", "quickly"]) == 2
    assert "unexpected argument 'quickly'" in only_error_line(capsys)


def test_wrong_value_names_the_option_and_exits_with_2(capsys):
    assert main(["train", "balance", "--algorithm.learning-rate", "fast"]) == 2
    assert "--algorithm.learning-rate" in capsys.readouterr().err


def test_unexpected_errors_are_one_line_too_and_debug_shows_the_stack(capsys, monkeypatch):
    import st_rl.cli.commands.tasks as tasks

    def fail(arguments):
        raise KeyError("surprise")

    monkeypatch.setattr(tasks, "main", fail)
    assert main(["tasks"]) == 1
    line = only_error_line(capsys)
    assert "unexpected KeyError" in line
    assert "--debug" in line
    with pytest.raises(KeyError):
        main(["tasks", "--debug"])


def test_ctrl_c_before_a_training_is_130_without_a_stack(capsys, monkeypatch):
    import st_rl.cli.commands.tasks as tasks

    def interrupt(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(tasks, "main", interrupt)
    assert main(["tasks"]) == 130
    assert capsys.readouterr().err == ""


def test_tasks_lists_the_built_in_ones(capsys):
    assert main(["tasks", "--names"]) == 0
    names = capsys.readouterr().out.split()
    quadruped = ["quadruped-amp", "quadruped-parkour", "quadruped-rough", "quadruped-track", "quadruped-walk"]
    assert {"balance", "humanoid-amp", "humanoid-track", "humanoid-walk", *quadruped} <= set(names)
    assert names == sorted(names)
    assert main(["tasks"]) == 0
    assert "gym:ENV_ID" in capsys.readouterr().out


def test_rejects_unknown_gymnasium_id(capsys):
    pytest.importorskip("gymnasium")
    assert main(["train", "gym:NoSuchThing-v7"]) == 2
    assert "NoSuchThing" in only_error_line(capsys)
    assert main(["train", "gym:"]) == 2
    assert "gym:Pendulum-v1" in only_error_line(capsys)


@dataclass
class Inner:
    """Inner."""

    speed_limit: tuple[float, float] = (0.0, 1.0)
    """How fast, m/s."""
    weights: dict[str, float] = field(default_factory=lambda: {"first_term": 1.0})
    """Weights."""


@dataclass
class Options:
    """Options."""

    name: str
    """What to call it."""
    inner: Inner = field(default_factory=Inner)
    """The inner part."""
    loud: bool = False
    """Whether to shout."""


def test_options_are_set_by_dotted_names():
    arguments = ["x", "--inner.speed-limit", "-0.5", "2", "--inner.weights.first-term", "-3", "--loud"]
    options: Options = parse_options(Options, arguments, "try", "Try it.")
    assert options == Options("x", Inner((-0.5, 2.0), {"first_term": -3.0}), True)


def test_help_is_the_docstring_of_each_field(capsys):
    with pytest.raises(SystemExit):
        parse_options(Options, ["--help"], "try", "Try it.")
    text = capsys.readouterr().out
    for words in ("Try it.", "What to call it.", "How fast, m/s.", "Whether to shout.", "--inner.weights.first-term"):
        assert words in text


def test_names_of_all_options():
    names = list(option_names(Options("x")))
    assert names == ["--name", "--inner.speed-limit", "--inner.weights.first-term", "--loud", "--no-loud"]


def test_usage_errors_exit_with_2():
    assert UsageError("x").exit_code == 2


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "inf"])
def test_train_rejects_non_positive_minutes(minutes, tmp_path, capsys):
    folder = tmp_path / "run"
    assert main(["train", "balance", "--minutes", minutes, "--log-dir", str(folder)]) == 2
    assert f"--minutes must be above 0, got {minutes}; leave it out for no time limit" in only_error_line(capsys)
    assert not folder.exists()


def test_sweep_and_resume_reject_zero_minutes(tmp_path, capsys):
    search = ["--search", "algorithm.gamma", "0.9", "0.99"]
    for arguments in (["resume", str(tmp_path)], ["sweep", "balance", *search, "--log-dir", str(tmp_path / "sweep")]):
        assert main([*arguments, "--minutes", "0"]) == 2
        assert "--minutes must be above 0, got 0" in only_error_line(capsys)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems always have a display")
def test_play_viewer_without_a_display_opens_the_viewer_in_the_browser(monkeypatch, tmp_path):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    run, shown = SimpleNamespace(source=SimpleNamespace(name="quadruped-walk")), []
    monkeypatch.setattr(play, "open_run", lambda options: (run, tmp_path / "best.pt"))
    monkeypatch.setattr(view, "view", lambda *arguments: shown.append(arguments) or 0)
    assert main(["play", "latest", "--viewer", "--seed", "7"]) == 0
    assert shown[0][:2] == (run, tmp_path / "best.pt")
    assert (shown[0][2].run, shown[0][2].seed) == ("latest", 7)


def test_viewer_without_its_extra_names_what_to_install(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "mjviser", None)
    assert main(["train", "balance", "--view", "--log-dir", str(tmp_path / "run")]) == 1
    assert 'pip install "st_rl[view]"' in only_error_line(capsys)
    assert not (tmp_path / "run").exists()


def test_viewer_shows_built_in_tasks_only(capsys):
    assert main(["train", "gym:Pendulum-v1", "--view"]) == 1
    assert "--view shows built-in tasks, not gym:Pendulum-v1" in only_error_line(capsys)


def test_train_rejects_zero_threads(tmp_path, capsys):
    assert main(["train", "balance", "--threads", "0", "--log-dir", str(tmp_path / "run")]) == 2
    assert "--threads must be at least 1, got 0; leave it out" in only_error_line(capsys)
