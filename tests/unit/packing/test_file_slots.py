"""Files of one size that are read many at once: all as they are, or none."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.packing.blocks import FileSlots

HEADER = b"head"
NAMES = [f"c/{number}" for number in range(3)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "c").mkdir()
    for number, name in enumerate(NAMES):
        (tmp_path / name).write_bytes(HEADER + bytes([number]) * 5)
        os.utime(tmp_path / name, ns=(0, number))
    return tmp_path


def test_bodies_lie_one_after_the_other(folder: Path) -> None:
    slots = FileSlots(HEADER, 5, 4)
    assert slots.read(folder, NAMES, [0, 1, 2])
    assert slots.joined(3) == bytes([0] * 5 + [1] * 5 + [2] * 5)
    assert slots.bodies(3) == [bytes([number] * 5) for number in range(3)]
    assert slots.read(folder, NAMES[2:], [2])  # the memory is used again
    assert slots.joined(1) == bytes([2] * 5)


def written(content: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(content)
        os.utime(path, ns=(0, 1))

    return write


@pytest.mark.parametrize(
    "change",
    [
        Path.unlink,
        os.utime,
        written(HEADER + bytes(6)),
        written(HEADER + bytes(4)),
        written(HEADER[:3] + bytes(6)),
        lambda path: (path.unlink(), path.mkdir()),
    ],
    ids=["gone", "written to", "longer", "shorter", "header", "folder"],
)
def test_one_file_that_is_not_as_it_was_listed(
    folder: Path, tmp_path: Path, change: Callable[[Path], object]
) -> None:
    change(tmp_path / "c/1")
    num_open = len(os.listdir("/proc/self/fd"))
    assert not FileSlots(HEADER, 5, 3).read(folder, NAMES, [0, 1, 2])
    assert len(os.listdir("/proc/self/fd")) == num_open
