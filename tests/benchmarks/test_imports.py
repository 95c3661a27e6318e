"""Names that the benchmark scripts import from the library."""

import ast
import importlib
import importlib.util
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def _imports():
    for path in sorted(BENCHMARKS.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("st_rl"):
                yield from ((path.name, node.module, alias.name) for alias in node.names)


def test_library_has_every_name_that_a_benchmark_imports():
    missing = []
    for script, module, name in _imports():
        found = importlib.import_module(module)
        if not hasattr(found, name) and importlib.util.find_spec(f"{module}.{name}") is None:
            missing.append(f"{script}: {module}.{name}")
    assert not missing
