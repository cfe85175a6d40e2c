"""Chooses a tier for a dataset, copies to evict for it, and shards that stay at the source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.data.batch_memory import batch_bytes
from headrace.data.order import needed_first
from headrace.files import tiers
from headrace.files.locks import KEPT_S
from headrace.files.manifest import Manifest, ShardInfo
from headrace.files.tiers import TierRoom, bytes_in
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site, StoreOptions, Tier
from headrace.staging.cache import CachedCopy, evict, idle_copies
from headrace.staging.gang_member import RELAYED_SHARDS
from headrace.staging.peers import PeerGroup
from headrace.staging.staged_folder import StagedFolder

_MARGIN_BYTES = 2**20
"""Room for the manifest and other small files if only a part fits."""

_STREAMED_SHARDS = 8
"""Number of largest shards for which room is left, to fetch the part that did not fit."""


@dataclass(frozen=True, kw_only=True)
class StagingOptions:
    """Options of staging."""

    partial: bool = False
    """If no tier has room for all, stage what fits and leave the rest at its location."""
    only: frozenset[str] | None = None
    """Shards to copy now, on a tier that can take the others later; null: all of them."""
    skipped: frozenset[str] = frozenset()
    """Files of damaged shards, which the copy leaves out."""
    s3: StoreOptions | None = None
    group: PeerGroup | None = None
    """Nodes that stage the dataset at the same time and share shards."""
    serves_readers: bool = False
    """Whether the group continues to share shards while the copy is used; see `GangStore`."""
    batch_bytes: int = 0
    """Bytes of batches on this node, which stay free on tiers in memory."""

    @classmethod
    def of_training(
        cls, recipe: Recipe, site: Site, manifest: Manifest, skipped: Iterable[str]
    ) -> StagingOptions:
        """Return those of a recipe that trains on a dataset, for a node without a group."""
        return cls(
            partial=recipe.stage.partial,
            only=needed_first(recipe, manifest),
            skipped=frozenset(skipped),
            s3=site.s3,
            batch_bytes=batch_bytes(recipe, site.roles[recipe.train.role], manifest),
        )


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What to put on the node."""

    manifest: Manifest
    splits: tuple[str, ...]
    options: StagingOptions
    is_remote: bool = False
    """Whether the rest of a part is fetched, not mapped at its location."""

    @property
    def spare_bytes(self) -> int:
        """Room to leave on a tier that takes a part."""
        largest = max((shard.num_bytes for shard in self.manifest.shards), default=0)
        num_shards, is_shared = 0, self.options.group is not None
        if self.is_remote or is_shared:
            num_shards = _STREAMED_SHARDS + (RELAYED_SHARDS if is_shared else 0)
        return _MARGIN_BYTES + num_shards * largest

    def by_preference(self, shards: Sequence[ShardInfo]) -> list[ShardInfo]:
        """Return shards in the order in which this node should take them, if not all fit."""
        if self.options.group is None:
            return list(shards)
        numbers = {shard.file: number for number, shard in enumerate(self.manifest.shards)}
        part = self.options.group.part
        return sorted(shards, key=lambda shard: part(numbers[shard.file]))


@dataclass(frozen=True)
class Placed:
    """The place chosen for a dataset."""

    folder: StagedFolder
    left_out: frozenset[str]
    """Files of the shards that stay at the source."""
    num_bytes: int
    """Final size of the copy."""


@dataclass(frozen=True)
class TierPlace:
    """A tier, and the dataset's folder on it."""

    tier: Tier
    wanted: Wanted
    folder: StagedFolder
    problem: str
    """Why the tier is unusable; empty if it is usable."""

    @classmethod
    def on(cls, tier: Tier, wanted: Wanted) -> TierPlace:
        """Return the place on a tier, whose folders are created."""
        root = tiers.folder_of(tier)
        problem = tiers.prepare(root) or tiers.prepare(root / "datasets")
        path = root / "datasets" / wanted.manifest.fingerprint
        return cls(tier, wanted, StagedFolder(path, tier.name), problem)

    @property
    def room_lock(self) -> Path:
        """Lock file to hold while room is measured, made and reserved."""
        return self.folder.path.parent / ".room.lock"

    def missing(self) -> tuple[ShardInfo, ...]:
        """Return the shards that are not on the tier yet."""
        return self.folder.missing(self.wanted.manifest, self.wanted.splits)

    def room(self) -> TierRoom:
        """Return how much the tier can take now."""
        missing = () if self.problem else self.missing()
        return tiers.measure(
            self.tier, _size(missing), self.problem, self.wanted.options.batch_bytes
        )

    def idle(self, idle_for_s: float = KEPT_S) -> list[CachedCopy]:
        """Return copies of other datasets that may be evicted for this one."""
        but = self.wanted.manifest.fingerprint
        return idle_copies(self.folder.path.parent, idle_for_s, but)

    def make_room(self, idle_for_s: float) -> bool:
        """Evict copies until all fits; evict none if that is not enough."""
        room = self.room()
        if room.problem or room.has_room:
            return room.has_room
        copies = self.idle(idle_for_s)
        if room.usable_bytes + sum(copy.num_bytes for copy in copies) < room.needed_bytes:
            return False
        return any(evict(copy.folder) and self.room().has_room for copy in copies)

    def most_bytes(self) -> int:
        """Return the most bytes of the dataset that the tier could hold, with existing ones."""
        idle_bytes = sum(copy.num_bytes for copy in self.idle())
        return bytes_in(self.folder.path) + self.room().usable_bytes + idle_bytes

    def part(self) -> Placed:
        """Return a place for what fits after copies are evicted that were unused for a while."""
        for copy in self.idle():
            evict(copy.folder)
        room_bytes = self.room().usable_bytes - self.wanted.spare_bytes
        return self.without(fitting(self.wanted.by_preference(self.missing()), room_bytes))

    def without(self, left_out: frozenset[str] = frozenset()) -> Placed:
        """Return a place for the dataset, without the shards with these files."""
        taken = [shard for shard in self.missing() if shard.file not in left_out]
        return Placed(self.folder, left_out, bytes_in(self.folder.path) + _size(taken))


def choose_place(wanted: Wanted, places: Sequence[TierPlace], full: Mapping[str, str]) -> Placed:
    """Return the fastest tier that has room, or gets it by evicting unused copies.

    Copies that were in use a moment ago are evicted only if no tier has room otherwise. `places`
    are the tiers, fastest first; `full` has, by name, why some turned out full.

    Raises:
        StorageFullError: No tier has room; the message has what each one lacks.
    """
    places = [replace(p, problem=p.problem or full.get(p.tier.name, "")) for p in places]
    for idle_for_s in (KEPT_S, 0.0):
        for place in places:
            if place.make_room(idle_for_s):
                return place.without()
    usable = [place for place in places if not place.problem]
    if wanted.options.partial and usable:
        return max(usable, key=TierPlace.most_bytes).part()
    what = f"the splits {', '.join(wanted.splits)} of dataset '{wanted.manifest.name}'"
    chosen = tiers.choose((place.room() for place in places), what)
    # more room was freed since it was first measured
    return next(place for place in places if place.tier.name == chosen.name).without()


def fitting(shards: Iterable[ShardInfo], room_bytes: int) -> frozenset[str]:
    """Return the files of the shards that do not fit, if the first ones are taken first."""
    left_out = set()
    for shard in shards:
        if shard.num_bytes > room_bytes:
            left_out.add(shard.file)
        else:
            room_bytes -= shard.num_bytes
    return frozenset(left_out)


def _size(shards: Iterable[ShardInfo]) -> int:
    return sum(shard.num_bytes for shard in shards)
