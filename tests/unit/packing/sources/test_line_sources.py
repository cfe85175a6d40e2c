"""CSV and JSONL: lines are samples; what does not fit is quarantined with its line."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.errors import DataError, RecipeError
from headrace.files.manifest_file import read_manifest
from headrace.packing.column_notes import remarks
from headrace.packing.samples import Unreadable
from headrace.packing.sources import lines
from headrace.packing.sources.open import open_source, with_format
from headrace.packing.sources.source_store import SourceStore
from headrace.recipe.dataset import DatasetSpec
from headrace.shards.dataset import ShardedDataset

Packs = Callable[..., dict[str, Any]]
HEADER = "x,count,when,kind,ok"
ROWS = [
    f"{n / 4},{n},2026-01-{1 + n % 28:02d},{'ab'[n % 2]},{'true' if n % 3 else 'false'}"
    for n in range(90)
]


def write(folder: Path, name: str, rows: list[str], header: str | None = HEADER) -> Path:
    folder.mkdir(exist_ok=True)
    text = "\n".join([*([header] if header else []), *rows]) + "\n"
    (folder / name).write_text(text)
    return folder / name


def fields_of(source: Path, **more: object) -> list[tuple[str, str, str]]:
    spec = DatasetSpec.model_validate({"name": "x", "source": str(source), **more})
    listed = open_source(spec)
    listed.list_samples()
    return [(each.name, each.kind, each.dtype or each.encoding) for each in listed.fields]


def everything(packed: dict[str, Any]) -> dict[str, list[Any]]:
    """Values by field, in the order of the rows."""
    folder = Path(packed["dataset"])
    found: dict[str, dict[str, Any]] = {}
    for split in read_manifest(folder).splits:
        dataset = ShardedDataset(folder, split)
        places = np.arange(len(dataset))
        names = [info.name for info in dataset.manifest.fields if info.layout == "fixed"]
        for name in names:
            pairs = zip(dataset.sources(places), dataset.gather(name, places).tolist(), strict=True)
            found.setdefault(name, {}).update(pairs)
    return {name: [values[path] for path in sorted(values)] for name, values in found.items()}


@pytest.mark.parametrize("block_bytes", [64, 2**22])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_csv(
    tmp_path: Path,
    packs: Packs,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    delimiter: str,
    block_bytes: int,
) -> None:
    monkeypatch.setattr(lines, "_BLOCK_BYTES", block_bytes)
    caplog.set_level(logging.INFO)
    rows = [row.replace(",", delimiter) for row in ROWS]
    file = write(tmp_path / "in", "a.csv", rows, "\ufeff" + HEADER.replace(",", delimiter))
    packed = packs(
        file,
        {
            "labels": "field",
            "label_field": "kind",
            "fields": {"x": "x", "n": "count", "ok": "ok"},
        },
    )
    found = everything(packed)
    assert found["x"] == [n / 4 for n in range(90)]
    assert found["n"] == list(range(90))
    assert found["ok"] == [n % 3 > 0 for n in range(90)]
    assert found["label"] == [n % 2 for n in range(90)]
    manifest = read_manifest(Path(packed["dataset"]))
    assert [(info.name, info.dtype) for info in manifest.fields] == [
        ("x", "float64"), ("n", "int64"), ("ok", "bool"), ("label", "int64"),
    ]  # fmt: skip
    assert "Column 'when' (text) holds dates or times" in caplog.text
    assert "x float64, count int64, when text, kind text, ok bool" in caplog.text


def test_csv_without_labels_has_every_column_as_a_field(tmp_path: Path) -> None:
    file = write(tmp_path / "in", "a.csv", ROWS)
    wanted = [
        ("x", "value", "float64"), ("count", "value", "int64"), ("when", "text", ""),
        ("kind", "text", ""), ("ok", "value", "bool"),
    ]  # fmt: skip
    assert fields_of(file) == fields_of(file.parent) == wanted


def test_lines_that_are_no_rows_are_named_where_none_may_be_left_out(
    tmp_path: Path, packs: Packs
) -> None:
    rows = [*(f"{n},{n}" for n in range(10)), "abc,10", *(f"{n},{n}" for n in range(11, 40))]
    with pytest.raises(DataError, match=r"1 of 40 samples cannot be read.*line 12: 'abc' is"):
        packs(write(tmp_path / "in", "a.csv", rows, "x,y"))


def test_whole_numbers_become_others_where_these_come_later(
    tmp_path: Path, packs: Packs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the same file, and in the next one: the columns of all are those of one dataset."""
    monkeypatch.setattr(lines, "_BLOCK_BYTES", 32)
    write(tmp_path / "in", "a.csv", [f"{n},{n}" for n in range(20)], "x,y")
    write(tmp_path / "in", "b.csv", [f"{n},{n + 0.5}" for n in range(20, 30)], "x,y")
    packed = packs(tmp_path / "in")
    assert everything(packed) == {
        "x": list(range(30)),
        "y": [*map(float, range(20)), *(n + 0.5 for n in range(20, 30))],
    }


