"""The manifest of a dataset: content, origin and checksums of its shards."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

from pydantic import Field, JsonValue, SerializerFunctionWrapHandler, model_serializer

from headrace.errors import ManifestError, nearest
from headrace.recipe.dataset import TRAIN, VALIDATION
from headrace.record import Record

FORMAT_VERSION = 2
"""Version of the dataset format that this release writes; it also reads older ones."""

Codec = Literal["none", "lz4", "zstd", "blosc"]
"""HDF5 filter of a compressed fixed field, as in hdf5plugin."""


class FieldInfo(Record):
    """One field of a sample."""

    name: str
    """Name, as in `image`, `array`, `label`."""
    dtype: str
    """NumPy dtype of an element, as in `uint8`, `float32`, `int64`."""
    shape: tuple[int, ...] = ()
    """Shape of one sample for fixed fields; empty for scalars and for ragged fields."""
    layout: Literal["fixed", "ragged"]
    """`fixed`: one dataset `(num_samples, *shape)`; `ragged`: `data` and `offsets`."""
    encoding: str = "raw"
    """Encoding of a ragged field's bytes, a kind of field, as `png`; `raw`: elements of `dtype`;
    `image` and `audio`: the first bytes decide."""
    ndim: int | None = None
    """Axes of each sample of a ragged field of arrays, whose shapes are stored; else null."""
    sample_rate: int | None = None
    """Samples per second of decoded sound; else null."""
    codec: Codec = "none"
    """Compression of a fixed field; `none` can be mapped into memory."""
    chunk_samples: int = 0
    """Samples in a chunk of a compressed fixed field; 0 if it is contiguous."""
    orientation: Literal["apply", "keep"] | None = None
    """Whether encoded images are rotated by their EXIF data; null, and not written, for other
    fields, and in datasets of older releases, where it means `keep`."""

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = write(self)
        if self.orientation is None:
            written.pop("orientation", None)
        return written


class ShardInfo(Record):
    """One shard file."""

    file: str
    """Path relative to the manifest, as in `shards/train-00000.h5`."""
    split: str
    """Split that all samples of the shard belong to."""
    num_samples: int
    num_bytes: int
    xxh3_128: str
    """XXH3 checksum of the file, 128 bits, hexadecimal."""
    fold: int | None = None
    """Fold that all samples of the shard belong to; null when its split has no folds."""


class FieldStatistics(Record):
    """Statistics of a fixed numeric field over the training split (or all, if there is none)."""

    count: int
    """Elements counted: finite and below 1e140."""
    every: int = 1
    """Sampling interval: one in `every` elements is counted; 1: all."""
    mean: tuple[float, ...]
    """Mean per channel (last axis of three-dimensional samples), else one number."""
    std: tuple[float, ...]
    """Population standard deviation, as `mean`."""
    minimum: float
    maximum: float


class LengthStatistics(Record):
    """Sizes of the samples of a ragged field over the training split (or all, if none)."""

    count: int
    total_bytes: int
    minimum_bytes: int
    maximum_bytes: int


class ColumnNote(Record):
    """A note for users on a column of a table; `headrace.packing.column_notes` renders it."""

    column: str
    kind: Literal["type", "holds", "numbers", "thousands", "ids", "files", "constant"]
    count: int = 0
    """Values that the note concerns."""
    total: int = 0
    """Values of the column, without missing ones."""
    detail: str = ""


class Quarantined(Record):
    """A sample that could not be packed."""

    path: str
    """Source file relative to the source folder."""
    reason: str


class Manifest(Record):
    """`manifest.json` of a dataset."""

    format_version: int = Field(default=FORMAT_VERSION, strict=True, ge=1)
    """Version of the dataset format."""
    version: int = 1
    """Version of the content: each append of samples increments it."""
    name: str
    fingerprint: str
    """Hash of fields, classes and shard checksums; equal if the content is equal."""
    is_part: bool = False
    """Whether only some shards are listed, as in a staged copy; the fingerprint is that of the
    whole dataset."""
    pack_key: str
    """Hash of source and settings; if equal, nothing needs packing."""
    fields: tuple[FieldInfo, ...]
    """Fields of a sample, the input first, `label` (if any) last."""
    classes: tuple[str, ...] = ()
    """Class names; `label` indexes them."""
    splits: dict[str, int]
    folds: dict[str, tuple[int, ...]] = {}
    """Samples in each fold of the splits that have folds."""
    shards: tuple[ShardInfo, ...]
    """Shards in the order of the samples, split after split."""
    statistics: dict[str, FieldStatistics] = {}
    """Statistics by fixed field."""
    lengths: dict[str, LengthStatistics] = {}
    """Sizes of samples by ragged field."""
    class_counts: dict[str, dict[str, int]] = {}
    """Samples by split and class."""
    quarantined: tuple[Quarantined, ...] = ()
    """Samples left out, with reasons."""
    notes: tuple[str | ColumnNote, ...] = ()
    """How samples were found, and how they differ from their files, for users."""
    provenance: dict[str, JsonValue] = {}
    """Source, recipe fingerprint, git commit, versions."""

    @property
    def num_samples(self) -> int:
        """Samples in all splits."""
        return sum(self.splits.values())

    @property
    def num_bytes(self) -> int:
        """Bytes of all shards."""
        return sum(shard.num_bytes for shard in self.shards)

    def shards_of(self, split: str) -> tuple[ShardInfo, ...]:
        """Return the shards of one split in order; raise `ManifestError` if it does not exist."""
        if split not in self.splits:
            is_fold = split == VALIDATION and TRAIN in self.folds
            hint = "Each of its folds is one: set data.fold." if is_fold else ""
            raise ManifestError(
                f"Dataset '{self.name}' has no split '{split}'", hint or nearest(split, self.splits)
            )
        return tuple(shard for shard in self.shards if shard.split == split)

    def with_fold(self, fold: int | None) -> Manifest:
        """Return the dataset with one fold (from 0) of split `train` as split `val`."""
        if fold is None:
            return self
        sizes = self.folds.get(TRAIN, ())
        if not 0 <= fold < len(sizes):
            raise ManifestError(
                f"Split '{TRAIN}' of dataset '{self.name}' has {len(sizes)} folds, no fold {fold}",
                f"Set data.fold to a number from 0 to {len(sizes) - 1}."
                if sizes
                else "Pack with dataset.folds, or set data.fold to null.",
            )
        if self.splits.get(VALIDATION):
            raise ManifestError(f"Dataset '{self.name}' has a split '{VALIDATION}' besides folds")
        taken = {"split": VALIDATION, "fold": None}
        shards = (
            shard.model_copy(update=taken) if (shard.split, shard.fold) == (TRAIN, fold) else shard
            for shard in self.shards
        )
        splits = {
            **self.splits, TRAIN: self.splits[TRAIN] - sizes[fold], VALIDATION: sizes[fold]
        }  # fmt: skip
        return self.model_copy(update={"shards": tuple(shards), "splits": splits, "folds": {}})

    def without(self, files: Collection[str]) -> Manifest:
        """Return the dataset without the shards of some files; positions count the others."""
        gone = [shard for shard in self.shards if shard.file in files]
        if not gone:
            return self
        splits = dict(self.splits)
        folds = {split: list(sizes) for split, sizes in self.folds.items()}
        for shard in gone:
            splits[shard.split] -= shard.num_samples
            if shard.fold is not None and shard.split in folds:
                folds[shard.split][shard.fold] -= shard.num_samples
        return self.model_copy(
            update={
                "shards": tuple(shard for shard in self.shards if shard.file not in files),
                "splits": splits,
                "folds": {split: tuple(sizes) for split, sizes in folds.items()},
                "is_part": True,
            }
        )

    def field(self, name: str) -> FieldInfo:
        """Return a field by name; raise `ManifestError` if it does not exist."""
        for info in self.fields:
            if info.name == name:
                return info
        names = [info.name for info in self.fields]
        raise ManifestError(f"Dataset '{self.name}' has no field '{name}'", nearest(name, names))
