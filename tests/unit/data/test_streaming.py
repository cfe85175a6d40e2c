"""Splits that are not on the node: each sample once, in bounded room, fetched ahead."""

from __future__ import annotations

import shutil
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.waiting import wait_until

from headrace.data.dataset import SampleDataset
from headrace.data.module import HeadraceDataModule
from headrace.data.order import FIRST_WINDOW, EachOnceOrder, needed_first
from headrace.data.streaming import ReadAhead, ShardDemand, shards_held
from headrace.errors import ShardError, UserError
from headrace.files.manifest_file import read_manifest
from headrace.objects.store import LocalStore, open_store
from headrace.recipe.recipe import DataSpec, Recipe
from headrace.shards.dataset import ShardedDataset
from headrace.shards.shard_locations import ShardSource
from headrace.staging.gang_store import Traffic, node_source
from support.loaders import settings_of_ranks
from support.shards import write_dataset
from support.training import make_recipe

NUM_SAMPLES, SHARD, BATCH = 60, 5, 6


def shards_in(scratch: Path) -> list[Path]:
    """Shards that lie there, also those that are still coming."""
    return [path for path in scratch.rglob("*.h5*") if path.suffix != ".lock"]


def opened(folder: Path, shards: object) -> LocalStore:
    return LocalStore(str(folder))


