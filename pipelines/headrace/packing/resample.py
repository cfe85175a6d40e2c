"""Sound at another rate."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_ZEROS = 32  # zero crossings of the filter on either side
_BETA = 8.0  # of its Kaiser window: what does not fit is 80 dB down


def resampled(sound: NDArray[np.float32], rate: int, target: int) -> NDArray[np.float32]:
    """Sound with so many samples a second, by a polyphase filter.

    Args:
        sound: `(num_frames,)` or `(num_frames, num_channels)`.
        rate: Its samples a second.
        target: Those to have.
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
