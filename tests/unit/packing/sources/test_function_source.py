"""Samples made by a function of the user's, which the site must allow."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.errors import DataError, RecipeError, TargetError, UserCodeError
from headrace.objects.store import open_store
from headrace.packing.pack_step import pack
from headrace.packing.samples import Access, Unreadable
from headrace.packing.sources.open import open_source, with_format
from headrace.recipe.load import parse
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site

READER = """
from pathlib import Path
import numpy as np

def read(path, factor=1):
    text = Path(path).read_text()
    if text == "damaged":
        raise ValueError("cannot read this")
    if text == "leave":
        raise SystemExit(3)
    if text == "other":
        return {"x": np.zeros(2)}
    if text.startswith("many"):
        return several(text)
    if text == "listed":
        return [{"x": np.zeros(2), "n": 1}, {"x": np.ones(2), "n": 2}]
    if text.startswith("named"):
        _, label, split = text.split()
        label = {"none": None, "7": 7, "1.5": 1.5}.get(label, label)
        return {"n": 1, "label": label, "group": np.int64(4), "split": split}
    if text == "list":
        return {"x": [1.0], "name": "a", "n": 1}
    return {"x": np.full((2, 2), float(text) * factor, ">f8"), "name": text, "n": np.int32(3)}

def several(text):
    array = np.zeros(2)
    for number in range(int(text.split()[1])):
        if "stops" in text and number == 2:
            raise ValueError("stopped")
        array[:] = number  # the same array again
        yield {"x": array, "label": "ab"[number % 2], "split": "train" if number else "val"}
"""


def opened(
    tmp_path: Path, texts: list[str], s3: dict[str, str] | None = None, **dataset: Any
) -> tuple[Any, Any, Access]:
    code = tmp_path / "code"
    code.mkdir(exist_ok=True, parents=True)
    module = f"reader_of_{tmp_path.name}"
    (code / f"{module}.py").write_text(READER)
    source = tmp_path / "raw"
    source.mkdir(exist_ok=True)
    for number, text in enumerate(texts):
        (source / f"{number}.dat").write_text(text)
    reader = {"_target_": f"{module}.read", "factor": 2}
    recipe = {
        "name": "r",
        "code": [str(code)],
        "dataset": {
            "name": "x", "source": str(source), "include": ["*.dat"], "reader": reader, **dataset,
        },
        "model": {"_target_": "torch.nn.Identity"},
    }  # fmt: skip
    site = {
        "name": "here",
        "folder": str(tmp_path),
        "roles": {"cpu": {}},
        "tiers": [{"name": "disk", "folder": str(tmp_path)}],
        "allowed_code": [str(code)],
        "s3": s3 or {},
    }
    parsed = parse(Recipe, recipe, "test")
    access = Access.of(parsed, parse(Site, site, "test"))
    return open_source(parsed.dataset, access), parsed.dataset, access


def test_fields_of_a_function(tmp_path: Path) -> None:
    source, spec, access = opened(tmp_path, ["1", "2.5", "damaged", "other", "list"])
    refs = source.list_samples()
    assert [(f.name, f.kind, f.dtype) for f in source.fields] == [
        ("x", "array", ""), ("name", "text", ""), ("n", "value", "int64"),
    ]  # fmt: skip
    worker = open_source(with_format(spec, access), access, source.fields)
    values = list(worker.read(refs))
    np.testing.assert_array_equal(values[1]["x"], np.full((2, 2), 5.0))
    assert values[1]["x"].dtype == np.dtype("<f8")
    assert (values[1]["name"], values[1]["n"]) == ("2.5", 3)
    assert values[2:] == [
        Unreadable("2.dat", "the reader raised ValueError: cannot read this"),
        Unreadable("3.dat", "the reader returned x in place of x, name, n"),
        Unreadable("4.dat", "the reader returned list as 'x'"),
    ]
    (tmp_path / "raw" / "0.dat").unlink()
    with pytest.raises(DataError, match=r"0\.dat is gone since"):
        list(worker.read(refs))


def test_the_same_from_s3(tmp_path, moto_server, moto_bucket, monkeypatch):
    """The function gets local paths, of one file at a time, named as in the bucket."""
    near, _, _ = opened(tmp_path, ["1", "2.5", "damaged", "4"])
    expected = list(near.read(near.list_samples()))
    store = open_store(f"{moto_bucket}/raw/deep", moto_server.options)
    for path in (tmp_path / "raw").iterdir():
        store.upload(path, f"a/{path.name}")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    far, spec, access = opened(
        tmp_path,
        [],
        {"endpoint_url": moto_server.endpoint_url},
        source=store.url,
        include=["**/*.dat"],
        labels="folders",
    )
    refs = far.list_samples()
    assert [(ref.path, ref.label) for ref in refs] == [(f"a/{n}.dat", "a") for n in range(4)]
    found = []
    for sample in open_source(with_format(spec, access), access, far.fields).read(refs):
        (kept,) = scratch.rglob("*.dat")
        assert kept.name == f"{len(found)}.dat"
        found.append(sample)
    assert [str(one) for one in found] == [
        str(one).replace("'2.dat'", "'a/2.dat'") for one in expected
    ]
    assert list(scratch.iterdir()) == []
    store.write("a/1.dat", b"other")
    with pytest.raises(DataError, match=r"1\.dat was written to since"):
        list(far.read(refs))
    assert list(scratch.iterdir()) == []


def test_labels_beside_a_function(tmp_path: Path) -> None:
    opened(tmp_path, ["1", "2"])
    (tmp_path / "raw" / "l.csv").write_text("path,label,more\n0.dat,7,a\n1.dat,8.5,b\n")
    source, spec, access = opened(tmp_path, ["1", "2"], index="l.csv", label_kind="value")
    refs = source.list_samples()
    worker = open_source(with_format(spec, access), access, source.fields)
    assert [list(sample) for sample in worker.read(refs)] == [["x", "name", "n", "label"]] * 2
    assert [sample["label"] for sample in worker.read(refs)] == [7.0, 8.5]
    classes, _, _ = opened(tmp_path, ["1", "2"], index="l.csv")
    assert [ref.label for ref in classes.list_samples()] == ["7", "8.5"]


def test_a_function_that_fails_at_once(tmp_path: Path) -> None:
    with pytest.raises(UserCodeError, match=r"raised ValueError for .*0\.dat: cannot read this"):
        opened(tmp_path, ["damaged"])[0].list_samples()
    with pytest.raises(UserCodeError, match=r"raised SystemExit for .*0\.dat: 3"):
        opened(tmp_path, ["leave"])[0].list_samples()
    with pytest.raises(RecipeError, match=r"returned list as 'x' for .*0\.dat\n.*Valid: bytes"):
        opened(tmp_path, ["list"])[0].list_samples()


def test_a_function_that_is_not_allowed(tmp_path: Path) -> None:
    source, _, _ = opened(tmp_path, ["1"], reader={"_target_": "os.stat"})
    with pytest.raises(TargetError, match=r"os\.stat"):
        source.list_samples()
    with pytest.raises(RecipeError, match=r"Both dataset.reader and dataset.fields"):
        opened(tmp_path, ["1"], fields={"x": "*.dat"})


SIZE_READER = """
import os

