import subprocess
from pathlib import Path

import pytest

from st_rl.utils import store_code_state


def git(folder, *arguments):
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


def repository(folder, commit=True):
    folder.mkdir(parents=True)
    git(folder, "init", "-q")
    (folder / "code.py").write_text("a = 1\n")
    if commit:
        git(folder, "add", "code.py")
        git(folder, "commit", "-q", "-m", "first")
    return folder


def test_status_and_difference_to_the_last_commit_are_recorded(tmp_path):
    repo = repository(tmp_path / "my_robot")
    (repo / "package").mkdir()
    (repo / "code.py").write_text("a = 2\n")
    git(repo, "add", "code.py")  # staged changes count too
    (repo / "package" / "new.py").write_text("")
    paths = store_code_state(tmp_path / "run", [str(repo / "package" / "new.py"), str(repo)])
    assert paths == [str(tmp_path / "run" / "git" / "my_robot.diff")]
    text = (tmp_path / "run" / "git" / "my_robot.diff").read_text()
    status, diff = text.split("--- git diff ---")
    head = subprocess.run(["git", "-C", repo, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout
    assert head.strip() in status
    assert "package/" in status
    assert "-a = 1\n+a = 2\n" in diff
    (repo / "code.py").write_text("a = 3\n")
    assert store_code_state(tmp_path / "run", [repo]) == []  # the state at the start of the run is kept
    assert (tmp_path / "run" / "git" / "my_robot.diff").read_text() == text


def test_repositories_of_the_same_name_get_suffixes(tmp_path):
    repos = [repository(tmp_path / parent / "robot") for parent in ("a", "b", "c")]
    paths = store_code_state(tmp_path / "run", repos)
    assert [path.rsplit("/", 1)[1] for path in paths] == ["robot.diff", "robot_1.diff", "robot_2.diff"]


def test_unrecordable_repository_is_logged_and_skipped(tmp_path, caplog):
    (tmp_path / "plain").mkdir()
    empty = repository(tmp_path / "empty", commit=False)
    good = repository(tmp_path / "good")
    paths = store_code_state(tmp_path / "run", [tmp_path / "plain", tmp_path / "missing" / "x.py", empty, good])
    assert paths == [str(tmp_path / "run" / "git" / "good.diff")]
    assert len(caplog.records) == 3


def test_invalid_path_is_logged_and_skipped(tmp_path, caplog):
    """The `__file__` of a namespace package is None."""
    good = repository(tmp_path / "good")
    paths = store_code_state(tmp_path / "run", [None, "a\0b", good])  # pyright: ignore[reportArgumentType]
    assert paths == [str(tmp_path / "run" / "git" / "good.diff")]
    assert len(caplog.records) == 2


@pytest.mark.parametrize("kind", [str, Path])
def test_one_path_is_one_repository(tmp_path, kind):
    repo = repository(tmp_path / "my_robot")
    assert store_code_state(tmp_path / "run", kind(repo)) == [str(tmp_path / "run" / "git" / "my_robot.diff")]


def test_folder_is_created_without_repositories(tmp_path):
    (tmp_path / "plain").mkdir()
    assert store_code_state(tmp_path / "run", [tmp_path / "plain"]) == []
    assert (tmp_path / "run" / "git").is_dir()


def test_missing_git_and_unwritable_folder_never_raise(tmp_path, caplog, monkeypatch):
    repo = repository(tmp_path / "repo")
    (tmp_path / "file").write_text("")
    assert store_code_state(tmp_path / "file", [repo]) == []
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert store_code_state(tmp_path / "run", [repo]) == []
    assert "git was not found" in caplog.text


@pytest.mark.parametrize("repositories", [[], ["."]])
def test_without_a_log_folder_nothing_is_written(repositories):
    assert store_code_state(None, repositories) == []
