"""Samples as rows of a table: the same references as of lists, in few bytes, and as plans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import DataError, StepError
from headrace.objects.protocol import StoredFile
from headrace.packing.packing_plan import PlannedShard
from headrace.packing.sample_table import SampleRef, SampleTable, by_path
from headrace.packing.sources.listing import table_of_rows
from headrace.packing.sources.open import open_source
from headrace.recipe.dataset import DatasetSpec
from support.source_forms import SOURCES

NAMES = st.text(st.characters(codec="utf-8"), max_size=9)
ROLES = st.none() | st.sampled_from(["", "a", "ß"])
NUMBERS = st.integers(0, 2**40)
REFS = st.lists(
    st.builds(
        SampleRef,
        NAMES,
        NUMBERS,
        st.integers(-(2**62), 2**62).map(str),
        *[ROLES] * 3,
        st.tuples(NUMBERS, st.integers(0, 3)),
    ),
    min_size=1,
    max_size=40,
    unique_by=lambda ref: ref.path,
)


def table_of(refs: list[SampleRef], kind: pa.DataType | None = None) -> SampleTable:
    path, num_bytes, version, label, group, split, where = zip(*refs, strict=True)
    return SampleTable.of(
        path=list(path),
        bytes=list(num_bytes),
        version=pa.array(map(int, version)) if kind is None else pa.array(version, kind),
        label=list(label),
        group=list(group),
        split=list(split),
        places=np.array(where).T,
    )


@given(REFS, st.data(), st.sampled_from([None, pa.large_string()]))
def test_a_table_is_the_list_of_its_samples(
    refs: list[SampleRef], data: st.DataObject, kind: pa.DataType | None
) -> None:
    table = table_of(refs, kind)
    assert list(table) == [table[at] for at in range(len(table))] == refs
    assert list(table[1:-1]) == refs[1:-1]
    assert list(table[::-2]) == refs[::-2]
    some = data.draw(st.lists(st.integers(0, len(refs) - 1), max_size=9))
    taken = table.take(np.array(some, dtype=np.int64))
    assert list(taken) == list(taken.compact()) == [refs[at] for at in some]
    assert table.path_lengths(in_bytes=False).tolist() == [len(ref.path) for ref in refs]
    assert table.path_lengths(in_bytes=True).tolist() == [len(ref.path.encode()) for ref in refs]
    assert list(by_path(table)) == sorted(refs)
    with pytest.raises(DataError, match="There are two samples"):
        by_path(table.take(np.array([*range(len(refs)), 0])))


@pytest.mark.parametrize("form", ["files", "pairs", "index", "webdataset", "webdataset-splits"])
def test_a_listed_sample_takes_40_bytes_beside_its_path_and_version(
    form: str, tmp_path: Path
) -> None:
    write, dataset, _ = SOURCES[form]
    write(tmp_path)
    spec = DatasetSpec.model_validate({"name": "x", "source": str(tmp_path), **dataset})
    listed = open_source(spec).list_samples()
    texts = [column for column in listed.table.columns if pa.types.is_large_string(column.type)]
    beside = sum(column.nbytes - 8 * len(column) for column in texts)
    assert listed.table.nbytes - beside <= 40 * len(listed)


ROWS = 3


def rows_of(num_containers: int) -> SampleTable:
    """Rows of so many containers, each with a version of its own."""
    tables = []
    for number in range(num_containers):
        file = StoredFile(f"day-{number:05d}.parquet", 9, f"{number:019d}")
        parts = {0: ROWS, 7: number % 2 * 100}
        tables.append(table_of_rows(file, number + 1, parts, {}))
    return SampleTable.concatenated(tables)


def test_rows_are_named_by_their_containers() -> None:
    listed = rows_of(12)
    assert [listed[at].path for at in (0, 2, 3, 105, 106)] == [
        "day-00000.parquet#0", "day-00000.parquet#2", "day-00001.parquet#000",
        "day-00001.parquet#102", "day-00002.parquet#0",
    ]  # fmt: skip
    assert listed[105] == ("day-00001.parquet#102", 2, f"{1:019d}", None, None, None, (7, 99))
    assert list(listed.iter_paths()) == sorted(ref.path for ref in listed)
    lengths = [len(ref.path) for ref in listed]
    assert listed.path_lengths(in_bytes=True).tolist() == lengths


def plan_of(listed: SampleTable, places: Any) -> PlannedShard:
    return PlannedShard(
        file="shards/train-00000.h5",
        split="train",
        first_sample_id=0,
        listed=listed,
        places=places,
        every={"x": 3},
        num_bytes=1,
    )


def plan_bytes(folder: Path, num_containers: int) -> int:
    """Bytes of the plans of as many shards as there are containers."""
    listed, paths = rows_of(num_containers), []
    for number, places in enumerate(np.array_split(np.arange(len(listed)), num_containers)):
        paths.append(folder / f"{num_containers}-{number}.plan.arrow")
        plan_of(listed, places).write(paths[-1], folder / "a.json")
    return sum(path.stat().st_size for path in paths)


def test_plans_grow_as_the_containers_do(tmp_path: Path) -> None:
    """Not as their square: four times the containers, about four times the bytes."""
    few, many = plan_bytes(tmp_path, 50), plan_bytes(tmp_path, 200)
    assert many < 4.5 * few


@pytest.mark.parametrize("places", [[7, 4, 110, 5, 219, 0], [110]])
def test_a_plan_holds_its_samples_only(tmp_path: Path, places: list[int]) -> None:
    listed = rows_of(60)
    plan = plan_of(listed, np.array(places, dtype=np.int64))
    plan.write(tmp_path / "a.plan.arrow", tmp_path / "a.json")
    read = PlannedShard.read(tmp_path / "a.plan.arrow")
    assert read is not None
    assert list(read.samples) == [listed[place] for place in places]
    assert read.model_dump() == plan.model_dump()
    named = {listed[place].path.partition("#")[0] for place in places}
    assert len(read.samples.column("path").dictionary) == len(named)


@pytest.mark.parametrize("content", [b"", b"no plan", None])
def test_a_damaged_plan_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "a.plan.arrow"
    if content is None:
        assert PlannedShard.read(path) is None
        return
    path.write_bytes(content)
    with pytest.raises(StepError, match=r"The plan .* is damaged"):
        PlannedShard.read(path)
