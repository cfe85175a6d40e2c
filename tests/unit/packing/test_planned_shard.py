"""Plans of shards in files: each tells of its own samples only."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headrace.packing.sample_table import Listed, RowPaths
from headrace.packing.planned_shard import PlannedShard
from headrace.packing.sources.listed_rows import ListedRows, together

ROWS = 3


def rows_of(num_containers: int) -> Listed:
    """Rows of so many containers, each with a version of its own."""
    return together(
        [
            ListedRows(
                path=f"day-{number:05d}.parquet",
                version=f"{number:019d}",
                num_rows=ROWS + number % 2 * 100,
                row_bytes=number + 1,
                parts={0: ROWS + number % 2 * 100},
                told={},
                split=None,
            )
            for number in range(num_containers)
        ]
    )


def plan_of(listed: Listed, places: np.ndarray) -> PlannedShard:
    return PlannedShard(
        file="shards/train-00000.h5",
        split="train",
        first_sample_id=0,
        listed=listed,
        indices=(),
        places=places,
        every={},
        num_bytes=1,
    )


def plan_bytes(folder: Path, num_containers: int) -> int:
    """Bytes of the plans of as many shards as there are containers."""
    listed, paths = rows_of(num_containers), []
    for number, places in enumerate(np.array_split(np.arange(len(listed)), num_containers)):
        paths.append(folder / f"{num_containers}-{number}.plan.arrow")
        plan_of(listed, places).write(paths[-1])
    return sum(path.stat().st_size for path in paths)


def test_plans_grow_as_the_containers_do(tmp_path: Path) -> None:
    """Not as their square: four times the containers, about four times the bytes."""
    few, many = plan_bytes(tmp_path, 50), plan_bytes(tmp_path, 200)
    assert many < 4.5 * few


@pytest.mark.parametrize("places", [[7, 4, 110, 5, 219, 0], [110]])
def test_a_plan_names_the_containers_that_it_reads(tmp_path: Path, places: list[int]) -> None:
    listed = rows_of(60)
    plan = plan_of(listed, np.array(places, dtype=np.int64))
    plan.write(tmp_path / "a.plan.arrow")
    read = PlannedShard.read(tmp_path / "a.plan.arrow")
    assert read is not None
    assert list(read.samples) == [listed[place] for place in places]
    assert isinstance(read.samples.paths, RowPaths)
    named = sorted({listed.paths[place].partition("#")[0] for place in places})
    assert list(read.samples.paths.names) == named


def test_a_plan_that_names_all_containers_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the release before wrote it: its datasets may still grow."""
    listed, places = rows_of(60), np.array([7, 4, 219])
    monkeypatch.setattr(RowPaths, "tight", lambda paths: paths)
    plan_of(listed, places).write(tmp_path / "a.plan.arrow")
    read = PlannedShard.read(tmp_path / "a.plan.arrow")
    assert read is not None
    assert list(read.samples) == [listed[place] for place in places]
    assert isinstance(read.samples.paths, RowPaths)
    assert len(read.samples.paths.names) == 60
