"""Small picture sets for tests, the same bytes each time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def write_class_folders(
    folder: Path,
    *,
    classes: tuple[str, ...] = ("bright", "dark", "middle"),
    per_class: int = 20,
    shape: tuple[int, ...] = (8, 8),
) -> Path:
    """Write PNG files into one folder a class; classes differ in brightness, so they can be learnt.

    Args:
        folder: Made when it is not there; gets `<class>/<class>-000.png`, ….
        classes: Names of the class folders.
        per_class: Files a class.
        shape: `(height, width)` for grey or `(height, width, 3)` for colour.

    Returns:
        `folder`.
    """
    random = np.random.default_rng(0)
    for number, name in enumerate(classes):
        (folder / name).mkdir(parents=True, exist_ok=True)
        centre = 255 * (number + 0.5) / len(classes)
        for index in range(per_class):
            pixels = np.clip(random.normal(centre, 20, shape), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{name}-{index:03d}.png")
    return folder
