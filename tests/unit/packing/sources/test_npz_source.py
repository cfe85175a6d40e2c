"""Arrays of a `.npz` file whose rows are samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.errors import HeadraceError
from support.packed_values import packed_values
from support.source_files import npz, read_all, spec_of

PIXELS = np.arange(24, dtype=np.uint8).reshape(4, 3, 2)


def write_npz(folder: Path, **arrays: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "a.npz").write_bytes(npz(**arrays))
    return folder / "a.npz"


def test_arrays_are_packed_to_the_value(tmp_path: Path) -> None:
    arrays = {"x": PIXELS, "y": np.array([3, -1, 2**62, 0]), "w": np.array([0.5, 1, 2, 4], ">f4")}
    source = write_npz(tmp_path, **arrays, size=np.array(7))
    found = packed_values(source, tmp_path / "out", {"label_field": "y"})
    np.testing.assert_array_equal(np.stack(found.columns["x"]), PIXELS)
    assert found.columns["w"] == [0.5, 1, 2, 4]
    assert found.columns["label"] == ["3", "-1", str(2**62), "0"]
    assert found.types["x"] == "uint8"
    source = write_npz(tmp_path / "uneven", x=PIXELS, y=np.arange(3))
    with pytest.raises(HeadraceError, match="different numbers of rows: x 4, y 3"):
        read_all(spec_of(source))
    assert [each["y"] for each in read_all(spec_of(source, fields={"y": "y"}))[1]] == [0, 1, 2]


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    path = write_npz(tmp_path, x=PIXELS)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(HeadraceError, match=r"a\.npz cannot be read as a npz file"):
        read_all(spec_of(path))
    path.write_bytes(npz(x=np.array([{}], dtype=object)))
    with pytest.raises(HeadraceError, match="dtype object is neither"):
        read_all(spec_of(path))
