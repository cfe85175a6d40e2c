"""What packing costs a sample as samples become more: files, rows, WebDataset shards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from io import BytesIO
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated

import numpy as np
import psutil
import pyarrow as pa
import typer
from pyarrow import parquet

from headrace.errors import UserError
from headrace.files.manifest_file import read_manifest
from headrace_bench.machine import load, machine
from headrace_bench.pack_headrace import pack_folder
from headrace_bench.workspace import workspace

_VALUES = 8
_CONTAINER_SAMPLES = 10_000
_NUM_CLASSES = 10
_FILE_LINKS = 50_000  # ext4 gives a file 65,000 names
_SHARD_BYTES = 8 * 2**20
_FILE_BYTES = 1000
_NUM_FIRST = 1000


def growth(
    kinds: Annotated[str, typer.Option(help="What holds the samples.")] = "files,rows,webdataset",
    samples: Annotated[str, typer.Option(help="How many.")] = "100000,1000000",
    folder: Annotated[Path | None, typer.Option(help="Folder to work in.")] = None,
) -> None:
    """Pack more and more samples of 8 numbers, each time in a fresh process and one that it has.

    Told are microseconds of a processor a sample in both, and by how many bytes a sample the first,
    which lists and plans, grew at most. Files are names of few files (hard links), as are the tar
    and Parquet files, of 10,000 samples each: all are in the page cache.

    Examples:
        PYTHONPATH=tests python -m benchmarks.growth

        … --kinds rows --samples 10000000
    """
    if unknown := set(kinds.split(",")) - _MAKERS.keys():
        raise UserError(f"--kinds '{min(unknown)}' is not known", f"Valid: {', '.join(_MAKERS)}.")
    counts = [int(text) for text in samples.split(",")]
    if any(count > _CONTAINER_SAMPLES and count % _CONTAINER_SAMPLES for count in counts):
        raise UserError(f"--samples '{samples}' fill no whole files of {_CONTAINER_SAMPLES:,}")
    rows = []
    for kind in kinds.split(","):
        for count in counts:
            with workspace(folder or Path(tempfile.gettempdir()), count * _FILE_BYTES) as made:
                _MAKERS[kind](made / "first", _NUM_FIRST)
                _MAKERS[kind](made / "source", count)
                rows.append(_measured(made, kind, count))
    told = {"rows": rows, "machine": machine(["pyarrow"]).model_dump(), "load": load()}
    print(json.dumps(told, indent=1))


def _measured(folder: Path, kind: str, count: int) -> dict[str, object]:
    """What one pack cost, in a process that does nothing else."""
    asked = [sys.executable, "-m", "benchmarks.growth", "--pack", str(folder.absolute())]
    tests = Path(__file__).parents[1]
    done = subprocess.run(asked, cwd=tests, stdout=subprocess.PIPE, check=True, text=True)
    found = json.loads(done.stdout)
    if found.pop("num_samples") != count:
        raise ValueError(f"{kind}: not all of {count:,} samples were packed")
    each = {name: round(value * 1e6 / count, 2) for name, value in found["seconds"].items()}
    grown = round(found["grown_bytes"] / count, 1)
    return {"kind": kind, "samples": count, "us": each, "bytes": grown}


def pack(folder: Path) -> None:
    """Pack `folder / "source"`, and print what it took."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        worker = psutil.Process(pool.submit(os.getpid).result())
        pack_folder(folder / "first", folder / "warm", pool, _SHARD_BYTES, {})  # imports, too
        before, worked = _seconds(psutil.Process()), _seconds(worker)
        memory = _reset_peak()
        pack_folder(folder / "source", folder / "packed", pool, _SHARD_BYTES, {})
        seconds = {
            "plans": _seconds(psutil.Process()) - before,
            "packs": _seconds(worker) - worked,
        }
    grown = _peak_bytes() - memory
    (manifest,) = (folder / "packed").glob("datasets/*/manifest.json")
    num_samples = read_manifest(manifest.parent).num_samples
    print(json.dumps({"num_samples": num_samples, "seconds": seconds, "grown_bytes": grown}))


def _seconds(process: psutil.Process) -> float:
    used = process.cpu_times()
    return used.user + used.system


def _reset_peak() -> int:
    """Bytes of memory that this process has; the peak is counted from here."""
    Path("/proc/self/clear_refs").write_text("5")
    return _peak_bytes()


def _peak_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise ValueError("the kernel tells no peak of memory")


def _sample(number: int) -> bytes:
    buffer = BytesIO()
    np.save(buffer, np.full(_VALUES, number, dtype=np.float32))
    return buffer.getvalue()


def _write_files(folder: Path, count: int) -> None:
    for number in range(_NUM_CLASSES):
        (folder / f"c{number}").mkdir(parents=True)
    for start in range(0, count, _FILE_LINKS):
        first = folder / f"c{start % _NUM_CLASSES}" / f"{start:08d}.npy"
        first.write_bytes(_sample(start))
        for number in range(start + 1, min(start + _FILE_LINKS, count)):
            os.link(first, f"{folder}/c{number % _NUM_CLASSES}/{number:08d}.npy")


def _write_webdataset(folder: Path, count: int) -> None:
    first, *others = _containers(folder, count, ".tar")
    with tarfile.open(first, "w") as archive:
        for number in range(min(count, _CONTAINER_SAMPLES)):
            label = str(number % _NUM_CLASSES).encode()
            for ending, content in (("cls", label), ("npy", _sample(number))):
                info = tarfile.TarInfo(f"{number:06d}.{ending}")
                info.size = len(content)
                archive.addfile(info, BytesIO(content))
    for other in others:
        os.link(first, other)


def _write_rows(folder: Path, count: int) -> None:
    first, *others = _containers(folder, count, ".parquet")
    numbers = np.arange(min(count, _CONTAINER_SAMPLES), dtype=np.float32)
    parquet.write_table(pa.table({f"c{n}": numbers + n for n in range(_VALUES)}), first)
    for other in others:
        os.link(first, other)


def _containers(folder: Path, count: int, suffix: str) -> Iterator[Path]:
    folder.mkdir(parents=True)
    for number in range(-(-count // _CONTAINER_SAMPLES)):
        yield folder / f"shard-{number:06d}{suffix}"


_MAKERS: dict[str, Callable[[Path, int], None]] = {
    "files": _write_files,
    "rows": _write_rows,
    "webdataset": _write_webdataset,
}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--pack"]:
        pack(Path(sys.argv[2]))
    else:
        typer.run(growth)
