"""The settings of a training as a YAML file: read by `--config FILE`, printed by `st-rl config RUN`."""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from st_rl.cli.support.command_line import CommandError, UsageError, escape_control, option_names, quote
from st_rl.cli.support.run_folders.pretrained import PRETRAINED_PREFIX
from st_rl.cli.support.run_folders.run_folder import CHANGED, CONFIG_FILE, PARENTS, RUN_FILE, RunFolder
from st_rl.cli.support.task_source import flatten, is_external
from st_rl.cli.support.training.training_config import AlgorithmConfig, PolicyConfig, RunnerConfig, TrainingConfig
from st_rl.utils.config import is_class_path

OptionsT = TypeVar("OptionsT")
# Names of the settings that have an option, by part.
_TYPED = {
    part: {field.name for field in dataclasses.fields(kind)}
    for part, kind in (("runner", RunnerConfig), ("policy", PolicyConfig), ("algorithm", AlgorithmConfig))
}
_REMEDY = "correct the file; st-rl config RUN prints one"


@dataclass(frozen=True)
class SettingsFile:
    """Options of `st-rl train` as a file: nested keys, or dotted ones, with the names of the options."""

    path: Path
    task: str | None
    """Task of the file; None if it names none."""
    values: Mapping[str, Any]
    """The options, without task and `set`."""
    assignments: tuple[str, ...]
    """Settings without an option of their own, `dotted.name=JSON`, those under `set`."""

    @classmethod
    def read(cls, path: Path) -> SettingsFile:
        """Read a file; CommandError if it is missing, damaged or names a class to import."""
        from st_rl.utils.config import reject_unsafe_settings
        from st_rl.utils.files import name_file, read_yaml_object

        if not path.is_file():
            raise UsageError(f"--config {quote(path)}: no such file; st-rl config RUN prints one of a run")
        with name_file(path, _REMEDY, CommandError):
            values = {str(key).replace("-", "_"): value for key, value in read_yaml_object(path, _REMEDY).items()}
            reject_unsafe_settings(values, path)
            task, assignments = values.pop("task", None), values.pop("set", None) or {}
            if not isinstance(assignments, Mapping):
                raise ValueError("'set' takes lines 'dotted.name: value'")
            if not isinstance(task, str | None):
                raise ValueError(f"'task' takes a name, got {task!r}")
        return cls(path, task, values, tuple(f"{name}={json.dumps(value)}" for name, value in assignments.items()))

    def check_task(self, task: str) -> None:
        """UsageError if the file is of another task."""
        if self.task is not None and self.task != task:
            raise UsageError(
                f"{self.path} has the settings of {self.task}, not of {task}: type st-rl train {self.task} --config "
                f"{quote(self.path)}, or remove its line 'task'"
            )

    def require_task(self) -> str:
        """Return the task for a command line without one; UsageError if the file names none, or one to import."""
        if self.task is None:
            raise UsageError(f"which task? {self.path} names none: add 'task: TASK' to it, or type st-rl train TASK")
        if is_external(self.task):
            raise UsageError(
                f"{self.path} names the task {self.task}, which imports code from outside st-rl; if you trust it, type "
                f"st-rl train {self.task} --config {quote(self.path)}"
            )
        return self.task

    def apply(self, options: OptionsT) -> OptionsT:
        """Return a copy of a dataclass of options with the values of the file; UsageError for a wrong one."""
        from st_rl.sim.envs.cfg import with_overrides

        try:
            values = dict(_flatten(self.values, options, options))
            return with_overrides(options, values | ({"set": self.assignments} if self.assignments else {}))
        except ValueError as error:
            raise UsageError(f"{self.path}: {error}") from error

    def sets(self, *names: str) -> bool:
        """Whether the file has one of these options, by dotted name."""
        return any(_has(self.values, name.split(".")) for name in names)


def _has(values: Any, keys: list[str]) -> bool:
    if not isinstance(values, Mapping):
        return False
    head, rest = keys[0], keys[1:]
    return ".".join(keys) in values or (bool(rest) and _has(values.get(head), rest)) or (not rest and head in values)


