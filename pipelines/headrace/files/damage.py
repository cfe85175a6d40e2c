"""What tells damage to files: CRCs of archives, and the list of checksums of a folder."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from headrace.files.atomic import AS_USUAL, write_bytes

SEAL = "checksums.json"
"""XXH3 of the other files of the folder by their names, 128 bits, hexadecimal."""


def seal(folder: Path, checksums: Mapping[str, str]) -> None:
    """List the files of a folder, which are durable and as they stay."""
    write_bytes(folder / SEAL, json.dumps(dict(checksums), indent=1).encode(), AS_USUAL)


def is_sealed(folder: Path) -> bool:
    """Whether a folder has such a list."""
    return (folder / SEAL).is_file()


def sealed_damage(folder: Path) -> str | None:
    """What is wrong with a sealed folder; None when each file has the bytes it was written with."""
    from headrace.files.checksums import file_xxh3_128  # brings xxhash, and Airflow parses callers

    try:
        checksums = json.loads((folder / SEAL).read_text())
        for name, checksum in checksums.items():
            if file_xxh3_128(folder / name) != checksum:
                return f"checksum of {name} is wrong"
    except (OSError, ValueError, AttributeError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return None


_DAMAGE = (OSError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError)
"""What `zipfile` raises for bits that flipped: in data, in names, in flags and in methods."""


def archive_damage(path: Path) -> str | None:
    """What is wrong with an archive; None when every byte of what it holds is as it was written.

    `torch.load` does not compare the CRC-32 of each file: a flipped bit is another weight.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip()
    except _DAMAGE as error:
        return f"{type(error).__name__}: {error}"
    return None if bad is None else f"checksum of {bad} is wrong"
