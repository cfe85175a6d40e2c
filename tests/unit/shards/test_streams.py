"""Bytes on their way into a shard: kept as they were given, in memory or in a file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.errors import ShardError
from headrace.shards.streams import Stream, read_all


@pytest.mark.parametrize("in_file", [False, True])
def test_bytes_that_change_afterwards_stay_as_they_were(in_file: bool, tmp_path: Path):
    """Blocks of rows come in memory that is used again."""
    block = bytearray(b"first row")
    stream = Stream(tmp_path)
    with (tmp_path / "file").open("w+b") as file:
        if in_file:
            stream.direct(file.fileno(), 0, None)
        for words in (b"first row", b"other row"):
            block[:] = words
            stream.extend_now(memoryview(block))
        block[:] = b"third row"
        assert b"".join(stream.blocks(5)) == b"first rowother row"
        assert os.fstat(file.fileno()).st_size == (18 if in_file else 0)


def test_what_comes_in_parts_is_read_whole_and_an_early_end_is_told(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"0123456789")
    read = os.pread
    monkeypatch.setattr(os, "pread", lambda file, size, at: read(file, min(size, 3), at))
    with (tmp_path / "file").open("rb") as file:
        assert read_all(file.fileno(), 8, 2) == b"23456789"
        with pytest.raises(ShardError, match="ends 1 bytes too early"):
            read_all(file.fileno(), 9, 2)
