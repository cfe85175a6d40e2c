"""Files and members of tar files are listed by column: the same shards as ever."""

from __future__ import annotations

import io
import tarfile
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.errors import DataError
from headrace.packing.sample_table import (
    Coded,
    Listed,
    PlacesInContainers,
    Texts,
    Times,
    by_path,
    numbers,
)
from headrace.packing.sources import tars
from headrace.packing.sources.open import open_place, open_source
from headrace.recipe.dataset import DatasetSpec
from support.packing import digest
from support.source_files import write_tar

NUM = 240


def npy(number: int) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.sin(np.arange(4, dtype=np.float32) + number))
    return buffer.getvalue()[: 100 if number == 77 else None]  # one is damaged


def members(start: int, stop: int) -> dict[str, bytes]:
    """Arrays and texts in class folders, with names of all kinds."""
    found: dict[str, bytes] = {}
    for number in range(start, stop):
        folder = ("cat", "dög", f"bird/{'x' * 110 if number % 50 == 2 else 'in'}")[number % 3]
        found[f"{folder}/é{number:04d}.npy"] = npy(number)
        found[f"{folder}/é{number:04d}.txt"] = f"text {number}".encode()
    return found


def samples(start: int, stop: int) -> dict[str, bytes]:
    """Parts of samples as the library webdataset writes them."""
    found: dict[str, bytes] = {}
    for number in range(start, stop):
        key = f"{'./' * (number % 9 == 4)}{'long/' * (number % 40 // 39 * 30)}{number:04d}"
        parts = {
            "cls": str(number % 11).encode(),
            "npy": npy(number),
            "x.TXT" if number % 4 else "x.txt": f" text {number}\n".encode(),
            "who": f"person {number // 8}\n".encode(),
            "fold": b"train" if number // 8 % 3 else b"val",
        }
        found |= {f"{key}.{ending}": content for ending, content in parts.items()}
    return found


FORMS = (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT)


def _tars(folder: Path, make: Callable[[int, int], dict[str, bytes]]) -> None:
    third = NUM // 3
    for number, form in enumerate(FORMS):
        start = number * third
        write_tar(folder / f"{2 - number}ä.tar", make(start, start + third), form)


def _files(folder: Path) -> None:
    for name, content in members(0, NUM).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def _indexed(folder: Path) -> None:
    _files(folder)
    names = sorted((name for name in members(0, NUM) if name.endswith("npy")), reverse=True)
    rows = [f"{name},{n % 5},g{n // 7},{n / 8}" for n, name in enumerate(names)]
    (folder / "rows.csv").write_text("\n".join(["path,label,group,weight", *rows]) + "\n")


ARRAYS = {"include": ["**/*.npy"]}
PAIRS = {"fields": {"array": "*.npy", "text": "*.txt"}}
SOURCES: dict[str, tuple[Callable[[Path], None], dict[str, Any]]] = {
    "files": (_files, ARRAYS),
    "pairs": (_files, PAIRS),
    "index": (_indexed, {**ARRAYS, "index": "rows.csv"}),
    "tar": (lambda folder: _tars(folder, members), {**ARRAYS, "format": "tar"}),
    "tar-pairs": (lambda folder: _tars(folder, members), {**PAIRS, "format": "tar"}),
    "webdataset": (
        lambda folder: _tars(folder, samples),
        {"fields": {"array": "npy", "text": "x.txt"}, "format": "webdataset"},
    ),
    "webdataset-roles": (
        lambda folder: _tars(folder, samples),
        {"group_field": "who", "format": "webdataset", "label_kind": "value"},
    ),
    "webdataset-splits": (
        lambda folder: _tars(folder, samples),
        {"split_field": "fold", "label_field": "who", "format": "webdataset"},
    ),
}
DIGESTS = {
    "files": "3b218e79faef8fa4",
    "pairs": "d2321543e0c5af68",
    "index": "f14ce15177a7c844",
    "tar": "8996fb2403576ff6",
    "tar-pairs": "1c1bc1bc4512bc14",
    "webdataset": "b901515553050977",
    "webdataset-roles": "43317e28ede2254a",
    "webdataset-splits": "e837c91166ecf950",
}
"""What the release before packed, which had a record of each sample."""