class WatchedStore(LocalStore):
    """A folder that notes how many shards lie in the scratch whenever one is fetched."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        super().__init__(str(folder))
        self.scratch = scratch
        self.fetched: list[str] = []
        self.most_files = 0

    def download(self, path, target, tick=None):
        checksum = super().download(path, target, tick)
        self.fetched.append(path)
        self.most_files = max(self.most_files, len(shards_in(self.scratch)))
        return checksum


@pytest.fixture
def afar(tmp_path) -> Path:
    fields = {
        "image": np.arange(NUM_SAMPLES * 2, dtype=np.uint8).reshape(NUM_SAMPLES, 2),
        "label": np.arange(NUM_SAMPLES, dtype=np.int64) % 3,
    }
    splits = {"train": 50, "val": 10}
    write_dataset(tmp_path / "afar", fields, splits=splits, shard_samples=SHARD)
    return tmp_path / "afar"


def near_part(afar: Path, name: str, shards: int = 0) -> Path:
    """A folder with the manifest and the first shards."""
    folder = afar.with_name(name)
    (folder / "shards").mkdir(parents=True)
    shutil.copy(afar / "manifest.json", folder)
    for path in sorted((afar / "shards").iterdir())[:shards]:
        shutil.copy(path, folder / "shards")
    return folder


def module(folder: Path, source: ShardSource, rank=0, world_size=1, overlap=False, **data: Any):
    keys = {"batch": BATCH, "seed": 1, "drop_last": False, "num_epochs": 2, **data}
    ranks = settings_of_ranks(folder, world_size, source=source, overlap=overlap, **keys)
    return HeadraceDataModule(ranks[rank])


def ids(batches) -> list[int]:
    return [sample for batch in batches for sample in batch["sample_id"].tolist()]


@pytest.mark.parametrize("near", [0, 3])
@pytest.mark.parametrize("options", [{"shuffle": False}, {"shuffle_window": 2, "read_ahead": 3}])
def test_each_sample_once_in_bounded_room(afar, near, options):
    """The split has ten shards, the node room for a few of them."""
    folder = near_part(afar, "near", near)
    room = shards_held(DataSpec(**options))
    assert room < 6
    found = []
    for rank in range(2):
        store = WatchedStore(afar, folder / "stream")
        source = ShardSource(open=lambda _, store=store: store, room=room)
        data = module(folder, source, rank, 2, **options)
        for epoch in range(2):
            data.train_dataloader().set_epoch(epoch)
            batches = list(data.train_dataloader())
            for batch in batches:
                assert torch.equal(batch["image"][:, 0], (batch["sample_id"] * 2).to(torch.uint8))
            found += ids(batches)
        assert len(store.fetched) >= 2 * (10 - near) - room
        assert store.most_files <= room
        scratch = data.train_dataloader().dataset.places.scratch()
        assert scratch.max_held <= room
        scratch.close()
        assert not shards_in(folder / "stream")
        mapped = set(Path("/proc/self/maps").read_text().split())
        ours = [path for path in mapped if path.startswith(str(folder / "stream"))]
        assert len(ours) <= room * (rank + 1)
    assert sorted(found) == sorted(list(range(50)) * 2)


def test_the_order_is_that_of_a_dataset_that_is_whole(afar):
    """Where shards lie does not change the training."""
    folder = near_part(afar, "near")
    source = ShardSource(open=partial(opened, afar), room=4)
    streamed = module(folder, source, shuffle_window=2)
    whole = module(afar, None, shuffle_window=2)
    assert ids(streamed.train_dataloader()) == ids(whole.train_dataloader())
    assert ids(streamed.val_dataloader()) == ids(whole.val_dataloader()) == list(range(50, 60))


def test_a_split_on_s3_is_trained_on(afar, moto_server, moto_bucket):
    """Nothing but the manifest is on the node."""
    url = f"{moto_bucket}/datasets/small"
    store = open_store(url, moto_server.options)
    for path in (afar / "shards").iterdir():
        store.upload(path, f"shards/{path.name}")
    folder = near_part(afar, "near")
    source = ShardSource.at(url, moto_server.options, room=4)
    data = module(folder, source, shuffle_window=2)
    batches = list(data.train_dataloader())
    assert sorted(ids(batches)) == list(range(50))
    for batch in batches:
        assert torch.equal(batch["image"][:, 1], (batch["sample_id"] * 2 + 1).to(torch.uint8))
    assert data.train_dataloader().dataset.places.scratch().max_held <= 4
    assert ids(data.val_dataloader()) == list(range(50, 60))


def test_each_shard_is_fetched_once_an_epoch_and_before_it_is_needed(afar):
    folder = near_part(afar, "near")
    store = WatchedStore(afar, folder / "stream")
    dataset = ShardedDataset(folder, "train", ShardSource(open=lambda _: store, room=3))
    order = EachOnceOrder(num_samples=50, global_batch_size=5)
    ahead = ReadAhead(dataset, order, num_epochs=1)
    with ahead.reading(0, 0):
        ahead.wait()
    assert sorted(path[-5:-3] for path in store.fetched) == ["00", "01", "02"]
    for number in range(order.num_batches):
        with ahead.reading(0, number):
            dataset.gather("label", order.batch(0, number))
    ahead.wait()
    assert len(store.fetched) == len(set(store.fetched)) == 10


class HeldBackStore(LocalStore):
    """A folder whose files come only when so many are asked for at once."""

    def __init__(self, folder: Path, at_once: int) -> None:
        super().__init__(str(folder))
        self.fetched: list[str] = []
        self._met = threading.Barrier(at_once)

    def download(self, path, target, tick=None):
        self._met.wait(30)
        self.fetched.append(path[-5:-3])
        return super().download(path, target, tick)


def test_several_shards_are_fetched_at_once(afar):
    """None of them would come alone."""
    folder = near_part(afar, "near")
    store = HeldBackStore(afar, at_once=4)
    dataset = ShardedDataset(folder, "train", ShardSource(open=lambda _: store, room=8))
    order = EachOnceOrder(num_samples=50, global_batch_size=5)
    ahead = ReadAhead(dataset, order, num_epochs=1)
    with ahead.reading(0, 0):
        ahead.wait()
    assert sorted(store.fetched) == [f"{number:02}" for number in range(8)]


def test_an_epoch_starts_with_its_first_shards_there(afar):
    """They are fetched while the last batches of the epoch before are worked on."""
    folder = near_part(afar, "near")
    store = WatchedStore(afar, folder / "stream")
    data = module(folder, ShardSource(open=lambda _: store, room=4), shuffle_window=2)
    loader = data.train_dataloader()
    dataset, order = loader.dataset, loader.order
    ahead = ReadAhead(dataset, order, num_epochs=2)
    with ahead.reading(0, order.num_batches - 1):
        ahead.wait()
    scratch = dataset.places.scratch()
    first = dataset.shards_with(order.batch(1, 0)).tolist()
    assert first
    assert all(scratch.holds(shard) for shard in first)
    assert scratch.max_held <= 4
    fetched = len(store.fetched)
    with ahead.reading(1, order.num_batches - 1):
        ahead.wait()
    last = dataset.shards_with(order.batch(1, order.num_batches - 1))
    assert len(store.fetched) <= fetched + len(last), "fetched for an epoch that will not be"


def test_when_shards_are_needed():
    class Far:
        far = frozenset({0, 1, 3})

    class Dataset:
        places = Far()

        def shards_with(self, indices):
            return np.unique(indices // 10)

    order = EachOnceOrder(num_samples=40, global_batch_size=5)
    demand = ShardDemand(Dataset(), order, 0)
    assert demand.after(0) == {0: 0, 1: 2, 3: 6}
    assert list(demand.after(1)) == [0, 1, 3]
    assert demand.after(2) == {1: 2, 3: 6}
    assert demand.after(7) == {3: 7}
    assert demand.after(8) == {}


def test_a_folder_as_source_is_mapped_not_copied(afar):
    folder = near_part(afar, "near", shards=2)
    data = module(folder, ShardSource.at(str(afar)))
    assert sorted(ids(data.train_dataloader())) == list(range(50))
    assert not (folder / "stream").exists()
    with pytest.raises(ShardError, match="are mapped at their location"):
        data.train_dataloader().dataset.places.scratch()


@pytest.mark.parametrize(
    ("url", "is_mapped"), [("datasets/small", True), ("s3://bucket/small", False)]
)
def test_a_node_with_a_part_and_no_group_maps_the_rest_when_that_is_a_folder(
    tmp_path, monkeypatch, url, is_mapped
):
    monkeypatch.chdir(tmp_path)
    Path(url).mkdir(parents=True)
    source = node_source(url, None, 3, None, Traffic())
    assert (source.folder is not None, source.open is None) == (is_mapped, is_mapped)


def test_a_map_style_dataset_takes_what_is_missing_from_its_source(afar):
    samples = SampleDataset(near_part(afar, "near", shards=2), "train", source=str(afar))
    assert [int(sample["sample_id"]) for sample in samples] == list(range(50))


def test_a_folder_that_is_being_filled_is_read_in_the_order_of_one_that_is_whole(afar):
    """What is needed is brought and stays, in whatever state the copy is."""
    orders = []
    for number, near in enumerate((0, 4, 11)):
        folder = near_part(afar, f"near-{number}", near)
        source = node_source(str(afar), None, None, None, Traffic())
        data = module(folder, source, overlap=True, prefetch=2)
        loader = data.train_dataloader()
        first = next(iter(loader))
        assert set(first["label"].tolist()) <= {0, 1, 2}
        orders.append([])
        for epoch in (0, 1):
            loader.set_epoch(epoch)
            orders[-1].append(ids(loader))
        assert ids(data.val_dataloader()) == list(range(50, 60))
        assert len(list((folder / "shards").glob("*.h5"))) == 12
    assert orders[0] == orders[1] == orders[2]
    assert all(sorted(order) == list(range(50)) for order in orders[0])
    whole = module(afar, None)
    whole.train_dataloader().set_epoch(1)
    assert ids(whole.train_dataloader()) == orders[0][1]


def overlapping(**data: Any) -> Recipe:
    given = {"model": {"_target_": "x.Y"}, "stage": {"overlap": True}, "seed": 1, "data": data}
    return make_recipe(given)


def test_the_first_batches_need_the_shards_of_the_first_window(afar):
    manifest = read_manifest(afar)
    files = needed_first(overlapping(), manifest)
    assert files is not None
    assert len(files) == FIRST_WINDOW
    data = module(afar, None, overlap=True)
    order = data.train_dataloader().order
    dataset = data.train_dataloader().dataset
    for number in range(3):
        needed = dataset.shards_with(order.batch(0, number)).tolist()
        assert {dataset.shards[shard].file for shard in needed} <= files
    assert needed_first(overlapping(shuffle=False), manifest) == {manifest.shards[0].file}
    assert needed_first(make_recipe({"model": {"_target_": "x.Y"}}), manifest) is None


def test_a_whole_shuffle_of_what_is_far_is_refused(afar):
    folder = near_part(afar, "near")
    source = ShardSource(open=partial(opened, afar), room=3)
    with pytest.raises(UserError, match=r"10 of 10 shards .* holds 3 .*\n.*shuffle_window"):
        module(folder, source)
    with pytest.raises(UserError, match="draws from the whole split, but 10 of 10"):
        module(folder, source, sampling="balanced")


def test_a_batch_of_too_many_shards_is_refused(afar):
    folder = near_part(afar, "near")
    source = ShardSource(open=partial(opened, afar), room=2)
    dataset = ShardedDataset(folder, "train", source)
    with pytest.raises(ShardError, match="samples of 3 shards, more than the 2"):
        dataset.gather("label", np.array([0, 10, 20]))


def test_a_shard_that_comes_damaged_is_named(afar):
    folder = near_part(afar, "near")
    with (afar / "shards" / "train-00003.h5").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"?")
    source = ShardSource(open=partial(opened, afar), room=3)
    data = module(folder, source, shuffle=False)
    with pytest.raises(ShardError, match=r"train-00003\.h5 came with .* 5 samples of split"):
        list(data.train_dataloader())
    left = partial(shards_in, folder / "stream")
    assert not [path for path in left() if path.name == "train-00003.h5"]
    # another thread may just have fetched it again, to find the same
    wait_until(lambda: not [path for path in left() if "00003" in path.name], 90, "none to be left")


def test_threads_may_hold_the_same_shards(afar, monkeypatch):
    """A shard that one thread reads is not mapped anew by another that comes for it."""
    folder = near_part(afar, "near")
    dataset = ShardedDataset(folder, "train", ShardSource(open=partial(opened, afar), room=2))
    busy, overlaps = threading.Lock(), []
    moved = dataset._moved

    def watched(number: int, path: Path | None) -> None:
        if not busy.acquire(blocking=False):
            overlaps.append(number)
            return
        moved(number, path)
        busy.release()

    monkeypatch.setattr(dataset.places, "_moved", watched)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            places = [np.array([first, first + 5]) for first in (0, 0, 10, 10, 20) * 40]
            found = list(pool.map(partial(dataset.gather, "label"), places))
    finally:
        sys.setswitchinterval(interval)
    assert not overlaps
    assert all((values == at % 3).all() for values, at in zip(found, places, strict=True))
