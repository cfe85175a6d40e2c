"""Databases of a ledger: opening, locking and faults."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shlex
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from filelock import FileLock
from sqlalchemy import Connection, create_engine, event, text
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from headrace.errors import LedgerError
from headrace.files.machine import free_bytes, network_file_system
from headrace.files.private import make_private_file, tighten

logger = logging.getLogger(__name__)

_BUSY_TIMEOUT_S = 60
_PATIENCE_S = 60.0
"""Time to wait for a server that answered before and does not now: it may be restarting."""
_LEAST_FREE_BYTES = 2**20
"""With less free space SQLite's log may not grow, which SQLite reports in several ways."""
_UNWRITABLE = r"disk I/O error|unable to open database file|readonly database|disk is full"
_FULL = "cannot be written, its disk is full", "Free some space. Then: headrace resume RUN."
_DAMAGED = """Move it away: mkdir damaged && mv {}* damaged
  Then enter the runs anew from their folders, for each site: headrace lease adopt --site SITE"""
_RIGHTS = """Mount its disk for writing and give this account the right to write: ls -ld {}
  Or name another ledger in HEADRACE_LEDGER."""
_FAULTS = (
    ("disk is full", *_FULL),
    ("malformed|not a database|unsupported file", "is damaged", _DAMAGED),
    ("no such table", "was removed", "Bring {} back, or: headrace lease adopt --site SITE"),
    ("locked", "is held by another process", "Let it end, or stop it: fuser -v {}"),
    ("readonly|unable to open", "cannot be written", _RIGHTS),
    ("disk I/O error", "is on a disk that fails", "See `dmesg`, and move {} to another disk."),
    ("", "cannot be used", "Check HEADRACE_LEDGER and the file {}: headrace ledger show."),
)
"""Parts of SQLite's messages, their meaning, and the next step with the file's path."""


