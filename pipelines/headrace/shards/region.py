"""Address space for the files of a split: every shard is mapped into its own slot of it.

So samples of all shards are in one array, and one native call gathers them by their addresses.
No file stays open for a mapping.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ShardError
from headrace.shards.format import MEND

_SLOT_BYTES = 2 * 2**20  # a huge page, so that the kernel can map files in huge pages
_MAP_FIXED = 0x10  # on x86, ARM and POWER
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
]  # fmt: skip
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class Region:
    """Slots for files in one reservation of address space, which takes no memory.

    Safe before and after a fork; a process that unpickles it maps the files again. Returned arrays
    keep the reservation alive, but not the file in a slot. `num_bytes` are the sizes of the files.
    """

    def __init__(self, num_bytes: Sequence[int]) -> None:
        self._sizes = np.asarray(num_bytes, dtype=np.int64)
        self._slots = -(-self._sizes // _SLOT_BYTES) * _SLOT_BYTES
        self.starts: NDArray[np.int64] = np.cumsum(self._slots) - self._slots
        self._reserved = _Reserved(int(self._slots.sum()))
        self.content = self._reserved.window(0, int(self._slots.sum()), read_only=False)
        """All slots, `(num_bytes,) uint8`.

        Only bytes of a mapped file may be read, and nothing may be written; anything else crashes
        the process. It is marked as writable because PyTorch requires it.
        """

    def __getstate__(self) -> dict[str, object]:
        return {"sizes": self._sizes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["sizes"])  # type: ignore[misc]

    def map(self, slot: int, path: Path) -> NDArray[np.uint8]:
        """Map a file into its slot, replacing the previous one; `(num_bytes,) uint8`, read-only."""
        start, size = int(self.starts[slot]), int(self._sizes[slot])
        try:
            with path.open("rb") as file:
                found = os.fstat(file.fileno()).st_size
                if found != size:
                    raise ShardError(f"The shard {path} has {found:,} bytes, not {size:,}", MEND)
                if size:
                    place = self._reserved.address + start
                    flags = mmap.MAP_SHARED | _MAP_FIXED
                    _mapped(place, size, mmap.PROT_READ, flags, file.fileno())
        except FileNotFoundError:
            raise ShardError(f"The shard {path} is missing", MEND) from None
        except OSError as error:
            raise ShardError(f"The shard {path} cannot be mapped: {error}", MEND) from error
        return self._reserved.window(start, size, read_only=True)

    def release(self, slot: int) -> None:
        """Unmap the file of a slot; no thread may be reading it."""
        if self._slots[slot]:
            address = self._reserved.address + int(self.starts[slot])
            _reserve(address, int(self._slots[slot]))


class _Reserved:
    """A reservation; ends with the last reference to it."""

    def __init__(self, num_bytes: int) -> None:
        size = num_bytes + _SLOT_BYTES
        try:
            start = _reserve(None, size)
        except OSError as error:
            raise ShardError(
                f"{size / 2**30:,.1f} GiB of address space cannot be reserved: {error}",
                "Raise the limit of virtual memory: `ulimit -v unlimited`.",
            ) from error
        self.address = -(-start // _SLOT_BYTES) * _SLOT_BYTES
        ending = weakref.finalize(self, _libc.munmap, start, size)
        ending.atexit = False  # a thread may still be reading

    def window(self, start: int, num_bytes: int, *, read_only: bool) -> NDArray[np.uint8]:
        window = _Window()
        window.memory = self
        window.__array_interface__ = {
            "version": 3,
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (self.address + start, read_only),
        }
        return np.asarray(window)


class _Window:
    """The array interface of a part of the reservation, for NumPy."""

    memory: _Reserved
    __array_interface__: dict[str, object]


def _reserve(address: int | None, num_bytes: int) -> int:
    """Reserve address space without memory, which is not writable, anywhere or at an address."""
    anonymous = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return _mapped(address, num_bytes, 0, anonymous | (_MAP_FIXED if address else 0), -1)


def _mapped(address: int | None, num_bytes: int, access: int, flags: int, file: int) -> int:
    found = _libc.mmap(address, num_bytes, access, flags, file, 0)
    if found == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(found)
