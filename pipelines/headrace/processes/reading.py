"""The file that is read now, on the disk in case that reading it ends this process.

For some damaged files libraries in C abort or never return, which no caller can catch.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from headrace.errors import DataError

_FAULTS = (
    signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGXCPU,
)  # fmt: skip
_MOST_S, _LOOK_S = 5.0, 0.5
_here = threading.local()


@dataclass
class _Note:
    file: int
    ends: threading.Event = field(default_factory=threading.Event)
    until_s: float = math.inf
    """On the clock of the time that its thread has computed."""

    def watch(self, clock: int) -> None:
        while not self.ends.wait(_LOOK_S):
            with suppress(OSError):  # its thread ends just now
                if time.clock_gettime(clock) > self.until_s:
                    os.kill(os.getpid(), signal.SIGXCPU)


@contextmanager
def noting(path: Path) -> Iterator[None]:
    """Have `reading` in this thread write to a file, which is removed when the block ends."""
    before = getattr(_here, "note", None)
    with path.open("wb", buffering=0) as file:
        _here.note = note = _Note(file.fileno())
        clock = time.pthread_getcpuclockid(threading.get_ident())
        threading.Thread(target=note.watch, args=(clock,), daemon=True).start()
        try:
            yield
        finally:
            note.ends.set()
            _here.note = before
            path.unlink(missing_ok=True)


def reading(name: str) -> None:
    """Note what this thread reads from now on; empty for nothing. Takes a microsecond."""
    if note := getattr(_here, "note", None):
        os.pwrite(note.file, os.fsencode(f"{name}\0"), 0)


@contextmanager
def limited() -> Iterator[None]:
    """End the process by SIGXCPU if the block, in `noting`, computes for more than 5 seconds."""
    note = getattr(_here, "note", None) or _Note(-1)
    note.until_s = time.thread_time() + _MOST_S
    try:
        yield
    finally:
        note.until_s = math.inf


def fault_of(path: Path, code: int) -> DataError | None:
    """Return the error for the file at which a process ended with an exit code, None for no file.

    Args:
        path: That of `noting`.
        code: Minus the number of a signal; others than those of faults in code have no file.
    """
    name = path.read_text(errors="replace").partition("\0")[0] if path.is_file() else ""
    if -code not in _FAULTS or not name:
        return None
    fault = signal.Signals(-code)
    why = f" after {_MOST_S:g} s of computing" if fault is signal.SIGXCPU else ""
    return DataError(
        f"'{name}' is damaged, or what reads it has a fault: reading it ended the process by "
        f"{fault.name}{why}",
        "Write it again, or leave it out: move it elsewhere, or narrow dataset.include.",
    )
