"""Exact resume from the command line; `benchmarks/faults/exact_resume.py` runs all tasks with all algorithms."""

import pytest

from benchmarks.faults.exact_resume import ALGORITHMS, Cell, all_cells, run_cell
from st_rl.algorithms import algorithm_classes
from st_rl.sim.tasks import TASKS


def test_cells_cover_all_tasks_and_algorithms():
    cells = all_cells()
    assert {cell.task for cell in cells} == set(TASKS)
    assert {ALGORITHMS[cell.algorithm].class_name for cell in cells} == set(algorithm_classes())
    assert Cell("quadruped-amp", "ATPPO") in cells
    assert Cell("quadruped-walk", "APPO") not in cells


@pytest.mark.parametrize(
    "cell", [Cell("quadruped-amp", "APPO"), Cell("quadruped-rough", "PPO"), Cell("balance", "EstimatorTPPO")], ids=str
)
def test_three_and_three_iterations_equal_six(cell, tmp_path):
    result = run_cell(cell, tmp_path)
    assert result["differences"] == []
    assert result["unchanged"] == []
