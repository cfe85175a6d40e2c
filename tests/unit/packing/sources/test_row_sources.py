"""Parquet, Hugging Face and HDF5: rows are samples, columns are fields."""

from __future__ import annotations

import gc
import io
import itertools
import json
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from headrace.errors import DataError, RecipeError
from headrace.objects import fsspec_store
from headrace.packing.column_notes import note_texts
from headrace.packing.sample_table import SampleTable
from headrace.packing.samples import Opening, Source, Unreadable
from headrace.packing.sources.arrays import Hdf5Source
from headrace.packing.sources.arrow import HuggingFaceSource
from headrace.packing.sources.open import open_source, with_format
from headrace.packing.sources.rows import RowSource
from headrace.packing.sources.source_store import SourceStore
from headrace.recipe.dataset import DatasetSpec
from headrace.shards import foreign
from headrace.shards.foreign import ForeignFile
from support.source_files import png, read_all, spec_of
from support.source_forms import SOURCES
from support.stores import afar

NUM = 25
FEATURES = {
    "image": {"_type": "Image"},
    "label": {"names": ["dog", "cat"], "_type": "ClassLabel"},
}


def table(first: int = 0, num: int = NUM) -> pa.Table:
    numbers = range(first, first + num)
    return pa.table(
        {
            "image": [{"bytes": png(n), "path": None} for n in numbers],
            "label": [n % 2 for n in numbers],
            "caption": [f"caption {n}" for n in numbers],
            "weight": pa.array([n / 2 for n in numbers], pa.float32()),
            "box": [[[n, 1], [2, 3]] for n in numbers],
            "tags": [["a"] * (n % 3) for n in numbers],
            "who": [f"p{n % 4}" for n in numbers],
        }
    ).replace_schema_metadata({"huggingface": json.dumps({"info": {"features": FEATURES}})})


