"""Transforms in compiled code: C++ by pybind11, and Numba; both are built when this is imported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from torch.utils.cpp_extension import load_inline

from headrace.builds import one_build

with one_build():  # one rank builds, all others load
    # its text, not its path: that is another one in each run's copy of the code
    _source = Path(__file__).with_name("blur.cpp").read_text()
    _blur = load_inline("blur", _source, no_implicit_headers=True, verbose=True).blur

    @numba.njit("f4[:,:,::1](f4[:,:,::1], f4)", cache=True)
    def _stretch(pictures: np.ndarray, gain: float) -> np.ndarray:
        return np.minimum(np.maximum((pictures - 0.5) * gain + 0.5, 0), 1).astype(np.float32)


class BlurAndStretch:
    """Blurs grey pictures `image (batch, height, width) float32` of 0 to 1; raises their contrast.

    Args:
        gain: Factor of the distance from middle grey.
    """

    def __init__(self, gain: float = 1.5) -> None:
        self.gain = np.float32(gain)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the batch with changed pictures."""
        pictures = _stretch(_blur(batch["image"].numpy()), self.gain)
        return {**batch, "image": torch.from_numpy(pictures)}
