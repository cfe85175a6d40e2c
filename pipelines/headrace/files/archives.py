"""ZIP archives, as PyTorch writes its files: their own CRC-32 of every byte tells damage.

`torch.load` does not compare them: a flipped bit is loaded as another weight.
"""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

_DAMAGE = (OSError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError)
"""What `zipfile` raises for bits that flipped: in data, in names, in flags and in methods."""


def archive_damage(path: Path) -> str | None:
    """What is wrong with an archive; None when every byte of what it holds is as it was written."""
    try:
        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip()
    except _DAMAGE as error:
        return f"{type(error).__name__}: {error}"
    return None if bad is None else f"checksum of {bad} is wrong"