def save_to_disk(folder: Path, whole: pa.Table, num_files: int = 2) -> None:
    """As `datasets` lays a dataset out, with a cache beside."""
    folder.mkdir(parents=True)
    names = [f"data-{n:05d}-of-{num_files:05d}.arrow" for n in range(num_files)]
    size = -(-whole.num_rows // num_files)
    for number, name in enumerate([*names, "cache-123.arrow"]):
        part = whole.slice(number * size, size)
        with pa.ipc.new_stream(folder / name, whole.schema) as writer:
            writer.write_table(part, max_chunksize=7)
    (folder / "state.json").write_text(
        json.dumps({"_data_files": [{"filename": name} for name in names]})
    )
    (folder / "dataset_info.json").write_text("{}")


def write_parquet(folder: Path) -> None:
    parquet.write_table(table(0, 14), folder / "a.parquet", row_group_size=5)
    parquet.write_table(table(14, NUM - 14), folder / "b.parquet", row_group_size=100)


def test_patterns_choose_the_files_that_hold_rows(tmp_path: Path) -> None:
    """`dataset.include` counts for containers too, and says so when it leaves none."""
    for folder in ("old", "new"):
        (tmp_path / folder).mkdir()
        parquet.write_table(table(), tmp_path / folder / "rows.parquet")
    refs = open_source(spec_of(tmp_path, include=["new/*.parquet"])).list_samples()
    assert {ref.path.partition("#")[0] for ref in refs} == {"new/rows.parquet"}
    assert len(open_source(spec_of(tmp_path)).list_samples()) == 2 * NUM
    with pytest.raises(RecipeError, match=r"None of the 2 containers .* matches dataset.include"):
        open_source(spec_of(tmp_path, include=["**/*.png"])).list_samples()


@pytest.mark.parametrize("form", ["parquet", "huggingface"])
def test_columns_are_fields(tmp_path: Path, form: str) -> None:
    if form == "parquet":
        write_parquet(tmp_path)
    else:
        save_to_disk(tmp_path / "d", table())
        tmp_path = tmp_path / "d"
    spec = spec_of(tmp_path, group_field="who")
    assert with_format(spec).format == form
    source, values = read_all(spec, -1)
    assert [(f.name, f.kind, f.dtype or f.encoding) for f in source.fields] == [
        ("image", "image", ""), ("caption", "text", ""), ("weight", "value", "float32"),
        ("box", "array", ""), ("tags", "text", "json"),
    ]  # fmt: skip
    assert source.classes == ("dog", "cat")
    refs = source.list_samples()
    assert [ref.path for ref in refs] == sorted(ref.path for ref in refs)
    assert [ref.label for ref in refs] == [("dog", "cat")[n % 2] for n in range(NUM)]
    assert refs[3].group == "p3"
    values.reverse()
    for n, sample in enumerate(values):
        assert sample["image"] == png(n)
        assert (sample["caption"], sample["weight"]) == (f"caption {n}", n / 2)
        np.testing.assert_array_equal(sample["box"], [[n, 1], [2, 3]])
        assert json.loads(sample["tags"]) == ["a"] * (n % 3)


def test_arrow_through_a_store(tmp_path: Path) -> None:
    """Only the record batches that are asked for are read, each once while neighbours come."""
    folder = tmp_path / "d"
    save_to_disk(folder, table(), 1)
    place = SourceStore(afar(folder))
    source = HuggingFaceSource(Opening(spec=spec_of(folder, labels="none"), place=place))
    refs = source.list_samples()
    assert source.sequential
    sizes = [len(list(group)) for _, group in itertools.groupby(ref.where[0] for ref in refs)]
    assert sizes == [7, 7, 7, 4]
    assert [sample["caption"] for sample in source.read(refs)] == [
        f"caption {n}" for n in range(NUM)
    ]
    (last,) = source.read(refs[-1:])
    assert last["image"] == png(NUM - 1)


def test_a_listing_reads_each_record_batch_once(tmp_path, monkeypatch):
    """Label, group and split are columns of one batch."""
    save_to_disk(tmp_path / "d", table(), 1)
    store = afar(tmp_path / "d")
    num_bytes: list[int] = []
    read = store.read

    def counted(path: str, start: int = 0, end: int | None = None) -> bytes:
        content = read(path, start, end)
        num_bytes.append(len(content))
        return content

    monkeypatch.setattr(fsspec_store, "READ_AHEAD_BYTES", 4096)
    monkeypatch.setattr(store, "read", counted)
    spec = spec_of(tmp_path / "d", group_field="who", split_field="caption")
    source = HuggingFaceSource(Opening(spec=spec, place=SourceStore(store)))
    assert len(source.list_samples()) == NUM
    (file,) = (tmp_path / "d").glob("data-*.arrow")
    batch_bytes = file.stat().st_size / 4
    assert sum(num_bytes) < file.stat().st_size + batch_bytes + 2 * 4096  # and the first image


def test_a_dataset_dict_gives_its_splits(tmp_path: Path) -> None:
    save_to_disk(tmp_path / "train", table(0, 6))
    save_to_disk(tmp_path / "test", table(6, 3), 1)
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    source, values = read_all(spec_of(tmp_path, fields={"text": "caption"}, labels="none"))
    assert [ref.split for ref in source.list_samples()] == ["test"] * 3 + ["train"] * 6
    assert values[0] == {"text": "caption 6"}
    assert source.list_samples()[0].label is None


def test_labels_that_are_numbers_and_splits(tmp_path: Path) -> None:
    whole = pa.table({"x": [1, 2], "y": [0.5, 1.5], "fold": ["train", "val"]})
    parquet.write_table(whole, tmp_path / "a.parquet")
    spec = spec_of(tmp_path, label_field="y", label_kind="value", split_field="fold")
    source, values = read_all(spec)
    assert values == [{"label": 0.5, "x": 1}, {"label": 1.5, "x": 2}]
    assert [ref.split for ref in source.list_samples()] == ["train", "val"]
    with pytest.raises(DataError, match=r"row 0: the label is 0\.5, which is neither text nor"):
        open_source(spec_of(tmp_path, label_field="y")).list_samples()
    with pytest.raises(RecipeError, match=r"holds string, but dataset.label_kind is 'value'"):
        open_source(spec_of(tmp_path, label_field="fold", label_kind="value")).list_samples()


def test_a_field_that_is_called_label_beside_classes(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"label": [1], "kind": ["a"]}), tmp_path / "a.parquet")
    with pytest.raises(RecipeError, match="a field 'label', and class labels from elsewhere"):
        open_source(spec_of(tmp_path, label_field="kind")).list_samples()
    assert read_all(spec_of(tmp_path))[1] == [{"label": 1, "kind": "a"}]


