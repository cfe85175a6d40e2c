"""HDF5 files that others wrote."""

from __future__ import annotations

from contextlib import ExitStack
from typing import BinaryIO

from headrace.packing.reading import limited
from headrace.packing.sources.arrays import ArrayRows
from headrace.packing.sources.row_container import RowContainer
from headrace.packing.sources.rows import RowSource
from headrace.shards.foreign import ForeignFile


class Hdf5Source(RowSource):
    """Rows of the datasets of HDF5 files."""

    form = "hdf5"
    what = "HDF5"

    def container(self, path: str, stream: BinaryIO, closing: ExitStack) -> RowContainer:
        name, folder = f"{self._place.name}/{path}", self._place.folder
        file = ForeignFile(folder / path if folder else stream, name, limited)
        closing.enter_context(file)
        return ArrayRows(file, name, self.asked)