@pytest.mark.parametrize(
    ("names", "rows", "values"),
    [
        (
            ("a.csv", "b.csv"),
            (["code,n", "SW1A,1", "SW1B,2"], ["n,code", "3,00501", "4,00502"]),
            {"code": ["00501", "00502"], "n": [3, 4]},
        ),
        (
            ("a.jsonl", "b.jsonl"),
            (
                ['{"n": 1.5, "meta": {"k": 1}, "note": "x", "box": [1, 2]}'],
                ['{"n": 2, "meta": "plain"}', '{"n": 3, "meta": 7, "box": [3, 4]}'],
            ),
            {"n": [2.0, 3.0], "meta": ['"plain"', "7"]},
        ),
    ],
)
def test_a_worker_reads_a_file_as_all_files_were_listed(
    tmp_path: Path,
    names: tuple[str, str],
    rows: tuple[list[str], list[str]],
    values: dict[str, list[object]],
) -> None:
    """Whatever columns the file that it opens first has, and what these hold there."""
    for name, some in zip(names, rows, strict=True):
        write(tmp_path / "in", name, some, None)
    spec = DatasetSpec.model_validate(
        {"name": "x", "source": str(tmp_path / "in"), "fields": {name: name for name in values}}
    )
    listed = open_source(spec)
    refs = listed.list_samples()
    refs = refs.take([at for at, path in enumerate(refs.iter_paths()) if path.startswith("b.")])
    found = [*open_source(with_format(spec), fields=tuple(listed.fields)).read(refs)]
    assert {name: [each[name] for each in found] for name in values} == values


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_columns_that_are_not_named_may_hold_anything(
    tmp_path: Path, packs: Packs, name: str
) -> None:
    rows = [f"{n},{'many' if n % 9 == 8 else n},{'ab'[n % 2]}" for n in range(40)]
    if name == "a.jsonl":
        cells = [row.split(",") for row in rows]
        rows = [
            json.dumps({"n": int(n), "other": "many" if o == "many" else int(o), "kind": kind})
            for n, o, kind in cells
        ]
    header = "n,other,kind" if name == "a.csv" else None
    file = write(tmp_path / "in", name, rows, header)
    rules = {"fields": {"n": "n"}, "labels": "field", "label_field": "kind"}
    packed = packs(file, rules, {"max_quarantined": 0.0})
    assert everything(packed) == {"n": [*range(40)], "label": [n % 2 for n in range(40)]}


def test_lists_that_only_a_later_file_has_keep_their_shape(tmp_path: Path) -> None:
    write(tmp_path / "in", "a.jsonl", ['{"n": 1}'], None)
    write(tmp_path / "in", "b.jsonl", ['{"n": 2, "box": [[1, 2], [3, 4]]}'], None)
    spec = with_format(DatasetSpec.model_validate({"name": "x", "source": str(tmp_path / "in")}))
    listed = open_source(spec)
    refs = listed.list_samples()
    gone, found = open_source(spec, fields=tuple(listed.fields)).read(refs)
    assert gone == Unreadable("a.jsonl#0", "box: it has no value")
    assert np.array_equal(found["box"], [[1, 2], [3, 4]])


def test_lists_of_whole_numbers_stay_whole_where_a_recipe_says_so(
    tmp_path: Path, packs: Packs
) -> None:
    file = write(tmp_path / "in", "a.jsonl", [json.dumps({"ids": [n, 1]}) for n in range(20)], None)
    for options, dtype in (({}, "float64"), ({"ids": {"dtype": "int64"}}, "int64")):
        packed = packs(file, None, {"fields": options})
        (info,) = read_manifest(Path(packed["dataset"])).fields
        assert (info.dtype, everything(packed)["ids"][7]) == (dtype, [7, 1])


def test_tables_beside_samples_are_not_taken(tmp_path: Path) -> None:
    """An index, or notes, in a folder of texts or Parquet files."""
    write(tmp_path / "in", "labels.csv", ["a.txt,1"], "file,label")
    (tmp_path / "in" / "a.txt").write_text("a text")
    spec = DatasetSpec.model_validate({"name": "x", "source": str(tmp_path / "in")})
    assert with_format(spec).format == "files"
    (tmp_path / "in" / "a.txt").unlink()
    assert with_format(spec).format == "csv"


def test_a_table_that_names_files_is_an_index(tmp_path: Path) -> None:
    file = write(tmp_path / "in", "labels.csv", ["a.png,1"], "path,label")
    (tmp_path / "in" / "a.png").write_bytes(b"")
    with pytest.raises(RecipeError, match="name files in their column 'path'") as refused:
        fields_of(file)
    assert "dataset.index to labels.csv" in str(refused.value)
    assert fields_of(file, fields={"path": "path"}) == [("path", "text", "")]


