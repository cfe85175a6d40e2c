"""Folders with a list of their files and checksums, written last, which tells damage to them."""

from __future__ import annotations

import json
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
