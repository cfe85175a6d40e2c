"""docs/how-to/extend.md, "A kind of field": its package, installed beside headrace, is used."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from headrace.errors import RecipeError, UserError
from headrace.fields.field_kind import kind_named
from headrace.files.manifest_file import read_manifest
from headrace.shards.dataset import ShardedDataset
from headrace_pages.samples import SampleQuestion, read_sample
from support.added_packages import blocks, entry_points_of, found_in, install

BAD = "2 numbers a line, not x, y and z"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    section, folder = "A kind of field", tmp_path / "site-packages"
    install(folder, "headrace_points", blocks(section, "python"), entry_points_of(section))
    return folder


@pytest.fixture
def installed(package: Path) -> Iterator[None]:
    with found_in(package):
        yield


def points(number: int) -> np.ndarray:
    return np.arange(3 * (number + 2), dtype=np.float32).reshape(-1, 3) + number


def xyz(values: np.ndarray) -> bytes:
    return b"#xyz\n" + "\n".join(" ".join(map(str, row)) for row in values.tolist()).encode()


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    folder = tmp_path / "scans"
    folder.mkdir()
    for number in range(8):
        (folder / f"{number}.xyz").write_bytes(xyz(points(number)))
    (folder / "bad.xyz").write_bytes(b"#xyz\n1 2\n")
    return folder


FILES = {"include": ["**/*.xyz"], "labels": "none", "splits": {"test": 1.0}}


def packed(packs: Any, source: Path, dataset: Any, options: Any) -> Path:
    fields = {"max_quarantined": 0.5, "fields": options}
    return Path(packs(source, dataset, fields)["dataset"])


@pytest.mark.parametrize("keep", ["encoded", "decode"])
def test_its_files_are_packed_read_and_shown(installed, scans, packs, keep):
    from headrace.data.dataset import SampleReader
    from headrace.evaluation.results import picture

    folder = packed(packs, scans, FILES, {"points": {"keep": keep}})
    manifest = read_manifest(folder)
    (left_out,), (info,) = manifest.quarantined, manifest.fields
    assert (left_out.path, left_out.reason) == ("bad.xyz", BAD)
    expected = ("xyz", None) if keep == "encoded" else ("raw", 2)
    assert (info.name, info.layout, info.encoding, info.ndim) == ("points", "ragged", *expected)

    dataset = ShardedDataset(folder, "test")
    found = SampleReader(dataset).read(np.arange(8))["points"]
    names = dataset.sources(np.arange(8))
    for name, values in zip(names, found, strict=True):
        np.testing.assert_array_equal(values, points(int(name[0])))
        assert values.numpy().dtype == np.float32

    drawn = picture(dataset, np.arange(1))
    question = SampleQuestion(
        folder=str(folder), fingerprint=manifest.fingerprint, split="test", index=0
    )
    shown = read_sample(question).fields[0].drawn
    assert shown is not None
    if keep == "encoded":
        assert drawn.startswith(b"\x89PNG")
        assert (shown.kind, shown.shape) == ("picture", (64, 64))


def test_its_bytes_are_told_in_tables(installed, tmp_path, packs):
    (tmp_path / "rows").mkdir()
    table = pa.table({"scan": [xyz(points(number)) for number in range(8)]})
    parquet.write_table(table, tmp_path / "rows" / "0.parquet")
    spec = {"labels": "none", "splits": {"test": 1.0}}
    folder = packed(packs, tmp_path / "rows", spec, {})
    (info,) = read_manifest(folder).fields
    assert (info.name, info.encoding) == ("scan", "xyz")


def test_what_it_does_not_heed_is_refused(installed, scans, packs):
    with pytest.raises(RecipeError, match=r"is for fields of kind image\."):
        packed(packs, scans, FILES, {"points": {"resize": [4, 4]}})


def test_where_it_is_not_installed_the_encoding_is_named(package, scans, packs):
    from headrace.data.dataset import SampleReader

    with found_in(package):
        folder = packed(packs, scans, FILES, {})
        kind = pickle.dumps(kind_named("points"))
    assert read_manifest(folder).num_samples == 8
    for read in (
        lambda: SampleReader(ShardedDataset(folder, "test")).read(np.arange(1)),
        lambda: pickle.loads(kind),
    ):
        with pytest.raises(UserError, match=r"(?s)kind of field.*headrace\.fields.*every node"):
            read()
