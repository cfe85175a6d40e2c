"""Labels match files one to one, or it is said which do not."""

from pathlib import Path

import pytest

from headrace.errors import HeadraceError, RecipeError
from headrace.packing.labels import label_samples
from headrace.packing.sources import SourceFile
from headrace.recipe.dataset import DatasetSpec


def files(*paths: str) -> list[SourceFile]:
    return [SourceFile(path=path, num_bytes=1, mtime_ns=1) for path in paths]


def index_spec(name: str) -> DatasetSpec:
    return DatasetSpec(name="x", source="s", labels="index", index=name)


def test_folders_give_classes_by_alphabet_or_by_number() -> None:
    spec = DatasetSpec(name="x", source="s")
    labels = label_samples(spec, Path("s"), files("dog/1.png", "cat/a/2.png", "dog/3.png"))
    assert labels.classes == ("cat", "dog")
    assert labels.indices == (1, 0, 1)
    numbers = label_samples(spec, Path("s"), files("10/1.png", "9/2.png", "0/3.png"))
    assert numbers.classes == ("0", "9", "10")


def test_file_outside_class_folders() -> None:
    with pytest.raises(RecipeError, match=r"s/1\.png lies in no class folder"):
        label_samples(DatasetSpec(name="x", source="s"), Path("s"), files("1.png"))


def test_no_labels() -> None:
    labels = label_samples(
        DatasetSpec(name="x", source="s", labels="none"), Path("s"), files("1.png")
    )
    assert (labels.classes, labels.indices) == ((), ())


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("l.csv", "path,label\na.png,cat\nb.png,dog\n"),
        ("l.csv", "\ufefflabel, path ,note\r\ncat,a.png,x\r\n\r\ndog,./b.png,y\r\n"),
        ("l.csv", 'path,label\n"a.png",cat\nb.png," dog"\n'),
        ("l.jsonl", '{"path": "a.png", "label": "cat"}\n\n{"label": "dog", "path": "b.png"}'),
    ],
)
def test_index_files(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_bytes(content.encode())
    labels = label_samples(index_spec(name), tmp_path, files("a.png", "b.png"))
    assert labels.classes == ("cat", "dog")
    assert labels.indices == (0, 1)


def test_whole_numbers_in_jsonl(tmp_path: Path) -> None:
    (tmp_path / "l.jsonl").write_text(
        '{"path": "a.png", "label": 10}\n{"path": "b.png", "label": 9}\n'
    )
    labels = label_samples(index_spec("l.jsonl"), tmp_path, files("a.png", "b.png"))
    assert labels.classes == ("9", "10")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("l.csv", "file,label\na.png,x\n", r"no column 'path'\n.*Columns found: file, label"),
        ("l.csv", "a;b\na.png;x\n", r"no column 'path' and no column 'label'\n.*found: a;b"),
        ("l.csv", "", "Columns found: none"),
        ("l.csv", "path,label\na.png\n", r"line 2: too few columns"),
        ("l.csv", "path,label\na.png,\n", r"line 2: the label of 'a.png' is empty"),
        ("l.csv", "path,label\n/a.png,x\n", r"line 2: the path '/a.png' is not below"),
        ("l.csv", "path,label\n../a.png,x\n", r"not below the source folder"),
        ("l.csv", "path,label\na.png,x\nb.png,x\na.png,y\n", r"labels 'a.png' twice: 'x' in li"),
        ("l.csv", "path,label\na.png,x\n", r"1 of 2 files have no label in .*l.csv: b.png"),
        ("l.csv", "path,label\na.png,x\nb.png,x\nc.png,y\n", r"1 of 3 labels .* no file: c.png"),
        ("l.csv", b"path,label\n\xff,x\n", "no CSV file in UTF-8"),
        ("l.jsonl", '{"path": "a.png"}\n', r"no column 'label'\n.*Columns found: path"),
        ("l.jsonl", "nonsense\n", "line 1: no JSON"),
        ("l.jsonl", "[1]\n", "line 1: no JSON object"),
        ("l.jsonl", '{"path": "a.png", "label": 1.5}\n', "neither text nor a whole number"),
        ("l.txt", "", r"dataset\.index is 'l\.txt'"),
    ],
)
def test_wrong_index(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(HeadraceError, match=message) as caught:
        label_samples(index_spec(name), tmp_path, files("a.png", "b.png"))
    assert not caught.value.failure_class.is_retried


def test_two_label_files(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("path,label\na.png,x\n")
    (tmp_path / "labels.jsonl").write_text('{"path": "a.png", "label": "y"}\n')
    with pytest.raises(RecipeError, match=r"two label files, labels\.csv and labels\.jsonl"):
        label_samples(index_spec("labels.csv"), tmp_path, files("a.png"))


def test_missing_index_lists_those_there(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("path,label\na.png,x\n")
    with pytest.raises(RecipeError, match=r"does not exist\n.*: labels\.csv\."):
        label_samples(index_spec("label.csv"), tmp_path, files("a.png"))
