"""Folders that are splits, classes, wrappers or none of these: taken, noted, or refused."""

from pathlib import Path
from typing import Any

import pytest

from headrace.errors import RecipeError, UnclearNamesError
from headrace.files.manifest_file import read_manifest
from headrace.packing.column_notes import note_texts
from headrace.packing.opened_source import OpenedSource
from headrace.packing.samples import Source
from headrace.packing.sources.folder_layout import split_named
from headrace.packing.sources.open import open_source
from headrace.recipe.dataset import DatasetSpec
from support.source_files import png, spec_of, write_tar
from support.stores import afar

SPLITS = ("train", "val", "test")
FOUND = {f"{split}/{name}": (split, name) for split in SPLITS for name in ("cat", "dog")}


def write(source: Path, *folders: str) -> Path:
    for folder in folders:
        path = source / folder
        path = path if path.suffix == ".png" else path / "1.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(len(folder)))
    return source


def meanings(source: Source) -> dict[str, tuple[str | None, str | None]]:
    return {
        ref.path.removesuffix("/1.png"): (ref.split, ref.label) for ref in source.list_samples()
    }


def found(folder: Path | str, **more: Any) -> dict[str, tuple[str | None, str | None]]:
    return meanings(open_source(spec_of(folder, **more)))


@pytest.mark.parametrize(
    ("name", "split"),
    [
        *((name, "train") for name in ("train", "Training", "TRAIN", "train2017", "training_set")),
        *((name, "val") for name in ("val", "valid", "Validation", "dev", "val_images", "val ")),
        *((name, "test") for name in ("test", "testing", "test1", "Test-Data", "test_set_2")),
        *((name, "") for name in ("trains", "trainer", "testimony", "value", "device", "cat", "")),
        ("train_station", ""), ("bullet train", ""), ("test tube", ""), ("2017train", ""),
    ],
)  # fmt: skip
def test_names_of_splits(name: str, split: str) -> None:
    assert split_named(name) == split


TAKEN = {
    "splits and classes": (list(FOUND), {}, FOUND),
    "other spellings": (
        ["Training/a", "Validation/a", "TEST/a"], {},
        {"Training/a": ("train", "a"), "Validation/a": ("val", "a"), "TEST/a": ("test", "a")},
    ),
    "wrapped": (["data/train/a", "data/test/a"], {},
                {"data/train/a": ("train", "a"), "data/test/a": ("test", "a")}),
    "wrapped twice": (["x/y/a", "x/y/b"], {}, {"x/y/a": (None, "a"), "x/y/b": (None, "b")}),
    "wrapped classes": (["src/cat", "src/dog"], {},
                        {"src/cat": (None, "cat"), "src/dog": (None, "dog")}),
    "wrapped within splits": (
        ["train/images/a", "train/images/b", "test/images/a"], {},
        {"train/images/a": ("train", "a"), "train/images/b": ("train", "b"),
         "test/images/a": ("test", "a")},
    ),
    "splits twice": (["train/train/a", "test/test/b"], {},
                     {"train/train/a": ("train", "a"), "test/test/b": ("test", "b")}),
    "one class": (["cat"], {}, {"cat": (None, "cat")}),
    "classes": (["cat", "dog/deep"], {}, {"cat": (None, "cat"), "dog/deep": (None, "dog")}),
    "no labels": (["train", "test"], {"labels": "none"},
                  {"train": ("train", None), "test": ("test", None)}),
    "no labels, deeper": (["train/x", "test"], {"labels": "none"},
                          {"train/x": ("train", None), "test": ("test", None)}),
    "no folders": (["1.png"], {"labels": "none"}, {"1.png": (None, None)}),
    "not splits": (["train", "test"], {"split_folders": False},
                   {"train": (None, "train"), "test": (None, "test")}),
    "not a split": (["train/a", "train/b"], {"split_folders": False},
                    {"train/a": (None, "a"), "train/b": (None, "b")}),
    "a class named train": (["train", "car"], {"split_folders": False},
                            {"train": (None, "train"), "car": (None, "car")}),
    "the only split": (["test/a", "test/b"], {"split_folders": True},
                       {"test/a": ("test", "a"), "test/b": ("test", "b")}),
    "classes above splits": (["a/train", "a/test", "b/train"], {"split_folders": True},
                             {"a/train": ("train", "a"), "a/test": ("test", "a"),
                              "b/train": ("train", "b")}),
    "two folders of a split": (["train", "test1", "test2"],
                               {"split_folders": True, "labels": "none"},
                               {"train": ("train", None), "test1": ("test", None),
                                "test2": ("test", None)}),
    "hidden": (["a", "b", "__MACOSX/a", ".git/a", "a/.ipynb_checkpoints", "b/@eaDir/1.png"], {},
               {"a": (None, "a"), "b": (None, "b")}),
}  # fmt: skip


