"""Mistakes about containers: tables, HDF5 files, WebDataset shards, what Hugging Face wrote."""

from __future__ import annotations

import datetime as dt
import gzip
import json
from decimal import Decimal
from inspect import signature
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
from pyarrow import parquet

from support.hints import Mistake
from support.mistakes.files import NONE
from support.source_files import png, write_tar

TABLE = {"x": [1.5, 2.5], "cls": ["a", "b"]}
SHARD = {"a.png": png(1), "a.cls": b"0", "b.png": png(2), "b.cls": b"1"}


def claiming(at: Path) -> None:
    """Twenty million rows in a kilobyte or so."""
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(20_000_000, np.int8)), ["a"])
    options = {"row_group_size": 2**30, "data_page_size": 2**30}
    if "max_rows_per_page" in signature(parquet.write_table).parameters:
        options["max_rows_per_page"] = 2**30
    parquet.write_table(pa.table({"x": column}), at / "source/a.parquet", **options)


def hdf5(**columns: object) -> object:
    def make(at: Path) -> None:
        with h5py.File(at / "source/a.h5", "w") as file:
            for name, values in columns.items():
                file[name] = values

    return make


def joined(at: Path) -> None:
    """Two tar files as `cat` joins them."""
    path = at / "source/a.tar"
    content = write_tar(path, GOOD_TAR["a.tar"]).read_bytes()
    path.write_bytes(content + write_tar(path, {"dog/2.png": png(2)}).read_bytes())


def classes_of_numbers(at: Path) -> None:
    """A column of `ClassLabel` of Hugging Face, in which a value is missing."""
    names = {"y": {"names": ["no", "yes"], "_type": "ClassLabel"}}
    table = pa.table({"x": [1, 2, 3], "y": [0, None, 1]})
    metadata = {"huggingface": json.dumps({"info": {"features": names}})}
    parquet.write_table(table.replace_schema_metadata(metadata), at / "source/a.parquet")


def save_to_disk(at: Path) -> None:
    """As Hugging Face `datasets` does."""
    folder = at / "saved"
    folder.mkdir()
    table = pa.table(TABLE)
    with pa.ipc.new_stream(folder / "data.arrow", table.schema) as writer:
        writer.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))


UNKNOWN = np.zeros(2, np.dtype([("a", "i4"), ("b", "f4")]))
LINK = b"link"
GOOD_TAR = {"a.tar": {"cat/1.png": png(1)}}

