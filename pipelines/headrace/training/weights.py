"""A hash of a model's weights."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import xxhash
from torch import Tensor


def weights_hash(state: Mapping[str, Tensor]) -> str:
    """Hash weights: equal bits, equal hash, whatever device they are on.

    Args:
        state: Weights by name, as of `state_dict()`.

    Returns:
        XXH3 over name, dtype, shape and bytes of each in order of names, 128 bits, hexadecimal.
    """
    digest = xxhash.xxh3_128()
    for name in sorted(state):
        values = state[name].detach().cpu().contiguous()
        digest.update(f"{name} {values.dtype} {tuple(values.shape)}\n".encode())
        digest.update(values.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
