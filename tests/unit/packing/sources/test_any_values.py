"""Whatever values a file holds: packed equal, or in quarantine, or the step is refused by name.

`HEADRACE_ANY_VALUES` sets how many files of each format are tried.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from headrace.errors import HeadraceError
from support.odd_inputs import arrow_of
from support.packed_values import packed_values
from support.source_files import npy

NUM_FILES = int(os.environ.get("HEADRACE_ANY_VALUES", "12"))
DTYPES = (
    "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "float16", "float32", "float64",
)  # fmt: skip
NUMBER = re.compile(
    r"[+-]?([0-9]+([.,][0-9]*)?|[.,][0-9]+)(e[+-]?[0-9]+)?|[+-]?(nan|inf(inity)?)", re.I
)

Columns = Mapping[str, list[Any]]

WORDS = [
    "",
    " ",
    "NA",
    "007",
    "1,5",
    "1e400",
    "0x1F",
    "true",
    "nan",
    "2026-01-01",
    "a\nb",
    '"',
    "\0",
]
KINDS = [
    st.integers(-(2**63), 2**63 - 1)
    | st.integers(-3, 300)
    | st.sampled_from([2**53 + 1, -(2**31)]),
    st.floats() | st.sampled_from([0.5, -0.0, 1e300, 65504.0]),
    st.booleans(),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.sampled_from(WORDS),
    st.lists(st.floats(width=32), min_size=2, max_size=2),
]
GAPS = st.sampled_from([*range(6), None])


@st.composite
def columns(draw: st.DrawFn) -> Columns:
    """One or two columns of one kind each, and at times of numbers of two."""
    num_rows = draw(st.integers(1, 6))
    found = {}
    for name in draw(st.sampled_from(["x", "xy"])):
        kind = draw(st.sampled_from([*KINDS, KINDS[0] | KINDS[1]]))
        cells = draw(st.lists(kind, min_size=num_rows, max_size=num_rows))
        gap = draw(GAPS)
        found[name] = [None if at == gap else cell for at, cell in enumerate(cells)]
    return found


def table_of(values: Columns) -> pa.Table:
    return pa.table({name: pa.array(_alike(cells)) for name, cells in values.items()})


def _alike(cells: list[Any]) -> list[Any]:
    """Whole numbers and fractions as fractions where these are equal, else as texts."""
    if {type(cell) for cell in cells} <= {int, float, type(None)} and any(
        isinstance(cell, float) for cell in cells
    ):
        whole = [cell for cell in cells if isinstance(cell, int)]
        if all(int(float(cell)) == cell for cell in whole):
            return [cell if cell is None else float(cell) for cell in cells]
        return [None if cell is None else repr(cell) for cell in cells]
    return cells


def write_parquet(folder: Path, values: Columns) -> None:
    parquet.write_table(table_of(values), folder / "a.parquet")


def write_arrow(folder: Path, values: Columns) -> None:
    arrow_of(table_of(values))(folder / "data.arrow")


def write_hdf5(folder: Path, values: Columns) -> None:
    with h5py.File(folder / "a.h5", "w") as file:
        for name, cells in values.items():
            cells = _alike(cells)
            is_text = any(isinstance(cell, str) for cell in cells)
            fill: Any = "" if is_text else next((each for each in cells if each is not None), 0)
            whole = [fill if cell is None else cell for cell in cells]
            file[name] = [each.replace("\0", "") for each in whole] if is_text else whole


def write_csv(folder: Path, values: Columns) -> None:
    with (folder / "a.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["path", *values])
        for number, row in enumerate(zip(*values.values(), strict=True)):
            writer.writerow([f"{number}.npy", *row])


def write_jsonl(folder: Path, values: Columns) -> None:
    with (folder / "a.jsonl").open("w", encoding="utf-8") as file:
        for number, row in enumerate(zip(*values.values(), strict=True)):
            told = {"path": f"{number}.npy", **dict(zip(values, row, strict=True))}
            file.write(json.dumps(told, ensure_ascii=number % 2 == 0) + "\n")


def write_index(write: Callable[[Path, Columns], None]) -> Callable[[Path, Columns], None]:
    def write_files(folder: Path, values: Columns) -> None:
        for number in range(len(next(iter(values.values())))):
            (folder / f"{number}.npy").write_bytes(npy([0]))
        write(folder, values)

    return write_files


FORMS: dict[str, tuple[Callable[[Path, Columns], None], dict[str, str]]] = {
    "parquet": (write_parquet, {}),
    "arrow": (write_arrow, {}),
    "hdf5": (write_hdf5, {}),
    "csv": (write_csv, {}),
    "jsonl": (write_jsonl, {}),
    "index of csv": (write_index(write_csv), {"index": "a.csv"}),
    "index of jsonl": (write_index(write_jsonl), {"index": "a.jsonl"}),
}


@pytest.mark.parametrize("form", FORMS)
@settings(
    max_examples=NUM_FILES, deadline=None, derandomize=NUM_FILES <= 12,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
@given(values=columns(), dtype=st.sampled_from([None, None, *DTYPES]))
def test_values_are_packed_as_they_were_written(
    form: str, values: Columns, dtype: str | None
) -> None:
    write, more = FORMS[form]
    with TemporaryDirectory() as folder:
        source = Path(folder, "in")
        source.mkdir()
        write(source, values)
        fields = {"fields": {name: {"dtype": dtype} for name in values}} if dtype else {}
        try:
            packed = packed_values(source, Path(folder), {"labels": "none", **more}, fields)
        except HeadraceError:
            event(f"{form}: refused")
            return
    event(f"{form}: {'all' if not packed.quarantined else 'some in quarantine'}")
    assert len(packed.paths) + len(packed.quarantined) == len(next(iter(values.values())))
    for at, path in enumerate(packed.paths):
        row = int(path.rpartition("#")[2]) if "#" in path else int(path.removesuffix(".npy"))
        for name, cells in values.items():
            found, written = packed.columns[name][at], cells[row]
            if type(written) is int and any(isinstance(each, float) for each in cells):
                written = _as_read(written)  # a column with fractions is one of fractions
            assert is_same(found, written, packed.types[name], form), (name, row, cells, packed)


def is_same(found: Any, written: Any, dtype: str, form: str) -> bool:
    """Whether a packed value is the written one, or text that says the same."""
    if form == "hdf5" and written is None:
        return True  # it has no such cells: another value was written
    if isinstance(written, str) and form == "hdf5":
        written = written.replace("\0", "")
    if isinstance(found, str):
        texts = [written] if isinstance(written, str) else [repr(written), str(written)]
        return found in [*texts, json.dumps(written, ensure_ascii=False), _json(written)]
    if isinstance(written, str):
        is_number = NUMBER.fullmatch(written.strip()) is not None
        if dtype == "bool":
            return written.strip().lower() == str(found).lower()
        text = written.strip().replace(",", ".")
        return is_number and _is_number(found, float(text) if "." in text else _read(text), dtype)
    if isinstance(written, list):
        return np.array_equal(np.asarray(found), np.asarray(written, dtype), equal_nan=True)
    return type(written) is not type(None) and _is_number(found, written, dtype)


def _as_read(written: int) -> int | float:
    return float(written) if float(written) == written else written


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _read(text: str) -> Any:
    try:
        return int(text)
    except ValueError:
        return float(text)


def _is_number(found: Any, written: Any, dtype: str) -> bool:
    """Whether a number is the written one; fractions are rounded if a float was asked for."""
    if isinstance(written, float) and dtype.startswith("float"):
        nearest = float(np.asarray(written).astype(dtype))
        return found == nearest or (math.isnan(found) and math.isnan(written))
    return bool(found == written)
