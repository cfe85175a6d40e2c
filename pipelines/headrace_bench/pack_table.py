"""Packing a table of numbers: read by pyarrow and written by h5py (the limit), by headrace."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray
from pyarrow import csv, parquet, table

from headrace.shards.dataset import ShardedDataset
from headrace_bench.contest import BenchOptions, Measured, Tick, compete
from headrace_bench.machine import num_cores
from headrace_bench.pack_headrace import new_pool, pack_folder, shard_bytes_of
from headrace_bench.records import BenchTable
from headrace_bench.workspace import workspace

_NUM_COLUMNS = 17
_ROW_BYTES = 4 * _NUM_COLUMNS
_BATCH_ROWS = 2**16
_WRITTEN_BYTES = 30  # most bytes of a number in a CSV file


def bench_table(form: str, options: BenchOptions, tick: Tick) -> tuple[BenchTable, ...]:
    """Return one table: a `parquet` or `csv` file of 17 `float32` columns; peers are ignored.

    Raises:
        StorageFullError: The folder has no room.
    """
    num_rows = max(options.total_bytes // _ROW_BYTES, 100)
    num_bytes = num_rows * _ROW_BYTES
    with (
        new_pool() as pool,
        workspace(options.folder, num_rows * _NUM_COLUMNS * _WRITTEN_BYTES) as folder,
    ):
        tick(f"writing {num_rows:,} rows")
        numbers = np.random.default_rng(0).random((num_rows, _NUM_COLUMNS), dtype=np.float32)
        file = _write(numbers, folder / f"table.{form}")
        work = Measured(target=folder / "packed", num_samples=num_rows, num_bytes=num_bytes)
        shard_bytes = shard_bytes_of(num_bytes)
        variants = [
            work.variant(
                "limit",
                lambda to: _copy(file, to / "table.h5"),
                settings="rows by pyarrow in batches, columns by h5py in order, one process",
            ),
            work.variant(
                "headrace",
                lambda to: pack_folder(file, to, pool, shard_bytes, {}),
                lambda to: _check(to, numbers),
                settings="pack step with the defaults of recipes",
            ),
        ]
        rows = compete(variants, options.rounds, tick)
    note = f"headrace: by {num_cores()} processes; names, splits, checksums and statistics too."
    title = f"pack, a {form} table of {num_rows:,} rows of {_NUM_COLUMNS} float32 columns"
    return (BenchTable(title=title, rows=rows, notes=(note,)),)


def _write(numbers: NDArray[np.float32], file: Path) -> Path:
    columns = table({f"c{index:02d}": column for index, column in enumerate(numbers.T)})
    if file.suffix == ".csv":
        csv.write_csv(columns, file)
    else:
        parquet.write_table(columns, file)
    return file


def _copy(source: Path, target: Path) -> None:
    is_csv = source.suffix == ".csv"
    batches = (
        csv.open_csv(source)
        if is_csv
        else parquet.ParquetFile(source).iter_batches(_BATCH_ROWS, use_threads=False)
    )
    with h5py.File(target, "w") as file:
        start = 0
        for batch in batches:
            stop = start + batch.num_rows
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                if name not in file:
                    chunks = (_BATCH_ROWS,)
                    file.create_dataset(name, (0,), "f4", maxshape=(None,), chunks=chunks)
                file[name].resize((stop,))
                file[name][start:stop] = column.to_numpy(zero_copy_only=False)
            start = stop


def _check(target: Path, numbers: NDArray[np.float32]) -> None:
    """Compare the dataset with the written rows.

    Raises:
        ValueError: Rows are missing or differ.
    """
    (manifest,) = target.glob("datasets/*/manifest.json")
    dataset = ShardedDataset(manifest.parent, "train")
    places = np.arange(len(dataset))
    rows = [int(path.partition("#")[2]) for path in dataset.sources(places)]
    if sorted(rows) != list(range(len(numbers))):
        raise ValueError(f"{len(set(rows)):,} rows of {len(numbers):,} were packed")
    for index, column in enumerate(numbers.T):
        if not np.allclose(dataset.gather(f"c{index:02d}", places), column[rows]):
            raise ValueError("a row was not packed as it is")
