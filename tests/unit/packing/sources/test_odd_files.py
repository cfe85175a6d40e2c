"""Files and containers as programs write them: exact values, quarantine, or a named error."""

from __future__ import annotations

import io
import json
import math
import tarfile
import zipfile
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest
import soundfile
from pyarrow import parquet

from support.odd_inputs import Odd, arrow_of
from support.source_files import npy, npz

NONE = "it has no value"
RAW = npy([1.5, 2.5])
WDS = {"format": "webdataset", "labels": "auto"}


def array(name: str, values: Any, *, refused: str = "") -> Odd:
    """An `.npy` file."""
    buffer = io.BytesIO()
    np.save(buffer, values, allow_pickle=True)
    found = {} if refused else {"array": [values]}
    error = [refused, "0.npy"] if refused else []
    types = {"array": np.asarray(values).dtype.newbyteorder("=").name}
    return Odd(name=f"npy {name}", files={"0.npy": buffer.getvalue()}, values=found, types=types,
               error=error)  # fmt: skip


def damaged(name: str, content: bytes, reason: str) -> Odd:
    """An `.npy` file behind one that is whole."""
    files = {"0.npy": RAW, "1.npy": content}
    return Odd(name=f"npy {name}", files=files, values={"array": [[1.5, 2.5]]}, left=[reason])


ARRAYS = [
    array("big-endian", np.array([1, 70000], ">i4")),
    array("in Fortran order", np.asfortranarray(np.arange(6).reshape(2, 3))),
    array("of 64 bits without sign", np.array([2**64 - 1], np.uint64)),
    array("halves", np.array([1.5, -0.0], np.float16)),
    array("complex", np.array([1 + 2j], ">c8")),
    array("zero size", np.zeros((2, 0, 3), np.int16)),
    array("a scalar", np.float32(2.5)),
    array("objects", np.array([1, "a", None], object), refused="object"),
    array("times", np.array([1, 2], "M8[s]"), refused="datetime64[s]"),
    array("structures", np.zeros(2, [("a", "i4")]), refused="'a'"),
    array("texts", np.array(["ab"]), refused="<U2"),
    array("of 80 bits", np.ones(2, np.longdouble), refused="float128"),
    damaged("cut", RAW[:-3], "truncated: shape (2,)"),
    damaged("with bytes behind", RAW + b"xx", "damaged: shape (2,)"),
    damaged("cut in its header", RAW[:40], "no .npy file"),
    damaged("cut in its magic", RAW[:7], "no .npy file"),
    damaged("of a negative shape", RAW.replace(b"(2,), ", b"(-2,),"), "shape (-2,)"),
    damaged("of a dtype that is none", RAW.replace(b"<f8", b"<q9"), "<q9"),
    damaged("empty", b"", "empty"),
]


def zipped(*members: tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members:
            archive.writestr(name, content)
    return buffer.getvalue()


def archive(name: str, content: bytes, reason: str) -> Odd:
    """An `.npz` file behind one that is whole."""
    files = {"0.npz": npz(x=[1, 2], y=3.5), "1.npz": content}
    values = {"x": [[1, 2]], "y": [3.5]}
    return Odd(name=f"npz {name}", files=files, values=values, left=[reason])


WHOLE = npz(x=[1, 2], y=3.5)
ARCHIVES = [
    archive("that is empty", npz(), "it holds no array"),
    archive("without an array", npz(x=[1, 2]), "arrays x in place of x, y"),
    archive("with one more", npz(x=[1, 2], y=3.5, z=1), "arrays x, y, z in place of x, y"),
    archive("cut", WHOLE[:-10], "no .npz file"),
    archive("of a wrong checksum", WHOLE.replace(npy([1, 2])[-8:], bytes(8), 1), "CRC"),
    archive("of two names for one", zipped(("x.npy", RAW), ("x", RAW), ("y.npy", RAW)), "one name"),
    archive("of objects", zipped(("x.npy", RAW), ("y.npy", b"no")), "no .npy file"),
]


def wav(values: Any, subtype: str = "PCM_16", form: str = "WAV") -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, np.asarray(values), 8000, format=form, subtype=subtype)
    return buffer.getvalue()


def sound(name: str, content: bytes, values: list[Any], **more: Any) -> Odd:
    """A sound that is decoded, in front of one that is whole."""
    dtype = {"audio": "float32"}
    packing = {"fields": {"audio": {"keep": "decode", **more.pop("packing", {})}}}
    return Odd(name=f"wav {name}", files={"0.wav": content, "1.wav": wav([0.5, -0.25])},
               values={"audio": [*values, [0.5, -0.25]]}, types=dtype, packing=packing,
               **more)  # fmt: skip


