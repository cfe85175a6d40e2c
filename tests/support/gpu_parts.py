"""Parts of a GPU check that need none, and end in all the ways in which one can."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

from headrace_bench.gpu_rows import GpuRow, judged


def well(folder: Path) -> tuple[GpuRow, ...]:
    assert folder.is_dir()
    return (judged("rate", 0.99, "0.99 of it", at_least=0.98), judged("size", 3.0, "3 GB"))


def too_slow(folder: Path) -> tuple[GpuRow, ...]:
    return (judged("rate", 0.97, "0.97 of it", at_least=0.98),)


def raises(folder: Path) -> tuple[GpuRow, ...]:
    raise RuntimeError("CUDA error: an illegal memory access")


def crashes(folder: Path) -> tuple[GpuRow, ...]:
    print("about to fall", flush=True)
    os.kill(os.getpid(), signal.SIGBUS)
    return ()


def hangs(folder: Path) -> tuple[GpuRow, ...]:
    print("waiting for a GPU", flush=True)
    (folder / "begun").touch()
    threading.Event().wait()
    return ()


def leaves(folder: Path) -> tuple[GpuRow, ...]:
    os._exit(0)
