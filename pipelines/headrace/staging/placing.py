"""Which tier takes a dataset, what is evicted for it, and what stays at the source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.files import tiers as tiers_module
from headrace.files.locks import KEPT_S
from headrace.files.manifest import Manifest, ShardInfo
from headrace.files.tiers import TierRoom, bytes_in
from headrace.recipe.site import Tier
from headrace.staging.cache import CachedCopy, evict, idle_copies
from headrace.staging.gang_member import RELAYED_SHARDS
from headrace.staging.peer_group import PeerGroup
from headrace.staging.staged_folder import StagedFolder

_MARGIN_BYTES = 2**20
"""Room for the manifest and the like when only a part fits."""

_STREAMED_SHARDS = 8
"""Largest shards that find room while the part that did not fit is fetched."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is to be on the node."""

    manifest: Manifest
    """Manifest of the dataset."""
    splits: tuple[str, ...]
    """Its splits that are wanted."""
    partial: bool
    """Whether a part will do."""
    is_remote: bool = False
    """Whether the rest of a part is fetched, rather than mapped from where it lies."""
    group: PeerGroup | None = None
    """Nodes that each take another part, and fetch the rest from each other."""

    @property
    def spare_bytes(self) -> int:
        """Room to leave on a tier that takes a part."""
        largest = max((shard.num_bytes for shard in self.manifest.shards), default=0)
        num_shards = 0
        if self.is_remote or self.group is not None:
            num_shards = _STREAMED_SHARDS + (RELAYED_SHARDS if self.group is not None else 0)
        return _MARGIN_BYTES + num_shards * largest

    def by_preference(self, shards: Sequence[ShardInfo]) -> list[ShardInfo]:
        """Shards, those first that this node should take when not all fit."""
        if self.group is None:
            return list(shards)
        numbers = {shard.file: number for number, shard in enumerate(self.manifest.shards)}
        part = self.group.part
        return sorted(shards, key=lambda shard: part(numbers[shard.file]))


@dataclass(frozen=True)
class Place:
    """A tier, and where on it the dataset goes."""

    tier: Tier
    """The tier."""
    folder: StagedFolder
    """The dataset's copy there."""
    problem: str
    """Why the tier cannot be used; empty when it can."""

    @classmethod
    def on(cls, tier: Tier, fingerprint: str) -> Place:
        """Where the dataset with a fingerprint goes on a tier, whose folders are made."""
        root = tiers_module.folder_of(tier)
        problem = tiers_module.prepare(root) or tiers_module.prepare(root / "datasets")
        return cls(tier, StagedFolder(root / "datasets" / fingerprint, tier.name), problem)

    @property
    def datasets(self) -> Path:
        """Folder of all copies on the tier."""
        return self.folder.path.parent


def room_locks(places: Iterable[Place]) -> list[Path]:
    """Lock files to hold while room is measured, made and reserved."""
    return [place.datasets / ".room.lock" for place in places if not place.problem]


def choose_place(
    wanted: Wanted, places: Sequence[Place], full: Mapping[str, str]
) -> tuple[StagedFolder, frozenset[str], int]:
    """The fastest tier that has room, or gets it when copies that nobody uses are evicted.

    Copies that were in use a moment ago go only when no tier has room otherwise.

    Args:
        wanted: What is to be placed.
        places: The tiers, fastest first.
        full: Tiers that turned out full, by name, with why.

    Returns:
        The copy, files of shards that stay at the source, and the copy's size when it is done.

    Raises:
        StorageFullError: No tier has room; names what each one lacks.
    """
    for idle_for_s in (KEPT_S, 0.0):
        for place in places:
            if _measure(wanted, place, full).has_room or _evict_for(
                wanted, place, full, idle_for_s
            ):
                return _whole(wanted, place)
    if wanted.partial:
        found = _most_room(wanted, places, full)
        if found is not None:
            return found
    what = f"the splits {', '.join(wanted.splits)} of dataset '{wanted.manifest.name}'"
    chosen = tiers_module.choose((_measure(wanted, place, full) for place in places), what)
    place = next(place for place in places if place.tier.name == chosen.name)
    return _whole(wanted, place)  # room has come up since it was first measured


def fitting(shards: Iterable[ShardInfo], room_bytes: int) -> frozenset[str]:
    """Files of the shards that do not fit, when the first ones are taken first."""
    left_out = set()
    for shard in shards:
        if shard.num_bytes > room_bytes:
            left_out.add(shard.file)
        else:
            room_bytes -= shard.num_bytes
    return frozenset(left_out)


def _measure(wanted: Wanted, place: Place, full: Mapping[str, str]) -> TierRoom:
    problem = place.problem or full.get(place.tier.name, "")
    missing = () if problem else place.folder.missing(wanted.manifest, wanted.splits)
    return tiers_module.measure(place.tier, _size(missing), problem)


def _evict_for(wanted: Wanted, place: Place, full: Mapping[str, str], idle_for_s: float) -> bool:
    """Evict copies until there is room; none when that would not do."""
    room = _measure(wanted, place, full)
    if room.problem:
        return False
    copies = idle_copies(place.datasets, idle_for_s, but=wanted.manifest.fingerprint)
    if room.usable_bytes + sum(copy.num_bytes for copy in copies) < room.needed_bytes:
        return False
    for copy in copies:
        evict(StagedFolder(copy.path, place.tier.name))
        if _measure(wanted, place, full).has_room:
            return True
    return False


def _most_room(
    wanted: Wanted, places: Sequence[Place], full: Mapping[str, str]
) -> tuple[StagedFolder, frozenset[str], int] | None:
    """The tier that takes most of the dataset; what nobody has used for a while goes for it."""
    usable = [place for place in places if not _measure(wanted, place, full).problem]
    if not usable:
        return None
    place = max(usable, key=lambda place: _most_bytes(wanted, place, full))
    for copy in _idle(wanted, place):
        evict(StagedFolder(copy.path, place.tier.name))
    missing = place.folder.missing(wanted.manifest, wanted.splits)
    room_bytes = _measure(wanted, place, full).usable_bytes - wanted.spare_bytes
    left_out = fitting(wanted.by_preference(missing), room_bytes)
    taken = [shard for shard in missing if shard.file not in left_out]
    return place.folder, left_out, bytes_in(place.folder.path) + _size(taken)


def _most_bytes(wanted: Wanted, place: Place, full: Mapping[str, str]) -> int:
    """Bytes of the dataset that a tier could hold at most, what is there already included."""
    idle_bytes = sum(copy.num_bytes for copy in _idle(wanted, place))
    free_bytes = _measure(wanted, place, full).usable_bytes + idle_bytes
    return bytes_in(place.folder.path) + free_bytes


def _idle(wanted: Wanted, place: Place) -> list[CachedCopy]:
    return idle_copies(place.datasets, KEPT_S, but=wanted.manifest.fingerprint)


def _whole(wanted: Wanted, place: Place) -> tuple[StagedFolder, frozenset[str], int]:
    missing = place.folder.missing(wanted.manifest, wanted.splits)
    return place.folder, frozenset(), bytes_in(place.folder.path) + _size(missing)


def _size(shards: Iterable[ShardInfo]) -> int:
    return sum(shard.num_bytes for shard in shards)
