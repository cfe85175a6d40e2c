"""Checksums and checksummed copies."""

import errno
import os
from pathlib import Path

import pytest
import xxhash

from headrace.files import checksums


@pytest.mark.parametrize("num_bytes", [0, 1, checksums.CHUNK_BYTES, checksums.CHUNK_BYTES + 7])
def test_copy_gives_same_bytes_and_checksum(tmp_path: Path, num_bytes: int) -> None:
    content = os.urandom(num_bytes)
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(content)
    target.write_bytes(b"old content that is longer" * 10)
    copied = checksums.copy_verified(source, target)
    assert copied == (num_bytes, xxhash.xxh3_128(content).hexdigest())
    assert target.read_bytes() == content
    assert checksums.file_xxh3_128(source) == copied[1]


def test_tick_counts_every_byte(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(checksums.CHUNK_BYTES + 3))
    ticks: list[int] = []
    checksums.file_xxh3_128(source, ticks.append)
    assert ticks == [checksums.CHUNK_BYTES, 3]


def test_failed_copy_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"x" * 100)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        checksums.copy_verified(source, target)
    assert not target.exists()


def test_progress_of_a_copy_can_stop_it(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(bytes(3 * checksums.CHUNK_BYTES))
    ticks: list[int] = []

    def stop(num_bytes: int) -> None:
        ticks.append(num_bytes)
        if len(ticks) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        checksums.copy_verified(source, target, stop)
    assert ticks == [checksums.CHUNK_BYTES] * 2
    assert not target.exists()


def test_a_file_that_becomes_shorter_is_copied_as_far_as_it_goes(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    content = os.urandom(4 * checksums.CHUNK_BYTES)
    source.write_bytes(content)
    left = content[: checksums.CHUNK_BYTES + 4096]
    copied = checksums.copy_verified(source, target, lambda _: os.truncate(source, len(left)))
    assert copied == (len(left), xxhash.xxh3_128_hexdigest(left))
    assert target.read_bytes() == left