def read(path):
    return {"size": float(os.path.getsize(path))}
"""


def test_an_edited_reader_packs_anew(tmp_path, make_context, in_process):
    """What the function as it was before made is never taken for what it makes now."""
    source, code = tmp_path / "raw", tmp_path / "code"
    for folder in (source, code):
        folder.mkdir()
    for number in range(12):
        (source / f"{number:02d}.dat").write_bytes(bytes(number))
    (code / "size_reader.py").write_text(SIZE_READER)

    def packed() -> dict[str, Any]:
        reader = {"_target_": "size_reader.read"}
        given = {"labels": "none", "include": ["*.dat"], "reader": reader}
        context = make_context(source, dataset=given)
        context.recipe = context.recipe.model_copy(update={"code": (str(code),)})
        context.site = context.site.model_copy(update={"allowed_code": (str(code),)})
        return pack(context, in_process)

    first = packed()
    assert packed() == {**first, "reused": True}
    (code / "size_reader.py").write_text(SIZE_READER.replace("float(", "1 + float("))
    again = packed()
    assert not again["reused"]
    assert again["dataset"] != first["dataset"]


def test_a_function_yields_many_samples(tmp_path: Path) -> None:
    source, spec, access = opened(tmp_path, ["many 3", "many 0", "many 4 stops", "damaged"])
    refs = source.list_samples()
    assert [(ref.path, ref.label, ref.split) for ref in refs] == [
        ("0.dat#000000", "a", "val"), ("0.dat#000001", "b", "train"),
        ("0.dat#000002", "a", "train"), ("2.dat#000000", "a", "val"),
        ("2.dat#000001", "b", "train"),
    ]  # fmt: skip
    assert source.sequential
    assert [field.name for field in source.fields] == ["x"]
    assert source.quarantined == [
        Unreadable("2.dat#000002", "the reader raised ValueError: stopped"),
        Unreadable("3.dat", "the reader raised ValueError: cannot read this"),
    ]
    worker = open_source(with_format(spec, access), access, source.fields)
    order = [3, 1, 4, 0, 2]
    values = list(worker.read(refs.take(np.array(order))))
    assert [each["x"].tolist() for each in values] == [[n] * 2 for n in (0, 1, 1, 0, 2)]
    (tmp_path / "raw" / "l.csv").write_text("path,label\n0.dat,7\n")
    with pytest.raises(RecipeError, match="several samples of"):
        opened(tmp_path, [], index="l.csv")[0].list_samples()


def test_a_list_of_dicts_is_as_many_samples(tmp_path: Path) -> None:
    source, _, _ = opened(tmp_path, ["listed", "1"])
    refs = source.list_samples()
    assert [ref.path for ref in refs] == ["0.dat#000000", "0.dat#000001", "1.dat"]
    values = list(source.read(refs))
    assert [each["n"] for each in values[:2]] == [1, 2]
    assert values[2].reason == "the reader returned n, name, x in place of x, n"
    with pytest.raises(RecipeError, match=r"returned NoneType for .*0\.dat\n.*or yield"):
        opened(tmp_path / "none", ["many 0"])[0].list_samples()


def test_label_group_and_split_of_a_function(tmp_path: Path) -> None:
    texts = ["named 7 train", "named none train", "named 1.5 val", "named ü val"]
    source, spec, access = opened(tmp_path, texts)
    refs = source.list_samples()
    assert [(ref.path, ref.label, ref.group, ref.split) for ref in refs] == [
        ("0.dat", "7", "4", "train"), ("3.dat", "ü", "4", "val"),
    ]  # fmt: skip
    assert [each.reason for each in source.quarantined] == [
        "label: it has no value", "the label is 1.5, which is neither text nor a whole number",
    ]  # fmt: skip
    worker = open_source(with_format(spec, access), access, source.fields)
    assert list(worker.read(refs)) == [{"n": 1}, {"n": 1}]
    source, _, _ = opened(tmp_path / "value", texts[:1], label_kind="value")
    assert source.list_samples()[0].label is None
    assert [field.name for field in source.fields] == ["n", "label"]
