"""JPEG decoded in batches by nvimgcodec, here on the CPU: the pixels of the usual decoder."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image

from headrace.data import device_decode, device_tier
from headrace.data.dataset import Reading, SampleReader, reading_of
from headrace.data.decode import Decoder
from headrace.data.device_decode import DeviceDecoder
from headrace.data.instantiate import Allowed
from headrace.data.loaders import DataSettings
from headrace.data.module import HeadraceDataModule
from headrace.errors import DataError, RecipeError
from headrace.files.manifest import FieldInfo
from headrace.recipe.load import parse
from headrace.recipe.recipe import DataSpec
from headrace.recipe.site import Tier
from headrace.shards.dataset import ShardedDataset
from headrace_bench.shards import ShardWriter
from support.shards import write_fields

CPU = torch.device("cpu")
NAME = "nvimgcodec"


def image(
    number: int, mode: str = "RGB", size: tuple[int, int] = (24, 16), **options: Any
) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 255, (5, 7, 3), dtype=np.uint8)
    content = BytesIO()
    made = Image.fromarray(pixels).resize(size).convert(mode)
    made.save(content, **{"format": "JPEG", **options})
    return content.getvalue()


def turned(number: int) -> bytes:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 3
    return image(number, exif=exif)


COLOURS = [
    image(0), image(1, progressive=True), image(2, subsampling=0), image(3, quality=30),
    image(4, restart_marker_blocks=1), image(5, subsampling=2, optimize=True),
]  # fmt: skip
LEFT = [image(6, "CMYK"), image(7, format="PNG"), turned(8)]


def reader_of(
    folder: Path, files: Sequence[bytes], notes: dict[str, str] | None = None, **options: Any
) -> SampleReader:
    """A reader of images; with `notes` it decodes as on a GPU."""
    usual = {"name": "image", "dtype": "uint8", "layout": "ragged", "encoding": "image"}
    info = FieldInfo(**{**usual, "orientation": "apply", **options})

    def add(writer: ShardWriter, ids: np.ndarray[Any, Any]) -> None:
        writer.add_ragged("image", [files[number] for number in ids.tolist()])

    if not folder.exists():
        write_fields(folder, [info], add, splits={"train": len(files)}, shard_samples=4)
    decoder = Decoder() if notes is None else DeviceDecoder()
    if isinstance(decoder, DeviceDecoder) and notes is not None:
        decoder.open(CPU, notes)
    return SampleReader(ShardedDataset(folder, "train"), Reading(decoder=decoder))


@pytest.fixture(autouse=True)
def of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library decodes on the CPU, as on a GPU."""
    monkeypatch.setattr(device_decode, "_BACKENDS", {"cpu": ("CPU_ONLY",)})


@pytest.mark.parametrize(
    ("files", "orientation", "num_left"),
    [
        (COLOURS, "apply", 0),
        ([image(9, "L"), image(10, "L", progressive=True)], "apply", 2),
        ([turned(8), *COLOURS], "keep", 0),
        ([*COLOURS, *LEFT], "apply", 3),
        (LEFT, "apply", 3),
    ],
)
def test_batches_equal_those_of_the_usual_decoder(
    tmp_path: Path, files: Sequence[bytes], orientation: str, num_left: int
) -> None:
    """Files that the library does not take, or that EXIF turns, are decoded as before."""
    notes: dict[str, str] = {}
    reader = reader_of(tmp_path / "d", files, notes, orientation=orientation)
    usual = reader_of(tmp_path / "d", files)
    indices = np.arange(len(files))[::-1].copy()
    for part in (indices, indices[:1], indices[1:]):
        found, expected = reader.read(part)["image"], usual.read(part)["image"]
        assert isinstance(found, torch.Tensor)
        assert found.dtype == torch.uint8
        assert torch.equal(found, expected)
    assert notes["decoder"].startswith(NAME)
    assert notes.get("decoded_by_cpu") == (f"{2 * num_left} images" if num_left else None)


def test_images_that_differ_in_shape_are_refused_by_name(tmp_path: Path) -> None:
    reader = reader_of(tmp_path / "d", [image(0), image(1, size=(8, 8))], {})
    with pytest.raises(DataError, match=r"uint8 \(16, 24, 3\) \(folder/<0>.png\) and uint8 \(8, 8"):
        reader.read(np.arange(2))


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    reader = reader_of(tmp_path / "d", [COLOURS[0], b"\xff\xd8\xff damaged"], {})
    with pytest.raises(DataError, match=r"<1>\.png, field 'image'"):
        reader.read(np.arange(2))


