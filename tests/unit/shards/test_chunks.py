"""Compressed chunks are decompressed without HDF5, by any number of threads, to the same values."""

import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import pytest

from headrace.errors import ShardError
from headrace.shards.chunks import ChunkTable, ChunkTables, Decompress, decompressor, read_rows

NUM = 23
SHAPE = (5, 40)
CODECS: dict[str, Any] = {
    "zstd": hdf5plugin.Zstd(clevel=3),
    "lz4": hdf5plugin.LZ4(),
    "lz4 in blocks": hdf5plugin.LZ4(nbytes=64),
    "blosc": hdf5plugin.Blosc(cname="lz4", clevel=5, shuffle=hdf5plugin.Blosc.SHUFFLE),
    "blosc zstd": hdf5plugin.Blosc(cname="zstd", clevel=5, shuffle=hdf5plugin.Blosc.BITSHUFFLE),
}


def values(kind: str) -> Any:
    if kind == "noise":
        return np.random.default_rng(0).integers(0, 2**31, (NUM, *SHAPE), dtype=np.int32)
    return np.arange(NUM * 200, dtype=np.int32).reshape(NUM, *SHAPE) // 100


@pytest.mark.parametrize("kind", ["noise", "steps"])
@pytest.mark.parametrize("chunk_rows", [1, 4])
@pytest.mark.parametrize("codec", CODECS)
def test_rows_are_what_hdf5_gives(tmp_path: Path, codec: str, chunk_rows: int, kind: str) -> None:
    path, wanted = tmp_path / "a.h5", np.array([22, 0, 7, 7, 21, 4])
    with h5py.File(path, "w") as file:
        chunks = (chunk_rows, *SHAPE)
        file.create_dataset("x", data=values(kind), chunks=chunks, **CODECS[codec])
    files = ChunkTables()
    table = files.table(path, "x")
    assert table is not None
    out = np.zeros((10, *SHAPE), dtype=np.int32)
    positions = np.array([9, 8, 7, 2, 1, 0])
    content = np.fromfile(path, dtype=np.uint8)
    table.fill(content, wanted, out, positions)
    assert np.array_equal(out[positions], read_rows(path, "x", wanted))
    assert np.array_equal(out[positions], values(kind)[wanted])
    assert not out[3:7].any()
    turned = np.zeros((10, *SHAPE[::-1]), dtype=np.int64).transpose(0, 2, 1)
    table.fill(content, wanted, turned, positions)
    assert np.array_equal(turned, out)


@pytest.mark.parametrize("codec", CODECS)
def test_damaged_chunks_are_named_and_never_read_beyond(tmp_path: Path, codec: str) -> None:
    """pains: a flipped bit must not end the process, nor give other rows than the damaged ones."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=values("steps"), chunks=(4, *SHAPE), **CODECS[codec])
        info = file["x"].id.get_chunk_info(2)
    table = ChunkTables().table(path, "x")
    assert isinstance(table, ChunkTable)
    good = np.fromfile(path, dtype=np.uint8)
    rng = np.random.default_rng(1)
    out = np.empty((1, *SHAPE), dtype=np.int32)
    refused = set()
    for _ in range(200):
        content = good.copy()
        content[info.byte_offset + rng.integers(info.size)] ^= rng.integers(1, 256, dtype=np.uint8)
        try:
            table.fill(content, np.array([9]), out, np.array([0]))
        except ShardError as error:
            refused.add(error.what)
    assert refused == {f"'x' in {path} is damaged: rows 8 to 11 cannot be decompressed"}
    with pytest.raises(ShardError, match="rows 20 to 22 cannot"):
        table.fill(good[: len(good) // 8], np.array([21]), out, np.array([0]))


def test_threads_need_not_take_turns(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=values("steps"), chunks=(1, *SHAPE), **CODECS["zstd"])
    files, content = ChunkTables(), np.fromfile(path, dtype=np.uint8)

    def read(seed: int) -> bool:
        wanted = np.random.default_rng(seed).permutation(NUM)
        out = np.empty((NUM, *SHAPE), dtype=np.int32)
        table = files.table(path, "x")
        table.fill(content, wanted, out, np.arange(NUM))
        return np.array_equal(out, values("steps")[wanted])

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(read, range(20)))


def test_other_filters_are_left_to_hdf5(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("gzip", data=values("steps"), chunks=(4, *SHAPE), compression="gzip")
        file.create_dataset(
            "two", data=values("steps"), chunks=(4, *SHAPE), shuffle=True, **CODECS["zstd"]
        )
        file.create_dataset("cut", data=values("steps"), chunks=(4, 2, 40), **CODECS["zstd"])
    files = ChunkTables()
    assert [files.table(path, name) for name in ("gzip", "two", "cut")] == [None] * 3
    assert np.array_equal(read_rows(path, "gzip", np.array([3])), values("steps")[[3]])


NUMBERS = np.arange(40_000, dtype=np.int32) // 7
MARK = 0xA5
FILTERS: dict[int, Any] = {
    32015: hdf5plugin.Zstd(),
    32004: hdf5plugin.LZ4(nbytes=48_000),
    32001: hdf5plugin.Blosc(cname="lz4"),
}


def chunk_of(path: Path, filter_id: int, values: np.ndarray[Any, Any] = NUMBERS) -> bytes:
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
    assert decompressed(found(filter_id), chunk, NUMBERS.nbytes) == NUMBERS.tobytes()
    for room_bytes in (NUMBERS.nbytes - 4, NUMBERS.nbytes + 4):
        assert decompressed(found(filter_id), chunk, room_bytes) is None


@pytest.mark.parametrize("filter_id", FILTERS)
def test_a_chunk_that_is_cut_off_is_refused(filter_id: int, tmp_path: Path):
    chunk = chunk_of(tmp_path / "x.h5", filter_id)
    lengths = {*range(1, 40), *range(40, len(chunk), 97), len(chunk) - 1}
    given = {at: decompressed(found(filter_id), chunk[:at], NUMBERS.nbytes) for at in lengths}
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
    assert decompressed(found(32004), wrong, NUMBERS.nbytes) is None


def test_what_only_hdf5_can_decompress():
    assert decompressor(1) is None
