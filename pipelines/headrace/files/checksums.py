"""XXH3 checksums of files, and copies that are checksummed on the way."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import xxhash

HUGE_PAGE = 2 * 2**20
"""Bytes of a huge page."""

AT_ONCE = 8
"""Pages that are taken at once, at most: the kernel looks at all processors each time."""

_COLLAPSE = 25
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_FAILED = ctypes.c_void_p(-1).value
_FOR_NOW = (errno.ENOMEM, errno.EAGAIN, errno.EBUSY)
_LEAST_PAUSE, _MOST_PAUSE = 8, 256  # pages that are left small before it is tried again

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
]  # fmt: skip
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def reserve(address: int | None, num_bytes: int) -> int:
    """Reserve address space, which holds no memory, anywhere or in place of what is there."""
    anonymous = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    return _mapped(address, num_bytes, 0, anonymous | (_MAP_FIXED if address else 0), (-1, 0))


def map_file(address: int, num_bytes: int, file: int, start: int = 0) -> None:
    """Map part of an open file to an address, read-only."""
    _mapped(address, num_bytes, mmap.PROT_READ, mmap.MAP_SHARED | _MAP_FIXED, (file, start))


def _mapped(
    address: int | None, num_bytes: int, access: int, flags: int, place: tuple[int, int]
) -> int:
    found = libc.mmap(address, num_bytes, access, flags, *place)
    if found == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(found)


class BackOff:
    """How long huge pages are done without when one took `slow_s`; for all files, and threads.

    They are slow when the kernel must move other memory out of the way first, or when a virtual
    machine gets its memory from the host anew.
    """

    def __init__(self, slow_s: float = 0.02) -> None:
        self._slow_s = slow_s
        self._pause = _LEAST_PAUSE
        self._num_left_out = 0
        self._lock = threading.Lock()

    def grants(self, num_pages: int) -> int:
        """How many of so many pages to try now: all, one to see how it goes, or none."""
        with self._lock:
            if self._num_left_out > 0:
                self._num_left_out -= num_pages
                return 0
            return num_pages if self._pause == _LEAST_PAUSE else 1

    def took(self, num_pages: int, seconds: float, *, failed: bool) -> None:
        """Take in how it went."""
        with self._lock:
            if failed or seconds > num_pages * self._slow_s:
                self._num_left_out = self._pause
                self._pause = min(2 * self._pause, _MOST_PAUSE)
            else:
                self._pause = max(self._pause // 2, _LEAST_PAUSE)


_BACK_OFF = BackOff(slow_s=0.001)  # copying 2 MiB to small pages takes half of that

CHUNK_BYTES = HUGE_PAGE
"""Bytes read at once, a huge page: they stay in a processor's cache until they are written."""


def file_xxh3_128(path: Path, tick: Callable[[int], None] | None = None) -> str:
    """XXH3 of a whole file, 128 bits, 32 hexadecimal digits.

    `tick` is called with the bytes of every chunk read, and may raise to stop.
    """
    state = xxhash.xxh3_128()
    with path.open("rb", buffering=0) as file:
        for chunk in _chunks(file):
            state.update(chunk)
            if tick is not None:
                tick(len(chunk))
    return state.hexdigest()


def copy_verified(
    source: Path, target: Path, tick: Callable[[int], None] | None = None
) -> tuple[int, str]:
    """Copy a file and checksum the bytes on the way; `target` is durable on return.

    The caller compares the checksum with the one it expects and gives `target` its final name. A
    copy that fails leaves no `target` behind. `tick` is called with the bytes of every chunk
    copied, and may raise to stop.

    Returns:
        Bytes copied and their XXH3 checksum, 128 bits, hexadecimal.
    """
    with source.open("rb", buffering=0) as reader, _Writing(target, tick) as writing:
        chunks = _chunks(reader)
        writing.take_pages(reader, chunks)
        for chunk in chunks:
            writing.write(chunk)
        return writing.finish()


def write_verified(
    chunks: Iterable[memoryview], target: Path, tick: Callable[[int], None] | None = None
) -> tuple[int, str]:
    """`copy_verified` of chunks, each of which is used before the next one is asked for."""
    with _Writing(target, tick) as writing:
        for chunk in chunks:
            if len(chunk) == HUGE_PAGE and writing.num_bytes % HUGE_PAGE == 0:
                writing.pages.prepare(writing.num_bytes)
            writing.write(chunk)
        return writing.finish()


