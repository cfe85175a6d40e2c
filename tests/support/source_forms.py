"""One small source of every form, of samples of all kinds."""

from __future__ import annotations

import csv
import json
import os
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
from pyarrow import parquet

from support.source_files import npy, npz, png, wav, write_tar

NUM = 240
NUM_ROWS = 3000


def array(number: int) -> bytes:
    content = npy(np.sin(np.arange(4, dtype=np.float32) + number))
    return content[: 100 if number == 77 else None]  # one is damaged


def members(start: int, stop: int) -> dict[str, bytes]:
    """Arrays and texts in class folders, with names of all kinds."""
    found: dict[str, bytes] = {}
    for number in range(start, stop):
        folder = ("cat", "dög", f"bird/{'x' * 110 if number % 50 == 2 else 'in'}")[number % 3]
        found[f"{folder}/é{number:04d}.npy"] = array(number)
        found[f"{folder}/é{number:04d}.txt"] = f"text {number}".encode()
    return found


def samples(start: int, stop: int) -> dict[str, bytes]:
    """Parts of samples as the library webdataset writes them."""
    found: dict[str, bytes] = {}
    for number in range(start, stop):
        key = f"{'./' * (number % 9 == 4)}{'long/' * (number % 40 // 39 * 30)}{number:04d}"
        parts = {
            "cls": str(number % 11).encode(),
            "npy": array(number),
            "x.TXT" if number % 4 else "x.txt": f" text {number}\n".encode(),
            "who": f"person {number // 8}\n".encode(),
            "fold": b"train" if number // 8 % 3 else b"val",
        }
        found |= {f"{key}.{ending}": content for ending, content in parts.items()}
    return found


