"""Folders that `save_to_disk` of the library Hugging Face `datasets` wrote."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any

from headrace.errors import DataError, RecipeError
from headrace.packing.samples import SourceField, Unreadable, Value
from headrace.packing.sources.arrow_stream import ArrowStream
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
    _is_dict = False
    _kept: tuple[tuple[str, str, int], dict[str, Any]] = ("", "", -1), {}

    @property
    def sequential(self) -> bool:  # type: ignore[override]
        """Whether files are not mapped: then a record batch is read whole."""
        return self._place.folder is None

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
        """Open an Arrow file: mapped into memory when it is local."""
        import pyarrow as pa

        name = f"{self._place.name}/{path}"
        folder = self._place.folder
        with self._place.open(path, version) as stream:
            raw = getattr(stream, "raw", stream)  # reading ahead would read what is skipped
            try:
                with pa.memory_map(str(folder / path)) if folder else pa.PythonFile(raw) as file:
                    key = (path, version)
                    yield ArrowRows(ArrowStream(file), lambda part: self._kept_of((*key, part)))
            except (pa.ArrowException, OSError, EOFError, ValueError) as error:
                raise damaged(name, "Arrow", error) from error

    def _kept_of(self, part: tuple[str, str, int]) -> dict[str, Any]:
        """What is kept of the record batch that was read last: neighbours are often read next."""
        if self._kept[0] != part:
            self._kept = part, {}
        return self._kept[1]

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
    """Rows of one Arrow file.

    Args:
        stream: The file.
        kept: What is kept of a record batch; the batch is added.
    """

    def __init__(self, stream: ArrowStream, kept: Callable[[int], dict[str, Any]]) -> None:
        self._stream = stream
        self._kept = kept
        self._names = huggingface_names(stream.schema.metadata)

    @property
    def parts(self) -> Mapping[int, int]:
        """Rows of each record batch, by its first byte."""
        return self._stream.batches

    @property
    def types(self) -> Mapping[str, str]:
        """Arrow type of every column."""
        return {field.name: str(field.type) for field in self._stream.schema}

    def num_bytes(self, columns: Iterable[str]) -> int:
        """Not told: the file is not compressed."""
        return 0

    def field(self, name: str, column: str) -> SourceField:
        """What a column holds."""
        kind = self._stream.schema.field(column).type
        return arrow_field(name, column, kind, lambda: self._first(column))

    def cells(self, columns: Iterable[str]) -> Mapping[str, Sequence[object]]:
        """All cells of some columns; each record batch is read once."""
        found: dict[str, list[object]] = {column: [] for column in columns}
        for part in self.parts if found else ():
            for column, cells in found.items():
                cells += self._batch(part).column(column).to_pylist()
        return found

    def values(
        self, field: SourceField, column: str, part: int, rows: Sequence[int]
    ) -> list[Value | Unreadable]:
        """Values of some rows of a record batch."""
        return arrow_values(field, self._batch(part).column(column).take(rows))

    def class_names(self, column: str) -> Sequence[str]:
        """Names of the classes."""
        return self._names.get(column, [])

    def _batch(self, part: int) -> Any:
        kept = self._kept(part)
        if "batch" not in kept:
            kept["batch"] = self._stream.batch(part)
        return kept["batch"]

    def _first(self, column: str) -> object:
        first = next((part for part, num_rows in self.parts.items() if num_rows), None)
        return None if first is None else self._batch(first).column(column)[0].as_py()
