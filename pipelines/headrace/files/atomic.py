"""Files that are either complete or absent: unique temporary name, fsync, replace."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, TypeVar

from pydantic import BaseModel

from headrace.errors import StepError
from headrace.files.machine import is_full, storage_error
from headrace.files.sharing import open_to_read, private_mode

logger = logging.getLogger(__name__)

Record = TypeVar("Record", bound=BaseModel)

PRIVATE = 0o600
"""Mode of a file that only its owner may read; see `sharing` for folders of two accounts."""

AS_USUAL = 0o666
"""Mode of a file that all may read, within the user's umask."""

UNFINISHED = re.compile(r"\..+\.[0-9a-f]{12}")
"""Names of files that do not have their final name yet."""

_MOST_STALE = 5


@contextmanager
def replacing(path: Path, mode: int = PRIVATE) -> Iterator[BinaryIO]:
    """Write the file that replaces `path` if the block ends without an error.

    A reader finds the old or the new file, never a part. Folders above it are made; `mode` sets
    who may read it. The `filename` of an `OSError` is the file that was to be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if mode == PRIVATE:
        mode = private_mode(path.parent)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        with suppress(OSError):  # the first error is the cause
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, temporary, str(temporary)):
            error.filename = str(path)
        raise


def write_bytes(path: Path, content: bytes, mode: int = PRIVATE) -> None:
    """Replace `path` by `content`; see `replacing`."""
    with replacing(path, mode) as file:
        file.write(content)


def write_text(path: Path, content: str) -> None:
    """Replace `path` by UTF-8 text."""
    write_bytes(path, content.encode())


def write_json(path: Path, content: object) -> None:
    """Replace `path` by a JSON value."""
    write_text(path, json.dumps(content, indent=1, sort_keys=True) + "\n")


def write_record(path: Path, record: BaseModel) -> None:
    """Replace `path` by a record as JSON, with the keys that users write (`_target_`)."""
    write_text(path, record.model_dump_json(indent=1, by_alias=True) + "\n")


def read_bytes(path: Path) -> bytes | None:
    """Return the content of a file that others may be replacing; None if it does not exist.

    An NFS server drops a replaced file while a client reads it (ESTALE); opening it again gives
    the new one.
    """
    left = _MOST_STALE
    while True:
        try:
            with open_to_read(path) as file:
                return file.read()
        except OSError as error:
            is_gone = isinstance(error, FileNotFoundError)
            if is_gone and not is_there(path):
                return None
            if not left or not (is_gone or error.errno == errno.ESTALE):
                raise
        left -= 1


def is_there(path: Path) -> bool:
    """Whether a file or folder exists, even if another machine has just made it.

    An NFS client may cache for up to a minute that a name is missing, until it opens the folder
    (nfs(5), "Directory entry caching"). This does so at most once a second.
    """
    if path.exists():
        return True
    _refresh_in_this_second(path.parent, int(time.monotonic()))
    return path.exists()


def names_in(folder: Path) -> frozenset[str]:
    """Return all names in a folder, as `is_there` finds them; empty if the folder is missing."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return frozenset(os.listdir(folder))
    return frozenset()


def refresh_directory(folder: Path) -> None:
    """Open a folder, so that an NFS client asks for changes in it; the folder may be missing."""
    with suppress(OSError):  # a later read in it reports the error
        os.close(os.open(folder, os.O_RDONLY | os.O_DIRECTORY))


@lru_cache(maxsize=256)
def _refresh_in_this_second(folder: Path, _second: int) -> None:
    refresh_directory(folder)


def read_text(path: Path) -> str | None:
    """Return `read_bytes` as text; bytes that are not UTF-8 are replaced."""
    content = read_bytes(path)
    return None if content is None else content.decode(errors="replace")


def write_if_possible(path: Path, record: BaseModel) -> bool:
    """Replace a record that the work does not depend on; return whether the disk allowed it."""
    with tolerating_storage(f"{path.name} is not written") as faults:
        write_record(path, record)
    return not faults


@contextmanager
def tolerating_storage(what: str) -> Iterator[list[OSError]]:
    """Let the block end early, and log it, if a disk fails; yields a list for the fault."""
    faults: list[OSError] = []
    try:
        yield faults
    except OSError as error:
        if storage_error(error, Path()) is None:
            raise
        faults.append(error)
        logger.info("%s: %s", what, error)


def write_marker(path: Path, text: str) -> None:
    """Create a file whose existence counts; on a full disk it stays empty."""
    try:
        write_text(path, text)
    except OSError as error:
        if not is_full(error):
            raise
        path.touch()


def read_record(path: Path, kind: type[Record]) -> Record | None:
    """Read a record of `write_record`; None without the file, `StepError` for other content."""
    content = read_bytes(path)
    if content is None:
        return None
    try:
        return kind.model_validate_json(content)
    except ValueError as error:
        raise StepError(f"{path} does not hold a {kind.__name__}: {error}") from error


def publish_folder(prepared: Path, final: Path) -> bool:
    """Give a prepared, non-empty folder its final name; return False if the name is taken."""
    try:
        prepared.rename(final)
    except OSError:
        if final.exists():
            return False
        raise
    fsync(final.parent)
    return True


def fsync(path: Path) -> None:
    """Make a file, or the renames inside a folder, durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
