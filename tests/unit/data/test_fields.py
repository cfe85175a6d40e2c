"""Fields of every kind come back as they were packed: compressed, ragged, encoded, checked."""

from __future__ import annotations

import io
import multiprocessing
import threading
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image

from headrace.data.ahead import Payoff
from headrace.data.dataset import Reading, SampleReader, reading_of
from headrace.data.instantiate import Allowed
from headrace.data.loader import BatchLoader
from headrace.data.order import TrainOrder
from headrace.errors import DataError, ShardError
from headrace.files.manifest import FieldInfo
from headrace.recipe.recipe import DataSpec
from headrace.shards.dataset import ShardedDataset
from headrace.shards.inspection import verify_dataset
from headrace_bench.shards import ShardWriter
from support.shards import reseal, write_dataset, write_fields

NUM, PER_SHARD = 11, 4
NUMBERS = np.arange(NUM)
VOLUMES = np.arange(NUM * 12, dtype=np.float32).reshape(NUM, 3, 4)
ARRAYS = [np.full((2, i, 3), i, dtype=np.int16) for i in range(NUM)]
TEXTS = ["ä" * i for i in range(NUM)]
SOUND = [np.linspace(-0.5, 0.5, 50 + i, dtype=np.float32) for i in range(NUM)]
IMAGES = {"png": {}, "webp": {"lossless": True}, "gif": {}, "tiff": {}, "bmp": {}}


def image_bytes(number: int, encoding: str) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (3, 2), (number, 0, 7)).save(file, encoding, **IMAGES[encoding])
    return file.getvalue()


def sound_bytes(number: int, encoding: str) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, SOUND[number], 8000, format=encoding)
    return file.getvalue()


def field(name: str, **options: object) -> FieldInfo:
    return FieldInfo.model_validate({"name": name, "dtype": "uint8", "layout": "ragged", **options})


FIELDS = (
    *(
        FieldInfo(
            name=codec, dtype="float32", shape=(3, 4), layout="fixed", codec=codec, chunk_samples=2
        )
        for codec in ("lz4", "zstd", "blosc")
    ),
    field("array", dtype="int16", ndim=3),
    field("text", encoding="text"),
    *(field(name, encoding=name) for name in IMAGES),
    *(field(name, encoding=name) for name in ("wav", "flac")),
    FieldInfo(name="label", dtype="int64", layout="fixed"),
)


def add(writer: ShardWriter, ids: np.ndarray) -> None:
    for codec in ("lz4", "zstd", "blosc"):
        writer.add_fixed(codec, VOLUMES[ids], codec=codec, chunk_samples=2)
    writer.add_arrays("array", [ARRAYS[i] for i in ids])
    writer.add_ragged("text", [TEXTS[i].encode() for i in ids])
    for name in IMAGES:
        writer.add_ragged(name, [image_bytes(i, name) for i in ids])
    for name in ("wav", "flac"):
        writer.add_ragged(name, [sound_bytes(i, name) for i in ids])
    writer.add_fixed("label", NUMBERS[ids] % 2)


def make(folder: Path) -> Path:
    options = {"shard_samples": PER_SHARD, "classes": ("a", "b"), "source": "{}.x"}
    write_fields(folder, FIELDS, add, splits={"train": NUM}, **options)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("fields") / "kinds")


def check(batch: dict[str, object]) -> None:
    ids = batch["sample_id"].tolist()
    for codec in ("lz4", "zstd", "blosc"):
        np.testing.assert_array_equal(batch[codec].numpy(), VOLUMES[ids])
    for place, i in enumerate(ids):
        np.testing.assert_array_equal(batch["array"][place].numpy(), ARRAYS[i])
        assert batch["array"][place].dtype == torch.int16
        assert batch["text"][place] == TEXTS[i]
        for name in IMAGES:
            assert batch[name][place, 1, 2].tolist() == [i, 0, 7]
        for name in ("wav", "flac"):
            np.testing.assert_allclose(batch[name][place].numpy(), SOUND[i], atol=1e-4)
    assert batch["label"].tolist() == [i % 2 for i in ids]


@pytest.mark.parametrize("prefetch", [0, 3])
def test_all_kinds_of_fields(folder: Path, prefetch: int) -> None:
    order = TrainOrder(num_samples=NUM, seed=3, global_batch_size=5)
    loader = BatchLoader(ShardedDataset(folder, "train"), order, prefetch=prefetch)
    batches = list(loader)
    assert len(batches) == 2
    for batch in batches:
        check(batch)


@pytest.mark.parametrize(("name", "is_ahead"), [("label", False), ("zstd", True)])
def test_only_copies_are_left_until_they_are_asked_for(folder, name, is_ahead, monkeypatch):
    """Threads decompress at once, also for whom does not work on the batches."""
    monkeypatch.setattr(Payoff, "is_ahead", False, raising=False)
    monkeypatch.setattr(Payoff, "__init__", lambda self: None)
    monkeypatch.setattr("headrace.data.loader._MAX_TOGETHER", 1)
    order = TrainOrder(num_samples=NUM, seed=3, global_batch_size=1)
    loader = BatchLoader(ShardedDataset(folder, "train"), order, fields=(name,), prefetch=2)
    batches = iter(loader)
    next(batches)
    assert is_ahead == any(each.name.startswith("headrace-load") for each in threading.enumerate())


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_all_kinds_in_children(folder: Path, method: str) -> None:
    """Pains 24: compressed fields keep files open; a child opens its own."""
    reader = SampleReader(ShardedDataset(folder, "train"))
    check(reader.read(np.arange(NUM)))
    with multiprocessing.get_context(method).Pool(1) as pool:
        check(pool.apply(reader.read, (np.array([10, 0, 5, 5]),)))
    check(reader.read(np.arange(NUM)))