MISTAKES = (
    Mistake(
        what="No … below",
        hint="Set dataset.source to a folder that save_to_disk wrote",
        given={"a.arrow": b"x", "": save_to_disk},
        followed=({"dataset.source": "AT/saved"},),
    ),
    Mistake(
        what="holds …, which cannot be packed",
        hint="Name the columns that count",
        given={"a.parquet": {**TABLE, "day": [dt.timedelta(days=1)] * 2}},
        followed=(
            {"dataset.fields": {"x": "x"}},
            {"a.parquet": {**TABLE, "day": ["2026-01-01"] * 2}},
        ),
    ),
    Mistake(
        what="cannot be read as a … file",
        hint="Write or copy it again",
        given={"a.parquet": b"PAR1"},
        followed=({"a.parquet": TABLE},),
    ),
    # files of lines
    Mistake(
        what="cannot be read as a … file: ",
        hint="",
        given={"a.csv": gzip.compress(b"x,y\n1,2\n")},
        followed=({"a.csv": "x,y\n1,2\n"},),
    ),
    *(
        Mistake(what=what, hint=hint, given={name: given}, followed=tuple(followed))
        for what, hint, name, given, *followed in (
            (
                "the byte 0x… is not UTF-8",
                "Name the encoding in dataset.encoding",
                "a.csv",
                "größe,x\n1,2\n".encode("latin-1"),
                {"dataset.encoding": "latin-1", "dataset.fields": {"size": "größe"}},
                {"a.csv": "groesse,x\n1,2\n"},
            ),
            (
                "it is written in …",
                "Set dataset.encoding to '…', or write it in UTF-8",
                "a.csv",
                "y,x\n1,2\n".encode("utf-16"),
                {"dataset.encoding": "utf-16"},
                {"a.csv": "y,x\n1,2\n"},
            ),
            (
                "its content is …",
                "Unpack or convert it, or correct the name",
                "a.csv",
                gzip.compress(b"x,y\n1,2\n"),
                {"a.csv": "x,y\n1,2\n"},
            ),
            (
                "a quote that opens in line … does not close",
                "Close or double it",
                "a.csv",
                'x,y\n1,"2\n',
                {"a.csv": 'x,y\n1,"2"\n'},
                {"a.csv": 'x,y\n1,"""2"\n'},
            ),
            (
                "a quote is escaped by a backslash",
                "Write quotes inside of values twice",
                "a.csv",
                'x,y\n1,"a \\"b\\" c"\n',
                {"a.csv": 'x,y\n1,"a ""b"" c"\n'},
            ),
            (
                "… two columns '…': ",
                "Rename one of them",
                "a.csv",
                "x,x\n1,2\n",
                {"a.csv": "x,y\n1,2\n"},
            ),
            (
                "… no column …: ",
                "Name it, or take it out",
                "a.csv",
                "x,,y\n1,2,3\n",
                {"a.csv": "x,y\n1,3\n"},
            ),
            (
                "its first row seems to be data",
                "Write a first row",
                "a.csv",
                "5.1,3.5,setosa\n4.9,3,setosa\n",
                {"a.csv": "x,y,z\n5.1,3.5,setosa\n"},
            ),
            (
                "it holds no row",
                "Name the columns in its first line",
                "a.csv",
                "\n\n",
                {"a.csv": "x\n1\n"},
            ),
            (
                "it begins with an array of JSON",
                "Write an object a line",
                "a.jsonl",
                '[{"x": 1}]',
                {"a.jsonl": '{"x": 1}\n'},
            ),
            (
                "is longer than 64 MiB",
                "Cut its values",
                "a.csv",
                b"x\n" + b"a" * 2**27,
                {"a.csv": "x\na\n"},
            ),
        )
    ),
    Mistake(
        what="which is …",
        hint="Numbers to predict need dataset.label_kind",
        given={"a.jsonl": '{"x": 1, "y": 0.5}\n{"x": 2, "y": 1}', "dataset.label_field": "y"},
        followed=({"dataset.label_kind": "value"},),
    ),
    Mistake(
        what="it is not written in …",
        hint="Correct dataset.encoding",
        given={"a.csv": b"x,y\n1,\xff\n", "dataset.encoding": "ascii"},
        followed=({"dataset.encoding": "latin-1"},),
    ),
    Mistake(
        what="dataset.missing names the class …",
        hint="",
        given={"": classes_of_numbers, "dataset.missing": {"y": "maybe"}},
        followed=({"dataset.missing": {"y": "no"}},),
    ),
    Mistake(
        what="dataset.missing.… is …",
        hint="Write a text for a column of texts, and a number",
        given={"a.csv": "x,t\n1,a\n,b\n", "dataset.missing": {"x": "none"}},
        followed=({"dataset.missing": {"x": 0}},),
    ),
    Mistake(
        what="samples cannot be read",
        hint="name what stands for missing values in dataset.missing",
        given={"a.csv": "x,t\n1,a\n,b\n"},
        followed=(
            {"a.csv": "x,t\n1,a\n"},
            {"dataset.missing": {"x": -1}},
            {"pack.max_quarantined": 0.5},
        ),
    ),
    Mistake(
        what="Column … cannot be a field",
        hint="Name the columns that count in dataset.fields",
        given={"a.parquet": {"My column": ["a", "b"]}},
        followed=({"dataset.fields": {"text": "My column"}},),
    ),
    Mistake(
        what="None of the … containers",
        hint="remove it to take all",
        given={"a.parquet": TABLE, "dataset.include": ["b*.parquet"]},
        followed=({"dataset.include": None}, {"dataset.include": ["a*.parquet"]}),
    ),
    Mistake(
        what="but samples of format '…' are not told by paths",
        hint="Leave it out; name their own",
        given={
            "a.parquet": TABLE,
            "l.csv": "path,label\n",
            "dataset.index": "l.csv",
            "dataset.format": "parquet",
        },
        followed=(
            {"dataset.index": None, "dataset.label_field": "cls"},
            {"dataset.index": None, "dataset.group_field": "cls"},
        ),
    ),
    Mistake(
        what="lie in no class folders",
        hint="Set dataset.labels to 'field' and dataset.label_field",
        given={"a.parquet": TABLE, "dataset.labels": "folders"},
        followed=({"dataset.labels": "field", "dataset.label_field": "cls"}, NONE),
    ),
    Mistake(
        what="lie in no class folders",
        hint="Set dataset.labels to 'field' and dataset.label_field",
        given={"a.tar": SHARD, "dataset.labels": "folders"},
        followed=({"dataset.labels": "field", "dataset.label_field": "cls"}, NONE),
    ),
    Mistake(
        what="but dataset.label_field names no column",
        hint="Name the column that holds the numbers",
        given={"a.parquet": TABLE, "dataset.label_kind": "value"},
        followed=({"dataset.label_field": "x"},),
    ),
    Mistake(
        what="has no column ",
        hint="",
        given={"a.parquet": TABLE, "dataset.label_field": "clas"},
        followed=({"dataset.label_field": "cls"},),
    ),
    Mistake(
        what="holds …, but dataset.label_kind is 'value'",
        hint="Set dataset.label_kind to 'class', or name a column of numbers",
        given={"a.parquet": TABLE, "dataset.label_field": "cls", "dataset.label_kind": "value"},
        followed=({"dataset.label_kind": "class"}, {"dataset.label_field": "x"}),
    ),
    Mistake(
        what="holds …, but dataset.label_kind is 'value'",
        hint="Write its numbers as float64 or int64, or name a column of numbers",
        given={
            "a.parquet": {**TABLE, "price": [Decimal("1.50")] * 2},
            "dataset.label_field": "price",
            "dataset.label_kind": "value",
        },
        followed=(
            {"a.parquet": {**TABLE, "price": [1.5, 1.5]}},
            {"dataset.label_field": "x"},
        ),
    ),
    Mistake(
        what="no text in UTF-8",
        hint="Correct it, or remove the sample",
        given={"a.tar": {**SHARD, "b.cls": b"\xff"}},
        followed=({"a.tar": SHARD}, {"a.tar": {"a.png": png(1), "a.cls": b"0"}}),
    ),
    Mistake(
        what="goes on behind its end",
        hint="Join tar files by `tar --concatenate`, in place of `cat`",
        given={"": joined},
        followed=({"a.tar": GOOD_TAR["a.tar"]},),
    ),
    Mistake(
        what="are the same field",
        hint="Name the columns that count in dataset.fields",
        given={"a.parquet": {"a/b": [1, 2], "a.b": [3, 4]}},
        followed=({"dataset.fields": {"b": "a/b"}},),
    ),
    Mistake(
        what="in others it is",
        hint="Make the files equal, name the columns that count",
        given={"a.parquet": TABLE, "b.parquet": {**TABLE, "x": ["c", "d"]}},
        followed=(
            {"b.parquet": TABLE},
            {"dataset.fields": {"word": "cls"}},
            {"dataset.include": ["a.parquet"]},
        ),
    ),
    Mistake(
        what="the … is …, which is",
        hint="Correct it; numbers to predict need",
        given={"a.parquet": TABLE, "dataset.label_field": "x"},
        followed=({"a.parquet": {**TABLE, "x": [1, 2]}}, {"dataset.label_kind": "value"}),
    ),
    # HDF5
    Mistake(
        what="have different numbers of rows",
        hint="Name those that count in dataset.fields",
        given={"": hdf5(x=np.zeros(3), y=np.zeros((3, 2)), mean=np.zeros(1))},
        followed=({"dataset.fields": {"x": "x", "y": "y"}},),
    ),
    Mistake(
        what="is of type …, which cannot be packed",
        hint="Name the datasets that count",
        given={"": hdf5(x=np.zeros(2), table=UNKNOWN)},
        followed=({"dataset.fields": {"x": "x"}},),
    ),
    Mistake(
        what="claims … rows in",
        hint="Write it again",
        given={"": claiming},
        followed=({"a.parquet": TABLE},),
    ),
    # tar files
    Mistake(
        what="a path that leads out of it",
        hint="with paths that begin with no '/'",
        given={"a.tar": [("../cat/1.png", png(1))]},
        followed=(GOOD_TAR,),
    ),
    Mistake(
        what="holds '…', which is",
        hint="Write the tar file again with the files themselves",
        given={"a.tar": [("cat/1.png", png(1)), ("cat/2.png", LINK)]},
        followed=(GOOD_TAR,),
    ),
    Mistake(
        what="Sample '…' of … has no '",
        hint="Write dataset.fields as in {image: 'jpg;png'}",
        given={"a.tar": {"a.jpg": png(1), "a.cls": b"0", "b.png": png(2), "b.cls": b"1"}},
        followed=({"dataset.fields": {"image": "jpg;png"}},),
    ),
    Mistake(
        what="The label of '",
        hint="Correct it, or set dataset.label_kind to 'class'",
        given={
            "a.tar": {**SHARD, "b.cls": b"x"},
            "dataset.label_kind": "value",
            "dataset.label_field": "cls",
        },
        followed=({"a.tar": SHARD}, {"dataset.label_kind": "class"}),
    ),
    Mistake(
        what="' twice",
        hint="Write it again without the copy",
        given={"a.tar": [*SHARD.items(), ("b.cls", b"0")]},
        followed=({"a.tar": SHARD},),
    ),
)
