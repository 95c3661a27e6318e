"""The trials of a sweep: each is a training of its own, in a run folder of its own."""

from __future__ import annotations

import contextlib
import gc
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from st_rl.cli.commands.sweep.evaluated_trial import EvaluatedTrial
from st_rl.cli.commands.sweep.results import Sweep, show_results, trial_line, write_results
from st_rl.cli.commands.train import prepare_training, read_training
from st_rl.cli.support.command_line import CommandError, one_line
from st_rl.cli.support.graceful_shutdown import GracefulShutdown
from st_rl.cli.support.training import time_limit

# How often a trial is judged, unless its snapshots are rarer or more frequent by themselves.
_NUM_JUDGEMENTS = 8
# When the first trials all fail, so will the others.
_HOPELESS_AFTER = 3


def run_trials(sweep: Sweep) -> int:
    """Run the trials that a sweep lacks, and say what came of all; returns the exit code."""
    done = len(sweep.finished())
    print(
        f"{sweep.num_trials} trials of {sweep.iterations} iterations each{f', {done} of them done' if done else ''}; "
        f"the sweep is in {sweep.folder}",
        flush=True,
    )
    if not sweep.study.get_trials(deepcopy=False):
        # First the settings as they are, so that one sees what the search is worth.
        sweep.study.enqueue_trial({s.name: s.default_choice for s in sweep.searched if s.default_choice is not None})
    while len(sweep.finished()) < sweep.num_trials:
        try:
            print(trial_line(sweep, _run_trial(sweep)), flush=True)
        except KeyboardInterrupt as interruption:
            command = f"{sweep.study.user_attrs['command']} --trials {sweep.num_trials}"
            print(f"Interrupted. Go on with:\n  {command} --log-dir {shlex.quote(str(sweep.folder))}")
            return interruption.args[0] if interruption.args else 130
        finally:
            write_results(sweep)
        finished = sweep.finished()
        if len(finished) == _HOPELESS_AFTER and all(trial.state.name == "FAIL" for trial in finished):
            raise CommandError(f"the first {_HOPELESS_AFTER} trials failed, and so would the others")
    write_results(sweep)
    show_results(sweep)
    return 0


def _run_trial(sweep: Sweep) -> int:
    """Train with settings that Optuna proposes, and tell it what they are worth; returns the trial's number."""
    import optuna
    from optuna.trial import TrialState

    study = sweep.study
    started = sum(trial.state != TrialState.WAITING for trial in study.get_trials(deepcopy=False))
    # Seeded for this very trial: a sweep that goes on does not propose again what it began with.
    study.sampler = optuna.samplers.TPESampler(seed=sweep.seed + started)
    trial = study.ask({setting.name: setting.distribution for setting in sweep.searched})
    same = next((known for known in sweep.trained() if known.params == trial.params), None)
    if same is not None:
        # All trials have one seed: it would train the same policy.
        trial.set_user_attr("same_as", same.number)
        study.tell(trial, same.value if same.state == TrialState.COMPLETE else None, same.state)
        return trial.number
    try:
        study.tell(trial, _train(sweep, trial))
    except optuna.TrialPruned:
        study.tell(trial, state=TrialState.PRUNED)
    except KeyboardInterrupt:
        # It does not count, and its settings come first when the sweep goes on.
        trial.set_user_attr("interrupted", True)
        study.tell(trial, state=TrialState.FAIL)
        study.enqueue_trial(trial.params)
        raise
    except Exception as error:
        trial.set_user_attr("error", f"{type(error).__name__}: {one_line(error)}")
        trial.set_user_attr("traceback", traceback.format_exc())
        study.tell(trial, state=TrialState.FAIL)
    return trial.number


def _train(sweep: Sweep, trial: Any) -> float:
    """The score of the best snapshot of a training, without noise."""
    name, folder = sweep.source.name, sweep.folder / f"trial_{trial.number}"
    # The last word on an option counts: what the user says about snapshots comes after this.
    snapshots = ["--runner.save-interval", str(max(1, sweep.iterations // _NUM_JUDGEMENTS))]
    arguments = [*snapshots, *sweep.fixed, *sweep.train_arguments(trial), "--log-dir", str(folder)]
    options, training = read_training(sweep.source, arguments)
    # What the last training left makes room.
    gc.collect()
    with _only_a_bar(f"trial {trial.number}", sweep.iterations) as show_iteration:
        runner, _ = prepare_training(sweep.source, options, training, shlex.join(["st-rl", "train", name, *arguments]))
        judged = EvaluatedTrial(trial, runner.evaluator, show_iteration)
        runner.evaluator = judged.judge
        runner.init_writter(False)
        interruption = GracefulShutdown(runner.request_stop)
        try:
            with interruption, time_limit(options.minutes, runner.request_stop):
                runner.learn(sweep.iterations, init_at_random_ep_len=True, trial=judged)
        finally:
            runner.close()
            judged.keep_figures(runner.current_learning_iteration)
            if interruption.exit_code is not None:
                raise KeyboardInterrupt(interruption.exit_code)
    trial.report(judged.scores[-1], runner.current_learning_iteration)
    return max(judged.scores)


@contextlib.contextmanager
def _only_a_bar(words: str, total: int) -> Iterator[Callable[[int], None]]:
    """Silence, but for warnings and, on a terminal, a bar; gives a function of how many iterations are done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from st_rl.loggers.console_panel import is_live_terminal
    from st_rl.utils.log import logger

    bar = Progress(
        *(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()),
        # The screen itself, whatever takes its place below.
        console=Console(file=sys.stdout),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=sys.stderr.isatty(),
        disable=not is_live_terminal(),
    )
    level = logger.level
    logger.setLevel("WARNING")
    try:
        with bar, open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
            task = bar.add_task(words, total=total)
            yield lambda done: bar.update(task, completed=done)
    finally:
        logger.setLevel(level)
