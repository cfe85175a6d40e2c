"""Every form of source gives the shards, fingerprint and pack key that it always gave."""

from __future__ import annotations

import itertools
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from PIL import Image
from pyarrow import compute as pc

from headrace.errors import DataError
from headrace.fields.field_kind import kind_of_bytes
from headrace.files.manifest_file import read_manifest
from headrace.objects.store import LocalStore
from headrace.packing import blocks
from headrace.packing.opened_source import OpenedSource
from headrace.packing.sample_table import SampleRef
from headrace.packing.samples import Unreadable
from headrace.packing.sources import listing
from headrace.packing.sources.open import open_source
from headrace.packing.sources.row_container import ColumnOfRows
from headrace.packing.sources.rows import RowSource
from headrace.recipe.dataset import PackField
from headrace.shards.dataset import ShardedDataset
from headrace.shards.inspection import verify_dataset
from support.packing import MakeContext
from support.source_files import read_all, spec_of
from support.source_forms import SOURCES, written
from support.stores import afar

OF_NUMBERS = ["parquet", "arrow", "hdf5-groups", "numbers"]


def digest(packed: dict[str, Any]) -> str:
    """Hash of what a dataset holds, and of the keys by which it is found."""
    manifest = read_manifest(Path(packed["dataset"]))
    names = {"version", "fingerprint", "pack_key", "splits", "folds", "statistics", "class_counts"}
    left_out = [sample.path for sample in manifest.quarantined]
    return xxhash.xxh3_64_hexdigest(
        f"{manifest.model_dump_json(include=names)} {left_out}".encode()
    )


def options_of(form: str) -> dict[str, Any]:
    is_of_rows = form.partition("-")[0] in ("parquet", "arrow", "hdf5", "numbers", "csv", "jsonl")
    fields = {"fields": {"tokens": {"mixed": "ragged"}}} if form == "images" else {}
    return {"shard_samples": 700 if is_of_rows else 50, "max_quarantined": 0.5, **fields}


def assert_shards_hold_what_is_read(source: Path, dataset: dict[str, Any], packed: Path) -> None:
    """Values that a shard holds under a path are those that the source reads there."""
    opened, values = read_all(spec_of(source, **dataset))
    refs = opened.list_samples()
    by_path = {ref.path: (ref, read) for ref, read in zip(refs, values, strict=True)}
    manifest, num_found = read_manifest(packed), 0
    of_split: list[tuple[str, list[Any]]] = []
    for split in manifest.splits:
        data = ShardedDataset(packed, split)
        rows = np.arange(len(data))
        found = [by_path[path] for path in data.sources(rows)]
        num_found += len(found)
        of_split.append((split, found))
        for field in opened.fields:
            if data.manifest.field(field.name).layout == "fixed":
                expected = [as_array(read[field.name]) for _, read in found]
                np.testing.assert_array_equal(data.gather(field.name, rows), np.stack(expected))
                continue
            with data.holding(rows):
                items = [item.tobytes() for item in data.items(field.name, rows)]
            assert items == [as_bytes(read[field.name]) for _, read in found]
        if manifest.classes:
            labels = [manifest.classes[label] for label in data.gather("label", rows)]
            assert labels == [ref.label for ref, _ in found]
    assert all(ref.split in (None, split) for split, found in of_split for ref, _ in found)
    groups = [{ref.group for ref, _ in found} - {None} for _, found in of_split]
    assert sum(map(len, groups)) == len(set().union(*groups)) or refs[0].split
    assert verify_dataset(packed) == ()
    assert num_found == manifest.num_samples == sum(not isinstance(v, Unreadable) for v in values)


def as_array(value: Any) -> Any:
    is_file = isinstance(value, bytes)
    return kind_of_bytes(value).to_array(value, PackField())[0] if is_file else np.asarray(value)


def as_bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


@pytest.mark.parametrize("form", SOURCES)
def test_a_source_gives_the_same_dataset(
    form: str, tmp_path: Path, packs: Callable[..., dict[str, Any]]
) -> None:
    write, dataset, expected = SOURCES[form]
    packed = packs(written(tmp_path / "source", write), dataset, options_of(form))
    assert digest(packed) == expected
    assert_shards_hold_what_is_read(tmp_path / "source", dataset, Path(packed["dataset"]))


