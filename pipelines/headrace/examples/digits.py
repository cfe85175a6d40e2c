"""The handwritten digits that come with scikit-learn, as PNG files in class folders."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.recipe.home import home

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_NUM_FILES = 1797
_MAXIMUM = 16  # the data set's pixels are 0..16


def default_folder() -> Path:
    """Where the recipe `digits` looks for the samples."""
    return Path(os.environ.get("HEADRACE_DIGITS") or home() / "examples" / "digits")


def export_digits(folder: Path) -> int:
    """Write 1,797 grey PNG files of 8 x 8 pixels to `folder/<digit>/`; gives their number.

    Pixels are scaled from 0..16 to 0..255. A second call writes only what is missing, so that
    files keep their times and a dataset packed from them is found again.
    """
    if sum(1 for _ in folder.glob("[0-9]/digit-*.png")) == _NUM_FILES:
        return _NUM_FILES
    images, labels = _load()
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        path = folder / str(label) / f"digit-{number:04d}.png"
        if not path.exists():
            _write(path, _png(image))
    return len(images)


def _load() -> tuple[NDArray[np.uint8], list[int]]:
    import numpy as np  # what these import would take a second of every command
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.rint(digits.images * (255 / _MAXIMUM)).astype(np.uint8)
    return images, [int(label) for label in digits.target]


def _png(image: NDArray[np.uint8]) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, format="PNG")
    return buffer.getvalue()


def _write(path: Path, content: bytes) -> None:
    """Write a whole file or none; without an fsync each, which would take most of the time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error