def test_what_people_should_look_at_is_in_the_manifest(tmp_path: Path, packs: Packs) -> None:
    rows = [f"{n * 7},0{2000 + n},{'oops' if n == 5 else n / 3},{n}.txt,one" for n in range(60)]
    rows[7] = rows[7].replace("7.txt", "")
    file = write(tmp_path / "in", "a.csv", rows, "id,zip,y,file,c")
    for number in range(60):
        (file.parent / f"{number}.txt").touch()
    fill = {"labels": "field", "label_field": "c", "missing": {"file": "8.txt"}}
    packed = packs(file, fill, {"max_quarantined": 0.1})
    manifest = read_manifest(Path(packed["dataset"]))
    assert {info.name: remarks(manifest, info.name) for info in manifest.fields} == {
        "id": ["all values are int64", "all different: ids?"],
        "zip": ["all values are text", "holds leading zeros", "all different: ids?"],
        "y": ["59 of 60 values are float64"],
        "file": [
            "all values are text",
            "paths of files: name the table in dataset.index to pack the files",
        ],
        "label": ["one class only"],
    }


def test_missing_values_are_counted(tmp_path: Path, packs: Packs) -> None:
    rows = [f"{n},{'' if n < 3 else 'a'},{'' if n == 4 else 'b'}" for n in range(40)]
    file = write(tmp_path / "in", "a.csv", rows, "x,text,kind")
    packed = packs(file, {"labels": "field", "label_field": "kind"}, {"max_quarantined": 0.2})
    manifest = read_manifest(Path(packed["dataset"]))
    assert remarks(manifest, "text") == ["all values are text", "one value only", "3 missing"]
    assert manifest.num_samples == 36
    assert "line 6: kind: it has no value" in {q.reason for q in manifest.quarantined}


class Counted(io.BytesIO):
    """A file that counts the bytes that are read."""

    num_read = 0

    def read(self, size: int | None = -1) -> bytes:
        content = super().read(size)
        Counted.num_read += len(content)
        return content


@pytest.mark.parametrize("bad", ["1", "1,?"])
def test_lines_of_many_bad_rows_are_found_in_one_pass(
    tmp_path: Path, packs: Packs, monkeypatch: pytest.MonkeyPatch, bad: str
) -> None:
    """Rows that cannot be read, and cells that do not fit, in each of hundreds of parts."""
    monkeypatch.setattr(lines, "_BLOCK_BYTES", 64)
    rows = [f"{n:08},{n % 90 + 10}" for n in range(4_000)]
    rows[::11] = [bad] * len(rows[::11])
    file = write(tmp_path / "in", "a.csv", rows, "x,y")
    opened = SourceStore.open

    def counted(*given: Any) -> Counted:
        with opened(*given) as stream:
            return Counted(stream.read())

    monkeypatch.setattr(SourceStore, "open", counted)
    Counted.num_read = 0
    packed = packs(file, {"fields": {"y": "y"}}, {"max_quarantined": 0.2, "shard_samples": 10**6})
    (last,) = [
        each
        for each in read_manifest(Path(packed["dataset"])).quarantined
        if each.path == "a.csv#3993"
    ]
    assert "line 3995: " in last.reason
    assert Counted.num_read < 20 * file.stat().st_size


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "shift_jis"])
def test_a_file_that_is_cut_in_a_character_is_refused(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "a.csv").write_bytes("x,y\n1,あ".encode(encoding)[:-1])
    with pytest.raises(DataError, match=f"it is not written in {encoding}"):
        fields_of(tmp_path / "a.csv", encoding=encoding)


def test_a_table_without_the_label_is_named_with_the_way_to_leave_it_out(tmp_path: Path) -> None:
    """As test.csv of a competition, beside train.csv."""
    write(tmp_path / "in", "test.csv", ["1", "2"], "x")
    write(tmp_path / "in", "train.csv", ["1,a", "2,b"], "x,y")
    labelled = {"labels": "field", "label_field": "y"}
    with pytest.raises(RecipeError, match=r"test\.csv has no column 'y'\n.*dataset\.include"):
        fields_of(tmp_path / "in", **labelled)
    (tmp_path / "in" / "test.csv").rename(tmp_path / "in" / "untold.csv")
    with pytest.raises(DataError, match=r"'y' of .*untold\.csv is missing.*\n.*dataset\.include"):
        fields_of(tmp_path / "in", **labelled)
    assert fields_of(tmp_path / "in", include=["train.csv"], **labelled) == [
        ("x", "value", "int64")
    ]


@pytest.mark.parametrize("name", ["NA", "null", "None", "?"])
def test_a_class_that_may_mean_no_value_is_noted(tmp_path: Path, packs: Packs, name: str) -> None:
    file = write(
        tmp_path / "in",
        "a.csv",
        [f"{n},{'ab'[n % 2] if n % 5 else name}" for n in range(40)],
        "x,y",
    )
    packed = packs(file, {"labels": "field", "label_field": "y"})
    assert f"class '{name}' may mean that there is none" in packed["notes"]
