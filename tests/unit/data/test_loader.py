"""The loader: right samples, position, encoded fields, workers, reading ahead."""

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
from headrace.data.ahead import Payoff, read_ahead, read_ahead_as
from headrace.data.dataset import SampleDataset, SampleReader
from headrace.data.loader import BatchLoader
from headrace.data.order import TrainOrder
from headrace.errors import DataError, ManifestError, StepError
from headrace.fields import image
from headrace.files.manifest import FieldInfo
from headrace.shards.dataset import ShardedDataset
from headrace_bench.shards import ShardWriter
from support.shards import write_dataset, write_fields
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
    field = FieldInfo(name="image", dtype="uint8", layout="ragged", encoding="png")

    def add(writer: ShardWriter, ids: np.ndarray) -> None:
        writer.add_ragged("image", [items[i] for i in ids])

    write_fields(folder, [field], add, splits={"train": len(items)}, source="{}.png")
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
    monkeypatch.setattr("headrace.data.decode.num_cores", lambda: 2)
    with pytest.raises(DataError, match=r"0\.png"):
        SampleReader(dataset).read(np.arange(4))
    assert done.is_set()


def test_a_worker_of_torchs_loader_decodes_by_itself(monkeypatch):
    """Eight workers with eight threads each would fight for the cores."""
    monkeypatch.setattr("headrace.data.decode.get_worker_info", lambda: object())
    assert decode.num_cores() == 1


@pytest.fixture
def two_cores():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_readers_copy_with_one_core_each_and_leave_the_others_alone(two_cores):
    """Else the threads of all readers wait for one another: seen to be 100 times slower."""
    found = list(read_ahead(lambda parts: (torch.get_num_threads() for _ in parts), range(6), 4))
    assert found == [1] * 6
    assert torch.get_num_threads() == 2
    later = []
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert later == [2]


def texts(parts):
    return map(str, parts)


@pytest.mark.parametrize("depth", [0, 1, 2, 3, 5])
def test_results_come_in_order(depth):
    assert list(read_ahead(texts, range(3, 14), depth)) == [str(n) for n in range(3, 14)]


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_each_thread_is_told_its_share(depth):
    shares = []

    def begin(share):
        shares.append(list(share))
        return texts(share)

    list(read_ahead(begin, range(10), depth))
    assert sorted(number for share in shares for number in share) == list(range(10))
    assert len(shares) == -(-depth // 2)


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_no_more_than_asked_for_is_read_ahead(depth):
    began = []
    results = read_ahead(lambda parts: map(began.append, parts), range(100), depth)
    next(results)
    results.close()  # all readers have ended now
    assert len(began) <= depth + 1


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_an_error_comes_in_its_turn_and_readers_end(depth):
    def read(number):
        if number == 7:
            raise LookupError("seven")
        return number

    results = read_ahead(lambda parts: map(read, parts), range(20), depth)
    assert [next(results) for _ in range(7)] == list(range(7))
    with pytest.raises(LookupError, match="seven"):
        next(results)
    assert not [t for t in threading.enumerate() if t.name.startswith("headrace-load")]


class Fickle(Payoff):
    """Changes its mind after each part."""

    def saw(self, read_s, worked_s):
        assert read_s >= 0
        assert worked_s >= 0
        self.is_ahead = not self.is_ahead


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_results_come_in_order_however_often_reading_ahead_begins_and_ends(depth):
    fickle, ahead, here = Fickle(), (texts, depth), (texts, 0)
    results = read_ahead_as(lambda: ahead if fickle.is_ahead else here, range(3, 24), fickle.saw)
    assert list(results) == [str(number) for number in range(3, 24)]
    assert not [t for t in threading.enumerate() if t.name.startswith("headrace-load")]


def test_copies_are_made_here_while_nobody_works_on_them(folder, monkeypatch):
    loader, threads = make_loader(folder), set()
    gathered = loader.reader.gatherer.find

    def find(fields, indices):
        threads.add(threading.current_thread())
        return gathered(fields, indices)

    monkeypatch.setattr(loader.reader.gatherer, "find", find)
    while loader._payoff.is_ahead:
        loader._payoff.saw(1.0, 0.01)
    assert len(samples(loader)) == 42
    assert threads == {threading.current_thread()}
    threads.clear()
    while not loader._payoff.is_ahead:
        loader._payoff.saw(1.0, 1.0)
    assert len(samples(loader)) == 42
    assert threading.current_thread() not in threads


def test_reading_ahead_begins_again_with_the_work():
    payoff = Payoff()
    while payoff.is_ahead:
        payoff.saw(read_s=1.0, worked_s=0.01)
    for _ in range(100):
        payoff.saw(read_s=1.0, worked_s=0.2)
        assert not payoff.is_ahead
    for _ in range(100):
        payoff.saw(read_s=1.0, worked_s=0.3)
    for _ in range(100):
        payoff.saw(read_s=1.0, worked_s=0.2)
        assert payoff.is_ahead


@given(st.lists(st.booleans(), max_size=2000))
@settings(deadline=None, max_examples=20)
def test_changes_become_rare(works):
    payoff, changes = Payoff(), 0
    for is_working in works:
        before = payoff.is_ahead
        payoff.saw(read_s=1.0, worked_s=float(is_working))
        changes += before != payoff.is_ahead
    assert changes <= 8  # 8 parts until the first, then twice as many each time
