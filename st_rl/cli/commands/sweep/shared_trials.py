"""The trials of a study that several workers share: who starts which, and what happens to those of a lost worker.

A worker repeats the user attribute `heartbeat` of its trial, on any storage of Optuna. A running trial of which
it has not changed for a while is failed as `interrupted`, and a new trial with the same settings, which is a
`retry_of` it, waits for any worker. Every attribute is written before it matters, and of two trials with the same
purpose only the one with the lower number runs: a worker may die between any two steps.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, Any

from st_rl.utils.log import logger

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

HEARTBEAT = "heartbeat"
INTERRUPTED = "interrupted"
"""The trial did not end: Ctrl-C, or its worker is lost. It does not count, its retry does."""
DISCARDED = "discarded"
"""Another worker has started the same, or all trials of the sweep had been started."""
RETRY_OF = "retry_of"
ATTEMPT = "attempt"
PURPOSE = "purpose"
WORKER = "worker"
ERROR = "error"
_DEFAULT_SETTINGS = "default settings"
# A trial that ends its worker every time, such as one without enough memory, has failed.
_MAX_ATTEMPTS = 4
# Heartbeats within the time after which a worker is lost.
_BEATS_PER_TIMEOUT = 4


class SharedTrials:
    """Starts trials of a study until there are `num_trials`, together with other workers."""

    def __init__(self, study: optuna.Study, num_trials: int, timeout_s: float):
        self.study = study
        self.num_trials = num_trials
        self.timeout_s = timeout_s
        # Number of a running trial -> its last heartbeat and when this process has seen it first.
        self._beats: dict[int, tuple[object, float]] = {}

    def all(self) -> list[FrozenTrial]:
        """Return all trials but discarded ones, in the order of their numbers."""
        return [t for t in self.study.get_trials(deepcopy=False) if DISCARDED not in t.user_attrs]

    def finished(self) -> list[FrozenTrial]:
        """Return the trials that have ended and count; each start of a trial ends in one of them."""
        return [t for t in self.all() if t.state.is_finished() and INTERRUPTED not in t.user_attrs]

    def enqueue_default(self, settings: dict[str, Any]) -> None:
        """Let the first trial use the default settings, as the baseline of the search."""
        if not self.all():
            self.study.enqueue_trial(settings, user_attrs={PURPOSE: _DEFAULT_SETTINGS})

    def start(self, distributions: dict[str, BaseDistribution]) -> optuna.Trial | None:
        """Return a trial for this worker to run; None if all have been started and none waits."""
        from optuna.trial import TrialState

        self.fail_lost_trials()
        self.retry_interrupted()
        while True:
            trials = self.all()
            is_waiting = any(trial.state == TrialState.WAITING for trial in trials)
            if not is_waiting and len(_starts(trials)) >= self.num_trials:
                return None
            trial = self.study.ask(distributions)
            if not self._is_surplus(trial.number):
                trial.set_user_attr(WORKER, f"{socket.gethostname()}:{os.getpid()}")
                return trial
            trial.set_user_attr(DISCARDED, True)
            self.study.tell(trial, state=TrialState.FAIL)

    def _is_surplus(self, number: int) -> bool:
        """Whether a trial with a lower number has the same purpose, or takes the last place."""
        trials = self.study.get_trials(deepcopy=False)
        attributes = trials[number].user_attrs
        purpose = attributes.get(PURPOSE)
        if purpose is not None and any(t.user_attrs.get(PURPOSE) == purpose for t in trials[:number]):
            return True
        return RETRY_OF not in attributes and len(_starts(self.all(), number)) >= self.num_trials

    def interrupt(self, trial: optuna.Trial) -> None:
        """Fail a trial that has not ended and let its settings wait for a worker."""
        from optuna.trial import TrialState

        trial.set_user_attr(INTERRUPTED, True)
        self.study.tell(trial, state=TrialState.FAIL)
        self.retry_interrupted()

    def retry_interrupted(self) -> None:
        """Enqueue the settings of interrupted trials that are not enqueued yet."""
        trials = self.study.get_trials(deepcopy=False)
        retried = {trial.user_attrs.get(RETRY_OF) for trial in trials}
        for trial in trials:
            is_interrupted = trial.state.is_finished() and INTERRUPTED in trial.user_attrs
            if not is_interrupted or trial.number in retried:
                continue
            attributes = {RETRY_OF: trial.number, PURPOSE: f"retry of {trial.number}"}
            attributes[ATTEMPT] = trial.user_attrs.get(ATTEMPT, 1) + 1
            self.study.enqueue_trial(trial.params, user_attrs=attributes)

    def fail_lost_trials(self) -> None:
        """Fail the running trials of which the worker has been silent for `timeout_s`."""
        for trial in self._silent_trials():
            lost = f"worker {trial.user_attrs.get(WORKER, '(unknown)')} was silent for {self.timeout_s:g} s"
            if trial.user_attrs.get(ATTEMPT, 1) < _MAX_ATTEMPTS:
                self._fail(trial, {INTERRUPTED: True, "lost": lost})
                logger.warning(f"trial {trial.number}: {lost}; its settings are tried again")
            else:
                self._fail(trial, {ERROR: f"{lost}, in attempt {_MAX_ATTEMPTS}"})
                logger.warning(f"trial {trial.number}: {lost}, like those of all attempts; it has failed")

    def _fail(self, trial: FrozenTrial, attributes: dict[str, Any]) -> None:
        """Fail a trial of another worker, unless it has ended in the meantime."""
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        with contextlib.suppress(UpdateFinishedTrialError):
            for name, value in attributes.items():
                # Optuna has no public call for an attribute of a trial that another process runs.
                self.study._storage.set_trial_user_attr(trial._trial_id, name, value)
            self.study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)

    def _silent_trials(self) -> list[FrozenTrial]:
        """Return the running trials without a new heartbeat; measured by the clock of this process alone."""
        from optuna.trial import TrialState

        now, silent = time.monotonic(), []
        running = [trial for trial in self.all() if trial.state == TrialState.RUNNING]
        seen = self._beats
        self._beats = {}
        for trial in running:
            beat = trial.user_attrs.get(HEARTBEAT)
            known = seen.get(trial.number)
            since = known[1] if known is not None and known[0] == beat else now
            self._beats[trial.number] = (beat, since)
            if now - since > self.timeout_s:
                silent.append(trial)
        return silent


def _starts(trials: Sequence[FrozenTrial], before: int | None = None) -> list[FrozenTrial]:
    """Return the trials, below a number if given, that are no retry of another: each takes one place of the sweep."""
    return [t for t in trials if RETRY_OF not in t.user_attrs and (before is None or t.number < before)]


class Heartbeat:
    """Within a `with` block, tells other workers in a thread that this one works on a trial.

    `on_lost` is called in that thread if another worker has declared this one lost, for example after it was suspended.
    """

    def __init__(self, trial: optuna.Trial, timeout_s: float):
        self._trial = trial
        self._interval_s = timeout_s / _BEATS_PER_TIMEOUT
        self.on_lost: Callable[[], None] = lambda: None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="st_rl trial heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError

        for number in count():
            try:
                self._trial.set_user_attr(HEARTBEAT, number)
            except UpdateFinishedTrialError:
                self.on_lost()
                return
            except (OSError, StorageInternalError) as error:
                logger.warning(f"trial {self._trial.number}: no heartbeat, {type(error).__name__} of the storage")
            if self._stop.wait(self._interval_s):
                return
