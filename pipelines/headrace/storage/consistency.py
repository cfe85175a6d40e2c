"""Whether what a manifest says holds together: sums, names, places, and the fingerprint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from headrace.storage.fingerprint import fingerprint_of

if TYPE_CHECKING:
    from headrace.storage.manifest import Manifest


def contradictions(manifest: Manifest, content: Mapping[str, Any]) -> Iterator[str]:
    """What cannot be true of a manifest; nothing when it holds together.

    Args:
        manifest: The manifest.
        content: The same as it is written in its file.
    """
    yield from _of_shards(manifest)
    yield from _of_counts(manifest)
    if not manifest.is_part:
        found = fingerprint_of(content["fields"], manifest.classes, content["shards"])
        if found != manifest.fingerprint:
            yield f"its content has the fingerprint {found}, not {manifest.fingerprint}"


def _of_shards(manifest: Manifest) -> Iterator[str]:
    sums = Counter(dict.fromkeys(manifest.splits, 0))
    folds = {(split, n): 0 for split, sizes in manifest.folds.items() for n in range(len(sizes))}
    for shard in manifest.shards:
        path = PurePosixPath(shard.file)
        if path.is_absolute() or ".." in path.parts:
            yield f"the shard '{shard.file}' is outside of its folder"
        sums[shard.split] += shard.num_samples
        if shard.fold is not None:
            folds[shard.split, shard.fold] = folds.get((shard.split, shard.fold), 0)
            folds[shard.split, shard.fold] += shard.num_samples
    if len({shard.file for shard in manifest.shards}) < len(manifest.shards):
        yield "a shard occurs twice"
    if dict(sums) != manifest.splits:
        yield f"its shards hold {dict(sums)} samples, its splits {manifest.splits}"
    told = {(split, n): size for split, of in manifest.folds.items() for n, size in enumerate(of)}
    if folds != told:
        yield f"the folds of its shards hold {folds} samples, its folds {told}"


def _of_counts(manifest: Manifest) -> Iterator[str]:
    for split, counts in manifest.class_counts.items():
        if not set(counts) <= set(manifest.classes):
            yield f"it counts samples of classes that it does not name, in split '{split}'"
        elif not manifest.is_part and sum(counts.values()) != manifest.splits.get(split):
            yield f"it counts {sum(counts.values())} samples of classes in split '{split}'"
