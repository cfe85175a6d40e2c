"""What packing refuses whatever the source holds is refused before a machine is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.errors import RecipeError
from headrace.recipe.load import load_site
from headrace.recipe.recipe import Recipe
from headrace.runs.resolve import resolve

Part = dict[str, Any]
IMAGE, SOUND, MASK = ({"dataset.fields": {"x": name}} for name in ("*.jpg", "*.wav", "*.npy"))
ENCODED = {"pack.images": "encoded"}
READER = {"dataset.reader": {"_target_": "torch.load"}}


def field(**options: object) -> Part:
    return {"pack.fields": {"x": options}}


REFUSED: list[tuple[Part, str, str]] = [
    # what stays encoded is not changed
    *(
        (ENCODED | shown | field(**{option: value}), f"x.{option} is set, but 'x' stays", "decode")
        for option, value in {"resize": [8, 8], "channels": 1, "mixed": "resize"}.items()
        for shown in ({}, IMAGE)
    ),
    *(
        (field(keep="encoded", **{option: value}), f"x.{option} is set, but 'x' stays", "decode")
        for option, value in {
            "resize": [8, 8],
            "channels": 1,
            "sample_rate": 8000,
            "dtype": "float32",
            "mixed": "ragged",
            "codec": "lz4",
        }.items()
    ),
    (ENCODED | IMAGE | field(dtype="float32"), "x.dtype is set, but 'x' stays encoded", "decode"),
    (field(sample_rate=8000), "x.sample_rate is set, but 'x' stays encoded", "decode"),
    (SOUND | field(mixed="error"), "x.mixed is set, but 'x' stays encoded", "decode"),
    # options of other kinds
    (MASK | field(resize=[8, 8]), "x.resize is set, but 'x' is of kind array", "kind image"),
    (IMAGE | field(sample_rate=8000), "x.sample_rate is set, but 'x' is of kind image", "audio"),
    (SOUND | field(keep="decode", orientation="keep"), "'x' is of kind audio", "kind image"),
    (MASK | field(mixed="resize"), "x.mixed is 'resize', but 'x' is of kind array", "ragged"),
    (
        {"dataset.format": "webdataset", "dataset.fields": {"x": "mask.npy"}} | field(channels=1),
        "x.channels is set, but 'x' is of kind array",
        "kind image",
    ),
    (field(resize=[8, 8], sample_rate=8000, keep="decode"), "x.sample_rate is set", "kind audio"),
    # codecs
    (field(chunk_samples=2), "x.chunk_samples is set, but its codec is 'none'", "Set a codec"),
    (field(mixed="ragged", codec="lz4"), "x.codec is 'lz4', but 'x' is of varying", "leave it"),
    (SOUND | field(keep="decode", codec="zstd"), "x.codec is 'zstd', but 'x' is of", "leave it"),
    # names of fields
    (
        {"dataset.fields": {"image": "*.jpg"}} | field(channels=1),
        "pack.fields names 'x', which the source does not have",
        "Fields found: image",
    ),
    # where samples and labels come from
    ({"dataset.fields": {"x": "*/*.jpg"}}, r"dataset.fields.x is '\*/\*.jpg'", "one star"),
    ({"dataset.index": "labels.xlsx"}, "dataset.index is 'labels.xlsx'", ".parquet"),
    *(
        ({"dataset.format": form, **key}, "names no index file", "dataset.index")
        for form in ("files", "tar")
        for key in (
            {"dataset.label_field": "y"},
            {"dataset.group_field": "y"},
            {"dataset.split_field": "y"},
            {"dataset.fields": {"x": "*.jpg", "y": "column"}},
            {"dataset.label_kind": "value"},
        )
    ),
    (READER | {"dataset.label_field": "y"}, "names no index file", "dataset.index"),
    (READER | {"dataset.fields": {"x": "*.jpg"}}, "Both dataset.reader and dataset.f", "keep one"),
    *(
        ({"dataset.format": form, **key}, what, hint)
        for form in ("webdataset", "csv", "jsonl", "parquet", "hdf5", "huggingface")
        for key, what, hint in (
            ({"dataset.labels": "folders"}, "lie in no class folders", "dataset.label_field"),
            ({"dataset.index": "l.csv"}, "are not told by paths", "Leave it out"),
        )
    ),
    (
        {"dataset.format": "csv", "dataset.label_kind": "value"},
        "dataset.label_field names no column",
        "Name the column",
    ),
    (
        {"dataset.labels": "folders", "dataset.label_kind": "value"},
        "names no index file",
        "dataset.index",
    ),
    (
        {"dataset.fields": {"label": "*.npy"}, "dataset.labels": "folders"},
        "have a field 'label', and class labels",
        "another name",
    ),
    ({"dataset.source": "s3://b/rows.tar.gz"}, "is a file, not a folder", "gunzip"),
    # what cannot grow
]

TAKEN: list[Part] = [
    ENCODED | field(dtype="float32"),  # of arrays
    ENCODED | field(keep="decode", resize=[8, 8], channels=3, filter="lanczos"),
    ENCODED | IMAGE | field(orientation="keep"),
    ENCODED | MASK | field(codec="lz4", chunk_samples=4),
    ENCODED | SOUND | field(keep="decode", sample_rate=8000, mixed="error", codec="zstd"),
    {"pack.images": "decode"} | field(mixed="resize", codec="blosc"),
    IMAGE | {"dataset.index": "l.csv", "pack.fields": {"column": {"dtype": "float32"}}},
    {"dataset.fields": {"x": "column"}, "dataset.label_field": "y"} | field(resize=[8, 8]),
    {"dataset.format": "webdataset", "dataset.fields": {"x": "txt;jpg"}} | field(resize=[8, 8]),
    {"dataset.format": "csv", "dataset.label_kind": "value", "dataset.label_field": "y"}
    | {"dataset.fields": {"x": "column"}, "pack.fields": {"label": {"dtype": "float32"}}},
    {"dataset.format": "webdataset", "dataset.label_kind": "value"},
    {"dataset.fields": {"label": "y"}, "dataset.format": "parquet"},
    {"dataset.fields": {"x": "*/*.jpg"}, "dataset.format": "hdf5"},  # the name of a dataset
    READER,
    {"dataset.source": "s3://b/rows.tar"},
    {"pack.append": True},
    {"dataset.source": None, "dataset.path": "s3://b/packed"} | field(chunk_samples=2),
]


def recipe_of(given: Part) -> Recipe:
    content: Part = {
        "name": "r",
        "dataset": {"name": "x", "source": "s3://b/source"},
        "pack": {},
        "train": {"script": "train.py"},
        "evaluate": None,
    }
    for key, value in given.items():
        part, _, name = key.partition(".")
        content[part][name] = value
    return Recipe.model_validate(content)


def checked(given: Part, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resolve a recipe as for a run; nothing may be opened."""
    monkeypatch.setattr("headrace.objects.store.open_store", None)
    site = load_site("laptop").model_copy(update={"allowed_targets": ("torch.load",)})
    resolve(recipe_of(given), site, "pack", is_from_terminal=True)


@pytest.mark.parametrize(("given", "what", "hint"), REFUSED)
def test_what_packing_never_takes_is_refused_before_anything_starts(
    headrace_home: Any, monkeypatch: pytest.MonkeyPatch, given: Part, what: str, hint: str
) -> None:
    with pytest.raises(RecipeError, match=what) as caught:
        checked(given, monkeypatch)
    assert hint in caught.value.hint


@pytest.mark.parametrize("given", TAKEN)
def test_what_some_source_takes_is_taken(
    headrace_home: Any, monkeypatch: pytest.MonkeyPatch, given: Part
) -> None:
    checked(given, monkeypatch)


@pytest.mark.parametrize(
    ("name", "what"), [("rows.sqlite", "dataset.query is missing"), ("rows.npz", "")]
)
def test_a_file_of_this_machine_is_judged_as_what_it_is(
    headrace_home: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, what: str
) -> None:
    tmp_path.joinpath(name).touch()
    given: Part = {"dataset.source": str(tmp_path / name)}
    if not what:
        checked(given, monkeypatch)
        return
    with pytest.raises(RecipeError, match=what):
        checked(given, monkeypatch)
    checked(given | {"dataset.query": "SELECT 1"}, monkeypatch)
