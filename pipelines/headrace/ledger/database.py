"""The ledger's database, SQLite or PostgreSQL: its URL, transactions, exclusive sections."""

from __future__ import annotations

import hashlib
import os
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from sqlalchemy import Connection, Engine, FromClause, create_engine, event, inspect, make_url, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from headrace import __version__
from headrace.errors import LedgerError, nearest
from headrace.files.machine import current_mounts, free_bytes, network_file_system
from headrace.files.private import make_private_file, tighten
from headrace.ledger.records import REVISION, REVISION_TABLE
from headrace.recipe.load import home

VARIABLE = "HEADRACE_LEDGER"
"""Environment variable that names the ledger."""

_EXAMPLES = (
    f"Set {VARIABLE} to sqlite:////absolute/path/ledger.db or postgresql://user:password@host/name."
)
_SECRET_IN_QUERY = re.compile(r"([?&][^=&]*(?:password|secret|token)[^=&]*=)[^&]*", re.IGNORECASE)
_SECRET_IN_USER = re.compile(r"(://[^:@/]*|^(?!.*://)[^:@/]*):.*@", re.DOTALL)
_BUSY_TIMEOUT_S = 60
_LEAST_FREE_BYTES = 2**20
"""With less than this SQLite's log may not grow, which it calls an I/O error."""


def default_url() -> str:
    """`$HEADRACE_LEDGER`, or a SQLite file in headrace's home folder."""
    return os.environ.get(VARIABLE) or f"sqlite:///{home() / 'ledger.db'}"


def masked(url: str) -> str:
    """The URL with `***` in place of passwords; also for URLs that cannot be parsed."""
    return _SECRET_IN_QUERY.sub(r"\1***", _SECRET_IN_USER.sub(r"\1:***@", url))


