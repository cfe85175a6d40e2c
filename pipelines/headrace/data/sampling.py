"""Samples of an epoch, and their order: pure functions of (seed, epoch).

All random numbers are the raw 64-bit stream of NumPy's Philox generator, shuffled by `RandomState`;
both are fixed for all NumPy versions. They do not depend on ranks, so the global order is the same
for any world size.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import DataError, UserError
from headrace.fields.field_kind import kind_of_encoding
from headrace.files.manifest import Manifest

Indices = NDArray[np.int64]

_FULL, _SHARDS, _WINDOWS, _DRAWS = range(4)
"""Purposes of random numbers: each purpose of an epoch has its own numbers."""


def random_bits(num: int, seed: int, epoch: int, purpose: int) -> NDArray[np.uint64]:
    """Return random numbers of 64 bits, `(num,) uint64`, a pure function of the arguments."""
    return _philox(seed, epoch, purpose).random_raw(num)


def _philox(seed: int, epoch: int, purpose: int) -> np.random.Philox:
    key = np.array([seed | purpose << 32, epoch], dtype=np.uint64)
    return np.random.Philox(key=key)


def _shuffler(seed: int, epoch: int, purpose: int) -> np.random.RandomState:
    """Return a shuffler whose algorithm NumPy has promised to keep; arguments as `random_bits`."""
    return np.random.RandomState(_philox(seed, epoch, purpose))


def epoch_order(num_samples: int, seed: int, epoch: int, shuffle: bool = True) -> Indices:
    """Return the order of a split's samples in one epoch, `(num_samples,) int64`.

    It is shuffled over the whole split; without `shuffle` it is the order of the dataset.
    """
    if not shuffle:
        return np.arange(num_samples, dtype=np.int64)
    return _shuffler(seed, epoch, _FULL).permutation(num_samples).astype(np.int64, copy=False)


@dataclass(frozen=True, kw_only=True)
class Epochs:
    """The samples of every epoch: pure functions of the epoch's number."""

    kind: str
    """Description of the order, by which positions in an epoch are compared."""
    num_samples: int
    """Samples of an epoch."""
    order: Callable[[int], Indices]
    """Returns an epoch's positions in the split, `(num_samples,) int64`."""


def whole(num_samples: int, seed: int, shuffle: bool = True) -> Epochs:
    """Return epochs of every sample once, shuffled over the whole split or in its order."""
    name = f"shuffled by seed {seed}" if shuffle else "not shuffled"
    return Epochs(
        kind=f"{num_samples} samples {name}",
        num_samples=num_samples,
        order=partial(epoch_order, num_samples, seed, shuffle=shuffle),
    )


def blocks(shard_samples: Sequence[int], seed: int, window: int) -> Epochs:
    """Return epochs of every sample once, shuffled within windows of shards in random order.

    So each part of an epoch reads the shards of one window, or of two at their boundary. The last
    window may have fewer shards. `shard_samples` are the samples of each shard.
    """
    sizes = np.array(shard_samples, dtype=np.int64)
    ends = np.cumsum(sizes)

    def order(epoch: int) -> Indices:
        shuffle, shards = _shuffler(seed, epoch, _WINDOWS), shard_order(len(sizes), seed, epoch)
        found: list[Indices] = [np.empty(0, dtype=np.int64)]
        for first in range(0, len(shards), window):
            members = [
                np.arange(ends[shard] - sizes[shard], ends[shard])
                for shard in np.sort(shards[first : first + window])
            ]
            found.append(shuffle.permutation(np.concatenate(members)))
        return np.concatenate(found)

    return Epochs(
        kind=f"{sizes.sum()} samples shuffled in windows of {window} of {len(sizes)} shards by "
        f"seed {seed}",
        num_samples=int(sizes.sum()),
        order=order,
    )


def shard_order(num_shards: int, seed: int, epoch: int) -> Indices:
    """Return the numbers of the shards in the order of windows, `(num_shards,) int64`."""
    bits = random_bits(num_shards, seed, epoch, _SHARDS)
    return np.argsort(bits, kind="stable").astype(np.int64, copy=False)


