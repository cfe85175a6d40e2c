"""Arrays that differ in their values only are read many at once, with the same result."""

import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.fields.array import decode_array
from headrace.fields.field_kind import kind_named
from headrace.files.manifest import FieldInfo
from headrace.objects.store import LocalStore
from headrace.packing.blocks import FileSlots, UniformNpyReader
from headrace.packing.fields import FieldColumn, FieldRule
from headrace.packing.sample_table import SampleTable
from headrace.packing.sources.source_store import SourceStore
from headrace.recipe.dataset import PackField


def _npy(array: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def _rule(kept: str = "int32", **options: Any) -> FieldRule:
    info = FieldInfo(name="array", dtype=kept, shape=(3, 2), layout="fixed")
    return FieldRule(
        info=info,
        kind=kind_named("array"),
        decode=True,
        example="a.npy",
        options=PackField(**options),
    )


def _one_by_one(rule: FieldRule, contents: Sequence[bytes]) -> list[bytes]:
    column = FieldColumn()
    for content in contents:
        rule.add("a.npy", decode_array(content), column)
    return [bytes(item) for item in column.items]


def _written(folder: Path, contents: Sequence[bytes]) -> SampleTable:
    folder.mkdir(exist_ok=True)
    for number, content in enumerate(contents):
        (folder / f"{number}.npy").write_bytes(content)
    listed = SourceStore(LocalStore(str(folder))).listed(bool)
    return listed[: len(contents)]


ROWS = [np.arange(6, dtype="<i4").reshape(3, 2) + number for number in range(4)]


def test_equal_headers_give_what_single_arrays_give(tmp_path: Path) -> None:
    contents = [_npy(row) for row in ROWS]
    reader = UniformNpyReader(tmp_path, _rule())
    column = reader.read(_written(tmp_path, contents))
    assert column.items == _one_by_one(_rule(), contents) == [row.tobytes() for row in ROWS]
    assert column.joined == np.stack(ROWS).tobytes()


@pytest.mark.parametrize(
    "contents",
    [
        [_npy(np.zeros((3, 2), ">i4"))] * 2,  # zeros are the same in both orders, the next is not
        [_npy(np.zeros((3, 2), "<i4", order="F")), _npy(np.asfortranarray(ROWS[0]))],
        [_npy(ROWS[0]), _npy(ROWS[1])[:-1]],
        [_npy(ROWS[0]), _npy(ROWS[1].T)],
        [_npy(ROWS[0].T)] * 2,
        [_npy(ROWS[0].astype("int16"))] * 2,
        [_npy(ROWS[0]), _npy(ROWS[0].view("f4"))],
        [_npy(ROWS[0]), b""],
        [b"", _npy(ROWS[0])],
    ],
    ids=[
        "big-endian",
        "fortran",
        "cut",
        "shape",
        "all of another shape",
        "dtype",
        "dtype of the same size",
        "empty",
        "empty first",
    ],
)
def test_anything_else_is_read_one_by_one(tmp_path: Path, contents: list[Any]) -> None:
    reader = UniformNpyReader(tmp_path, _rule())
    assert reader.read(_written(tmp_path, contents)) is None


def test_values_that_are_converted_are_read_one_by_one(tmp_path: Path) -> None:
    """`int8` and `uint8` have equal bytes, but -1 does not fit."""
    rule = _rule("uint8", dtype="uint8")
    contents = [_npy(np.zeros((3, 2), "int8")), _npy(np.full((3, 2), -1, "int8"))]
    assert UniformNpyReader(tmp_path, rule).read(_written(tmp_path, contents)) is None


def test_what_was_learnt_of_one_block_holds_for_the_next_only_if_it_is_uniform(
    tmp_path: Path,
) -> None:
    reader = UniformNpyReader(tmp_path, _rule())

    def read(*contents: bytes) -> list[bytes] | None:
        column = reader.read(_written(tmp_path, contents))
        return None if column is None else [bytes(item) for item in column.items]

    assert [read(_npy(row)) for row in ROWS[:2]] == [[row.tobytes()] for row in ROWS[:2]]
    assert read(_npy(ROWS[0])[:-1]) is None
    assert read(_npy(np.asfortranarray(ROWS[0]))) is None
    assert read(*map(_npy, ROWS)) == [row.tobytes() for row in ROWS]


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
    assert slots.joined[:15] == bytes([0] * 5 + [1] * 5 + [2] * 5)
    assert slots.bodies[:3] == [bytes([number] * 5) for number in range(3)]
    assert slots.read(folder, NAMES[2:], [2])  # the memory is used again
    assert slots.joined[:5] == bytes([2] * 5)


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
