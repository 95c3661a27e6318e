"""Every command in the guides is accepted with all of its options."""

import importlib
import pkgutil
import re
import shlex
from pathlib import Path

import pytest

import st_rl.cli
from st_rl.cli import main
from st_rl.cli.support import command_line

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]


# Of blocks that hold commands.
LANGUAGES = ("sh", "console", "")


class Understood(BaseException):
    """The options of a command have been read; nothing else happens."""


def shown_commands(page: Path) -> set[str]:
    """Arguments of the `st-rl` commands of a page, in blocks and inline, without bare command names."""
    text = page.read_text().replace("\\\n", " ")
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert not [language for language, block in fenced if language not in LANGUAGES and "st-rl " in block]
    blocks = "\n".join(block for language, block in fenced if language in LANGUAGES)
    parts = [part for line in blocks.splitlines() for part in re.split("&&|  #", line)]
    parts += re.findall(r"`(st-rl [^`]*)`", text)
    commands = (re.fullmatch(r"\s*(?:\$ )?st-rl (\S+ .*)", part) for part in parts)
    shown = {command[1].replace("TASK", "quadruped-walk").replace("...", "").strip() for command in commands if command}
    # `bench` forwards its options and starts immediately.
    return {command for command in shown if not command.startswith("bench ")}


def without_files(words: list[str]) -> list[str]:
    """A training without the run and the file that its settings come from, which are not here."""
    if words[0] != "train" or not {"--from", "--config"} & set(words):
        return words
    kept = command_line.drop_options(words, {"--from", "--config"})
    return kept if len(kept) > 1 and not kept[1].startswith("-") else ["train", "quadruped-walk", *kept[1:]]


@pytest.fixture
def only_read(monkeypatch, tmp_path):
    """Commands stop as soon as their options are read."""
    original = command_line.parse_options

    def read(*arguments, **keywords):
        original(*arguments, **keywords)
        raise Understood

    # Import all first: a module loaded while another is patched would keep the patch.
    modules = [importlib.import_module(found.name) for found in pkgutil.walk_packages(st_rl.cli.__path__, "st_rl.cli.")]
    for module in modules:
        if getattr(module, "parse_options", None) is original:
            monkeypatch.setattr(module, "parse_options", read)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_a_page_are_accepted(page, only_read, capsys):
    for command in sorted(shown_commands(page)):
        try:
            status = main(without_files(shlex.split(command)))
        except Understood:
            continue
        # The options of a student depend on the run of its teacher, those of an mjlab task on mjlab.
        looked_for = {"distill ": "no run 'runs/", "train mjlab:": 'pip install "st_rl[mjlab]"'}
        said = capsys.readouterr().err
        assert status == 0 or any(command.startswith(c) and sign in said for c, sign in looked_for.items()), command


def test_pages_show_commands():
    assert len({command for page in PAGES for command in shown_commands(page)}) > 40
