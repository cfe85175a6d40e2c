"""Mistakes about what lies in a source: files, index files, and functions that read."""

from __future__ import annotations

import sqlite3
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import zarr

from support.hints import Mistake
from support.mistakes.files import (
    CATS,
    FLAT,
    INDEXED,
    NONE,
    ROWS,
    RUN,
    copied_folder,
    link_to,
    linked_folder,
    reader,
    renamed,
    unnamed,
)
from support.source_files import npy, npz, png

CSV = "petal,species\n1.5,setosa\n2.5,virginica\n"
JSONL = '{"petal": 1.5, "species": "a"}\n{"petal": 2.5, "species": "b"}\n'
HALVES = {"train": 0.5, "test": 0.5}
FOLDED = "path,split\ncat/1.png,train\ndog/2.png,train\ndog/3.png,val\n"
PAIRS = {
    "1.png": png(1),
    "1.txt": b"one",
    "2.png": png(2),
    "2.txt": b"two",
    **NONE,
    "dataset.fields": {"image": "*.png", "text": "*.txt"},
}


def packed_tar(name: str, mode: str) -> Callable[[Path], None]:
    def make(at: Path) -> None:
        (at / "source").mkdir(exist_ok=True)
        (at / "1.png").write_bytes(png(1))
        with tarfile.open(at / "source" / name, mode) as archive:  # type: ignore[call-overload]
            archive.add(at / "1.png", "cat/1.png")

    return make


COCO = (
    b'{"annotations": [], "images": [{"id": 1, "file_name": "1.png"}, '
    b'{"id": 2, "file_name": "2.png"}]}'
)


def database(at: Path) -> None:
    """Many rows, so that no random order is the same twice."""
    (at / "source").mkdir(exist_ok=True)
    with closing(sqlite3.connect(at / "source/a.db")) as connection, connection:
        connection.execute("CREATE TABLE samples (x REAL)")
        connection.executemany("INSERT INTO samples VALUES (?)", [(n / 2,) for n in range(100)])


def group(at: Path) -> None:
    zarr.open_group(str(at / "source/g"), mode="w").create_array("x", data=np.arange(4))


