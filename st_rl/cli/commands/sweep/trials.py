"""The trials of a sweep: trainings, each with its own run folder."""

from __future__ import annotations

import contextlib
import gc
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from st_rl.cli.commands.sweep.evaluated_trial import EvaluatedTrial
from st_rl.cli.commands.sweep.results import Sweep, format_trial, print_results, write_results
from st_rl.cli.commands.train import prepare_training, read_training
from st_rl.cli.support.command_line import CommandError, count_of, one_line, program
from st_rl.cli.support.graceful_shutdown import GracefulShutdown

if TYPE_CHECKING:
    import optuna

# Evaluated checkpoints of a trial, unless the user sets --runner.save-interval.
_NUM_CHECKPOINTS = 8
# Give up if all of the first trials fail.
_MAX_INITIAL_FAILURES = 3


def run_trials(sweep: Sweep) -> int:
    """Run the remaining trials of a sweep and print the results; returns the exit code."""
    done = len(sweep.finished())
    size = f"{count_of(sweep.num_trials, 'trial')} of {count_of(sweep.iterations, 'iteration')}"
    print(f"{size}{f', {done} of them done' if done else ''}. Sweep: {sweep.folder}", flush=True)
    if not sweep.all_trials():
        # The default settings first, as the baseline of the search.
        sweep.study.enqueue_trial({p.name: p.default_choice for p in sweep.parameters if p.default_choice is not None})
    while len(sweep.finished()) < sweep.num_trials:
        try:
            print(format_trial(sweep, _run_trial(sweep)), flush=True)
        except KeyboardInterrupt as interruption:
            command = f"{sweep.study.user_attrs['command']} --trials {sweep.num_trials}"
            print(f"Interrupted. Continue with:\n  {command} --log-dir {shlex.quote(str(sweep.folder))}")
            return interruption.args[0] if interruption.args else 130
        finally:
            write_results(sweep)
        finished = sweep.finished()
        if len(finished) == _MAX_INITIAL_FAILURES and all(trial.state.name == "FAIL" for trial in finished):
            raise CommandError(f"the first {_MAX_INITIAL_FAILURES} trials failed; giving up")
    write_results(sweep)
    print_results(sweep)
    return 0


def _run_trial(sweep: Sweep) -> int:
    """Train with settings that Optuna proposes and report the score; returns the number of the trial."""
    import optuna
    from optuna.trial import TrialState

    study = sweep.study
    started = sum(trial.state != TrialState.WAITING for trial in sweep.all_trials())
    # A seed for each trial: a continued sweep does not repeat its first proposals.
    study.sampler = optuna.samplers.TPESampler(seed=sweep.seed + started)
    trial = study.ask({parameter.name: parameter.distribution for parameter in sweep.parameters})
    same = next((known for known in sweep.trained() if known.params == trial.params), None)
    if same is not None:
        # All trials have the same seed, so it would train the same policy.
        trial.set_user_attr("same_as", same.number)
        study.tell(trial, same.value if same.state == TrialState.COMPLETE else None, same.state)
        return trial.number
    try:
        study.tell(trial, _train(sweep, trial))
    except optuna.TrialPruned:
        study.tell(trial, state=TrialState.PRUNED)
    except KeyboardInterrupt:
        # It does not count; its settings are the first to run when the sweep continues.
        trial.set_user_attr("interrupted", True)
        study.tell(trial, state=TrialState.FAIL)
        study.enqueue_trial(trial.params)
        raise
    except Exception as error:
        trial.set_user_attr("error", f"{type(error).__name__}: {one_line(error)}")
        trial.set_user_attr("traceback", traceback.format_exc())
        study.tell(trial, state=TrialState.FAIL)
    return trial.number


def _train(sweep: Sweep, trial: optuna.Trial) -> float:
    """Train with the settings of a trial; returns the score of the best checkpoint."""
    name, folder = sweep.source.name, sweep.folder / f"trial_{trial.number}"
    # The last occurrence of an option counts, so that the user's save interval overrides this one.
    checkpoints = ["--runner.save-interval", str(max(1, sweep.iterations // _NUM_CHECKPOINTS))]
    arguments = [*checkpoints, *sweep.fixed, *sweep.train_arguments(trial), "--log-dir", str(folder)]
    options, training = read_training(sweep.source, arguments)
    # Free the memory of the last training.
    gc.collect()
    with _quiet_progress(f"trial {trial.number}", sweep.iterations) as show_iteration:
        command = f"{program()} {shlex.join(['train', name, *arguments])}"
        runner, _ = prepare_training(sweep.source, options, training, command)
        if runner.evaluator is None:
            raise CommandError(f"{name} has no evaluator")
        evaluated = EvaluatedTrial(trial, runner.evaluator, show_iteration)
        runner.evaluator = evaluated.evaluate
        runner.init_writter(False)
        shutdown = GracefulShutdown(runner.request_stop)
        try:
            runner.time_limit_s = None if options.minutes is None else 60.0 * options.minutes
            with shutdown:
                runner.learn(sweep.iterations, init_at_random_ep_len=True, trial=evaluated)
        finally:
            runner.close()
            evaluated.store_metrics(runner.current_learning_iteration)
            if shutdown.exit_code is not None:
                raise KeyboardInterrupt(shutdown.exit_code)
    trial.report(evaluated.scores[-1], runner.current_learning_iteration)
    return max(evaluated.scores)


@contextlib.contextmanager
def _quiet_progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Suppress all output but warnings and, on a terminal, a bar; yields a function that sets the iterations done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from st_rl.loggers.console_panel import is_live_terminal
    from st_rl.utils.log import logger

    bar = Progress(
        *(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()),
        # The real stdout, which is redirected below.
        console=Console(file=sys.stdout),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=sys.stderr.isatty(),
        disable=not is_live_terminal(),
    )
    level = logger.level
    logger.setLevel("WARNING")
    try:
        with bar, open(os.devnull, "w", encoding="utf-8") as devnull, contextlib.redirect_stdout(devnull):
            task = bar.add_task(label, total=total)
            yield lambda done: bar.update(task, completed=done)
    finally:
        logger.setLevel(level)