def test_verification_of_all_kinds(tmp_path: Path) -> None:
    folder = make(tmp_path / "kinds")
    assert verify_dataset(folder) == ()
    import h5py

    with h5py.File(folder / "shards/train-00001.h5", "r+") as file:
        file["fields/array/shapes"][2] = (2, 1, 3)
    reseal(folder, "shards/train-00001.h5")
    (finding,) = verify_dataset(folder)
    assert (finding.first_sample, finding.last_sample) == (4, 7)
    assert finding.problem == "the shapes of 'array' do not fit its data"
    with pytest.raises(ShardError, match=r"array.* do not fit .*6\.x"):
        SampleReader(ShardedDataset(folder, "train")).read(np.array([5, 6]))


def test_labels_that_are_numbers_need_no_classes(tmp_path: Path) -> None:
    numbers = tmp_path / "numbers"
    write_dataset(
        numbers,
        {"image": np.zeros((4, 2), np.uint8), "label": np.array([-1.5, 7, 0, 2])},
        splits={"train": 4},
    )
    assert verify_dataset(numbers) == ()


def test_intact_samples_pass_the_check(folder: Path) -> None:
    spec = DataSpec(verify_samples=True)
    reading = reading_of(spec, Allowed(listed=(), code=()))
    assert reading.is_special
    check(SampleReader(ShardedDataset(folder, "train"), reading).read(NUMBERS[::-1].copy()))


@pytest.mark.parametrize("name", ["text", "label", "array"])
def test_a_flipped_bit_is_named_with_its_sample(tmp_path: Path, name: str) -> None:
    """A bit that turns in memory or on disk after staging ends the read."""
    folder = make(tmp_path / "kinds")
    dataset = ShardedDataset(folder, "train")
    reader = dataset._mapped.reader(1)
    key = "fields/label" if name == "label" else f"fields/{name}/data"
    place = reader.place(key)
    path = folder / dataset.shards[1].file
    content = bytearray(path.read_bytes())
    content[place.offset + place.num_bytes - 8] ^= 4  # of the last sample of the shard, number 7
    path.write_bytes(content)
    verified = SampleReader(ShardedDataset(folder, "train"), Reading(verify=True))
    check(verified.read(np.array([6, 8, 0])))
    named = r"Damaged .* 7 and 7, in .*train-00001\.h5 .* 7\.x\n.*cache verify"
    with pytest.raises(ShardError, match=named):
        verified.read(np.array([6, 7, 8]))
    with pytest.raises(ShardError, match="Damaged samples"):
        verified.samples(np.array([7]))


@pytest.mark.parametrize(
    ("name", "message"),
    [("png", "damaged image|neither PNG"), ("text", "bytes are no text: 'utf-8'")],
)
def test_an_encoded_sample_that_is_damaged_is_named(tmp_path, name, message):
    folder = make(tmp_path / "kinds")
    dataset = ShardedDataset(folder, "train")
    reader = dataset._mapped.reader(0)
    _, offsets = reader.ragged(name)
    path = folder / dataset.shards[0].file
    content = bytearray(path.read_bytes())
    content[reader.place(f"fields/{name}/data").offset + int(offsets[2])] ^= 255
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"2\.x.*: .*({message})"):
        SampleReader(ShardedDataset(folder, "train"), fields=[name]).read(np.arange(4))


def test_a_truncated_or_missing_shard_is_named_with_its_samples(tmp_path: Path) -> None:
    folder = make(tmp_path / "kinds")
    path = folder / "shards/train-00001.h5"
    content = path.read_bytes()
    path.write_bytes(content[:-100])
    with pytest.raises(ShardError, match=r"train-00001\.h5 has .* bytes, not .* samples 4 to 7"):
        SampleReader(ShardedDataset(folder, "train")).read(np.arange(NUM))
    reseal(folder, "shards/train-00001.h5")
    with pytest.raises(ShardError, match=r"train-00001\.h5 .*(truncated|damaged)"):
        SampleReader(ShardedDataset(folder, "train")).read(np.arange(NUM))
    path.unlink()
    with pytest.raises(ShardError, match=r"train-00001\.h5 is missing; .* samples 4 to 7"):
        SampleReader(ShardedDataset(folder, "train")).read(np.arange(NUM))


def test_a_damaged_chunk_is_named(tmp_path: Path) -> None:
    folder = make(tmp_path / "kinds")
    import h5py

    path = folder / "shards/train-00002.h5"
    with h5py.File(path, "r") as file:
        start = file["fields/zstd"].id.get_chunk_info(0).byte_offset
    content = bytearray(path.read_bytes())
    content[start : start + 4] = b"\0\0\0\0"
    path.write_bytes(content)
    with pytest.raises(ShardError, match=r"'fields/zstd' in .*-00002\.h5 is damaged: rows 0 to 1"):
        SampleReader(ShardedDataset(folder, "train"), fields=["zstd"]).read(np.array([8, 9]))


def test_images_of_one_shape_are_one_tensor_and_the_batch_keeps_its_memory(folder):
    """Decoded side by side into memory that is used again only when the batch is gone."""
    loader = BatchLoader(
        ShardedDataset(folder, "train"),
        TrainOrder(num_samples=NUM, seed=0, global_batch_size=3),
        fields=["png", "label"],
    )
    kept = list(loader)
    assert len(kept) == NUM // 3
    for batch in kept:
        assert batch["png"].shape == (3, 2, 3, 3)
        assert batch["png"][:, 0, 0, 0].tolist() == batch["sample_id"].tolist()
        batch["png"] += 1  # it may be written to
