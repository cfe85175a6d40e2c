"""Memory for the batches of a training, estimated before it begins.

They lie in memory of the ranks, and of their worker processes without a name in `/dev/shm`.
"""

from __future__ import annotations

import math

import numpy as np

from headrace.files.manifest import Manifest
from headrace.recipe.crop import crops_of
from headrace.recipe.gang_size import gang_size
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role

_BATCHES_HELD = 3
"""The batch in work, the one read ahead, and room for transforms."""

_USUAL_PREFETCH = 4
"""Batches read ahead that are part of that: small ones come in groups."""

_FLOAT_BYTES = 4


def batch_bytes(recipe: Recipe, role: Role, manifest: Manifest) -> int:
    """Return the bytes of batches on each node; 0 if other code than headrace's loaders reads."""
    if not recipe.reads_shards:
        return 0
    data, trainer = recipe.data, recipe.trainer
    num_nodes, num_ranks = gang_size(recipe, role)
    readers = trainer.data_ranks(num_nodes * num_ranks)
    share = data.global_batch_size // trainer.accumulate_grad_batches // readers
    # a worker process makes one batch while two wait
    ahead = max(data.prefetch, 0 if data.workers == "auto" else 3 * data.workers)
    held = _BATCHES_HELD + max(ahead - _USUAL_PREFETCH, 0)
    cropped = sum(3 * crop.size**2 * _FLOAT_BYTES for crop in crops_of(recipe).values())
    return num_ranks * held * share * (sample_bytes(manifest) + cropped)


def sample_bytes(manifest: Manifest) -> int:
    """Estimated bytes of one sample in memory, small integers counted as floats."""
    fixed = sum(
        max(np.dtype(info.dtype).itemsize, _FLOAT_BYTES) * math.prod(info.shape)
        for info in manifest.fields
        if info.layout == "fixed"
    )
    if all(info.layout == "fixed" for info in manifest.fields) or not manifest.num_samples:
        return fixed
    return fixed + manifest.num_bytes // manifest.num_samples * _FLOAT_BYTES
