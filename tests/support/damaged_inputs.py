"""Files of all formats, damaged by chance, are packed in a program of its own: libraries may crash.

`python -m support.damaged_inputs FORM FIRST STOP FOLDER` packs the files with numbers from `FIRST`
to `STOP` and writes what became of each as a line: its number, its outcome, and more of it. It ends
by a signal when a library crashes, or a file takes too long.
"""

from __future__ import annotations

import csv
import io
import json
import math
import random
import resource
import shutil
import signal
import sys
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import soundfile
from pyarrow import parquet

from headrace.errors import HeadraceError
from support.odd_inputs import arrow_of
from support.packed_values import PackedValues, packed_values
from support.source_files import npy, npz, write_tar

MOST_S = 8  # of computing; a reading library has 5
MOST_BYTES = 500 * 2**20
NUM_ROWS = 6
BOM = b"\xef\xbb\xbf"

Rows = dict[Any, dict[str, Any]]
"""Values by field, by the sample's key: its row, or its path."""


@dataclass(frozen=True, kw_only=True)
class Form:
    """A format."""

    name: str
    """Of the file that is damaged."""
    write: Callable[[Path, random.Random], None]
    read: Callable[[Path], Rows]
    """Reads a file without headrace."""
    is_text: bool = False
    dataset: Mapping[str, Any] = field(default_factory=dict)
    packing: Mapping[str, Any] = field(default_factory=dict)


def numbered(values: Mapping[str, list[Any]]) -> Rows:
    """Columns as rows."""
    rows = zip(*values.values(), strict=True)
    return {number: dict(zip(values, row, strict=True)) for number, row in enumerate(rows)}


def read_table(table: pa.Table) -> Rows:
    """Rows of a table; cells that cannot be read are None."""
    names = table.column_names
    return numbered({name: [tried(as_py, cell) for cell in table.column(name)] for name in names})


def as_py(cell: pa.Scalar) -> Any:
    return cell.as_py()


def columns(random_: random.Random) -> dict[str, Any]:
    """Columns of all types that several formats have; which of them, and their types, differ."""
    whole = [random_.randrange(-100, 100) for _ in range(NUM_ROWS)]
    every = {
        "i": pa.array(whole, random_.choice([pa.int8(), pa.int32(), pa.int64()])),
        "f": pa.array([each / 4 for each in whole], random_.choice([pa.float32(), pa.float64()])),
        "b": pa.array([each > 0 for each in whole]),
        "t": pa.array([f"text {each}" for each in whole]),
        "d": pa.array([f"word {each % 3}" for each in whole]).dictionary_encode(),
        "l": pa.array([[each, 1] for each in whole]),
    }
    names = random_.sample(sorted(every), random_.randrange(1, len(every)))
    return {name: every[name] for name in names}


def write_parquet(path: Path, random_: random.Random) -> None:
    parquet.write_table(
        pa.table(columns(random_)),
        path,
        row_group_size=random_.choice([2, 100]),
        compression=random_.choice(["none", "snappy", "zstd"]),
        write_page_checksum=random_.random() < 0.5,
    )


def write_arrow(path: Path, random_: random.Random) -> None:
    table = pa.table(columns(random_))
    arrow_of(table.slice(0, 3), table.slice(3))(path)


def write_hdf5(path: Path, random_: random.Random) -> None:
    options = random_.choice([{}, {"chunks": (2,)}, {"chunks": (3,), "compression": "gzip"}])
    with h5py.File(path, "w") as file:
        for name, column in columns(random_).items():
            if name in ("t", "d"):
                file[name] = column.to_pylist()
            else:
                values = np.array(column.to_pylist())
                file.create_dataset(name, data=values, **options if values.ndim == 1 else {})


