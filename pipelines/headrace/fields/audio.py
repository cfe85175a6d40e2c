"""Sounds: WAV and FLAC, decoded by soundfile."""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray

from headrace.errors import UnreadableError, UserError
from headrace.fields.magic import encoding_by_magic

SUFFIXES = (".flac", ".wav")

ENCODINGS = ("wav", "flac", "audio")
"""Encodings in a manifest; `audio`: the first bytes tell."""

MAX_BYTES = 4 * 2**30
"""Bytes of decoded sound beyond which its header lies, or it is a decompression bomb."""

_MAGIC = {b"RIFF": "wav", b"fLaC": "flac"}
_BYTES = np.dtype(np.float32).itemsize


def decode_audio(content: bytes) -> tuple[NDArray[np.float32], int]:
    """Sound of a WAV or FLAC file.

    Returns:
        `(num_frames,)`, or `(num_frames, num_channels)` when there are several, from -1 to 1, and
        the samples a second.

    Raises:
        UnreadableError: Empty, damaged or too large.
        UserError: soundfile is not installed.
    """
    try:
        import soundfile
    except (ImportError, OSError) as error:  # OSError: libsndfile is missing
        raise UserError(
            f"Sound cannot be decoded: {error}", "Install it: pip install 'headrace[audio]'."
        ) from error
    if not content:
        raise UnreadableError("the file is empty")
    try:
        with soundfile.SoundFile(io.BytesIO(content)) as file:
            num_bytes = file.frames * file.channels * _BYTES
            if num_bytes > MAX_BYTES:
                raise UnreadableError(f"{num_bytes:,} bytes of sound are more than {MAX_BYTES:,}")
            return file.read(dtype="float32"), int(file.samplerate)
    except (soundfile.SoundFileError, RuntimeError, ValueError, TypeError) as error:
        why = getattr(error, "error_string", error)  # the text of the error holds an address
        raise UnreadableError(f"damaged sound: {why}") from error


def audio_encoding(content: bytes, *, check: bool) -> str:
    """Encoding of a sound, `wav` or `flac`, told by its first bytes; with `check` also decoded.

    Raises:
        UnreadableError: It is no sound; with `check` as `decode_audio`.
    """
    encoding = encoding_by_magic(content, _MAGIC, "sound")
    if check:
        decode_audio(content)
    return encoding
