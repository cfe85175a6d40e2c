"""Samples that differ in shape become lists or are filled up; others must agree."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headrace.data.transforms import collate, varies
from headrace.errors import DataError
from headrace.files.manifest import FieldInfo


def names() -> list[str]:
    return ["a", "b", "c"]


def test_which_fields_vary():
    ragged = {"name": "x", "dtype": "uint8", "layout": "ragged"}
    assert varies(FieldInfo(**ragged))
    assert varies(FieldInfo(**ragged, encoding="text"))
    assert not varies(FieldInfo(**ragged, encoding="png"))
    assert not varies(FieldInfo(name="x", dtype="uint8", layout="fixed"))


def test_arrays_of_varying_length_are_lists_or_filled_up():
    items = [np.full(size, size, dtype=np.float32) for size in (2, 0, 3)]
    listed = collate("x", items, names, varying=True, pad=None)["x"]
    assert [each.tolist() for each in listed] == [[2, 2], [], [3, 3, 3]]
    filled = collate("x", items, names, varying=True, pad=-1.0)
    assert filled["x"].tolist() == [[2, 2, -1], [-1, -1, -1], [3, 3, 3]]
    assert filled["x"].dtype == torch.float32
    assert filled["x_shape"].tolist() == [[2], [0], [3]]


def test_every_axis_is_filled_up():
    items = [np.ones((1, 3), dtype=np.int64), np.ones((2, 1), dtype=np.int64)]
    filled = collate("x", items, names, varying=True, pad=0)
    assert filled["x"].tolist() == [[[1, 1, 1], [0, 0, 0]], [[1, 0, 0], [1, 0, 0]]]
    assert filled["x_shape"].tolist() == [[1, 3], [2, 1]]


def test_others_are_stacked_or_refused():
    whole = collate("x", [np.arange(2), np.arange(2)], names, varying=False, pad=0)
    assert whole["x"].tolist() == [[0, 1], [0, 1]]
    assert collate("x", [1, 2], names, varying=False, pad=None)["x"].tolist() == [1, 2]
    assert collate("x", ["one", "two"], names, varying=True, pad=0) == {"x": ["one", "two"]}
    with pytest.raises(DataError, match=r"int64 \(2,\) \(a\) and int64 \(3,\) \(b\)"):
        collate("x", [np.arange(2), np.arange(3)], names, varying=False, pad=0)
    with pytest.raises(DataError, match=r"\(2,\) \(a\) and int64 \(1, 1\) \(c\)"):
        collate("x", [np.arange(2)] * 2 + [np.ones((1, 1), np.int64)], names, varying=True, pad=0)
