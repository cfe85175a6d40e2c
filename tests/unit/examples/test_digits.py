"""The exported digits are scikit-learn's, and a second export touches nothing."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from headrace.examples import digits
from support.small_disk import small_disk


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("digits") / "made"
    assert digits.export_digits(path) == 1797
    return path


def times(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*.png")}


def test_pixels_and_classes_are_those_of_scikit_learn(folder: Path) -> None:
    from sklearn.datasets import load_digits

    expected = load_digits()
    files = sorted(folder.rglob("*.png"), key=lambda path: path.name)
    assert [int(file.parent.name) for file in files] == expected.target.tolist()
    for file, image in zip(files[::97], expected.images[::97], strict=True):
        with Image.open(file) as opened:
            assert opened.mode == "L"
            pixels = np.asarray(opened)
        np.testing.assert_array_equal(pixels, np.rint(image * 255 / 16))


def test_second_export_touches_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = times(folder)
    monkeypatch.setattr(digits, "_load", lambda: pytest.fail("loaded again"))
    assert digits.export_digits(folder) == 1797
    assert times(folder) == before


def test_export_completes_what_is_missing(folder: Path) -> None:
    lost = folder / "0" / "digit-0000.png"
    content = lost.read_bytes()
    before = times(folder)
    lost.unlink()
    assert digits.export_digits(folder) == 1797
    assert lost.read_bytes() == content
    after = times(folder)
    assert {k: v for k, v in after.items() if k != str(lost)} == {
        k: v for k, v in before.items() if k != str(lost)
    }


def test_a_full_disk_is_told_by_the_file_and_leaves_no_part(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "64k") as disk:
        with pytest.raises(OSError, match=rf"{disk}/\d/digit-"):
            digits.export_digits(disk)
        assert list(disk.rglob(".*")) == []
        assert all(file.stat().st_size for file in disk.rglob("*.png"))
