"""Results of several seeds in one file."""

import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")


@pytest.fixture
def seeds(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import seeds

    yield seeds
    sys.modules.pop("seeds", None)


def _write(path, benchmark, **rows):
    path.write_text(json.dumps({"benchmark": benchmark, "seeds": {name[1:]: row for name, row in rows.items()}}))
    return path


class TestSeeds:
    def test_numbers_that_all_seeds_have_get_mean_and_range(self, seeds):
        rows = [{"a": {"b": 1, "only": 2.0}, "text": "x", "curve": [1, 2]}, {"a": {"b": 4}, "text": "y", "curve": [3]}]
        assert seeds.spread(rows) == {"a": {"b": {"mean": 2.5, "lowest": 1.0, "highest": 4.0}}}

    def test_empty_results_have_no_range(self, seeds):
        assert seeds.spread([]) == {}

    def test_files_of_several_processes_become_one(self, seeds, tmp_path):
        late = _write(tmp_path / "late.json", "parkour", s10={"success": 0.5})
        early = _write(tmp_path / "early.json", "parkour", s2={"success": 0.7}, s3={"success": 0.9})
        merged = seeds.merge([late, early])
        assert list(merged["seeds"]) == ["2", "3", "10"]
        assert merged["over_seeds"]["success"] == {"mean": pytest.approx(0.7), "lowest": 0.5, "highest": 0.9}

    def test_parts_of_a_seed_come_together(self, seeds, tmp_path):
        first = _write(tmp_path / "first.json", "velocity", s1={"estimator": {"error": 3.0}, "plain": {"error": 1.0}})
        second = _write(tmp_path / "second.json", "velocity", s1={"estimator": {"error": 2.0}})
        assert seeds.merge([first, second])["seeds"] == {"1": {"estimator": {"error": 2.0}, "plain": {"error": 1.0}}}

    def test_files_of_different_benchmarks_do_not(self, seeds, tmp_path):
        files = [_write(tmp_path / f"{name}.json", name, s1={}) for name in ("parkour", "velocity")]
        with pytest.raises(ValueError, match="different benchmarks"):
            seeds.merge(files)