def write_tars(make: Callable[[int, int], dict[str, bytes]]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        third = NUM // 3
        for number, form in enumerate(
            (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT)
        ):
            start = number * third
            write_tar(folder / f"{2 - number}ä.tar", make(start, start + third), form)

    return write


def write_files(folder: Path, start: int = 0) -> None:
    for name, content in members(start, NUM).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def write_index(folder: Path) -> None:
    write_files(folder)
    names = sorted((name for name in members(0, NUM) if name.endswith("npy")), reverse=True)
    rows = [
        {"path": name, "label": n % 5, "fold": ("train", "val")[n % 7 > 4], "weight": n / 8}
        | ({"group": f"g{n // 7}"} if n % 10 else {})
        for n, name in enumerate(names)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with (folder / "rows.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label", "group", "weight"])
        writer.writerows([name, n % 5, f"g{n // 7}", n / 8] for n, name in enumerate(names))


def columns() -> dict[str, Any]:
    """Numbers of every kind, some of them missing, whole lists, and what sorts samples."""
    numbers = np.arange(NUM_ROWS)
    points = pa.array(np.sin(numbers).astype(np.float32).repeat(6))
    inner = pa.FixedSizeListArray.from_arrays(points, 3)
    return {
        "single": pa.array(np.cos(numbers).astype(np.float32)),
        "double": pa.array(np.sqrt(numbers), mask=numbers % 501 == 7),
        "large": pa.array(numbers * 2**53 + 1),
        "small": pa.array((numbers % 256).astype(np.uint8), mask=numbers % 700 == 3),
        "yes": pa.array(numbers % 3 == 0),
        "half": pa.array((numbers % 7).astype(np.float16)),
        "box": pa.FixedSizeListArray.from_arrays(inner, 2),
        "pair": pa.array([[int(n), 1] for n in numbers]),
        "kind": pa.array([("dog", "cat", "bird")[n % 3] for n in numbers]),
        "who": pa.array([f"p{n // 20}" for n in numbers]),
    }


def write_parquet(folder: Path) -> None:
    table = pa.table(columns())
    parquet.write_table(table.slice(0, 1000), folder / "a.parquet", row_group_size=300)
    parquet.write_table(table.slice(1000, 1500), folder / "b.parquet")
    (folder / "c").mkdir(exist_ok=True)
    parquet.write_table(table.slice(2500), folder / "c" / "a.parquet", row_group_size=64)


def write_images(folder: Path) -> None:
    """Images and lists of several lengths, with names of classes as Hugging Face writes them."""
    names = {"label": {"names": ["zero", "one"], "_type": "ClassLabel"}}
    table = pa.table(
        {
            "image": [{"bytes": png(n), "path": None} for n in range(12)],
            "label": [n % 2 for n in range(12)],
            "tokens": [list(range(n)) for n in range(12)],
        }
    )
    metadata = {"huggingface": json.dumps({"info": {"features": names}})}
    parquet.write_table(table.replace_schema_metadata(metadata), folder / "a.parquet")


def write_arrow(folder: Path) -> None:
    table = pa.table(columns())
    with pa.ipc.new_stream(folder / "data.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=190)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))


def write_hdf5(folder: Path) -> None:
    numbers = np.arange(NUM_ROWS)
    with h5py.File(folder / "a.h5", "w") as file:
        file["x/flat"] = np.cos(numbers).astype(">f4")
        file.create_dataset("x/box", data=np.sin(numbers).repeat(6).reshape(-1, 2, 3), chunks=True)
        file["whole"] = numbers.astype(np.int16)
        file["kind"] = numbers % 3
        file["who"] = [f"p{n // 20}" for n in numbers]


def rows() -> list[dict[str, Any]]:
    return [
        {
            "n": n,
            "x": n / 8,
            "text": f'é "{n}",\n' * (n % 3),
            "kind": n % 4,
            "who": n // 20,
            "fold": "ab"[n % 9 > 6],
        }
        for n in range(NUM_ROWS)
    ]


def write_csv(folder: Path) -> None:
    for name, some in (("a.csv", rows()[:100]), ("a/b.csv", rows()[100:])):
        (folder / name).parent.mkdir(exist_ok=True)
        with (folder / name).open("w", newline="") as file:
            writer = csv.DictWriter(file, list(some[0]))
            writer.writeheader()
            writer.writerows(some)
            file.write("1,2,3\r\n" if name == "a.csv" else "")  # no row


def write_jsonl(folder: Path) -> None:
    for name, some in (("a.jsonl", rows()[:100]), ("b.jsonl", rows()[100:])):
        lines = [json.dumps({**row, "tags": {"n": [row["n"]]}}) for row in some]
        (folder / name).write_text("\n".join([*lines, "{"] if name == "a.jsonl" else lines))


def write_each(ending: str, make: Callable[[int], bytes]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        for number in range(12):
            (folder / f"{number:02d}{ending}").write_bytes(make(number + 1))

    return write


NO_LABELS = {"labels": "none"}
ARRAYS = {"include": ["**/*.npy"]}
PAIRS = {"fields": {"array": "*.npy", "text": "*.txt"}}
KIND = {"labels": "field", "label_field": "kind"}
GROUPED = {**KIND, "group_field": "who"}
FOLDS = {"folds": 3, "splits": {"train": 0.75, "test": 0.25}}
LABEL_VALUES = {
    "labels": "field",
    "label_kind": "value",
    "label_field": "single",
    "fields": {"y": "yes", "n": "large"},
}
SOURCES: dict[str, tuple[Callable[[Path], None], dict[str, Any], str]] = {
    "files": (write_files, ARRAYS, "ad2d440e59ffd04d"),
    "files-folds": (write_files, {**ARRAYS, **FOLDS}, "b5973ca9ed83d6ed"),
    "pairs": (write_files, PAIRS, "bfa9722eaccf55bf"),
    "npz": (
        write_each(".npz", lambda n: npz(x=np.full((2, 2), n), y=np.float32(n))),
        NO_LABELS, "ad2b723027f689a5",
    ),
    "wav": (write_each(".wav", lambda n: wav(8000, (50 + n,))), NO_LABELS, "48bf78a4a2195bca"),
    "bytes": (write_each(".bin", bytes), {**NO_LABELS, "include": ["*.bin"]}, "97bb20724a1eded9"),
    "index": (write_index, {**ARRAYS, "index": "rows.csv"}, "ec453f6fea0c4c67"),
    "index-splits": (write_index, {**ARRAYS, "index": "rows.jsonl", "split_field": "fold"},
        "ba670acbb5f8789b"),
    "index-folds": (write_index, {**ARRAYS, "index": "rows.jsonl", **FOLDS}, "64130f90edc40b9a"),
    "tar": (write_tars(members), {**ARRAYS, "format": "tar"}, "f656712eadef14c4"),
    "tar-pairs": (write_tars(members), {**PAIRS, "format": "tar"}, "474169308fe251aa"),
    "webdataset": (
        write_tars(samples), {"fields": {"array": "npy", "text": "x.txt"}, "format": "webdataset"},
        "aa295d771723471b"
    ),
    "webdataset-roles": (
        write_tars(samples),
        {"group_field": "who", "format": "webdataset", "label_kind": "value"}, "382368b86adfac23",
    ),
    "webdataset-splits": (
        write_tars(samples), {"split_field": "fold", "label_field": "who", "format": "webdataset"},
        "3bdfff577524e7f9"
    ),
    "parquet": (write_parquet, GROUPED, "d61b2823b357256f"),
    "parquet-folds": (write_parquet, {**GROUPED, **FOLDS}, "9b5c19bf7fddfef6"),
    "images": (write_images, {}, "5948cf944ec45df5"),
    "arrow": (write_arrow, GROUPED, "6a66ede38a44d0a2"),
    "hdf5": (write_hdf5, KIND, "60a975662924c766"),
    "hdf5-groups": (write_hdf5, GROUPED, "4e6e7ec39119fc2e"),
    "numbers": (write_parquet, LABEL_VALUES, "2f28b40dddc9ec32"),
    "csv": (write_csv, KIND, "a4fa12d1709aa5d2"),
    "csv-splits": (write_csv, {**KIND, "split_field": "fold"}, "9ca239d65c535aea"),
    "jsonl": (write_jsonl, KIND, "693c8108ce19a302"),
    "jsonl-groups": (write_jsonl, GROUPED, "095ce5e879d1f366"),
}  # fmt: skip


def written(folder: Path, write: Callable[[Path], None]) -> Path:
    """A source whose files have times that depend on nothing but their names."""
    folder.mkdir(exist_ok=True)
    write(folder)
    for path in folder.rglob("*"):
        os.utime(path, ns=(0, 10**18 + zlib.crc32(path.relative_to(folder).as_posix().encode())))
    return folder