def read_hdf5(path: Path) -> Rows:
    found: dict[str, list[Any]] = {}
    with h5py.File(path) as file:

        def visit(name: str, item: object) -> None:
            if isinstance(item, h5py.Dataset) and item.shape:
                found[name.replace("/", ".")] = list(item[:])

        file.visititems(visit)
    return numbered(found)


def write_csv(path: Path, random_: random.Random) -> None:
    found = {name: each for name, each in columns(random_).items() if name != "l"}
    found = found or {"i": pa.array(range(NUM_ROWS))}
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter=random_.choice(",;\t"))
        writer.writerow(found)
        writer.writerows(zip(*(each.to_pylist() for each in found.values()), strict=True))


def read_csv(path: Path) -> Rows:
    text = path.read_bytes().decode("utf-8-sig")
    delimiter = max(",;\t|", key=text.splitlines()[0].count)
    rows = [row for row in csv.reader(io.StringIO(text, ""), delimiter=delimiter) if any(row)]
    names = [name.strip() for name in rows[0]]
    return {number: dict(zip(names, row, strict=False)) for number, row in enumerate(rows[1:])}


def write_jsonl(path: Path, random_: random.Random) -> None:
    rows = pa.table(columns(random_)).to_pylist()
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def read_jsonl(path: Path) -> Rows:
    lines = path.read_bytes().replace(b"\r", b"\n").split(b"\n")
    found = [tried(json.loads, line) for line in lines if line.removeprefix(BOM).strip()]
    return {number: row for number, row in enumerate(found) if isinstance(row, dict)}


def tried(read: Callable[[Any], Any], content: Any) -> Any:
    """What is read; None if it cannot be."""
    try:
        return read(content)
    except Exception:  # noqa: BLE001 whatever it raises, it does not read the content
        return None


def write_npy(path: Path, random_: random.Random) -> None:
    dtype = random_.choice(["<f4", ">f8", "<i2", "|b1", "<c8"])
    path.with_name("0.npy").write_bytes(npy(np.ones((2, 3), dtype)))
    path.write_bytes(npy(np.arange(6).reshape(2, 3).astype(dtype)))


def write_npz(path: Path, _: random.Random) -> None:
    path.with_name("0.npz").write_bytes(npz(x=np.ones(3), y=np.ones(())))
    path.write_bytes(npz(x=np.arange(3) / 2, y=1.5))


def read_npz(path: Path) -> Rows:
    def read(file: Path) -> dict[str, Any]:
        found = np.load(file)
        return {key: found[key] for key in ("x", "y")}

    return {each.name: tried(read, each) or {} for each in (path.with_name("0.npz"), path)}


def write_wav(path: Path, random_: random.Random) -> None:
    form = random_.choice(["PCM_U8", "PCM_16", "PCM_24", "FLOAT"])
    soundfile.write(path.with_name("0.wav"), np.zeros(4), 8000, subtype="PCM_16")
    soundfile.write(path, np.arange(40) / 64, 8000, subtype=form)


def read_files(read: Callable[[Path], Any], name: str) -> Callable[[Path], Rows]:
    return lambda path: {
        each.name: {name: tried(read, each)} for each in (path.with_name(f"0{path.suffix}"), path)
    }


