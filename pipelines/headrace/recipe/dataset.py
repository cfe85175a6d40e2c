"""Raw samples and how they become shards."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import AfterValidator, ByteSize, Field, field_validator

from headrace.recipe.base import (
    Bytes,
    Count,
    Fraction,
    Name,
    Number,
    Parallel,
    Place,
    Problems,
    Settings,
    Target,
)
from headrace.recipe.globs import Globs

TRAIN = "train"
"""Split that is trained on; the one that `dataset.folds` cuts."""

VALIDATION = "val"
"""Split that is validated on while training, if there is one; with `data.fold`, that fold."""

SourceFormat = Literal[
    "auto", "files", "tar", "webdataset", "hdf5", "parquet", "huggingface", "csv", "jsonl",
    "function", "coco", "voc", "yolo", "npz", "zarr", "sql",
]  # fmt: skip
"""Forms of raw samples; `auto` finds out."""

_INCLUDED = (
    "png", "jpg", "jpeg", "bmp", "webp", "gif", "tif", "tiff", "wav", "flac", "npy", "npz",
)  # fmt: skip


_OF_SOURCES = (
    "format", "fields", "labels", "index", "path_field", "label_field", "group_field",
    "split_field", "query", "reader", "split_folders", "folds",
)  # fmt: skip
"""Keys that say nothing about a packed dataset, unless they have their defaults."""


def _known_encoding(name: str) -> str:
    """Refuse a name that Python does not know as a text encoding."""
    try:
        "".encode(name)
    except (LookupError, UnicodeError):
        raise ValueError(f"'{name}' is not a text encoding; valid are "
                         "those of Python: utf-8, utf-16, latin-1 and "
                         "cp1252") from None  # fmt: skip
    return name


Encoding = Annotated[str, AfterValidator(_known_encoding)]
"""Name of a text encoding of Python."""

Pixels = Annotated[int, Field(ge=1, le=100_000)]
"""Height or width of an image."""


def in_split_order(names: Iterable[str]) -> list[str]:
    """Names of splits in the one order that datasets keep them in: train, val, test, others."""
    known = {TRAIN: 0, VALIDATION: 1, "test": 2}
    return sorted(names, key=lambda name: (known.get(name, len(known)), name))


def packed_split(split: str, fold: int | None) -> str:
    """Split whose shards hold a split of `Manifest.with_fold`."""
    return TRAIN if split == VALIDATION and fold is not None else split


class DatasetSpec(Settings):
    """Raw samples and how they are labelled and split."""

    name: Name
    """Name of the packed dataset."""
    source: Place | None = None
    """Folder or S3 prefix of raw samples, or one container file; null when `path` is given."""
    path: Place | None = None
    """Folder or S3 prefix of an already packed dataset; no lease is asked for to pack then."""
    format: SourceFormat = "auto"
    """What lies in `source`: one file a sample, tar files of such files, WebDataset shards, HDF5
    files, Parquet files, what Hugging Face's `save_to_disk` wrote, files for `reader`, images with
    annotations of COCO, Pascal VOC or YOLO, arrays of rows (`.npz`, Zarr), or a database."""
    include: Globs = tuple(f"**/*.{suffix}" for suffix in _INCLUDED)
    """Glob patterns, relative to `source`, of the files (also those in tar files) that count; where
    rows are samples, of the files that hold them (all, when it is left out). Left out, `.txt` files
    count where none of these is there, but `README`, `LICENSE`, `COPYING` and `NOTICE`."""
    fields: dict[Name, str] = {}
    """Fields of a sample and where each comes from: a file pattern with one `*`, the same in all
    (`image: "*.jpg"`, `caption: "*.txt"`), or the name of a column, HDF5 dataset or WebDataset key;
    empty takes what is there."""
    labels: Literal["auto", "folders", "index", "field", "none"] = "auto"
    """Where labels come from: the first folders below `source` that are several and no splits, an
    index file, `label_field`, or nowhere. `auto`: the index or `label_field` if there is one,
    folders for files and tar files, `cls` for WebDataset, the one `ClassLabel` of Hugging Face,
    else nowhere."""
    index: Place | None = None
    """Index file (CSV, JSONL or Parquet) with a column `path`: below `source`, else in the working
    folder, or by its whole path. Columns `label`, `group` and `split` mean that, others become
    fields. Of annotations: a pattern of their files."""
    path_field: str | None = None
    """Column of an index that names the files; null: `path`, or else `file_name`."""
    label_field: str | None = None
    """Column, HDF5 dataset or WebDataset key that is the label; of an index: `label`."""
    label_kind: Literal["class", "value"] = "class"
    """Whether labels are class names, or numbers to keep as they are (regression)."""
    group_field: str | None = None
    """Column whose samples of one value stay in one split; of an index: `group`."""
    split_field: str | None = None
    """Column that names the split of each sample; of an index: `split`."""
    missing: dict[str, str | Number] = {}
    """What stands for a missing value, by column; samples that lack a value of another column are
    quarantined."""
    encoding: Encoding = "utf-8"
    """Encoding of CSV and JSONL files, as `utf-16`, `latin-1` or `cp1252`."""
    split_folders: bool | None = None
    """Whether folders named train, val or test (`Training`, `valid`, `val_images`, …) are splits:
    all samples must lie in one, or none counts. null: they are if that is clear."""
    query: str | None = None
    """SELECT statement whose rows are the samples of a database of SQLite or DuckDB; only a
    recipe's file may set it."""
    reader: Target | None = None
    """Function of yours that makes a dict of fields out of the path of a local file, or several;
    the site must allow it."""
    splits: dict[Name, Fraction] = {"train": 0.8, "val": 0.1, "test": 0.1}
    """Share of the samples in each split; must add up to 1. Their order means nothing."""
    stratify: bool = True
    """Whether every split keeps the class shares of the whole."""
    split_seed: int = Field(default=0, ge=0, lt=2**64)
    """Seed of the split and of the order of samples in the shards."""
    folds: Annotated[Parallel, Field(ge=2)] | None = None
    """Cut split `train` into so many folds for cross-validation, which replace the split `val`."""

    @field_validator("splits")
    @classmethod
    def _in_order(cls, splits: dict[Name, Fraction]) -> dict[Name, Fraction]:
        return {name: splits[name] for name in in_split_order(splits)}

    def problems(self) -> Problems:
        """Yield keys that contradict each other."""
        if (self.source is None) == (self.path is None):
            yield "give either 'source' (raw samples) or 'path' (a packed dataset)"
        unused = [name for name in _OF_SOURCES if getattr(self, name) not in (None, "auto", {})]
        if self.path is not None and unused:
            yield f"'{unused[0]}' is about raw samples, but 'path' names a packed dataset; keep one"
        yield from self._labelling()
        if self.format == "function" and self.reader is None:
            yield "format: function needs 'reader', a function of a path"
        if self.reader is not None and self.format not in ("auto", "function"):
            yield f"both 'reader' and format '{self.format}' are given; keep one"
        if abs(sum(self.splits.values()) - 1.0) > 1e-6:
            yield f"splits add up to {sum(self.splits.values()):g}, not to 1"
        for key in ("splits", "split_field") if self.split_folders else ():
            if getattr(self, key) != type(self).model_fields[key].default:
                yield f"both 'split_folders: true' and '{key}' are given; keep one"
        by_share = self.folds is not None and not self.split_folders
        if by_share and (not self.splits.get("train") or self.splits.get("val")):
            yield ("folds cut the split 'train', and each is 'val' once: write splits with 'train' "
                   "and without 'val': {train: 0.9, test: 0.1}")  # fmt: skip

    def _labelling(self) -> Problems:
        """Yield keys of labels that lack another one."""
        if self.labels == "index" and self.index is None:
            yield "labels: index needs 'index', the name of the index file"
        if self.path_field is not None and self.index is None:
            yield "'path_field' is a column of 'index', the index file: name that, too"
        if self.labels == "folders" and self.index is not None:
            yield "both an index file and labels from folders are named; keep one"
        if self.labels == "field" and self.label_field is None:
            yield "labels: field needs 'label_field', the name of the column or field"