@pytest.mark.parametrize("name", TAKEN)
def test_taken(tmp_path: Path, name: str) -> None:
    folders, keys, expected = TAKEN[name]
    assert found(write(tmp_path / "in", *folders), **keys) == expected


REFUSED = {
    "beside a class": (["train/a", "test/a", "cat"], {}, "'cat' beside it is none"),
    "beside samples": (["train/a", "test/a", "1.png"], {}, "not all samples lie in one"),
    "only one": (["train/a", "train/b"], {}, "there is no other"),
    "below classes": (["a/train", "a/test", "b/train", "b/test"], {}, "one of several folders"),
    "below one class": (["a/train", "a/test", "b"], {}, "not all samples lie in one"),
    "without classes": (["train", "test"], {}, "class folders"),
    "one without classes": (["train/a", "train/b", "test"], {}, "class folders"),
    "with shares": (["train/a", "test/a"], {"splits": {"train": 1.0}}, "gives shares"),
    "twice": (["train", "test1", "test2"], {"labels": "none"}, "the same split"),
    "further in": (["train/a/test", "test/a/train"], {}, "have names of splits, too"),
    "a class named train": (["train", "car", "bus"], {}, "beside it is none"),
    "none, but asked for": (["cat", "dog"], {"split_folders": True}, "is no split"),
    "not all, but asked for": (["train/a", "dog"], {"split_folders": True}, "in/dog' is no split"),
    "no class folder": (["cat", "1.png"], {}, "1.png lies in no class folder"),
    "beside the classes": (["x/cat", "x/dog", "x/1.png"], {}, "'x' may be the only class"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(tmp_path: Path, name: str) -> None:
    folders, keys, reason = REFUSED[name]
    with pytest.raises(RecipeError, match=reason) as caught:
        found(write(tmp_path / "in", *folders), **keys)
    if "split" in str(caught.value.what):
        for key in ("dataset.split_folders", "false"):
            assert key in str(caught.value)


@pytest.mark.parametrize("name", ["splits and classes", "wrapped", "no labels", "splits twice"])
@pytest.mark.parametrize("where", ["tar", "afar"])
def test_the_same_in_tar_files_and_stores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, where: str
) -> None:
    folders, keys, expected = TAKEN[name]
    if where == "tar":
        members = {f"{folder}/1.png": png(1) for folder in folders}
        write_tar(tmp_path / "in/all.tar", members)
        expected = {f"all.tar/{folder}": meaning for folder, meaning in expected.items()}
        assert found(tmp_path / "in", **keys) == expected
    else:
        source = write(tmp_path / "in", *folders)
        monkeypatch.setattr("headrace.packing.sources.open.open_store", lambda *_: afar(source))
        assert found("s3://bucket/in", **keys) == expected


def test_tar_files_named_as_splits(tmp_path: Path) -> None:
    for name in ("train-000", "train-001", "val"):
        write_tar(tmp_path / f"{name}.tar", {"cat/1.png": png(1), "dog/1.png": png(2)})
    assert found(tmp_path) == {
        f"{name}.tar/{label}": (name[:5].strip("-"), label)
        for name in ("train-000", "train-001", "val")
        for label in ("cat", "dog")
    }
    for source in (tmp_path / "train-000.tar", tmp_path / "val.tar"):  # as if it were a folder
        assert {split for split, _ in found(source).values()} == {None}
    write_tar(tmp_path / "more.tar", {"cat/1.png": png(1)})
    with pytest.raises(RecipeError, match="may be a split or not"):
        found(tmp_path)


def test_several_files_a_sample(tmp_path: Path) -> None:
    for split in ("train", "val"):
        write(tmp_path, f"images/{split}/1.png", f"masks/{split}/1_mask.png")
    keys = {"labels": "none", "fields": {"image": "images/*.png", "mask": "masks/*_mask.png"}}
    assert found(tmp_path, **keys) == {
        "images/train": ("train", None), "images/val": ("val", None),
    }  # fmt: skip


def test_an_index_that_names_splits_counts(tmp_path: Path) -> None:
    write(tmp_path, "train/1.png", "test/1.png")
    index = tmp_path / "index.csv"
    index.write_text("path,label\ntrain/1.png,a\ntest/1.png,b\n")
    assert found(tmp_path, index="index.csv") == {"train": ("train", "a"), "test": ("test", "b")}
    index.write_text("path,label,split\ntrain/1.png,a,x\ntest/1.png,b,y\n")
    assert found(tmp_path, index="index.csv") == {"train": ("x", "a"), "test": ("y", "b")}


def test_contradictions_in_the_recipe() -> None:
    for key, value in (("splits", {"train": 1.0}), ("split_field", "part")):
        with pytest.raises(ValueError, match=rf"both 'split_folders: true' and '{key}'"):
            spec_of("x", split_folders=True, **{key: value})
    assert spec_of("x", split_folders=True, folds=3).folds == 3


def test_what_people_are_shown(tmp_path: Path, make_context, packs) -> None:
    source = write(tmp_path / "in", *FOUND, "test/bird")
    for folder in ("train/cow", "holdout", ".git"):
        (source / folder).mkdir()
    (source / "train/fish").mkdir()
    (source / "train/fish/1.heic").touch()
    default = DatasetSpec.model_fields["splits"].default
    outputs = packs(source, {"splits": default})
    assert outputs["notes"] == list(read_manifest(Path(outputs["dataset"])).notes)
    assert outputs["notes"] == [
        "split 'test': folder 'test', 3 samples",
        "split 'train': folder 'train', 2 samples",
        "split 'val': folder 'val', 2 samples",
        "classes without a sample in split 'train': bird",
        "folders without a sample: holdout, train/cow, train/fish",
        "files left out: 1 .heic, 1 hidden",
    ]


def opened(make_context, source: Path, **dataset: Any) -> Any:
    context = make_context(source, dataset)
    return OpenedSource.of(context.recipe, context.site, lambda: None).listed(lambda: None)


@pytest.mark.parametrize("twin", ["cat ", "caf\u0065\u0301", "café  "])
def test_names_that_look_alike_are_refused(tmp_path: Path, make_context, twin: str) -> None:
    source = write(tmp_path / "in", "cat" if "cat" in twin else "café", twin)
    with pytest.raises(UnclearNamesError, match="differ only in case, spaces or Unicode form"):
        opened(make_context, source)


def test_classes_that_differ_in_case_are_noted(tmp_path: Path, make_context) -> None:
    listing = opened(make_context, write(tmp_path / "in", "A", "a", "b")).listing
    assert listing.classes == ("A", "a", "b")
    assert listing.notes == ("classes 'A' and 'a' differ only in case",)


def test_splits_of_columns(tmp_path: Path, make_context) -> None:
    rows = [f"{n},{'train' if n % 2 else 'Train'}" for n in range(8)]
    file = tmp_path / "a.csv"
    file.write_text("\n".join(["x,part", *rows]))
    with pytest.raises(UnclearNamesError, match="'Train' and 'train' differ only in case"):
        opened(make_context, file, split_field="part")
    file.write_text("\n".join(["x,part", *(row.replace("Train", "Validation") for row in rows)]))
    notes = opened(make_context, file, split_field="part").listing.notes
    assert note_texts(notes) == ["split 'Validation' is not the split 'val'"]
    file.write_text(file.read_text().replace("Validation", "val"))
    shares = {"train": 0.5, "test": 0.5}
    with pytest.raises(RecipeError, match="a split 'val'"):
        opened(make_context, file, split_field="part", folds=2, splits=shares)


def test_tables_named_as_splits_are_noted(tmp_path: Path, make_context) -> None:
    """They have no folders: `split_field` names a column that says the split."""
    for name in ("train-0", "train-1", "valid"):
        (tmp_path / f"{name}.csv").write_text("\n".join(["x", *map(str, range(9))]))
    assert note_texts(opened(make_context, tmp_path).listing.notes) == [
        "train-0, train-1, valid: files are named as splits, but all samples were split anew",
    ]
    (tmp_path / "valid.csv").unlink()
    assert note_texts(opened(make_context, tmp_path).listing.notes) == []


def test_numbers_of_classes_keep_their_order(tmp_path: Path, make_context) -> None:
    listing = opened(make_context, write(tmp_path / "in", "data/10", "data/9", "data/2")).listing
    assert listing.classes == ("2", "9", "10")