def test_threads_share_a_decoder(tmp_path: Path) -> None:
    reader, usual = (reader_of(tmp_path / "d", COLOURS, notes) for notes in ({}, None))
    expected, wrong = usual.read(np.arange(6))["image"], []

    def read() -> None:
        batches = [reader.read(np.arange(6))["image"] for _ in range(20)]
        wrong.extend(batch for batch in batches if not torch.equal(batch, expected))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_what_fails_is_decoded_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: dict[str, str] = {}
    reader, usual = reader_of(tmp_path / "d", COLOURS, notes), reader_of(tmp_path / "d", COLOURS)

    def full(*_: object, **__: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(reader.reading.decoder, "_library", SimpleNamespace(decode=full))
    everything = np.arange(len(COLOURS))
    assert torch.equal(reader.read(everything)["image"], usual.read(everything)["image"])
    assert notes["decoded_by_cpu"] == "6 images"


def test_without_gpu_or_library_the_cpu_decodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = reader_of(tmp_path / "d", COLOURS).read(np.arange(6))["image"]
    notes: dict[str, str] = {}

    def decoded() -> torch.Tensor:
        return reader_of(tmp_path / "d", COLOURS, notes).read(np.arange(6))["image"]

    def raising(**_: object) -> None:
        raise RuntimeError("no driver")

    monkeypatch.setattr(device_decode.nvimgcodec(), "Decoder", raising)
    assert torch.equal(decoded(), usual)
    assert notes == {"decoder": "the CPU: no driver"}
    monkeypatch.setattr(device_decode, "nvimgcodec", lambda: None)
    assert torch.equal(decoded(), usual)
    assert notes == {"decoder": "the CPU: nvimgcodec is missing: pip install 'headrace[photos]'"}
    monkeypatch.setattr(device_decode, "_BACKENDS", {})
    assert torch.equal(decoded(), usual)
    assert notes == {"decoder": "the CPU: no GPU is in use"}


def test_the_library_writes_nothing(tmp_path: Path) -> None:
    """Without CUDA it would report each missing library, and each file that it does not take."""
    (tmp_path / "cut.jpg").write_bytes(image(0, size=(80, 60))[:-40])
    code = (
        "import sys, torch\n"
        "from headrace.data import device_decode\n"
        "device_decode._BACKENDS = {'cpu': ('CPU_ONLY',)}\n"
        "decoder, notes = device_decode.DeviceDecoder(), {}\n"
        "decoder.open(torch.device('cpu'), notes)\n"
        "print(notes, decoder._decoded([open(sys.argv[1], 'rb').read()], turns=False))\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "cut.jpg")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.startswith("{'decoder': 'nvimgcodec")
    assert done.stdout.endswith("} {}\n")


def make_module(folder: Path, **spec: Any) -> HeadraceDataModule:
    tier = Tier(name="gpu", reserve=0)
    made = DataSpec(**{"global_batch_size": 2, **spec})
    reading = reading_of(made, Allowed(listed=(), code=()))
    module = HeadraceDataModule(
        DataSettings(folder=folder, spec=made, seed=1, gpu_tier=tier, reading=reading)
    )
    strategy = SimpleNamespace(root_device=CPU)
    module.trainer = SimpleNamespace(training=True, global_step=0, strategy=strategy)
    module.setup("fit")
    return module


def test_the_decoder_is_known_and_its_change_reported(
    tmp_path: Path,
) -> None:
    reader_of(tmp_path / "d", COLOURS)
    plain, gpu = make_module(tmp_path / "d"), make_module(tmp_path / "d", decode="gpu")
    states = plain.state_dict(), gpu.state_dict()
    assert states[0]["decoder"] == "the CPU"
    assert states[1]["decoder"].startswith(NAME)
    gpu.load_state_dict(states[1])
    assert "decoder_changed" not in gpu.train_loader.notes
    gpu.load_state_dict({"position": states[0]["position"], "order": states[0]["order"]})
    assert gpu.train_loader.notes["decoder_changed"].startswith("from the CPU to nvimgcodec")
    plain.load_state_dict(states[1])
    assert "to the CPU," in plain.train_loader.notes["decoder_changed"]


def test_what_the_device_holds_is_decoded_there_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_tier, "free_bytes", lambda _: 2**30)
    reader_of(tmp_path / "d", COLOURS)
    module = make_module(tmp_path / "d", decode="gpu")
    assert module.tier is not None
    decoder, calls = module.settings.reading.decoder, []
    decode = decoder.decode
    monkeypatch.setattr(decoder, "decode", lambda *given: calls.append(1) or decode(*given))
    for step in range(3):
        module.tier.look(step, CPU)
    assert len(calls) == 2  # the first sample, for its shape, and all
    expected = reader_of(tmp_path / "d", COLOURS).read(np.arange(6))["image"]
    assert torch.equal(module.train_loader.reader.gatherer.held["image"], expected)


def test_samples_for_python_are_not_decoded_on_a_gpu() -> None:
    target = {"_target_": "a.B"}
    for key, value in (("sample_transforms", [target]), ("collate", target), ("dataset", target)):
        with pytest.raises(RecipeError, match="decode: gpu decodes whole batches"):
            parse(DataSpec, {"decode": "gpu", key: value}, "recipe")
