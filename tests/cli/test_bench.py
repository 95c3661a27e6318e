"""`st-rl bench` finds the benchmarks of the repository and forwards options."""

import pytest

from st_rl.cli import main
from st_rl.cli.commands.bench import SCRIPTS
from tests.test_package import REPOSITORY


def test_every_benchmark_it_names_is_there():
    for script, _ in SCRIPTS.values():
        assert (REPOSITORY / "benchmarks" / script).is_file(), script


def test_help_lists_the_benchmarks(capsys):
    assert main(["bench", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in SCRIPTS)


def test_unknown_benchmark_lists_the_known_ones(capsys):
    assert main(["bench", "cpuu"]) == 2
    assert "unknown benchmark 'cpuu'; did you mean 'cpu'? known: algorithms, cpu, gpu" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["cpu", "update"])
def test_options_reach_the_script(name, capfd):
    assert main(["bench", name, "--help"]) == 0
    assert "--peer-python" in capfd.readouterr().out