def test_values_that_are_missing_or_uneven(tmp_path: Path) -> None:
    whole = pa.table(
        {
            "n": [1, None, 3, 4, 5],
            "a": [[[1], [2]], [[1]], [[1], [2, 3]], [[1]], None],
            "b": [b"x", b"y", b"z", b"", b"v"],
        }
    )
    parquet.write_table(whole, tmp_path / "a.parquet")
    values = read_all(spec_of(tmp_path))[1]
    assert values[1] == Unreadable("a.parquet#1", "n: it has no value")
    assert values[2] == Unreadable("a.parquet#2", "a: its lists are of different lengths: [1, 2]")
    assert values[3] == Unreadable("a.parquet#3", "b: it is empty")
    assert values[4].reason == "a: it has no value"
    assert (values[0]["n"], values[0]["b"]) == (1, b"x")


def write_h5(path: Path, num: int = NUM, **more: Any) -> Path:
    with h5py.File(path, "w") as file:
        numbers = np.arange(num)
        file.create_dataset(
            "images", data=np.repeat(numbers, 12).reshape(num, 3, 4).astype(">f4"), **more
        )
        file["meta/age"] = numbers / 4
        file["meta/kind"] = [f"k{n % 3}" for n in numbers]
        jpegs = file.create_dataset("png", num, dtype=h5py.vlen_dtype(np.uint8))
        curves = file.create_dataset("curve", num, dtype=h5py.vlen_dtype(np.float32))
        for n in numbers:
            jpegs[n] = np.frombuffer(png(n), np.uint8)
            curves[n] = np.arange(n, dtype=np.float32)
        file["scalar"] = 3
    return path


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("options", [{}, {"chunks": (4, 3, 4), "compression": "gzip"}])
def test_hdf5(tmp_path: Path, options: dict[str, Any], remote: bool) -> None:
    write_h5(tmp_path / "a.h5", **options)
    spec = spec_of(tmp_path, label_field="meta/kind")
    assert with_format(spec).format == "hdf5"
    source, values = read_all(spec, -1)
    if remote:
        source = Hdf5Source(Opening(spec=spec, place=SourceStore(afar(tmp_path))))
        values = list(source.read(source.list_samples()[::-1]))
    refs = source.list_samples()
    assert {f.name: f.kind for f in source.fields} == {
        "images": "array", "meta.age": "value", "png": "image", "curve": "array",
    }  # fmt: skip
    assert (refs[7].path, refs[7].label) == ("a.h5#07", "k1")
    for n, sample in enumerate(reversed(values)):
        assert (sample["png"], sample["meta.age"]) == (png(n), n / 4)
        np.testing.assert_array_equal(sample["images"], np.full((3, 4), n))
        assert sample["images"].dtype == np.dtype("<f4")
        np.testing.assert_array_equal(sample["curve"], np.arange(n))


def test_named_datasets_of_hdf5(tmp_path: Path) -> None:
    path = write_h5(tmp_path / "a.hdf5")
    with h5py.File(path, "a") as file:
        file["mean"] = np.zeros(3)
    with pytest.raises(DataError, match=r"different numbers of rows: curve 25, .*mean 3"):
        open_source(spec_of(path)).list_samples()
    _, values = read_all(spec_of(path, fields={"kind": "meta/kind"}))
    assert values[4] == {"kind": "k1"}
    with pytest.raises(RecipeError, match=r"no column 'meta/kinds'\n.*Did you mean 'meta/kind'"):
        open_source(spec_of(path, fields={"kind": "meta/kinds"})).list_samples()


def test_hdf5_with_values_elsewhere(tmp_path: Path) -> None:
    """An HDF5 file may name any file of the machine as its values."""
    (tmp_path / "secret").write_bytes(b"12345678")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", (8,), "u1", external=[("secret", 0, 8)])
    with pytest.raises(DataError, match=r"'x' of .*a\.h5 keeps its values in other files"):
        open_source(spec_of(tmp_path)).list_samples()


