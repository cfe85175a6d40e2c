"""Sounds: WAV and FLAC, decoded by soundfile."""

from __future__ import annotations

import io
import math
from functools import lru_cache
from typing import cast

import numpy as np
from numpy.typing import NDArray

from headrace.errors import UnreadableError, UserError
from headrace.fields.field_kind import Decoded, Encoded, Kind, Shape, Value, encoding_by_magic

MAX_BYTES = 4 * 2**30
"""Bytes of decoded sound beyond which its header lies, or it is a decompression bomb."""

_MAGIC = {b"RIFF": "wav", b"fLaC": "flac"}
_BYTES = np.dtype(np.float32).itemsize
_ZEROS = 32  # zero crossings of the filter that resamples, on either side
_BETA = 8.0  # of its Kaiser window: what does not fit is 80 dB down


class AudioKind(Kind):
    """Numbers from -1 to 1, or the files as they are."""

    name = "audio"
    plural = "sounds"
    suffixes = (".flac", ".wav")
    encodings = ("audio", "wav", "flac")
    options = ("keep", "sample_rate", "dtype", "mixed", "codec", "chunk_samples")
    mixed = "ragged"
    is_wave = True

    def recognises(self, content: bytes) -> bool:
        return content[:4] == b"fLaC" or (content[:4] == b"RIFF" and content[8:12] == b"WAVE")

    def encode(self, value: Value, dtype: str, *, check: bool) -> Encoded:
        content = cast("bytes", value)
        encoding = encoding_by_magic(content, _MAGIC.items(), "sound")
        if check:
            decode_audio(content)
        return Encoded(content, encoding)

    def decode(self, content: bytes) -> NDArray[np.float32]:
        return decode_audio(content)[0]

    def to_array(self, value: Value, shape: Shape) -> Decoded:
        sound, rate = decode_audio(cast("bytes", value))
        target = shape.sample_rate or rate
        return Decoded(resampled(sound, rate, target), target)

    def way_out(self, name: str, *, other_axes: bool) -> str:
        if not other_axes:
            return ""
        return (
            "Some sounds have one channel and some several: make all of equally many, or set "
            f"pack.fields.{name}.keep to 'encoded'."
        )


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
            found = file.read(dtype="float32")
            if len(found) < file.frames or _is_cut(content):
                raise UnreadableError("it is cut: its header claims more sound")
            if file.subtype == "DOUBLE" and np.isinf(found).any():
                raise UnreadableError("its numbers do not fit float32")
            return found, int(file.samplerate)
    except (soundfile.SoundFileError, RuntimeError, ValueError, TypeError) as error:
        why = getattr(error, "error_string", error)  # the text of the error holds an address
        raise UnreadableError(f"damaged sound: {why}") from error


def _is_cut(content: bytes) -> bool:
    """Whether a WAV file claims more sound than it holds; libsndfile reads what is there."""
    at = 12
    while content[:4] == b"RIFF" and at + 8 <= len(content):
        num_bytes = int.from_bytes(content[at + 4 : at + 8], "little")
        if content[at : at + 4] == b"data":  # a stream of unknown length has the largest number
            return len(content) - at - 8 < num_bytes < 2**32 - 1
        at += 8 + num_bytes + num_bytes % 2
    return False


def resampled(sound: NDArray[np.float32], rate: int, target: int) -> NDArray[np.float32]:
    """Sound `(num_frames[, num_channels])` with `target` samples a second, by a polyphase filter.

    It has `rate` samples a second.
    """
    if rate == target or not len(sound):
        return sound
    from scipy.signal import resample_poly

    divisor = math.gcd(rate, target)
    up, down = target // divisor, rate // divisor
    out = resample_poly(sound, up, down, axis=0, window=_filter(max(up, down)))
    return np.asarray(out, dtype=np.float32)


@lru_cache(maxsize=8)
def _filter(factor: int) -> NDArray[np.float32]:
    """Weights that pass one `factor`-th of the frequencies, `(2 * _ZEROS * factor + 1,)`."""
    from scipy.signal import firwin

    taps = firwin(2 * _ZEROS * factor + 1, 1 / factor, window=("kaiser", _BETA))
    return np.asarray(taps, dtype=np.float32)
