"""Files in memory lie in huge pages where the kernel can, and hold the same bytes anyway."""

from __future__ import annotations

import errno
import mmap
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import xxhash

from headrace.files import checksums
from headrace.files import checksums as huge_pages
from headrace.files.checksums import HUGE_PAGE, BackOff, HugePages, copy_verified
from headrace.shards.region import Region

SIZES = [0, 1, HUGE_PAGE - 1, HUGE_PAGE, HUGE_PAGE + 1, 3 * HUGE_PAGE, 9 * HUGE_PAGE + 5000]


@pytest.fixture(params=["memory", "disk"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    if request.param == "disk":
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        yield Path(memory)


@pytest.mark.parametrize("num_bytes", SIZES)
def test_a_copy_holds_the_same_bytes(folder: Path, tmp_path: Path, num_bytes: int) -> None:
    source, target = tmp_path / "source", folder / "target"
    content = random.Random(num_bytes).randbytes(num_bytes)
    source.write_bytes(content)
    target.write_bytes(b"old content that is longer" * 10)
    assert copy_verified(source, target) == (num_bytes, xxhash.xxh3_128_hexdigest(content))
    assert target.read_bytes() == content


def test_whole_pages_of_a_file_in_memory_are_huge(tmp_path: Path, monkeypatch) -> None:
    """As far as the kernel says that it can: `is_usable` must not claim what is not so."""
    monkeypatch.setattr(checksums, "_BACK_OFF", BackOff(slow_s=60))
    source = tmp_path / "source"
    source.write_bytes(random.Random(0).randbytes(4 * HUGE_PAGE + 100))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        probe = os.open(Path(memory) / "probe", os.O_RDWR | os.O_CREAT)
        pages = HugePages(probe)
        pages.prepare(0)
        os.close(probe)
        copy_verified(source, Path(memory) / "target")
        assert huge_bytes(Path(memory) / "target") == (4 * HUGE_PAGE if pages.is_usable else 0)


def test_a_file_that_becomes_shorter_is_copied_as_far_as_it_goes(folder, tmp_path):
    """Room was made for what has gone; the copy does not claim it."""
    source, target = tmp_path / "source", folder / "target"
    content = random.Random(1).randbytes(4 * HUGE_PAGE)
    source.write_bytes(content)
    left_bytes = HUGE_PAGE + 4096

    def cut(num_bytes: int) -> None:
        os.truncate(source, left_bytes)

    copied = copy_verified(source, target, cut)
    assert copied == (left_bytes, xxhash.xxh3_128_hexdigest(content[:left_bytes]))
    assert target.read_bytes() == content[:left_bytes]


def test_where_it_does_not_work_it_is_not_tried_again(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w+b") as file:
        pages = HugePages(file.fileno())
        pages.prepare(0)
        if not pages.is_usable:  # true of most file systems on disks
            size = os.fstat(file.fileno()).st_size
            pages.prepare(HUGE_PAGE)
            assert os.fstat(file.fileno()).st_size == size


def test_what_fails_for_want_of_memory_is_tried_again_later_and_later(tmp_path, monkeypatch):
    """A file that was unlucky once was left in small pages to its end."""
    tried: list[int] = []

    def lacking(window: object, file: int, start: int, num_pages: int) -> int:
        tried.append(start // HUGE_PAGE)
        return 0 if len(tried) == 4 else errno.ENOMEM

    monkeypatch.setattr(huge_pages._Window, "collapse", lacking)
    with (tmp_path / "file").open("w+b") as file:
        pages = HugePages(file.fileno())
        for number in range(100):
            pages.prepare(number * HUGE_PAGE)
        assert pages.is_usable
    assert tried == [0, 9, 26, 59, 60, 93]


def test_slow_pages_are_done_without_for_a_while_and_then_tried_one_by_one() -> None:
    back_off = BackOff(slow_s=0.001)
    assert back_off.grants(8) == 8
    back_off.took(8, seconds=0.007, failed=False)
    assert back_off.grants(8) == 8
    back_off.took(8, seconds=0.009, failed=False)
    assert [back_off.grants(4) for _ in range(3)] == [0, 0, 1]
    back_off.took(1, seconds=0.002, failed=False)
    assert [back_off.grants(8) for _ in range(3)] == [0, 0, 1]
    for _ in range(2):
        back_off.took(1, seconds=0.0001, failed=False)
    assert back_off.grants(8) == 8


def huge_bytes(path: Path) -> int:
    """Bytes of a file that are mapped as huge pages, as reading maps it."""
    region = Region([path.stat().st_size])
    content = region.map(0, path)
    content[:: mmap.PAGESIZE].sum()
    lines = Path("/proc/self/smaps").read_text().splitlines()
    mapped = next(number for number, line in enumerate(lines) if str(path) in line)
    (found,) = [
        int(line.split()[1]) * 1024
        for line in lines[mapped : mapped + 30]
        if line.startswith("ShmemPmdMapped:")
    ][:1]
    return found
