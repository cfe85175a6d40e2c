"""Which file is read now, written to the disk in case that reading it ends this process.

For some damaged files libraries in C abort or never return, which no caller can catch.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from headrace.clusters.cancellable_call import wanted
from headrace.errors import WorkerLostError
from headrace.files.atomic import read_text
from headrace.processes.call_server import CallServer, answer_calls
from headrace.processes.children import Child, start_program
from headrace.processes.identity import begin_child
from headrace.processes.working_folder import python_module
from headrace.steps.mailbox import fault_of

_MOST_S, _LOOK_S, _BYTES_PER_S = 5.0, 0.5, 20e6
_here = threading.local()


class _Note:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = -1  # until something is read
        self.watched: threading.Event | None = None  # until something is limited
        self.until_s = math.inf  # on the clock of the time that its thread has computed

    def write(self, name: str) -> None:
        with suppress(OSError):  # a note only helps to name a fault
            if self.file < 0:
                self.file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.pwrite(self.file, os.fsencode(f"{name}\0"), 0)

    def watch(self) -> None:
        self.watched, clock = threading.Event(), time.pthread_getcpuclockid(threading.get_ident())
        watch = threading.Thread(target=self._look, args=(self.watched, clock), daemon=True)
        with suppress(RuntimeError):  # no memory is left for a thread
            watch.start()

    def _look(self, ends: threading.Event, clock: int) -> None:
        while not ends.wait(_LOOK_S):
            with suppress(OSError):  # its thread ends just now
                if time.clock_gettime(clock) > self.until_s:
                    os.kill(os.getpid(), signal.SIGXCPU)

    def end(self) -> None:
        if self.watched is not None:
            self.watched.set()
        if self.file >= 0:
            os.close(self.file)
        with suppress(OSError):
            self.path.unlink()


@contextmanager
def noting(path: Path) -> Iterator[None]:
    """Have `reading` in this thread write to a file, which is removed when the block ends."""
    before = getattr(_here, "note", None)
    _here.note = note = _Note(path)
    try:
        yield
    finally:
        _here.note = before
        note.end()


def reading(name: str) -> None:
    """Note what this thread reads from now on; empty for nothing. Takes a microsecond."""
    if note := getattr(_here, "note", None):
        note.write(name)


@contextmanager
def limited(num_bytes: int = 0) -> Iterator[None]:
    """End the process by SIGXCPU if the block, in `noting`, computes for too long.

    It has 5 seconds, and one more for each 20 MB that it reads, uncompressed.
    """
    note: _Note | None = getattr(_here, "note", None)
    if note is None:
        yield
        return
    if note.watched is None:
        note.watch()
    note.until_s = time.thread_time() + _MOST_S + num_bytes / _BYTES_PER_S
    try:
        yield
    finally:
        note.until_s = math.inf


def noted(work: Callable[[Any], object], task: object, note: Path) -> Any:
    """Call a function that reads; if an earlier process died as it read, in a program of its own.

    Raises:
        DataError: Reading a file ends any process.
    """
    if not read_text(note):
        return _noted(work, task, note)
    log = note.with_suffix(".log")
    program = Child(name="reading", command=python_module(__name__), log=log)
    process = CallServer(start_program)
    try:
        return process.call(program, (_noted, work, task, note), wanted)
    except WorkerLostError as lost:
        raise fault_of(note, lost.exit_code) or lost from lost
    finally:
        process.end()


def _noted(work: Callable[[Any], object], task: object, note: Path) -> object:
    with noting(note):
        return work(task)


if __name__ == "__main__":
    begin_child()
    answer_calls(lambda asked: asked[0](*asked[1:]))
