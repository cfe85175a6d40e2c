"""Datasets on a node's own storage: copied once a node, verified, published whole.

`<tier folder>/datasets/<fingerprint>/` has the layout of a dataset, with the staged splits only.
`.complete.json` there is written last and tells what was published; a copy without it is one
that was interrupted, and is completed by the next caller.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from headrace.files.locks import exclusive, in_use
from headrace.files.manifest import Manifest, ShardInfo
from headrace.files.manifest_file import content_fingerprint
from headrace.objects.store import is_remote, open_store, read_manifest_at
from headrace.recipe.site import StoreOptions, Tier
from headrace.staging import cache
from headrace.staging.bringing import Tick
from headrace.staging.gang_member import GangMember, Relay, joining
from headrace.staging.gang_store import Brought, GangStore, Traffic
from headrace.staging.peers import PeerGroup
from headrace.staging.staged_folder import Filling, StagedFolder, TierFullError, shards_in
from headrace.staging.tier_choice import TierPlace, Wanted, choose_place


@dataclass(frozen=True, kw_only=True)
class StagingOptions:
    """How a dataset is staged."""

    partial: bool = False
    """When no tier has room for all, stage what fits and leave the rest where it is."""
    only: frozenset[str] | None = None
    """Shards to bring now, on a tier that can take the others later; null: all of them."""
    skipped: frozenset[str] = frozenset()
    """Files of damaged shards that the copy does without."""
    s3: StoreOptions | None = None
    """How to reach S3."""
    group: PeerGroup | None = None
    """Nodes that stage the dataset at the same time and pass shards on to each other."""
    serves_readers: bool = False
    """The group goes on to pass shards on while the copy is used; see `GangStore`."""


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
    source_bytes: int
    """Bytes that this call read where the dataset lies."""
    peer_bytes: int
    """Bytes that this call took from other nodes."""
    left_out_bytes: int
    """Bytes of the shards asked for that stayed where the dataset lies, for want of room."""
    left_out: frozenset[str]
    """Files of these shards."""
    seconds: float
    """Time that this call took, waiting for others included."""
    relayed: Traffic | None = None
    """What is fetched for other nodes while the copy is used; null when nothing is."""

    @property
    def copied_bytes(self) -> int:
        """Bytes that this call brought to the node."""
        return self.source_bytes + self.peer_bytes

    @property
    def reused_bytes(self) -> int:
        """Bytes of the shards asked for that lay on the node before."""
        return max(self.num_bytes - self.copied_bytes - self.left_out_bytes, 0)

    @property
    def bytes_per_s(self) -> float:
        """Bytes copied a second; 0 when nothing was copied."""
        return self.copied_bytes / self.seconds if self.seconds > 0 else 0.0


def ensure_staged(
    dataset: Path | str,
    tiers: Sequence[Tier],
    splits: tuple[str, ...] | None = None,
    verify: bool = True,
    tick: Tick | None = None,
    options: StagingOptions | None = None,
) -> StagedCopy:
    """`staged`, but nothing keeps the copy from being evicted later."""
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

    Processes of a node that ask for one dataset at once wait for the one that copies. The copy is
    not evicted while the block runs; others that nobody uses are evicted for it.

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
        StorageFullError: No tier has room.
    """
    options = options or StagingOptions()
    manifest = _identified(read_manifest_at(str(dataset), options.s3)).without(options.skipped)
    for split in splits or ():
        manifest.shards_of(split)  # names the valid splits when there is no such one
    wanted = Wanted(
        manifest=manifest,
        splits=tuple(name for name in manifest.splits if splits is None or name in splits),
        partial=options.partial,
        is_remote=is_remote(str(dataset)),
        group=options.group,
    )
    places = [TierPlace.on(tier, wanted) for tier in tiers]
    with ExitStack() as using, joining(options.group) as member:
        work = _Staging(str(dataset), wanted, places, verify, tick, options, member, using)
        copy = work.copy()
        if member is not None:
            relayed = work.serve(member, StagedFolder(copy.folder, copy.tier))
            copy = replace(copy, relayed=relayed if options.serves_readers else None)
        yield copy


