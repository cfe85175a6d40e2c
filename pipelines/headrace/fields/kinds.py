"""Which kind of field bytes are, and the array that encoded bytes stand for."""

from __future__ import annotations

from typing import Any, Literal

from numpy.typing import NDArray

from headrace.fields import array, audio, image

FieldKind = Literal["image", "audio", "array", "text", "bytes", "value"]
"""What a field of a sample holds."""

TEXTS = ("text", "json")
"""Encodings of text in a manifest."""

BY_SUFFIX: dict[str, FieldKind] = {
    **dict.fromkeys(image.SUFFIXES, "image"),
    **dict.fromkeys(audio.SUFFIXES, "audio"),
    **dict.fromkeys(array.SUFFIXES, "array"),
    ".txt": "text",
    ".json": "text",
}
"""Kinds of files that hold one value, by their endings in lower case."""


def kind_of_bytes(content: bytes) -> FieldKind:
    """Kind of a file, told by its first bytes; `bytes` when they say nothing."""
    if content[:4] == b"RIFF":
        return {b"WAVE": "audio", b"WEBP": "image"}.get(content[8:12], "bytes")  # type: ignore[return-value]
    if content[:4] == b"fLaC":
        return "audio"
    return "image" if content.startswith(tuple(image.MAGIC)) else "bytes"


def decode(content: bytes, encoding: str) -> NDArray[Any]:
    """Decode one sample of the encoding `npy`, or of a format of images or sound.

    Raises:
        UnreadableError: The bytes cannot be decoded, by the same rules as when they are packed.
        UserError: What decodes sound is not installed.
    """
    if encoding == "npy":
        return array.decode_array(content)
    if encoding in audio.ENCODINGS:
        return audio.decode_audio(content)[0]
    return image.decode_image(content)
