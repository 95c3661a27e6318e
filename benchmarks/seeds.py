"""Merges the results of several seeds, with their mean and range."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from machine import describe_machine, write_results

SEEDS, SPREAD = "seeds", "over_seeds"


def spread(seeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean, minimum and maximum of every number that all seeds have, in the structure of their results."""
    found: dict[str, Any] = {}
    for name, value in seeds[0].items() if seeds else ():
        values = [seed.get(name) for seed in seeds]
        if isinstance(value, Mapping):
            if inner := spread([v for v in values if isinstance(v, Mapping)]):
                found[name] = inner
        elif all(isinstance(v, int | float) for v in values):
            numbers: list[float] = [float(v) for v in values]  # pyright: ignore[reportArgumentType]
            found[name] = {"mean": sum(numbers) / len(numbers), "lowest": min(numbers), "highest": max(numbers)}
    return found


def with_spread(results: dict[str, Any]) -> dict[str, Any]:
    """The results with sorted seeds and their statistics."""
    seeds = dict(sorted(results[SEEDS].items(), key=lambda item: int(item[0])))
    return {**results, SEEDS: seeds, SPREAD: spread(list(seeds.values()))}


def merge(paths: Sequence[Path]) -> dict[str, Any]:
    """One result with the seeds of all files; machine and settings are those of the first.

    Parts of a seed may come from several files; where two files have the same part, the later one is used.
    """
    files = [json.loads(path.read_text()) for path in paths]
    if len({file["benchmark"] for file in files}) != 1:
        raise ValueError(f"{', '.join(map(str, paths))} are results of different benchmarks: merge those of one")
    seeds: dict[str, Any] = {}
    for file in files:
        for seed, row in file[SEEDS].items():
            seeds[seed] = {**seeds.get(seed, {}), **row}
    return with_spread({**files[0], SEEDS: seeds})


def run_seeds(
    path: Path, benchmark: str, options: Mapping[str, Any], run_seed: Callable[[int], dict[str, Any]]
) -> None:
    """Run `options["seeds"]` one after the other and write one row per seed; the file is updated after each."""
    settings = {name: value for name, value in options.items() if value is not None and not isinstance(value, Path)}
    results: dict[str, Any] = {"benchmark": benchmark, "settings": settings, **describe_machine(), "rows": []}
    for seed in options["seeds"]:
        results["rows"].append(run_seed(seed))
        write_results(path, results)
    print(f"results: {path}")
