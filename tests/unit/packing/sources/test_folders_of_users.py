"""Folders as users have them: what is left out is counted and named, or refused with a way out."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from headrace.errors import HeadraceError
from headrace.files.manifest_file import read_manifest
from support.command_line import headrace
from support.source_files import npy, npz, png, write_tar

Packs = Callable[..., dict[str, Any]]
JPEG = io.BytesIO()
Image.fromarray(np.arange(3072, dtype=np.uint8).reshape(32, 32, 3)).save(JPEG, "JPEG")
PICTURES = {f"{name}/{number}.png": png(number) for name in ("cat", "dog") for number in range(4)}
ZIPPED = io.BytesIO()
with zipfile.ZipFile(ZIPPED, "w") as _archive:
    _archive.writestr("a.png", png(1))


def write(folder: Path, files: Mapping[str, Any]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Mapping):
            write_tar(folder / name, dict(content))
        else:
            (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize(
    ("others", "note"),
    [
        ({"cat/a.heic": b"x", "dog/b.HEIC": b"x", "c.avif": b"x"}, "2 .heic, 1 .avif"),
        ({"cat/a.jfif": b"x", "cat/b.JPG_large": b"x", "cat/c": b"x"},
         "1 .jfif, 1 .jpg_large, 1 without an ending"),
        ({"cat.zip": ZIPPED.getvalue(), "READ ME.md": b"x"}, "1 .md, 1 .zip"),
        ({"cat/Thumbs.db": b"x", "__MACOSX/cat/0.png": b"x", "@eaDir/0.png": b"x",
          "desktop.ini": b"x"}, "4 hidden"),
        ({".DS_Store": b"x", "cat/.ipynb_checkpoints/0-checkpoint.png": b"x", "cat/._0.png": b"x"},
         "3 hidden"),
        ({f"a.{number}": b"x" for number in range(10, 20)},
         "1 .10, 1 .11, 1 .12, 1 .13, 1 .14, …"),
    ],
)  # fmt: skip
def test_files_that_are_left_out_are_counted(
    packs: Packs, tmp_path: Path, others: dict[str, bytes], note: str
) -> None:
    outputs = packs(write(tmp_path / "in", {**PICTURES, **others}))
    assert outputs["num_samples"] == len(PICTURES)
    assert outputs["notes"] == [f"files left out: {note}"]
    shown = headrace("inspect", outputs["dataset"]).stdout
    assert f"files left out: {note}" in " ".join(shown.split())


INDEX = b"path,label\n" + b"".join(f"{name},x\n".encode() for name in PICTURES)
PAIRS = {f"{n}{ending}": png(n) for n in range(4) for ending in (".a.png", ".b.png")}
TAR = {**PICTURES, "cat/a.heic": b"x", "__MACOSX/cat/0.png": b"x"}
SHARD = {
    f"{n}{end}": png(1) if end == ".png" else b"2 " for n in range(4) for end in (".png", ".cls")
}
NO_LABELS = {"labels": "none"}


@pytest.mark.parametrize(
    ("files", "keys", "num_samples", "notes"),
    [
        ({**PICTURES, "labels.csv": INDEX}, {"index": "labels.csv"}, 8,
         ["all samples are of one class, 'x'"]),
        ({**PAIRS, "x.xml": b"x", "__MACOSX/0.a.png": b"x"},
         {**NO_LABELS, "fields": {"a": "*.a.png", "b": "*.b.png"}}, 4,
         ["files may be annotations: dataset.format (coco, voc, yolo) or dataset.index reads them",
          "files left out: 1 .xml, 1 hidden"]),
        ({"a.tar": TAR}, {"format": "tar"}, 8, ["files left out: 1 .heic, 1 hidden"]),
        ({"a.tar": {**SHARD, "3.json": b"{}", "3.txt": b"x"}}, {}, 4,
         ["files left out: 1 .json, 1 .txt", "spaces around 4 labels left out",
          "all samples are of one class, '2'"]),
        ({**{f"{n}.npy": npy([n]) for n in range(4)}, "a.txt": b"x"}, NO_LABELS, 4,
         ["files left out: 1 .txt"]),
    ],
    ids=["index", "pairs", "tar", "webdataset", "arrays"],
)  # fmt: skip
def test_what_is_left_out_of_each_form_is_counted(
    packs: Packs, tmp_path: Path, files: Any, keys: Any, num_samples: int, notes: list[str] | None
) -> None:
    outputs = packs(write(tmp_path / "in", files), keys)
    assert (outputs["num_samples"], outputs.get("notes")) == (num_samples, notes)


def test_folders_without_a_sample_are_named(packs: Packs, tmp_path: Path) -> None:
    source = write(tmp_path / "in", {**PICTURES, "cow/a.heic": b"x"})
    (source / "hen").mkdir()
    notes = packs(source)["notes"]
    assert "folders without a sample: cow, hen" in notes
    assert "files left out: 1 .heic" in notes


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"a.npz": npz()}, ["a.npz", "it holds no array"]),
        ({"a.zip": ZIPPED.getvalue()}, ["None of the 1 files", "unzip", "a.zip"]),
        ({"a.heic": b"x", "b.heic": b"x"}, ["None of the 2 files", "2 .heic"]),
        ({"Thumbs.db": b"x"}, ["None of the 1 files", "1 hidden"]),
    ],
)
def test_a_folder_without_samples_is_refused(
    packs: Packs, tmp_path: Path, files: dict[str, bytes], expected: list[str]
) -> None:
    with pytest.raises(HeadraceError) as caught:
        packs(write(tmp_path / "in", files))
    assert [text for text in expected if text not in str(caught.value)] == [], caught.value


@pytest.mark.parametrize("ending", [".zip", ".7z", ".rar"])
def test_an_archive_as_the_source_is_refused(packs: Packs, tmp_path: Path, ending: str) -> None:
    source = write(tmp_path, {f"my pictures{ending}": ZIPPED.getvalue()}) / f"my pictures{ending}"
    with pytest.raises(HeadraceError) as caught:
        packs(source)
    tool = {".zip": "unzip", ".7z": "7z x", ".rar": "unrar x"}[ending]
    assert f"{source} is a file, not a folder" in str(caught.value)
    assert f"`{tool} '{source}'`" in str(caught.value)


def test_a_jpeg_that_is_cut_is_quarantined(packs: Packs, tmp_path: Path) -> None:
    whole = JPEG.getvalue()
    pictures = {f"{number}.jpg": whole for number in range(8)}
    source = write(tmp_path / "in", {**pictures, "8.jpg": whole[:-9], "9.jpg": whole[:-1]})
    outputs = packs(source, {"labels": "none"}, {"max_quarantined": 0.2})
    left = read_manifest(Path(outputs["dataset"])).quarantined
    assert sorted((each.path, "truncated" in each.reason) for each in left) == [
        ("8.jpg", True), ("9.jpg", True),
    ]  # fmt: skip
