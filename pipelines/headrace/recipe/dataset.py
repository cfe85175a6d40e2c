"""Raw samples and how they become shards."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from headrace.recipe.base import Bytes, Fraction, Name, Part


class DatasetSpec(Part):
    """Raw samples and how they are labelled and split."""

    name: Name
    """Name of the packed dataset."""
    source: str | None = None
    """Folder of raw samples; null when `path` names a packed dataset."""
    path: str | None = None
    """Folder of an already packed dataset; packing is then skipped."""
    include: tuple[str, ...] = ("**/*.png", "**/*.jpg", "**/*.jpeg", "**/*.bmp", "**/*.npy")
    """Glob patterns, relative to `source`, of the files that are samples."""
    labels: Literal["folders", "index", "none"] = "folders"
    """Where labels come from: the first folder name below `source`, an index file, or nowhere."""
    index: str | None = None
    """Index file below `source` (CSV or JSONL) with columns `path` and `label`."""
    splits: dict[Name, Fraction] = {"train": 0.8, "val": 0.1, "test": 0.1}
    """Share of the samples in each split; must add up to 1."""
    stratify: bool = True
    """Whether every split keeps the class shares of the whole."""
    split_seed: int = Field(default=0, ge=0)
    """Seed of the split and of the order of samples in the shards."""

    @model_validator(mode="after")
    def _check(self) -> DatasetSpec:
        if (self.source is None) == (self.path is None):
            raise ValueError("give either 'source' (raw samples) or 'path' (a packed dataset)")
        if self.labels == "index" and self.index is None:
            raise ValueError("labels: index needs 'index', the name of the CSV or JSONL file")
        if self.labels != "index" and self.index is not None:
            raise ValueError("both an index file and labels from folders are named; keep one")
        if abs(sum(self.splits.values()) - 1.0) > 1e-6:
            raise ValueError(f"splits add up to {sum(self.splits.values()):g}, not to 1")
        return self


class PackSpec(Part):
    """How raw samples become shards."""

    images: Literal["decode", "encoded"] = "decode"
    """Store pixels `(height, width[, channels]) uint8`, or the file's bytes as they are."""
    shard_bytes: Bytes = Bytes(64 * 2**20)
    """Aim for shards of about this size."""
    shard_samples: int | None = Field(default=None, ge=1)
    """Samples a shard; overrides `shard_bytes`."""
    max_quarantined: Fraction = 0.01
    """The step fails when a larger share of the samples cannot be read."""