@pytest.mark.parametrize("form", SOURCES)
def test_shards_are_those_of_records(
    form: str, tmp_path: Path, packs: Callable[..., dict[str, Any]]
) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    write, dataset = SOURCES[form]
    write(folder)
    packed = packs(folder, dataset, {"shard_samples": 50, "max_quarantined": 0.1})
    assert packed["num_samples"] == NUM - 1
    assert digest(packed) == DIGESTS[form]


TEXTS = ["b/1", "", "ä/\U0001f600", "ä/\uffff", "a\nb", "b/0", "ß" * 70, "B", "a"]


def test_a_column_of_texts_is_the_texts() -> None:
    column = Texts.of(iter(TEXTS))
    assert list(column) == TEXTS
    assert (column[2], column[-1], len(column)) == (TEXTS[2], "a", len(TEXTS))
    assert list(column[1:4]) == TEXTS[1:4]
    assert list(column.at(np.array([3, 3, 0]))) == [TEXTS[3], TEXTS[3], TEXTS[0]]
    assert column.lengths(in_bytes=False).tolist() == list(map(len, TEXTS))
    assert column[1:].lengths(in_bytes=True).tolist() == [len(t.encode()) for t in TEXTS[1:]]
    assert column.encoded(slice(2, 5)) == [text.encode() for text in TEXTS[2:5]]
    assert list(Texts.of(())) == []


def test_samples_are_ordered_as_python_orders_their_paths() -> None:
    listed = by_path(Listed(Texts.of(TEXTS), numbers(range(len(TEXTS))), Times(numbers(range(9)))))
    assert list(listed.paths) == sorted(TEXTS)
    assert [TEXTS[number] for number in listed.sizes] == sorted(TEXTS)
    assert [TEXTS[int(number)] for number in listed.versions] == sorted(TEXTS)
    with pytest.raises(DataError, match="There are two samples 'a'"):
        by_path(Listed(Texts.of(["b", "a", "c", "a"]), numbers(range(4)), ()))


def bytes_of(column: Sequence[Any]) -> int:
    """Bytes of a column's buffers; a column of objects has none."""
    if isinstance(column, Texts):
        return column.array.nbytes
    if isinstance(column, Times):
        return len(column.times_ns) * column.times_ns.itemsize
    if isinstance(column, array):
        return len(column) * column.itemsize
    if isinstance(column, Coded):
        return column.codes.nbytes
    if isinstance(column, PlacesInContainers):
        return sum(numbers.nbytes for numbers in column.columns)
    assert len(column) <= 1
    return 0


@pytest.mark.parametrize("form", ["files", "pairs", "index", "webdataset", "webdataset-splits"])
def test_a_listed_sample_takes_40_bytes_beside_its_path_and_keys(form: str, tmp_path: Path) -> None:
    write, dataset = SOURCES[form]
    write(tmp_path)
    spec = DatasetSpec.model_validate({"name": "x", "source": str(tmp_path), **dataset})
    listed = open_source(spec).list_samples()
    texts = [column for column in vars(listed).values() if isinstance(column, Texts)]
    beside = sum(int(column.lengths(in_bytes=True).sum()) for column in texts)
    assert sum(map(bytes_of, vars(listed).values())) - beside <= 40 * len(listed)


@pytest.mark.parametrize("form", FORMS)
def test_members_of_tar_files_are_those_that_tarfile_finds(form: int, tmp_path: Path) -> None:
    files = members(0, 1500) | {"n" * 100: b"x" * 600, "n" * 99: b"", "m/" * 49 + "no": b"x"}
    write_tar(tmp_path / "a.tar", files, form)
    assert_as_tarfile(tmp_path)


def test_a_tar_file_with_headers_for_all_members(tmp_path: Path) -> None:
    with tarfile.open(
        tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT, pax_headers={"path": "other.txt"}
    ) as archive:
        for number in range(9):
            archive.addfile(tarfile.TarInfo(f"{number}.txt"))
    assert_as_tarfile(tmp_path)


def assert_as_tarfile(folder: Path) -> None:
    place = open_place(str(folder))
    (file,) = place.store.list_files()
    with place.open(file.path, file.version) as stream:
        found = list(map(tuple, tars.members(place, file, stream)))
    with tarfile.open(folder / "a.tar") as archive:
        expected = [(info.name, info.offset_data, info.size) for info in archive]
    assert found == expected
