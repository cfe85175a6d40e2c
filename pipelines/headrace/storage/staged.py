"""Datasets on a node's own storage: copied once a node, verified, published whole.

`<tier folder>/datasets/<fingerprint>/` has the layout of a dataset, with the staged splits only.
`.complete.json` there is written last and tells what was published; a copy without it is one
that was interrupted, and is completed by the next caller. Shards that a published copy lacks
were left where the dataset lies, because no tier had room for all (`StagingOptions.partial`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from headrace.recipe.site import Tier
from headrace.storage import soundness
from headrace.storage import tiers as tiers_module
from headrace.storage.cache import sweep
from headrace.storage.fetching import Brought, Tick
from headrace.storage.fingerprint import content_fingerprint
from headrace.storage.locks import exclusive
from headrace.storage.manifest import Manifest
from headrace.storage.packed import read_manifest_at
from headrace.storage.peers import Peers, sharing
from headrace.storage.placing import Place, Wanted, choose_place, room_locks
from headrace.storage.relay import relaying
from headrace.storage.staged_copy import StagedCopy, StagingOptions
from headrace.storage.staged_folder import Filling, StagedFolder, TierFullError, shards_in
from headrace.storage.store import is_remote, open_store
from headrace.storage.use import in_use


def ensure_staged(
    dataset: Path | str,
    tiers: Sequence[Tier],
    splits: tuple[str, ...] | None = None,
    verify: bool = True,
    tick: Tick | None = None,
    options: StagingOptions | None = None,
) -> StagedCopy:
    """Put splits of a dataset onto this node; see `staged`.

    Nothing keeps the copy from being evicted later, though those used lately go last.
    """
    with staged(dataset, tiers, splits, verify, tick, options) as copy:
        return copy


@contextmanager
def staged(
    dataset: Path | str,
    tiers: Sequence[Tier],
    splits: tuple[str, ...] | None = None,
    verify: bool = True,
    tick: Tick | None = None,
    options: StagingOptions | None = None,
) -> Iterator[StagedCopy]:
    """Put splits of a dataset onto this node's fastest tier with room, or find them there.

    Processes of a node that ask for the same dataset at once wait for the one that copies. The
    copy is not evicted while the block runs. Copies of other datasets that nobody uses are
    evicted for it, the least recently used first.

    Args:
        dataset: Folder or URL of the packed dataset.
        tiers: Tiers of the site, fastest first.
        splits: Splits wanted; None for all.
        verify: Compare checksums of shards that are copied or were left by an interrupted copy.
        tick: Called with bytes done and bytes in all, about twice a second; may raise to stop.
        options: How it is staged.

    Raises:
        ManifestError: `dataset` is no dataset, or lacks a split.
        ShardError: A shard is missing, or its checksum is not that of the manifest.
        StoreError: The dataset cannot be read.
        StorageFullError: No tier has room.
    """
    started = time.perf_counter()
    options = options or StagingOptions()
    manifest = _identified(read_manifest_at(str(dataset), options.s3)).without(options.skipped)
    wanted = _wanted(str(dataset), manifest, splits, options)
    places = [_place(tier, manifest) for tier in tiers]
    with ExitStack() as using:
        peers = using.enter_context(sharing(options.group, manifest.shards))
        job = _Job(str(dataset), wanted, verify, tick, options, peers)
        found, brought = _find_or_stage(job, places, using)
        copy = _copy_of(job, found, brought, time.perf_counter() - started)
        if peers is not None and options.serves_readers:
            store = open_store(job.dataset, options.s3)
            relayed = using.enter_context(relaying(store, found.path, manifest, peers.shelf))
            copy = replace(copy, relayed=relayed)
        if peers is not None:
            _serve(job, peers, found)
        yield copy


@dataclass(frozen=True)
class _Job:
    dataset: str
    wanted: Wanted
    verify: bool
    tick: Tick | None
    options: StagingOptions
    peers: Peers | None
    dropped: set[str] = field(default_factory=set)
    """Damaged shards that were found in copies and taken out of them."""

    @property
    def looks_again(self) -> bool:
        """Whether what is there is read before it is used."""
        shards = shards_in(self.wanted.manifest, self.wanted.splits)
        return self.verify and sum(shard.num_bytes for shard in shards) <= soundness.SMALL_BYTES


def _wanted(
    dataset: str, manifest: Manifest, splits: tuple[str, ...] | None, options: StagingOptions
) -> Wanted:
    for split in splits or ():
        manifest.shards_of(split)  # names the valid splits when there is no such one
    names = tuple(split for split in manifest.splits if splits is None or split in splits)
    return Wanted(
        manifest=manifest,
        splits=names,
        partial=options.partial,
        is_remote=is_remote(dataset),
        group=options.group,
    )


def _identified(manifest: Manifest) -> Manifest:
    """A dataset by the fingerprint of what it lists; that of a part is the whole dataset's."""
    if not manifest.is_part:
        return manifest
    fingerprint = content_fingerprint(manifest.fields, manifest.classes, manifest.shards)
    return manifest.model_copy(update={"fingerprint": fingerprint, "is_part": False})