MISTAKES = (
    # where the source is, and of which form
    Mistake(
        what="The source folder … …",
        hint="Set dataset.source to the folder of the raw samples",
        given={**CATS, "dataset.source": "AT/sources"},
        followed=({"dataset.source": "AT/source"},),
    ),
    Mistake(
        what="The source folder … …",
        hint="writes the samples of the example",
        given={"dataset.source": "AT/digits"},
        followed=({RUN: True},),
    ),
    Mistake(
        what="name files in their column ",
        hint="…",
        given={**FLAT, "rows.csv": ROWS, "dataset.source": "AT/source/rows.csv"},
        followed=(
            {"dataset.source": "AT/source", "dataset.index": "rows.csv"},
            {"dataset.fields": {"text": "path"}, "dataset.label_field": "label"},
        ),
    ),
    Mistake(
        what="There is no … file",
        hint="set dataset.source to …a.csv, without dataset.index",
        given={"a.csv": CSV, "dataset.format": "parquet"},
        followed=({"dataset.source": "AT/source/a.csv", "dataset.format": "auto"},),
    ),
    Mistake(
        what="has no column ",
        hint="…",
        given={**FLAT, "a.csv": CSV, "dataset.index": "a.csv"},
        followed=({"dataset.source": "AT/source/a.csv", "dataset.index": None},),
    ),
    *(
        Mistake(
            what=what,
            hint=hint,
            given={"": packed_tar(f"a b{ending}", mode), **more},
            followed=({RUN: True, **then},),
        )
        for ending, mode in (
            (".tar.gz", "w:gz"),
            (".tgz", "w:gz"),
            (".tar.bz2", "w:bz2"),
            (".tar.xz", "w:xz"),
        )
        for what, hint, more, then in (
            (
                "There is no … file",
                "decompress it first",
                {"dataset.format": "tar", "README": ""},
                {},
            ),
            ("matches dataset.include: ", "decompress it first", {}, {}),
            (
                "The source folder … …",
                "Then set dataset.source to what it writes.",
                {"dataset.source": f"AT/source/a b{ending}"},
                {"dataset.source": "AT/source/a b.tar"},
            ),
        )
    ),
    Mistake(
        what="There is no … file",
        hint="or correct dataset.format",
        given={**CATS, "dataset.format": "parquet"},
        followed=({"dataset.format": "files"},),
    ),
    Mistake(
        what="There is no … file",
        hint="Set dataset.source to the folder that holds them",
        given={**CATS, "../tars/a.tar": {"cat/1.png": png(1)}, "dataset.format": "tar"},
        followed=({"dataset.source": "AT/tars"},),
    ),
    Mistake(
        what="files of different forms",
        hint="Set dataset.format to one of",
        given={"a.tar": {"cat/1.png": png(1)}, "b.parquet": {"x": [1, 2]}},
        followed=({"dataset.format": "tar"}, {"dataset.format": "parquet"}),
    ),
    # which files count
    Mistake(
        what="matches dataset.include: ",
        hint="Set dataset.include to patterns",
        given={"cat/1.dcm": b"a"},
        followed=({"dataset.include": ["**/*.dcm"]},),
    ),
    Mistake(
        what="is empty",
        hint="Put your samples there, or set dataset.source",
        given={".hidden": b""},
        followed=(
            CATS,
            {**{f"../full/{n}": c for n, c in CATS.items()}, "dataset.source": "AT/full"},
        ),
    ),
    Mistake(
        what="may be a split or not",
        hint="Set dataset.split_folders to true",
        given={"train/cat/1.png": png(1), "test/cat/2.png": png(2), "dataset.splits": HALVES},
        followed=(
            {"dataset.split_folders": True, "dataset.splits": None},
            {"dataset.split_folders": False},
        ),
    ),
    Mistake(
        what="is no split",
        hint="Splits are train, training",
        given={
            "train/cat/1.png": png(1),
            "test/cat/2.png": png(2),
            "more/cat/3.png": png(3),
            "dataset.split_folders": True,
            "dataset.splits": None,
        },
        followed=(
            {"more/cat/3.png": None, "Validation/cat/3.png": png(3)},
            {"dataset.include": ["t*/**"]},
            {"dataset.split_folders": False, "dataset.splits": HALVES},
        ),
    ),
    Mistake(
        what="may be the only class, or hold the folders of the classes",
        hint="Move it into a folder named by its class, narrow dataset.include",
        given={
            "pets/cat/1.png": png(1),
            "pets/dog/2.png": png(2),
            "pets/3.png": png(3),
            "dataset.splits": HALVES,
        },
        followed=(
            {"pets/3.png": None, "pets/dog/3.png": png(3)},
            {"dataset.include": ["pets/*/*.png"]},
            NONE,
        ),
    ),
    Mistake(
        what="differ only in case, spaces or Unicode form",
        hint="Give samples that belong together the same name",
        given={"cat/1.png": png(1), "cat /2.png": png(2), "dataset.splits": HALVES},
        followed=({"cat /2.png": None, "cat/2.png": png(2)},),
    ),
    Mistake(
        what="dataset.folds is set, but the source has a split 'val'",
        hint="leave dataset.folds out, or the samples of 'val'",
        given={
            **CATS,
            "l.csv": FOLDED,
            "dataset.index": "l.csv",
            "dataset.folds": 2,
            "dataset.splits": HALVES,
        },
        followed=(
            {"dataset.folds": None},
            {"l.csv": FOLDED.replace("dog/3.png,val\n", ""), "dog/3.png": None},
        ),
    ),
    Mistake(
        what="lies in no class folder",
        hint="Move it into a folder named by its class",
        given=FLAT,
        followed=(
            {"1.png": None, "2.png": None, **CATS},
            NONE,
            {"l.csv": ROWS, "dataset.labels": "index", "dataset.index": "l.csv"},
        ),
    ),
    Mistake(
        what="The source holds both",
        hint="or name the files of each field in dataset.fields",
        given={"1.png": png(1), "1.npy": npy([1]), **NONE},
        followed=(
            {"dataset.include": ["*.png"]},
            {"dataset.fields": {"image": "*.png", "array": "*.npy"}},
        ),
    ),
    Mistake(
        what="whose arrays name the fields, cannot be read",
        hint="Repair or remove it",
        given={"1.npz": b"x", "2.npz": npz(a=[1]), **NONE},
        followed=({"1.npz": npz(a=[2])}, {"1.npz": None}),
    ),
    Mistake(
        what="The samples have a field 'label'",
        hint="Give that field another name",
        given={"cat/1.npz": npz(label=[1])},
        followed=({"cat/1.npz": npz(mask=[1])}, NONE),
    ),
    Mistake(
        what="The samples have a field 'label'",
        hint="Give that field another name",
        given={"a.parquet": {"label": [1, 2], "cls": ["a", "b"]}, "dataset.label_field": "cls"},
        followed=({"dataset.fields": {"number": "label"}}, NONE),
    ),
    Mistake(
        what="There are two samples",
        hint="Rename or remove one of them",
        given={"a.tar": [("cat/1.png", png(1)), ("dog/2.png", png(2)), ("cat/1.png", png(3))]},
        followed=(
            {"a.tar": {"cat/1.png": png(1), "dog/2.png": png(2)}},
            {"a.tar": {"cat/1.png": png(1), "dog/2.png": png(2), "cat/3.png": png(3)}},
        ),
    ),
    Mistake(
        what="is a link to the folder",
        hint="copy the folder into the source folder",
        given={"": linked_folder},
        followed=({"": copied_folder}, {"dataset.source": "AT/elsewhere"}),
    ),
    Mistake(
        what="is a link that leaves the source folder",
        hint="Copy the file into the source folder",
        given={"": link_to("cat/1.png")},
        followed=({"cat/1.png": None, "cat/2.png": png(2)}, {"dataset.source": "AT/elsewhere"}),
    ),
    Mistake(
        what="is not UTF-8",
        hint="Rename the file",
        given={"": unnamed, **NONE},
        followed=({"": renamed},),
    ),
    # files of several fields
    Mistake(
        what="matches a pattern of dataset.fields",
        hint="Patterns match names as they are written",
        given={**PAIRS, "dataset.fields": {"image": "*.PNG"}},
        followed=({"dataset.fields": {"image": "*.png"}},),
    ),
    Mistake(
        what="files of … samples are missing",
        hint="Each sample needs a file for every field",
        given={**PAIRS, "2.txt": None},
        followed=({"2.txt": b"two"},),
    ),
    Mistake(
        what="dataset.fields.… is '",
        hint="Write a pattern with one star in the file's name",
        given={**PAIRS, "dataset.fields": {"image": "*/*.png"}},
        followed=({"dataset.fields": {"image": "*.png"}},),
    ),
    Mistake(
        what="comes from the files and from a column",
        hint="Name the columns that count",
        given={**INDEXED, "l.csv": "path,image\n1.png,a\n2.png,b\n"},
        followed=({"dataset.fields": {"text": "image"}},),
    ),
    # index files
    Mistake(
        what="… …",
        hint="Keep one of the rows",
        given={**INDEXED, "l.csv": ROWS + "1.png,dog\n"},
        followed=({"l.csv": ROWS},),
    ),
    Mistake(
        what="dataset.index is '…'",
        hint="Valid: a file that ends with",
        given={**INDEXED, "l.txt": ROWS, "dataset.index": "l.txt"},
        followed=({"l.csv": ROWS, "dataset.index": "l.csv"},),
    ),
    Mistake(
        what="which is not below the source folder",
        hint="Write its path below the source folder, or its whole path",
        given={**INDEXED, "../l.csv": ROWS, "dataset.index": "../l.csv"},
        followed=({"l.csv": ROWS, "dataset.index": "l.csv"}, {"dataset.index": "AT/l.csv"}),
    ),
    Mistake(
        what="The index file",
        hint="Index files in",
        given={**INDEXED, "l.csv": ROWS, "dataset.index": "ll.csv"},
        followed=({"dataset.index": "l.csv"},),
    ),
    Mistake(
        what="has no column ",
        hint="",
        given={**INDEXED, "l.csv": ROWS, "dataset.label_field": "class"},
        followed=({"dataset.label_field": "label"}, {"l.csv": ROWS.replace("label", "class")}),
    ),
    Mistake(
        what="' is not below the source folder",
        hint="Write paths relative to dataset.source",
        given={**INDEXED, "l.csv": ROWS.replace("1.png", "/data/1.png")},
        followed=({"l.csv": ROWS},),
    ),
    Mistake(
        what="files have no",
        hint="Add them to the index, or narrow dataset.include",
        given={**INDEXED, "3.png": png(3), "l.csv": ROWS},
        followed=({"l.csv": ROWS + "3.png,dog\n"}, {"dataset.include": ["[12].png"]}),
    ),
    Mistake(
        what="have no file",
        hint="Remove the rows, or check that the paths are relative",
        given={**INDEXED, "2.png": None, "2.bin": png(2), "l.csv": ROWS},
        followed=(
            {"l.csv": "path,label\n1.png,cat\n"},
            {"2.png": png(2)},
            {"dataset.include": ["*.png", "2.bin"], "2.bin": None, "2.png": png(2)},
            {"2.png": png(2)},
        ),
    ),
    Mistake(
        what="…, …",
        hint="Correct or remove the row",
        given={**INDEXED, "l.csv": ROWS + "3.png\n"},
        followed=({"l.csv": ROWS}, {"l.csv": ROWS + "3.png,cat\n", "3.png": png(3)}),
    ),
    Mistake(
        what="…, …",
        hint="Correct or remove the row",
        given={**FLAT, "l.jsonl": "path, label\n", "dataset.index": "l.jsonl"},
        followed=(
            {"l.jsonl": '{"path": "1.png", "label": "a"}\n{"path": "2.png", "label": "b"}\n'},
        ),
    ),
    Mistake(
        what="but the recipe names no index file with columns",
        hint="Name a CSV, JSONL or Parquet file",
        given={**FLAT, "l.csv": ROWS, "dataset.label_field": "label"},
        followed=({"dataset.index": "l.csv"},),
    ),
    Mistake(
        what="Column … cannot be a field",
        hint="Name the columns that count in dataset.fields",
        given={**INDEXED, "l.csv": "path,label,My column\n1.png,cat,a\n2.png,cat,b\n"},
        followed=({"dataset.fields": {"text": "My column"}},),
    ),
    # functions that read, one of which writes to the source
    Mistake(
        what="since the source folder was listed",
        hint="Pack again when nothing writes",
        given=reader("touching"),
        followed=({},),
    ),
    Mistake(
        what="returned … as '",
        hint="Valid: bytes, str, numbers and numpy arrays",
        given=reader("objects"),
        followed=(reader("good"),),
    ),
    Mistake(
        what="returned … for ",
        hint="Return a dict of fields",
        given=reader("listed"),
        followed=(reader("good"),),
    ),
    Mistake(
        what="The reader of dataset.reader raised",
        hint="Correct the function, or narrow",
        given=reader("raising"),
        followed=(reader("good"), {"dataset.include": ["2.dat"]}),
    ),
    Mistake(
        what="Both dataset.reader and dataset.fields are given",
        hint="keep one",
        given={**reader("good"), "dataset.fields": {"x": "*.dat"}},
        followed=({"dataset.fields": None}, {"dataset.reader": None, **NONE}),
    ),
    Mistake(
        what="but the reader yields several samples of",
        hint="Leave dataset.index out",
        given={**reader("several"), "l.csv": "path\n1.dat\n2.dat\n", "dataset.index": "l.csv"},
        followed=({"dataset.index": None},),
    ),
    # annotations, arrays and queries
    Mistake(
        what="', to annotate its images",
        hint="Name the pattern of the annotations in dataset.index, or correct dataset.format",
        given={**FLAT, "boxes": b'{"images": [], "annotations": []}', "dataset.format": "coco"},
        followed=(
            {"dataset.index": "boxes", "boxes": COCO},
            {"dataset.format": "files", **NONE},
        ),
    ),
    Mistake(
        what="cannot be read as annotations of format ",
        hint="Correct or remove it, or choose files by a pattern in dataset.index",
        given={**FLAT, "a.json": COCO, "b.json": b"{}", "dataset.format": "coco"},
        followed=({"b.json": None}, {"b.json": b"{}", "dataset.index": "a.json"}),
    ),
    Mistake(
        what="but dataset.query is missing",
        hint="Write a SELECT statement into dataset.query",
        given={"": database, "dataset.source": "AT/source/a.db"},
        followed=({"dataset.query": "SELECT * FROM samples"},),
    ),
    Mistake(
        what="dataset.query cannot be run on",
        hint="Write one SELECT statement that reads only this database",
        given={"": database, "dataset.source": "AT/source/a.db", "dataset.query": "DROP TABLE t"},
        followed=({"dataset.query": "SELECT CAST(x AS REAL) AS x FROM samples"},),
    ),
    Mistake(
        what="gave other rows since the source folder was listed",
        hint="a query needs ORDER BY for one order",
        given={
            "": database,
            "dataset.source": "AT/source/a.db",
            "dataset.query": "SELECT x FROM samples ORDER BY random()",
        },
        followed=({"dataset.query": "SELECT x FROM samples ORDER BY x"},),
    ),
    Mistake(
        what="dataset.query is given, but",
        hint="Leave it out, or set dataset.source to a database",
        given={"": database, "1.npy": npy([1]), **NONE, "dataset.query": "SELECT x FROM samples"},
        followed=({"dataset.query": None}, {"dataset.source": "AT/source/a.db"}),
    ),
    Mistake(
        what="is not a database in a folder of this machine",
        hint="set dataset.source to its file",
        given={"": database, "dataset.format": "sql", "dataset.query": "SELECT x FROM samples"},
        followed=({"dataset.source": "AT/source/a.db"},),
    ),
    Mistake(
        what="is not a Zarr group in a folder of this machine",
        hint="Set dataset.source to the folder of a group",
        given={"": group, "dataset.format": "zarr"},
        followed=({"dataset.source": "AT/source/g"},),
    ),
)
