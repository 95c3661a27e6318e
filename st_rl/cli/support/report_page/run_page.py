"""Build the report of a run folder."""

from typing import Any

from st_rl.cli.support.command_line import CommandError
from st_rl.cli.support.report_page.curves import read_curves
from st_rl.cli.support.report_page.page import ReportData, SectionError, build_page
from st_rl.cli.support.run_folders.pretrained import FOLDER, PRETRAINED_PREFIX, pretrained_names
from st_rl.cli.support.run_folders.run_folder import (
    CONFIG_FILE,
    EVAL_FILE,
    EXPORT_FILE,
    PROGRESS_FILE,
    TRACES_FILE,
    VIDEO_FILE,
    RunFolder,
)


def build_run_page(run: RunFolder) -> tuple[ReportData, str]:
    """Return the contents of a run folder and the page of them; CommandError names a damaged file."""
    data = ReportData(
        settings=run.settings,
        config=run.read_optional_json(CONFIG_FILE) or {},
        curves=read_curves(run.file(PROGRESS_FILE)),
        evaluation=run.read_optional_json(EVAL_FILE),
        traces=run.read_optional_json(TRACES_FILE),
        video=_read_video(run) if run.file(VIDEO_FILE).is_file() else None,
        export=run.read_optional_json(EXPORT_FILE),
        reference=_pretrained_evaluation(run),
        iteration=_current_iteration(run),
    )
    try:
        return data, build_page(data)
    except SectionError as error:
        files = " or ".join(str(run.file(name)) for name in error.files if run.file(name).is_file())
        remedies = "; ".join(f"{name}: {run.remedy(name)}" for name in error.files if run.file(name).is_file())
        raise CommandError(f"the content of {files} is damaged ({error}); {remedies}") from error


def _pretrained_evaluation(run: RunFolder) -> tuple[str, dict[str, Any]] | None:
    """Return the pretrained policy of the task and the robot, else the one with the task's name, and its `eval.json`.

    None if there is none, or if it is the run itself.
    """
    task, found = run.settings.get("task"), {}
    for name in pretrained_names():
        policy = RunFolder(FOLDER / name)
        evaluation = policy.read_optional_json(EVAL_FILE)
        is_alike = name == task or _robot(policy) == _robot(run)
        if evaluation is not None and policy.settings.get("task") == task and is_alike and run.path.name != name:
            found[name] = evaluation
    name = min(found, key=lambda each: (_robot(RunFolder(FOLDER / each)) != _robot(run), each != task), default=None)
    return None if name is None else (f"{PRETRAINED_PREFIX}{name}", found[name])


def _robot(run: RunFolder) -> object:
    """The robot of a run, as its settings name it."""
    config = run.settings.get("task_config")
    return config.get("robot") if isinstance(config, dict) else None


def _read_video(run: RunFolder) -> bytes:
    """Return the video of `st-rl play`; CommandError if it is too large for a page."""
    from st_rl.utils.files.readers import MAX_TEXT_BYTES, name_file, read_bytes

    with name_file(run.file(VIDEO_FILE), run.remedy(VIDEO_FILE), CommandError):
        return read_bytes(run.file(VIDEO_FILE), MAX_TEXT_BYTES)


def _current_iteration(run: RunFolder) -> int | None:
    """Iteration of the checkpoint that commands take by default; None if the run has none that can be read."""
    from st_rl.utils.files import CheckpointError, load_checkpoint

    try:
        return int(load_checkpoint(run.checkpoint(), map_location="cpu")["iter"])
    except (CommandError, CheckpointError, KeyError):
        return None