class PackField(Settings):
    """How the values of one field are kept; what is left out follows `pack.images`."""

    keep: Literal["encoded", "decode"] | None = None
    """The file's bytes as they are, or what they decode to; null: as `pack.images` says for
    images, encoded for audio."""
    resize: tuple[Pixels, Pixels] | None = None
    """Height and width that images are resized to."""
    filter: Literal["nearest", "bilinear", "bicubic", "lanczos"] = "bilinear"
    """Filter of the resizing, as in Pillow: what becomes smaller is smoothed."""
    channels: Literal[1, 3] | None = None
    """Make all images grey (1) or red, green, blue (3); null keeps what they are."""
    orientation: Literal["apply", "keep"] | None = None
    """Turn images as their EXIF data says, also those that stay encoded when they are decoded, or
    keep pixels as they are stored; null: `apply`."""
    sample_rate: Parallel | None = None
    """Samples a second that audio is resampled to; null keeps the rate, which must be one."""
    dtype: Literal[
        "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "float16", "float32",
        "float64",
    ] | None = None  # fmt: skip
    """Convert elements to this type; null keeps the decoded one (audio: float32)."""
    mixed: Literal["error", "resize", "ragged"] | None = None
    """Samples of other shapes than the first one's: refuse them, resize them (images only), or
    store every shape; null: `ragged` for audio, else `error`."""
    codec: Literal["none", "lz4", "zstd", "blosc"] = "none"
    """Compression of fixed fields; `none` reads fastest."""
    chunk_samples: Count | None = None
    """Samples that `codec` compresses together, up to 16 MiB, and decompresses for any one of them:
    more make small samples smaller, and slower to read; null: one, or as many as fit 4 KiB."""


class PackSpec(Settings):
    """How raw samples become shards."""

    target: Place | None = None
    """Folder or S3 prefix below which the dataset is put; null for the site's folder."""
    images: Literal["decode", "encoded"] = "decode"
    """Store pixels `(height, width[, channels]) uint8`, or the file's bytes as they are."""
    fields: dict[Name, PackField] = {}
    """More about single fields, by name."""
    check: Literal["decode", "header"] = "decode"
    """How encoded samples are checked: decoded once, or only by their first bytes (faster)."""
    statistics: Literal["all", "sample", "none"] = "sample"
    """Mean, deviation and range of each field over all elements, or from all samples but over about
    8 million elements (all of a smaller field), or left out; classes are always counted."""
    shard_bytes: Bytes = ByteSize(64 * 2**20)
    """Aim for shards of about this size."""
    shard_samples: Count | None = None
    """Samples a shard; overrides `shard_bytes`."""
    shards_multiple_of: Parallel | Literal["auto"] = 1
    """Make the shards of a split (or fold) a multiple of this, of equal size; a split of fewer
    samples is left as it is. `auto`: world size x `data.workers` on the role that trains, so that
    all readers get equal shards."""
    max_samples: Count | None = None
    """Pack at most so many samples of each split and fold, with some of each class; null: all."""
    append: bool = False
    """Add samples that are new in the source to the dataset packed before with these settings."""
    max_quarantined: Fraction = 0.01
    """The step fails when a larger share of the samples cannot be read."""
