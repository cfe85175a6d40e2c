"""How a dataset is staged onto a node, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.recipe.site import StoreOptions
from headrace.staging.bringing import Arrival
from headrace.staging.gang_store import Traffic
from headrace.staging.peer_group import PeerGroup


@dataclass(frozen=True, kw_only=True)
class StagingOptions:
    """How a dataset is staged."""

    partial: bool = False
    """When no tier has room for all, stage what fits and leave the rest where it is."""
    only: frozenset[str] | None = None
    """Shards to bring now, on a tier that can take the others later; null: all of them."""
    arrival: Arrival | None = None
    """How shards come while others read the copy; null: nobody reads before all are there."""
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
    is_fresh: bool = False
    """Whether this call has compared the checksum of every byte there."""
    mended: frozenset[str] = frozenset()
    """Files of shards that had been there before, and were found damaged or gone."""
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
