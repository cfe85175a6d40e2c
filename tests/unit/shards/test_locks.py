"""pains 25: sealed files are read where locks fail, as on file systems that refuse them."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
from tests.unit.shards.conftest import write_dataset

from headrace.files.manifest_file import read_manifest
from headrace.shards.chunks import read_rows
from headrace.shards.foreign import ForeignFile
from headrace.shards.reader import read_layout

VALUES = np.arange(12).reshape(6, 2)


@pytest.fixture(autouse=True)
def _own_choice_of_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HDF5_USE_FILE_LOCKING", raising=False)


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Path]:
    """An HDF5 file with `x`, on which HDF5 gets no lock: somebody else has it."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=VALUES, chunks=(2, 2))
    with path.open("r+b") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="unable to lock"):
            h5py.File(path, "r")
        yield path


def test_rows_of_a_shard_are_read_without_a_lock(locked: Path) -> None:
    rows = read_rows(locked, "x", np.array([4, 1]))
    assert np.array_equal(rows, VALUES[[4, 1]])


def test_a_source_file_is_read_without_a_lock(locked: Path) -> None:
    with ForeignFile(locked, "a.h5") as file:
        assert file.columns()["x"].num_rows == 6


def test_the_layout_of_a_shard_is_read_without_a_lock(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path / "set")
    path = folder / read_manifest(folder).shards[0].file
    with path.open("rb") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        assert "label" in str(read_layout(path).arrays)
