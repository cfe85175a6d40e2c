"""Random numbers that depend on the position in training only, so that a resume repeats them."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import torch


def position_seed(seed: int, epoch: int, batch: int, rank: int, purpose: str) -> int:
    """Seed of one use of random numbers, 64 bits.

    Args:
        seed: Seed of the run.
        epoch: Epoch, from 0.
        batch: Batch in the epoch, from 0.
        rank: Rank, from 0.
        purpose: What the numbers are for: other purposes at the same place get other numbers.
    """
    text = f"{seed}/{epoch}/{batch}/{rank}/{purpose}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def seed_at(seed: int, epoch: int, batch: int, rank: int, purpose: str) -> None:
    """Seed Python's, NumPy's and torch's global generators for one place in training."""
    value = position_seed(seed, epoch, batch, rank, purpose)
    random.seed(value)
    np.random.seed(value % 2**32)
    torch.manual_seed(value)
