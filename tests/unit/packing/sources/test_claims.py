"""Headers that claim more than their file holds end in a data error, within 64 MB of memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from inspect import signature
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from headrace.errors import DataError, ShardError
from headrace.packing.samples import Access
from headrace.packing.sources.open import open_source
from headrace.recipe.dataset import DatasetSpec
from headrace.shards.reader import read_layout

ROOM = 64 * 2**20
ROWS = 2**40

LIST = """
import resource, sys
import h5py, hdf5plugin, pyarrow.parquet
from headrace.errors import DataError
from headrace.packing.samples import Access
from headrace.packing.sources.open import open_source
from headrace.recipe.dataset import DatasetSpec

source = open_source(DatasetSpec(name="x", source=sys.argv[1]), Access())
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[2]), -1))
try:
    source.list_samples()
except DataError as error:
    print(error.what)
else:
    print("nothing was found")
"""


def told(folder: Path) -> str:
    """What listing a source says in a process that gets no more than so much memory."""
    command = [sys.executable, "-c", LIST, str(folder), str(ROOM)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def contiguous(file: h5py.File) -> None:
    file.create_dataset("x", (ROWS,), "u1")


def chunked(file: h5py.File) -> None:
    file.create_dataset("x", (ROWS,), "u1", chunks=(2**20,))


def compressed(file: h5py.File) -> None:
    values = file.create_dataset("x", (2**34,), "u1", chunks=(2**20,), compression="gzip")
    values[:10] = 1


def empty_rows(file: h5py.File) -> None:
    file.create_dataset("x", (ROWS, 0), "u1", chunks=(1, 1), maxshape=(None, None))


def huge_chunks(file: h5py.File) -> None:
    file.create_dataset("x", (10,), "u1", chunks=(2**31,), maxshape=(None,))


def long_text(file: h5py.File) -> None:
    file.create_dataset("x", (3,), "S2000000000")


@pytest.mark.parametrize(
    "make", [contiguous, chunked, compressed, empty_rows, huge_chunks, long_text]
)
def test_hdf5(tmp_path: Path, make: Callable[[h5py.File], None]) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        make(file)
    assert (tmp_path / "a.h5").stat().st_size < 20_000
    assert "'x' of" in (said := told(tmp_path))
    assert "a.h5 claims" in said


def test_parquet_of_rows_that_need_no_bytes(tmp_path: Path) -> None:
    """Runs of equal values: twenty million rows in a kilobyte or so."""
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(20_000_000, np.int8)), ["a"])
    write = pyarrow.parquet.write_table
    options = {"row_group_size": 2**30, "data_page_size": 2**30}
    if "max_rows_per_page" in signature(write).parameters:  # before pyarrow 23 there is no limit
        options["max_rows_per_page"] = 2**30
    write(pa.table({"x": column}), tmp_path / "a.parquet", **options)
    assert (tmp_path / "a.parquet").stat().st_size < 10_000
    assert "a.parquet claims 20,000,000 rows" in told(tmp_path)


def test_what_was_compressed_well_is_read(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.zeros((300, 64, 64), "u1"), compression="gzip")
        file.create_dataset("y", data=np.arange(300), chunks=(7,), maxshape=(None,))
    source = open_source(DatasetSpec(name="x", source=str(tmp_path)), Access())
    assert len(source.list_samples()) == 300


def test_links_out_of_a_source_are_left_out(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "other", "w") as file:
        file["x"] = np.arange(3)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["y"] = np.arange(3)
        file["x"] = h5py.ExternalLink("other", "x")
        file["z"] = h5py.SoftLink("/x")
    source = open_source(DatasetSpec(name="x", source=str(tmp_path / "a.h5")), Access())
    source.list_samples()
    assert [field.name for field in source.fields] == ["y"]


def test_virtual_datasets_are_refused(tmp_path: Path) -> None:
    layout = h5py.VirtualLayout((3,), "i8")
    layout[:] = h5py.VirtualSource(tmp_path / "other.h5", "x", (3,))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_virtual_dataset("x", layout)
    with pytest.raises(DataError, match="keeps its values in other files"):
        open_source(DatasetSpec(name="x", source=str(tmp_path)), Access()).list_samples()


def linked_out(file: h5py.File) -> None:
    file["fields/x"] = h5py.ExternalLink("/etc/other.h5", "x")


def linked_in(file: h5py.File) -> None:
    file["fields/x"] = h5py.SoftLink("/sample_id")


def endless(file: h5py.File) -> None:
    file["fields/again"] = file["fields"]


def many_ids(file: h5py.File) -> None:
    del file["sample_id"]
    file.create_dataset("sample_id", (ROWS,), "i8", chunks=(2**16,))


@pytest.mark.parametrize("damage", [linked_out, linked_in, endless, many_ids])
def test_shards_that_lead_elsewhere_or_nowhere(tmp_path, damage):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.attrs["headrace_format"], file.attrs["split"] = 1, "train"
        file["sample_id"] = np.arange(3)
        file["fields/y"] = np.arange(3)
    assert read_layout(tmp_path / "a.h5").num_samples == 3
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        damage(file)
    with pytest.raises(ShardError, match=r"a\.h5 is truncated or damaged"):
        read_layout(tmp_path / "a.h5")