def _flatten(values: Mapping[Any, Any], part: Any, options: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a file by the dotted name of their field; ValueError for an unknown one."""
    fields: Mapping[str, Any] = part if isinstance(part, Mapping) else vars(part)
    names = {name.rstrip("_"): name for name in fields}
    for key, value in values.items():
        head, _, rest = str(key).replace("-", "_").partition(".")
        value = {rest: value} if rest else value
        if head not in names or (head == "config" and not prefix):
            raise ValueError(_unknown_key(f"{prefix}{key}", options))
        old, name = fields[names[head]], f"{prefix}{names[head]}"
        if not (dataclasses.is_dataclass(old) or (isinstance(old, Mapping) and old)):
            yield name, value
        elif isinstance(value, Mapping):
            yield from _flatten(value, old, options, f"{name}.")
        elif value is not None:
            raise ValueError(f"'{name}' has settings of its own, 'name: value', got {value!r}")


def _unknown_key(key: str, options: Any) -> str:
    """Return the error text for an unknown key: the option with this last name, or the nearest."""
    known = [name.removeprefix("--").replace("-", "_") for name in option_names(options) if "--no-" not in name]
    known = [name for name in known if name != "config" and ".no_" not in name]
    written = key.replace("-", "_")
    last = written.rpartition(".")[2]
    same = [name for name in known if name.rpartition(".")[2] == last]
    close = same or difflib.get_close_matches(written, known, n=1, cutoff=0.6)
    close = close or [
        name for name in known if difflib.get_close_matches(last, [name.rpartition(".")[2]], n=1, cutoff=0.75)
    ]
    hint = f"did you mean '{close[0]}'?" if close else "st-rl train TASK --help lists the options"
    return f"unknown key '{key}'; {hint}"


def flat_settings(settings: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of `run.json` and `config.json` by dotted name: `env.`, `runner.`, `policy.`, `algorithm.`.

    Those that are None are left out, and what a training measures itself.
    """
    training = TrainingConfig.from_dict(config)
    parts: dict[str, Mapping[str, Any]] = {"env": settings.get("task_config") or {}}
    for part in _TYPED:
        parts[part] = {**training.others[part], **vars(vars(training)[part])}
    if settings.get("measures_update_threads"):
        parts["runner"] = {**parts["runner"], "update_threads": None}
    flat = flatten(parts)
    kept = {name: value for name, value in flat.items() if value is not None or name == "algorithm.desired_kl"}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in kept.items()}


def changed_settings(default: Mapping[str, Any], used: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the settings that differ, dotted name -> [default, value used]; both as nested dictionaries."""
    old, new = (flatten(values) for values in (default, used))
    return {
        name: [old.get(name), new.get(name)]
        for name in {**old, **new}
        if _plain(old.get(name)) != _plain(new.get(name))
    }


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def describe_settings(run: RunFolder, only_changed: bool = False) -> tuple[dict[str, Any], list[str]]:
    """Return the settings of a run as nested keys of a settings file, and remarks on what the file cannot say.

    With `only_changed`, those that differ from the defaults of the task. CommandError for a run that `st-rl train`
    cannot repeat.
    """
    settings, config = run.settings, run.read_json(CONFIG_FILE)
    if "teacher_policy" in (config.get("algorithm") or {}):
        raise CommandError(
            f"{run.path} was distilled from a teacher, which a file of settings does not hold; its command was: "
            f"{settings.get('command_line')}"
        )
    if only_changed and not isinstance(settings.get(CHANGED), Mapping):
        raise CommandError(f"{run.file(RUN_FILE)} does not say which settings were changed: leave out --changed")
    flat = flat_settings(settings, config)
    if only_changed:
        flat = {name: flat.get(name) for name in settings[CHANGED] if "." in name}
    flat.pop("runner.max_iterations", None)
    content: dict[str, Any] = {"task": run.task, **_session(settings)}
    remarks = [f"Trained on {settings['num_ranks']} ranks."] if settings.get("num_ranks", 1) > 1 else []
    assignments: dict[str, Any] = {}
    for name, value in flat.items():
        part, _, rest = name.partition(".")
        if name.endswith("class_name") and is_class_path(value):
            remarks.append(f"Type --{name.replace('_', '-')} {value}: a file must not import code.")
        elif part == "env" or rest in _TYPED[part]:
            _store(content, name.split("."), value)
        else:
            assignments[name.removeprefix("runner.")] = value
    if settings.get("iterations") is None:
        _store(content, ["runner", "max_iterations"], None)
    return content | ({"set": assignments} if assignments else {}), remarks


def _session(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a run that belong to no part of the configuration."""
    values = {key: settings.get(key) for key in ("seed", "num_envs", "iterations", "minutes", "device", "threads")}
    parents = settings.get(PARENTS)
    if parents:
        values["from"] = ":".join(str(parents[0][key]) for key in ("run", "checkpoint"))
        if values["from"].startswith(PRETRAINED_PREFIX):
            values["from"] = parents[0]["run"]
    return {key: value for key, value in values.items() if value is not None}


def _store(content: dict[str, Any], keys: list[str], value: Any) -> None:
    """Store a value at a path of nested dictionaries."""
    for key in keys[:-1]:
        content = content.setdefault(key, {})
    content[keys[-1]] = value


def format_settings(content: Mapping[str, Any], remarks: Sequence[str]) -> str:
    """Return the text of a settings file."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """One setting per line, lists in one line."""

    def represent_list(dumper: yaml.SafeDumper, values: list[Any]) -> yaml.Node:
        return dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=True)

    Dumper.add_representer(list, represent_list)
    comments = "".join(f"# {escape_control(remark)}\n" for remark in remarks)
    return comments + yaml.dump(dict(content), Dumper=Dumper, sort_keys=False, default_flow_style=False, width=10_000)
