"""Every form of source, from its files to shards."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest
import soundfile
from pyarrow import parquet

from headrace.files.manifest_file import read_manifest
from headrace.packing.pack_step import pack
from headrace.shards.dataset import ShardedDataset
from headrace.shards.inspection import verify_dataset
from headrace.steps.context import StepContext
from support.source_files import png
from support.source_files import write_tar as write_members

NUM = 12
MakeContext = Callable[..., StepContext]


def npz(number: int) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, x=np.full((2, 2), number), y=np.float32(number))
    return buffer.getvalue()


def wav(number: int) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(
        buffer, np.full(50 + number, number / 100), 8000, format="WAV", subtype="PCM_16"
    )
    return buffer.getvalue()


def write_each(suffix: str, make: Callable[[int], bytes]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        for number in range(NUM):
            (folder / f"{number:02d}{suffix}").write_bytes(make(number))

    return write


def write_pairs(folder: Path) -> None:
    write_each(".png", png)(folder)
    write_each(".txt", lambda number: f"text {number}".encode())(folder)


def write_questions(folder: Path) -> None:
    write_each(".png", png)(folder)
    rows = [
        {"path": f"{n:02d}.png", "question": f"why {n}?", "answer": "é" * n, "score": n / 2}
        for n in range(NUM)
    ]
    (folder / "qa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_tar(folder: Path) -> None:
    files = {}
    for number in range(NUM):
        files |= {f"{number:02d}.cls": b"%d" % (number % 2), f"{number:02d}.png": png(number)}
    write_members(folder / "a.tar", files)


def write_parquet(folder: Path) -> None:
    names = {"label": {"names": ["zero", "one"], "_type": "ClassLabel"}}
    table = pa.table(
        {
            "image": [{"bytes": png(n), "path": None} for n in range(NUM)],
            "label": [n % 2 for n in range(NUM)],
            "tokens": [list(range(n)) for n in range(NUM)],
        }
    )
    metadata = {"huggingface": json.dumps({"info": {"features": names}})}
    parquet.write_table(table.replace_schema_metadata(metadata), folder / "a.parquet")


def write_hdf5(folder: Path) -> None:
    with h5py.File(folder / "a.h5", "w") as file:
        file["x"] = np.repeat(np.arange(NUM, dtype=np.float32), 4).reshape(NUM, 2, 2)
        file["fold"] = ["val" if n % 3 == 0 else "train" for n in range(NUM)]


RAGGED = {"tokens": {"mixed": "ragged"}}
CASES: dict[str, tuple[Callable[[Path], None], dict[str, Any], dict[str, Any], set[str]]] = {
    "npz": (write_each(".npz", npz), {}, {}, {"x", "y"}),
    "wav": (write_each(".wav", wav), {}, {}, {"audio"}),
    "bytes": (write_each(".bin", npz), {"include": ["*.bin"]}, {}, {"bytes"}),
    "pairs": (write_pairs, {"fields": {"image": "*.png", "text": "*.txt"}}, {}, {"image", "text"}),
    "questions": (
        write_questions, {"index": "qa.jsonl"}, {}, {"image", "question", "answer", "score"},
    ),
    "webdataset": (write_tar, {"labels": "auto"}, {}, {"png", "label"}),
    "parquet": (
        write_parquet, {"labels": "auto"}, {"fields": RAGGED}, {"image", "tokens", "label"},
    ),
    "hdf5": (write_hdf5, {"split_field": "fold"}, {}, {"x"}),
}  # fmt: skip


@pytest.mark.parametrize("case", list(CASES))
def test_a_source_becomes_shards(tmp_path, make_context, in_process, case):
    write, dataset, packing, fields = CASES[case]
    source = tmp_path / "source"
    source.mkdir()
    write(source)
    context = make_context(source, dataset={"labels": "none", **dataset}, pack=packing)
    folder = Path(pack(context, in_process)["dataset"])
    manifest = read_manifest(folder)
    assert {field.name for field in manifest.fields} == fields
    assert sum(manifest.splits.values()) == NUM
    assert manifest.quarantined == ()
    assert verify_dataset(folder) == ()
    if case == "hdf5":
        assert manifest.splits == {"train": 8, "val": 4}
    for split in manifest.splits:
        data = ShardedDataset(folder, split)
        every = np.arange(len(data))
        for row, path in zip(every, data.sources(every), strict=True):
            number = int(Path(path).stem) if "#" not in path else int(path.partition("#")[2])
            check(case, data, row, number)


def check(case: str, data: ShardedDataset, row: int, number: int) -> None:
    def value(name: str) -> Any:
        return data.gather(name, np.array([row]))[0]

    if case in ("pairs", "questions", "parquet"):
        np.testing.assert_array_equal(value("image"), np.full((2, 3), number))
    if case == "npz":
        assert (value("y"), value("x")[1, 1]) == (number, number)
    if case == "hdf5":
        assert value("x")[0, 1] == number
    if case == "questions":
        assert value("score") == number / 2
        assert item(data, "question", row) == f"why {number}?".encode()
        assert item(data, "answer", row) == ("é" * number).encode()
    if case == "webdataset":
        assert data.manifest.classes[value("label")] == str(number % 2)
    if case == "parquet":
        assert data.manifest.classes[value("label")] == ("zero", "one")[number % 2]
        assert item(data, "tokens", row) == np.arange(number, dtype=np.int64).tobytes()
    if case == "wav":
        assert item(data, "audio", row) == wav(number)
    if case == "bytes":
        assert item(data, "bytes", row) == npz(number)


def item(data: ShardedDataset, name: str, row: int) -> bytes:
    with data.holding(np.array([row])):
        return data.items(name, np.array([row]))[0].tobytes()


READER = """
import os

def read(path):
    return {"size": float(os.path.getsize(path))}
"""


def test_an_edited_reader_packs_anew(tmp_path, make_context, in_process):
    """What the function as it was before made is never taken for what it makes now."""
    source, code = tmp_path / "raw", tmp_path / "code"
    for folder in (source, code):
        folder.mkdir()
    for number in range(NUM):
        (source / f"{number:02d}.dat").write_bytes(bytes(number))
    (code / "size_reader.py").write_text(READER)

    def packed() -> dict[str, Any]:
        reader = {"_target_": "size_reader.read"}
        given = {"labels": "none", "include": ["*.dat"], "reader": reader}
        context = make_context(source, dataset=given)
        context.recipe = context.recipe.model_copy(update={"code": (str(code),)})
        context.site = context.site.model_copy(update={"allowed_code": (str(code),)})
        return pack(context, in_process)

    first = packed()
    assert packed() == {**first, "reused": True}
    (code / "size_reader.py").write_text(READER.replace("float(", "1 + float("))
    again = packed()
    assert not again["reused"]
    assert again["dataset"] != first["dataset"]
