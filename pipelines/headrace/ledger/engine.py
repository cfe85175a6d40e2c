"""The two databases behind one face: connections, transactions, exclusive sections."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Protocol

from filelock import FileLock
from sqlalchemy import Connection, Engine, Table, create_engine, event, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.pool import NullPool
from sqlalchemy.sql.dml import Insert

from headrace.errors import LedgerError, nearest
from headrace.ledger.address import VARIABLE, masked, parse_url
from headrace.storage.mounts import current_mounts, network_file_system
from headrace.storage.private import make_private_file, tighten
from headrace.storage.room import free_bytes

_BUSY_TIMEOUT_S = 60
_PARTS = ("wal", "shm")
_LEAST_FREE_BYTES = 2**20
"""With less than this SQLite's log may not grow, which it calls an I/O error."""


class Backend(Protocol):
    """What differs between databases."""

    def connect(self, url: URL) -> Engine:
        """An engine that opens connections when they are asked for."""

    def insert_if_new(self, table: Table) -> Insert:
        """An INSERT that does nothing when the row's key is there already."""

    def hold(self, connection: Connection, name: str) -> None:
        """Let one transaction at a time go past this point, for each name."""

    def opening(self, engine: Engine) -> AbstractContextManager[None]:
        """Held while a ledger is opened."""

    def is_full(self, error: Exception, url: URL) -> bool:
        """Whether an error means that the database has no room on its disk."""


class SqliteBackend:
    """A file on a local disk: WAL, one writer at a time, writers wait for each other."""

    def connect(self, url: URL) -> Engine:
        """An engine whose transactions take the write lock first, so that they never upgrade."""
        path = _sqlite_path(url)
        kind = network_file_system(path, current_mounts())
        if kind is not None:
            raise LedgerError(
                f"The ledger {path} is on a network file system ({kind}), where SQLite loses data",
                "Use PostgreSQL (HEADRACE_LEDGER=postgresql://user:password@host/name), "
                "or a file on a local disk.",
            )
        engine = create_engine(
            url.set(drivername="sqlite+pysqlite", database=str(path)),
            poolclass=NullPool,
            hide_parameters=True,
            connect_args={"timeout": _BUSY_TIMEOUT_S, "isolation_level": None},
        )
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine

    def insert_if_new(self, table: Table) -> Insert:
        """`INSERT … ON CONFLICT DO NOTHING`."""
        return sqlite.insert(table).on_conflict_do_nothing()

    def hold(self, connection: Connection, name: str) -> None:
        """Nothing to do: a write transaction holds the whole file."""

    @contextmanager
    def opening(self, engine: Engine) -> Iterator[None]:
        """Hold a lock file, as switching a new file to WAL does not wait for others by itself."""
        path = _sqlite_path(engine.url)
        make_private_file(path)
        for beside in (path.with_name(f"{path.name}-{part}") for part in _PARTS):
            with suppress(FileNotFoundError):  # SQLite gives new ones the mode of the file itself
                tighten(beside)
        lock = path.with_name(f".{path.name}.lock")
        with FileLock(lock, timeout=_BUSY_TIMEOUT_S, mode=0o600):
            with closing(engine.raw_connection()) as connection:
                connection.cursor().execute("PRAGMA journal_mode = WAL")
            yield

    def is_full(self, error: Exception, url: URL) -> bool:
        """SQLite says so, or could not even write its log."""
        cause = _cause(error)
        folder = _sqlite_path(url).parent
        lacks_room = folder.is_dir() and free_bytes(folder) < _LEAST_FREE_BYTES
        return "disk is full" in cause or ("disk I/O error" in cause and lacks_room)


