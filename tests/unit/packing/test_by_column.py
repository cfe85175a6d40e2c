"""Tables of numbers are packed by column: the same shards as row by row, and as ever."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from headrace.errors import DataError, StepError
from headrace.packing.sample_table import SampleRef, SampleTable
from headrace.packing.planned_shard import PlannedShard
from headrace.packing.sources import listed_rows
from headrace.packing.sources.open import open_source
from headrace.packing.sources.rows import RowSource
from headrace.recipe.dataset import DatasetSpec
from support.packing import digest

NUM = 3000


def columns() -> dict[str, Any]:
    """Numbers of every kind, some of them missing, whole lists, and what sorts samples."""
    numbers = np.arange(NUM)
    half = pa.array((numbers % 7).astype(np.float16))
    points = pa.array(np.sin(numbers).astype(np.float32).repeat(6))
    inner = pa.FixedSizeListArray.from_arrays(points, 3)
    return {
        "single": pa.array(np.cos(numbers).astype(np.float32)),
        "double": pa.array(np.sqrt(numbers), mask=numbers % 501 == 7),
        "large": pa.array(numbers * 2**53 + 1),
        "small": pa.array((numbers % 256).astype(np.uint8), mask=numbers % 700 == 3),
        "yes": pa.array(numbers % 3 == 0),
        "half": half,
        "box": pa.FixedSizeListArray.from_arrays(inner, 2),
        "pair": pa.array([[int(n), 1] for n in numbers]),
        "kind": pa.array([("dog", "cat", "bird")[n % 3] for n in numbers]),
        "who": pa.array([f"p{n // 20}" for n in numbers]),
    }


def _parquet(folder: Path) -> None:
    table = pa.table(columns())
    parquet.write_table(table.slice(0, 1000), folder / "a.parquet", row_group_size=300)
    parquet.write_table(table.slice(1000, 1500), folder / "b.parquet")
    (folder / "c").mkdir()
    parquet.write_table(table.slice(2500), folder / "c" / "a.parquet", row_group_size=64)


def _arrow(folder: Path) -> None:
    table = pa.table(columns())
    with pa.ipc.new_stream(folder / "data.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=190)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))


def _hdf5(folder: Path) -> None:
    numbers = np.arange(NUM)
    with h5py.File(folder / "a.h5", "w") as file:
        file["x/flat"] = np.cos(numbers).astype(">f4")
        file.create_dataset("x/box", data=np.sin(numbers).repeat(6).reshape(-1, 2, 3), chunks=True)
        file["whole"] = numbers.astype(np.int16)
        file["kind"] = numbers % 3


SOURCES: dict[str, tuple[Callable[[Path], None], dict[str, Any]]] = {
    "parquet": (_parquet, {"labels": "field", "label_field": "kind", "group_field": "who"}),
    "arrow": (_arrow, {"labels": "field", "label_field": "kind", "group_field": "who"}),
    "hdf5": (_hdf5, {"labels": "field", "label_field": "kind"}),
    "numbers": (
        _parquet,
        {
            "labels": "field",
            "label_kind": "value",
            "label_field": "single",
            "fields": {"y": "yes", "n": "large"},
        },
    ),
}


DIGESTS = {
    "parquet": "7ddb10a75440441c",
    "arrow": "83c76ea256c03374",
    "hdf5": "e23a3615835cfe7b",
    "numbers": "2700dae72c5a3db2",
}
"""What the release before packed, which took rows one by one."""


@pytest.mark.parametrize("way", ["columns", "rows", "both"])
@pytest.mark.parametrize("form", SOURCES)
def test_shards_are_those_of_rows(
    form: str,
    way: str,
    tmp_path: Path,
    packs: Callable[..., dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Which way rows are read changes nothing, and where all can go by column, all do."""
    folder = tmp_path / "source"
    folder.mkdir()
    write, dataset = SOURCES[form]
    write(folder)
    in_columns, one_by_one = RowSource._in_columns, RowSource.read
    calls = itertools.count()
    numbers: list[int] = []

    def read_columns(source: RowSource, refs: SampleTable) -> object:
        by_column = way == "columns" or (way == "both" and next(calls) % 2)
        return in_columns(source, refs) if by_column else None

    def read(source: RowSource, refs: Sequence[SampleRef]) -> object:
        numbers.append(len(refs))
        return one_by_one(source, refs)

    monkeypatch.setattr(RowSource, "_in_columns", read_columns)
    monkeypatch.setattr(RowSource, "read", read)
    monkeypatch.setattr(listed_rows, "READ_BYTES", 2**13)
    packed = packs(folder, dataset, {"shard_samples": 700, "max_quarantined": 0.5})
    assert digest(packed) == DIGESTS[form]
    assert (max(numbers) == 1) == (way == "columns")  # one is tried, to know the fields


