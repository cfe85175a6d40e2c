"""Datasets on a node's own storage: copied once per node, verified, published as a whole.

`<tier folder>/datasets/<fingerprint>/` has the layout of a dataset, with the staged splits only.
`.complete.json` there is written last and lists what was published. A copy without it was
interrupted, and the next caller completes it.
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
from headrace.recipe.site import Tier
from headrace.staging import cache
from headrace.staging.bringing import Filling, Tick
from headrace.staging.gang_member import GangMember, Relay, joining
from headrace.staging.gang_store import Brought, GangStore, Traffic
from headrace.staging.staged_folder import StagedFolder, TierFullError, shards_in
from headrace.staging.tier_choice import StagingOptions, TierPlace, Wanted, choose_place


@dataclass(frozen=True, kw_only=True)
class StagedCopy:
    """A dataset on this node."""

    folder: Path
    """Folder with `manifest.json` and `shards/`."""
    tier: str
    reused: bool
    """Whether all of it was already there."""
    num_bytes: int
    """Bytes of the requested shards."""
    source_bytes: int
    """Bytes that this call read from the dataset."""
    peer_bytes: int
    """Bytes that this call took from other nodes."""
    left_out_bytes: int
    """Bytes of the requested shards that stayed at the dataset, for lack of room."""
    left_out: frozenset[str]
    """Files of these shards."""
    seconds: float
    """Duration of this call, with waits for others."""
    relayed: Traffic | None = None
    """Bytes fetched for other nodes while the copy is used; null if not counted."""

    @property
    def copied_bytes(self) -> int:
        """Bytes that this call copied to the node."""
        return self.source_bytes + self.peer_bytes

    @property
    def reused_bytes(self) -> int:
        """Bytes of the requested shards that were on the node before."""
        return max(self.num_bytes - self.copied_bytes - self.left_out_bytes, 0)

    @property
    def bytes_per_s(self) -> float:
        """Bytes copied per second; 0 if nothing was copied."""
        return self.copied_bytes / self.seconds if self.seconds > 0 else 0.0


def ensure_staged(
    dataset: Path | str,
    tiers: Sequence[Tier],
    splits: tuple[str, ...] | None = None,
    verify: bool = True,
    tick: Tick | None = None,
    options: StagingOptions | None = None,
) -> StagedCopy:
    """Do the same as `staged`, but allow the copy to be evicted later."""
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

    If several processes of a node stage the same dataset, they wait for the one that copies. The
    copy is not evicted while the block runs; other unused copies are evicted for it.

    `tiers` are those of the site, fastest first; `splits` None for all. With `verify`, checksums of
    shards that are copied or were left by an interrupted copy are compared. `tick` is called with
    bytes done and bytes in all, about twice a second; it may raise to stop.

    Raises:
        ManifestError: `dataset` is not a dataset, or lacks a split.
        ShardError: A shard is missing, or its checksum differs from the manifest.
        StorageFullError: No tier has room.
    """
    options = options or StagingOptions()
    manifest = _identified(read_manifest_at(str(dataset), options.s3)).without(options.skipped)
    for split in splits or ():
        manifest.shards_of(split)  # raises with the valid splits if there is no such split
    wanted = Wanted(
        manifest=manifest,
        splits=tuple(name for name in manifest.splits if splits is None or name in splits),
        options=options,
        is_remote=is_remote(str(dataset)),
    )
    places = [TierPlace.on(tier, wanted) for tier in tiers]
    with ExitStack() as using, joining(options.group) as member:
        work = _Staging(str(dataset), wanted, places, verify, tick, member, using)
        copy = work.copy()
        if member is not None:
            relayed = work.serve(member, StagedFolder(copy.folder, copy.tier))
            copy = replace(copy, relayed=relayed if options.serves_readers else None)
        yield copy


@dataclass(frozen=True)
class _Staging:
    """One call of `staged`; the copy that it finds or makes is in use until `using` is closed."""

    dataset: str
    wanted: Wanted
    places: Sequence[TierPlace]
    verify: bool
    tick: Tick | None
    member: GangMember | None
    using: ExitStack
    traffic: Traffic = field(default_factory=Traffic)
    """Bytes copied."""

    @property
    def shards(self) -> tuple[ShardInfo, ...]:
        return shards_in(self.wanted.manifest, self.wanted.splits)

    @property
    def looks_again(self) -> bool:
        num_bytes = sum(shard.num_bytes for shard in self.shards)
        return self.verify and num_bytes <= cache.SMALL_BYTES

    def copy(self) -> StagedCopy:
        started = time.perf_counter()
        found, brought = self._find_or_stage(), self.traffic.brought
        missing = set(found.missing(self.wanted.manifest, self.wanted.splits))
        left_out = [shard for shard in self.shards if shard in missing]
        return StagedCopy(
            folder=found.path,
            tier=found.tier,
            reused=brought == Brought(),
            num_bytes=sum(shard.num_bytes for shard in self.shards),
            source_bytes=brought.source_bytes,
            peer_bytes=brought.peer_bytes,
            left_out_bytes=sum(shard.num_bytes for shard in left_out),
            left_out=frozenset(shard.file for shard in left_out),
            seconds=time.perf_counter() - started,
        )

    def serve(self, member: GangMember, found: StagedFolder) -> Traffic:
        complete, shards = found.complete(), self.wanted.manifest.shards
        here = [shard for shard in shards if complete and shard.file in complete.files]
        files = tuple(shard.file for shard in here)
        num_bytes = sum(shard.num_bytes for shard in here)
        options = self.wanted.options
        store = open_store(self.dataset, options.s3)
        relay = Relay(store, found.path, shards if options.serves_readers else here, files)
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
        """Return a copy that is sound, also after it was protected from eviction."""
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
        """Copy to the first tier with room; if it runs full, continue with the next one."""
        full: dict[str, str] = {}
        while True:
            try:
                return self._stage_once(full)
            except TierFullError as error:
                full[error.tier] = f"ran full while it was copied to ({error})"

    def _stage_once(self, full: Mapping[str, str]) -> StagedFolder:
        store, manifest = open_store(self.dataset, self.wanted.options.s3), self.wanted.manifest
        group = self.member.group if self.member is not None else None
        self.traffic.brought = Brought()
        with ExitStack() as reserved:
            usable = [place for place in self.places if not place.problem]
            with exclusive(place.room_lock for place in usable):
                placed = choose_place(self.wanted, self.places, full)
                folder = placed.folder
                reserved.enter_context(folder.reserving(placed.num_bytes))
            only, later = self.wanted.options.only, frozenset[str]()
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
    """Return the dataset by the fingerprint of what it lists; a part has the whole dataset's."""
    if not manifest.is_part:
        return manifest
    fingerprint = content_fingerprint(manifest.fields, manifest.classes, manifest.shards)
    return manifest.model_copy(update={"fingerprint": fingerprint, "is_part": False})
