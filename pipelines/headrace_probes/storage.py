"""Storage: sequential writes and reads, random reads, and new files, by one client and several.

With fio if it is installed; otherwise with own processes that do the same. Sizes are limited by the
free space; the requester removes the folders.
"""

from __future__ import annotations

import json
import mmap
import multiprocessing
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

from headrace.batch.commands import answer_of
from headrace.errors import StepError
from headrace_probes.probe_records import Findings, Measurement, ProbedFolder, ProbeRequest

FioKind = Literal["write", "read", "randread"]

_FIO_TIMEOUT_S = 600
_BLOCK, _PAGE = 2**20, 4096
_RANDOM_S, _RANDOM_READS = 3.0, 2**14
_Span = tuple[int, float, float]
"""Amount of a client's work, in its unit, with its begin and end."""

_Work = Callable[[str, int, bool], _Span]
"""Work on a file of a size in bytes, with O_DIRECT or not."""


def measure(request: ProbeRequest) -> Findings:
    """Measure MB/s, operations and files per second of each target, by number of clients."""
    found: list[Measurement] = []
    notes: list[str] = []
    for target in request.targets:
        free_bytes = shutil.disk_usage(target.folder).free
        wanted = 2**25 if request.options.quick else 2**28  # fio's clock counts milliseconds
        num_bytes = min(wanted, free_bytes // 20 // max(request.clients)) // _BLOCK * _BLOCK
        if not num_bytes:
            notes.append(f"{request.node}: {target.name} has too little room: {free_bytes} bytes")
            continue
        for clients in request.clients:
            found += _of_target(request, target, num_bytes, clients)
    return Findings(measurements=tuple(found), notes=tuple(notes))


def _of_target(
    request: ProbeRequest, target: ProbedFolder, num_bytes: int, clients: int
) -> Iterator[Measurement]:
    direct = _takes_direct(Path(target.folder))
    by_fio = shutil.which("fio") is not None
    by = f"{clients} client{'s' if clients > 1 else ''}"
    size = f"{num_bytes // 2**20} MiB each" + ("" if direct else ", page cache")
    program = "fio" if by_fio else "own"
    kinds: tuple[tuple[FioKind, str, str, float, _Work], ...] = (
        ("write", "sequential write", "MB/s", 1e6, _write),
        ("read", "sequential read", "MB/s", 1e6, _read),
        ("randread", "random 4 KiB reads", "IOPS", 1.0, _read_randomly),
    )
    for kind, words, unit, scale, work in kinds:
        if by_fio:
            once = partial(_run_fio, kind, target.folder, num_bytes, clients, direct=direct)
        else:
            once = partial(_together, work, target.folder, num_bytes, clients, direct)
        once()  # warm-up
        values = tuple(once() / scale for _ in range(request.options.repeats))
        yield _made(request, f"{target.name}: {words}, {by}", f"{program}, {size}", unit, values)
    num_files = 100 if request.options.quick else 1000
    values = tuple(
        _together(_create, target.folder, num_files, clients, False)
        for _ in range(request.options.repeats)
    )
    settings = f"own, {num_files} empty files each"
    yield _made(request, f"{target.name}: files made, {by}", settings, "1/s", values)


def _made(
    request: ProbeRequest, name: str, settings: str, unit: str, values: tuple[float, ...]
) -> Measurement:
    return Measurement(
        part="storage", name=name, settings=settings, unit=unit, values=values, node=request.node
    )


def _takes_direct(folder: Path) -> bool:
    """Whether files there can be read without the page cache."""
    file = folder / "direct"
    try:
        os.close(os.open(file, os.O_CREAT | os.O_WRONLY | os.O_DIRECT, 0o600))
    except OSError:
        return False
    finally:
        file.unlink(missing_ok=True)
    return True


def _together(work: _Work, folder: str, amount: int, clients: int, direct: bool) -> float:
    """Return the work of all clients per second, from the first begin to the last end."""
    with multiprocessing.get_context("fork").Pool(clients) as pool:
        jobs = [(f"{folder}/client-{number}", amount, direct) for number in range(clients)]
        spans = pool.starmap(work, jobs, chunksize=1)
    seconds = max(end for _, _, end in spans) - min(start for _, start, _ in spans)
    return sum(done for done, _, _ in spans) / max(seconds, 1e-9)


def _write(file: str, num_bytes: int, direct: bool) -> _Span:
    """Write and flush a file in blocks."""
    with suppress(FileNotFoundError):
        os.unlink(file)
    block = mmap.mmap(-1, _BLOCK)  # aligned, as O_DIRECT requires
    block[:] = random.Random(file).randbytes(_BLOCK)
    flags = os.O_CREAT | os.O_WRONLY | (os.O_DIRECT if direct else 0)
    start = time.monotonic()
    target = os.open(file, flags, 0o600)
    try:
        for _ in range(num_bytes // _BLOCK):
            os.write(target, block)
        os.fsync(target)
        return num_bytes, start, time.monotonic()
    finally:
        os.close(target)


def _read(file: str, num_bytes: int, direct: bool) -> _Span:
    block = mmap.mmap(-1, _BLOCK)
    source = _opened(file, direct)
    try:
        start = time.monotonic()
        for offset in range(0, num_bytes, _BLOCK):
            os.preadv(source, [block], offset)
        return num_bytes, start, time.monotonic()
    finally:
        os.close(source)


def _read_randomly(file: str, num_bytes: int, direct: bool) -> _Span:
    page = mmap.mmap(-1, _PAGE)
    chosen = random.Random(file)
    source = _opened(file, direct)
    try:
        start, done = time.monotonic(), 0
        while done < min(_RANDOM_READS, num_bytes // _PAGE):
            os.preadv(source, [page], chosen.randrange(num_bytes // _PAGE) * _PAGE)
            done += 1
            if time.monotonic() - start > _RANDOM_S:
                break
        return done, start, time.monotonic()
    finally:
        os.close(source)


def _opened(file: str, direct: bool) -> int:
    """Open a file for reading, without its content in the page cache if possible."""
    source = os.open(file, os.O_RDONLY | (os.O_DIRECT if direct else 0))
    os.posix_fadvise(source, 0, 0, os.POSIX_FADV_DONTNEED)
    return source


def _create(file: str, num_files: int, _: bool) -> _Span:
    folder = Path(f"{file}-files")
    folder.mkdir()
    start = time.monotonic()
    for number in range(num_files):
        os.close(os.open(folder / str(number), os.O_CREAT | os.O_WRONLY, 0o600))
    span = num_files, start, time.monotonic()
    shutil.rmtree(folder)
    return span


def fio_command(
    kind: FioKind, folder: str, num_bytes: int, clients: int, *, direct: bool
) -> list[str]:
    """Return the command that writes or reads files of `num_bytes`, one for each client.

    Source: https://fio.readthedocs.io/en/latest/fio_doc.html
    """
    of_kind = {
        "write": ("--bs=1M", "--end_fsync=1"),
        "read": ("--bs=1M",),
        "randread": ("--bs=4k", f"--runtime={_RANDOM_S:.0f}", f"--io_size={min(num_bytes, 2**26)}"),
    }[kind]
    return [
        *("fio", f"--name={kind}", f"--rw={kind}", f"--directory={folder}"),
        *("--filename_format=client-$jobnum", f"--size={num_bytes}", f"--numjobs={clients}"),
        *(f"--direct={int(direct)}", "--ioengine=psync", "--fallocate=none", "--thread"),
        *("--group_reporting", "--output-format=json", *of_kind),
    ]


def rate_of(output: str, kind: FioKind) -> float:
    """Return bytes, for random reads operations, a second of fio; raise StepError if it failed."""
    try:
        (job,) = json.loads(output[output.index("{") :])["jobs"]
        error: int = job["error"]
        result: dict[str, Any] = job["write" if kind == "write" else "read"]
        rate = float(result["iops"] if kind == "randread" else result["bw_bytes"])
    except (ValueError, KeyError, TypeError) as wrong:
        raise StepError(f"fio's output cannot be read: {output[:300]!r}") from wrong
    if error:
        raise StepError(f"fio failed with error {error}")
    return rate


def _run_fio(kind: FioKind, folder: str, num_bytes: int, clients: int, *, direct: bool) -> float:
    """Run fio; return the rate, see `rate_of`; raise StepError if fio failed."""
    words = fio_command(kind, folder, num_bytes, clients, direct=direct)
    answer = answer_of(words, _FIO_TIMEOUT_S)
    if answer.code != 0:
        raise StepError(f"fio ended with code {answer.code}: {answer.error.strip()[-500:]}")
    return rate_of(answer.output, kind)