LONG = wav(np.zeros(100))
SOUNDS = [
    sound("of 8 bits", wav([0.5, -0.25], "PCM_U8"), [[0.5, -0.25]]),
    sound("of 24 bits", wav([2**-23, -0.25], "PCM_24"), [[2**-23, -0.25]]),
    sound("of 32 bits", wav([2**-31, -0.25], "PCM_32"), [[2**-31, -0.25]]),
    sound("of floats", wav([1.5, -3.0], "FLOAT"), [[1.5, -3.0]]),
    sound("of doubles beyond float32", wav([1e300, 0.0], "DOUBLE"), [], left=["float32"]),
    sound("without frames", wav(np.zeros(0)), [[]]),
    sound("cut", LONG[:100], [], left=["cut"]),
    sound("cut behind its header", LONG[:44], [], left=["cut"]),
    sound("of unknown length", LONG[:40] + b"\xff" * 4 + LONG[44:], [[0.0] * 100]),
    sound("that is none", b"RIFF" + bytes(40), [], left=["damaged sound"]),
]
UNEVEN = Odd(
    name="wav of two lengths in one shape",
    files={"0.wav": wav([0.0]), "1.wav": wav([0.0, 0.0])},
    packing={"fields": {"audio": {"keep": "decode", "mixed": "error"}}},
    error=["'ragged'"],
)

Add = Callable[[tarfile.TarFile], None]


def tar(name: str, add: Add, **more: Any) -> Odd:
    """Two arrays, and what follows them, in a tar file."""
    change = more.pop("change", lambda content: content)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", **more.pop("options", {})) as archive:
        member("0.npy", npy([1.5]))(archive)
        member("1.npy", npy([2.5]))(archive)
        add(archive)
    options = {"format": "tar", **more.pop("dataset", {})}
    values = {} if "error" in more else {"array": [[1.5], [2.5], *more.pop("also", [])]}
    return Odd(name=f"tar {name}", files={"a.tar": change(buffer.getvalue())}, values=values,
               dataset=options, **more)  # fmt: skip


def member(name: str, content: bytes = b"", **fields: Any) -> Add:
    def add(archive: tarfile.TarFile) -> None:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        for key, value in fields.items():
            setattr(info, key, value)
        archive.addfile(info, io.BytesIO(content))

    return add


def nothing(archive: tarfile.TarFile) -> None:
    """Add no member."""


THREE = npy([3.5])
GNU = {"format": tarfile.GNU_FORMAT}
TARS = [
    tar("of GNU", member("d" * 150 + "/e.npy", THREE), also=[[3.5]], options=GNU),
    tar("with long names", member("d" * 150 + "/e.npy", THREE), also=[[3.5]]),
    tar("with names of pax", member("x", THREE, pax_headers={"path": "z/3.npy"}), also=[[3.5]]),
    tar("with all scripts", member("\u00fc\u2028\U0001f600.npy", THREE), also=[[3.5]]),
    tar("in Latin-1", member("\u00fc.npy", THREE), options={**GNU, "encoding": "latin-1"},
        error=["UTF-8", "a.tar"]),
    tar("with a copy", member("0.npy", THREE), error=["two samples 'a.tar/0.npy'"]),
    tar("with a hard link", member("2.npy", type=tarfile.LNKTYPE, linkname="0.npy"),
        error=["'2.npy', which is a link", "hard-dereference"]),
    tar("with a link", member("2.npy", type=tarfile.SYMTYPE, linkname="/etc/hostname"),
        error=["'2.npy', which is a link", "--dereference"]),
    tar("with a pipe", member("2.npy", type=tarfile.FIFOTYPE), error=["which is no plain file"]),
    tar("with a path that leads out", member("a/../../1.npy", THREE),
        error=["'a/../../1.npy', a path that leads out of it"]),
    tar("with an absolute path", member("/a/1.npy", THREE), error=["a path that leads out of it"]),
    tar("with a copy by another path", member("./0.npy", THREE),
        error=["two samples 'a.tar/0.npy'"]),
    tar("with a sparse file", member("2.npy", type=tarfile.GNUTYPE_SPARSE), error=["'2.npy'"]),
    tar("with an empty file", member("2.npy"), left=["empty"]),
    tar("with a damaged file", member("2.npy", THREE[:-2]), left=["truncated"]),
    tar("that is empty", nothing, change=lambda _: b"", error=["it is empty"]),
    tar("that is none", nothing, change=lambda _: b"no tar" * 100,
        error=["cannot be read as a tar file"]),
    tar("cut in a header", nothing, change=lambda content: content[:1124], error=["cut"]),
    tar("cut in a file", nothing, change=lambda content: content[:1100], error=["cut", "'0.npy'"]),
    tar("cut behind a file", nothing, change=lambda content: content[:2048],
        error=["cut", "'1.npy'"]),
    tar("with a broken header", nothing, error=["'0.npy'"],
        change=lambda content: content[:1029] + b"#" + content[1030:]),
    tar("with a checksum that ends in a letter", nothing, error=["'0.npy'"],
        change=lambda content: content[:1178] + b"a" + content[1179:]),
    tar("joined by cat", nothing, change=lambda content: content * 2,
        error=["a.tar", "--concatenate"]),
    tar("compressed", nothing, error=["a.tar cannot be read"],
        change=lambda content: b"\x1f\x8b" + content[2:]),
]  # fmt: skip


