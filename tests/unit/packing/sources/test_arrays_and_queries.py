"""Arrays of `.npz` files and Zarr groups, and rows of databases, as sources."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
import zarr

from headrace.errors import HeadraceError
from headrace.packing.sources.open import open_source, with_format
from headrace.recipe.untrusted_overrides import check_from_outside
from support.packed_values import packed_values
from support.source_files import npz, read_all, spec_of

PIXELS = np.arange(24, dtype=np.uint8).reshape(4, 3, 2)
NAMES = np.array(["cat", "dög", "cat", ""])


def write_npz(folder: Path, **arrays: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "a.npz").write_bytes(npz(**arrays))
    return folder / "a.npz"


def write_zarr(folder: Path, *, version: int = 3, **arrays: Any) -> Path:
    group = zarr.open_group(str(folder / "g"), mode="w", zarr_format=version)
    for name, values in arrays.items():
        chunks = (2, *values.shape[1:]) if values.ndim else None
        group.create_array(name, data=np.asarray(values), chunks=chunks or "auto")
    return folder / "g"


@pytest.mark.parametrize("write", [write_npz, write_zarr, partial(write_zarr, version=2)])
def test_arrays_are_packed_to_the_value(tmp_path: Path, write: Any) -> None:
    arrays = {"x": PIXELS, "y": np.array([3, -1, 2**62, 0]), "w": np.array([0.5, 1, 2, 4], ">f4")}
    source = write(tmp_path, **arrays, size=np.array(7))
    found = packed_values(source, tmp_path / "out", {"label_field": "y"})
    np.testing.assert_array_equal(np.stack(found.columns["x"]), PIXELS)
    assert found.columns["w"] == [0.5, 1, 2, 4]
    assert found.columns["label"] == ["3", "-1", str(2**62), "0"]
    assert found.types["x"] == "uint8"
    source = write(tmp_path / "uneven", x=PIXELS, y=np.arange(3))
    with pytest.raises(HeadraceError, match="different numbers of rows: x 4, y 3"):
        read_all(spec_of(source))
    assert [each["y"] for each in read_all(spec_of(source, fields={"y": "y"}))[1]] == [0, 1, 2]


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    path = write_npz(tmp_path, x=PIXELS)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(HeadraceError, match=r"a\.npz cannot be read as a npz file"):
        read_all(spec_of(path))
    path.write_bytes(npz(x=np.array([{}], dtype=object)))
    with pytest.raises(HeadraceError, match="dtype object is neither"):
        read_all(spec_of(path))


def test_groups_in_groups_gaps_and_changes(tmp_path: Path) -> None:
    group = zarr.open_group(str(tmp_path / "g"), mode="w")
    inner = group.create_group("in")
    array = inner.create_array("x", shape=(4, 2), chunks=(1, 2), dtype="i4", fill_value=9)
    array[1] = [1, 2]
    inner.create_array("t", shape=(4,), dtype=str)[:] = np.array(["a", "ü", "", "d"])
    source, values = read_all(spec_of(tmp_path / "g"))
    assert [each["in.x"].tolist() for each in values] == [[9, 9], [1, 2], [9, 9], [9, 9]]
    assert [each["in.t"] for each in values] == ["a", "ü", "", "d"]
    assert "in/x: 3 chunks are not stored, and read as 9" in source.notes
    refs = source.list_samples()
    array[0] = [5, 5]
    worker = open_source(with_format(spec_of(tmp_path / "g")), fields=source.fields)
    with pytest.raises(HeadraceError, match="g was written to since"):
        list(worker.read(refs))
    (tmp_path / "secret").write_bytes(b"1")
    (tmp_path / "g" / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(HeadraceError, match="a link that leaves the source folder"):
        read_all(spec_of(tmp_path / "g"))


TABLE = "CREATE TABLE t (n INTEGER, x DOUBLE PRECISION, name TEXT, part TEXT, picture BLOB)"
ROWS = [(1, 0.5, "ü", "train", b"\1"), (2, 1.5, "b", "val", b"\2"), (3, 2.5, "c", "train", b"\3")]


def write_sqlite(folder: Path) -> Path:
    with closing(sqlite3.connect(folder / "a.db")) as database, database:
        database.execute(TABLE)
        database.executemany("INSERT INTO t VALUES (?, ?, ?, ?, ?)", ROWS)
    return folder / "a.db"


def write_duckdb(folder: Path) -> Path:
    with closing(duckdb.connect(str(folder / "b.duckdb"))) as database:
        database.execute(TABLE.replace("INTEGER", "BIGINT"))
        database.executemany("INSERT INTO t VALUES (?, ?, ?, ?, ?)", ROWS)
    return folder / "b.duckdb"


@pytest.mark.parametrize("write", [write_sqlite, write_duckdb])
def test_rows_of_a_query_are_packed_to_the_value(tmp_path: Path, write: Any) -> None:
    source = write(tmp_path)
    query = "SELECT n, x * 2 AS x, name, part, picture FROM t WHERE n < 3 ORDER BY n"
    keys = {"query": query, "split_field": "part", "label_field": "name"}
    content = source.read_bytes()
    found = packed_values(source, tmp_path / "out", keys | {"splits": {"train": 1.0}})
    assert found.columns["n"] == [1, 2]
    assert found.columns["x"] == [1.0, 3.0]
    assert found.columns["label"] == ["ü", "b"]
    assert found.columns["picture"] == [b"\1", b"\2"]
    assert source.read_bytes() == content


@pytest.mark.parametrize("write", [write_sqlite, write_duckdb])
@pytest.mark.parametrize(
    "query",
    [
        "SELEKT 1",
        "SELECT lost FROM t",
        "DELETE FROM t",
        "DROP TABLE t",
        "SELECT 1; SELECT 2",
        "",
        "ATTACH 'OTHER' AS other",
        "INSERT INTO t VALUES (4, 1, 'a', 'b', NULL) RETURNING n",
        "COPY t TO 'OTHER'",
        "SELECT * FROM read_text('SECRET')",
        "SELECT * FROM 'SECRET'",
        "SELECT load_extension('x')",
        "PRAGMA database_list",
        "SET enable_external_access=true",
    ],
)
def test_a_query_only_reads_its_database(tmp_path: Path, write: Any, query: str) -> None:
    source, other = write(tmp_path), tmp_path / "other.db"
    (tmp_path / "secret.csv").write_text("a\n1\n")
    query = query.replace("OTHER", str(other)).replace("SECRET", str(tmp_path / "secret.csv"))
    with pytest.raises(HeadraceError, match=r"dataset\.query cannot be run on") as caught:
        read_all(spec_of(source, query=query))
    assert not other.exists()
    assert not caught.value.failure_class.is_retried
    assert len(read_all(spec_of(source, query="SELECT n FROM t"))[1]) == 3


def test_values_of_several_types_and_missing_ones(tmp_path: Path) -> None:
    source = write_sqlite(tmp_path)
    with closing(sqlite3.connect(source)) as database, database:
        database.execute("INSERT INTO t VALUES (NULL, 'text', 'd', 'val', x'04')")
    with pytest.raises(HeadraceError, match="column 'x' mixes types"):
        read_all(spec_of(source, query="SELECT x FROM t"))
    values = read_all(spec_of(source, query="SELECT n FROM t"))[1]
    assert values[3].reason == "n: it has no value"
    with pytest.raises(HeadraceError, match="holds no row"):
        read_all(spec_of(source, query="SELECT n FROM t WHERE n > 9"))
    with pytest.raises(HeadraceError, match="two columns 'n'"):
        read_all(spec_of(source, query="SELECT n, n FROM t"))


def test_other_rows_than_before_are_refused(tmp_path: Path) -> None:
    spec = spec_of(write_sqlite(tmp_path), query="SELECT random() AS n FROM t")
    source = open_source(spec)
    refs = source.list_samples()
    worker = open_source(with_format(spec), fields=source.fields)
    with pytest.raises(HeadraceError, match=r"other rows .*\n.*ORDER BY"):
        list(worker.read(refs))


def test_a_database_needs_a_query_and_only_it(tmp_path: Path) -> None:
    with pytest.raises(HeadraceError, match=r"dataset\.query is missing"):
        open_source(spec_of(write_sqlite(tmp_path)))
    path = write_npz(tmp_path, x=PIXELS)
    with pytest.raises(HeadraceError, match="of format 'npz', not a database"):
        open_source(spec_of(path, query="SELECT 1"))
    with pytest.raises(HeadraceError, match="not a database in a folder"):
        open_source(spec_of(tmp_path, format="sql", query="SELECT 1"))
    with pytest.raises(HeadraceError, match="not a Zarr group in a folder"):
        open_source(spec_of(tmp_path, format="zarr")).list_samples()


@pytest.mark.parametrize(
    "override",
    [
        "dataset.query='SELECT 1'",
        "dataset={query: 'SELECT 1'}",
        "+dataset.query=x",
        "suite.grid={dataset.query: [a, b]}",
    ],
)
def test_no_query_comes_through_a_door_without_a_shell(override: str) -> None:
    with pytest.raises(HeadraceError, match=r"dataset\.query"):
        check_from_outside([override])


@pytest.mark.parametrize("name", ["duckdb", "zarr"])
def test_a_package_that_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    source = write_duckdb(tmp_path) if name == "duckdb" else write_zarr(tmp_path, x=PIXELS)
    monkeypatch.setitem(sys.modules, name, None)
    query = {"query": "SELECT 1"} if name == "duckdb" else {}
    with pytest.raises(HeadraceError, match=rf"needs the package {name}(?s:.*)headrace\[{name}\]"):
        read_all(spec_of(source, **query))
