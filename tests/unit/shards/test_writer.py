"""The shard builder: the same bytes whatever was expected, in bounded memory, and nothing half."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np
import pytest
import xxhash

from headrace.errors import ShardError, StorageFullError
from headrace.files.checksums import file_xxh3_128
from headrace.files.manifest import FieldInfo
from headrace.shards import columns
from headrace.shards.columns import Block, DirectStream, ExpectedSizes, ShardArrays, Spool, data_key
from headrace.shards.shard_layout import make_skeleton, read_all
from headrace.shards.writer import ShardBuilder, WrittenShard
from headrace_bench.shards import ShardWriter

FIELDS = (
    FieldInfo(name="blob", dtype="uint8", layout="ragged", encoding="png"),
    FieldInfo(name="points", dtype="float32", layout="ragged", ndim=2),
    FieldInfo(name="text", dtype="uint8", layout="ragged", encoding="text"),
    FieldInfo(name="label", dtype="int64", layout="fixed"),
)
RNG = np.random.default_rng(7)
BLOBS = [RNG.bytes(int(size)) for size in RNG.integers(0, 40_000, 60)]
POINTS = [RNG.normal(size=(int(n), 3)).astype(np.float32) for n in RNG.integers(0, 50, 60)]
TEXTS = [f"nümber {n}".encode() for n in range(60)]
SOURCES = [f"{n}.png".encode() for n in range(60)]
RIGHT = ExpectedSizes(
    num_samples=60, source_bytes=sum(map(len, SOURCES)), first_bytes=sum(map(len, BLOBS))
)


def block(start: int, stop: int) -> Block:
    part = slice(start, stop)
    return Block(
        ids=np.arange(start, stop),
        sources=SOURCES[part],
        columns=(
            BLOBS[part],
            [points.tobytes() for points in POINTS[part]],
            TEXTS[part],
            [np.int64(n % 3).tobytes() for n in range(start, stop)],
        ),
        shapes={"points": [points.shape for points in POINTS[part]]},
    )


def build(path: Path, expected: ExpectedSizes | None, step: int = 60) -> WrittenShard:
    with ShardBuilder(path, "train", FIELDS, expected) as shard:
        for start in range(0, 60, step):
            shard.add(block(start, min(60, start + step)))
        return shard.finish()


@pytest.mark.parametrize(
    "expected",
    [
        None,
        RIGHT,
        ExpectedSizes(num_samples=61, source_bytes=9999, first_bytes=10**7),
        ExpectedSizes(num_samples=0, source_bytes=0, first_bytes=0),
    ],
)
@pytest.mark.parametrize("step", [1, 7, 60])
@pytest.mark.parametrize("memory_bytes", [5000, 2**25])
def test_same_bytes_whatever_was_expected(tmp_path, expected, step, memory_bytes, monkeypatch):
    reference = build(tmp_path / "reference.h5", RIGHT)
    monkeypatch.setattr(columns, "MEMORY_BYTES", memory_bytes)
    monkeypatch.setattr(columns, "PIECE_BYTES", 50_000)
    written = build(tmp_path / "a.h5", expected, step)
    assert written == reference
    assert written.xxh3_128 == file_xxh3_128(tmp_path / "a.h5")
    assert written.num_bytes == (tmp_path / "a.h5").stat().st_size
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.h5", "reference.h5"]


def test_plain_h5py_reads_every_kind_of_field(tmp_path: Path) -> None:
    build(tmp_path / "a.h5", RIGHT)
    with h5py.File(tmp_path / "a.h5") as file:
        points = file["fields/points"]
        offsets, shapes = points["offsets"][:], points["shapes"][:]
        data, texts = points["data"][:], file["fields/text"]
        for number in (0, 17, 59):
            part = data[offsets[number] : offsets[number + 1]].view(np.float32)
            np.testing.assert_array_equal(part.reshape(shapes[number]), POINTS[number])
            start, end = texts["offsets"][number : number + 2]
            assert texts["data"][start:end].tobytes() == TEXTS[number]
            row = BLOBS[number] + POINTS[number].tobytes() + TEXTS[number]
            whole = row + np.int64(number % 3).tobytes()
            assert file["checksum"][number] == xxhash.xxh3_64_intdigest(whole)


@pytest.mark.parametrize("codec", ["lz4", "zstd", "blosc"])
def test_compressed_fields_are_the_same_and_smaller(tmp_path: Path, codec: str) -> None:
    values = np.repeat(np.arange(50, dtype=np.float32), 600).reshape(50, 20, 30)
    for name in ("a.h5", "b.h5"):
        writer = ShardWriter("train", np.arange(50), ["x"] * 50)
        writer.add_fixed("values", values, codec, chunk_samples=8)
        writer.add_fixed("label", np.arange(50))
        writer.publish(tmp_path / name)
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()
    assert (tmp_path / "a.h5").stat().st_size < values.nbytes / 4
    with h5py.File(tmp_path / "a.h5") as file:
        assert file["fields/values"].chunks == (8, 20, 30)
        np.testing.assert_array_equal(file["fields/values"][:], values)
        np.testing.assert_array_equal(file["fields/label"][:], np.arange(50))


def test_what_is_not_finished_leaves_nothing(tmp_path: Path) -> None:
    with ShardBuilder(tmp_path / "a.h5", "train", FIELDS, RIGHT) as shard:
        shard.add(block(0, 9))
    assert list(tmp_path.iterdir()) == []
    shard.close()
    os.fstat(0)  # no other file was closed


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_full_disk_in_the_middle(tmp_path, codec, monkeypatch):
    """Also where HDF5 writes, which would take the process down with it."""
    real = {name: getattr(os, name) for name in ("pwrite", "pwritev")}
    room = [200_000]

    def limited(name: str) -> object:
        def write(descriptor: int, content: object, offset: int) -> int:
            done: int = real[name](descriptor, content, offset)
            room[0] -= done
            if room[0] < 0:
                raise OSError(28, "No space left on device")
            return done

        return write

    for name in real:
        monkeypatch.setattr(os, name, limited(name))
    writer = ShardWriter("train", np.arange(20), ["x"] * 20)
    noise = np.frombuffer(RNG.bytes(20 * 30_000), dtype=np.uint8).reshape(20, 30_000)
    writer.add_fixed("noise", noise, codec, chunk_samples=2)  # type: ignore[arg-type]
    with pytest.raises(StorageFullError, match="bytes free"):
        writer.publish(tmp_path / "a.h5")
    assert list(tmp_path.iterdir()) == []


def test_memory_is_bounded_whatever_the_size(tmp_path: Path) -> None:
    """600 MB through a process that grows by less than 200 MB."""
    code = f"""