def shard(name: str, files: dict[str, bytes], **more: Any) -> Odd:
    """A WebDataset shard."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, content in files.items():
            member(path, content)(archive)
    options = {**WDS, **more.pop("dataset", {})}
    return Odd(name=f"webdataset {name}", files={"a.tar": buffer.getvalue()}, dataset=options,
               **more)  # fmt: skip


def labelled(first: bytes, second: bytes) -> dict[str, bytes]:
    return {"0.cls": first, "0.txt": b"a", "1.cls": second, "1.txt": b"b"}


VALUE = {"label_kind": "value"}
LABELS = {"txt": ["a", "b"]}
SHARDS = [
    shard("without a field", {"0.cls": b"1", "0.txt": b"a", "1.cls": b"0"},
          error=["'1'", "'txt'", "a.tar"]),
    shard("without a class", {"0.cls": b"1", "0.txt": b"a", "1.txt": b"b"}, error=["'cls'"]),
    shard("without names", {"0": b"1", "1": b"a"}, error=["a.tar", "its name"]),
    shard("of classes that are no text", labelled(b"\xff", b"1"), error=["'0'", "UTF-8"]),
    shard("of an empty class", labelled(b"1", b" \n"), error=["'1'", "UTF-8"]),
    shard("of long classes", labelled(b"2" * 5000, b"1"),
          values={**LABELS, "label": ["2" * 5000, "1"]}, types={"label": "int64"}),
    shard("of numbers", labelled(b" 7 \n", b"2.5"), values={**LABELS, "label": [7.0, 2.5]},
          dataset=VALUE),
    shard("of the largest number", labelled(b"9223372036854775807", b"1"),
          values={**LABELS, "label": [2**63 - 1, 1]}, dataset=VALUE),
    shard("of numbers beyond 64 bits", labelled(b"1", b"18446744073709551617"), dataset=VALUE,
          error=["'1'", "'18446744073709551617'"]),
    shard("of an overflow", labelled(b"1", b"1e400"), dataset=VALUE, error=["'1e400'"]),
    shard("of numbers beyond float64", labelled(b"9007199254740993", b"1.5"), dataset=VALUE,
          values={"txt": ["b"], "label": [1.5]}, left=["9007199254740993 does not fit float64"]),
    shard("of a number that is text", labelled(b"1", b"0x1F"), dataset=VALUE, error=["'0x1F'"]),
    shard("of text that is none", {"0.cls": b"1", "0.txt": b"\xff", "1.cls": b"0", "1.txt": b"b"},
          values={"txt": ["b"], "label": ["0"]}, types={"label": "int64"}, left=["UTF-8"]),
]  # fmt: skip


def rows(name: str, column: Any, values: list[Any], **more: Any) -> list[Odd]:
    """A column of Parquet, and of Hugging Face."""
    table = pa.table({"x": column, "k": pa.array(range(len(column)))})
    left = len(more.get("left", ()))
    keys = more.pop("keys", None) or [*range(len(column) - left)]
    found = {"x": values, "k": keys} if values else {}
    forms = {
        "parquet": {"a.parquet": lambda path: parquet.write_table(table, path)},
        "arrow": {"data.arrow": arrow_of(table)},
    }
    return [
        Odd(name=f"{form} {name}", files=files, values=found, **more)
        for form, files in forms.items()
    ]


def invalid() -> Any:
    """Three texts, the second of which is not UTF-8."""
    offsets = pa.py_buffer(np.arange(4, dtype=np.int32).tobytes())
    return pa.Array.from_buffers(pa.string(), 3, [None, offsets, pa.py_buffer(b"a\xffb")])


def astray(array: Any, first: int, then: int) -> Callable[[Path], None]:
    """Record batches of an array in whose offsets, or codes, one is changed."""

    def write(path: Path) -> None:
        arrow_of(pa.table({"x": array}))(path)
        content = path.read_bytes()
        old, new = (np.int32(number).tobytes() for number in (first, then))
        assert content.count(old) == 1
        path.write_bytes(content.replace(old, new))

    return write


LONG_TEXTS = pa.array(["a" * 11_111, "b" * 11_111, "c" * 11_111])
LONG_LISTS = pa.array([[0] * 11_111] * 3, pa.list_(pa.int8()))
CODES = pa.DictionaryArray.from_arrays(pa.array([11, 31_000, 22]), [str(n) for n in range(32_000)])
TENSORS = pa.ExtensionArray.from_storage(
    pa.fixed_shape_tensor(pa.int32(), (2, 1)), pa.array([[1, 2]], pa.list_(pa.int32(), 2))
)
PREDICTED = {"labels": "field", "label_field": "x", "label_kind": "value"}
PRICES = pa.array([Decimal("1.50"), Decimal("2.25")])
ROWS = [
    *rows("a dictionary of numbers", pa.array([5, 7, 5]).dictionary_encode(), [5, 7, 5]),
    *rows("a dictionary of texts", pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
    *rows("a dictionary of fractions", pa.array([1.5, None]).dictionary_encode(), [1.5],
          left=[NONE]),
    *rows("a dictionary of bytes", pa.array([b"a", b"\xff"]).dictionary_encode(), [b"a", b"\xff"]),
    *rows("a dictionary in lists", pa.ListArray.from_arrays(
        pa.array([0, 1, 2]), pa.array([5, 6]).dictionary_encode()), [[5], [6]]),
    *rows("unsigned 64 bits", pa.array([2**64 - 1, 0], pa.uint64()), [2**64 - 1, 0],
          types={"x": "uint64"}),
    *rows("halves", pa.array(np.array([1.5, -0.0], np.float16)), [1.5, -0.0],
          types={"x": "float16"}),
    *rows("bytes of one length", pa.array([b"ab", b"\xff\0"], pa.binary(2)), [b"ab", b"\xff\0"]),
    *rows("bytes and none", pa.array([b"ab", b"", None]), [b"ab"],
          left=["it is empty", NONE]),
    *rows("texts not in UTF-8", invalid(), ["a", "b"], keys=[0, 2], left=["not UTF-8"]),
    *(Odd(name=f"arrow {name} that lead nowhere", files={"data.arrow": astray(*given)},
          error=["data.arrow cannot be read", "column x"])
      for name, *given in (("texts", LONG_TEXTS, 22_222, 2**30),
                           ("lists", LONG_LISTS, 22_222, 2**30),
                           ("codes", CODES, 31_000, 2**30))),
    *rows("classes not in UTF-8", invalid(), [], dataset={"labels": "field", "label_field": "x"},
          error=["string index 1"]),
    *rows("lists with gaps", pa.array([[1, 2], [3, None], None]), [[1, 2]],
          left=["no value", NONE]),
    *rows("lists of two lengths", pa.array([[1, 2], [3]]), [], error=["shape (1,)", "ragged"]),
    *rows("nothing", pa.nulls(2), [], error=["'x' holds null"]),
    *rows("durations", pa.array([1], pa.duration("us")), [], error=["'x' holds duration[us]"]),
    *rows("tensors", TENSORS, [], error=["'x' holds extension"]),
    *rows("objects of bytes", pa.array([{"a": b"\xff"}]), [], error=["'x' holds struct"]),
    *rows("names twice in objects", pa.StructArray.from_arrays([pa.array([1])] * 2, ["a", "a"]),
          [], error=["'x' holds struct"]),
    *rows("numbers to predict as decimals", PRICES, [], error=["decimal", "float64"],
          dataset=PREDICTED),
    *rows("bytes to predict", pa.array([b"a"]), [], error=["'x' holds binary", "float64"],
          dataset=PREDICTED),
]  # fmt: skip


def table_file(*tables: pa.Table) -> Callable[[Path], None]:
    """A row group for each table."""

    def write(path: Path) -> None:
        with parquet.ParquetWriter(path, tables[0].schema) as writer:
            for table in tables:
                writer.write_table(table)

    return write


def coded(*texts: Any) -> pa.Table:
    return pa.table({"x": pa.array(texts).dictionary_encode()})


PAIR = [pa.array([1, 2]), pa.array([3, 4])]
FEATURES = {"huggingface": b'{"info": {"features": [1]}}'}
CLASSES = {"huggingface": json.dumps(
    {"info": {"features": {"y": {"_type": "ClassLabel", "names": ["cat", "dog"]}}}})}  # fmt: skip
PARQUET = [
    ("dictionaries of row groups", table_file(coded("a", "b"), coded("c", "a")),
     {"values": {"x": ["a", "b", "c", "a"]}}),
    ("numbers of row groups", table_file(coded(5, 6), coded(7, 5)),
     {"values": {"x": [5, 6, 7, 5]}}),
    ("no rows", table_file(pa.table({"x": pa.array([], pa.int64())})), {"error": ["no row"]}),
    ("no columns", table_file(pa.table({})), {"error": ["no row"]}),
    ("a column twice", table_file(pa.Table.from_arrays(PAIR, names=["x", "x"])),
     {"error": ["two columns 'x'", "a.parquet"]}),
    ("two columns of a field", table_file(pa.table({"a/b": [1], "a.b": [2]})),
     {"error": ["and another column"]}),
    ("points in names", table_file(pa.table({"a": [{"b": 5}, {"b": 6}], "a.b": [1, 2]})),
     {"values": {"a": ['{"b": 5}', '{"b": 6}'], "a.b": [1, 2]}, "types": {"a": "json"}}),
    ("the largest fractions", table_file(pa.table({"x": [0.0, 1e308, -1e308]})),
     {"values": {"x": [0.0, 1e308, -1e308]}}),
    ("features that are none", table_file(pa.table({"x": [1]}).replace_schema_metadata(FEATURES)),
     {"error": ["Hugging Face", "a.parquet"], "dataset": {"labels": "auto"}}),
    ("a class that is none",
     table_file(pa.table({"x": [1, 2], "y": [0, -1]}).replace_schema_metadata(CLASSES)),
     {"error": ["row 1: the label is -1, which is none of the classes"],
      "dataset": {"labels": "auto"}}),
    ("pandas that says nothing",
     table_file(pa.table({"x": [1]}).replace_schema_metadata({"pandas": b"{"})),
     {"values": {"x": [1]}}),
    ("the index of pandas", table_file(pa.table({"x": [1], "__index_level_0__": [2]})),
     {"values": {"x": [1]}, "logged": "'__index_level_0__'"}),
    ("the index of pandas by name", table_file(pa.table({"x": [1], "__index_level_0__": [2]})),
     {"values": {"i": [2]}, "dataset": {"fields": {"i": "__index_level_0__"}}}),
    ("files that are texts", table_file(pa.table({"x": [{"bytes": "a", "path": "b"}]})),
     {"values": {"x": ['{"bytes": "a", "path": "b"}']}, "types": {"x": "json"}}),
    ("no Parquet", b"x,y\n1,2\n", {"error": ["a.parquet"]}),
]  # fmt: skip


def hdf5(name: str, make: Callable[[h5py.File], Any], values: list[Any], **more: Any) -> Odd:
    """A dataset `x` beside one of numbers."""

    def write(path: Path) -> None:
        with h5py.File(path, "w") as file:
            file["k"] = np.arange(3)
            make(file)

    keys = more.pop("keys", [0, 1, 2])
    found = {"x": values, "k": keys} if values else {}
    found = {} if "error" in more else found or {"k": keys}
    return Odd(name=f"hdf5 {name}", files={"a.h5": write}, values=found, **more)


def as_type(dtype: Any, values: list[Any]) -> Callable[[h5py.File], Any]:
    def make(file: h5py.File) -> None:
        dataset = file.create_dataset("x", (len(values),), dtype=dtype)
        for number, value in enumerate(values):
            dataset[number] = value

    return make


def as_array(values: Any) -> Callable[[h5py.File], Any]:
    return lambda file: file.create_dataset("x", data=values)


def of_24_bits(file: h5py.File) -> None:
    kind = h5py.h5t.STD_I32LE.copy()
    kind.set_precision(24)
    kind.set_size(3)
    h5py.h5d.create(file.id, b"x", kind, h5py.h5s.create_simple((3,)))


HDF5 = [
    hdf5("texts", as_type(h5py.string_dtype(), ["a", "\U0001f600\u2028", ""]),
         ["a", "\U0001f600\u2028", ""]),
    hdf5("texts not in UTF-8", as_type(h5py.string_dtype(), [b"a", b"\xff", b"c"]), ["a", "c"],
         keys=[0, 2], left=["not UTF-8"]),
    hdf5("ASCII that is UTF-8", as_type(h5py.string_dtype("ascii"), [b"a", "\u00e9".encode(), b""]),
         ["a", "\u00e9", ""]),
    hdf5("classes not in UTF-8", as_type(h5py.string_dtype(), [b"a", b"\xff", b"c"]), [],
         error=["row 1 of 'x'", "0xff"], dataset={"labels": "field", "label_field": "x"}),
    hdf5("texts of one length", as_array(np.array([b"a", b"b\0c", b""])), ["a", "b\0c", ""]),
    hdf5("an enumeration", as_type(h5py.enum_dtype({"RED": 0, "BLUE": 1}), [0, 1, 1]), [0, 1, 1],
         types={"x": "uint8"}),
    hdf5("truth", as_array(np.array([True, False, True])), [True, False, True]),
    hdf5("big-endian", as_array(np.array([1, 2, 70000], ">i4")), [1, 2, 70000],
         types={"x": "int32"}),
    hdf5("unsigned 64 bits", as_array(np.array([2**64 - 1, 0, 1], np.uint64)), [2**64 - 1, 0, 1],
         types={"x": "uint64"}),
    hdf5("complex arrays", as_array(np.full((3, 1), 1 + 2j)), [[1 + 2j]] * 3,
         types={"x": "complex128"}),
    hdf5("zero size", as_array(np.zeros((3, 0), np.float32)), [np.zeros(0, np.float32)] * 3,
         types={"x": "float32"}),
    hdf5("not a number", as_array(np.array([math.nan, -0.0, math.inf])),
         [math.nan, -0.0, math.inf]),
    hdf5("arrays of two lengths", as_type(h5py.vlen_dtype(np.int32), [[1, 2], [3], []]), [],
         error=["shape", "ragged"]),
    hdf5("big-endian arrays of two lengths", as_type(h5py.vlen_dtype(">i4"), [[1], [2], [3]]), [],
         error=["'x'", "a.h5", ">i4 of varying length"]),
    hdf5("complex numbers", as_array(np.zeros(3, np.complex64)), [], error=["'x'", "complex64"]),
    hdf5("structures", as_array(np.zeros(3, [("a", "i4")])), [], error=["'x'", "a.h5"]),
    hdf5("references", lambda file: as_type(h5py.ref_dtype, [file["k"].ref] * 3)(file), [],
         error=["'x'", "a.h5"]),
    hdf5("of 80 bits", as_array(np.ones(3, np.longdouble)), [], error=["'x'", "float128"]),
    hdf5("of 24 bits", of_24_bits, [], error=["'x'", "a.h5"]),
    hdf5("one value", as_array(5), [], logged="'x'"),
    hdf5("nothing", as_array(h5py.Empty("f4")), [], logged="'x'"),
    hdf5("a name not in UTF-8", lambda file: file.create_dataset(b"\xff", data=[1, 2, 3]), [],
         error=["a.h5 cannot be read as an HDF5 file", "0xff"]),
    hdf5("a link", lambda file: file.__setitem__("x", h5py.SoftLink("/k")), [], logged="'x'"),
    hdf5("other rows", as_array(np.zeros(2)), [], error=["x 2", "k 3"]),
    hdf5("two datasets of a field", lambda file: [file.create_dataset(name, data=[1, 2, 3])
                                                  for name in ("a/b", "a.b")], [],
         error=["and another column"]),
]  # fmt: skip

FILES = [
    *(*ARRAYS, *ARCHIVES, *SOUNDS, UNEVEN, *TARS, *SHARDS, *ROWS, *HDF5),
    *(Odd(name=f"parquet {name}", files={"a.parquet": content}, **more)
      for name, content, more in PARQUET),
]  # fmt: skip


@pytest.mark.parametrize("odd", FILES, ids=str)
def test_odd_files(odd: Odd, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    odd.check(tmp_path, caplog)
