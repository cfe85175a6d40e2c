"""YOLO: a text file beside each image; a line has a class and a box, as shares of the image."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headrace.packing.sources.annotations import Annotated, AnnotatedSource

_ROUNDED = 1e-5  # shares are written with six digits


class YoloSource(AnnotatedSource):
    """Images with boxes of YOLO: `x`, `y` of the centre, width and height."""

    form = "yolo"
    files = "**/*.txt"
    others = ("classes.txt", "labels.txt", "train.txt", "val.txt", "test.txt")
    without = {"boxes": [], "labels": []}

    def annotated(self, path: str, content: bytes) -> Iterator[Annotated]:
        lines = [line.split() for line in content.decode("utf-8-sig").splitlines() if line.strip()]
        for number, cells in enumerate(lines, 1):
            if len(cells) != 5:
                raise ValueError(
                    f"box {number} has {len(cells)} values, not 5; outlines and key points are "
                    "not read"
                )
        boxes = [[float(cell) for cell in cells[1:]] for cells in lines]
        name = path.rpartition("/")[2].rpartition(".")[0]
        yield name, {"boxes": boxes, "labels": [int(cells[0]) for cells in lines]}

    def is_inside(self, box: Sequence[float], row: Mapping[str, Any]) -> bool:
        x, y, width, height = box
        return all(
            size > 0 and size / 2 - _ROUNDED <= centre <= 1 + _ROUNDED - size / 2
            for centre, size in ((x, width), (y, height))
        )