def test_a_shard_of_headrace_is_no_source(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.attrs["headrace_format"] = 1
    with pytest.raises(DataError, match=r"a shard that headrace packed\n.*dataset\.path"):
        open_source(spec_of(tmp_path)).list_samples()


def cut(path: Path, share: float) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
@pytest.mark.parametrize("form", ["parquet", "hdf5", "huggingface"])
def test_cut_files_are_named(tmp_path: Path, form: str, share: float) -> None:
    if form == "huggingface":
        save_to_disk(tmp_path / "d", table())
        path = tmp_path / "d" / "data-00001-of-00002.arrow"
    elif form == "parquet":
        write_parquet(tmp_path)
        path = tmp_path / "b.parquet"
    else:
        path = write_h5(tmp_path / "a.h5")
    cut(path, share)
    if form == "huggingface" and share == 0.99:
        return  # only the end marker of the stream is gone: all rows are there
    with pytest.raises(DataError, match=path.name):
        open_source(spec_of(path.parent, format=form)).list_samples()


def test_a_damaged_page_is_told_when_it_is_read(tmp_path: Path) -> None:
    whole = pa.table({"x": np.random.default_rng(0).random(5000)})
    parquet.write_table(whole, tmp_path / "a.parquet", write_page_checksum=True)
    content = bytearray((tmp_path / "a.parquet").read_bytes())
    content[2000:2200] = bytes(200)
    (tmp_path / "a.parquet").write_bytes(content)
    source = open_source(spec_of(tmp_path))
    refs = source.list_samples()
    with pytest.raises(DataError, match=r"a\.parquet cannot be read as a parquet file"):
        list(source.read(refs))


def test_files_with_other_columns(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"x": [1], "y": ["a"]}), tmp_path / "a.parquet")
    parquet.write_table(pa.table({"x": [1.5]}), tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"'x' of .*b\.parquet is double, in others it is int64"):
        open_source(spec_of(tmp_path)).list_samples()
    with pytest.raises(DataError, match=r"'y' of .*b\.parquet is missing"):
        open_source(spec_of(tmp_path, fields={"y": "y"})).list_samples()
    with pytest.raises(RecipeError, match=r"no column 'lable'\n.*Valid: x, y"):
        open_source(spec_of(tmp_path, label_field="lable")).list_samples()


@pytest.mark.parametrize("state", ["{", "[]", '{"_data_files": [{"filename": "../x.arrow"}]}'])
def test_states_that_cannot_be_used(tmp_path: Path, state: str) -> None:
    (tmp_path / "state.json").write_text(state)
    with pytest.raises(DataError, match=r"state\.json"):
        open_source(spec_of(tmp_path, format="huggingface")).list_samples()


def in_random_order(source: Source) -> SampleTable:
    """References as a shard of rows holds them."""
    refs = source.list_samples()
    return refs.take(np.random.default_rng(1).permutation(len(refs)))


@pytest.mark.parametrize("form", ["parquet", "hdf5"])
def test_rows_of_a_shard_are_read_once_or_a_few_times(tmp_path, monkeypatch, form):
    """Not the whole shard again for each few hundred of its samples, which come in any order."""
    num_rows = 20_000
    read = Counter[str]()
    if form == "parquet":
        parquet.write_table(
            pa.table({"x": range(num_rows)}), tmp_path / "a.parquet", row_group_size=500
        )
        read_group = parquet.ParquetFile.read_row_group

        def counted(self: Any, *arguments: Any, **options: Any) -> Any:
            found = read_group(self, *arguments, **options)
            read["rows"] += found.num_rows
            return found

        monkeypatch.setattr(parquet.ParquetFile, "read_row_group", counted)
    else:
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file.create_dataset("x", data=np.arange(num_rows), chunks=(500,), compression="gzip")
        get = h5py.Dataset.__getitem__

        def got(self: Any, key: Any, **options: Any) -> Any:
            found = get(self, key, **options)
            read["rows"] += len(found)
            return found

        monkeypatch.setattr(h5py.Dataset, "__getitem__", got)
    source = open_source(spec_of(tmp_path))
    refs = in_random_order(source)
    read.clear()
    values = [sample["x"] for sample in source.read(refs)]
    assert values == [
        ref.where[0] * (500 if form == "parquet" else 0) + ref.where[1] for ref in refs
    ]
    assert read["rows"] <= 3 * num_rows


