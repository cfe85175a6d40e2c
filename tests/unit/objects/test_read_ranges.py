"""What is read at once from S3."""

from headrace.objects.fsspec_store import grouped, joints
from headrace.objects.protocol import ByteRange, StoredFile

KIB = 2**10


def test_neighbours_are_read_at_once() -> None:
    pieces = [
        ByteRange("a", "1", 0, 10),
        ByteRange("a", "1", 512, 10),
        ByteRange("a", "1", 100 * KIB, 5),
        ByteRange("a", "1", 0, 10),
        ByteRange("b", "1", 600, 4096 * KIB),
        ByteRange("b", "1", 4097 * KIB, 1),
    ]
    found = list(joints(pieces))
    assert [member for _, members in found for member in members] == pieces
    assert [joint for joint, _ in found] == [
        ByteRange("a", "1", 0, 522),
        ByteRange("a", "1", 100 * KIB, 5),
        ByteRange("a", "1", 0, 10),
        ByteRange("b", "1", 600, 4096 * KIB),
        ByteRange("b", "1", 4097 * KIB, 1),
    ]
    assert list(joints([])) == []


def test_batches_are_bounded() -> None:
    files = [StoredFile(str(n), 2**20 * (40 if n == 3 else 1), "1") for n in range(400)]
    found = list(grouped(files, lambda file: file.num_bytes, 256))
    assert [file for batch in found for file in batch] == files
    assert [len(batch) for batch in found][:4] == [3, 1, 32, 32]
    small = [StoredFile(str(n), 1, "1") for n in range(600)]
    assert [len(batch) for batch in grouped(small, lambda file: file.num_bytes, 256)] == [
        256,
        256,
        88,
    ]
