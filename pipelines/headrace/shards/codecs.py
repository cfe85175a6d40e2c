"""Decompression of chunks by the libraries of hdf5plugin, without HDF5.

HDF5 lets one thread in at a time; these functions run in all threads at once, without Python's
lock. Sources of the formats: the HDF5 filters 32015 (Zstandard), 32004 (LZ4) and 32001 (Blosc).
"""

from __future__ import annotations

import ctypes
import struct
import threading
import weakref
from collections.abc import Callable
from functools import cache
from pathlib import Path

Decompress = Callable[[int, int, int, int], bool]
"""Takes address and bytes of a chunk, address and bytes of the room for it; whether it filled the
room."""

_LZ4_HEADER = struct.Struct(">QI")
_LZ4_SIZE = struct.Struct(">I")
_POINTER, _SIZE, _INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int


@cache
def decompressor(filter_id: int) -> Decompress | None:
    """What decompresses chunks of an HDF5 filter; None when only HDF5 can.

    Args:
        filter_id: The registered number of the filter.
    """
    make = {32015: _zstd, 32004: _lz4, 32001: _blosc}.get(filter_id)
    try:
        return make() if make is not None else None
    except (OSError, AttributeError):  # a build of hdf5plugin that keeps its functions to itself
        return None


def _zstd() -> Decompress:
    library = _library("zstd")
    function = library.ZSTD_decompressDCtx
    function.argtypes, function.restype = (_POINTER, _POINTER, _SIZE, _POINTER, _SIZE), _SIZE
    tables = threading.local()  # making them takes as long as decompressing 4 KiB

    def decompress(chunk: int, num_bytes: int, room: int, room_bytes: int) -> bool:
        if not hasattr(tables, "own"):
            tables.own = _ZstdTables(library)
        done = function(tables.own.address, room, room_bytes, chunk, num_bytes)
        return bool(done == room_bytes)

    return decompress


class _ZstdTables:
    """What Zstandard works with; of one thread, and gone with it."""

    def __init__(self, library: ctypes.CDLL) -> None:
        library.ZSTD_createDCtx.restype = _POINTER
        library.ZSTD_freeDCtx.argtypes = (_POINTER,)
        self.address = library.ZSTD_createDCtx()
        if not self.address:
            raise MemoryError("no room for the tables of Zstandard")
        weakref.finalize(self, library.ZSTD_freeDCtx, self.address)


def _lz4() -> Decompress:
    """Big-endian: bytes in all, bytes of a block; then each block behind its compressed bytes."""
    function = _library("lz4").LZ4_decompress_safe
    function.argtypes, function.restype = (_POINTER, _POINTER, _INT, _INT), _INT

    def decompress(chunk: int, num_bytes: int, room: int, room_bytes: int) -> bool:
        if num_bytes < _LZ4_HEADER.size:
            return False
        total, block_bytes = _LZ4_HEADER.unpack(ctypes.string_at(chunk, _LZ4_HEADER.size))
        at, end, done = chunk + _LZ4_HEADER.size, chunk + num_bytes, 0
        while done < room_bytes and total == room_bytes and block_bytes:
            size = min(block_bytes, room_bytes - done)
            if at + _LZ4_SIZE.size > end:
                return False
            (packed,) = _LZ4_SIZE.unpack(ctypes.string_at(at, _LZ4_SIZE.size))
            at += _LZ4_SIZE.size
            if at + packed > end:
                return False
            if packed == size:  # kept as it is, since it did not become smaller
                ctypes.memmove(room + done, at, size)
            elif function(at, room + done, packed, size) != size:
                return False
            at, done = at + packed, done + size
        return bool(done == room_bytes)

    return decompress


def _blosc() -> Decompress:
    library = _library("blosc")
    validate, function = library.blosc_cbuffer_validate, library.blosc_decompress_ctx
    validate.argtypes, validate.restype = (_POINTER, _SIZE, ctypes.POINTER(_SIZE)), _INT
    function.argtypes, function.restype = (_POINTER, _POINTER, _SIZE, _INT), _INT

    def decompress(chunk: int, num_bytes: int, room: int, room_bytes: int) -> bool:
        total = _SIZE()
        if validate(chunk, num_bytes, ctypes.byref(total)) < 0 or total.value != room_bytes:
            return False
        return bool(function(chunk, room, room_bytes, 1) == room_bytes)

    return decompress


def _library(name: str) -> ctypes.CDLL:
    import hdf5plugin

    found = sorted(Path(hdf5plugin.PLUGIN_PATH).glob(f"libh5{name}.*"))
    return ctypes.CDLL(str(found[0])) if found else ctypes.CDLL(f"libh5{name}.so")
