"""Files in memory (tmpfs) in huge pages: one page of 2 MiB in place of 512 small ones.

Writing such a file takes a third of the time, for the kernel clears and enters one page at a time;
reading samples of a few KB from all over it is faster by a fifth, for processors keep the places of
few pages only. It needs Linux 6.1 and a mapping at a multiple of 2 MiB (`madvise(2)`,
MADV_COLLAPSE); no setting of the system, and no right. Where it does not work, files lie in small
pages; when it is slow or fails for want of free memory in one piece, the next pages are small ones.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
import time
import weakref

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

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
]  # fmt: skip
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class BackOff:
    """How long huge pages are done without when they were slow; for all files, and threads.

    They are when the kernel must move other memory out of the way first, or when a virtual machine
    gets its memory from the host anew.

    Args:
        slow_s: Seconds a page that are too long.
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


class HugePages:
    """Makes a file, open for reading and writing, lie in huge pages as far as possible."""

    def __init__(self, file: int, back_off: BackOff | None = None) -> None:
        self._file = file
        self._back_off = back_off or BackOff()
        self.is_usable = hasattr(mmap, "MADV_HUGEPAGE")
        """Whether it works for files like this one; it is not tried again when it does not."""
        self._window = _Window() if self.is_usable else None

    def prepare(self, start: int, num_pages: int = 1) -> memoryview | None:
        """Take huge pages for the bytes from `start` on; the file then ends behind them.

        Args:
            start: A multiple of `HUGE_PAGE`; nothing lies there or behind so far.
            num_pages: Pages, `AT_ONCE` at most.

        Returns:
            What lies there, to be read until the next call, in one page or all of them,
            `(num_bytes,) uint8`; None when it lies in small pages.
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
    """Address space for huge pages."""

    def __init__(self) -> None:
        size = (AT_ONCE + 1) * HUGE_PAGE
        anonymous = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        start = _libc.mmap(None, size, 0, anonymous, -1, 0)
        self._address = None if start == _FAILED else -(-start // HUGE_PAGE) * HUGE_PAGE
        if self._address is not None:
            weakref.finalize(self, _libc.munmap, start, size)

    def collapse(self, file: int, start: int, num_pages: int) -> int:
        """Let bytes of a file lie in huge pages, which are mapped here; gives 0 or `errno`."""
        if self._address is None:
            return errno.EINVAL
        size, flags = num_pages * HUGE_PAGE, mmap.MAP_SHARED | _MAP_FIXED
        found = _libc.mmap(self._address, size, mmap.PROT_READ, flags, file, start)
        if found == _FAILED:
            return ctypes.get_errno()
        failed = _libc.madvise(self._address, size, _COLLAPSE)
        return ctypes.get_errno() if failed else 0

    def content(self, num_pages: int) -> memoryview:
        """What is mapped here; nobody may look at it when the window has gone."""
        size = num_pages * HUGE_PAGE
        return memoryview((ctypes.c_uint8 * size).from_address(self._address or 0)).cast("B")
