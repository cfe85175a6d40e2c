"""Images with annotations of COCO, Pascal VOC and YOLO: boxes, masks and captions as fields."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.errors import HeadraceError
from support.packed_values import PackedValues, packed_values
from support.source_files import png

RLE = {"counts": "abc", "size": [2, 3]}
IMAGES = [
    {"id": 7, "file_name": "a.png", "width": 3, "height": 2, "license": 1},
    {"id": 2**60, "file_name": "ü b.png", "width": 3, "height": 2},
]
OBJECTS = [
    {"id": 1, "image_id": 7, "category_id": 90, "bbox": [0, 0.5, 2, 1], "area": 2,
     "segmentation": [[0, 0, 2, 1]], "iscrowd": 0},
    {"id": 2, "image_id": 7, "category_id": 3, "bbox": [0, 0, 9, 1], "area": 9.5,
     "segmentation": RLE, "iscrowd": 1},
]  # fmt: skip
CATEGORIES = [{"id": 3, "name": "cat"}, {"id": 90, "name": "dög"}]
TWO = {"a.png": png(1), "ü b.png": png(2)}


def coco(images: Any = IMAGES, annotations: Any = OBJECTS, categories: Any = CATEGORIES) -> bytes:
    found = {"images": images, "annotations": annotations, "categories": categories}
    return json.dumps(found).encode()


def voc(name: str, *boxes: tuple[str, str], size: str = "3") -> bytes:
    objects = "".join(
        f"<object><name>{kind}</name><difficult>0</difficult><bndbox>{box}</bndbox></object>"
        for kind, box in boxes
    )
    return (
        f"<annotation><filename>{name}</filename><size><width>{size}</width><height>2</height>"
        f"</size>{objects}</annotation>"
    ).encode()


BOX = "<xmin>1</xmin><ymin>1</ymin><xmax>3</xmax><ymax>2</ymax>"


def write(folder: Path, files: Mapping[str, bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def packed(tmp_path: Path, files: Mapping[str, bytes], **dataset: Any) -> PackedValues:
    return packed_values(write(tmp_path / "in", files), tmp_path, dataset)


def test_coco_is_packed_to_the_value(tmp_path: Path) -> None:
    captions = [{"id": n, "image_id": 7, "caption": text} for n, text in ((1, "one"), (9, "2"))]
    files = {**TWO, "notes/a.json": coco(), "notes/c.json": coco(IMAGES, captions, [])}
    found = packed(tmp_path, files, format="coco")
    assert found.paths == ("a.png", "ü b.png")
    columns = found.columns
    np.testing.assert_array_equal(columns["boxes"][0], [[0, 0.5, 2, 1], [0, 0, 9, 1]])
    assert columns["boxes"][1].shape == (0, 4)
    assert [each.tolist() for each in columns["labels"]] == [[90, 3], []]
    assert columns["labels"][1].dtype == np.int64
    assert [each.tolist() for each in columns["iscrowd"]] == [[0, 1], []]
    assert [each.tolist() for each in columns["area"]] == [[2, 9.5], []]
    assert [json.loads(each) for each in columns["masks"]] == [[[[0, 0, 2, 1]], RLE], []]
    assert [json.loads(each) for each in columns["categories"]] == [["dög", "cat"], []]
    assert [json.loads(each) for each in columns["captions"]] == [["one", "2"], []]
    assert columns["image_id"] == [7, 2**60]
    assert {"license", "id"}.isdisjoint(columns)


def test_files_of_splits_find_images_of_their_own(tmp_path: Path) -> None:
    image = [{"id": 1, "file_name": "1.png"}]
    boxes = [[{"id": 1, "image_id": 1, "category_id": n, "bbox": [0, 0, 1, 1]}] for n in (1, 2)]
    kinds = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]
    files = {
        "train2017/1.png": png(1),
        "val2017/1.png": png(2),
        "annotations/instances_train2017.json": coco(image, boxes[0], kinds),
        "annotations/instances_val2017.json": coco(image, boxes[1], kinds),
    }
    found = packed(tmp_path, files, format="coco", splits={"train": 0.8, "val": 0.1, "test": 0.1})
    assert found.paths == ("train2017/1.png", "val2017/1.png")
    assert [each.tolist() for each in found.columns["labels"]] == [[1], [2]]
    alone = {name: content for name, content in files.items() if name != "val2017/1.png"}
    with pytest.raises(HeadraceError, match=r"1 of 2 rows in .* have no file: 1\.png"):
        packed(tmp_path / "alone", alone, format="coco")


def test_voc_and_yolo_are_packed_to_the_value(tmp_path: Path) -> None:
    files = {"JPEGImages/a.png": png(1), "JPEGImages/b.png": png(2)}
    named = {
        "Annotations/a.xml": voc("a.png", ("cat", BOX), ("dög", BOX)),
        "Annotations/b.xml": voc("b.png"),
    }
    found = packed(tmp_path / "voc", files | named, format="voc").columns
    assert [each.tolist() for each in found["boxes"]] == [[[1, 1, 3, 2]] * 2, []]
    assert [json.loads(each) for each in found["categories"]] == [["cat", "dög"], []]
    assert [each.tolist() for each in found["difficult"]] == [[0, 0], []]
    assert found["width"] == [3, 3]
    shapes = {
        "images/train/a.png": png(1),
        "images/val/a.png": png(2),
        "labels/train/a.txt": b"1 .5 0.5 0.25 1\r\n\n0 .5 .5 1 1\n",
        "classes.txt": b"cat\ndog\n",
    }
    found = packed(tmp_path / "yolo", shapes, format="yolo", split_folders=False).columns
    assert [each.tolist() for each in found["labels"]] == [[1, 0], []]
    assert found["boxes"][0].tolist() == [[0.5, 0.5, 0.25, 1], [0.5, 0.5, 1, 1]]
    assert found["boxes"][1].shape == (0, 4)


def test_what_is_odd_is_noted(packs: Any, tmp_path: Path) -> None:
    def notes(source: Path, **keys: Any) -> list[str]:
        found = packs(source, {"splits": {"train": 0.5, "test": 0.5}, **keys})["notes"]
        return [each for each in found if "earlier dataset" not in each]  # of the same samples

    source = write(tmp_path / "coco", {**TWO, "a.json": coco()})
    assert notes(source, format="coco") == [
        "1 images with boxes without an area, or that leave the image: a.png",
        "keys of annotations left out: license",
    ]
    xml = voc("a.png", ("cat", f"{BOX}</bndbox><pose>left</pose><bndbox>")), voc("ü b.png")
    source = write(tmp_path / "voc", {**TWO, "a.xml": xml[0], "b.xml": xml[1]})
    assert notes(source, format="voc") == ["keys of annotations left out: pose"]
    source = write(tmp_path / "yolo", {**TWO, "a.txt": b"1 .9 .5 .5 .5"})
    assert notes(source, format="yolo") == [
        "1 images with boxes without an area, or that leave the image: a.png",
        "1 images that no annotation names, so that they have no box: ü b.png",
    ]
    source = write(tmp_path / "plain", {**TWO, "a.json": coco()})
    (note, _) = notes(source, labels="none")
    assert "dataset.format (coco, voc, yolo)" in note


def changed(entries: Any, **values: Any) -> list[Any]:
    return [{**entries[0], **values}, *entries[1:]]


XML = voc("a.png", ("cat", BOX))


@pytest.mark.parametrize(
    ("form", "content", "message"),
    [
        ("coco", b"{", "format 'coco': Expecting"),
        ("coco", b"[]", "not an object with the keys 'images' and 'annotations'"),
        ("coco", b'{"images": [], "images": []}', "'images' is there twice"),
        ("coco", coco([*IMAGES, IMAGES[0]]), "two of its images have the id 7"),
        ("coco", coco(changed(IMAGES, id=8)), "unknown image 7"),
        ("coco", coco(categories=CATEGORIES[:1]), "unknown category 90"),
        ("coco", coco(annotations=changed(OBJECTS, bbox=[1, 2, 3])), r"\[1, 2, 3\] is not four"),
        ("coco", coco(annotations=changed(OBJECTS, bbox=["1", 2, 3, 4])), "is not four numbers"),
        ("coco", coco(annotations=changed(OBJECTS, bbox=None)), "NoneType"),
        ("coco", coco().replace(b"0.5", b"NaN"), "NaN is not a number of JSON"),
        ("coco", coco(changed(IMAGES, file_name="c.png")), r"no file: c\.png|1 of 2 files"),
        ("coco", coco(IMAGES[:1]), "1 of 2 files have no row"),
        ("coco", coco([*IMAGES, {"id": 5, "file_name": "x/../../a.png"}]), "not below the source"),
        (
            "coco",
            coco(annotations=[], images=[*IMAGES, {"id": 5, "file_name": "a.png"}]),
            "'image_id' of 'a.png' is there twice",
        ),
        ("voc", b"<a", "it is not XML"),
        ("voc", XML.replace(b"<xmin>1</xmin>", b""), "object 'cat' has no bndbox/xmin"),
        ("voc", XML.replace(b">3</xmax>", b">nan</xmax>"), "is not four numbers"),
        ("voc", XML.replace(b"a.png", b"c.png"), "2 of 2 files have no row"),
        ("yolo", b"1 .5 .5 .5", "box 1 has 4 values, not 5"),
        ("yolo", b"1 .1 .1 .2 .2 .3 .3", "7 values, not 5; outlines and key points are not read"),
        ("yolo", b"x .5 .5 .5 .5", "invalid literal"),
        ("yolo", b"1 inf .5 .5 .5", "is not four numbers"),
        ("yolo", b"99999999999999999999 .5 .5 .5 .5", "not a whole number of 64 bits"),
        ("yolo", b"\xff", "can't decode"),
    ],
)
def test_what_is_malformed_is_named(
    tmp_path: Path, form: str, content: bytes, message: str
) -> None:
    ending = {"coco": "json", "voc": "xml", "yolo": "txt"}[form]
    with pytest.raises(HeadraceError, match=message) as caught:
        packed(tmp_path, {**TWO, f"a.{ending}": content}, format=form)
    assert not caught.value.failure_class.is_retried


def test_images_of_one_name_are_not_mixed_up(tmp_path: Path) -> None:
    files = {"x/a.png": png(1), "y/a.png": png(2), "notes.json": coco(IMAGES[:1], [])}
    with pytest.raises(HeadraceError, match=r"image 'a\.png' is 'x/a\.png' or 'y/a\.png'"):
        packed(tmp_path, files, format="coco")
    with pytest.raises(HeadraceError, match=r"No file in .* matches 'b/\*"):
        packed(tmp_path / "b", files, format="coco", index="b/*.json")


def test_fields_may_be_named(tmp_path: Path) -> None:
    fields = {"image": "*.png", "where": "boxes"}
    found = packed(tmp_path, {**TWO, "a.json": coco()}, format="coco", fields=fields)
    assert list(found.columns) == ["image", "where"]
    assert found.columns["where"][1].shape == (0, 4)
