"""JPEG files decoded by libjpeg-turbo, without the interpreter's lock: threads use all cores.

simplejpeg and Pillow wrap the same decoder with the same settings, so their pixels are equal. What
simplejpeg does not take, or reports a fault of, is left to Pillow, which is always there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

MAX_PIXELS = 89_478_485
"""Pixels beyond which an image is taken for a decompression bomb, as by Pillow's warning."""

_START, _SCAN = b"\xff\xd8", 0xDA
_FRAMES = (0xC0, 0xC1, 0xC2)  # baseline, extended, progressive; Huffman coded
_SKIPPED = frozenset((0xC4, 0xDB, 0xDD, 0xFE, *range(0xE0, 0xF0)))  # tables, comments, APP0 to 15
_MAY_TURN, _MAY_HOLD_MORE = 0xE1, 0xE2  # APP1: EXIF, XMP; APP2: colour profile, several pictures
_PHOTOSHOP, _BLOCK = 0xED, b"8BIM"
_LEAST_BYTES = {0xE0: (b"JFIF", 7), 0xE2: (b"ICC_PROFILE\0", 14), 0xEE: (b"Adobe", 7)}
"""How segments begin that Pillow refuses if they are shorter, though they do not count."""

_COLOURS = {1: "GRAY", 3: "RGB"}


@dataclass(frozen=True, kw_only=True)
class Header:
    """What the segments before the first scan say."""

    height: int
    width: int
    channels: int
    """1 for grey, 3 for colours."""
    may_turn: bool
    """Whether a segment may say how to turn the image."""


def read_header(content: bytes) -> Header | None:
    """Return the header of a JPEG file of 8 bits, grey or colours; None for any other content."""
    at, frame, may_turn = len(_START), None, False
    if not content.startswith(_START):
        return None
    while content[at : at + 1] == b"\xff" and at + 4 <= len(content):
        marker, size = content[at + 1], int.from_bytes(content[at + 2 : at + 4], "big")
        if marker == _SCAN:
            return _header(frame, may_turn) if frame else None
        segment = content[at + 4 : at + 2 + size]
        if marker in _FRAMES and frame is None:
            frame = segment
        elif marker not in _SKIPPED or _is_for_pillow(marker, segment):
            return None
        may_turn |= marker == _MAY_TURN
        at += 2 + max(size, 2)
    return None


def decode(content: bytes, header: Header, shrink: int = 1) -> NDArray[np.uint8] | None:
    """Decode a file to `(height, width)` or `(height, width, 3)` pixels, not turned.

    `shrink` 2, 4 or 8 gives one pixel for so many in each direction, rounded up. None if simplejpeg
    is not installed or reports a fault.
    """
    library = _simplejpeg()
    if library is None:
        return None
    least = -(-header.height // shrink), -(-header.width // shrink)
    try:
        pixels: NDArray[np.uint8] = library.decode_jpeg(
            content,
            _COLOURS[header.channels],
            min_height=least[0] if shrink > 1 else 0,
            min_width=least[1] if shrink > 1 else 0,
            min_factor=shrink,
        )
    except (ValueError, RuntimeError, MemoryError):
        return None  # Pillow says what is wrong, or takes it
    return pixels[:, :, 0] if header.channels == 1 else pixels


def _header(frame: bytes, may_turn: bool) -> Header | None:
    if len(frame) < 6 or frame[0] != 8 or frame[5] not in _COLOURS:
        return None
    height, width = int.from_bytes(frame[1:3], "big"), int.from_bytes(frame[3:5], "big")
    if not 0 < height * width <= MAX_PIXELS:
        return None
    return Header(height=height, width=width, channels=frame[5], may_turn=may_turn)


def _is_for_pillow(marker: int, segment: bytes) -> bool:
    """Whether a segment may hold several pictures, or Pillow refuses it."""
    if marker == _PHOTOSHOP:  # its last block ends where its name has to begin
        return segment[-6:-2] == _BLOCK
    start, least = _LEAST_BYTES.get(marker, (b"", 0))
    return len(segment) < least if segment.startswith(start) else marker == _MAY_HOLD_MORE


@cache
def _simplejpeg() -> ModuleType | None:
    try:
        import simplejpeg
    except ImportError:
        return None
    module: ModuleType = simplejpeg
    return module