import resource
from pathlib import Path
import numpy as np
from headrace.shards.writer import ShardBuilder
from headrace.shards.columns import Block
from headrace.files.manifest import FieldInfo
fields = [FieldInfo(name=n, dtype="uint8", layout="ragged") for n in "ab"]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with ShardBuilder(Path({str(tmp_path)!r}) / "a.h5", "train", fields) as shard:
    for number in range(100):
        content = [bytes([number]) * 3_000_000]
        shard.add(Block(ids=np.array([number]), sources=[b"x"], columns=[content, content],
                        shapes={{}}))
    written = shard.finish()
print(written.num_bytes, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    num_bytes, grown_kib = map(int, done.stdout.split())
    assert num_bytes > 600_000_000
    assert grown_kib < 200 * 1024


def test_a_shard_in_memory_has_the_bytes_of_one_on_disk(tmp_path: Path) -> None:
    """Also when fewer bytes come than were expected."""
    fields = (FieldInfo(name="blob", dtype="uint8", layout="ragged", encoding="png"),)
    blobs = [np.random.default_rng(number).bytes(300_000) for number in range(20)]
    written = []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        for folder in (tmp_path, Path(memory)):
            for count in (20, 13):
                expected = ExpectedSizes(num_samples=20, source_bytes=60, first_bytes=6_000_000)
                with ShardBuilder(folder / f"{count}.h5", "train", fields, expected) as shard:
                    for first in range(0, count, 5):
                        part = range(first, min(first + 5, count))
                        shard.add(
                            Block(
                                ids=np.array(part),
                                sources=[b"%03d" % number for number in part],
                                columns=([blobs[number] for number in part],),
                                shapes={},
                            )
                        )
                    written.append(shard.finish())
                assert file_xxh3_128(folder / f"{count}.h5") == written[-1].xxh3_128
    assert written[:2] == written[2:]


@pytest.mark.parametrize("in_file", [False, True])
def test_bytes_that_change_afterwards_stay_as_they_were(in_file: bool, tmp_path: Path) -> None:
    """Blocks of rows come in memory that is used again."""
    block = bytearray(b"first row")
    with (tmp_path / "file").open("w+b") as file:
        direct = DirectStream(file.fileno(), 0, lambda _: None)
        spool = Spool(tmp_path, 2**20)
        stream = direct if in_file else spool
        for words in (b"first row", b"other row"):
            block[:] = words
            stream.extend([memoryview(block)])
            stream.flush()
        block[:] = b"third row"
        found = file.read() if in_file else b"".join(spool.blocks(5))
        assert found == b"first rowother row"
        assert os.fstat(file.fileno()).st_size == (18 if in_file else 0)
        spool.close()


@pytest.mark.parametrize("first", [FIELDS[:1], FIELDS[-1:]], ids=["ragged", "fixed"])
def test_the_first_field_lies_at_one_place_whatever_the_sizes(first, tmp_path):
    """So it is written before the sizes are known."""
    arrays = ShardArrays(tmp_path, (*first, *(info for info in FIELDS if info not in first)))
    places = set()
    for count, num_bytes in ((1, 1), (60, 70_000), (10**6, 1), (10**9, 10**9)):
        sizes = ExpectedSizes(num_samples=count, source_bytes=num_bytes - 1, first_bytes=num_bytes)
        skeleton = make_skeleton("train", arrays.specs(sizes))
        places.add(skeleton.places[data_key(first[0])])
    arrays.close()
    assert len(places) == 1


def test_what_comes_in_parts_is_read_whole_and_an_early_end_is_told(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"0123456789")
    read = os.pread
    monkeypatch.setattr(os, "pread", lambda file, size, at: read(file, min(size, 3), at))
    with (tmp_path / "file").open("rb") as file:
        assert read_all(file.fileno(), 8, 2) == b"23456789"
        with pytest.raises(ShardError, match="ends 1 bytes too early"):
            read_all(file.fileno(), 9, 2)
