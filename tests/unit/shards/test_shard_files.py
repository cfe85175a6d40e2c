"""Shards: same bytes for same samples, plain HDF5, read by mapping, damage told by name."""

from __future__ import annotations

import fcntl
import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import h5py
import hdf5plugin
import numpy as np
import pytest
from tests.unit.shards.conftest import write_dataset

from headrace.errors import ShardError, StorageFullError
from headrace.files.manifest_file import read_manifest
from headrace.shards.chunks import read_rows
from headrace.shards.foreign import ForeignFile
from headrace.shards.reader import ShardReader, read_layout
from headrace.shards.writer import remove_temporary
from headrace_bench.shards import ShardWriter

IMAGES = np.arange(5 * 3 * 4, dtype=np.uint8).reshape(5, 3, 4)
FLOATS = np.linspace(-1, 1, 5 * 2, dtype=np.float32).reshape(5, 2)
LABELS = np.array([4, 3, 2, 1, 0])
BLOBS = [b"abc", b"", b"defgh", b"\0", b"x" * 1000]
SOURCES = ["a.png", "b/ü.png", "c", "d e.png", "f"]


def write(path: Path) -> Path:
    writer = ShardWriter("train", np.arange(10, 15), SOURCES)
    writer.add_fixed("image", IMAGES)
    writer.add_fixed("floats", FLOATS)
    writer.add_fixed("flag", LABELS > 2)
    writer.add_ragged("blob", BLOBS)
    writer.add_fixed("label", LABELS)
    writer.publish(path)
    return path


def test_same_samples_give_same_bytes_at_another_time(tmp_path: Path) -> None:
    first = write(tmp_path / "a.h5").read_bytes()
    start = int(time.time())
    deadline = time.monotonic() + 10
    while int(time.time()) == start and time.monotonic() < deadline:
        time.sleep(0.05)  # HDF5 writes times in whole seconds, where it writes them
    assert write(tmp_path / "b.h5").read_bytes() == first


def test_plain_h5py_reads_it(tmp_path: Path) -> None:
    with h5py.File(write(tmp_path / "a.h5"), "r") as file:
        assert file.attrs["headrace_format"] == 1
        assert file.attrs["split"] == "train"
        np.testing.assert_array_equal(file["fields/image"][:], IMAGES)
        assert file["fields/image"].chunks is None
        assert file["fields/floats"].dtype == np.float32
        np.testing.assert_array_equal(file["sample_id"][:], np.arange(10, 15))
        data, offsets = file["fields/blob/data"][:], file["fields/blob/offsets"][:]
        assert [data[a:b].tobytes() for a, b in itertools.pairwise(offsets)] == BLOBS
        data, offsets = file["source/data"][:], file["source/offsets"][:]
        assert data[offsets[1] : offsets[2]].tobytes().decode() == "b/ü.png"


def test_reader_maps_what_was_written(tmp_path: Path) -> None:
    reader = ShardReader(write(tmp_path / "a.h5"))
    assert reader.num_samples == 5
    for name, values in (("image", IMAGES), ("floats", FLOATS), ("flag", LABELS > 2)):
        mapped = reader.fixed(name)
        np.testing.assert_array_equal(mapped, values)
        assert mapped.dtype == values.dtype
        assert mapped.flags.aligned
        assert not mapped.flags.writeable
        assert not mapped.flags.owndata
    data, offsets = reader.ragged("blob")
    assert data[offsets[4] : offsets[5]].tobytes() == BLOBS[4]
    assert reader.sources([4, 1]) == ["f", "b/ü.png"]
    assert reader.array("sample_id").tolist() == list(range(10, 15))
    assert reader.layout.field_names() == ("blob", "flag", "floats", "image", "label")


def test_arrays_are_aligned(tmp_path: Path) -> None:
    layout = read_layout(write(tmp_path / "a.h5"))
    assert all(place.offset % 64 == 0 for place in layout.arrays.values() if place.num_bytes)


def test_big_endian_arrays_become_little_endian(tmp_path: Path) -> None:
    writer = ShardWriter("train", np.arange(2), ["a", "b"])
    writer.add_fixed("array", np.array([1.5, 2.5], dtype=">f4"))
    writer.publish(tmp_path / "a.h5")
    values = ShardReader(tmp_path / "a.h5").fixed("array")
    assert values.dtype == np.dtype("<f4")
    assert values.tolist() == [1.5, 2.5]


def test_reading_takes_no_lock_and_no_write_access(tmp_path: Path) -> None:
    """Pains 25: shared file systems without locks."""
    path = write(tmp_path / "a.h5")
    path.chmod(0o400)
    with h5py.File(path, "r"):  # holds HDF5's own shared lock
        assert ShardReader(path).num_samples == 5
    assert path.stat().st_mode & 0o777 == 0o400


def test_every_truncation_is_an_error(tmp_path: Path) -> None:
    content = write(tmp_path / "a.h5").read_bytes()
    path = tmp_path / "cut.h5"
    for num_bytes in range(0, len(content), 397):
        path.write_bytes(content[:num_bytes])
        with pytest.raises(ShardError, match=r"cut\.h5"):
            read_layout(path)


def test_damaged_structure_is_never_another_error(tmp_path: Path) -> None:
    content = write(tmp_path / "a.h5").read_bytes()
    path = tmp_path / "flipped.h5"
    for position in range(0, 4096, 53):
        damaged = bytearray(content)
        damaged[position] ^= 0xFF
        path.write_bytes(damaged)
        try:
            reader = ShardReader(path)
            for name in reader.layout.field_names():
                if not reader.layout.is_ragged(name):
                    reader.fixed(name)
        except ShardError as error:
            assert "flipped.h5" in str(error)  # noqa: PT017


def test_missing_file_and_other_files(tmp_path: Path) -> None:
    with pytest.raises(ShardError, match="missing"):
        read_layout(tmp_path / "no.h5")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = [1]
    with pytest.raises(ShardError, match="not a headrace shard"):
        read_layout(tmp_path / "other.h5")


def test_newer_format_asks_to_upgrade(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5")
    with h5py.File(path, "r+") as file:
        file.attrs["headrace_format"] = 2
    with pytest.raises(ShardError, match="Upgrade"):
        read_layout(path)


@pytest.mark.parametrize("codec", ["LZ4", "Zstd", "Blosc"])
def test_compressed_fields_are_read_too(tmp_path: Path, codec: str) -> None:
    path = write(tmp_path / "a.h5")
    with h5py.File(path, "r+") as file:
        del file["fields/image"]
        file.create_dataset(
            "fields/image", data=IMAGES, chunks=(2, 3, 4), **getattr(hdf5plugin, codec)()
        )
    np.testing.assert_array_equal(ShardReader(path).fixed("image"), IMAGES)


def test_unknown_field_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ShardError, match="Did you mean 'image'"):
        ShardReader(write(tmp_path / "a.h5")).fixed("imgae")


def test_fields_must_have_one_length(tmp_path: Path) -> None:
    writer = ShardWriter("train", np.arange(2), ["a", "b"])
    with pytest.raises(ShardError, match="has 3 samples, the shard 2"):
        writer.add_fixed("x", np.zeros(3))


def test_full_disk_is_told_and_leaves_nothing(tmp_path, monkeypatch):
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageFullError, match=r"bytes needed, [\d,]+ bytes free"):
        write(tmp_path / "a.h5")
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_killed_writers_are_removed(tmp_path: Path) -> None:
    write(tmp_path / "a.h5")
    (tmp_path / ".a.h5.0123.tmp").write_bytes(b"half")
    assert remove_temporary(tmp_path) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a.h5"]


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
