"""Address space for shards, on any processor."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.shards import region


@pytest.mark.parametrize("page_bytes", [2**12, 2**14, 2**16], ids=["x86", "ARM", "POWER"])
def test_slots_begin_at_pages_of_each_processor(page_bytes: int):
    assert region._SLOT_BYTES % page_bytes == 0


def test_a_reservation_takes_no_memory(tmp_path: Path):
    """Whatever MAP_NORESERVE is: 0x4000 on x86 and ARM, 0x40 on POWER."""
    file = tmp_path / "shard"
    file.write_bytes(b"abc")
    place = region.Region([3, 16 * 2**40])
    assert bytes(place.map(0, file)) == b"abc"
