"""What the three kinds of rows share: records to columns and back."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel
from sqlalchemy import Connection, Select, Table

from headrace.errors import LedgerError
from headrace.ledger.engine import Database

Kind = TypeVar("Kind", bound=BaseModel)


class Rows:
    """Base of the classes that read and write one kind of row.

    Args:
        database: Where the rows are.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def _insert(self, connection: Connection, table: Table, record: BaseModel) -> bool:
        values = record.model_dump(mode="json")
        insert = self._database.backend.insert_if_new(table).values(values)
        options = {"preserve_rowcount": True}  # not kept for inserts unless asked for
        return connection.execute(insert, execution_options=options).rowcount == 1


def fetch(connection: Connection, kind: type[Kind], query: Select[Any]) -> tuple[Kind, ...]:
    """Rows of a query as records.

    Raises:
        LedgerError: A row holds what this release cannot read.
    """
    try:
        rows = connection.execute(query).mappings()
        return tuple(kind.model_validate(dict(row)) for row in rows)
    except ValueError as error:
        raise LedgerError(f"The ledger holds a row that is no {kind.__name__}: {error}") from error


def fetch_first(connection: Connection, kind: type[Kind], query: Select[Any]) -> Kind | None:
    """First row of a query as a record; None when there is none."""
    found = fetch(connection, kind, query.limit(1))
    return found[0] if found else None


def changed(record: BaseModel, changes: dict[str, Any]) -> dict[str, Any]:
    """Columns to write for the changes that are not None, checked against the record's kind.

    Args:
        record: The row as it is.
        changes: New values by field.
    """
    given = {name: value for name, value in changes.items() if value is not None}
    after = type(record).model_validate({**record.model_dump(), **given})
    return after.model_dump(mode="json", include=set(given))
