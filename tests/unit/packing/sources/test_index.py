"""Index files match samples one to one, and give labels, groups, splits and values."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from headrace.errors import HeadraceError, RecipeError
from headrace.packing.sample_table import SampleTable
from headrace.packing.samples import Source, SourceField, Unreadable
from headrace.packing.sources.open import open_source, with_format
from headrace.recipe.dataset import DatasetSpec


def spec_of(folder: Path, index: str, **more: object) -> DatasetSpec:
    given = {"name": "x", "source": str(folder), "index": index, "labels": "index", **more}
    return DatasetSpec.model_validate(given)


def with_files(folder: Path, *names: str) -> Path:
    for name in names or ("a.png", "b.png"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())
    return folder


def listed(spec: DatasetSpec) -> tuple[Source, SampleTable]:
    source = open_source(spec)
    return source, source.list_samples()


def read_again(spec: DatasetSpec, order: int = 1) -> list[object]:
    """Values as a worker reads them, the last first when `order` is -1."""
    source, refs = listed(spec)
    return list(open_source(with_format(spec), fields=source.fields).read(refs[::order]))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("l.csv", "path,label\na.png,cat\nb.png,dog\n"),
        ("l.csv", "\ufefflabel, path ,group\r\ncat,a.png,x\r\n\r\ndog,./b.png,y\r\n"),
        ("l.csv", 'path,label\n"a.png",cat\nb.png," dog"\n'),
        ("l.jsonl", '{"path": "a.png", "label": "cat"}\n\n{"label": "dog", "path": "b.png"}'),
    ],
)
def test_labels(tmp_path: Path, name: str, content: str) -> None:
    with_files(tmp_path)
    (tmp_path / name).write_bytes(content.encode())
    _, refs = listed(spec_of(tmp_path, name))
    assert [(ref.path, ref.label) for ref in refs] == [("a.png", "cat"), ("b.png", "dog")]


def test_whole_numbers_in_jsonl(tmp_path: Path) -> None:
    with_files(tmp_path, "a.png")
    (tmp_path / "l.jsonl").write_text('{"path": "a.png", "label": 10}\n')
    assert listed(spec_of(tmp_path, "l.jsonl"))[1][0].label == "10"


ROWS = [
    {"path": "q/b.png", "label": "x", "group": "g1", "split": "val",
     "question": 'what,\n"why"', "weight": 1.5, "count": 3, "boxes": [[1, 2]], "good": True},
    {"path": "q/a.png", "label": "y", "group": "g2", "split": "train",
     "question": "7", "weight": 2, "count": -4, "boxes": [], "good": False},
]  # fmt: skip
VALUES = {"count": "int64", "good": "bool", "weight": "float64"}


def write_jsonl(path: Path, rows: list[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_index(path: Path, rows: list[dict[str, object]]) -> None:
    if path.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(rows), path)
    else:
        write_jsonl(path, rows)


@pytest.mark.parametrize("name", ["i.jsonl", "i.parquet"])
def test_groups_splits_and_other_columns(tmp_path: Path, name: str) -> None:
    with_files(tmp_path, "q/a.png", "q/b.png")
    write_index(tmp_path / name, ROWS)
    spec = spec_of(tmp_path, name)
    source, refs = listed(spec)
    assert [(ref.label, ref.group, ref.split) for ref in refs] == [
        ("y", "g2", "train"), ("x", "g1", "val"),
    ]  # fmt: skip
    fields = {field.name: field for field in source.fields}
    assert fields["image"] == SourceField("image", "image")
    assert fields["question"] == SourceField("question", "text")
    assert fields["boxes"].encoding == "json"
    assert {n: f.dtype for n, f in fields.items() if f.kind == "value"} == VALUES
    first = read_again(spec, -1)[0]
    assert first["image"] == b"q/b.png"
    assert (first["question"], first["weight"], first["count"]) == ('what,\n"why"', 1.5, 3)
    assert json.loads(first["boxes"]) == [[1, 2]]
    assert first["good"] is True


def test_a_row_without_the_label_that_others_have_is_named(tmp_path: Path) -> None:
    with_files(tmp_path)
    (tmp_path / "l.jsonl").write_text('{"path": "b.png", "label": "x"}\n{"path": "a.png"}\n')
    source, refs = listed(spec_of(tmp_path, "l.jsonl", labels="auto"))
    assert [ref.path for ref in refs] == ["b.png"]
    assert source.quarantined == [Unreadable("a.png", "line 2: label: it has no value")]


def test_columns_of_a_csv(tmp_path: Path) -> None:
    with_files(tmp_path)
    (tmp_path / "l.csv").write_text(
        'path,text,size,share,code,mixed\nb.png,"two\nlines",2,.5,007,1\na.png,"x, y",1,1,10,a\n'
    )
    spec = spec_of(tmp_path, "l.csv", labels="auto")
    source, refs = listed(spec)
    assert [ref.label for ref in refs] == [None, None]
    kinds = {field.name: field.dtype or field.kind for field in source.fields}
    assert kinds == {
        "image": "image", "text": "text", "code": "text", "mixed": "text",
        "size": "int64", "share": "float64",
    }  # fmt: skip
    assert read_again(spec) == [
        {"image": b"a.png", "text": "x, y", "code": "10", "mixed": "a", "size": 1, "share": 1.0},
        {"image": b"b.png", "text": "two\nlines", "code": "007", "mixed": "1", "size": 2,
         "share": 0.5},
    ]  # fmt: skip


def test_only_the_columns_that_are_named(tmp_path: Path) -> None:
    with_files(tmp_path)
    (tmp_path / "l.csv").write_text("path,Q 1,other\na.png,why,1\nb.png,how,2\n")
    spec = spec_of(tmp_path, "l.csv", labels="none", fields={"image": "*.png", "question": "Q 1"})
    assert read_again(spec)[1] == {"image": b"b.png", "question": "how"}
    everything = spec_of(tmp_path, "l.csv", labels="none")
    with pytest.raises(RecipeError, match=r"Column 'Q 1' cannot be a field"):
        listed(everything)
    wrong = spec_of(tmp_path, "l.csv", labels="none", fields={"question": "Q1"})
    with pytest.raises(RecipeError, match=r"no column 'Q1'\n.*'Q 1'.*Valid: Q 1, other, path"):
        listed(wrong)


def test_labels_that_are_numbers(tmp_path: Path) -> None:
    with_files(tmp_path)
    (tmp_path / "l.csv").write_text("path,age\na.png,3\nb.png,4.5\n")
    spec = spec_of(tmp_path, "l.csv", label_field="age", label_kind="value")
    source, refs = listed(spec)
    assert refs[0].label is None
    assert source.fields[1] == SourceField("label", "value", dtype="float64")
    assert [values["label"] for values in read_again(spec)] == [3.0, 4.5]
    (tmp_path / "l.csv").write_text("path,age\na.png,3\nb.png,old\n")
    with pytest.raises(HeadraceError, match=r"'age' holds text.*\n.*label_kind"):
        listed(spec)


def test_a_column_named_label_beside_the_one_that_is_the_label(tmp_path: Path) -> None:
    with_files(tmp_path)
    (tmp_path / "l.csv").write_text("path,label,age\na.png,cat,3\nb.png,dog,4.5\n")
    spec = spec_of(tmp_path, "l.csv", label_field="age", label_kind="value")
    assert [values["label"] for values in read_again(spec)] == [3.0, 4.5]


def test_arrays_and_columns(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(3), y=np.arange(2))
    (tmp_path / "l.csv").write_text("path,t\na.npz,5\n")
    values = read_again(spec_of(tmp_path, "l.csv", labels="none"))[0]
    assert list(values) == ["x", "y", "t"]


def test_many_rows_are_found_again(tmp_path: Path) -> None:
    names = [f"{number:04d}.bin" for number in range(500)]
    with_files(tmp_path, *names)
    rows = "".join(f"{name},{'é' * (n % 400)}{n}\n" for n, name in enumerate(names))
    (tmp_path / "l.csv").write_text(f"path,t\n{rows}")
    spec = spec_of(tmp_path, "l.csv", labels="none", include=["*.bin"])
    values = read_again(spec, -1)
    assert [one["t"].lstrip("é") for one in values] == [str(n) for n in range(500)][::-1]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("l.csv", "file,label\na.png,x\n", r"no column 'path'\n.*Valid: file, label"),
        ("l.csv", "a;b\na.png;x\n", r"no column 'path' and no column 'label'\n.*Valid: a, b"),
        ("l.csv", "", "it is empty"),
        ("l.csv", "path,label\na.png\n", r"line 2: it has 1 values, the header names 2"),
        ("l.csv", "path,label,label\na.png,a,b\n", r"two columns 'label'"),
        ("l.csv", "path,label\na.png,\n", r"line 2: label: it has no value"),
        ("l.csv", "path,label,split\na.png,x,\n", r"line 2: split: it has no value"),
        ("l.csv", "path,label\n/a.png,x\n", r"line 2: the path '/a.png' is not below"),
        ("l.csv", "path,label\n../a.png,x\n", r"not below the source folder"),
        (
            "l.csv",
            "path,label\na.png,x\nb.png,x\na.png,y\n",
            r"twice, in line 2 and line 4.*'x', 'y'",
        ),
        ("l.csv", "path,label\na.png,x\n", r"1 of 2 files .* no label in .*: b.png\n +Add"),
        ("l.csv", "path,label\na.png,x\nb.png,x\nc.png,y\n", r"1 of 3 labels .* no file: c.png"),
        ("l.csv", "path,label,image\na.png,x,1\nb.png,y,2\n", r"'image' comes from the files and"),
        ("l.csv", b"path,label\n\xff,x\n", "line 2: the byte 0xff is not UTF-8"),
        ("l.jsonl", '{"path": "a.png"}\n', r"no column 'label'\n.*Valid: path"),
        ("l.jsonl", "nonsense\n", "line 1: no JSON"),
        ("l.jsonl", "[1]\n", "begins with an array of JSON"),
        ("l.jsonl", '{"path": "a.png", "label": 1.5}\n', "neither text nor a whole number"),
        ("l.parquet", b"PAR1 no more", "cannot be read as a parquet file"),
        ("l.txt", "", r"dataset\.index is 'l\.txt'"),
        ("../l.csv", "path,label\n", "not below the source folder"),
    ],
)
def test_wrong_index(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    folder = with_files(tmp_path / "source")
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(HeadraceError, match=message) as caught:
        listed(spec_of(folder, name))
    assert not caught.value.failure_class.is_retried


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"label_field": "age"}, "dataset.label_field is 'age', but the recipe names no index"),
        ({"group_field": "who"}, "dataset.group_field is 'who'"),
        ({"split_field": "fold"}, "dataset.split_field is 'fold'"),
        ({"label_kind": "value"}, "dataset.label_kind is 'value'"),
        ({"fields": {"image": "*.png", "text": "question"}}, "dataset.fields.text is 'question'"),
    ],
)
def test_columns_need_an_index(tmp_path: Path, more: dict[str, Any], message: str) -> None:
    spec = DatasetSpec(name="x", source=str(with_files(tmp_path)), format="files", **more)
    with pytest.raises(RecipeError, match=message):
        open_source(spec)


def test_labels_from_folders(tmp_path: Path) -> None:
    with_files(tmp_path, "dog/1.png", "cat/a/2.png")
    spec = DatasetSpec(name="x", source=str(tmp_path))
    assert [ref.label for ref in listed(spec)[1]] == ["cat", "dog"]
    with_files(tmp_path, "1.png")
    with pytest.raises(RecipeError, match=r"1\.png lies in no class folder"):
        listed(spec)


@pytest.mark.parametrize(
    ("file", "text", "advice"),
    [
        ("in/a.png", "in\\\\a.png", "with '/', not with"),
        ("a b.png", "a%20b.png", "not in the form of URLs"),
        ("in/a.png", "C:\\\\data\\\\in\\\\a.png", "relative to dataset.source"),
        ("in/a.png", "a.png", "'in/a.png'"),
        ("a.png", "in/a.png", "'a.png'"),
        ("a.PNG", "a.png", "'a.PNG'"),
    ],
)
@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_paths_of_other_systems_are_explained(
    tmp_path: Path, form: str, file: str, text: str, advice: str
) -> None:
    with_files(tmp_path, file)
    text = text if form == "jsonl" else text.replace("\\\\", "\\")
    content = f"path\n{text}\n" if form == "csv" else f'{{"path": "{text}"}}\n'
    (tmp_path / f"l.{form}").write_text(content)
    with pytest.raises(HeadraceError, match=re.escape(advice)):
        listed(spec_of(tmp_path, f"l.{form}", labels="none", include=["**/*.png", "**/*.PNG"]))


@pytest.mark.parametrize("folder", ["", "photos/"])
@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_metadata_of_an_imagefolder_of_hugging_face(tmp_path: Path, folder: str, form: str) -> None:
    """Its column `file_name` is relative to the folder of the file."""
    with_files(tmp_path, f"{folder}a.png", f"{folder}b.png")
    rows = [("a.png", "a cat"), ("b.png", "a dog")]
    lines = [json.dumps({"file_name": name, "text": text}) for name, text in rows]
    if form == "csv":
        lines = ["file_name,text", *map(",".join, rows)]
    (tmp_path / f"{folder}metadata.{form}").write_text("\n".join(lines))
    spec = spec_of(tmp_path, f"{folder}metadata.{form}", labels="none")
    assert [values["text"] for values in read_again(spec)] == ["a cat", "a dog"]


def test_rows_of_an_index_that_cannot_be_read_are_named_as_rows(tmp_path: Path, packs) -> None:
    with_files(tmp_path / "in", "a.bin", "b.bin")
    (tmp_path / "in" / "l.csv").write_text("path,x\na.bin,\nb.bin,\n")
    spec = {"index": "l.csv", "labels": "none", "include": ["*.bin"]}
    with pytest.raises(
        HeadraceError, match=r"None of the first 2 samples.*\n.*rows.*dataset.missing"
    ):
        packs(tmp_path / "in", spec)


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.jsonl", "t.parquet"])
def test_columns_of_any_name_in_any_folder(tmp_path: Path, name: str) -> None:
    folder = with_files(tmp_path / "source", "x/a.png", "b.png")
    rows = [
        {"Filename": str(folder / "x/a.png"), "Kind of": "cat", "n": 1},
        {"Filename": "b.png", "Kind of": "dog", "n": 2},
    ]
    if name.endswith("sv"):
        lines = [list(rows[0]), *(list(map(str, row.values())) for row in rows)]
        mark = "," if name == "t.csv" else "\t"
        (tmp_path / name).write_text("".join(mark.join(line) + "\n" for line in lines))
    else:
        write_index(tmp_path / name, rows)
    more = {"path_field": "Filename", "label_field": "Kind of"}
    spec = spec_of(folder, str(tmp_path / name), **more)
    source, refs = listed(spec)
    assert [(ref.path, ref.label) for ref in refs] == [("b.png", "dog"), ("x/a.png", "cat")]
    assert [each["n"] for each in read_again(spec)] == [2, 1]
    assert [field.name for field in source.fields] == ["image", "n"]
    with pytest.raises(RecipeError, match="no column 'lost'"):
        listed(spec_of(folder, str(tmp_path / name), path_field="lost", label_field="Kind of"))
    with pytest.raises(ValueError, match="'path_field' is a column of 'index'"):
        DatasetSpec(name="x", source=str(folder), path_field="Filename")
