"""The trials of a sweep: trainings, each with its own run folder."""

from __future__ import annotations

import contextlib
import gc
import os
import shlex
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from st_rl.cli.commands.sweep.evaluated_trial import EvaluatedTrial
from st_rl.cli.commands.sweep.results import Sweep, format_trial, print_results, write_results
from st_rl.cli.commands.sweep.shared_trials import Heartbeat
from st_rl.cli.commands.train import prepare_training, read_training
from st_rl.cli.support.command_line import CommandError, one_line, program
from st_rl.cli.support.graceful_shutdown import GracefulShutdown
from st_rl.utils.log import logger

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

# Evaluated checkpoints of a trial, unless the user sets --runner.save-interval.
_NUM_CHECKPOINTS = 8
# Give up if all of the first trials fail.
_MAX_INITIAL_FAILURES = 3
# Between two looks at the trials of other workers, s.
_POLL_S = 1.0


def run_trials(sweep: Sweep) -> int:
    """Run trials, with other workers of the study if there are any, and print the results; returns the exit code."""
    print(f"{sweep.describe()}. Sweep: {sweep.folder}", flush=True)
    exit_code = work_on_trials(sweep)
    if exit_code != 0:
        print(f"Interrupted. Continue with:\n  {sweep.command_to_continue()}")
        return exit_code
    print_results(sweep)
    return 0


def work_on_trials(sweep: Sweep) -> int:
    """Run trials until all of the sweep have ended; returns 0, or the exit code of a signal."""
    trials = sweep.trials
    distributions: dict[str, BaseDistribution] = {p.name: p.distribution for p in sweep.parameters}
    is_waiting = False
    try:
        while len(sweep.finished()) < sweep.num_trials:
            sweep.choose_sampler()
            trial = trials.start(distributions)
            if trial is None:
                if not is_waiting:
                    print("Waiting for the trials of other workers", flush=True)
                is_waiting = True
                time.sleep(_POLL_S)
                continue
            is_waiting = False
            _run_trial(sweep, trial)
            print(format_trial(sweep, trial.number), flush=True)
            write_results(sweep)
            _check_failures(sweep)
    except KeyboardInterrupt as interruption:
        return interruption.args[0] if interruption.args else 130
    finally:
        write_results(sweep)
    return 0


def _check_failures(sweep: Sweep) -> None:
    """CommandError if all of the first trials have failed."""
    finished = sweep.finished()
    if len(finished) >= _MAX_INITIAL_FAILURES and all(trial.state.name == "FAIL" for trial in finished):
        raise CommandError(f"the first {_MAX_INITIAL_FAILURES} trials failed; giving up")


def _run_trial(sweep: Sweep, trial: optuna.Trial) -> None:
    """Train with the settings of a trial and report the score, unless another worker has taken over the trial."""
    import optuna
    from optuna.trial import TrialState

    study = sweep.study
    same = next((known for known in sweep.trained() if known.params == trial.params), None)
    try:
        if same is not None:
            # All trials have the same seed, so it would train the same policy.
            trial.set_user_attr("same_as", same.number)
            study.tell(trial, same.value if same.state == TrialState.COMPLETE else None, same.state)
            return
        with Heartbeat(trial, sweep.trials.timeout_s) as heartbeat:
            score = _train(sweep, trial, heartbeat)
        study.tell(trial, score)
    except optuna.exceptions.UpdateFinishedTrialError:
        logger.warning(f"trial {trial.number}: another worker has taken it over, because this one was silent")
    except optuna.TrialPruned:
        study.tell(trial, state=TrialState.PRUNED)
    except KeyboardInterrupt:
        # It does not count; its settings are the first to run when the sweep continues.
        sweep.trials.interrupt(trial)
        raise
    except Exception as error:
        trial.set_user_attr("error", sweep.address.mask(f"{type(error).__name__}: {one_line(error)}"))
        trial.set_user_attr("traceback", sweep.address.mask(traceback.format_exc()))
        study.tell(trial, state=TrialState.FAIL)


def _train(sweep: Sweep, trial: optuna.Trial, heartbeat: Heartbeat) -> float:
    """Train with the settings of a trial; returns the score of the best checkpoint."""
    name, folder = sweep.source.name, sweep.folder / f"trial_{trial.number}"
    trial.set_user_attr("path", str(folder.absolute()))
    # The last occurrence of an option counts, so that the user's save interval overrides this one.
    checkpoints = ["--runner.save-interval", str(max(1, sweep.iterations // _NUM_CHECKPOINTS))]
    arguments = [*checkpoints, *sweep.fixed, *sweep.train_arguments(trial), "--log-dir", str(folder)]
    arguments += ["--device", sweep.device]
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
            heartbeat.on_lost = runner.request_stop
            with shutdown:
                runner.learn(sweep.iterations, init_at_random_ep_len=True, trial=evaluated)
        finally:
            runner.close()
            if shutdown.exit_code is not None:
                raise KeyboardInterrupt(shutdown.exit_code)
            evaluated.store_metrics(runner.current_learning_iteration)
    trial.report(evaluated.scores[-1], runner.current_learning_iteration)
    return max(evaluated.scores)


@contextlib.contextmanager
def _quiet_progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Suppress all output but warnings and, on a terminal, a bar; yields a function that sets the iterations done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from st_rl.loggers.console_panel import is_live_terminal

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