class Sqlite:
    """A file on a local disk: WAL, one writer at a time, writers wait for each other."""

    insert = staticmethod(sqlite.insert)
    month = "strftime('%Y-%m', every.day * 86400, 'unixepoch')"

    def __init__(self, url: URL) -> None:
        self._path = _sqlite_path(url)
        self.engine = create_engine(
            url.set(drivername="sqlite+pysqlite", database=str(self._path)),
            poolclass=NullPool,
            hide_parameters=True,
            connect_args={"timeout": _BUSY_TIMEOUT_S, "isolation_level": None},
        )
        event.listen(self.engine, "do_connect", self._connect)
        event.listen(self.engine, "connect", _prepare_sqlite)
        event.listen(self.engine, "begin", _begin_sqlite)

    def hold(self, session: Session, name: str) -> None:
        """Do nothing: a write transaction holds the whole file."""

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Hold a lock file: SQLite does not wait for others when a new file is switched to WAL."""
        path = self._path
        make_private_file(path)
        for part in ("wal", "shm"):
            with suppress(FileNotFoundError):  # SQLite gives new ones the mode of the file itself
                tighten(path.with_name(f"{path.name}-{part}"))
        lock = path.with_name(f".{path.name}.lock")
        with FileLock(lock, timeout=_BUSY_TIMEOUT_S, mode=0o600):
            with closing(self.engine.raw_connection()) as connection:
                connection.cursor().execute("PRAGMA journal_mode = WAL")
            yield

    def fault(self, error: Exception) -> tuple[str, str]:
        """Return what is wrong with the ledger after an error, and the next step."""
        cause, folder = cause_of(error), self._path.parent
        if os.path.isdir(folder) and free_bytes(folder) < _LEAST_FREE_BYTES:
            cause = re.sub(_UNWRITABLE, "disk is full", cause)
        what, hint = next(each[1:] for each in _FAULTS if re.search(each[0], cause))
        return what, hint.format(shlex.quote(str(self._path)))

    def _connect(self, dialect: Any, _record: Any, arguments: Any, options: Any) -> Any:
        """Open a connection; read-only if SQLite cannot write the files beside it."""
        connection = dialect.connect(*arguments, **options)
        try:
            connection.execute("PRAGMA schema_version")
        except sqlite3.OperationalError as error:
            connection.close()
            if not re.search(_UNWRITABLE, str(error)) or not os.path.isfile(self._path):
                raise
            return self._read_alone()
        return connection

    def _read_alone(self) -> sqlite3.Connection:
        """Open the current state read-only; if the ledger has a log, by a copy in memory."""
        log = Path(f"{self._path}-wal")
        if not log.exists() or not log.stat().st_size:
            return sqlite3.connect(f"{self._path.as_uri()}?immutable=1", uri=True)
        memory = sqlite3.connect(":memory:", isolation_level=None)
        with TemporaryDirectory() as folder:
            for file in (self._path, log):
                shutil.copyfile(file, Path(folder, file.name))
            with closing(sqlite3.connect(Path(folder, self._path.name))) as copied:
                copied.backup(memory)
        memory.execute("PRAGMA query_only = ON")
        return memory


class Postgres:
    """A PostgreSQL server, by psycopg."""

    month = "to_char(to_timestamp(every.day * 86400) AT TIME ZONE 'UTC', 'YYYY-MM')"

    def __init__(self, url: URL) -> None:
        from sqlalchemy.dialects.postgresql import insert  # not needed by a ledger in a file

        self.insert = insert
        try:
            self.engine = create_engine(
                url.set(drivername="postgresql+psycopg"), poolclass=NullPool, hide_parameters=True
            )
        except ModuleNotFoundError as error:
            raise LedgerError(
                f"A PostgreSQL ledger needs the package '{error.name}', which is not installed",
                "Run pip install 'headrace[postgres]'.",
            ) from error
        self._was_there = False
        event.listen(self.engine, "do_connect", self._connect)

    def _connect(self, dialect: Any, _record: Any, arguments: Any, options: Any) -> Any:
        """Open a connection; if the server was reached before, wait for its restart."""
        deadline, has_warned = time.monotonic() + _PATIENCE_S, False
        while True:
            try:
                connection = dialect.connect(*arguments, **options)
            except dialect.dbapi.OperationalError as error:
                if not self._was_there or time.monotonic() >= deadline:
                    raise
                if not has_warned:
                    message = "The ledger's server does not answer; waiting for up to %g s: %s"
                    logger.warning(message, _PATIENCE_S, str(error).strip())
                has_warned = True
                time.sleep(0.5)
            else:
                self._was_there = True
                return connection

    def hold(self, session: Session, name: str) -> None:
        """Allow one transaction at a time past this point, for each name."""
        number = int.from_bytes(hashlib.sha256(f"headrace {name}".encode()).digest()[:8], "big")
        key = number - 2**63  # PostgreSQL's bigint is signed
        session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": key})

    def opening(self) -> AbstractContextManager[None]:
        """Do nothing."""
        return nullcontext()

    def fault(self, error: Exception) -> tuple[str, str]:
        """Return what is wrong after an error, 53100 if its disk is full, and the next step."""
        if getattr(getattr(error, "orig", None), "sqlstate", None) == "53100":
            return _FULL
        return "cannot be used", "Check HEADRACE_LEDGER and that its server runs."


BACKENDS: dict[str, type[Sqlite] | type[Postgres]] = {
    "sqlite": Sqlite,
    "postgresql": Postgres,
    "postgres": Postgres,
}


def _sqlite_path(url: URL) -> Path:
    if not url.database or url.database == ":memory:":
        raise LedgerError(
            "The ledger's URL names no file",
            "Write four slashes for an absolute path: sqlite:////absolute/path/ledger.db.",
        )
    path = Path(url.database).expanduser().resolve()
    kind = network_file_system(path)
    if kind is not None:
        raise LedgerError(
            f"The ledger {path} is on a network file system ({kind}), where SQLite loses data",
            "Use PostgreSQL (HEADRACE_LEDGER=postgresql://user:password@host/name), "
            "or a file on a local disk.",
        )
    return path


def _prepare_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = FULL")


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get("headrace_begin", "BEGIN"))


def cause_of(error: Exception) -> str:
    """Return a database's error message in one line."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return " ".join(str(cause).split())
