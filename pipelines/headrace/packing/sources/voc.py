"""Pascal VOC: a file of XML beside each image, with the boxes and names of its objects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any
from xml.etree import ElementTree

from headrace.packing.sources.annotations import Annotated, AnnotatedSource

_EDGES = ("xmin", "ymin", "xmax", "ymax")
_FLAGS = ("difficult", "truncated", "occluded")
_READ = {"filename", "size", "object", "name", "bndbox", *_FLAGS}


class VocSource(AnnotatedSource):
    """Images with annotations of Pascal VOC."""

    form = "voc"
    files = "**/*.xml"

    def annotated(self, path: str, content: bytes) -> Iterator[Annotated]:
        try:
            root = ElementTree.fromstring(content)
        except ElementTree.ParseError as error:
            raise ValueError(f"it is not XML: {error}") from error
        objects, name = root.findall("object"), root.findtext("filename")
        self.left_out |= {part.tag for part in (*root, *chain(*objects))} - _READ
        row: dict[str, Any] = {
            key: int(size) for key in ("width", "height") if (size := root.findtext(f"size/{key}"))
        }
        row["boxes"] = [[_number(each, f"bndbox/{edge}") for edge in _EDGES] for each in objects]
        row["categories"] = [each.findtext("name") for each in objects]
        for key in _FLAGS:
            found = [each.findtext(key) for each in objects]
            row[key] = [None if text is None else int(text) for text in found]
        yield name or path.rpartition("/")[2].rpartition(".")[0], row

    def is_inside(self, box: Sequence[float], row: Mapping[str, Any]) -> bool:
        left, top, right, bottom = box
        fits = right <= row.get("width", right) and bottom <= row.get("height", bottom)
        return 0 <= left < right and 0 <= top < bottom and fits


def _number(item: ElementTree.Element, place: str) -> float:
    text = item.findtext(place)
    if text is None:
        raise ValueError(f"object '{item.findtext('name')}' has no {place}")
    return float(text)
