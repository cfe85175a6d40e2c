"""Options of packing, from the recipe to the shards: fields, checks, statistics, splits, shards."""

import io
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin  # noqa: F401 registers the codecs
import numpy as np
import pytest
import soundfile
from PIL import Image

from headrace.data.dataset import SampleReader
from headrace.errors import DataError
from headrace.fields.audio import resampled
from headrace.files.manifest import Manifest
from headrace.files.manifest_file import read_manifest
from headrace.shards.dataset import ShardedDataset
from headrace.shards.inspection import verify_dataset
from headrace.steps.context import StepContext

MakeContext = Callable[..., StepContext]
ALL = {"splits": {"test": 1.0}}


class Packed:
    """A packed dataset, read by plain h5py."""

    def __init__(self, outputs: dict[str, Any]) -> None:
        self.folder = Path(outputs["dataset"])
        self.manifest: Manifest = read_manifest(self.folder)

    def shards(self) -> list[h5py.File]:
        return [h5py.File(self.folder / shard.file) for shard in self.manifest.shards]

    def samples(self, name: str) -> dict[str, Any]:
        """Values of a field by source path."""
        found: dict[str, Any] = {}
        info = self.manifest.field(name)
        for file in self.shards():
            group = file[f"fields/{name}"]
            for number, path in enumerate(pieces(file["source"])):
                if info.layout == "fixed":
                    found[path.decode()] = group[number]
                else:
                    content = pieces(group)[number]
                    found[path.decode()] = content
                    if info.ndim is not None:
                        flat = np.frombuffer(content, dtype=info.dtype)
                        found[path.decode()] = flat.reshape(group["shapes"][number])
        return found


def pieces(group: h5py.Group) -> list[bytes]:
    data, offsets = group["data"][:], group["offsets"][:]
    return [data[a:b].tobytes() for a, b in pairwise(offsets)]


@pytest.fixture
def mixed_source(tmp_path: Path) -> Path:
    """Twelve images of several sizes, four of them grey."""
    folder = tmp_path / "mixed"
    folder.mkdir()
    rng = np.random.default_rng(3)
    for number in range(12):
        shape = (6 + number, 9, 3) if number % 3 else (7, 5)
        pixels = rng.integers(0, 255, shape, dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:02d}.png")
    return folder


@pytest.fixture
def run(packs: Callable[..., dict[str, Any]]) -> Callable[..., Packed]:
    """Packs a source without labels: `run(source, pack_spec, **dataset)`."""
    return lambda source, spec, **more: Packed(
        packs(source, {**ALL, "labels": "none", **more}, spec)
    )


