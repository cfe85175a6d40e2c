"""The loader: right samples, position, encoded fields, map-style datasets in workers."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning.fabric.utilities.data import _set_sampler_epoch
from torch.utils.data import DataLoader

from headrace.data import decode
from headrace.data.dataset import SampleDataset, SampleReader
from headrace.data.loader import BatchLoader
from headrace.data.order import TrainOrder
from headrace.errors import DataError, ManifestError, StepError
from headrace.fields import image
from headrace.files.manifest import FieldInfo, Manifest, ShardInfo
from headrace.shards.dataset import ShardedDataset
from headrace_bench.shards import ShardWriter
from support.shards import write_dataset, write_identified
from support.source_files import png

NUM_SAMPLES = 47
BATCH = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("loader") / "dataset"
    image = np.arange(NUM_SAMPLES * 4, dtype=np.uint8).reshape(NUM_SAMPLES, 2, 2)
    label = np.arange(NUM_SAMPLES, dtype=np.int64) % 3
    fields = {"image": image, "label": label}
    write_dataset(folder, fields, splits={"train": NUM_SAMPLES}, shard_samples=10)
    return folder


def make_loader(folder: Path, *, rank: int = 0, world_size: int = 1, **options) -> BatchLoader:
    order = TrainOrder(
        num_samples=NUM_SAMPLES,
        seed=1,
        global_batch_size=BATCH,
        rank=rank,
        world_size=world_size,
    )
    return BatchLoader(ShardedDataset(folder, "train"), order, **options)


def samples(loader: BatchLoader) -> list[int]:
    return [sample for batch in loader for sample in batch["sample_id"].tolist()]


@pytest.mark.parametrize("prefetch", [False, True])
def test_batches_hold_the_fields_of_the_samples_in_order(folder, prefetch):
    loader = make_loader(folder, prefetch=prefetch)
    batches = list(loader)
    assert len(batches) == len(loader) == 7
    for number, batch in enumerate(batches):
        ids = loader.order.batch(0, number)
        assert batch["sample_id"].tolist() == ids.tolist()
        assert batch["label"].tolist() == (ids % 3).tolist()
        assert batch["image"].dtype == torch.uint8
        assert batch["image"][:, 0, 0].tolist() == (ids * 4 % 256).tolist()
    assert loader.num_samples == 42
    assert loader.wait_s > 0


@settings(deadline=None, max_examples=25)
@given(epoch=st.integers(0, 3), stop=st.integers(0, 7), before=st.sampled_from([1, 2, 3, 6]))
def test_a_loader_goes_on_where_another_stopped(folder, epoch, stop, before):
    """Pains 30: at any break point, in any epoch, with another world size."""
    firsts = [make_loader(folder, rank=rank, world_size=before) for rank in range(before)]
    seen: list[int] = []
    for loader in firsts:
        loader.set_epoch(epoch)
        iterator = iter(loader)
        for _ in range(stop):
            seen += next(iterator)["sample_id"].tolist()
    positions = [loader.state_dict() for loader in firsts]
    assert positions == [{"epoch": epoch, "global_index": stop * BATCH}] * before

    second = make_loader(folder)
    second.load_state_dict(positions[0])
    second.set_epoch(epoch)
    assert len(second) == 7
    rest = samples(second)
    assert len(rest) == (7 - stop) * BATCH
    whole = make_loader(folder)
    whole.set_epoch(epoch)
    assert sorted(seen + rest) == sorted(samples(whole))
    second.set_epoch(epoch + 1)
    assert len(samples(second)) == 7 * BATCH


@pytest.mark.parametrize("prefetch", [0, 2])
def test_waiting_is_the_time_until_a_batch_is_there_not_that_of_its_user(
    folder, prefetch, monkeypatch
):
    """By a clock that goes on only where a batch is awaited (7) and where one is used (100)."""
    now = [0.0]
    read = BatchLoader._read_groups

    def slowly(self, *arguments):
        for group in read(self, *arguments):
            now[0] += 7
            yield group

    monkeypatch.setattr(BatchLoader, "_read_groups", slowly)
    monkeypatch.setattr("headrace.data.loader.time.perf_counter", lambda: now[0])
    loader = make_loader(folder, prefetch=prefetch)
    groups = 0
    for _ in loader:
        groups = now[0] % 100 // 7
        now[0] += 100
    assert loader.wait_s == 7 * groups > 0


def test_the_epoch_is_looked_up_at_the_first_batch(folder):
    """Lightning makes the iterator before it sets the epoch."""
    loader = make_loader(folder)
    iterator = iter(loader)
    loader.set_epoch(2)
    assert next(iterator)["sample_id"].tolist() == loader.order.batch(2, 0).tolist()


def test_lightning_finds_where_to_set_the_epoch(folder):
    loader, other = make_loader(folder), make_loader(folder)
    _set_sampler_epoch(loader, 3)
    other.set_epoch(3)
    assert samples(loader) == samples(other) != samples(make_loader(folder))


def test_a_position_off_the_batches_is_refused(folder):
    with pytest.raises(StepError, match="not a boundary"):
        make_loader(folder).load_state_dict({"epoch": 0, "global_index": 7})


@pytest.mark.parametrize(
    ("workers", "context"),
    [(0, None), (1, "fork"), (3, "fork"), (8, "fork"), (1, "forkserver")],
)
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
def test_map_style_dataset_gives_right_data_in_workers(folder, workers, context):
    """Pains 24: whatever was opened before the workers started, and however many they are."""
    dataset = SampleDataset(folder, "train")
    assert dataset[5]["sample_id"].item() == dataset[5 - NUM_SAMPLES]["sample_id"].item() == 5
    loader = DataLoader(
        dataset, batch_size=10, num_workers=workers, multiprocessing_context=context
    )
    batches = list(loader)
    assert torch.cat([batch["sample_id"] for batch in batches]).tolist() == list(range(NUM_SAMPLES))
    assert torch.cat([b["image"][:, 0, 0] for b in batches]).tolist() == [
        i * 4 % 256 for i in range(NUM_SAMPLES)
    ]


def test_map_style_dataset_with_fields_and_transforms(folder):
    def doubled(sample):
        return {**sample, "label": sample["label"] * 2}

    dataset = SampleDataset(folder, "train", fields=["label"], transforms=[doubled])
    assert len(dataset) == NUM_SAMPLES
    assert [int(sample["label"]) for sample in dataset] == [i % 3 * 2 for i in range(NUM_SAMPLES)]
    assert set(dataset[0]) == {"label", "sample_id"}
    for index in (NUM_SAMPLES, -NUM_SAMPLES - 1):
        with pytest.raises(IndexError, match="which has 47"):
            dataset[index]
    with pytest.raises(ManifestError, match="no field 'lable'"):
        SampleDataset(folder, "train", fields=["lable"])


def encoded(folder: Path, items: list[bytes]) -> ShardedDataset:
    (folder / "shards").mkdir(parents=True)
    writer = ShardWriter("train", np.arange(len(items)), [f"{i}.png" for i in range(len(items))])
    writer.add_ragged("image", items)
    written = writer.publish(folder / "shards" / "train-00000.h5")
    shard = ShardInfo(
        file="shards/train-00000.h5",
        split="train",
        num_samples=len(items),
        num_bytes=written.num_bytes,
        xxh3_128=written.xxh3_128,
    )
    field = FieldInfo(name="image", dtype="uint8", layout="ragged", encoding="png")
    write_identified(
        folder,
        Manifest(
            name="encoded",
            fingerprint="",
            pack_key="0",
            fields=(field,),
            splits={"train": len(items)},
            shards=(shard,),
        ),
    )
    return ShardedDataset(folder, "train")


def test_encoded_images_are_decoded_in_order(tmp_path):
    dataset = encoded(tmp_path, [png(shade) for shade in range(9)])
    order = TrainOrder(num_samples=9, seed=0, global_batch_size=3)
    batches = list(BatchLoader(dataset, order))
    assert len(batches) == 3
    for batch in batches:
        assert batch["image"].shape == (3, 2, 3)
        assert batch["image"][:, 1, 2].tolist() == batch["sample_id"].tolist()


def test_encoded_images_of_unequal_shape_are_named(tmp_path):
    dataset = encoded(tmp_path, [png(1), png(2, size=(4, 4))])
    with pytest.raises(DataError, match=r"\(2, 3\) \(0.png\) and uint8 \(4, 4\) \(1.png\)"):
        SampleReader(dataset).read(np.arange(2))


def test_arrays_that_came_alone_may_be_written_to(tmp_path):
    array = SampleReader(encoded(tmp_path, [png(3)])).samples(np.arange(1))[0]["image"]
    array[0] = 1
    assert (array[0] == 1).all()


def test_a_batch_that_fails_is_over_when_all_threads_are_done_with_it(tmp_path, monkeypatch):
    """Shards of a batch may be unmapped once it is over."""
    dataset = encoded(tmp_path, [b"damaged", *(png(shade) for shade in range(3))])
    decoded = image.read_image
    failed, done = threading.Event(), threading.Event()

    def slowly(content: bytes, *, turns: bool):
        if content == b"damaged":
            failed.set()
            return decoded(content, turns=turns)
        assert failed.wait(60)
        done.wait(0.2)
        done.set()
        return decoded(content, turns=turns)

    monkeypatch.setattr(image, "read_image", slowly)
    monkeypatch.setattr("headrace.data.decode._num_threads", lambda: 2)
    with pytest.raises(DataError, match=r"0\.png"):
        SampleReader(dataset).read(np.arange(4))
    assert done.is_set()


def test_a_worker_of_torchs_loader_decodes_by_itself(monkeypatch):
    """Eight workers with eight threads each would fight for the cores."""
    monkeypatch.setattr("headrace.data.decode.get_worker_info", lambda: object())
    assert decode._num_threads() == 1