def blocks_first(shard_samples: Sequence[int], seed: int, window: int) -> Epochs:
    """Return epochs of every sample once: epoch 0 as `blocks`, the others as `whole`.

    So training may start with the first shards. The order does not depend on the location of shards
    or on the time of their arrival.
    """
    first, later = blocks(shard_samples, seed, window), whole(sum(shard_samples), seed)
    return Epochs(
        kind=f"{later.kind}, epoch 0 in windows of {window} shards",
        num_samples=later.num_samples,
        order=lambda epoch: (later if epoch else first).order(epoch),
    )


def weighted(weights: NDArray[np.float64], seed: int, num_samples: int, name: str) -> Epochs:
    """Return epochs of `num_samples` draws with replacement, of probability proportional to weight.

    `weights (samples of the split,)` are not negative; `name` is that of the weights, for `kind`.
    """
    ends = np.cumsum(weights)

    def order(epoch: int) -> Indices:
        bits = random_bits(num_samples, seed, epoch, _DRAWS)
        uniform = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
        by_value = np.argsort(uniform)  # searching in order is many times faster
        drawn = np.empty(num_samples, dtype=np.int64)
        drawn[by_value] = np.searchsorted(ends, uniform[by_value] * ends[-1], side="right")
        last = np.flatnonzero(weights)[-1]  # rounding may reach the end
        drawn[drawn > last] = last
        return drawn

    return Epochs(
        kind=f"{num_samples} draws from {len(weights)} samples by {name} and seed {seed}",
        num_samples=num_samples,
        order=order,
    )


def class_weights(labels: NDArray[Any]) -> NDArray[np.float64]:
    """Return weights that make all classes equally likely, `(num_samples,) float64`.

    Each is one over the samples of the class; `labels (num_samples,)` are the classes.
    """
    _, classes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    return 1.0 / counts[classes].astype(np.float64)


def weight_field(sampling: str, manifest: Manifest) -> str:
    """Return the field that `data.sampling` draws by; raise `UserError` if there is none."""
    name = "label" if sampling == "balanced" else sampling
    numbers = [info.name for info in manifest.fields if info.layout == "fixed" and not info.shape]
    if name not in numbers:
        raise UserError(
            f"data.sampling '{sampling}' needs a field '{name}' with one number per sample, which "
            f"the dataset '{manifest.name}' does not have",
            f"Valid: {', '.join(['uniform', 'balanced', *numbers])}.",
        )
    return name


def check_cropped(name: str, manifest: Manifest) -> None:
    """Raise if a field is not one of encoded images, which can be cropped at decoding."""
    if "resize" not in kind_of_encoding(manifest.field(name).encoding).options:
        raise UserError(
            f"RandomResizedCrop needs encoded images, which the field '{name}' of dataset "
            f"'{manifest.name}' does not hold",
            f"Pack it with pack.fields.{name}.keep: encoded, or name another field.",
        )


def check_weights(weights: NDArray[Any], field_name: str) -> NDArray[np.float64]:
    """Return weights of samples as floats; raise if they are invalid."""
    if weights.ndim != 1 or weights.dtype.kind not in "iufb":
        raise UserError(
            f"data.sampling names the field '{field_name}', which is "
            f"{weights.dtype} {weights.shape[1:]} per sample",
            "Name a field with one number per sample, or write uniform or balanced.",
        )
    values = weights.astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(values) | (values < 0))
    if len(bad):
        raise DataError(
            f"Sample {bad[0]} has {values[bad[0]]} in '{field_name}', which is not a valid weight",
            "Weights by data.sampling must be finite and not negative.",
        )
    if not values.any():
        raise DataError(f"All weights in '{field_name}' are 0", "No sample can be drawn.")
    return values


def position_seed(seed: int, epoch: int, batch: int, rank: int, purpose: str) -> int:
    """Return a 64-bit seed of one use of random numbers; each purpose of a position has its own."""
    text = f"{seed}/{epoch}/{batch}/{rank}/{purpose}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def seed_at(seed: int, epoch: int, batch: int, rank: int, purpose: str) -> None:
    """Seed Python's, NumPy's and torch's global generators for one place in training."""
    import torch  # not needed for plans

    value = position_seed(seed, epoch, batch, rank, purpose)
    random.seed(value)
    np.random.seed(value % 2**32)
    if torch.accelerator.is_available():
        torch.manual_seed(value)
    else:  # this would record a stack trace for each missing kind of device
        torch.default_generator.manual_seed(value)
