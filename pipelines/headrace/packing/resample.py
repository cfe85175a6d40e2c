"""Sound at another rate."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_ZEROS = 16  # zero crossings of the filter on either side
_BLOCK = 2**14  # samples made at once


def resampled(sound: NDArray[np.float32], rate: int, target: int) -> NDArray[np.float32]:
    """Sound with so many samples a second, by a windowed sinc filter.

    Source: Smith, Digital Audio Resampling (2002): bandlimited interpolation.

    Args:
        sound: `(num_frames,)` or `(num_frames, num_channels)`.
        rate: Its samples a second.
        target: Those to have.
    """
    if rate == target or not len(sound):
        return sound
    divisor = math.gcd(rate, target)
    up, down = target // divisor, rate // divisor
    taps, half = _filter(up, down)
    num_out = math.ceil(len(sound) * up / down)
    flat = sound.reshape(len(sound), -1)
    padded = np.pad(flat, ((half, half + 1), (0, 0)))
    out = np.empty((num_out, flat.shape[1]), dtype=np.float32)
    for start in range(0, num_out, _BLOCK):
        number = np.arange(start, min(start + _BLOCK, num_out), dtype=np.int64) * down
        first = number // up  # of the padded samples that the filter covers
        windows = padded[first[:, None] + np.arange(2 * half + 1)[None, :]]
        out[start : start + len(number)] = np.einsum("ntc,nt->nc", windows, taps[number % up])
    return out.reshape(num_out, *sound.shape[1:])


@lru_cache(maxsize=8)
def _filter(up: int, down: int) -> tuple[NDArray[np.float32], int]:
    """Weights by phase, `(up, 2 * half + 1)`, and how many samples they reach to either side."""
    cutoff = min(1.0, up / down)
    half = math.ceil(_ZEROS / cutoff)
    at = np.arange(-half, half + 1)[None, :] - np.arange(up)[:, None] / up
    window = np.cos(np.clip(at / (half + 1), -1, 1) * np.pi / 2) ** 2
    return (cutoff * np.sinc(cutoff * at) * window).astype(np.float32), half
