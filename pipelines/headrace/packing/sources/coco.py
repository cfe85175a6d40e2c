"""COCO: files of JSON with boxes, masks, key points or captions of many images."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headrace.packing.sources.annotations import Annotated, AnnotatedSource
from headrace.packing.sources.line_format import unique_keys

_NAMES = {"bbox": "boxes", "category_id": "labels", "segmentation": "masks", "caption": "captions"}
_ROUNDED = 0.01  # pixels; corners are written with two digits
_OF_IMAGES = {"id": "image_id", "width": "width", "height": "height", "split": "split"}


class CocoSource(AnnotatedSource):
    """Images with annotations of COCO."""

    form = "coco"
    files = "**/*.json"

    def annotated(self, path: str, content: bytes) -> Iterator[Annotated]:
        found = json.loads(content, object_pairs_hook=unique_keys, parse_constant=_refuse)
        if not isinstance(found, dict) or not {"images", "annotations"} <= found.keys():
            raise ValueError("it is not an object with the keys 'images' and 'annotations'")
        images, objects = _by_id("images", found["images"]), found["annotations"]
        categories = _by_id("categories", found.get("categories", []))
        of: dict[Any, list[Mapping[str, Any]]] = {key: [] for key in images}
        for each in objects:
            if each["image_id"] not in of:
                raise ValueError(f"an annotation is of the unknown image {each['image_id']!r}")
            if each.get("category_id") not in {*categories, None}:
                raise ValueError(
                    f"an annotation is of the unknown category {each['category_id']!r}"
                )
            of[each["image_id"]].append(each)
        keys = dict.fromkeys(key for each in objects for key in each)
        for number, image in images.items():
            row = {name: image[key] for key, name in _OF_IMAGES.items() if key in image}
            self.left_out |= image.keys() - {*_OF_IMAGES, "file_name"}
            for key in keys.keys() - {"id", "image_id"}:
                row[_NAMES.get(key, key)] = [each.get(key) for each in of[number]]
            if "category_id" in keys:
                row["categories"] = [categories[each["category_id"]]["name"] for each in of[number]]
            yield image["file_name"], row

    def is_inside(self, box: Sequence[float], row: Mapping[str, Any]) -> bool:
        left, top, width, height = box
        right, bottom = left + width, top + height
        most = row.get("width", right), row.get("height", bottom)
        fits = right <= most[0] + _ROUNDED and bottom <= most[1] + _ROUNDED
        return 0 <= left < right and 0 <= top < bottom and fits


def _by_id(what: str, entries: Sequence[Mapping[str, Any]]) -> dict[Any, Mapping[str, Any]]:
    """Return entries by their ids; raise a `ValueError` if two have the same."""
    found = {each["id"]: each for each in entries}
    if len(found) < len(entries):
        (twice, _), *_ = Counter(each["id"] for each in entries).most_common(1)
        raise ValueError(f"two of its {what} have the id {twice!r}")
    return found


def _refuse(text: str) -> None:
    raise ValueError(f"{text} is not a number of JSON")