def write_members(path: Path, random_: random.Random) -> None:
    form = random_.choice([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
    names = [f"{'d' * random_.choice([1, 60])}/{number}.npy" for number in range(4)]
    write_tar(path, {name: npy([float(at)] * 3) for at, name in enumerate(names)}, form)


def read_members(path: Path) -> Rows:
    with tarfile.open(path) as archive:
        files = [each for each in archive if each.isreg() and each.name.endswith(".npy")]
        return {
            f"a.tar/{PurePosixPath(each.name)}": {"array": _loaded(archive, each)} for each in files
        }


def _loaded(archive: tarfile.TarFile, info: tarfile.TarInfo) -> Any:
    stream = archive.extractfile(info)
    return tried(np.load, io.BytesIO(stream.read())) if stream else None


def write_shard(path: Path, random_: random.Random) -> None:
    files = {}
    for number in range(4):
        files[f"{number}.cls"] = str(random_.randrange(3)).encode()
        files[f"{number}.txt"] = f"text {number}".encode()
    write_tar(path, files)


def read_shard(path: Path) -> Rows:
    found: Rows = {}
    with tarfile.open(path) as archive:
        for info in archive:
            stream = archive.extractfile(info)
            key, _, ending = info.name.partition(".")
            name = {"cls": "label"}.get(ending.lower(), ending.lower())
            content = stream.read().decode("utf-8", "replace") if stream else ""
            value = content.strip() if name == "label" else content.removeprefix("\ufeff")
            found.setdefault(f"a.tar/{key}", {})[name] = value
    return found


AUDIO = {"fields": {"audio": {"keep": "decode"}}}
FORMS = {
    "parquet": Form(
        name="a.parquet",
        write=write_parquet,
        read=lambda path: read_table(parquet.read_table(path)),
    ),
    "arrow": Form(
        name="data.arrow",
        write=write_arrow,
        read=lambda path: read_table(pa.ipc.open_stream(path).read_all()),
        dataset={"format": "huggingface"},
    ),
    "hdf5": Form(name="a.h5", write=write_hdf5, read=read_hdf5),
    "npy": Form(name="1.npy", write=write_npy, read=read_files(np.load, "array")),
    "npz": Form(name="1.npz", write=write_npz, read=read_npz),
    "wav": Form(
        name="1.wav",
        write=write_wav,
        read=read_files(lambda path: soundfile.read(path, dtype="float32")[0], "audio"),
        packing=AUDIO,
    ),
    "tar": Form(name="a.tar", write=write_members, read=read_members, dataset={"format": "tar"}),
    "webdataset": Form(
        name="a.tar",
        write=write_shard,
        read=read_shard,
        dataset={"format": "webdataset", "labels": "auto"},
    ),
    "csv": Form(name="a.csv", write=write_csv, read=read_csv, is_text=True),
    "jsonl": Form(name="a.jsonl", write=write_jsonl, read=read_jsonl, is_text=True),
}


def damaged(content: bytes, random_: random.Random, *, is_text: bool) -> bytes:
    """Content with one to three kinds of damage."""
    kinds = [flipped] * 4 + [cut, doubled, zeroed, large]
    kinds += [line_doubled, lines_swapped, cell_changed] * 2 if is_text else []
    for _ in range(random_.choice([1, 1, 1, 2])):
        content = random_.choice(kinds)(bytearray(content), random_)
    return content


def _place(content: bytes, random_: random.Random) -> int:
    """A byte; half of them near the beginning or the end, where headers are."""
    near = random_.randrange(max(min(len(content), 256), 1))
    anywhere = random_.randrange(len(content) or 1)
    return random_.choice([near, max(len(content) - 1 - near, 0), anywhere, anywhere])


def flipped(content: bytearray, random_: random.Random) -> bytes:
    for _ in range(random_.choice([1, 1, 2, 8])):
        if content:
            content[_place(content, random_)] ^= 1 << random_.randrange(8)
    return bytes(content)


def cut(content: bytearray, random_: random.Random) -> bytes:
    return bytes(content[: _place(content, random_)])


def doubled(content: bytearray, random_: random.Random) -> bytes:
    start = _place(content, random_)
    stop = start + random_.randrange(1, 64)
    return bytes(content[:stop] + content[start:])


def zeroed(content: bytearray, random_: random.Random) -> bytes:
    start = _place(content, random_)
    size = min(random_.randrange(1, 64), len(content) - start)
    content[start : start + size] = bytes(size)
    return bytes(content)


def large(content: bytearray, random_: random.Random) -> bytes:
    """Put a number there that is large or negative."""
    start, number = _place(content, random_), random_.choice([2**31 - 1, 2**63 - 1, -1, 2**40])
    size = 4 if number < 2**32 else 8
    if len(content) >= start + size:
        content[start : start + size] = number.to_bytes(size, "little", signed=True)
    return bytes(content)


def line_doubled(content: bytearray, random_: random.Random) -> bytes:
    lines = bytes(content).splitlines(keepends=True) or [b""]
    at = random_.randrange(len(lines))
    return b"".join([*lines[:at], lines[at], *lines[at:]])


def lines_swapped(content: bytearray, random_: random.Random) -> bytes:
    lines = bytes(content).splitlines(keepends=True)
    random_.shuffle(lines)
    return b"".join(lines)


def cell_changed(content: bytearray, random_: random.Random) -> bytes:
    """Put something else in place of a number or a word."""
    words = [b"", b'"', b"'", b"0.5", b"1e999", b"-0", b"NaN", b"null", b"true", b"[1]", b"\xff"]
    start = _place(content, random_)
    stop = start + random_.randrange(6)
    return bytes(content[:start]) + random_.choice(words) + bytes(content[stop:])


def outcome(form: Form, number: int, folder: Path) -> tuple[str, str]:
    """What becomes of a damaged file: `same`, `error`, `wrong` or `unread`, and what there is."""
    random_ = random.Random(f"{form.name} {number}")
    source = folder / "in"
    source.mkdir(parents=True)
    path = source / form.name
    form.write(path, random_)
    content = damaged(path.read_bytes(), random_, is_text=form.is_text)
    path.write_bytes(content)
    try:
        packed = packed_values(source, folder, {"labels": "none", **form.dataset}, form.packing)
    except HeadraceError as error:
        return "error", str(error)
    try:
        rows = form.read(path)
    except Exception as error:  # noqa: BLE001 whatever it raises, it does not read the file
        return "unread", f"{packed} {error!r}"
    return compared(packed, rows)


def compared(packed: PackedValues, rows: Rows) -> tuple[str, str]:
    """Whether values are those that another reader finds."""
    for at, path in enumerate(packed.paths):
        _, hash_, row = path.rpartition("#")
        there = rows.get(int(row) if hash_ else path)
        for name, values in packed.columns.items():
            if there is None or name not in there or not is_same(values[at], there[name]):
                return "wrong", f"{path} {name}: {values[at]!r}, not {there!r} {packed.quarantined}"
    return "same", str(len(packed.paths))


def is_same(value: Any, other: Any) -> bool:
    """Whether a value is what another reader has, which may be text that means it."""
    value, other = (
        each.decode("utf-8", "surrogateescape") if isinstance(each, bytes) else each
        for each in (value, other)
    )
    if isinstance(value, str) or isinstance(other, str) or other is None:
        return _is_same_text(value, other)
    found = np.array_equal(np.asarray(value), np.asarray(other), equal_nan=True)
    return bool(found) or repr(value) == repr(other)


def _is_same_text(value: Any, other: Any) -> bool:
    if isinstance(value, bool | np.bool_):
        return str(other).strip().lower() == str(value).lower()
    if isinstance(value, int | float) and isinstance(other, str):
        text = other.strip().replace(",", ".")
        return value == float(text) or (math.isnan(value) and "nan" in text.lower())
    texts = [str(other), json.dumps(other, ensure_ascii=False)]
    return str(value) in texts or (isinstance(value, str) and value == str(other))


def main(form: str, first: int, stop: int, folder: Path) -> None:
    """Pack damaged files, and write what becomes of each."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_BYTES, -1))
    for number in range(first, stop):
        print(number, "begun", flush=True)
        signal.setitimer(signal.ITIMER_PROF, MOST_S)  # its signal ends this process
        found, more = outcome(FORMS[form], number, folder / str(number))
        signal.setitimer(signal.ITIMER_PROF, 0)
        shutil.rmtree(folder / str(number))
        print(number, found, json.dumps(more), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
