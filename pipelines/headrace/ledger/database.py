"""The ledger's database, SQLite or PostgreSQL: its URL, transactions, exclusive sections."""

from __future__ import annotations

import os
import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

from filelock import Timeout
from sqlalchemy import Engine, FromClause, Select, inspect, make_url, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session

from headrace import __version__
from headrace.errors import LedgerError, nearest
from headrace.files.machine import storage_error
from headrace.ledger.columns import LedgerRow
from headrace.ledger.engines import BACKENDS, cause_of
from headrace.ledger.rows import REVISION, REVISION_TABLE
from headrace.recipe.home import home

VARIABLE = "HEADRACE_LEDGER"
"""Environment variable that names the ledger."""

_EXAMPLES = (
    f"Set {VARIABLE} to sqlite:////absolute/path/ledger.db or postgresql://user:password@host/name."
)
_SECRET_IN_QUERY = re.compile(r"([?&][^=&]*(?:password|secret|token)[^=&]*=)[^&]*", re.IGNORECASE)
AnyRow = TypeVar("AnyRow", bound=LedgerRow)
Key = TypeVar("Key")
Value = TypeVar("Value")
_SECRET_IN_USER = re.compile(r"(://[^:@/]*|^(?!.*://)[^:@/]*):.*@", re.DOTALL)


def default_url() -> str:
    """Return `$HEADRACE_LEDGER`, or the URL of a SQLite file in headrace's home folder."""
    return os.environ.get(VARIABLE) or f"sqlite:///{home() / 'ledger.db'}"


def masked(url: str) -> str:
    """Return the URL with `***` for passwords, even if it cannot be parsed."""
    return _SECRET_IN_QUERY.sub(r"\1***", _SECRET_IN_USER.sub(r"\1:***@", url))


class Database:
    """Transactions on the ledger's database.

    Connections are opened for each transaction and closed after it, so that a process may fork at
    any time and holds no connection in between.

    Raises:
        LedgerError: The URL cannot be used.
    """

    def __init__(self, url: str) -> None:
        parsed = _parsed(url)
        name = parsed.get_backend_name()
        if name not in BACKENDS:
            raise LedgerError(
                f"The ledger's URL '{masked(url)}' names the database '{name}'",
                nearest(name, ("sqlite", "postgresql")),
            )
        self.shown = masked(url)
        self._backend = BACKENDS[name](parsed)
        self.month = self._backend.month
        """SQL of the month, as `2026-11`, of the column `every.day`, a day since the epoch."""
        self._readers = self._backend.engine
        self._writers = self._readers.execution_options(headrace_begin="BEGIN IMMEDIATE")
        self._snapshot = ContextVar[Session | None]("snapshot", default=None)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Begin a transaction that reads one state; within `snapshot`, use that transaction."""
        shared = self._snapshot.get()
        if shared is not None:
            with self._errors_explained():
                yield shared
            return
        with self._transaction(self._readers) as session:
            yield session

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Read everything within the block in one transaction, that of the outermost block.

        A write of the block begins a new transaction, which includes the write.
        """
        if self._snapshot.get() is not None:
            yield
            return
        with Session(self._readers, autoflush=False) as session:
            before = self._snapshot.set(session)
            try:
                yield
            finally:
                self._snapshot.reset(before)

    @contextmanager
    def write(self, section: str = "") -> Iterator[Session]:
        """Begin a transaction that changes the ledger; a named section has one at a time."""
        with self._transaction(self._writers) as session:
            if section:
                self._backend.hold(session, section)
            yield session
        shared = self._snapshot.get()
        if shared is not None:  # its next transaction includes this one
            shared.expunge_all()
            shared.rollback()

    def put(
        self,
        session: Session,
        table: FromClause,
        rows: Sequence[Mapping[str, Any]],
    ) -> None:
        """Insert rows; for known keys replace the other columns."""
        if not rows:
            return
        insert = self._backend.insert(table)  # type: ignore[arg-type]  # a table, as of a record
        keys = [column for column in table.c if column.primary_key]
        new = {each.name: insert.excluded[each.name] for each in table.c if not each.primary_key}
        session.connection().execute(
            insert.on_conflict_do_update(index_elements=keys, set_=new), rows
        )

    def bring_up_to_date(self) -> None:
        """Create a missing schema, or migrate an older one; a read-only database stays as it is.

        Raises:
            LedgerError: The database cannot be reached, or its schema is newer than this release.
        """
        try:
            with self._errors_explained(), self._backend.opening():
                self._migrate()
        except (OSError, Timeout) as error:
            with suppress(LedgerError), self.read() as session:
                if self.revision(session) == REVISION:
                    return
            before, then = f"The ledger {self.shown} cannot be opened: ", f"Or set {VARIABLE}."
            named = storage_error(error, Path(), before, then) or LedgerError(f"{before}{error}")
            raise LedgerError(named.what, named.hint) from error

    def revision(self, session: Session) -> str | None:
        """Return the revision of the schema; None if the schema is missing."""
        if not inspect(session.connection()).has_table(REVISION_TABLE):
            return None
        found: str | None = session.scalar(text(f"SELECT version_num FROM {REVISION_TABLE}"))
        return found

    def _migrate(self) -> None:
        with self.read() as session:
            found = self.revision(session)
        if found == REVISION:
            return
        from headrace.ledger import migrations  # takes half a second, needed for migrations only

        if found is not None and found > REVISION:
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
                f"The ledger {self.shown} refuses an entry: {cause_of(error)}",
                "A run must be entered before its leases, and both before its attempts.",
            ) from error
        except (SQLAlchemyError, sqlite3.Error, ValueError) as error:
            what, hint = self._backend.fault(error)
            raise LedgerError(f"The ledger {self.shown} {what}: {cause_of(error)}", hint) from error


class LedgerPart:
    """Base of a part of the ledger: the queries on some of its tables."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def _first(self, query: Select[AnyRow]) -> AnyRow | None:
        with self._database.read() as session:
            return session.scalar(query)

    def _all(self, query: Select[AnyRow]) -> tuple[AnyRow, ...]:
        with self._database.read() as session:
            return tuple(session.scalars(query))


def given(**values: Any) -> dict[str, Any]:
    """Return the values that are not None, by name."""
    return {name: value for name, value in values.items() if value is not None}


def grouped(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """Return the second values of pairs by the first, in their order."""
    found: defaultdict[Key, list[Value]] = defaultdict(list)
    for name, value in pairs:
        found[name].append(value)
    return dict(found)


def _parsed(url: str) -> URL:
    try:
        return make_url(url)
    except (ArgumentError, ValueError):  # their messages may quote parts of the password
        raise LedgerError(f"The ledger's URL '{masked(url)}' cannot be read", _EXAMPLES) from None
