"""Columns of rows: what is in memory, what is refused, and what is known without reading them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from headrace.errors import DataError
from headrace.packing.sample_table import SampleTable
from headrace.packing.sources.open import open_source
from headrace.packing.sources.rows import RowSource
from headrace.recipe.dataset import DatasetSpec
from support.source_forms import SOURCES, write_parquet


def test_nothing_of_a_row_group_is_kept_while_its_last_rows_are_written(tmp_path: Path) -> None:
    write_parquet(tmp_path)
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
    write_parquet(folder)
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
