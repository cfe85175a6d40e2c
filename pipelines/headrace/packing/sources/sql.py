"""Rows of a query of a database of SQLite or DuckDB, which is opened for reading only."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.errors import RecipeError
from headrace.packing.samples import Opening
from headrace.packing.sources.files import package
from headrace.packing.sources.made import MadeSource
from headrace.recipe.dataset import DatasetSpec

_READS = {
    sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE,
}  # fmt: skip
_CLOSED = {
    "enable_external_access": "false",  # a query reads and writes no other file
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    "lock_configuration": "true",
    "threads": "1",  # so that rows are always in the same order
}


class SqlSource(MadeSource):
    """Rows of `dataset.query`."""

    form = "sql"
    what = "database"

    def __init__(self, opening: Opening) -> None:
        super().__init__(opening)
        place = self._place
        if place.folder is None or not place.only:
            raise RecipeError(
                f"{place.name} is not a database in a folder of this machine",
                "Copy the database into a folder, and set dataset.source to its file.",
            )
        self.path, self._file = place.only, place.folder / place.only

    @classmethod
    def check_spec(cls, spec: DatasetSpec) -> None:
        super().check_spec(spec)
        if spec.query is None:
            raise RecipeError(
                f"dataset.source is the database {spec.source}, but dataset.query is missing",
                "Write a SELECT statement into dataset.query, as in 'SELECT * FROM samples'.",
            )

    def tables(self) -> Iterator[Any]:
        with self._file.open("rb") as stream:
            read = _sqlite if stream.read(16) == b"SQLite format 3\0" else _duckdb
        yield from read(self._file, self._spec.query or "")


def _sqlite(path: Path, query: str) -> Iterator[Any]:
    def allow(action: int, *_: object) -> int:
        return sqlite3.SQLITE_OK if action in _READS else sqlite3.SQLITE_DENY

    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
        database.set_authorizer(allow)
        try:
            found = database.execute(query)
            names, rows = [each[0] for each in found.description or ()], found.fetchall()
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise _refused(path, error) from error
    if not names:
        raise _refused(path, "it gives no rows")
    columns = []
    for name, cells in zip(names, zip(*rows, strict=True), strict=False):
        try:
            columns.append(pa.array(cells))
        except pa.ArrowException as error:
            raise _refused(path, f"column '{name}' mixes types: {error}") from error
    if columns:
        yield pa.Table.from_arrays(columns, names)


def _duckdb(path: Path, query: str) -> Iterator[Any]:
    duckdb = package("duckdb", str(path))
    try:
        with closing(duckdb.connect(str(path), read_only=True, config=_CLOSED)) as database:
            kinds = [each.type for each in database.extract_statements(query)]
            if kinds != [duckdb.StatementType.SELECT]:
                raise _refused(path, "it is not one SELECT statement")
            found = database.sql(query)
            # some releases have only the second
            yield from (getattr(found, "to_arrow_reader", None) or found.fetch_record_batch)()
    except duckdb.Error as error:
        raise _refused(path, error) from error


def _refused(path: Path, why: object) -> RecipeError:
    return RecipeError(
        f"dataset.query cannot be run on {path}: {why}",
        "Write one SELECT statement that reads only this database, with a CAST where types differ.",
    )