def test_nothing_of_a_row_group_is_kept_while_its_last_rows_are_written(tmp_path: Path) -> None:
    _parquet(tmp_path)
    spec = DatasetSpec(name="x", source=str(tmp_path), fields={"n": "large", "box": "box"})
    source = open_source(spec)
    assert isinstance(source, RowSource)
    refs = source.list_samples()
    pool = pa.default_memory_pool()
    before = pool.bytes_allocated()
    kept = [pool.bytes_allocated() - before for _ in source.read_columns(refs[:900])]
    assert kept == [0]


def test_a_list_of_another_length_is_refused_by_name(
    tmp_path: Path, packs: Callable[..., dict[str, Any]]
) -> None:
    lists = [[1.0, 2.0]] * 40
    lists[33] = [1.0, 2.0, 3.0]
    (tmp_path / "source").mkdir()
    parquet.write_table(pa.table({"pair": lists}), tmp_path / "source" / "a.parquet")
    with pytest.raises(DataError, match=r"'a.parquet#33' has shape \(3,\) float64, .* has \(2,\)"):
        packs(tmp_path / "source")


def test_a_dataset_of_unchanged_containers_is_known_without_their_rows(
    tmp_path: Path, packs: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By names, sizes, times and settings; whatever of these changes has the rows listed."""
    folder, rules = tmp_path / "source", SOURCES["parquet"][1]
    folder.mkdir()
    _parquet(folder)
    listings: list[RowSource] = []
    list_samples = RowSource.list_samples

    def listed(source: RowSource, *given: Any) -> SampleTable:
        listings.append(source)
        return list_samples(source, *given)

    monkeypatch.setattr(RowSource, "list_samples", listed)

    def pack(**more: Any) -> tuple[str, bool, int]:
        before = len(listings)
        packed = packs(folder, rules, {"shard_samples": 700, "max_quarantined": 0.5, **more})
        return packed["dataset"], packed["reused"], len(listings) - before

    dataset, *how = pack()
    assert how == [False, 1]
    assert pack() == (dataset, True, 0)
    assert pack(statistics="none")[1:] == (False, 1)
    with pytest.raises(DataError, match="of 3,000 samples cannot be read"):
        pack(max_quarantined=0.0)
    (Path(dataset) / "parts" / "sources").unlink()  # as of an earlier release
    assert pack() == (dataset, True, 1)
    assert pack() == (dataset, True, 0)
    next(Path(dataset).glob("shards/*")).unlink()
    assert pack() == (dataset, False, 1)
    (folder / "b.parquet").touch()
    changed, *how = pack()
    assert how == [False, 1]
    assert changed != dataset


@pytest.mark.parametrize("content", [b"", b"no plan", None])
def test_a_plan_that_is_damaged_is_told(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "a.plan.arrow"
    if content is None:
        assert PlannedShard.read(path) is None
        return
    path.write_bytes(content)
    with pytest.raises(StepError, match=r"The plan .* is damaged"):
        PlannedShard.read(path)