class _Writing:
    """A file that is being written and checksummed; none is left when the block raises."""

    def __init__(self, target: Path, tick: Callable[[int], None] | None) -> None:
        self.num_bytes = 0
        self._target = target
        self._tick = tick
        self._file = target.open("w+b", buffering=0)
        self._state = xxhash.xxh3_128()
        self.pages = HugePages(self._file.fileno(), _BACK_OFF)

    def __enter__(self) -> _Writing:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._file.close()
        if kind is not None:
            self._target.unlink(missing_ok=True)

    def write(self, chunk: memoryview) -> None:
        self._state.update(chunk)
        written = 0
        while written < len(chunk):
            written += self._file.write(chunk[written:])
        self._moved(len(chunk))

    def take_pages(self, reader: BinaryIO, chunks: Iterator[memoryview]) -> None:
        """Copy what fills huge pages inside the kernel, and checksum it where it then lies.

        That is one pass less than by a buffer, which is taken while there are no huge pages.
        `chunks` reads on in the file to copy.
        """
        size = os.fstat(reader.fileno()).st_size
        while num_pages := min((size - self.num_bytes) // HUGE_PAGE, AT_ONCE):
            start, pages = self.num_bytes, self.pages.prepare(self.num_bytes, num_pages)
            if pages is not None:
                num_pages = len(pages) // HUGE_PAGE
            for number in range(num_pages):
                if pages is None:
                    self.write(next(chunks, memoryview(b"")))
                else:
                    self._splice(reader, pages[number * HUGE_PAGE :][:HUGE_PAGE])
                if self.num_bytes != start + (number + 1) * HUGE_PAGE:
                    return  # a short read, or the file has become shorter
            if not self.pages.is_usable:
                return

    def finish(self) -> tuple[int, str]:
        if os.fstat(self._file.fileno()).st_size != self.num_bytes:
            self._file.truncate(self.num_bytes)  # less has come than there was room made for
        os.fsync(self._file.fileno())
        return self.num_bytes, self._state.hexdigest()

    def _splice(self, reader: BinaryIO, page: memoryview) -> None:
        moved, now = 0, 1
        while now and moved < len(page):
            now = _sendfile(self._file, reader, len(page) - moved)
            moved += now
        self._state.update(page[:moved])
        self._moved(moved)

    def _moved(self, num_bytes: int) -> None:
        self.num_bytes += num_bytes
        if self._tick is not None and num_bytes:
            self._tick(num_bytes)


def _chunks(file: BinaryIO) -> Iterator[memoryview]:
    chunk = chunk_buffer()
    while num_bytes := file.readinto(chunk):  # type: ignore[attr-defined]
        yield chunk[:num_bytes]


def chunk_buffer() -> memoryview:
    """Memory for one chunk, `(CHUNK_BYTES,) uint8`, in a huge page where the kernel has them."""
    pages = mmap.mmap(-1, CHUNK_BYTES)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without huge pages
            pages.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(pages)


def _sendfile(writer: BinaryIO, reader: BinaryIO, num_bytes: int) -> int:
    """Bytes that were moved inside the kernel; 0 at the end, and where files have no such way."""
    try:
        return os.sendfile(writer.fileno(), reader.fileno(), None, num_bytes)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS):
            raise
        return 0


class HugePages:
    """Makes a file in memory (tmpfs), open for reading and writing, lie in pages of 2 MiB.

    Writing such a file takes a third of the time, for the kernel clears and enters one page at a
    time; reading samples of a few KB from all over it is faster by a fifth. It needs Linux 6.1 and
    a mapping at a multiple of 2 MiB (`madvise(2)`, MADV_COLLAPSE); no setting of the system, and no
    right. Where it does not work, files lie in small pages.
    """

    def __init__(self, file: int, back_off: BackOff | None = None) -> None:
        self._file = file
        self._back_off = back_off or BackOff()
        self.is_usable = hasattr(mmap, "MADV_HUGEPAGE")
        """Whether it works for files like this one; it is not tried again when it does not."""
        self._window = _Window() if self.is_usable else None

    def prepare(self, start: int, num_pages: int = 1) -> memoryview | None:
        """Take huge pages, `AT_ONCE` at most, from `start` on, where nothing lies so far.

        The file then ends behind them. Gives what lies there, to be read until the next call, in
        one page or all of them, `(num_bytes,) uint8`; None when it lies in small pages.
        """
        if self._window is None or not self.is_usable:
            return None
        num_pages = self._back_off.grants(num_pages)
        if not num_pages:
            return None
        before = time.monotonic()
        for page in range(num_pages):  # a page must be there to be made a huge one
            if os.pwrite(self._file, b"\0", start + page * HUGE_PAGE) != 1:
                return None
        os.ftruncate(self._file, start + num_pages * HUGE_PAGE)
        error = self._window.collapse(self._file, start, num_pages)
        self.is_usable = error in (0, *_FOR_NOW)
        self._back_off.took(num_pages, time.monotonic() - before, failed=error != 0)
        return None if error else self._window.content(num_pages)


class _Window:
    def __init__(self) -> None:
        size, self._address = (AT_ONCE + 1) * HUGE_PAGE, 0
        with suppress(OSError):
            start = reserve(None, size)
            self._address = -(-start // HUGE_PAGE) * HUGE_PAGE
            weakref.finalize(self, libc.munmap, start, size)

    def collapse(self, file: int, start: int, num_pages: int) -> int:
        """Let bytes of a file lie in huge pages, which are mapped here; gives 0 or `errno`."""
        if not self._address:
            return errno.EINVAL
        size = num_pages * HUGE_PAGE
        try:
            map_file(self._address, size, file, start)
        except OSError as error:
            return error.errno or errno.EINVAL
        return ctypes.get_errno() if libc.madvise(self._address, size, _COLLAPSE) else 0

    def content(self, num_pages: int) -> memoryview:
        """What is mapped here; nobody may look at it when the window has gone."""
        size = num_pages * HUGE_PAGE
        return memoryview((ctypes.c_uint8 * size).from_address(self._address)).cast("B")
