"""The seal of a manifest: a digest of all its bytes, which every reader compares.

It tells damage and edits by hand. It is no signature: who can write the file can seal it anew.
"""

from __future__ import annotations

import json
import re
from typing import Any

import xxhash

from headrace.errors import ManifestError

KEY = "digest"
"""Last key of a sealed manifest."""

_MEND = (
    "Restore the file, or remove it and run the recipe again: shards that are whole stay. A staged "
    "copy is mended by the next run."
)
_SEAL = re.compile(rb'"digest": "([0-9a-f]{32})"\s*\}\s*\Z')


def sealed(text: str) -> bytes:
    """A JSON object with the digest of its bytes as its last key.

    Args:
        text: The object, indented, without the key.
    """
    before = f'{text.rstrip().removesuffix("}").rstrip()},\n "{KEY}": "'.encode()
    after = b'"\n}\n'
    return before + _digest(before + after) + after


def is_sealed(version: int) -> bool:
    """Whether manifests of a version of the format have a digest."""
    return version > 1


def unsealed(text: bytes, path: str, newest: int) -> dict[str, Any]:
    """What a manifest says, without its digest, which is right or belongs to no such version.

    Args:
        text: Content of the file.
        path: Where it lies, for errors.
        newest: The newest version of the format that can be read.

    Raises:
        ManifestError: It is damaged or was changed, or a newer release wrote it.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise damaged(path, str(error)) from error
    if not isinstance(content, dict):
        raise damaged(path, "it holds no JSON object")
    version = content.get("format_version")
    if isinstance(version, int) and version > newest:
        raise ManifestError(
            f"{path} has format version {version}; this release reads up to {newest}",
            "Upgrade headrace.",
        )
    if content.pop(KEY, None) is not None:
        _compare(text, path)
    elif isinstance(version, int) and is_sealed(version):
        raise damaged(path, f"it has no '{KEY}'")
    return content


def damaged(path: str, problem: str) -> ManifestError:
    """The error for a manifest that is not as it was written."""
    return ManifestError(f"{path} is damaged, or was changed by hand: {problem}", _MEND)


def _compare(text: bytes, path: str) -> None:
    found = _SEAL.search(text)
    if found is None:
        raise damaged(path, f"'{KEY}' is not its last key, of 32 digits")
    digest = _digest(text[: found.start(1)] + text[found.end(1) :])
    if digest != found[1]:
        told = found[1].decode()
        raise damaged(path, f"its {KEY} is {digest.decode()}, not {told} as when it was written")


def _digest(text: bytes) -> bytes:
    digits: str = xxhash.xxh3_128_hexdigest(text)
    return digits.encode()
