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
import time
import weakref

HUGE_PAGE = 2 * 2**20
"""Bytes of a huge page."""

_COLLAPSE = 25
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_FAILED = ctypes.c_void_p(-1).value
_FOR_NOW = (errno.ENOMEM, errno.EAGAIN, errno.EBUSY)
_SLOW_S = 0.02  # the kernel has to move other memory out of the way, or waits for a processor
_LEAST_PAUSE, _MOST_PAUSE = 4, 64  # pages that are left small before it is tried again

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
]  # fmt: skip
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class HugePages:
    """Makes a file that is being written lie in huge pages, as far as that is possible.

    Args:
        file: File descriptor, open for writing and reading.
    """

    def __init__(self, file: int) -> None:
        self._file = file
        self.is_usable = hasattr(mmap, "MADV_HUGEPAGE")
        """Whether it works for files like this one; it is not tried again when it does not."""
        self._pause = _LEAST_PAUSE
        self._num_left_out = 0
        self._window = _Window() if self.is_usable else None

    def prepare(self, start: int) -> None:
        """Take a huge page for the bytes from `start` on; the file then ends behind it.

        Args:
            start: Place in the file, a multiple of `HUGE_PAGE`; nothing lies there or behind so
                far.

        Raises:
            OSError: There is no room (`errno.ENOSPC`).
        """
        if self._window is None or not self.is_usable:
            return
        if self._num_left_out > 0:
            self._num_left_out -= 1
            return
        before = time.monotonic()
        if os.pwrite(self._file, b"\0", start) != 1:  # a page must be there to be made a huge one
            return
        os.ftruncate(self._file, start + HUGE_PAGE)
        error = self._window.collapse(self._file, start)
        if error not in (0, *_FOR_NOW):
            self.is_usable = False
        elif error or time.monotonic() - before > _SLOW_S:
            self._num_left_out = self._pause
            self._pause = min(2 * self._pause, _MOST_PAUSE)
        else:
            self._pause = _LEAST_PAUSE


class _Window:
    """Address space for one huge page."""

    def __init__(self) -> None:
        size = 2 * HUGE_PAGE
        anonymous = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        start = _libc.mmap(None, size, 0, anonymous, -1, 0)
        self._address = None if start == _FAILED else -(-start // HUGE_PAGE) * HUGE_PAGE
        if self._address is not None:
            weakref.finalize(self, _libc.munmap, start, size)

    def collapse(self, file: int, start: int) -> int:
        """Let 2 MiB of a file from `start` on lie in one page.

        Returns:
            0 when they do, else the error's number (`errno`).
        """
        if self._address is None:
            return errno.EINVAL
        flags = mmap.MAP_SHARED | _MAP_FIXED
        found = _libc.mmap(self._address, HUGE_PAGE, mmap.PROT_READ, flags, file, start)
        if found == _FAILED:
            return ctypes.get_errno()
        failed = _libc.madvise(self._address, HUGE_PAGE, _COLLAPSE)
        return ctypes.get_errno() if failed else 0
