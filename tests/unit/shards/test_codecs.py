"""Chunks are decompressed to what HDF5 wrote, or refused: never read or written past their end."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import pytest

from headrace.shards.codecs import Decompress, decompressor

VALUES = np.arange(40_000, dtype=np.int32) // 7
MARK = 0xA5
FILTERS: dict[int, Any] = {
    32015: hdf5plugin.Zstd(),
    32004: hdf5plugin.LZ4(nbytes=48_000),
    32001: hdf5plugin.Blosc(cname="lz4"),
}


def chunk_of(path: Path, filter_id: int, values: np.ndarray[Any, Any] = VALUES) -> bytes:
    with h5py.File(path, "w") as file:
        made = file.create_dataset(
            "x", data=values, chunks=values.shape, compression=FILTERS[filter_id]
        )
        return bytes(made.id.read_direct_chunk((0,))[1])


def decompressed(decompress: Decompress, chunk: bytes, room_bytes: int) -> bytes | None:
    """What it gives; None when it refuses. Fails when it writes behind the room."""
    source = np.frombuffer(chunk, dtype=np.uint8).copy()
    room = np.full(room_bytes + 64, MARK, dtype=np.uint8)
    done = decompress(source.ctypes.data, len(source), room.ctypes.data, room_bytes)
    assert (room[room_bytes:] == MARK).all()
    return room[:room_bytes].tobytes() if done else None


def found(filter_id: int) -> Decompress:
    decompress = decompressor(filter_id)
    assert decompressor(filter_id) is decompress  # made once, as are its tables
    assert decompress is not None
    return decompress


@pytest.mark.parametrize("filter_id", FILTERS)
def test_what_was_written_comes_back(filter_id: int, tmp_path: Path):
    chunk = chunk_of(tmp_path / "x.h5", filter_id)
    assert decompressed(found(filter_id), chunk, VALUES.nbytes) == VALUES.tobytes()
    for room_bytes in (VALUES.nbytes - 4, VALUES.nbytes + 4):
        assert decompressed(found(filter_id), chunk, room_bytes) is None


@pytest.mark.parametrize("filter_id", FILTERS)
def test_a_chunk_that_is_cut_off_is_refused(filter_id: int, tmp_path: Path):
    chunk = chunk_of(tmp_path / "x.h5", filter_id)
    lengths = {*range(1, 40), *range(40, len(chunk), 97), len(chunk) - 1}
    given = {at: decompressed(found(filter_id), chunk[:at], VALUES.nbytes) for at in lengths}
    assert {at for at, values in given.items() if values is not None} == set()


def test_blocks_that_did_not_become_smaller_are_kept_as_they_are(tmp_path: Path):
    values = np.random.default_rng(0).integers(0, 2**31, 30_000, dtype=np.int32)
    chunk = chunk_of(tmp_path / "x.h5", 32004, values)
    assert len(chunk) > values.nbytes
    assert decompressed(found(32004), chunk, values.nbytes) == values.tobytes()
    assert decompressed(found(32004), chunk[:-1], values.nbytes) is None


@pytest.mark.parametrize(("total", "block_bytes"), [(160_000, 0), (0, 48_000), (2**40, 48_000)])
def test_a_header_that_cannot_be_true_is_refused(total: int, block_bytes: int, tmp_path: Path):
    chunk = chunk_of(tmp_path / "x.h5", 32004)
    wrong = struct.pack(">QI", total, block_bytes) + chunk[12:]
    assert decompressed(found(32004), wrong, VALUES.nbytes) is None


def test_what_only_hdf5_can_decompress():
    assert decompressor(1) is None
