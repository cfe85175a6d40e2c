"""Appending: old shards stay, new samples come into new ones, the manifest is the next version."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from headrace.errors import DataError
from headrace.files.manifest import Manifest
from headrace.files.manifest_file import parse_manifest, read_manifest
from headrace.packing.append import extending, read_base
from headrace.packing.column_notes import note_texts
from headrace.packing.opened_source import OpenedSource
from headrace.packing.pack_step import pack
from headrace.packing.target import DatasetFolder, PackTarget
from headrace.recipe.site import StoreOptions
from headrace.shards.dataset import ShardedDataset
from headrace.shards.inspection import verify_dataset
from headrace.steps.context import StepContext
from support.packing import write_image

MakeContext = Callable[..., StepContext]
APPEND = {"append": True, "max_quarantined": 0.5}


def shard_bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "shards").iterdir()}


def raising(error: type[BaseException]) -> Callable[..., None]:
    def call(*_: object) -> None:
        raise error

    return call


def sources(folder: Path, manifest: Manifest) -> list[str]:
    found: list[str] = []
    for split, num_samples in manifest.splits.items():
        found += ShardedDataset(folder, split).sources(np.arange(num_samples))
    return found


def test_new_samples_come_into_new_shards(image_source, packs, make_context, in_process):
    first = packs(image_source, pack=APPEND)
    folder = Path(first["dataset"])
    before, old = shard_bytes(folder), read_manifest(folder)
    for number in range(40, 50):
        write_image(image_source / "cow" / f"{number}.png", number)
    (image_source / "cat/broken.png").write_bytes(b"")
    context = make_context(image_source, pack=APPEND)
    again = pack(context, in_process)
    manifest = read_manifest(folder)
    told = (context.usage.nodes, context.usage.samples, context.usage.fetched_bytes)
    assert told == (1, 10, 0)
    assert context.usage.stored_bytes == manifest.num_bytes - old.num_bytes
    assert (again["dataset"], again["reused"]) == (first["dataset"], False)
    assert (old.version, manifest.version, manifest.num_samples) == (1, 2, 50)
    assert {name: shard_bytes(folder)[name] for name in before} == before
    assert manifest.fingerprint != old.fingerprint
    assert manifest.classes == ("cat", "dog", "cow")
    assert sum(counts["cow"] for counts in manifest.class_counts.values()) == 10
    assert [item.path for item in manifest.quarantined] == ["cat/broken.png"]
    assert len(set(sources(folder, manifest))) == 50
    assert verify_dataset(folder) == ()
    assert parse_manifest((folder / "manifest-1.json").read_bytes(), "manifest-1.json") == old
    context = make_context(image_source, pack=APPEND)
    assert pack(context, in_process) == {**again, "reused": True}
    assert context.usage is None
    # statistics are over old and new samples
    images = ShardedDataset(folder, "train").gather("image", np.arange(manifest.splits["train"]))
    np.testing.assert_allclose(manifest.statistics["image"].mean, [images.mean()])


def test_killed_while_appending(image_source, packs, monkeypatch):
    """The old version stays whole, and the second try gives the bytes the first would have."""
    folder = Path(packs(image_source, pack=APPEND)["dataset"])
    old = read_manifest(folder)
    for number in range(40, 60):
        write_image(image_source / "cat" / f"{number}.png", number)

    with monkeypatch.context() as patch:
        patch.setattr("headrace.packing.pack_step.merge", raising(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            packs(image_source, pack=APPEND)
    assert read_manifest(folder) == old
    assert verify_dataset(folder) == ()
    expected = shard_bytes(folder)
    write_image(image_source / "cat" / "60.png", 60)  # given up for another set of samples
    packs(image_source, pack=APPEND)
    manifest = read_manifest(folder)
    assert manifest.num_samples == len(set(sources(folder, manifest))) == 61
    assert verify_dataset(folder) == ()
    assert all(shard_bytes(folder)[shard.file.split("/")[1]] for shard in old.shards)
    assert set(expected) <= set(shard_bytes(folder))


def test_a_dataset_whose_manifest_is_damaged_is_told_of(image_source, packs, caplog):
    """It may be the one to add to: a new one is made, and why, and what to do, is said."""
    folder = Path(packs(image_source, pack=APPEND)["dataset"])
    (folder.parent / "tiny-interrupted").mkdir()
    write_image(image_source / "cat" / "60.png", 60)
    whole = (folder / "manifest.json").read_bytes()
    (folder / "manifest.json").write_bytes(whole.replace(b"cat", b"cow"))
    made = packs(image_source, pack=APPEND)
    assert made["dataset"] != str(folder)
    [told] = made["passed_over"]
    assert told in caplog.text
    assert f"{folder}/manifest.json is damaged" in told
    assert "Restore the file" in told
    (folder / "manifest.json").write_bytes(whole)
    again = packs(image_source, pack=APPEND)
    assert "passed_over" not in again


def test_other_settings_make_a_new_dataset(image_source, packs):
    first = packs(image_source, pack=APPEND)
    other = packs(image_source, {"split_seed": 3}, pack=APPEND)
    assert first["dataset"] != other["dataset"]


@pytest.mark.parametrize("change", ["index", "removed"])
def test_samples_are_added_whatever_became_of_those_packed_before(image_source, packs, change):
    """Rows of an index move when it is edited, and files may go: neither is read again."""
    files = sorted(image_source.glob("*/*.png"))
    (image_source / "l.csv").write_text(index_of(image_source, files, "label,n,path", 1))
    keys = {"index": "l.csv", "labels": "index"}
    first = packs(image_source, keys, pack=APPEND)
    if change == "removed":
        for file in files:
            file.unlink()
        files = []
    files += [write_image(image_source / f"new/{number}.png", number) for number in range(9)]
    (image_source / "l.csv").write_text(index_of(image_source, files[::-1], "path,label,n", 12345))
    again = packs(image_source, keys, pack=APPEND)
    assert (again["dataset"], again["num_samples"]) == (first["dataset"], 49)


def test_what_is_new_is_found_without_an_object_a_sample(tmp_path, packs, make_context):
    """Memory for it is less than 150 bytes a sample: what is compared lies in columns."""
    folder = tmp_path / "source"
    folder.mkdir()
    table = pa.table({"n": np.arange(20_000), "kind": ["dog", "cat"] * 10_000})
    parquet.write_table(table, folder / "a.parquet")
    keys = {"labels": "field", "label_field": "kind"}
    packed = packs(folder, keys, {**APPEND, "shard_samples": 5_000})
    parquet.write_table(table[:5_000], folder / "b.parquet")
    context = make_context(folder, keys)
    opened = OpenedSource.of(context.recipe, context.site, context.check).listed(context.check)
    target = PackTarget(folder=DatasetFolder(Path(packed["dataset"])), url=None, s3=StoreOptions())
    base = read_base(target)
    extending(base, opened.listing)  # imports
    tracemalloc.start()
    found = extending(base, opened.listing)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    new = found.samples.take(np.flatnonzero(found.earlier_index < 0))
    assert new.paths.to_pylist()[::4_999] == ["b.parquet#0000", "b.parquet#4999"]
    assert peak_bytes < 150 * len(opened.listing.samples)


def index_of(source: Path, files: list[Path], header: str, number: int) -> str:
    lines = []
    for file in files:
        row = {"path": file.relative_to(source), "label": file.parent.name, "n": number}
        lines.append(",".join(str(row[column]) for column in header.split(",")))
    return "\n".join([header, *lines])


SHARES = {"train": 0.7, "val": 0.2, "test": 0.1}
KINDS = {
    "plain": {"stratify": False, "splits": SHARES},
    "stratified": {"stratify": True, "splits": SHARES},
    "grouped": {"group_field": "g", "splits": SHARES},
    "folds": {"folds": 3, "splits": {"train": 0.8, "test": 0.2}},
    "grouped folds": {"folds": 3, "splits": {"train": 0.8, "test": 0.2}, "group_field": "g"},
    "given": {"split_field": "s"},
}


def grown(source: Path, total: int) -> dict[str, dict[str, str]]:
    """Write an index of so many images; every tenth is of a group of its own."""
    rows: dict[str, dict[str, str]] = {}
    for number in range(total):
        file = source / "grown" / f"{number * 37 % 101:03d}.png"
        if not file.exists():
            write_image(file, number)
        name = file.relative_to(source).as_posix()
        group, split = f"g{number % 23}", ("train", "val", "test")[number % 3]
        rows[name] = {"path": name, "label": "ab"[number % 2], "g": group, "s": split}
    lines = ["path,label,g,s", *(",".join(row.values()) for row in rows.values())]
    (source / "l.csv").write_text("\n".join(lines))
    return rows


def places(folder: Path) -> dict[str, tuple[str, int | None]]:
    """Split and fold of each sample."""
    manifest, found = read_manifest(folder), {}
    for split in manifest.splits:
        paths = ShardedDataset(folder, split).sources(np.arange(manifest.splits[split]))
        shards = [shard for shard in manifest.shards if shard.split == split]
        folds = [shard.fold for shard in shards for _ in range(shard.num_samples)]
        found |= {path: (split, fold) for path, fold in zip(paths, folds, strict=True)}
    return found


@pytest.mark.parametrize("pack_options", [APPEND, {}], ids=["append", "anew"])
@pytest.mark.parametrize("kind", KINDS)
def test_samples_stay_in_their_splits_and_folds(tmp_path, packs, kind, pack_options):
    """New samples bring all near the shares; groups stay whole; appending keeps old shards."""
    source, keys = tmp_path / "source", {"index": "l.csv", "labels": "index", **KINDS[kind]}
    if "grouped" in kind:
        keys["stratify"] = False
    before: dict[str, tuple[str, int | None]] = {}
    old: dict[str, bytes] = {}
    for total in (40, 55, 100):
        rows = grown(source, total)
        made = packs(source, keys, pack=pack_options)
        folder = Path(made["dataset"])
        now = places(folder)
        assert len(now) == total
        assert {path: now[path] for path in before} == before
        if pack_options:
            bytes_now = shard_bytes(folder)
            assert {name: bytes_now[name] for name in old} == old
            old = bytes_now
        elif before:
            assert f"{len(before)} samples stay in their splits" in " ".join(made["notes"])
        if "grouped" in kind:
            of_group: dict[str, set[object]] = {}
            for path, place in now.items():
                of_group.setdefault(rows[path]["g"], set()).add(place)
            assert all(len(found) == 1 for found in of_group.values())
        elif kind == "given":
            assert all(rows[path]["s"] == split for path, (split, _) in now.items())
        else:
            counts = read_manifest(folder).splits
            for name, share in keys["splits"].items():
                assert abs(counts[name] - share * total) < 1.01
        if "folds" in kind:
            sizes = read_manifest(folder).folds["train"]
            assert max(sizes) - min(sizes) <= (1 if kind == "folds" else 9)
        before = now
    assert verify_dataset(folder) == ()


@pytest.mark.parametrize("kind", ["plain", "folds"])
def test_samples_that_change_their_split_are_counted(tmp_path, packs, kind):
    """With other options of splits all samples are divided anew; the earlier splits still count."""
    source, keys = tmp_path / "source", {"index": "l.csv", "labels": "index", **KINDS[kind]}
    grown(source, 40)
    first = places(Path(packs(source, keys)["dataset"]))
    grown(source, 60)
    made = packs(source, {**keys, "split_seed": 1})
    now = places(Path(made["dataset"]))
    num_moved = sum(now[path] != place for path, place in first.items())
    assert num_moved > 0
    assert f"{num_moved} of 40 samples changed their split or fold" in " ".join(made["notes"])
    assert made["notes"] == note_texts(read_manifest(Path(made["dataset"])).notes)
    grown(source, 61)  # the same options come before more samples
    last = places(Path(packs(source, keys)["dataset"]))
    assert {path: last[path] for path in first} == first


@pytest.mark.parametrize("pack_options", [APPEND, {}], ids=["append", "anew"])
def test_a_shard_of_another_plan_is_packed_again(tmp_path, packs, monkeypatch, pack_options):
    """An interrupted pack leaves shards; meanwhile other samples come, so that its plan changes."""
    source, keys = tmp_path / "source", {**KINDS["plain"], "labels": "none"}
    options = {**pack_options, "shard_samples": 8}
    files = [write_image(source / f"{number}.png", number) for number in range(70)]

    def only(stop: int) -> None:
        for number, file in enumerate(files):
            hidden = tmp_path / "hidden" / file.name
            hidden.parent.mkdir(exist_ok=True)
            place = file if file.exists() else hidden
            place.rename(file if number < stop else hidden)

    only(20)
    packs(source, keys, options)
    only(70)
    with monkeypatch.context() as patch:
        patch.setattr("headrace.packing.pack_step.merge", raising(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            packs(source, keys, options)
    only(45)
    before = places(Path(packs(source, keys, options)["dataset"]))
    only(70)
    folder = Path(packs(source, keys, options)["dataset"])
    now = places(folder)
    assert len(now) == 70
    assert {path: now[path] for path in before} == before
    assert verify_dataset(folder) == ()


def test_an_earlier_dataset_that_cannot_be_read_is_told_of(image_source, packs):
    folder = Path(packs(image_source)["dataset"])
    for plan in (folder / "parts").glob("*.plan.arrow"):
        plan.unlink()
    write_image(image_source / "cat" / "60.png", 60)
    made = packs(image_source)
    assert "divided without regard to an earlier dataset" in " ".join(made["notes"])


def test_a_lost_shard_is_packed_again_alone(image_source, packs, make_context, in_process):
    """Also when another dataset was packed since, which kept the splits of this one."""
    folder = Path(packs(image_source)["dataset"])
    write_image(image_source / "cat" / "60.png", 60)
    packs(image_source)
    (image_source / "cat" / "60.png").unlink()
    old, lost = shard_bytes(folder), sorted((folder / "shards").iterdir())[0]
    others = {file: file.stat().st_mtime_ns for file in (folder / "shards").iterdir()}
    lost.unlink()
    pack(make_context(image_source), in_process)
    assert shard_bytes(folder) == old
    now = {file: file.stat().st_mtime_ns for file in (folder / "shards").iterdir()}
    assert [file for file in now if now[file] != others[file]] == [lost]


def test_a_class_that_changes_is_not_ignored(tmp_path, packs):
    """Packed shards hold the old one."""
    source, keys = tmp_path / "source", {"index": "l.csv", "labels": "index"}
    grown(source, 40)
    packs(source, keys, pack=APPEND)
    index = (source / "l.csv").read_text().splitlines()
    index[1] = index[1].replace(",a,", ",b,")
    (source / "l.csv").write_text("\n".join(index))
    grown_file = write_image(source / "grown/new.png", 7)
    with (source / "l.csv").open("a") as file:
        file.write(f"\ngrown/{grown_file.name},b,g1,train")
    with pytest.raises(DataError, match=r"1 samples changed .*000\.png"):
        packs(source, keys, pack=APPEND)


@pytest.mark.parametrize("kind", ["given", "grouped"])
def test_a_sample_is_not_moved_to_another_split_unsaid(tmp_path, packs, kind):
    keys = {"index": "l.csv", "labels": "index", "stratify": False, **KINDS[kind]}
    source = tmp_path / "source"
    grown(source, 40)
    folder = Path(packs(source, keys, pack=APPEND)["dataset"])
    grown(source, 41)
    where = places(folder)
    apart = {split: path for path, (split, _) in where.items()}
    text = (source / "l.csv").read_text().splitlines()
    for number, line in enumerate(text):
        path, label, group, split = line.split(",")
        if path == apart["test"]:
            text[number] = f"{path},{label},{group},train"
            if kind == "grouped":
                other = next(row for row in text if row.startswith(apart["train"]))
                text[number] = f"{path},{label},{other.split(',')[2]},{split}"
    (source / "l.csv").write_text("\n".join(text))
    with pytest.raises(DataError, match="cannot be kept"):
        packs(source, keys, pack=APPEND)
    assert places(folder) == where