@dataclass(frozen=True)
class _Staging:
    """One call of `staged`; what it finds or makes is in use until `using` is closed."""

    dataset: str
    wanted: Wanted
    places: Sequence[TierPlace]
    verify: bool
    tick: Tick | None
    options: StagingOptions
    member: GangMember | None
    using: ExitStack
    traffic: Traffic = field(default_factory=Traffic)
    """What was brought."""

    @property
    def shards(self) -> tuple[ShardInfo, ...]:
        return shards_in(self.wanted.manifest, self.wanted.splits)

    @property
    def looks_again(self) -> bool:
        num_bytes = sum(shard.num_bytes for shard in self.shards)
        return self.verify and num_bytes <= cache.SMALL_BYTES

    def copy(self) -> StagedCopy:
        started = time.perf_counter()
        found = self._find_or_stage()
        brought, missing = (
            self.traffic.brought,
            {shard.file for shard in found.missing(self.wanted.manifest, self.wanted.splits)},
        )
        left_out = [shard for shard in self.shards if shard.file in missing]
        num_bytes = sum(shard.num_bytes for shard in self.shards)
        left_out_bytes = sum(shard.num_bytes for shard in left_out)
        copied_bytes = brought.source_bytes + brought.peer_bytes
        return StagedCopy(
            folder=found.path,
            tier=found.tier,
            reused=not copied_bytes,
            num_bytes=num_bytes,
            source_bytes=brought.source_bytes,
            peer_bytes=brought.peer_bytes,
            left_out_bytes=left_out_bytes,
            left_out=frozenset(shard.file for shard in left_out),
            seconds=time.perf_counter() - started,
        )

    def serve(self, member: GangMember, found: StagedFolder) -> Traffic:
        complete, shards = found.complete(), self.wanted.manifest.shards
        here = [shard for shard in shards if complete and shard.file in complete.files]
        files = tuple(shard.file for shard in here)
        num_bytes = sum(shard.num_bytes for shard in here)
        store = open_store(self.dataset, self.options.s3)
        relay = Relay(store, found.path, shards if self.options.serves_readers else here, files)
        self.using.enter_context(closing(relay))
        tick = self.tick or (lambda *_: None)
        member.serve_to_the_end(relay.holding, files, lambda: tick(num_bytes, num_bytes))
        if member.all_hold([shard.file for shard in self.shards]):
            member.close()
        return relay.traffic

    def _find_or_stage(self) -> StagedFolder:
        usable = [place for place in self.places if not place.problem]
        folders = [place.folder for place in usable]
        found = self._claim(folders)
        with ExitStack() as locked:
            if found is None:
                locked.enter_context(exclusive(folder.lock_file for folder in folders))
                found = self._claim(folders)
            for place in usable:
                cache.sweep(place.tier)
            if found is None:
                found = self._stage()
                self.using.enter_context(in_use(found.use_file))
        return found

    def _claim(self, folders: Sequence[StagedFolder]) -> StagedFolder | None:
        """A copy that is what was staged, also after it was kept from being evicted."""
        manifest, splits = self.wanted.manifest, self.wanted.splits
        for folder in folders:
            if not folder.holds(manifest, splits):
                continue
            with ExitStack() as trying:
                trying.enter_context(in_use(folder.use_file))
                if folder.holds(manifest, splits) and self._is_sound(folder):
                    self.using.push(trying.pop_all())
                    return folder
        return None

    def _is_sound(self, folder: StagedFolder) -> bool:
        if not self.looks_again:
            return True
        wrong = cache.wrong_shards(folder.path, self.shards, cache.all_threads())
        cache.drop(folder.path, wrong)
        return not wrong

    def _stage(self) -> StagedFolder:
        """Copy to the first tier with room; one that turns out full is left for the next one."""
        full: dict[str, str] = {}
        while True:
            try:
                return self._stage_once(full)
            except TierFullError as error:
                full[error.tier] = f"ran full while it was copied to ({error})"

    def _stage_once(self, full: Mapping[str, str]) -> StagedFolder:
        store, manifest = open_store(self.dataset, self.options.s3), self.wanted.manifest
        group = self.member.group if self.member is not None else None
        self.traffic.brought = Brought()
        with ExitStack() as reserved:
            usable = [place for place in self.places if not place.problem]
            with exclusive(place.room_lock for place in usable):
                placed = choose_place(self.wanted, self.places, full)
                folder = placed.folder
                reserved.enter_context(folder.reserving(placed.num_bytes))
            only, later = self.options.only, frozenset[str]()
            if only is not None:
                missing = folder.missing(manifest, self.wanted.splits)
                later = frozenset(shard.file for shard in missing) - only
            filling = Filling(
                store=GangStore(store, manifest.shards, group, self.traffic),
                manifest=manifest,
                splits=self.wanted.splits,
                verify=self.verify,
                look_again=self.looks_again,
                left_out=placed.left_out | later,
                member=self.member,
            )
            folder.fill(filling, self.tick)
            return folder


def _identified(manifest: Manifest) -> Manifest:
    """A dataset by the fingerprint of what it lists; that of a part is the whole dataset's."""
    if not manifest.is_part:
        return manifest
    fingerprint = content_fingerprint(manifest.fields, manifest.classes, manifest.shards)
    return manifest.model_copy(update={"fingerprint": fingerprint, "is_part": False})
