"""What driver and workers of the pack step tell each other, as files and records."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import StepError
from headrace.packing.fields import FieldRule
from headrace.packing.samples import SourceField
from headrace.packing.sources.access import Access
from headrace.packing.statistics import Moments
from headrace.recipe.dataset import DatasetSpec
from headrace.record import Record
from headrace.storage.atomic import read_record
from headrace.storage.checksums import file_xxh3_128
from headrace.storage.manifest import FieldInfo, LengthStatistics, Quarantined, ShardInfo

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DatasetFolder:
    """A dataset's folder while it is packed and after."""

    path: Path

    @property
    def shards(self) -> Path:
        """Folder of the shards."""
        return self.path / "shards"

    @property
    def parts(self) -> Path:
        """Folder of plans and records of single shards; readers of the dataset ignore it."""
        return self.path / "parts"

    def plan_file(self, shard_file: str) -> Path:
        """Plan of a shard, by its path relative to the dataset."""
        return self.parts / f"{Path(shard_file).stem}.plan.json"

    def record_file(self, shard_file: str) -> Path:
        """Record of a packed shard, by its path relative to the dataset."""
        return self.parts / f"{Path(shard_file).stem}.json"


@dataclass(frozen=True, kw_only=True)
class ShardTask:
    """What a worker is given; it reads the samples' list from the dataset's folder."""

    dataset: DatasetSpec
    """The source, settled."""
    access: Access
    """What the site allows the source."""
    source_fields: tuple[SourceField, ...]
    """Fields that the listing found."""
    rules: tuple[FieldRule, ...]
    """How each is kept."""
    fields: tuple[FieldInfo, ...]
    """Fields of a sample in the shard."""
    target: str
    """The dataset's folder."""
    url: str | None = None
    """S3 prefix to which the shard is moved when it is whole; None: it stays in the folder."""
    file: str
    """The shard, relative to the dataset's folder."""
    pack_key: str
    """Identity of the whole packing."""


class PackedShard(Record):
    """Written once a shard is whole; the manifest is merged from these."""

    pack_key: str
    """Identity of the packing it belongs to."""
    shard: ShardInfo | None
    """The shard; null when none of its samples could be read."""
    statistics: dict[str, Moments]
    """Moments of the fixed fields."""
    lengths: dict[str, LengthStatistics] = {}
    """Sizes of the samples of ragged fields."""
    class_counts: dict[int, int]
    """Samples by class index."""
    encodings: dict[str, tuple[str, ...]]
    """Encodings met in fields that stay encoded, sorted."""
    quarantined: tuple[Quarantined, ...]
    """Samples left out, with reasons."""
    num_planned: int
    """Samples the shard was to hold."""


def recorded(folder: DatasetFolder, file: str, pack_key: str) -> PackedShard | None:
    """The record of a shard; None when it is to be packed. Whether it is unharmed is not looked at.

    Args:
        folder: The dataset's folder.
        file: The shard, relative to it.
        pack_key: Records of another packing do not count.
    """
    record_file = folder.record_file(file)
    try:
        packed = read_record(record_file, PackedShard)
    except StepError:
        logger.warning("%s is damaged; its shard is packed again", record_file)
        return None
    if packed is None or packed.pack_key != pack_key:
        return None
    return packed


def has_size(folder: Path, shard: ShardInfo) -> bool:
    """Whether a shard is there with its size."""
    try:
        return (folder / shard.file).stat().st_size == shard.num_bytes
    except FileNotFoundError:
        return False


def is_intact(folder: Path, shard: ShardInfo) -> bool:
    """Whether a shard is there with its size and checksum."""
    return has_size(folder, shard) and file_xxh3_128(folder / shard.file) == shard.xxh3_128