def _place(tier: Tier, manifest: Manifest) -> Place:
    root = tiers_module.folder_of(tier)
    problem = tiers_module.prepare(root) or tiers_module.prepare(root / "datasets")
    return Place(tier, StagedFolder(root / "datasets" / manifest.fingerprint, tier.name), problem)


def _copy_of(job: _Job, found: StagedFolder, brought: Brought, seconds: float) -> StagedCopy:
    manifest, splits = job.wanted.manifest, job.wanted.splits
    shards = shards_in(manifest, splits)
    missing = {shard.file for shard in found.missing(manifest, splits)}
    left_out = [shard for shard in shards if shard.file in missing]
    num_bytes = sum(shard.num_bytes for shard in shards)
    left_out_bytes = sum(shard.num_bytes for shard in left_out)
    return StagedCopy(
        folder=found.path,
        tier=found.tier,
        reused=brought == Brought(),
        is_fresh=job.looks_again or brought.num_bytes == num_bytes - left_out_bytes,
        mended=brought.mended | job.dropped,
        num_bytes=num_bytes,
        source_bytes=brought.source_bytes,
        peer_bytes=brought.peer_bytes,
        left_out_bytes=left_out_bytes,
        left_out=frozenset(shard.file for shard in left_out),
        seconds=seconds,
    )


def _find_or_stage(
    job: _Job, places: Sequence[Place], using: ExitStack
) -> tuple[StagedFolder, Brought]:
    """A copy that is there, or one that is made; in use until `using` is closed."""
    folders = [place.folder for place in places if not place.problem]
    found = _claim(folders, job, using)
    if found is not None:
        _sweep(places)
        return found, Brought()
    with exclusive(folder.lock_file for folder in folders):
        found = _claim(folders, job, using)
        if found is not None:
            return found, Brought()
        _sweep(places)
        found, brought = _stage(job, places)
        using.enter_context(in_use(found.use_file))
    return found, brought


def _sweep(places: Iterable[Place]) -> None:
    for place in places:
        if not place.problem:
            sweep(place.tier)


def _serve(job: _Job, peers: Peers, found: StagedFolder) -> None:
    """Give the other nodes what lies here, until they need nothing more."""
    complete, manifest = found.complete(), job.wanted.manifest
    files = complete.files if complete is not None else {}
    here = [shard for shard in manifest.shards if shard.file in files]
    for shard in here:
        peers.shelf.put(shard.file, found.path / shard.file)
    peers.tell_held()
    num_bytes = sum(shard.num_bytes for shard in here)

    def check() -> None:
        if job.tick is not None:
            job.tick(num_bytes, num_bytes)

    peers.serve_to_the_end(check)
    if peers.all_hold(shard.file for shard in shards_in(manifest, job.wanted.splits)):
        peers.close()


def _claim(folders: Sequence[StagedFolder], job: _Job, using: ExitStack) -> StagedFolder | None:
    wanted = job.wanted
    for folder in folders:
        if not folder.holds(wanted.manifest, wanted.splits):
            continue
        with ExitStack() as trying:
            trying.enter_context(in_use(folder.use_file))
            if folder.holds(wanted.manifest, wanted.splits) and _is_sound(folder, job):
                using.push(trying.pop_all())
                return folder
    return None


def _is_sound(folder: StagedFolder, job: _Job) -> bool:
    """Whether a copy, which was not evicted, is what was staged; takes out what is not."""
    if not job.looks_again:
        return True
    shards = shards_in(job.wanted.manifest, job.wanted.splits)
    wrong = soundness.wrong_shards(folder.path, shards, soundness.all_threads())
    soundness.drop(folder.path, wrong)
    job.dropped.update(wrong)
    return not wrong


def _stage(job: _Job, places: Sequence[Place]) -> tuple[StagedFolder, Brought]:
    """Copy to the first tier with room; a tier that turns out full is left for the next one."""
    full: dict[str, str] = {}
    while True:
        try:
            return _stage_once(job, places, full)
        except TierFullError as error:
            full[error.tier] = f"ran full while it was copied to ({error})"


def _stage_once(
    job: _Job, places: Sequence[Place], full: Mapping[str, str]
) -> tuple[StagedFolder, Brought]:
    wanted = job.wanted
    with ExitStack() as reserved:
        with exclusive(room_locks(places)):
            folder, left_out, size_bytes = choose_place(wanted, places, full)
            reserved.enter_context(folder.reserving(size_bytes))
        filling = Filling(
            store=open_store(job.dataset, job.options.s3),
            manifest=wanted.manifest,
            splits=wanted.splits,
            verify=job.verify,
            look_again=job.looks_again,
            left_out=left_out | _later(job, folder),
            arrival=job.options.arrival,
            peers=job.peers,
        )
        return folder, folder.fill(filling, job.tick)


def _later(job: _Job, folder: StagedFolder) -> frozenset[str]:
    """Files of the shards that are neither there nor to be brought now."""
    only = job.options.only
    if only is None:
        return frozenset()
    missing = folder.missing(job.wanted.manifest, job.wanted.splits)
    return frozenset(shard.file for shard in missing if shard.file not in only)