@pytest.mark.parametrize(
    ("form", "is_afar"),
    [*((form, False) for form in SOURCES), *((form, True) for form in ("files", "tar", "parquet"))],
)
def test_a_file_that_changes_or_vanishes_while_its_source_is_read(
    form: str, is_afar: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, dataset, _ = SOURCES[form]
    folder = written(tmp_path / "source", write)
    store = afar(folder) if is_afar else LocalStore(str(folder))
    monkeypatch.setattr("headrace.packing.sources.open.open_store", lambda *_: store)
    source = open_source(spec_of("s3://bucket/in" if is_afar else folder, **dataset))
    refs = source.list_samples()
    path = Path(refs[0].path.rpartition("#")[0] or refs[0].path)
    name = next(str(each) for each in (path, *path.parents) if (folder / each).is_file())
    assert list(source.read(refs[:1]))
    for change, reason in ((lambda: store.write(name, b"other"), "was written to since"),
                           (lambda: store.delete(name), "is gone since")):  # fmt: skip
        change()
        with pytest.raises(DataError, match=f"{re.escape(name)} {reason} the source"):
            list(source.read(refs[:1]))


def half(write: Callable[[Path], None]) -> Callable[[Path], None]:
    """What writes every second of the files that `write` does."""

    def write_half(folder: Path) -> None:
        write(folder)
        for path in sorted(folder.rglob("*.*"), key=lambda path: zlib.crc32(path.name.encode()))[
            ::2
        ]:
            path.unlink()

    return write_half


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("files", "09b7bb529846d8c4"),
        ("tar", "93783440748e8c2b"),
        ("webdataset-splits", "4e9954643c66d5dd"),
        ("csv", "76b9fdf7f5bf1509"),
        ("numbers", "9a6d312a19aa5adc"),
    ],
)
def test_appending_gives_the_same_dataset(
    form: str, expected: str, tmp_path: Path, packs: Callable[..., dict[str, Any]]
) -> None:
    write, dataset, _ = SOURCES[form]
    options = {**options_of(form), "append": True}
    first = packs(written(tmp_path / "source", half(write)), dataset, options)
    packed = packs(written(tmp_path / "source", write), dataset, options)
    assert packed["dataset"] == first["dataset"]
    assert digest(packed) == expected


@pytest.mark.parametrize("way", ["columns", "rows", "both"])
@pytest.mark.parametrize("form", OF_NUMBERS)
def test_rows_are_packed_by_column_or_one_by_one(
    form: str,
    way: str,
    tmp_path: Path,
    packs: Callable[..., dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Either way gives the same shards, and where all can go by column, all do."""
    in_columns, one_by_one = RowSource._in_columns, blocks.samples_of
    calls, numbers = itertools.count(), list[int]()

    def read_columns(source: RowSource, refs: Sequence[SampleRef]) -> Mapping[str, ColumnOfRows]:
        by_column = way == "columns" or (way == "both" and next(calls) % 2)
        found = in_columns(source, refs)
        rows = range(len(refs))
        return (
            found
            if by_column
            else {
                name: replace(each, values=[each.value(row) for row in rows])
                for name, each in found.items()
            }
        )

    def samples_of(paths: Iterable[str], columns: Mapping[str, ColumnOfRows]) -> object:
        numbers.append(1)
        return one_by_one(paths, columns)

    monkeypatch.setattr(RowSource, "_in_columns", read_columns)
    monkeypatch.setattr(blocks, "samples_of", samples_of)
    monkeypatch.setattr(listing, "READ_BYTES", 2**13)
    write, dataset, expected = SOURCES[form]
    packed = packs(written(tmp_path / "source", write), dataset, options_of(form))
    assert digest(packed) == expected
    assert (not numbers) == (way == "columns")


def test_the_pack_key_of_many_samples_is_the_same(
    tmp_path: Path, make_context: MakeContext
) -> None:
    """Names and groups are hashed in parts of 16,384."""
    numbers = pa.array(np.arange(2**15 + 9))
    groups = pc.cast(pc.divide(numbers, 10), pa.string())

    def write(folder: Path) -> None:
        with pa.ipc.new_stream(
            folder / "a.arrow", (table := pa.table({"n": numbers, "who": groups})).schema
        ) as file:
            file.write_table(table)
        (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "a.arrow"}]}))

    context = make_context(written(tmp_path / "source", write), {"group_field": "who"})
    opened = OpenedSource.of(context.recipe, context.site, context.check)
    assert opened.listed(context.check).key == "2b639090e8bd1349cb992aed077a40cd"


def key_of(make_context, source: Path, pack: dict[str, Any] | None = None, **dataset: Any) -> str:
    context = make_context(source, dataset, pack)
    return OpenedSource.of(context.recipe, context.site, lambda: None).listed(lambda: None).key[:12]


def write(source: Path, suffix: str, *folders: str) -> Path:
    for number, folder in enumerate(folders):
        for name in ("1", "2"):
            path = source / folder / f"{name}{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (4, 4), number).save(path, "PNG")
            os.utime(path, ns=(1, 1_000_000 + number))
    return source


KEYS = {
    "classes": ("887903da5fd7", ("cat", "dog"), {}, {}),
    "deeper": ("03872da66698", ("cat/a", "cat/b", "dog"), {}, {}),
    "one class": ("7cabeac4fb4f", ("cat",), {}, {}),
    "no labels": ("a84d6f0b943d", ("cat", "dog"), {"labels": "none"}, {}),
    "options": ("bbc5ee850660", ("cat", "dog"), {}, {"fields": {"image": {"resize": [2, 2]}}}),
}


@pytest.mark.parametrize("name", KEYS)
def test_keys_of_older_releases(tmp_path: Path, make_context, name: str) -> None:
    key, folders, dataset, pack = KEYS[name]
    assert key_of(make_context, write(tmp_path / "in", ".png", *folders), pack, **dataset) == key


def test_what_exif_may_turn_gets_another_key(tmp_path: Path, make_context) -> None:
    source = write(tmp_path / "in", ".jpg", "cat", "dog")
    as_before = key_of(make_context, source, {"fields": {"image": {"orientation": "keep"}}})
    assert as_before == "d533a9204284"
    assert key_of(make_context, source, {"fields": {"image": {}}}) != as_before