class Collecting(io.BytesIO):
    """A file that another thread reads, as those of S3 are; that thread needs a new object."""

    def readinto(self, buffer: Any) -> int:
        made: list[int] = []

        def read() -> None:
            made.extend([id([]) for _ in range(5_000)])
            if gc.isenabled():
                gc.collect()

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive(), "the thread that reads waits for HDF5's lock"
        return super().readinto(buffer)


def test_no_collection_of_garbage_waits_for_the_lock_of_hdf5(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(5)
    with h5py.File(tmp_path / "a.h5") as file:
        garbage: list[Any] = [file["x"], file["x"].id]
        garbage.append(garbage)
        del garbage
    with ForeignFile(Collecting((tmp_path / "a.h5").read_bytes()), "a.h5") as found:
        assert list(found.rows("x", [4, 0])) == [4, 0]
        assert not gc.isenabled()
    assert gc.isenabled()


def test_rows_of_varying_length_are_read_in_pieces(tmp_path: Path, monkeypatch) -> None:
    """The file's bytes count, and not those of its pointers: images would all be in memory."""
    monkeypatch.setattr(foreign, "_RUN_BYTES", 2**16)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        images = file.create_dataset("x", (200,), h5py.vlen_dtype(np.uint8), chunks=(10,))
        images[...] = [np.full(4096, row, np.uint8) for row in range(200)]
    most, get = [0], h5py.Dataset.__getitem__

    def got(self: Any, key: Any, **options: Any) -> Any:
        found = get(self, key, **options)
        most.append(len(found))
        return found

    monkeypatch.setattr(h5py.Dataset, "__getitem__", got)
    with ForeignFile(tmp_path / "a.h5", "a.h5") as file:
        assert [row[0] for row in file.rows("x", range(0, 200, 5))] == [*range(0, 200, 5)]
    assert 0 < max(most) <= 20


def traced_peak_bytes(source: Source, refs: list[Any]) -> int:
    """Most memory in use at once while samples are read one after the other."""
    tracemalloc.start()
    try:
        for _ in source.read(refs):
            pass
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("options", [{}, {"chunks": (1, 2**20)}, {"chunks": (8, 2**20)}])
def test_large_rows_are_read_in_bounded_memory(tmp_path: Path, options: dict[str, Any]) -> None:
    """Volumes of 4 MiB, whatever their number; also where a shard holds one row in ten."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", (120, 2**20), "f4", **options)  # of zeros, which take no room
    source = open_source(spec_of(tmp_path))
    refs = in_random_order(source)
    assert traced_peak_bytes(source, refs) < 200 * 2**20
    tenth = refs.take(np.flatnonzero(refs.numbers("place_1") % 10 == 0))
    assert traced_peak_bytes(source, tenth) < 150 * 2**20


@pytest.mark.parametrize("rows_are_large", [True, False])
def test_a_large_row_group_is_read_in_bounded_memory(tmp_path, rows_are_large):
    """PyArrow writes a table of up to a million rows as one row group, if not told otherwise."""
    size, num_rows = (2**18, 96) if rows_are_large else (100, 120_000)
    cells = [b"%06d" % number + bytes(size) for number in range(num_rows)]
    images = [{"bytes": cell, "path": None} for cell in cells]
    table = pa.table({"x": images, "n": range(num_rows)})
    parquet.write_table(table, tmp_path / "a.parquet", compression="none", use_dictionary=False)
    del table, images
    source = open_source(spec_of(tmp_path))
    refs = in_random_order(source)[:60]
    before, peak = pa.total_allocated_bytes(), []
    values = []
    for sample in source.read(refs):
        values.append((sample["x"], sample["n"]))
        peak.append(pa.total_allocated_bytes() - before)
    assert values == [(cells[ref.where[1]], ref.where[1]) for ref in refs]
    assert max(peak) < 60 * size + 2**22 * 2


@pytest.mark.parametrize("fill", [1, "cat"])
def test_missing_classes_of_a_class_list(tmp_path: Path, fill: Any) -> None:
    """By the number in the list, or by the name."""
    info = {"info": {"features": {"label": FEATURES["label"]}}}
    whole = pa.table({"x": [1, 2], "label": pa.array([0, None])})
    parquet.write_table(
        whole.replace_schema_metadata({"huggingface": json.dumps(info)}), tmp_path / "a.parquet"
    )
    source = open_source(spec_of(tmp_path, missing={"label": fill}))
    assert [ref.label for ref in source.list_samples()] == ["dog", "cat"]


@pytest.mark.parametrize("form", ["parquet", "huggingface", "hdf5"])
def test_columns_of_all_forms_are_noted(tmp_path: Path, form: str) -> None:
    """As those of CSV and JSONL."""
    numbers = range(30)
    for number in numbers:
        (tmp_path / f"{number}.txt").touch()
    columns = {
        "id": [n * 7 for n in numbers],
        "zip": [f"0{2000 + n // 2}" for n in numbers],
        "file": [f"{n}.txt" for n in numbers],
        "one": ["a"] * 30,
    }
    if form == "parquet":
        parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    elif form == "hdf5":
        with h5py.File(tmp_path / "a.h5", "w") as file:
            for name, column in columns.items():
                file[name] = column
    else:
        with pa.ipc.new_stream(tmp_path / "a.arrow", (made := pa.table(columns)).schema) as writer:
            writer.write_table(made)
        (tmp_path / "state.json").write_text('{"_data_files": [{"filename": "a.arrow"}]}')
    source = open_source(spec_of(tmp_path, format=form))
    source.list_samples()
    assert sorted(note_texts(source.notes)) == [
        "column 'file': paths of files: name the table in dataset.index to pack the files",
        "column 'id': all different: ids?",
        "column 'one': one value only",
        "column 'zip': holds leading zeros",
    ]


def test_nothing_of_a_row_group_is_kept_while_its_last_rows_are_written(tmp_path: Path) -> None:
    SOURCES["parquet"][0](tmp_path)
    spec = DatasetSpec(name="x", source=str(tmp_path), fields={"n": "large", "box": "box"})
    source = open_source(spec)
    assert isinstance(source, RowSource)
    refs = source.list_samples()
    pool = pa.default_memory_pool()
    before = pool.bytes_allocated()
    kept = [pool.bytes_allocated() - before for _ in source.read_columns(refs[:900])]
    assert kept == [0]


def test_a_list_of_another_length_is_refused_by_name(
    tmp_path: Path, packs: Callable[..., dict[str, Any]]
) -> None:
    lists = [[1.0, 2.0]] * 40
    lists[33] = [1.0, 2.0, 3.0]
    (tmp_path / "source").mkdir()
    parquet.write_table(pa.table({"pair": lists}), tmp_path / "source" / "a.parquet")
    with pytest.raises(DataError, match=r"'a.parquet#33' has shape \(3,\) float64, .* has \(2,\)"):
        packs(tmp_path / "source")


def test_a_dataset_of_unchanged_containers_is_known_without_their_rows(
    tmp_path: Path, packs: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By names, sizes, times and settings; whatever of these changes has the rows listed."""
    folder, (write, rules, _) = tmp_path / "source", SOURCES["parquet"]
    folder.mkdir()
    write(folder)
    listings: list[RowSource] = []
    list_samples = RowSource.list_samples

    def listed(source: RowSource, *given: Any) -> SampleTable:
        listings.append(source)
        return list_samples(source, *given)

    monkeypatch.setattr(RowSource, "list_samples", listed)

    def pack(**more: Any) -> tuple[str, bool, int]:
        before = len(listings)
        packed = packs(folder, rules, {"shard_samples": 700, "max_quarantined": 0.5, **more})
        return packed["dataset"], packed["reused"], len(listings) - before

    dataset, *how = pack()
    assert how == [False, 1]
    assert pack() == (dataset, True, 0)
    assert pack(statistics="none")[1:] == (False, 1)
    with pytest.raises(DataError, match="of 3,000 samples cannot be read"):
        pack(max_quarantined=0.0)
    (Path(dataset) / "parts" / "sources").unlink()  # as of an earlier release
    assert pack() == (dataset, True, 1)
    assert pack() == (dataset, True, 0)
    next(Path(dataset).glob("shards/*")).unlink()
    assert pack() == (dataset, False, 1)
    (folder / "b.parquet").touch()
    changed, *how = pack()
    assert how == [False, 1]
    assert changed != dataset
