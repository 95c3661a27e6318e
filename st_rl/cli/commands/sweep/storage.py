"""Where the study of a sweep is stored: a journal in a folder, or a database, of which no output shows credentials."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus

from st_rl.cli.support.command_line import CommandError, UsageError, one_line
from st_rl.cli.support.run_folders.run_folder import RUN_FILE, make_writable

if TYPE_CHECKING:
    import optuna
    from optuna.storages import BaseStorage
    from sqlalchemy import URL

STUDY_FILE = "study.log"
STORAGE_VARIABLE = "ST_RL_STORAGE"
"""Environment variable that replaces `--storage`: a command line is visible to all users of a machine."""
_EXAMPLE = "postgresql://USER:PASSWORD@HOST:5432/DATABASE"
_HIDDEN = "***"
# Workers that create the tables of a database at the same time disturb each other.
_MAX_ATTEMPTS = 5
_JOIN_WAIT_S = 300.0


@dataclass(frozen=True)
class StudyAddress:
    """A study by the folder of its journal or the address of its database, and by its name in there."""

    storage: str
    name: str

    @property
    def is_database(self) -> bool:
        """Whether the storage is the address of a database."""
        return "://" in self.storage

    @property
    def journal(self) -> Path:
        """The journal file of a storage that is a folder."""
        return Path(self.storage) / STUDY_FILE

    def describe(self) -> str:
        """Describe the storage without credentials."""
        if not self.is_database:
            return str(self.journal)
        url = self._url()
        return f"{url.drivername}://{url.host or ''}{f':{url.port}' if url.port else ''}/{url.database or ''}"

    def option(self) -> str:
        """Return the option that names the storage, as it can be typed in a shell; without credentials."""
        from st_rl.cli.support.command_line import quote

        name = "" if self.name == "sweep" else f" --study {self.name}"
        storage = f'"${STORAGE_VARIABLE}"' if self.is_database else quote(Path(self.storage))
        return f"--storage {storage}{name}"

    def mask(self, text: str) -> str:
        """Return a text without the credentials of the address."""
        for secret in sorted(self._secrets(), key=len, reverse=True):
            text = text.replace(secret, _HIDDEN)
        return text

    @contextmanager
    def hide_credentials(self) -> Iterator[None]:
        """Within the block, replace an exception that contains credentials; removes them from `sys.argv`."""
        # Loggers such as wandb record the command line of the process.
        sys.argv[:] = [self.mask(word) for word in sys.argv]
        try:
            yield
        except Exception as error:
            if self.mask(str(error)) == str(error):
                raise
            raise CommandError(self.mask(one_line(error))) from None

    def open(self) -> BaseStorage:
        """Open the storage; CommandError if that is not possible."""
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        if self.is_database:
            return self._open_database()
        folder = Path(self.storage)
        if (folder / RUN_FILE).is_file():
            raise UsageError(f"{folder} is a run, not a sweep; choose another --log-dir")
        make_writable(folder, "choose another with --log-dir")
        return JournalStorage(JournalFileBackend(str(self.journal)))

    def _open_database(self) -> BaseStorage:
        import sqlalchemy.exc
        from optuna.storages import RDBStorage

        url = self._url()
        for attempt in range(_MAX_ATTEMPTS):
            try:
                return RDBStorage(url.render_as_string(hide_password=False), engine_kwargs={"pool_pre_ping": True})
            except ImportError as error:
                raise ImportError(
                    f"--storage {url.drivername}://... needs a driver ({one_line(error).rstrip('.')}): "
                    'pip install "st_rl[postgresql]"'
                ) from None
            except (sqlalchemy.exc.IntegrityError, sqlalchemy.exc.ProgrammingError) as error:
                if attempt == _MAX_ATTEMPTS - 1:
                    raise CommandError(f"cannot create tables in {self.describe()}: {self._cause(error)}") from None
                time.sleep(0.5 * (attempt + 1))
            except Exception as error:  # errors of drivers have no common class
                raise CommandError(f"cannot open {self.describe()}: {self._cause(error)}") from None
        raise AssertionError("not reached")

    def _cause(self, error: Exception) -> str:
        """Return the first line of an error without credentials."""
        return self.mask(next(iter(str(error).splitlines()), type(error).__name__))

    def _url(self) -> URL:
        from sqlalchemy import make_url
        from sqlalchemy.exc import ArgumentError

        try:
            return make_url(self.storage)
        except (ArgumentError, ValueError):
            raise UsageError(f"--storage is not the address of a database: type {_EXAMPLE}, or a folder") from None

    def _secrets(self) -> set[str]:
        """Return the address and its passwords, as typed and decoded."""
        if not self.is_database:
            return set()
        try:
            url = self._url()
        except UsageError:
            return {self.storage}
        values = [url.password, *(value for key, value in url.query.items() if "pass" in key)]
        passwords = {str(value) for value in values if value}
        return {self.storage, *passwords, *map(quote, passwords), *map(quote_plus, passwords)}


def read_storage(option: str | None, folder: Path, name: str) -> StudyAddress:
    """Return the address of a study: `--storage`, the environment variable, or the folder of the sweep."""
    storage = option if option is not None else os.environ.get(STORAGE_VARIABLE) or str(folder)
    if not storage.strip():
        raise UsageError(f"--storage is empty: give a folder, or {_EXAMPLE}")
    address = StudyAddress(storage, name)
    if address.is_database:
        address._url()
    return address


def open_study(address: StudyAddress, num_trials: int, iterations: int) -> optuna.Study:
    """Create or open a study, with the pruner of trials of `iterations`."""
    import optuna

    from st_rl.utils.files import name_file
    from st_rl.utils.files.readers import check_journal

    # No pruning before a few trials are complete, nor in the first quarter of a trial.
    pruner = optuna.pruners.MedianPruner(max(2, min(5, num_trials // 4)), n_warmup_steps=iterations // 4)
    if address.is_database:
        return _create_study(address, pruner)
    with name_file(address.journal, "start a new sweep with another --log-dir", CommandError):
        if address.journal.exists():
            check_journal(address.journal)
        study = _create_study(address, pruner)
        study.get_trials(deepcopy=False)
        created_by = study.user_attrs.get("command")
        if not isinstance(created_by, str | None):
            raise ValueError(f"its command is {created_by!r}")
    return study


def _create_study(address: StudyAddress, pruner: optuna.pruners.BasePruner) -> optuna.Study:
    import optuna

    return optuna.create_study(
        storage=address.open(), study_name=address.name, direction="maximize", pruner=pruner, load_if_exists=True
    )


def wait_for_study(address: StudyAddress, seconds: float = _JOIN_WAIT_S) -> dict[str, Any]:
    """Return the attributes of a study as soon as another worker has created it; CommandError after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        attributes = _find_study(address)
        if "arguments" in attributes:
            return attributes
        if time.monotonic() >= end:
            raise CommandError(
                f"there is no study '{address.name}' in {address.describe()} to join; start it with the same command "
                "without --join, and --search"
            )
        time.sleep(1.0)


def _find_study(address: StudyAddress) -> dict[str, Any]:
    """Return the attributes of a study; empty if it does not exist yet."""
    import optuna

    from st_rl.utils.files import name_file
    from st_rl.utils.files.readers import check_journal

    if not address.is_database and not address.journal.exists():
        return {}
    with name_file(address.describe(), "join another sweep", CommandError):
        if not address.is_database:
            check_journal(address.journal)
        storage = address.open()
        names = [study.study_name for study in storage.get_all_studies()]
        return optuna.load_study(study_name=address.name, storage=storage).user_attrs if address.name in names else {}
