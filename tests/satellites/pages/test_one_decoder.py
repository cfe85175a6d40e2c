"""The same bytes through packing, reading and viewing, also for a field kind of a package."""

from __future__ import annotations

import io
import pickle
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import soundfile
from PIL import Image
from pyarrow import parquet

from headrace.errors import RecipeError, UnreadableError, UserError
from headrace.fields.field_kind import kind_named
from headrace.files.manifest import FieldInfo, Manifest, ShardInfo
from headrace.files.manifest_file import read_manifest
from headrace.packing.pack_step import pack
from headrace.shards.dataset import ShardedDataset
from headrace_bench.shards import ShardWriter
from headrace_pages.samples import FieldOfSample, SampleQuestion, read_sample
from support.added_packages import blocks, entry_points_of, found_in, install
from support.shards import write_identified
from support.source_files import npy

NOISE = np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8)


def read(dataset: ShardedDataset) -> dict[str, Any]:
    """As a training reads the first sample of it."""
    from headrace.data.dataset import SampleReader

    return SampleReader(dataset).read(np.arange(1))


def picture(mode: str, kind: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(NOISE).convert(mode).save(file, kind)
    return file.getvalue()


def wide_png(width: int, height: int) -> bytes:
    """A PNG file that claims a size."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = (struct.pack(">I", 13), header, struct.pack(">I", zlib.crc32(header)))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks) + bytes(4) + b"IDAT"


def pages() -> bytes:
    file, page = io.BytesIO(), Image.fromarray(NOISE)
    page.save(file, "TIFF", save_all=True, append_images=[page])
    return file.getvalue()


def flac(num_frames: int | None = None) -> bytes:
    """A FLAC file of 1,000 frames, which may claim to have more."""
    file = io.BytesIO()
    soundfile.write(file, np.linspace(-0.5, 0.5, 1000), 8000, format="FLAC")
    content = bytearray(file.getvalue())
    if num_frames is not None:
        content[22:26] = struct.pack(">I", num_frames & 0xFFFFFFFF)
        content[21] |= num_frames >> 32
    return bytes(content)


def deep_png() -> bytes:
    file = io.BytesIO()
    Image.fromarray(NOISE[:, :, 0].astype(np.uint16)).save(file, "PNG")
    return file.getvalue()


BAD = {
    "cut.png": (picture("RGB", "PNG")[:-60], "damaged image"),
    "cut.jpg": (picture("RGB", "JPEG")[:-100], "damaged image"),
    "other.png": (picture("RGB", "PPM"), "neither PNG, JPEG, BMP, WebP, GIF nor TIFF"),
    "deep.png": (deep_png(), "16 bits a channel; save the images as .npy"),
    "bomb.png": (wide_png(10_000, 10_000), "Image size (100000000 pixels)"),
    "bomb2.png": (wide_png(40_000, 40_000), "Image size (1600000000 pixels)"),
    "pages.tif": (pages(), "2 pages; save the images as .npy"),
    "float.tif": (picture("F", "TIFF"), "32 bits a channel; save the images as .npy"),
    "cut.flac": (flac()[:60], "damaged sound"),
    "bomb.flac": (flac(2**36 - 1), "274,877,906,940 bytes of sound are more than 4,294,967,296"),
    "cut.wav": (b"RIFF" + bytes(4) + b"WAVE", "damaged sound"),
    "cut.npy": (npy(np.arange(6.0))[:-1], "truncated: shape (6,) of float64 takes 48 bytes"),
    "words.npy": (npy(np.array(["a"])), "dtype <U1 is neither boolean nor a number"),
}
ENCODINGS = {".png": "png", ".jpg": "jpeg", ".tif": "tiff", ".flac": "flac", ".wav": "wav"}
GOOD = {
    "png": picture("RGB", "PNG"),
    "flac": flac(),
    "npy": npy(np.arange(6.0)),
}


def dataset_of(folder: Path, content: bytes, encoding: str) -> tuple[ShardedDataset, Manifest]:
    """A dataset of one sample, whose bytes nobody has looked at."""
    writer = ShardWriter("train", np.arange(1), ["0.x"])
    writer.add_ragged("it", [content])
    (folder / "shards").mkdir(parents=True)
    written = writer.publish(folder / "shards/train-0.h5")
    shard = ShardInfo(
        file="shards/train-0.h5", split="train", num_samples=1,
        num_bytes=written.num_bytes, xxh3_128=written.xxh3_128,
    )  # fmt: skip
    field = {"name": "it", "dtype": "uint8", "layout": "ragged", "encoding": encoding}
    manifest = Manifest(
        name="one", fingerprint="", pack_key="k", fields=(FieldInfo.model_validate(field),),
        splits={"train": 1}, shards=(shard,),
    )  # fmt: skip
    known = write_identified(folder, manifest)
    return ShardedDataset(folder, "train"), known


def viewed(folder: Path, manifest: Manifest) -> FieldOfSample:
    (split,) = manifest.splits
    question = SampleQuestion(
        folder=str(folder), fingerprint=manifest.fingerprint, split=split, index=0
    )
    return read_sample(question).fields[0]


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("keep", ["decode", "encoded"])
def test_what_cannot_be_decoded_is_told_alike_by_packing_reading_and_viewing(
    tmp_path, make_context, in_process, name, keep
):
    content, reason = BAD[name]
    suffix = Path(name).suffix
    encoding = ENCODINGS.get(suffix, "npy")
    kind = {"npy": "array", "flac": "audio", "wav": "audio"}.get(encoding, "image")
    source = tmp_path / "source"
    source.mkdir()
    good = {"array": "npy", "audio": "flac", "image": "png"}[kind]
    (source / f"good.{good}").write_bytes(GOOD[good])
    (source / name).write_bytes(content)
    fields = {} if kind == "array" else {kind: {"keep": keep}}
    context = make_context(
        source,
        {"labels": "none", "splits": {"test": 1.0}},
        {"max_quarantined": 0.5, "fields": fields},
    )
    (left_out,) = read_manifest(Path(pack(context, in_process)["dataset"])).quarantined
    assert (left_out.path, left_out.reason[: len(reason)]) == (name, reason)

    dataset, manifest = dataset_of(tmp_path / "dataset", content, encoding)
    with pytest.raises(UnreadableError) as caught:
        read(dataset)
    assert caught.value.what == f"0.x, field 'it': {left_out.reason}"
    assert viewed(tmp_path / "dataset", manifest).problem == left_out.reason


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        ("RGB", "PNG"), ("RGBA", "PNG"), ("L", "PNG"), ("LA", "PNG"), ("1", "PNG"), ("P", "PNG"),
        ("CMYK", "TIFF"), ("YCbCr", "TIFF"), ("RGBA", "WEBP"), ("P", "GIF"),
    ],
)  # fmt: skip
def test_an_image_has_the_same_pixels_kept_encoded_or_decoded(
    tmp_path, make_context, in_process, mode, kind
):
    """Shards hold pixels, or the file: a model gets the same, and so does who looks at it."""
    found = []
    source = tmp_path / "source"
    source.mkdir()
    (source / f"0.{kind.lower()}").write_bytes(picture(mode, kind))
    for images in ("decode", "encoded"):
        context = make_context(
            source, {"labels": "none", "splits": {"test": 1.0}}, {"images": images}
        )
        folder = Path(pack(context, in_process)["dataset"])
        (pixels,) = read(ShardedDataset(folder, "test"))["image"]
        drawn = viewed(folder, read_manifest(folder)).drawn
        found.append(pixels.numpy())
        assert (drawn.shape, drawn.dtype) == (pixels.shape, "uint8")
    np.testing.assert_array_equal(*found)
    assert found[0].shape == ((9, 7) if mode in ("L", "LA", "1") else (9, 7, 3))


def test_without_soundfile_packing_and_reading_name_the_package(tmp_path, packs, monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    source = tmp_path / "source"
    source.mkdir()
    (source / "0.flac").write_bytes(GOOD["flac"])
    named = r"(?s)Sound cannot be decoded.*pip install 'headrace\[audio\]'"
    with pytest.raises(UserError, match=named):
        packs(source, {"labels": "none", "splits": {"test": 1.0}})
    dataset, manifest = dataset_of(tmp_path / "dataset", GOOD["flac"], "flac")
    with pytest.raises(UserError, match=named):
        read(dataset)
    assert "pip install" in viewed(tmp_path / "dataset", manifest).problem


BROKEN = "2 numbers a line, not x, y and z"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    section, folder = "A kind of field", tmp_path / "site-packages"
    install(folder, "headrace_points", blocks(section, "python"), entry_points_of(section))
    return folder


@pytest.fixture
def installed(package: Path) -> Iterator[None]:
    with found_in(package):
        yield


def points(number: int) -> np.ndarray:
    return np.arange(3 * (number + 2), dtype=np.float32).reshape(-1, 3) + number


def xyz(values: np.ndarray) -> bytes:
    return b"#xyz\n" + "\n".join(" ".join(map(str, row)) for row in values.tolist()).encode()


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    folder = tmp_path / "scans"
    folder.mkdir()
    for number in range(8):
        (folder / f"{number}.xyz").write_bytes(xyz(points(number)))
    (folder / "bad.xyz").write_bytes(b"#xyz\n1 2\n")
    return folder


FILES = {"include": ["**/*.xyz"], "labels": "none", "splits": {"test": 1.0}}


def packed(packs: Any, source: Path, dataset: Any, options: Any) -> Path:
    fields = {"max_quarantined": 0.5, "fields": options}
    return Path(packs(source, dataset, fields)["dataset"])


@pytest.mark.parametrize("keep", ["encoded", "decode"])
def test_its_files_are_packed_read_and_shown(installed, scans, packs, keep):
    from headrace.data.dataset import SampleReader
    from headrace.evaluation.results import picture

    folder = packed(packs, scans, FILES, {"points": {"keep": keep}})
    manifest = read_manifest(folder)
    (left_out,), (info,) = manifest.quarantined, manifest.fields
    assert (left_out.path, left_out.reason) == ("bad.xyz", BROKEN)
    expected = ("xyz", None) if keep == "encoded" else ("raw", 2)
    assert (info.name, info.layout, info.encoding, info.ndim) == ("points", "ragged", *expected)

    dataset = ShardedDataset(folder, "test")
    found = SampleReader(dataset).read(np.arange(8))["points"]
    names = dataset.sources(np.arange(8))
    for name, values in zip(names, found, strict=True):
        np.testing.assert_array_equal(values, points(int(name[0])))
        assert values.numpy().dtype == np.float32

    drawn = picture(dataset, np.arange(1))
    question = SampleQuestion(
        folder=str(folder), fingerprint=manifest.fingerprint, split="test", index=0
    )
    shown = read_sample(question).fields[0].drawn
    assert shown is not None
    if keep == "encoded":
        assert drawn.startswith(b"\x89PNG")
        assert (shown.kind, shown.shape) == ("picture", (64, 64))


def test_its_bytes_are_told_in_tables(installed, tmp_path, packs):
    (tmp_path / "rows").mkdir()
    table = pa.table({"scan": [xyz(points(number)) for number in range(8)]})
    parquet.write_table(table, tmp_path / "rows" / "0.parquet")
    spec = {"labels": "none", "splits": {"test": 1.0}}
    folder = packed(packs, tmp_path / "rows", spec, {})
    (info,) = read_manifest(folder).fields
    assert (info.name, info.encoding) == ("scan", "xyz")


def test_what_it_does_not_heed_is_refused(installed, scans, packs):
    with pytest.raises(RecipeError, match=r"is for fields of kind image\."):
        packed(packs, scans, FILES, {"points": {"resize": [4, 4]}})


def test_where_it_is_not_installed_the_encoding_is_named(package, scans, packs):
    from headrace.data.dataset import SampleReader

    with found_in(package):
        folder = packed(packs, scans, FILES, {})
        kind = pickle.dumps(kind_named("points"))
    assert read_manifest(folder).num_samples == 8
    for read in (
        lambda: SampleReader(ShardedDataset(folder, "test")).read(np.arange(1)),
        lambda: pickle.loads(kind),
    ):
        with pytest.raises(UserError, match=r"(?s)kind of field.*headrace\.fields.*every node"):
            read()
