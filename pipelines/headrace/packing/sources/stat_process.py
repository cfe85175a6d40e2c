"""A second process that looks at files while this one goes on; Python's threads cannot.

Looking at a file is a system call of about a microsecond and as much around it, for which a thread
needs Python's lock.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headrace.packing.sources import stat_program
from headrace.packing.sources.stat_program import GREETING, NUMBER_BYTES

Part = tuple[Sequence[str], Sequence[int], Sequence[int]]
"""Paths, bytes and times (nanoseconds since the epoch) of some files."""

_MAX_WAITING = 2  # requests on the way; so many fit into a pipe
_END_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Files:
    """Files of one folder that are to be looked at."""

    folder: str
    """The folder's path with a slash at its end."""
    paths: Sequence[str]
    """What each is called in the listing."""
    entries: Sequence[os.DirEntry[str]]
    """The files; looking at one needs the folder that was listed to be open."""

    def part(self) -> Part:
        """Look at them.

        Raises:
            OSError: One cannot be looked at.
        """
        return self._of([entry.stat() for entry in self.entries])

    def part_by_name(self) -> Part:
        """As `part`, when the folder is open no more."""
        return self._of([os.stat(self.folder + entry.name) for entry in self.entries])

    def _of(self, found: Sequence[os.stat_result]) -> Part:
        sizes = [status.st_size for status in found]
        return self.paths, sizes, [status.st_mtime_ns for status in found]


class StatProcess:
    """The process, started at once; it ends with this one, or when it is closed."""

    def __init__(self) -> None:
        program = [sys.executable, "-I", "-S", str(Path(stat_program.__file__))]
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(program, stdin=theirs.fileno(), stdout=theirs.fileno())
        self._waiting: deque[Files] = deque()
        self._works = True
        self._has_greeted = False

    @property
    def is_ready(self) -> bool:
        """Whether it has started, so that nobody waits for that."""
        if not self._has_greeted and self._has_answer():
            self._greeted()
        return self._has_greeted and self._works

    def ask(self, files: Files) -> bool:
        """Let the process look at files; False when it has enough to do, or has ended."""
        if not self._works or len(self._waiting) >= _MAX_WAITING:
            return False
        names = "\0".join([files.folder, *(entry.name for entry in files.entries)])
        message = os.fsencode(names)
        try:
            self._socket.sendall(len(message).to_bytes(NUMBER_BYTES, "little") + message)
        except ConnectionError:
            self._works = False
            return False
        self._waiting.append(files)
        return True

    def answers(self, *, wait: bool) -> Iterator[Part]:
        """Files that were looked at.

        Args:
            wait: Whether to wait for all; else only those that are there are given.

        Raises:
            OSError: A file cannot be looked at.
        """
        while self._waiting and (wait or self._has_answer()):
            files = self._waiting.popleft()
            found = self._answer()
            if len(found) == 2 * len(files.paths):
                yield files.paths, found[::2], found[1::2]
            else:  # this process says what is wrong, or does it alone
                yield files.part_by_name()

    def close(self) -> None:
        """End the process, whatever it does: it only looks."""
        self._socket.close()
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):  # a file system that hangs
            self._process.wait(_END_WITHIN_S)

    def _has_answer(self) -> bool:
        if not self._works:
            return True
        poll = select.poll()  # `select.select` refuses descriptors above 1023
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def _answer(self) -> array[int]:
        found = array("q")
        if not self._has_greeted:
            self._greeted()
        header = self._received(NUMBER_BYTES)
        content = self._received(int.from_bytes(header, "little"))
        if len(content) % found.itemsize == 0:
            found.frombytes(content)
        return found

    def _greeted(self) -> None:
        self._has_greeted = len(self._received(len(GREETING))) == len(GREETING)

    def _received(self, num_bytes: int) -> bytes:
        """So many bytes; fewer when the process has ended."""
        content = b""
        while self._works and len(content) < num_bytes:
            try:
                more = self._socket.recv(num_bytes - len(content))
            except ConnectionError:
                more = b""
            self._works = bool(more)
            content += more
        return content
