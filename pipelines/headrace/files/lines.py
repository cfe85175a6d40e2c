"""Append-only files of JSON lines: one write per line, readable after a writer was killed."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from headrace.files.atomic import read_bytes
from headrace.files.sharing import is_shared, open_to_read, private_mode

logger = logging.getLogger(__name__)

Record = TypeVar("Record", bound=BaseModel)

_NEW_LINE = b"\n"
_LAST_BYTES = 2**14


def append_line(path: Path, line: str) -> None:
    """Append a line in one write; end a torn line before it, so that no other is lost."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    if is_shared(path.parent):  # a link could be the other account's
        flags |= os.O_NOFOLLOW
    handle = os.open(path, flags, private_mode(path.parent))
    try:
        size = os.fstat(handle).st_size
        is_torn = size > 0 and os.pread(handle, 1, size - 1) != _NEW_LINE
        os.write(handle, (_NEW_LINE if is_torn else b"") + line.encode() + _NEW_LINE)
    finally:
        os.close(handle)


def read_lines(path: Path, kind: type[Record]) -> list[Record]:
    """Return all whole lines of a file as records; empty if the file does not exist."""
    found: list[Record] = []
    torn = 0
    for line in (read_bytes(path) or b"").splitlines():
        try:
            found.append(kind.model_validate_json(line))
        except ValidationError:
            torn += 1
    if torn:
        logger.info("%s has %d lines that are not a whole %s", path, torn, kind.__name__)
    return found


def whole_lines(path: Path, begin: int, most_bytes: int = -1) -> tuple[list[bytes], int]:
    """Return whole lines from a byte offset on, and their end; empty if the file is missing."""
    try:
        with open_to_read(path) as file:
            file.seek(begin)
            text = file.read(most_bytes)
    except FileNotFoundError:
        return [], begin
    whole = text[: text.rfind(_NEW_LINE) + 1]
    return whole.splitlines(), begin + len(whole)


def read_last_line(path: Path, kind: type[Record]) -> Record | None:
    """Return the last whole line of a file of short lines; None if there is none."""
    try:
        with open_to_read(path) as file:
            file.seek(max(os.fstat(file.fileno()).st_size - _LAST_BYTES, 0))
            lines = file.read().splitlines()
    except FileNotFoundError:
        return None
    for line in reversed(lines):
        with suppress(ValidationError):
            return kind.model_validate_json(line)
    return None
