"""The exported digits are scikit-learn's, and a second export touches nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from headrace.data.sampling import seed_at
from headrace.examples import digits
from headrace.examples.digits_model import DigitsClassifier
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


def test_two_epochs_are_enough_to_be_mostly_right():
    digits = load_digits()
    image = torch.from_numpy((digits.images / 16).astype(np.float32))
    label = torch.from_numpy(digits.target.astype(np.int64))
    seed_at(7, 0, 0, 0, "weights")
    model = DigitsClassifier(learning_rate=0.003)
    model.log = lambda *arguments, **options: None
    optimizer = model.configure_optimizers()
    for batch in torch.randperm(1400).split(64) + torch.randperm(1400).split(64):
        optimizer.zero_grad()
        model.training_step({"image": image[batch], "label": label[batch]}, 0).backward()
        optimizer.step()
    scores = model.eval().predict_step({"image": image[1400:]}, 0)
    assert scores.shape == (397, 10)
    assert (scores.argmax(1) == label[1400:]).float().mean() > 0.8
