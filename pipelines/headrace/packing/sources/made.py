"""Rows that are made when a source is opened: written as a Parquet file, and read as one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from tempfile import TemporaryFile
from typing import Any, BinaryIO, cast
from weakref import finalize

import xxhash

from headrace.errors import DataError
from headrace.objects.protocol import Check, StoredFile
from headrace.packing.sources.arrow import ParquetRows
from headrace.packing.sources.row_container import RowContainer
from headrace.packing.sources.rows import RowSource


class MadeSource(RowSource):
    """Rows of tables; their content is their version, so that workers find the same rows."""

    stays_open = True
    path = ""
    """What the rows are named by."""

    @abstractmethod
    def tables(self) -> Iterator[Any]:
        """Yield the rows as Arrow tables or batches of one schema, at least one."""

    def containers(self, check: Check | None = None) -> Sequence[StoredFile]:
        return [self.made[1]]

    @contextmanager
    def open_rows(self, path: str, version: str) -> Iterator[RowContainer]:
        file, made = self.made
        if made.version != version:
            raise DataError(
                f"{self._place.name}/{path} gave other rows since the source folder was listed",
                "Pack again when nothing writes to it; a query needs ORDER BY for one order.",
            )
        with self._naming(path):
            yield ParquetRows(file)

    @cached_property
    def made(self) -> tuple[BinaryIO, StoredFile]:
        """The Parquet file, and its size and hash."""
        from pyarrow import parquet

        file, state, writer = TemporaryFile(), xxhash.xxh3_128(), None  # noqa: SIM115  kept open
        finalize(self, file.close)
        with self._naming(self.path):
            for table in self.tables():
                writer = writer or parquet.ParquetWriter(file, table.schema)
                writer.write(table)
            if writer is None:
                raise DataError(f"{self._place.name}/{self.path} holds no row")
            writer.close()
        num_bytes = file.tell()
        file.seek(0)
        while content := file.read(2**20):
            state.update(content)
        return cast("BinaryIO", file), StoredFile(self.path, num_bytes, state.hexdigest())
