"""Tar files and WebDataset shards: members are read where they lie, and nothing leads out."""

import tarfile
from pathlib import Path

import numpy as np
import pytest

from headrace.errors import DataError
from headrace.packing.samples import Unreadable
from headrace.packing.sources import tars
from headrace.packing.sources.open import open_place, open_source, with_format
from support.source_files import npy, read_all, spec_of, write_tar
from support.source_forms import members

LONG = "d" * 120 + "/"


def test_members_of_tar_files_are_files(tmp_path: Path) -> None:
    write_tar(tmp_path / "b.tar", {"dog/1.png": b"b1", "note.txt": b"", ".x/2.png": b"no"})
    write_tar(tmp_path / "in" / "a.TAR", {"cat/1.png": b"a1" * 999, f"dog/{LONG}2.png": b"a2"})
    spec = spec_of(tmp_path, include=["**/*.png"])
    source, values = read_all(spec)
    assert with_format(spec).format == "tar"
    refs = source.list_samples()
    assert [(ref.path, ref.label, ref.num_bytes) for ref in refs] == [
        ("b.tar/dog/1.png", "dog", 2),
        ("in/a.TAR/cat/1.png", "cat", 1998),
        (f"in/a.TAR/dog/{LONG}2.png", "dog", 2),
    ]
    assert values == [{"image": b"b1"}, {"image": b"a1" * 999}, {"image": b"a2"}]
    assert next(iter(source.read(refs[::-1]))) == {"image": b"a2"}


def test_one_tar_file_as_the_source(tmp_path: Path) -> None:
    write_tar(tmp_path / "other.tar", {"cat/0.png": b"x"})
    path = write_tar(tmp_path / "a.tar", {"cat/1.png": b"a1"})
    assert [ref.path for ref in open_source(spec_of(path)).list_samples()] == ["a.tar/cat/1.png"]


def test_an_index_and_several_files_a_sample(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"1.jpg": b"j", "1.txt": b"one", "2.txt": b"two", "2.jpg": b"k"})
    (tmp_path / "l.csv").write_text("path,label,n\na.tar/2.jpg,x,2\na.tar/1.jpg,y,1\n")
    fields = {"image": "*.jpg", "caption": "*.txt", "number": "n"}
    source, values = read_all(spec_of(tmp_path, fields=fields, index="l.csv"))
    assert [ref.label for ref in source.list_samples()] == ["y", "x"]
    assert values[1] == {"image": b"k", "caption": "two", "number": 2}


def shard(*numbers: int, image: str = "jpg") -> dict[str, bytes]:
    files = {}
    for n in numbers:
        files[f"s/{n:04d}.cls"] = str(n % 2).encode()
        files[f"s/{n:04d}.{image}"] = f"image {n}".encode()
        files[f"s/{n:04d}.seg.png"] = b"mask"
        files[f"s/{n:04d}.npy"] = npy(np.arange(n))
        files[f"s/{n:04d}.json"] = b'{"n": 1}'
        files[f"s/{n:04d}.__key__"] = b"no field"
    return files


def test_webdataset(tmp_path: Path) -> None:
    write_tar(tmp_path / "0.tar", shard(0, 1))
    write_tar(tmp_path / "1.tar", shard(2))
    spec = spec_of(tmp_path)
    assert with_format(spec).format == "webdataset"
    source, values = read_all(spec)
    assert [(f.name, f.kind, f.encoding) for f in source.fields] == [
        ("jpg", "image", ""), ("seg.png", "image", ""), ("npy", "array", ""),
        ("json", "text", "json"),
    ]  # fmt: skip
    refs = source.list_samples()
    assert [(ref.path, ref.label) for ref in refs] == [
        ("0.tar/s/0000", "0"), ("0.tar/s/0001", "1"), ("1.tar/s/0002", "0"),
    ]  # fmt: skip
    assert (values[2]["jpg"], values[2]["json"]) == (b"image 2", '{"n": 1}')
    np.testing.assert_array_equal(values[2]["npy"], [0, 1])


def test_webdataset_with_chosen_keys(tmp_path: Path) -> None:
    write_tar(tmp_path / "0.tar", shard(3))
    write_tar(tmp_path / "1.tar", shard(4, image="jpeg"))
    fields = {"image": "jpg;jpeg", "mask": "seg.png"}
    source, values = read_all(spec_of(tmp_path, fields=fields, label_kind="value"))
    assert values[1] == {"image": b"image 4", "mask": b"mask", "label": 0}
    assert source.list_samples()[1].label is None
    with pytest.raises(DataError, match=r"Sample 's/0004' of .*1\.tar has no 'jpg'\n.*jpeg"):
        read_all(spec_of(tmp_path))
    with pytest.raises(DataError, match=r"has no 'clas'\n.*Did you mean 'cls'"):
        read_all(spec_of(tmp_path, label_field="clas"))
    with pytest.raises(DataError, match=r"label of 's/0003' .* is 'image 3', no number"):
        read_all(spec_of(tmp_path, label_field="jpg", label_kind="value"))


def test_the_first_of_several_endings_counts(tmp_path: Path) -> None:
    write_tar(tmp_path / "0.tar", {"1.jpg": b"j", "1.png": b"p", "2.jpg": b"k", "2.txt": b"t"})
    spec = spec_of(tmp_path, fields={"image": "png;jpg"}, format="webdataset")
    assert read_all(spec)[1] == [{"image": b"p"}, {"image": b"k"}]


def test_damaged_parts_and_copies(tmp_path: Path) -> None:
    write_tar(tmp_path / "0.tar", {"1.npy": b"no", "1.txt": b"a", "2.npy": b"", "2.txt": b"b"})
    values = read_all(spec_of(tmp_path))[1]
    assert isinstance(values[0], Unreadable)
    assert "npy: no .npy file" in values[0].reason
    assert values[1] == Unreadable("0.tar/2", "npy: the file is empty")
    with tarfile.open(tmp_path / "0.tar", "w") as archive:
        for _ in range(2):
            archive.addfile(tarfile.TarInfo("1.txt"))
    with pytest.raises(DataError, match=r"holds '1\.txt' twice"):
        open_source(spec_of(tmp_path, format="webdataset")).list_samples()


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_members_of_tar_files_are_those_that_tarfile_finds(form: int, tmp_path: Path) -> None:
    long = {"n" * 100: b"x" * 600, "n" * 99: b"", "m/" * 49 + "no": b"x"}
    files = members(0, 1500) | long
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
