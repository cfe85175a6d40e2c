"""Odd inputs of packing, and what becomes of each: exact values, quarantine, or a named error."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from headrace.errors import HeadraceError
from support.packed_values import packed_values
from support.source_files import npy

Content = bytes | str | Callable[[Path], None]

_TYPES = {int: "int64", float: "float64", bool: "bool", str: "text", bytes: "uint8"}


@dataclass(frozen=True, kw_only=True)
class Odd:
    """One oddity; `check` packs it."""

    name: str
    files: Mapping[str, Content]
    """Content by path; a function writes to its path."""
    values: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """By field, in the order of the samples; nothing if the source is refused."""
    types: Mapping[str, str] = field(default_factory=dict)
    """Dtype or encoding by field, where the Python values do not say it."""
    left: Sequence[str] = ()
    """Text in the reason of each sample in quarantine, in the order of the samples."""
    error: Sequence[str] = ()
    """Texts in the error, its advice included."""
    logged: str = ""
    """Text in the log."""
    dataset: Mapping[str, Any] = field(default_factory=dict)
    packing: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name

    def check(
        self, folder: Path, caplog: pytest.LogCaptureFixture, others: Sequence[str] = ()
    ) -> None:
        """Pack; `others` are fields beside those of `values`."""
        source = folder / "in"
        for path, content in self.files.items():
            _write(source / path, content)
        options = {"labels": "none", **self.dataset}
        if self.error:
            with pytest.raises(HeadraceError) as caught:
                packed_values(source, folder, options, self.packing)
            str(caught.value).encode()  # it can be printed
            assert [text for text in self.error if text not in str(caught.value)] == [], (
                caught.value
            )
            return
        with caplog.at_level("INFO"):
            found = packed_values(source, folder, options, self.packing)
        assert self.logged in caplog.text
        reasons = [reason for _, reason in sorted(found.quarantined.items())]
        assert len(reasons) == len(self.left), reasons
        pairs = zip(reasons, self.left, strict=True)
        assert [reason for reason, text in pairs if text not in reason] == []
        assert found.columns.keys() - set(others) == self.values.keys()
        for name, values in self.values.items():
            assert repr(_plain(found.columns[name])) == repr(_plain(values)), name
            assert found.types[name] == (self.types.get(name) or _type_of(values)), name


@dataclass(frozen=True, kw_only=True)
class OddTable:
    """A table with a column `path`: its rows are samples, and it is an index of files."""

    name: str
    file: str
    content: Content
    values: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    left: Sequence[str] = ()
    error: Sequence[str] = ()
    logged: str = ""
    types: Mapping[str, str] = field(default_factory=dict)
    dataset: Mapping[str, Any] = field(default_factory=dict)
    num_rows: int = 0
    """Files that the index names; 0: as many as there are values and reasons."""
    index_error: Sequence[str] = ()
    """Texts in the error if the table as an index is refused, but not as a source."""
    as_index: bool = True

    def __str__(self) -> str:
        return self.name

    def source(self) -> Odd:
        """The rows as samples."""
        return self._odd({self.file: self.content}, self.error, {})

    def index(self) -> Odd:
        """The file as an index of arrays."""
        num_values = max(map(len, self.values.values()), default=2)
        arrays = range(self.num_rows or num_values + len(self.left))
        files: dict[str, Content] = {f"{n}.npy": npy([n]) for n in arrays}  # type: ignore[misc]
        error = self.index_error or self.error
        return self._odd({**files, self.file: self.content}, error, {"index": self.file})

    def _odd(self, files: Mapping[str, Content], error: Sequence[str], more: Any) -> Odd:
        return Odd(
            name=self.name,
            files=files,
            values=self.values,
            types=self.types,
            left=self.left,
            error=error,
            logged=self.logged,
            dataset={**self.dataset, **more},
        )


def csv_of(cells: Sequence[str], delimiter: str = ",") -> str:
    """A CSV file of the columns `path` and `x`."""
    rows = [("path", "x"), *((f"{n}.npy", cell) for n, cell in enumerate(cells))]
    return "".join(f"{delimiter.join(row)}\n" for row in rows)


def jsonl_of(values: Sequence[str]) -> str:
    """A JSONL file of the keys `path` and `x`, whose values are written as given."""
    return "".join(f'{{"path": "{n}.npy", "x": {value}}}\n' for n, value in enumerate(values))


def parquet_of(column: Any, **more: Any) -> Content:
    """A Parquet file of the columns `path` and `x`."""
    paths = pa.array([f"{n}.npy" for n in range(len(column))])
    return lambda path: parquet.write_table(pa.table({"path": paths, "x": column, **more}), path)


def arrow_of(*tables: pa.Table) -> Content:
    """Record batches of a Hugging Face dataset of one file, with its state."""

    def write(path: Path) -> None:
        with pa.ipc.new_stream(path, tables[0].schema) as writer:
            for table in tables:
                writer.write_table(table)
        state = {"_data_files": [{"filename": path.name}]}
        path.with_name("state.json").write_text(json.dumps(state))

    return write


def _write(path: Path, content: Content) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if callable(content):
        content(path)
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def _plain(values: Sequence[Any]) -> list[Any]:
    return [each.tolist() if hasattr(each, "tolist") else each for each in values]


def _type_of(values: Sequence[Any]) -> str:
    kind = type(values[0])
    return _TYPES.get(kind, "int64" if kind is list and type(values[0][0]) is int else "float64")
