"""Files and members of tar files are listed by column: the same shards as ever."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.packing import digest

NUM = 240


def npy(number: int) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.sin(np.arange(4, dtype=np.float32) + number))
    return buffer.getvalue()[: 100 if number == 77 else None]  # one is damaged


def members(start: int, stop: int) -> dict[str, bytes]:
    """Arrays and texts in class folders, with names of all kinds."""
    found: dict[str, bytes] = {}
    for number in range(start, stop):
        folder = ("cat", "dög", f"bird/{'x' * 110 if number % 50 == 2 else 'in'}")[number % 3]
        found[f"{folder}/é{number:04d}.npy"] = npy(number)
        found[f"{folder}/é{number:04d}.txt"] = f"text {number}".encode()
    return found


def samples(start: int, stop: int) -> dict[str, bytes]:
    """Parts of samples as the library webdataset writes them."""
    found: dict[str, bytes] = {}
    for number in range(start, stop):
        key = f"{'./' * (number % 9 == 4)}{'long/' * (number % 40 // 39 * 30)}{number:04d}"
        parts = {
            "cls": str(number % 11).encode(),
            "npy": npy(number),
            "x.TXT" if number % 4 else "x.txt": f" text {number}\n".encode(),
            "who": f"person {number // 8}\n".encode(),
            "fold": b"train" if number // 8 % 3 else b"val",
        }
        found |= {f"{key}.{ending}": content for ending, content in parts.items()}
    return found


def write_tar(path: Path, files: dict[str, bytes], form: int) -> None:
    with tarfile.open(path, "w", format=form) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


FORMS = (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT)


def _tars(folder: Path, make: Callable[[int, int], dict[str, bytes]]) -> None:
    third = NUM // 3
    for number, form in enumerate(FORMS):
        start = number * third
        write_tar(folder / f"{2 - number}ä.tar", make(start, start + third), form)


def _files(folder: Path) -> None:
    for name, content in members(0, NUM).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def _indexed(folder: Path) -> None:
    _files(folder)
    names = sorted((name for name in members(0, NUM) if name.endswith("npy")), reverse=True)
    rows = [f"{name},{n % 5},g{n // 7},{n / 8}" for n, name in enumerate(names)]
    (folder / "rows.csv").write_text("\n".join(["path,label,group,weight", *rows]) + "\n")


ARRAYS = {"include": ["**/*.npy"]}
PAIRS = {"fields": {"array": "*.npy", "text": "*.txt"}}
SOURCES: dict[str, tuple[Callable[[Path], None], dict[str, Any]]] = {
    "files": (_files, ARRAYS),
    "pairs": (_files, PAIRS),
    "index": (_indexed, {**ARRAYS, "index": "rows.csv"}),
    "tar": (lambda folder: _tars(folder, members), {**ARRAYS, "format": "tar"}),
    "tar-pairs": (lambda folder: _tars(folder, members), {**PAIRS, "format": "tar"}),
    "webdataset": (
        lambda folder: _tars(folder, samples),
        {"fields": {"array": "npy", "text": "x.txt"}, "format": "webdataset"},
    ),
    "webdataset-roles": (
        lambda folder: _tars(folder, samples),
        {"group_field": "who", "format": "webdataset", "label_kind": "value"},
    ),
    "webdataset-splits": (
        lambda folder: _tars(folder, samples),
        {"split_field": "fold", "label_field": "who", "format": "webdataset"},
    ),
}
DIGESTS = {
    "files": "3b218e79faef8fa4",
    "pairs": "d2321543e0c5af68",
    "index": "f14ce15177a7c844",
    "tar": "8996fb2403576ff6",
    "tar-pairs": "1c1bc1bc4512bc14",
    "webdataset": "b901515553050977",
    "webdataset-roles": "43317e28ede2254a",
    "webdataset-splits": "e837c91166ecf950",
}
"""What the release before packed, which had a record of each sample."""


@pytest.mark.parametrize("form", SOURCES)
def test_shards_are_those_of_records(
    form: str, tmp_path: Path, packs: Callable[..., dict[str, Any]]
) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    write, dataset = SOURCES[form]
    write(folder)
    packed = packs(folder, dataset, {"shard_samples": 50, "max_quarantined": 0.1})
    assert packed["num_samples"] == NUM - 1
    assert digest(packed) == DIGESTS[form]