@pytest.mark.parametrize("chunk", [None, 7])
def test_resize_channels_dtype_and_codec(mixed_source, run, chunk):
    options = {
        "resize": [8, 10], "channels": 3, "dtype": "float32", "filter": "lanczos", "codec": "zstd",
        **({"chunk_samples": chunk} if chunk else {}),
    }  # fmt: skip
    done = run(mixed_source, {"fields": {"image": options}})
    info = done.manifest.field("image")
    assert (info.dtype, info.shape, info.layout) == ("float32", (8, 10, 3), "fixed")
    assert (info.codec, info.chunk_samples) == ("zstd", chunk or 4096 // (8 * 10 * 3 * 4))
    for path, found in done.samples("image").items():
        with Image.open(mixed_source / path) as image:
            pixels = image.convert("RGB").resize((10, 8), Image.Resampling.LANCZOS)
            np.testing.assert_array_equal(found, np.asarray(pixels, dtype=np.float32))


def test_grey_and_of_the_first_one_s_size(mixed_source, run):
    fields = {"image": {"channels": 1, "mixed": "resize"}}
    done = run(mixed_source, {"fields": fields})
    assert done.manifest.field("image").shape == (7, 5)
    assert len(done.samples("image")) == 12


def test_every_shape_as_it_is(mixed_source, run):
    fields = {"image": {"channels": 3, "mixed": "ragged"}}
    done = run(mixed_source, {"fields": fields})
    info = done.manifest.field("image")
    assert (info.layout, info.ndim, info.dtype, info.encoding) == ("ragged", 3, "uint8", "raw")
    for path, found in done.samples("image").items():
        with Image.open(mixed_source / path) as image:
            np.testing.assert_array_equal(found, np.asarray(image.convert("RGB")))
    sizes = done.manifest.lengths["image"]
    assert (sizes.count, sizes.minimum_bytes) == (12, 7 * 5 * 3)


def sound(frames: int, rate: int) -> bytes:
    stream = io.BytesIO()
    wave = np.sin(np.arange(frames) / rate * 2 * np.pi * 220) / 2
    soundfile.write(stream, wave, rate, format="FLAC")
    return stream.getvalue()


def test_sounds_encoded_or_resampled(tmp_path, run):
    source = tmp_path / "sounds"
    source.mkdir()
    for number, rate in enumerate((8000, 16000, 16000)):
        (source / f"{number}.flac").write_bytes(sound(rate // 2, rate))
    kept = run(source, {})
    assert kept.manifest.field("audio").encoding == "flac"
    assert kept.samples("audio")["0.flac"] == (source / "0.flac").read_bytes()
    with pytest.raises(DataError, match=r"has 16,000 samples a second, '0\.flac' has 8,000"):
        run(source, {"fields": {"audio": {"keep": "decode"}}})
    fields = {"audio": {"keep": "decode", "sample_rate": 8000}}
    done = run(source, {"fields": fields})
    info = done.manifest.field("audio")
    assert (info.layout, info.ndim, info.dtype, info.sample_rate) == ("ragged", 1, "float32", 8000)
    found = done.samples("audio")
    assert [len(found[f"{number}.flac"]) for number in range(3)] == [4000, 4000, 4000]
    expected = np.sin(np.arange(4000) / 8000 * 2 * np.pi * 220) / 2
    np.testing.assert_allclose(found["1.flac"][100:-100], expected[100:-100], atol=2e-3)
    (source / "0.flac").write_bytes(b"fLaC but no more")
    left_out = run(source, {"max_quarantined": 0.5})
    assert "damaged sound" in left_out.manifest.quarantined[0].reason


@pytest.mark.parametrize(("rate", "target"), [(44100, 16000), (8000, 44100), (16000, 16000)])
def test_resampling_keeps_tones_and_removes_what_does_not_fit(rate, target):
    seconds = np.arange(rate) / rate
    high = np.sin(2 * np.pi * 15000 * seconds) if rate > 2 * 15000 > target else 0
    low = np.stack([np.sin(2 * np.pi * 440 * seconds) + high, np.ones(rate)], axis=1)
    out = resampled(low.astype(np.float32), rate, target)
    assert out.shape == (target, 2)
    inner = slice(200, -200)
    expected = np.sin(2 * np.pi * 440 * np.arange(target) / target)
    np.testing.assert_allclose(out[inner, 0], expected[inner], atol=0.01)
    np.testing.assert_allclose(out[inner, 1], 1, atol=0.01)


def test_header_check_takes_what_only_begins_well(image_source, run):
    content = (image_source / "cat/01.png").read_bytes()
    (image_source / "cat/01.png").write_bytes(content[:50])
    (image_source / "cat/02.png").write_bytes(b"no image")
    options = {"images": "encoded", "max_quarantined": 0.1}
    for check, reasons in (("decode", 2), ("header", 1)):
        done = run(image_source, {**options, "check": check})
        assert len(done.manifest.quarantined) == reasons
    assert "no image by its first bytes" in done.manifest.quarantined[0].reason


def test_statistics_over_all_some_or_none(array_source, run, monkeypatch):
    """Of 120 elements at most 40 are wanted: one in three, whoever packs."""
    monkeypatch.setattr("headrace.packing.statistics.MAX_ELEMENTS", 40)
    counts = {}
    for statistics in ("all", "sample", "none"):
        spec = {"statistics": statistics, "shard_samples": 5}
        done = run(array_source, spec)
        found = done.manifest.statistics.get("array")
        counts[statistics] = (found.count, found.every) if found else (0, 0)
    assert counts == {"all": (20 * 6, 1), "sample": (20 * 6 // 3, 3), "none": (0, 0)}


@pytest.mark.parametrize(("multiple", "sizes"), [(1, [8, 8, 4]), (4, [5, 5, 5, 5])])
def test_shards_are_a_multiple(array_source, run, multiple, sizes):
    done = run(array_source, {"shards_multiple_of": multiple})
    assert [shard.num_samples for shard in done.manifest.shards] == sizes


def test_few_samples_are_packed_apart_from_the_whole(array_source, run):
    whole, few = run(array_source, {}), run(array_source, {"max_samples": 3})
    assert [shard.num_samples for shard in few.manifest.shards] == [3]
    assert few.manifest.pack_key != whole.manifest.pack_key


def test_values_that_do_not_fit_a_dtype(array_source, run):
    np.save(array_source / "05.npy", np.full((2, 3), np.nan, dtype=np.float32))
    spec = {"fields": {"array": {"dtype": "uint8"}}, "max_quarantined": 0.5}
    done = run(array_source, spec)
    reasons = {item.path: item.reason for item in done.manifest.quarantined}
    assert reasons.pop("05.npy") == "nan does not fit uint8"
    assert reasons.pop("01.npy") == "0.5 does not fit uint8"
    assert sorted(reasons) == [f"{number:02d}.npy" for number in range(3, 20, 2) if number != 5]


@pytest.mark.parametrize("options", [{}, {"codec": "zstd"}, {"mixed": "ragged"}])
def test_complex_numbers(tmp_path, run, options):
    """As of k-space and spectra; they have no order, so there are no statistics of them."""
    source = tmp_path / "spectra"
    source.mkdir()
    for number in range(9):
        values = np.arange(6).reshape(2, 3) * (number + 1j)
        np.save(source / f"{number}.npy", values.astype(np.complex64))
    done = run(source, {"fields": {"array": options}})
    assert (done.manifest.field("array").dtype, done.manifest.statistics) == ("complex64", {})
    data = ShardedDataset(done.folder, "test")
    reader = SampleReader(data)
    batch = reader.read(np.arange(9))
    for path, found in zip(data.sources(np.arange(9)), batch["array"], strict=True):
        np.testing.assert_array_equal(found.numpy(), np.load(source / path))
    assert verify_dataset(done.folder) == ()
    with pytest.raises(DataError, match="complex numbers do not fit float32"):
        run(source, {"fields": {"array": {"dtype": "float32"}}})


@pytest.mark.parametrize("images", ["decode", "encoded"])
@pytest.mark.parametrize("orientation", ["apply", "keep", None])
def test_orientation(tmp_path, run, images, orientation):
    """A model gets pixels as people see them, however they are kept; the manifest says so."""
    stored = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20
    exif = Image.Exif()
    exif[0x0112] = 3
    source = tmp_path / "photos"
    source.mkdir()
    for number in range(4):
        turn = {"exif": exif} if number % 2 else {}
        Image.fromarray(stored).save(source / f"{number}.tif" if number > 1 else
                                     source / f"{number}.png", **turn)  # fmt: skip
    options = {"images": images, "fields": {"image": {"orientation": orientation}}}
    done = run(source, options, labels="none", splits={"test": 1.0})
    turned = orientation != "keep"
    info = done.manifest.field("image")
    assert info.orientation == (None if images == "decode" else orientation or "apply")
    what = "turned as EXIF says" if turned else "not turned, though EXIF says so"
    assert done.manifest.notes == (f"image: {what} (2 samples)",)
    data = ShardedDataset(done.folder, "test")
    for place in range(4):
        (found,) = SampleReader(data).read(np.array([place]))["image"]
        (name,) = data.sources(np.array([place]))
        back = turned and name in ("1.png", "3.tif")
        np.testing.assert_array_equal(found.numpy(), stored[::-1, ::-1] if back else stored)


def test_a_field_of_numbers_has_the_dtype_asked_for(tmp_path, run):
    """By column, and one by one where a value of the column does not fit."""
    for end, fits in ((0.5, 39), (2, 40)):
        file = tmp_path / f"{fits}.csv"
        rows = [f"{number},{number / 4}" for number in range(39)]
        file.write_text("\n".join(["x,y", *rows, f"{2**24 + 1 if end == 0.5 else 7},{end}"]))
        dtypes = {"x": {"dtype": "float32"}, "y": {"dtype": "float16"}}
        done = run(file, {"fields": dtypes, "max_quarantined": 0.1}, splits={"test": 1.0})
        assert [info.dtype for info in done.manifest.fields] == ["float32", "float16"]
        assert done.manifest.num_samples == fits
        bad = [item.reason for item in done.manifest.quarantined]
        assert bad == ["x: 16777217 does not fit float32"] * (40 - fits)
