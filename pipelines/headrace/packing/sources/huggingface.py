"""Folders that `save_to_disk` of the library Hugging Face `datasets` wrote."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any

from headrace.errors import DataError, RecipeError
from headrace.packing.samples import SourceField, Unreadable, Value
from headrace.packing.sources.arrow_values import arrow_field, arrow_values, huggingface_names
from headrace.packing.sources.containers import damaged, matching
from headrace.packing.sources.place import changed
from headrace.packing.sources.rows import RowSource
from headrace.storage.store import StoredFile

_STATE = "state.json"
_DICT = "dataset_dict.json"


class HuggingFaceSource(RowSource):
    """Rows of the Arrow files of a dataset, or of the datasets of a `DatasetDict` (its splits)."""

    form = "huggingface"
    suffixes = (".arrow",)
    sequential = False
    _is_dict = False

    def files(self, check: Callable[[], None] | None) -> Sequence[StoredFile]:
        """The Arrow files that the states name; others are caches."""
        states = self._place.walk(lambda path: PurePosixPath(path).name == _STATE, check)
        self._is_dict = self._place.stat(_DICT) is not None
        found = [file for state in sorted(states) for file in self._files_of(state)]
        if not found:
            raise RecipeError(
                f"No {_STATE} below {self._place.name} names a file",
                "Set dataset.source to a folder that save_to_disk wrote.",
            )
        return sorted(matching(found, self._place.name, self._include))

    def split_of(self, path: str) -> str | None:
        """The folder of a `DatasetDict` that a file lies in."""
        return path.partition("/")[0] if self._is_dict else None

    @contextmanager
    def open_rows(self, path: str, version: str) -> Iterator[ArrowRows]:
        """Map an Arrow file."""
        import pyarrow as pa

        name = f"{self._place.name}/{path}"
        if self._place.folder is None:
            raise RecipeError(
                f"{name} is an Arrow file, which is mapped into memory and so must be local",
                "Copy the dataset to a folder, or write it as Parquet.",
            )
        self._place.open(path, version).close()
        try:
            with pa.memory_map(str(self._place.folder / path)) as mapped:
                yield ArrowRows(pa.ipc.open_stream(mapped).read_all())
        except (pa.ArrowException, OSError) as error:
            raise damaged(name, "Arrow", error) from error

    def _files_of(self, state: StoredFile) -> Iterator[StoredFile]:
        folder = PurePosixPath(state.path).parent
        (content,) = self._place.read([state])
        name = f"{self._place.name}/{state.path}"
        try:
            if isinstance(content, Unreadable):
                raise DataError(f"{name} cannot be read: {content.reason}")
            named = [str(entry["filename"]) for entry in json.loads(content)["_data_files"]]
        except (ValueError, KeyError, TypeError) as error:
            raise damaged(name, "state of a Hugging Face dataset", repr(error)) from error
        for each in named:
            if PurePosixPath(each).name != each:
                raise DataError(f"{name} names '{each}', which is not a file beside it")
            file = self._place.stat(str(folder / each))
            if file is None:
                raise changed(f"{self._place.name}/{folder / each}", "is gone")
            yield file


class ArrowRows:
    """Rows of one Arrow file."""

    def __init__(self, table: Any) -> None:
        self._table = table
        self._names = huggingface_names(table.schema.metadata)

    @property
    def parts(self) -> Sequence[int]:
        """All rows in one part."""
        return [int(self._table.num_rows)]

    @property
    def types(self) -> Mapping[str, str]:
        """Arrow type of every column."""
        return {field.name: str(field.type) for field in self._table.schema}

    def field(self, name: str, column: str) -> SourceField:
        """What a column holds."""
        cells = self._table.column(column)
        return arrow_field(
            name, column, cells.type, lambda: cells[0].as_py() if len(cells) else None
        )

    def cells(self, column: str) -> Sequence[object]:
        """All cells of a column."""
        return list(self._table.column(column).to_pylist())

    def values(
        self, field: SourceField, column: str, part: int, rows: Sequence[int]
    ) -> list[Value | Unreadable]:
        """Values of some rows."""
        return arrow_values(field, self._table.column(column).take(rows).combine_chunks())

    def class_names(self, column: str) -> Sequence[str]:
        """Names of the classes."""
        return self._names.get(column, [])