class _Sqlite:
    """A file on a local disk: WAL, one writer at a time, writers wait for each other."""

    insert = staticmethod(sqlite.insert)

    def __init__(self, url: URL) -> None:
        self._path = _sqlite_path(url)
        self.engine = create_engine(
            url.set(drivername="sqlite+pysqlite", database=str(self._path)),
            poolclass=NullPool,
            hide_parameters=True,
            connect_args={"timeout": _BUSY_TIMEOUT_S, "isolation_level": None},
        )
        event.listen(self.engine, "connect", _prepare_sqlite)
        event.listen(self.engine, "begin", _begin_sqlite)

    def hold(self, session: Session, name: str) -> None:
        """Nothing to do: a write transaction holds the whole file."""

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Hold a lock file, as switching a new file to WAL does not wait for others by itself."""
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

    def is_full(self, error: Exception) -> bool:
        """Whether SQLite says so, or could not even write its log."""
        cause, folder = _cause(error), self._path.parent
        lacks_room = folder.is_dir() and free_bytes(folder) < _LEAST_FREE_BYTES
        return "disk is full" in cause or ("disk I/O error" in cause and lacks_room)


class _Postgres:
    """A PostgreSQL server, by psycopg."""

    insert = staticmethod(postgresql.insert)

    def __init__(self, url: URL) -> None:
        try:
            self.engine = create_engine(
                url.set(drivername="postgresql+psycopg"), poolclass=NullPool, hide_parameters=True
            )
        except ModuleNotFoundError as error:
            raise LedgerError(
                f"A PostgreSQL ledger needs the package '{error.name}', which is not installed",
                "Run pip install 'headrace[postgres]'.",
            ) from error

    def hold(self, session: Session, name: str) -> None:
        """Let one transaction at a time go past this point, for each name."""
        number = int.from_bytes(hashlib.sha256(f"headrace {name}".encode()).digest()[:8], "big")
        key = number - 2**63  # PostgreSQL's bigint is signed
        session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": key})

    def opening(self) -> AbstractContextManager[None]:
        """Nothing to do."""
        return nullcontext()

    def is_full(self, error: Exception) -> bool:
        """Whether this is class 53100 of its errors."""
        return getattr(getattr(error, "orig", None), "sqlstate", None) == "53100"


_BACKENDS: dict[str, type[_Sqlite] | type[_Postgres]] = {
    "sqlite": _Sqlite,
    "postgresql": _Postgres,
    "postgres": _Postgres,
}


class Database:
    """Transactions on the ledger's database.

    Connections are opened for each transaction and closed after it, so that a process may fork at
    any time and nothing is held in between.

    Raises:
        LedgerError: The URL cannot be used.
    """

    def __init__(self, url: str) -> None:
        parsed = _parsed(url)
        name = parsed.get_backend_name()
        if name not in _BACKENDS:
            raise LedgerError(
                f"The ledger's URL '{masked(url)}' names the database '{name}'",
                nearest(name, ("sqlite", "postgresql")),
            )
        self.shown = masked(url)
        self._backend = _BACKENDS[name](parsed)
        self._readers = self._backend.engine
        self._writers = self._readers.execution_options(headrace_begin="BEGIN IMMEDIATE")

    def read(self) -> AbstractContextManager[Session]:
        """A transaction that sees one state of the ledger."""
        return self._transaction(self._readers)

    @contextmanager
    def write(self, section: str = "") -> Iterator[Session]:
        """A transaction that changes the ledger, whole; only one at a time in a named section."""
        with self._transaction(self._writers) as session:
            if section:
                self._backend.hold(session, section)
            yield session

    def put(
        self,
        session: Session,
        table: FromClause,
        rows: Sequence[Mapping[str, Any]],
        *,
        adding: bool = False,
    ) -> None:
        """Enter rows of a table; of those with a known key the rest is replaced, or added to."""
        if not rows:
            return
        insert = self._backend.insert(table)  # type: ignore[arg-type]  # a table, as of a record
        keys = [column for column in table.c if column.primary_key]
        given = {each.name: insert.excluded[each.name] for each in table.c if not each.primary_key}
        if adding:
            given = {name: table.c[name] + value for name, value in given.items()}
        session.connection().execute(
            insert.on_conflict_do_update(index_elements=keys, set_=given), rows
        )

    def bring_up_to_date(self) -> None:
        """Make a missing schema, and migrate an older one.

        Raises:
            LedgerError: The database cannot be reached, or its schema is newer than this release.
        """
        try:
            with self._errors_explained(), self._backend.opening():
                self._migrate()
        except (OSError, Timeout) as error:
            raise LedgerError(f"The ledger {self.shown} cannot be opened: {error}") from error

    def revision(self, session: Session) -> str | None:
        """Revision of the schema; None when there is none."""
        if not inspect(session.connection()).has_table(REVISION_TABLE):
            return None
        found: str | None = session.scalar(text(f"SELECT version_num FROM {REVISION_TABLE}"))
        return found

    def _migrate(self) -> None:
        with self.read() as session:
            found = self.revision(session)
        if found == REVISION:
            return
        from headrace.ledger import migrations  # half a second that only a missing schema is worth

        if found is not None and found not in migrations.revisions():
            raise LedgerError(
                f"The ledger {self.shown} has schema revision {found}, which is newer than "
                f"{REVISION}, the newest that headrace {__version__} knows",
                "Upgrade headrace: pip install --upgrade headrace.",
            )
        with self.write("migration") as session:
            migrations.upgrade(session.connection())

    @contextmanager
    def _transaction(self, engine: Engine) -> Iterator[Session]:
        with (
            self._errors_explained(),
            Session(engine, expire_on_commit=False) as session,
            session.begin(),
        ):
            yield session

    @contextmanager
    def _errors_explained(self) -> Iterator[None]:
        try:
            yield
        except IntegrityError as error:
            raise LedgerError(
                f"The ledger {self.shown} refuses an entry: {_cause(error)}",
                "A run must be entered before its leases, and both before its attempts.",
            ) from error
        except (SQLAlchemyError, sqlite3.Error, ValueError) as error:
            if self._backend.is_full(error):
                raise LedgerError(
                    f"The ledger {self.shown} cannot be written, its disk is full: {_cause(error)}",
                    "Free some space there, then go on with what was interrupted: "
                    "headrace resume RUN.",
                ) from error
            raise LedgerError(
                f"The ledger {self.shown} cannot be used: {_cause(error)}",
                f"Check {VARIABLE} and that the database is there: headrace ledger show. After the "
                "loss of one, headrace lease adopt enters the runs anew.",
            ) from error


class LedgerPart:
    """A part of the ledger: what is asked of some of its tables."""

    def __init__(self, database: Database) -> None:
        self._database = database


def _parsed(url: str) -> URL:
    try:
        return make_url(url)
    except (ArgumentError, ValueError):  # their messages may quote parts of the password
        raise LedgerError(f"The ledger's URL '{masked(url)}' cannot be read", _EXAMPLES) from None


def _sqlite_path(url: URL) -> Path:
    if not url.database or url.database == ":memory:":
        raise LedgerError(
            "The ledger's URL names no file",
            "Write four slashes for an absolute path: sqlite:////absolute/path/ledger.db.",
        )
    path = Path(url.database).expanduser().resolve()
    kind = network_file_system(path, current_mounts())
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


def _cause(error: Exception) -> str:
    cause = error.orig if isinstance(error, DBAPIError) else error
    return " ".join(str(cause).split())
