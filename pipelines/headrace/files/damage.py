"""Detection of damaged files: CRCs of archives, and checksums of a folder's files."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from headrace.files.atomic import AS_USUAL, write_bytes

SEAL = "checksums.json"
"""XXH3 of a folder's other files by name, 128 bits, hexadecimal."""


def seal(folder: Path, checksums: Mapping[str, str]) -> None:
    """Write the checksums of a folder's files, which must be durable and final."""
    write_bytes(folder / SEAL, json.dumps(dict(checksums), indent=1).encode(), AS_USUAL)


def is_sealed(folder: Path) -> bool:
    """Whether a folder has a list of checksums."""
    return (folder / SEAL).is_file()


def sealed_damage(folder: Path) -> str | None:
    """Return the damage of a sealed folder; None if each file has the bytes written into it."""
    from headrace.files.checksums import file_xxh3_128  # imports xxhash; Airflow parses callers

    try:
        checksums = json.loads((folder / SEAL).read_text())
        for name, checksum in checksums.items():
            if file_xxh3_128(folder / name) != checksum:
                return f"checksum of {name} is wrong"
    except (OSError, ValueError, AttributeError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return None


_DAMAGE = (OSError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError)
"""Errors of `zipfile` for flipped bits: in data, in names, in flags and in methods."""


def archive_damage(path: Path) -> str | None:
    """Return the damage of an archive; None if all its content is as written.

    `torch.load` does not compare the CRC-32 of each file: a flipped bit would change a weight.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip()
    except _DAMAGE as error:
        return f"{type(error).__name__}: {error}"
    return None if bad is None else f"checksum of {bad} is wrong"
