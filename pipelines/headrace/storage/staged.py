"""Datasets on a node's own storage: copied once a node, verified, published whole.

`<tier folder>/datasets/<fingerprint>/` has the layout of a dataset, with the staged splits only.
`.complete.json` there is written last and tells what was published; a copy without it is one
that was interrupted, and is completed by the next caller.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.errors import ManifestError
from headrace.recipe.site import Tier
from headrace.storage import tiers as tiers_module
from headrace.storage.locks import exclusive
from headrace.storage.manifest import Manifest, read_manifest
from headrace.storage.staged_folder import StagedFolder, Tick, TierFullError
from headrace.storage.tiers import TierRoom


@dataclass(frozen=True, kw_only=True)
class StagedCopy:
    """A dataset on this node."""

    folder: Path
    """Folder with `manifest.json` and `shards/`."""
    tier: str
    """Name of the tier it lies on."""
    reused: bool
    """Whether all of it was there already."""
    num_bytes: int
    """Bytes of the shards asked for."""
    copied_bytes: int
    """Bytes that this call copied."""
    seconds: float
    """Time that this call took, waiting for others included."""

    @property
    def bytes_per_s(self) -> float:
        """Bytes copied a second; 0 when nothing was copied."""
        return self.copied_bytes / self.seconds if self.seconds > 0 else 0.0


def ensure_staged(
    dataset: Path,
    tiers: Sequence[Tier],
    splits: tuple[str, ...] | None = None,
    verify: bool = True,
    tick: Tick | None = None,
) -> StagedCopy:
    """Put splits of a dataset onto this node's fastest tier with room, or find them there.

    Processes of a node that ask for the same dataset at once wait for the one that copies.

    Args:
        dataset: Folder of the packed dataset.
        tiers: Tiers of the site, fastest first.
        splits: Splits wanted; None for all.
        verify: Compare checksums of shards that are copied or were left by an interrupted copy.
        tick: Called with bytes done and bytes in all after each shard; may raise to stop.

    Raises:
        ManifestError: `dataset` is no dataset, or lacks a split.
        ShardError: A shard is missing, or its checksum is not that of the manifest.
        StorageFullError: No tier has room.
    """
    started = time.perf_counter()
    manifest = read_manifest(dataset)
    wanted = _wanted(manifest, splits)
    places = [_place(tier, manifest) for tier in tiers]
    usable = [place.folder for place in places if not place.problem]
    found = _complete(usable, wanted)
    copied_bytes = 0
    if found is None:
        with exclusive(folder.lock_file for folder in usable):
            found = _complete(usable, wanted)
            if found is None:
                job = _Job(dataset, manifest, wanted, verify, tick)
                found, copied_bytes = _stage(job, places)
    return StagedCopy(
        folder=found.path,
        tier=found.tier,
        reused=copied_bytes == 0,
        num_bytes=sum(shard.num_bytes for split in wanted for shard in manifest.shards_of(split)),
        copied_bytes=copied_bytes,
        seconds=time.perf_counter() - started,
    )


@dataclass(frozen=True)
class _Job:
    dataset: Path
    manifest: Manifest
    splits: tuple[str, ...]
    verify: bool
    tick: Tick | None


@dataclass(frozen=True)
class _Place:
    tier: Tier
    folder: StagedFolder
    problem: str


def _wanted(manifest: Manifest, splits: tuple[str, ...] | None) -> tuple[str, ...]:
    for split in splits or ():
        manifest.shards_of(split)  # names the valid splits when there is no such one
    return tuple(split for split in manifest.splits if splits is None or split in splits)


def _place(tier: Tier, manifest: Manifest) -> _Place:
    name = manifest.fingerprint
    if not name.isalnum():
        raise ManifestError(
            f"Dataset '{manifest.name}' has the fingerprint '{name}', which is no hash",
            "Pack the dataset again.",
        )
    root = tiers_module.folder_of(tier)
    problem = tiers_module.prepare(root) or tiers_module.prepare(root / "datasets")
    return _Place(tier, StagedFolder(root / "datasets" / name, tier.name), problem)


def _complete(folders: Sequence[StagedFolder], splits: tuple[str, ...]) -> StagedFolder | None:
    return next((folder for folder in folders if folder.holds(splits)), None)


def _stage(job: _Job, places: Sequence[_Place]) -> tuple[StagedFolder, int]:
    """Copy to the first tier with room; a tier that turns out full is left for the next one."""
    what = f"the splits {', '.join(job.splits)} of dataset '{job.manifest.name}'"
    rooms = {place.tier.name: _measure(place, job) for place in places}
    folders = {place.tier.name: place.folder for place in places}
    while True:
        room = tiers_module.choose(rooms.values(), what)
        folder = folders[room.name]
        try:
            return folder, folder.fill(job.dataset, job.manifest, job.splits, job.verify, job.tick)
        except TierFullError as error:
            rooms[room.name] = replace(room, problem=f"ran full while it was copied to ({error})")


def _measure(place: _Place, job: _Job) -> TierRoom:
    if place.problem:
        return tiers_module.measure(place.tier, 0, place.problem)
    needed_bytes = place.folder.missing_bytes(job.manifest, job.splits)
    return tiers_module.measure(place.tier, needed_bytes)