class PostgresBackend:
    """A PostgreSQL server."""

    def connect(self, url: URL) -> Engine:
        """An engine on psycopg."""
        try:
            return create_engine(
                url.set(drivername="postgresql+psycopg"), poolclass=NullPool, hide_parameters=True
            )
        except ModuleNotFoundError as error:
            raise LedgerError(
                f"A PostgreSQL ledger needs the package '{error.name}', which is not installed",
                "Run pip install 'headrace[postgres]'.",
            ) from error

    def insert_if_new(self, table: Table) -> Insert:
        """`INSERT … ON CONFLICT DO NOTHING`."""
        return postgresql.insert(table).on_conflict_do_nothing()

    def hold(self, connection: Connection, name: str) -> None:
        """Take an advisory lock until the transaction ends."""
        number = int.from_bytes(hashlib.sha256(f"headrace {name}".encode()).digest()[:8], "big")
        key = number - 2**63  # PostgreSQL's bigint is signed
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": key})

    def opening(self, engine: Engine) -> AbstractContextManager[None]:
        """Nothing to do."""
        return nullcontext()

    def is_full(self, error: Exception, url: URL) -> bool:
        """Class 53100 of its errors."""
        del url
        return getattr(getattr(error, "orig", None), "sqlstate", None) == "53100"


_BACKENDS: dict[str, type[SqliteBackend] | type[PostgresBackend]] = {
    "sqlite": SqliteBackend,
    "postgresql": PostgresBackend,
    "postgres": PostgresBackend,
}


class Database:
    """Transactions on the ledger's database.

    Connections are opened for each transaction and closed after it, so that a process may fork at
    any time and nothing is held in between.

    Args:
        url: SQLAlchemy URL.

    Raises:
        LedgerError: The URL cannot be used.
    """

    def __init__(self, url: str) -> None:
        parsed = parse_url(url)
        name = parsed.get_backend_name()
        if name not in _BACKENDS:
            raise LedgerError(
                f"The ledger's URL '{masked(url)}' names the database '{name}'",
                nearest(name, ("sqlite", "postgresql")),
            )
        self.shown = masked(url)
        self.backend: Backend = _BACKENDS[name]()
        self._readers = self.backend.connect(parsed)
        self._writers = self._readers.execution_options(headrace_begin="BEGIN IMMEDIATE")

    def read(self) -> AbstractContextManager[Connection]:
        """A transaction that sees one state of the ledger."""
        return self._transaction(self._readers)

    def write(self) -> AbstractContextManager[Connection]:
        """A transaction that changes the ledger, whole or not at all."""
        return self._transaction(self._writers)

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Held while the ledger is opened.

        Raises:
            LedgerError: The database cannot be reached.
        """
        with self._errors_explained(), self.backend.opening(self._readers):
            yield

    @contextmanager
    def _transaction(self, engine: Engine) -> Iterator[Connection]:
        with self._errors_explained(), engine.begin() as connection:
            yield connection

    @contextmanager
    def _errors_explained(self) -> Iterator[None]:
        try:
            yield
        except IntegrityError as error:
            raise LedgerError(
                f"The ledger {self.shown} refuses an entry: {_cause(error)}",
                "A run must be entered before its leases, and both before its attempts.",
            ) from error
        except (SQLAlchemyError, sqlite3.Error, UnicodeDecodeError) as error:
            if self.backend.is_full(error, self._readers.url):
                raise LedgerError(
                    f"The ledger {self.shown} cannot be written, its disk is full: {_cause(error)}",
                    "Free some space there, then go on with what was interrupted: "
                    "headrace resume RUN.",
                ) from error
            raise LedgerError(
                f"The ledger {self.shown} cannot be used: {_cause(error)}",
                f"Check {VARIABLE} and that the database is there, or run `headrace ledger show`.",
            ) from error


def _sqlite_path(url: URL) -> Path:
    if not url.database or url.database == ":memory:":
        raise LedgerError(
            "The ledger's URL names no file",
            "Write four slashes for an absolute path: sqlite:////absolute/path/ledger.db.",
        )
    return Path(url.database).expanduser().resolve()


def _prepare_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = FULL")


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get("headrace_begin", "BEGIN"))


def _cause(error: Exception) -> str:
    cause = error.orig if isinstance(error, DBAPIError) else error
    return " ".join(str(cause).split())
