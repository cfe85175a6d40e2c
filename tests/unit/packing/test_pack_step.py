"""The pack step from folder to dataset: content, reuse, resume, bad samples, full disks."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from headrace.errors import (
    DataError,
    HeadraceError,
    ManifestError,
    StepCancelledError,
    StorageFullError,
)
from headrace.files.manifest import Manifest
from headrace.files.manifest_file import read_manifest
from headrace.packing import pack_shard as worker
from headrace.packing import pack_step
from headrace.packing.pack_step import pack
from headrace.packing.target import DatasetFolder, PackTarget
from headrace.recipe.site import StoreOptions
from headrace.shards.columns import MEMORY_BYTES
from headrace.shards.dataset import ShardedDataset
from headrace.shards.inspection import verify_dataset
from headrace.shards.writer import ShardBuilder
from headrace.steps.context import StepContext
from support.small_disk import fill, small_disk

MakeContext = Callable[..., StepContext]


def packed(outputs: dict[str, Any]) -> tuple[Path, Manifest]:
    folder = Path(outputs["dataset"])
    return folder, read_manifest(folder)


def shard_bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "shards").iterdir()}


def inodes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in (folder / "shards").iterdir()}


def test_every_image_is_there_once_with_its_label(image_source, make_context, in_process):
    context = make_context(image_source)
    outputs = pack(context, in_process)
    folder, manifest = packed(outputs)
    assert manifest.splits == {"train": 20, "val": 10, "test": 10}
    assert [shard.num_samples for shard in manifest.shards] == [8, 8, 4, 8, 2, 8, 2]
    assert manifest.class_counts["train"] == {"cat": 15, "dog": 5}
    assert folder.name == f"tiny-{manifest.pack_key[:12]}"
    seen, ids = [], []
    for split in manifest.splits:
        dataset = ShardedDataset(folder, split)
        every = np.arange(len(dataset))
        images, labels = dataset.gather("image", every), dataset.gather("label", every)
        assert images.shape[1:] == (3, 4)
        for image, label, source in zip(images, labels, dataset.sources(every), strict=True):
            assert source == f"{manifest.classes[label]}/{image[0, 0]:02d}.png"
            assert np.unique(image).size == 1
            seen.append(source)
        ids += dataset.gather("sample_id", every).tolist()
    assert len(set(seen)) == 40
    assert ids == list(range(40))
    assert verify_dataset(folder) == ()
    assert outputs == {
        "dataset": str(folder),
        "fingerprint": manifest.fingerprint,
        "num_samples": 40,
        "num_shards": 7,
        "num_bytes": manifest.num_bytes,
        "num_quarantined": 0,
        "reused": False,
    }
    assert (context.current.done, context.current.total, context.current.unit) == (
        40,
        40,
        "samples",
    )


def test_what_planning_frees_is_given_back(image_source, packs, monkeypatch):
    """The rest is in `test_large_blocks_are_given_back_once_they_are_freed`."""
    asked: list[bool] = []
    monkeypatch.setattr(pack_step, "give_back_large_blocks", lambda: asked.append(True))
    packs(image_source)
    assert asked == [True]


def test_statistics_are_those_of_the_training_split(image_source, packs):
    folder, manifest = packed(packs(image_source))
    images = ShardedDataset(folder, "train").gather("image", np.arange(20)).astype(float)
    found = manifest.statistics["image"]
    np.testing.assert_allclose((found.mean[0], found.std[0]), (images.mean(), images.std()))


def test_same_bytes_whatever_the_order_of_the_work(
    image_source, packs, make_context, backwards, tmp_path
):
    one, first = packed(packs(image_source))
    other = make_context(image_source, site_folder=tmp_path / "other")
    two, second = packed(pack(other, backwards))
    assert one != two
    assert shard_bytes(one) == shard_bytes(two)
    assert first.fingerprint == second.fingerprint


def test_second_pack_reuses_and_touched_files_pack_again(image_source, packs, in_process):
    first = packs(image_source)
    calls = in_process.num_calls
    again = packs(image_source)
    assert again == {**first, "reused": True}
    assert in_process.num_calls == calls
    lower = packs(image_source, pack={"max_quarantined": 0.0})
    assert lower["reused"]
    other_seed = packs(image_source, {"split_seed": 1})
    assert other_seed["dataset"] != first["dataset"]
    Image.new("L", (4, 3), 99).save(image_source / "cat" / "01.png")
    changed = packs(image_source)
    assert changed["dataset"] != first["dataset"]
    assert changed["fingerprint"] != first["fingerprint"]


def test_values_of_an_index_that_change_are_packed_again(array_source, packs):
    def pack_with(target: str, rows: range) -> dict[str, Any]:
        lines = [f"{n:02d}.npy,{target if n == 7 else n}" for n in rows]
        (array_source / "ages.csv").write_text("\n".join(["path,age", *lines]))
        rules = {"label_field": "age", "label_kind": "value"}
        return packs(array_source, {"index": "ages.csv", "labels": "index", **rules})

    first = pack_with("50", range(20))
    again, corrected = pack_with("50", range(19, -1, -1)), pack_with("51", range(20))
    assert [each["reused"] for each in (first, again, corrected)] == [False, True, False]
    folder, manifest = packed(corrected)
    found = []
    for split in manifest.splits:
        dataset = ShardedDataset(folder, split)
        found += dataset.gather("label", np.arange(len(dataset))).tolist()
    assert sorted(found) == sorted({*range(20), 51} - {7})


def test_killed_pack_goes_on_where_it_was(image_source, packs, monkeypatch):
    folder, _ = packed(packs(image_source))
    expected, before = shard_bytes(folder), inodes(folder)
    # as a kill after the second shard's file, before its record, would have left it
    (folder / "manifest.json").unlink()
    (folder / "parts/train-00001.json").unlink()
    (folder / "shards/.train-00001.h5.0.tmp").write_bytes(b"half")
    published: list[str] = []
    finish = ShardBuilder.finish

    def record(self: ShardBuilder) -> Any:
        published.append(self.path.name)
        return finish(self)

    monkeypatch.setattr(ShardBuilder, "finish", record)
    outputs = packs(image_source)
    assert not outputs["reused"]
    assert published == ["train-00001.h5"]
    assert shard_bytes(folder) == expected
    kept = {name: inode for name, inode in inodes(folder).items() if name not in published}
    assert kept == {name: before[name] for name in kept}


def test_kill_9_in_the_middle_of_a_shard(image_source, packs, make_context, in_process, tmp_path):
    """The process is gone before its third shard has its name; packing again gives the bytes."""
    reference, _ = packed(packs(image_source))
    context = make_context(image_source, site_folder=tmp_path / "killed")

    def killed() -> None:
        calls = iter(range(100))
        finish = ShardBuilder.finish

        def end(self: ShardBuilder) -> Any:
            if next(calls) == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            return finish(self)

        ShardBuilder.finish = end  # type: ignore[method-assign]  # of this process only
        pack(context, in_process)

    child = multiprocessing.get_context("fork").Process(target=killed)
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    (folder,) = (path for path in (tmp_path / "killed/datasets").iterdir() if path.is_dir())
    assert len(list((folder / "shards").glob(".*.tmp"))) == 1
    kept = inodes(folder)
    again, _ = packed(packs(image_source, site_folder=tmp_path / "killed"))
    assert again == folder
    assert shard_bytes(again) == shard_bytes(reference)
    whole = {name: inode for name, inode in kept.items() if not name.startswith(".")}
    assert len(whole) == 2
    assert {name: inodes(again)[name] for name in whole} == whole


@pytest.mark.parametrize("damage", ["missing", "truncated", "flipped"])
def test_only_the_damaged_shard_is_packed_again(image_source, packs, damage):
    folder, manifest = packed(packs(image_source))
    expected = shard_bytes(folder)
    path = folder / "shards/val-00000.h5"
    if damage == "missing":
        path.unlink()
    elif damage == "truncated":
        path.write_bytes(expected[path.name][:-1])
    else:
        path.write_bytes(expected[path.name][:-1] + b"\x7f")
        (folder / "manifest.json").unlink()  # sizes match, so that only a resume looks closer
    again = packs(image_source)
    assert not again["reused"]
    assert again["fingerprint"] == manifest.fingerprint
    assert shard_bytes(folder) == expected


def test_damaged_record_packs_its_shard_again(image_source, packs):
    folder, manifest = packed(packs(image_source))
    (folder / "manifest.json").unlink()
    (folder / "parts/test-00000.json").write_text("{")
    assert packs(image_source)["fingerprint"] == manifest.fingerprint


def test_bad_images_are_quarantined_and_listed(image_source, packs):
    (image_source / "cat/01.png").write_bytes(b"")
    good = (image_source / "cat/02.png").read_bytes()
    (image_source / "cat/02.png").write_bytes(good[:40])
    outputs = packs(image_source, pack={"max_quarantined": 0.1})
    folder, manifest = packed(outputs)
    assert (outputs["num_samples"], outputs["num_quarantined"]) == (38, 2)
    assert {item.path: item.reason for item in manifest.quarantined} == {
        "cat/01.png": "the file is empty",
        "cat/02.png": "damaged image: cut or broken header",
    }
    assert verify_dataset(folder) == ()
    ids = np.concatenate(
        [
            ShardedDataset(folder, split).gather("sample_id", np.arange(num_samples))
            for split, num_samples in manifest.splits.items()
        ]
    )
    assert len(np.unique(ids)) == 38


def test_too_many_bad_images_fail_with_the_first_reasons(image_source, packs):
    for number in range(1, 8):
        (image_source / ("cat" if number % 4 else "dog") / f"{number:02d}.png").write_bytes(b"x")
    with pytest.raises(DataError) as caught:
        packs(image_source, pack={"max_quarantined": 0.1})
    message = str(caught.value)
    assert "7 of 40 samples cannot be read, more than the share of 0.1" in message
    assert message.count("neither PNG, JPEG, BMP, WebP, GIF nor TIFF") == 5
    assert "and 2 more" in message
    assert not caught.value.failure_class.is_retried
    # a higher threshold takes the shards that are there
    outputs = packs(image_source, pack={"max_quarantined": 0.5})
    assert outputs["num_quarantined"] == 7
    with pytest.raises(DataError, match="7 of 40"):
        packs(image_source, pack={"max_quarantined": 0.1})


def test_mixed_shapes_name_two_files_and_the_way_out(image_source, packs):
    Image.new("L", (5, 3)).save(image_source / "dog/04.png")
    with pytest.raises(DataError) as caught:
        packs(image_source)
    message = str(caught.value)
    assert "'dog/04.png' has shape (3, 5) uint8, 'cat/01.png' has (3, 4) uint8" in message
    assert "pack.fields.image.keep to 'encoded'" in message
    folder, manifest = packed(packs(image_source, pack={"images": "encoded"}))
    assert manifest.field("image").layout == "ragged"
    assert manifest.field("image").encoding == "png"
    dataset = ShardedDataset(folder, "train")
    every = np.arange(20)
    with dataset.holding(every):
        images = [item.tobytes() for item in dataset.items("image", every)]
    sources = dataset.sources(every)
    assert images == [(image_source / source).read_bytes() for source in sources]
    assert verify_dataset(folder) == ()


def test_mixed_encodings(image_source, packs):
    Image.new("L", (4, 3)).save(image_source / "dog/extra.jpg")
    _, manifest = packed(packs(image_source, pack={"images": "encoded"}))
    assert manifest.field("image").encoding == "image"


def test_source_that_changes_meanwhile(image_source, packs, monkeypatch):
    opened = worker.open_source

    def grow(*arguments: Any) -> Any:
        (image_source / "dog/00.png").write_bytes(b"longer than before" * 9)
        return opened(*arguments)

    monkeypatch.setattr(worker, "open_source", grow)
    with pytest.raises(DataError, match=r"dog/00\.png was written to since"):
        packs(image_source)


def test_packed_dataset_by_path(image_source, packs, make_context, in_process, tmp_path):
    first = packs(image_source)
    by_path = make_context(None, {"path": first["dataset"]})
    assert pack(by_path, in_process) == {**first, "reused": True}
    (Path(first["dataset"]) / "shards/train-00000.h5").unlink()
    with pytest.raises(DataError, match=r"train-00000\.h5 is missing"):
        pack(by_path, in_process)
    with pytest.raises(ManifestError, match="is not a dataset"):
        packs(None, {"path": str(tmp_path)})


class Held:
    """A fleet that packs only once it is let go."""

    def __init__(self, fleet: Any) -> None:
        self.fleet = fleet
        self.started, self.go = threading.Event(), threading.Event()

    def __call__(self, folder: Any) -> Any:
        self.started.set()
        assert self.go.wait(90)
        return self.fleet(folder)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_second_pack_at_once_waits_and_reuses_or_gives_up(image_source, make_context, in_process):
    held = Held(in_process)
    contexts = [make_context(image_source) for _ in range(3)]
    results: dict[int, Any] = {}

    def run(number: int, fleet: Any) -> None:
        try:
            results[number] = pack(contexts[number], fleet)
        except HeadraceError as error:
            results[number] = error

    threads = [
        threading.Thread(target=run, args=(number, fleet))
        for number, fleet in enumerate([held, in_process, in_process])
    ]
    threads[0].start()
    assert held.started.wait(90)
    for number in (1, 2):
        threads[number].start()
        wait_for(lambda number=number: "waiting" in contexts[number].current.phase)
    contexts[2].folder.cancel.write_text("no more")
    threads[2].join(30)
    assert isinstance(results[2], StepCancelledError)
    held.go.set()
    for thread in threads[:2]:
        thread.join(30)
    assert [results[0]["reused"], results[1]["reused"]] == [False, True]
    assert results[0]["fingerprint"] == results[1]["fingerprint"]
    assert in_process.num_calls == 7


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    with small_disk(tmp_path / "disk", "64k") as folder:
        yield folder


def test_no_room_is_told_before_packing(image_source, packs, in_process, tiny_disk):
    """Nor does it help to try again at once: the disk is as full as before."""
    with pytest.raises(StorageFullError, match=r"[\d,]+ bytes needed, [\d,]+ bytes free") as caught:
        packs(image_source, site_folder=tiny_disk)
    assert in_process.num_calls == 0
    assert not caught.value.failure_class.is_retried


def as_table(source: Path) -> tuple[Path, dict[str, Any]]:
    """A table of 900 rows beside the images; a shard holds 300."""
    table = pa.table({f"c{n}": np.arange(900.0) + n for n in range(8)} | {"text": ["é"] * 900})
    parquet.write_table(table, source.parent / "table.parquet")
    return source.parent / "table.parquet", {"shard_samples": 300}


@pytest.mark.parametrize("memory_bytes", [MEMORY_BYTES, 100], ids=["", "spools on disk"])
@pytest.mark.parametrize("form", ["images", "table"])
def test_disk_that_fills_up_leaves_nothing_half_written(
    form, memory_bytes, image_source, packs, in_process, tmp_path, monkeypatch
):
    """Whole shards are kept, and once there is room the rest is packed."""
    source, options = (image_source, {}) if form == "images" else as_table(image_source)
    monkeypatch.setattr("headrace.shards.columns.MEMORY_BYTES", memory_bytes)
    with small_disk(tmp_path / "disk", "1m") as disk, monkeypatch.context() as others_write:
        others_write.setattr("headrace.packing.pack_step.require_room", lambda *_: None)
        (disk / "others").write_bytes(bytes(2**20 - 72 * 2**10))
        with pytest.raises(StorageFullError, match=r"bytes needed, [\d,]+ bytes free") as caught:
            packs(source, pack=options, site_folder=disk)
        assert not caught.value.failure_class.is_retried
        num_tried = in_process.num_calls
        assert num_tried >= 1
        (folder,) = (path for path in (disk / "datasets").iterdir() if path.is_dir())
        assert not (folder / "manifest.json").exists()
        records = {path.stem for path in (folder / "parts").glob("*-?????.json")}
        assert all(not path.name.startswith(".") for path in (folder / "shards").iterdir())
        assert records <= {path.stem for path in (folder / "shards").iterdir()}
        before = inodes(folder)
        (disk / "others").unlink()
        again, manifest = packed(packs(source, pack=options, site_folder=disk))
        assert again == folder
        assert before.items() <= inodes(folder).items()
        assert verify_dataset(folder) == ()
        assert manifest.num_samples == (40 if form == "images" else 900)


def test_a_disk_that_is_full_once_all_is_packed_is_told_by_name(tmp_path):
    with small_disk(tmp_path / "disk", "64k") as disk:
        target = PackTarget(folder=DatasetFolder(disk), url=None, s3=StoreOptions())
        target.folder.parts.mkdir()
        fill(disk)
        with pytest.raises(StorageFullError, match="bytes needed"):
            target.remember("sources", "key")
