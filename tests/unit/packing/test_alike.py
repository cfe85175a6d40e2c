"""Arrays that differ in their values only are converted at once, with the same result."""

import io
from typing import Any

import numpy as np
import pytest

from headrace.packing.alike import Alike
from headrace.packing.convert import Column, Converter
from headrace.packing.decode import decode_array
from headrace.packing.fields import FieldRule
from headrace.packing.samples import Unreadable
from headrace.recipe.dataset import PackField
from headrace.storage.manifest import FieldInfo


def _npy(array: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def _rule(kept: str = "int32", **options: Any) -> FieldRule:
    info = FieldInfo(name="array", dtype=kept, shape=(3, 2), layout="fixed")
    return FieldRule(
        info=info, kind="array", decode=True, example="a.npy", options=PackField(**options)
    )


def _one_by_one(rule: FieldRule, contents: list[bytes]) -> list[bytes]:
    column = Column()
    for content in contents:
        Converter(rule).add("a.npy", decode_array(content), column)
    return [bytes(item) for item in column.items]


ROWS = [np.arange(6, dtype="<i4").reshape(3, 2) + number for number in range(4)]


def test_equal_headers_give_what_single_arrays_give() -> None:
    contents = [_npy(row) for row in ROWS]
    column = Alike(Converter(_rule())).column(contents)
    assert column is not None
    assert column.items == _one_by_one(_rule(), contents) == [row.tobytes() for row in ROWS]


@pytest.mark.parametrize(
    "contents",
    [
        [_npy(np.zeros((3, 2), ">i4"))] * 2,  # zeros are the same in both orders, the next is not
        [_npy(np.zeros((3, 2), "<i4", order="F")), _npy(np.asfortranarray(ROWS[0]))],
        [_npy(ROWS[0]), _npy(ROWS[1])[:-1]],
        [_npy(ROWS[0]), _npy(ROWS[1].T)],
        [_npy(ROWS[0].T)] * 2,
        [_npy(ROWS[0].astype("int16"))] * 2,
        [_npy(ROWS[0]), b""],
        [b"", _npy(ROWS[0])],
        [_npy(ROWS[0]), Unreadable("b.npy", "it may not be read")],
    ],
    ids=[
        "big-endian",
        "fortran",
        "cut",
        "shape",
        "all of another shape",
        "dtype",
        "empty",
        "empty first",
        "unreadable",
    ],
)
def test_anything_else_is_looked_at_one_by_one(contents: list[Any]) -> None:
    assert Alike(Converter(_rule())).column(contents) is None


def test_values_that_are_converted_are_looked_at_one_by_one() -> None:
    """`int8` and `uint8` have equal bytes, but -1 does not fit."""
    rule = _rule("uint8", dtype="uint8")
    contents = [_npy(np.zeros((3, 2), "int8")), _npy(np.full((3, 2), -1, "int8"))]
    assert Alike(Converter(rule)).column(contents) is None


def test_what_was_learnt_of_one_block_holds_for_the_next_only_if_it_is_alike() -> None:
    taken = Alike(Converter(_rule()))
    one, two = (taken.column([_npy(row)]) for row in ROWS[:2])
    assert one is not None
    assert two is not None
    assert one.items + two.items == [row.tobytes() for row in ROWS[:2]]
    assert taken.column([_npy(ROWS[0])[:-1]]) is None
    assert taken.column([_npy(np.asfortranarray(ROWS[0]))]) is None
    last = taken.column([_npy(row) for row in ROWS])
    assert last is not None
    assert last.items == [row.tobytes() for row in ROWS]
