"""What the ending of a file's name says about its content, and how its bytes become a value."""

from __future__ import annotations

from collections.abc import Callable

from headrace.packing.decode import IMAGE_MAGIC, UnreadableError, decode_array
from headrace.packing.samples import FieldKind, SourceField, Value

IMAGE_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
"""Endings, in lower case, of images."""

AUDIO_SUFFIXES = (".flac", ".wav")
"""Endings, in lower case, of sounds."""

ARCHIVE = ".npz"
"""Ending of a file of several arrays."""

_KINDS: dict[str, FieldKind] = {
    **dict.fromkeys(IMAGE_SUFFIXES, "image"),
    **dict.fromkeys(AUDIO_SUFFIXES, "audio"),
    ".npy": "array",
    ".txt": "text",
    ".json": "text",
}
_PLURALS = {"image": "images", "array": "arrays", "audio": "sounds", "text": "texts"}


def suffix_of(path: str) -> str:
    """Ending of a name, in lower case with its dot; empty for none."""
    name = path.rpartition("/")[2]  # as pathlib, which takes ten times as long
    dot = name.rfind(".")
    return name[dot:].lower() if 0 < dot < len(name) - 1 else ""


def kind_of(path: str) -> FieldKind:
    """Kind of a file that holds one value; `bytes` when the ending says nothing."""
    return _KINDS.get(suffix_of(path), "bytes")


def field_of(name: str, path: str) -> SourceField:
    """Field of files such as `path`."""
    encoding = "json" if suffix_of(path) == ".json" else ""
    return SourceField(name, kind_of(path), encoding=encoding)


def plural(kind: FieldKind) -> str:
    """Word for several values of a kind, for messages."""
    return _PLURALS.get(kind, "other files")


def converter(kind: FieldKind) -> Callable[[bytes], Value] | None:
    """What makes a value of a file's bytes; None when they stay as they are.

    What it returns raises `UnreadableError` for bytes that are damaged.
    """
    makers: dict[FieldKind, Callable[[bytes], Value]] = {"array": decode_array, "text": decode_text}
    return makers.get(kind)


def decode_text(content: bytes) -> str:
    """Text of UTF-8 bytes.

    Raises:
        UnreadableError: They are not UTF-8.
    """
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableError(f"not UTF-8: {error}") from None


def kind_of_bytes(content: bytes) -> FieldKind:
    """Kind of a file, told by its first bytes; `bytes` when they say nothing."""
    if content[:4] == b"fLaC" or (content[:4] == b"RIFF" and content[8:12] == b"WAVE"):
        return "audio"
    if content[:4] == b"RIFF" and content[8:12] != b"WEBP":
        return "bytes"
    return "image" if content.startswith(IMAGE_MAGIC) else "bytes"
